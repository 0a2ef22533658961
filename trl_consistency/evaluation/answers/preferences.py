"""Answer preference: which of two answers a model would rather begin its reply with, by their log-probabilities."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ...data.begun_replies import BegunReplies
from ...data.rendering import ProcessingClass, Prompt, get_tokenizer
from ...errors import ConsistencyError
from ...finite import check_logits
from ...generation.options import evaluating, left_padded, reads_padding
from ...models.checks import context_of
from .choices import check_no_thought
from .float32_head import float32_logits
from .generate import AnswerOptions


# Right names and the suggested answer of a question; None for a row that is left out.
Contrast = tuple[Sequence[str], str] | None


class Preference(NamedTuple):
    """
    Log-probabilities of two answers to one prompt, in nats per token.

    Args:
        right (`float`):
            That of the right answer: the likeliest of its names.
        suggested (`float`):
            That of the suggested answer.
    """

    right: float
    suggested: float

    @property
    def margin(self) -> float:
        return self.right - self.suggested


def prefer_answers(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    rows: Sequence[Mapping[str, Any]],
    contrasts: Sequence[Contrast],
    options: AnswerOptions,
    desc: str = "Scoring",
) -> dict[str, list[Preference | None]]:
    """
    Scores the right and the suggested answer of pairs after both prompts, each distinct text once.

    An answer's score is the mean log-probability of its tokens after the prompt and `options.answer_prefix`. All
    processes pass the same rows, and share the work.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        rows (`Sequence[Mapping[str, Any]]`):
            Pairs, with `clean_ids` and `perturbed_ids`.
        contrasts (`Sequence[tuple[Sequence[str], str] | None]`):
            For each row the names of the right answer and the suggested one, or None to leave it out.
        options ([`AnswerOptions`]):
            Options for generating answers.
        desc (`str`, *optional*, defaults to `"Scoring"`):
            Label of the progress bar.

    Returns:
        `dict[str, list[Preference | None]]`: The preferences on the side `"clean"` and on the side `"perturbed"`.
    """
    texts: dict[tuple[tuple[int, ...], str], Prompt] = {}
    for row, contrast in zip(rows, contrasts, strict=True):
        for side in ("clean", "perturbed"):
            texts |= {(tuple(row[f"{side}_ids"]), answer): row[f"{side}_prompt"] for answer in _answers(contrast)}
    prompts = list(dict.fromkeys(prompt for prompt, _ in texts))
    check_no_thought(model, prompts, get_tokenizer(tokenizer), options.thinking_markers, "free_answers", "answer")
    scores = dict(zip(texts, _score(model, tokenizer, texts, options, desc), strict=True))

    def prefer(prompt: Sequence[int], contrast: Contrast) -> Preference | None:
        if contrast is None:
            return None
        right, suggested = contrast
        return Preference(max(scores[tuple(prompt), name] for name in right), scores[tuple(prompt), suggested])

    return {
        side: [prefer(row[f"{side}_ids"], contrast) for row, contrast in zip(rows, contrasts, strict=True)]
        for side in ("clean", "perturbed")
    }


def without_unknown(tokenizer: ProcessingClass, contrasts: Sequence[Contrast]) -> tuple[list[Contrast], int]:
    """
    Leaves out right names that the tokenizer does not know, and rows without a right name or with an unknown suggestion: their
    scores would be those of the unknown token. Returns the contrasts, and the number of such rows.
    """
    text_tokenizer = get_tokenizer(tokenizer)
    unknown = text_tokenizer.unk_token_id

    def is_known(answer: str) -> bool:
        return unknown not in text_tokenizer(text=answer, add_special_tokens=False)["input_ids"]

    found: list[Contrast] = []
    for contrast in contrasts:
        right = [name for name in contrast[0] if is_known(name)] if contrast else []
        found.append((right, contrast[1]) if contrast and right and is_known(contrast[1]) else None)
    return found, sum(before is not None and after is None for before, after in zip(contrasts, found, strict=True))


def _answers(contrast: Contrast) -> list[str]:
    return [] if contrast is None else [*contrast[0], contrast[1]]


def answer_tokens(encode: Callable[[str], list[int]], prefix: str, answer: str) -> tuple[list[int], int]:
    """
    Returns the token ids of the prefix and an answer after it, and how many of them are the prefix's. A token that holds
    the end of the prefix and the beginning of the answer counts as the answer's.
    """
    alone = encode(prefix)
    ids = encode(f"{prefix} {answer}" if prefix and not prefix[-1].isspace() else f"{prefix}{answer}")
    same = next((n for n, (one, other) in enumerate(zip(alone, ids, strict=False)) if one != other), len(alone))
    return ids, min(same, len(ids) - 1)


@torch.no_grad()
def _score(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    texts: Mapping[tuple[tuple[int, ...], str], Prompt],
    options: AnswerOptions,
    desc: str,
) -> list[float]:
    """Returns the mean log-probability of each answer's tokens after its prompt and the prefix."""
    begin, rows = BegunReplies(tokenizer), []
    for (ids, answer), prompt in texts.items():
        scored, start = answer_tokens(partial(begin, prompt, ids), options.answer_prefix, answer)
        rows.append(([*ids, *scored], len(ids) + start))
    context = context_of(model)
    longest, answer = max(((len(ids), of[1]) for (ids, _), of in zip(rows, texts, strict=True)), default=(0, ""))
    if context is not None and longest > context:
        raise ConsistencyError(
            f"`free_answers` logprob: a prompt and the answer {answer!r:.80} have {longest} tokens, more than the model's context of "
            f"{context}. Leave that row out, or use `text`."
        )
    order = sorted(range(len(rows)), key=lambda index: (-len(rows[index][0]), index))
    size = 1 if reads_padding(model) else options.batch_size
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    state = PartialState()
    found: list[tuple[int, float]] = []
    with evaluating(model), tqdm(total=len(rows), desc=desc, unit="answer", disable=not options.progress) as bar:
        for number in range(state.process_index, len(batches), state.num_processes):
            scores = _score_batch(model, tokenizer, [rows[index] for index in batches[number]])
            found += zip(batches[number], scores, strict=True)
            bar.update(min(len(batches[number]) * state.num_processes, len(rows) - bar.n))
    by_index = dict(gather_object(found))
    return [by_index[index] for index in range(len(rows))]


def _score_batch(
    model: PreTrainedModel, tokenizer: ProcessingClass, rows: Sequence[tuple[list[int], int]]
) -> list[float]:
    """Returns the mean log-probability of the token ids of each row from its start on."""
    kept = max(len(ids) - start for ids, start in rows)
    pad = get_tokenizer(tokenizer).pad_token_id or 0
    input_ids, attention_mask = left_padded([ids for ids, _ in rows], pad, model.device)
    with float32_logits(model, kept + 1):  # With rounded ones, none of two answers may be preferred.
        logits = model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
            logits_to_keep=kept + 1,
            use_cache=False,
        ).logits[
            :, -kept - 1 : -1
        ]  # (B, kept, V): those before each of the last tokens. Some models ignore `logits_to_keep`.
    check_logits(logits)
    tokens = input_ids[:, -kept:, None]
    log_probs = logits.float().log_softmax(-1).gather(-1, tokens)[..., 0]  # (B, kept)
    return [log_probs[number, kept - (len(ids) - start) :].mean().item() for number, (ids, start) in enumerate(rows)]

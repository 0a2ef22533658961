"""Generates a model's answers to prompts, and to both prompts of pairs."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, Literal, NamedTuple

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...config.options import (
    NO_SPACE_AT_END,
    SHARE,
    TEMPERATURE,
    TWO_TEXTS,
    at_least,
    check_ranges,
    one_of,
    option,
    with_help,
)
from ...config.types import check_sampling
from ...data.rendering import ProcessingClass, Prompt, get_tokenizer, render_prompt
from ...data.reply_header import header_length
from ...data.thinking import THINKING_MARKERS, Markers, known_markers, other_markers, thought_spans
from ...errors import ConsistencyError
from ...generation.answer_cache import TargetCache
from ...generation.options import end_tokens, evaluating
from ...generation.targets import Engine, generate_targets
from ...log import get_logger
from ...models.adapter_checks import check_no_other_adapter, warn_of_adapter
from ...models.checks import context_of
from ...rope import say_positions
from ..rendered_rows import check_unchanged
from .choices import ANSWER_PREFIX, CHOICE_PREFIX, LetterScorer, offered_letters
from .replies import after_thinking, call_tokens, check_markers


logger = get_logger(__name__)

# What stands in place of the reply to a prompt that is longer than the model can read
NOT_ASKED = "Not asked, since the prompt leaves no room for a reply in the model's context"


@dataclass
@with_help
class AnswerOptions:
    """
    Options for generating answers.

    Args:
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Maximum number of tokens of an answer.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts per batch.
        temperature (`float`, *optional*, defaults to `0.0`):
            Sampling temperature: at least 0.0001, or 0, which means greedy decoding.
        top_p (`float`, *optional*, defaults to `1.0`):
            Cumulative probability of the tokens to sample from: above 0 and at most 1.
        seed (`int`, *optional*, defaults to `0`):
            Sampling seed.
        multiple_choice (`str`, *optional*, defaults to `"text"`):
            `"text"` lets the model write its answers. `"logprob"` takes the likeliest of the letters in the prompt.
        choice_prefix (`str`, *optional*, defaults to `"The answer is ("`):
            Beginning of the answer, before the letter. It must not end in a space: letters with a space before them are
            scored, too.
        free_answers (`str`, *optional*, defaults to `"text"`):
            `"text"` reads the answers that the model writes to questions without choices. `"logprob"` also scores the right
            and the suggested answer by their log-probabilities.
        answer_prefix (`str`, *optional*, defaults to `"The answer is"`):
            Beginning of the reply, before the answer.
        thinking_markers (`tuple[str, str]`, *optional*, defaults to `("<think>", "</think>")`):
            Text that opens and closes a thought.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.

    Raises:
        [`ConsistencyError`]: If the value of an option is not allowed, or `top_p` is given at temperature 0.
    """

    max_new_tokens: int = option(256, at_least(1))
    batch_size: int = option(32, at_least(1))
    temperature: float = option(0.0, TEMPERATURE)
    top_p: float = option(1.0, SHARE)
    seed: int = 0
    multiple_choice: Literal["text", "logprob"] = option("text", one_of("text", "logprob"))
    choice_prefix: str = option(CHOICE_PREFIX, NO_SPACE_AT_END)
    free_answers: Literal["text", "logprob"] = option("text", one_of("text", "logprob"))
    answer_prefix: str = ANSWER_PREFIX
    thinking_markers: tuple[str, str] = option(THINKING_MARKERS, TWO_TEXTS)
    progress: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.temperature == 0:
            check_sampling({"top_p": self.top_p})

    def differences(self, other: "AnswerOptions") -> list[str]:
        """Returns the options that decide answers or how they are read, and differ: `` `temperature` 0.7 and 0.0 ``."""
        one, two = self._deciding(), other._deciding()
        names = [name for name in one if name in two and one[name] != two[name]]
        return [f"`{name}` {one[name]!r} and {two[name]!r}" for name in names]

    def _deciding(self) -> dict[str, Any]:
        """Returns the options with which a model would get other figures, without those that are not used."""
        unused = {
            "batch_size": True,
            "progress": True,
            "seed": self.temperature == 0,
            "choice_prefix": self.multiple_choice == "text",
            "answer_prefix": self.free_answers == "text",
        }
        found = {of.name: getattr(self, of.name) for of in fields(self) if not unused.get(of.name)}
        return found | {"thinking_markers": tuple(self.thinking_markers)}


class Answer(NamedTuple):
    """
    An answer.

    Args:
        text (`str`):
            The whole completion without special tokens and the header before a reply, or the letter chosen by
            log-probability.
        said (`str`):
            The text after the thinking; empty if the thinking did not end.
        ids (`tuple[int, ...]`):
            Token ids of the completion.
        is_cut (`bool`, *optional*, defaults to `False`):
            Whether the answer reached `max_new_tokens`, or the end of the model's context, before its end.
        other_markers (`tuple[str, str]`, *optional*):
            Well-known markers of a thought that `said` still contains, if any: other markers than the `thinking_markers`.
    """

    text: str
    said: str
    ids: tuple[int, ...] = ()
    is_cut: bool = False
    other_markers: Markers | None = None


def answer_pairs(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    rows: Sequence[Mapping[str, Any]],
    options: AnswerOptions,
    cache: TargetCache | None = None,
    desc: str = "Answering",
    engine: Engine | None = None,
) -> tuple[list[Answer], list[Answer]]:
    """
    Answers both prompts of pairs, each distinct prompt once.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        rows (`Sequence[Mapping[str, Any]]`):
            Pairs with `clean_ids` and `perturbed_ids`. All processes pass the same pairs, and share the work.
        options ([`AnswerOptions`]):
            Options for generating answers.
        cache ([`~trl_consistency.generation.answer_cache.TargetCache`], *optional*):
            Stores answers as they are generated, so that a killed run can resume.
        desc (`str`, *optional*, defaults to `"Answering"`):
            Label of the progress bar.
        engine ([`Engine`][trl_consistency.generation.targets.Engine], *optional*):
            Writes the answers instead of `model.generate`.

    Returns:
        `tuple[list[Answer], list[Answer]]`: The answers to the clean prompts and to the perturbed prompts.

    Raises:
        [`ConsistencyError`]: With `multiple_choice="logprob"`, if a letter is not a single token, or a prompt makes the model
            think first. Also if another model's adapter acts in this one.
        [`InvalidPairsError`]: If pairs were changed after they were rendered.
    """
    check_unchanged(rows)
    if engine is None:
        check_no_other_adapter(model)
        warn_of_adapter(model)
    return answer_sides(model, tokenizer, rows, options, cache, desc, engine)


def answer_sides(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    rows: Sequence[Mapping[str, Any]],
    options: AnswerOptions,
    cache: TargetCache | None = None,
    desc: str = "Answering",
    engine: Engine | None = None,
) -> tuple[list[Answer], list[Answer]]:
    """Does what [`answer_pairs`] does, with a model and pairs that were checked."""
    letters: dict[tuple[int, ...], str] = {}
    texts: dict[tuple[int, ...], Prompt] = {}
    for row in rows:
        offered = offered_letters(row) if options.multiple_choice == "logprob" else ""
        for side in ("clean_ids", "perturbed_ids"):
            letters[tuple(row[side])] = offered or letters.get(
                tuple(row[side]), ""
            )  # a row without a key may share it
            texts[tuple(row[side])] = row[f"{side.removesuffix('_ids')}_prompt"]
    by_choice = [ids for ids, offered in letters.items() if offered]
    by_text = [ids for ids, offered in letters.items() if not offered]
    answers: dict[tuple[int, ...], Answer] = {}
    config = getattr(model, "config", None)
    context = (config and context_of(model)) or sys.maxsize
    markers = check_markers(options.thinking_markers)
    for prompts in (by_choice, by_text):
        if not prompts:
            continue
        answering = engine
        if prompts is by_choice:
            offers = [(texts[ids], list(ids), letters[ids]) for ids in prompts]
            answering = LetterScorer(model, tokenizer, offers, options.choice_prefix, options.thinking_markers)
        if config is not None and options.batch_size > 1 and (engine is None or prompts is by_choice):
            reply = options.max_new_tokens if prompts is by_text else 0
            if told := say_positions(list(map(len, prompts)), config, "prompt", reply):
                logger.warning_once(f"{told} Set the batch size to 1, or leave the long prompts out.")
        generated = generate_ids(model, tokenizer, list(map(list, prompts)), options, cache, answering, desc)
        for prompt, ids in zip(prompts, generated, strict=True):
            # An engine ends answers at the model's context, too.
            is_long = prompts is by_text and (engine is not None or len(ids) >= options.max_new_tokens)
            is_cut = is_long and not set(ids[-1:]) & set(end_tokens(model, tokenizer))
            is_cut |= engine is None and len(prompt) + len(ids) > context
            text, said, others = decode_answer(tokenizer, list(prompt), ids, markers)
            answers[prompt] = Answer(text, said, tuple(ids), is_cut, others)
    clean, perturbed = ([answers[tuple(row[side])] for row in rows] for side in ("clean_ids", "perturbed_ids"))
    return clean, perturbed


def decode_answer(
    tokenizer: ProcessingClass, prompt: list[int], ids: list[int], markers: Markers = THINKING_MARKERS
) -> tuple[str, str, Markers | None]:
    """
    Returns the text of an answer, what it says after the thinking, and other markers of a thought in that. The prompt
    may open the thought. The header that some models write before a reply is no part of it.
    """
    text_tokenizer = get_tokenizer(tokenizer)
    thought_end = thought_spans(prompt, ids, text_tokenizer, markers)[-1][1]
    start = thought_end + header_length(tokenizer, ids[thought_end:])
    others = other_markers(text_tokenizer.decode(ids[start:]), markers)  # which may be special tokens
    text, said = (_with_calls(text_tokenizer, ids[of:]) for of in (header_length(tokenizer, ids), start))
    return text, after_thinking(said, markers), others


def _with_calls(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Returns the text of an answer without special tokens, but for those that open a call of a tool: what follows is no answer."""
    parts = groupby(ids, call_tokens(tokenizer).__contains__)
    return "".join(tokenizer.decode(list(part), skip_special_tokens=not is_call) for is_call, part in parts).strip()


def generate_answers(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 32,
    batch_size: int = 64,
    progress: bool = True,
    cache: TargetCache | None = None,
) -> list[str]:
    """
    Answers prompts by greedy decoding, each distinct prompt once.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. Its mode (training or evaluation) is restored at the end.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        prompts (`Sequence[str]` or `Sequence[list[dict]]`):
            Plain texts or chat messages.
        max_new_tokens (`int`, *optional*, defaults to `32`):
            Maximum number of tokens of an answer.
        batch_size (`int`, *optional*, defaults to `64`):
            Prompts per batch.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.
        cache ([`~trl_consistency.generation.answer_cache.TargetCache`], *optional*):
            Stores answers as they are generated, so that a killed run can resume.

    Returns:
        `list[str]`: The answers, without special tokens, in the order of the prompts.

    Raises:
        [`ConsistencyError`]: If a prompt leaves no room for an answer in the model's context, or another model's adapter acts in
            this one.
    """
    check_no_other_adapter(model)
    warn_of_adapter(model)
    context = context_of(model)
    lengths = [len(render_prompt(tokenizer, prompt)) for prompt in prompts]
    longest = max(lengths, default=0)
    if context is not None and longest >= context:
        raise ConsistencyError(
            f"Prompt {lengths.index(longest)} (counted from 0) has {longest} tokens, which leaves no room for an answer in the model's "
            f"context of {context}: shorten it."
        )
    answers = answer_prompts(model, tokenizer, prompts, max_new_tokens, batch_size, progress, cache)
    return [answer.text for answer in answers]


def answer_prompts(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batch_size: int,
    progress: bool,
    cache: TargetCache | None,
) -> list[Answer]:
    """
    Returns the answers of [`generate_answers`], and what each says after a thought between any of the known markers. A prompt that
    leaves no room in the context is not asked; the text then says so.
    """
    rendered = [tuple(render_prompt(tokenizer, prompt)) for prompt in prompts]
    context = context_of(model) or sys.maxsize
    distinct = [prompt for prompt in dict.fromkeys(rendered) if len(prompt) < context]
    options = AnswerOptions(max_new_tokens, batch_size, progress=progress)
    generated = generate_ids(model, tokenizer, list(map(list, distinct)), options, cache) if distinct else []
    decode = get_tokenizer(tokenizer).decode
    texts = [decode(ids[header_length(tokenizer, ids) :], skip_special_tokens=True) for ids in generated]
    ends = end_tokens(model, tokenizer)
    answers: dict[tuple[int, ...], Answer] = {}
    for prompt, text, ids in zip(distinct, texts, generated, strict=True):
        is_ended = len(ids) < max_new_tokens or ids[-1] in ends
        markers = known_markers(list(prompt), ids, get_tokenizer(tokenizer))
        said = decode_answer(tokenizer, list(prompt), ids, markers)[1]
        answers[prompt] = Answer(text.strip(), said, tuple(ids), not is_ended or len(prompt) + len(ids) > context)
    return [
        answers.get(ids) or Answer(f"{NOT_ASKED}: {len(ids)} tokens of {context}.", "", is_cut=True)
        for ids in rendered
    ]


def generate_ids(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: list[list[int]],
    options: AnswerOptions,
    cache: TargetCache | None = None,
    engine: Engine | None = None,
    desc: str = "Answering",
) -> list[list[int]]:
    """Answers distinct prompts with the `engine`, or else the model. Prompts and answers are token ids."""
    text_tokenizer = get_tokenizer(tokenizer)
    sampling: dict[str, Any] = {"do_sample": False}
    if options.temperature:
        sampling = {"do_sample": True, "temperature": options.temperature, "top_p": options.top_p, "top_k": 0}
    config = GenerationConfig(
        **sampling,
        max_new_tokens=options.max_new_tokens,
        pad_token_id=next(i for i in (text_tokenizer.pad_token_id, text_tokenizer.eos_token_id, 0) if i is not None),
        eos_token_id=end_tokens(model, tokenizer),
    )
    with evaluating(model):
        return generate_targets(
            model, prompts, config, options.batch_size, options.seed, options.progress, cache, desc, engine
        )

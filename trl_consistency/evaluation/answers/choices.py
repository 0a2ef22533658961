"""Multiple choice by log-probability: finds the offered letter that is the likeliest next token."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ...data.answers import denied_answer
from ...data.begun_replies import BegunReplies
from ...data.choices import LETTER, choices_in, user_turns
from ...data.pairs import PROMPT_COLUMNS, report_faults
from ...data.rendering import ProcessingClass, Prompt, encode_rest, get_tokenizer, message_text
from ...data.thinking import KNOWN_MARKERS, Markers, thought_span
from ...errors import ConsistencyError
from ...finite import check_logits
from ...generation.options import evaluating, left_padded, reads_padding
from ..row_kinds import kind_of, read_aliases
from .float32_head import float32_logits
from .replies import is_letter


# Beginning of the answer, before the letter
CHOICE_PREFIX = "The answer is ("
# Beginning of the reply, before an answer in words
ANSWER_PREFIX = "The answer is"
# Tokens in which the marker of a thought must be complete
MOST_OF_MARKER = 16


def offered_letters(row: Mapping[str, Any]) -> str:
    """
    Returns the letters of a row's choices, each at the start of a line (`(A) pear`, `B. oak`), or `""`: those of the last user turn
    that offers the answer. A turn after it may ask again.
    """
    if kind_of(row) != "question" or not is_letter(row["answer"]):
        return ""
    prompt = row.get("clean_prompt")
    texts = [prompt] if isinstance(prompt, str) else list(map(message_text, user_turns(prompt or [])))
    for text in reversed(texts):
        found = sorted(choices_in(text)) or sorted(set(re.findall(LETTER, text, re.MULTILINE)))
        if len(found) > 1 and row["answer"] in found:
            return "".join(found)
    return ""


def check_choices(rows: Sequence[Mapping[str, Any]], name: str, numbers: Sequence[int] | None = None) -> None:
    """
    Raises [`ConsistencyError`] for questions whose letters do not fit the choices in their prompts: every reply to them
    would be graded by the wrong choice. `numbers` are the row numbers, if the rows are a sample.
    """
    places = zip(numbers or range(len(rows)), rows, strict=True)
    faults = [(number, fault) for number, row in places if (fault := _choice_fault(row)) is not None]
    report_faults(faults, name, len(rows))


def _choice_fault(row: Mapping[str, Any]) -> str | None:
    if kind_of(row) != "question":
        return None
    if (fault := _spelling_fault(row)) is not None or not is_letter(row["answer"]):
        return fault
    answer, biased = row["answer"], row.get("biased_answer")
    clean, perturbed = (choices_in(row.get(column)) for column in PROMPT_COLUMNS)
    if not clean:
        return None
    for column, letter in (("answer", answer), ("biased_answer", biased)):
        if letter and is_letter(letter) and letter not in clean:
            return f"`{column}` is {letter!r}, and the clean prompt offers {', '.join(clean)} alone"
    right = clean[answer]
    others = {name for letter, text in clean.items() if text != right for name in (letter, text)}
    if other := next((alias for alias in read_aliases(row) if alias in others), None):
        return f"`aliases` are names of the right answer, and {other!r} is another choice"
    moved = next((letter for letter, text in perturbed.items() if text == right != clean.get(letter)), None)
    if moved and perturbed.get(answer) != right:
        return f"`answer` is {answer!r}, which is {moved!r} in the perturbed prompt: keep the order of the choices"
    return None


def _spelling_fault(row: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with an answer that is not written as the letters are that replies are read for."""
    choices, biased = choices_in(row.get("clean_prompt")), row.get("biased_answer") or ""
    offered = offered_letters(row) or "".join(choices)
    answers = {"answer": row["answer"], "biased_answer": denied_answer(biased) or biased}
    for column, answer in answers.items():
        spelt = re.fullmatch(r"\(?([A-Za-z])[).:]?", answer)
        letter = spelt[1].upper() if spelt else ""
        if letter and letter in offered and answer != letter and answer not in choices.values():
            wanted = row[column].removesuffix(answer) + letter
            return f"`{column}` is {row[column]!r}: write the letter of the choice alone, {wanted!r}"
    for column, other in (answers, tuple(answers)[::-1]):
        is_text = answers[column] in choices.values() and not is_letter(answers[column])
        if is_text and is_letter(answers[other]) and answers[other] in offered:
            letter = next(letter for letter, text in choices.items() if text == answers[column])
            return (
                f"`{column}` is {row[column]!r}, and `{other}` a letter: write the letter of that choice, {letter!r}"
            )
    if biased and offered_letters(row) and not is_letter(answers["biased_answer"]):
        return f"`biased_answer` is {biased!r}, and replies are read for {', '.join(offered)} alone: write the letter of a choice"
    return None


def check_no_thought(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], tokenizer: Any, markers: Markers, option: str, what: str
) -> None:
    """
    Raises [`ConsistencyError`] if a prompt (token ids) has the model think before the `what` that `option` scores, or if the model
    begins its reply to the first one with a thought.
    """
    said = ""
    if any(thought_span(list(ids), [0], tokenizer, markers)[1] for ids in prompts):
        said = "the prompts make the model think first"
    elif prompts and (opening := _thought_opening(model, prompts[0], tokenizer, markers)):
        said = f"the model thinks first ({opening})"
    if said:
        raise ConsistencyError(
            f"`{option}` logprob: {said}, so no {what} comes next. Use `text`, or turn thinking off if the template can "
            '(`chat_template_kwargs` {"enable_thinking": false}).'
        )


@torch.no_grad()
def _thought_opening(model: PreTrainedModel, prompt: Sequence[int], tokenizer: Any, markers: Markers) -> str | None:
    """Returns the marker that the likeliest reply to a prompt opens a thought with, the given one or a known one, or None."""
    openings = {opening for opening, _ in (markers, *KNOWN_MARKERS)}
    ids = torch.tensor([list(prompt)], device=model.device)
    while True:
        said = tokenizer.decode(ids[0, len(prompt) :]).strip()
        if opening := next((opening for opening in openings if said.startswith(opening)), None):
            return opening
        if ids.shape[1] > len(prompt) and not any(opening.startswith(said) for opening in openings):
            return None
        if ids.shape[1] - len(prompt) >= MOST_OF_MARKER:
            return None
        with evaluating(model):
            logits = model(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=1
            ).logits
        ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)


class LetterScorer:
    """
    Answers prompts with the likeliest letter, in place of `model.generate` (an
    [`Engine`][trl_consistency.generation.targets.Engine]). A letter scores with or without a space before it: the
    likelier form counts. `prompts` are prompts, their token ids and the letters offered; `prefix` begins the answer.

    Raises [`ConsistencyError`] if a letter takes several tokens, or if the model thinks first.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: ProcessingClass,
        prompts: Sequence[tuple[Prompt, list[int], str]],
        prefix: str = CHOICE_PREFIX,
        thinking_markers: tuple[str, str] = ("<think>", "</think>"),
    ):
        self.model, text_tokenizer = model, get_tokenizer(tokenizer)
        self._pad = text_tokenizer.pad_token_id or 0
        begin = BegunReplies(tokenizer)
        # By prompt, the token ids of the prefix, and those of each offered letter
        self._read: dict[tuple[int, ...], tuple[list[int], dict[str, tuple[int, ...]]]] = {}
        for prompt, ids, letters in prompts:
            before = begin(prompt, ids, prefix)
            tokens = {of: _letter_tokens(text_tokenizer, partial(begin, prompt, ids), prefix, of) for of in letters}
            self._read[tuple(ids)] = before, tokens
        check_no_thought(
            model, [of[1] for of in prompts], text_tokenizer, thinking_markers, "multiple_choice", "letter"
        )
        read = sorted({(tuple(before), *sorted(tokens.items())) for before, tokens in self._read.values()})
        self.options = {"choices": "logprob", "prefix": prefix, "read": read, "head": "float32"}

    def start(self) -> None:
        """Does nothing: the model is already loaded."""

    @torch.no_grad()
    def __call__(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Returns the token of the likeliest letter after each prompt."""
        if len(prompts) > 1 and reads_padding(self.model):
            return [self([ids], seed)[0] for ids in prompts]
        full = [[*ids, *self._read[tuple(ids)][0]] for ids in prompts]
        input_ids, attention_mask = left_padded(full, self._pad, self.model.device)
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        with float32_logits(self.model, 1):  # Of equal rounded logits, the first letter would be the answer.
            logits = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=positions,
                logits_to_keep=1,
                use_cache=False,
            ).logits[:, -1]  # (B, V)
        check_logits(logits)
        answers = []
        for ids, of_row in zip(prompts, logits.float(), strict=True):
            tokens = [token for of_letter in self._read[tuple(ids)][1].values() for token in of_letter]
            answers.append([tokens[int(of_row[tokens].argmax())]])
        return answers


def _letter_tokens(tokenizer: Any, begin: Callable[[str], list[int]], prefix: str, letter: str) -> tuple[int, ...]:
    """
    Returns the tokens of a letter after the prefix, without and with a space before it. `begin` tokenizes the beginning of a reply.
    Raises [`ConsistencyError`] if there are none.
    """
    before = begin(prefix)
    tokens = [] if before else [encode_rest(tokenizer, letter)]  # behind "Answer: (", no space comes
    for form in (letter, f" {letter}"):
        ids = begin(f"{prefix}{form}")
        follows = len(ids) > len(before) and ids[: len(before)] == before
        tokens += [ids[len(before) :] if follows else encode_rest(tokenizer, form)]
    single = dict.fromkeys(ids[0] for ids in tokens if len(ids) == 1 and ids[0] != tokenizer.unk_token_id)
    if not single:
        raise ConsistencyError(f"`multiple_choice` logprob: the letter {letter} is not a single token. Use `text`.")
    return tuple(single)

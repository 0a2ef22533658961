"""Finds the tokens that the two prompts of a pair share. Token ids are compared, never text."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from ..log import get_logger
from .rendering import (
    SENTINEL,
    Message,
    ProcessingClass,
    Prompt,
    adds_tokens,
    get_tokenizer,
    is_prefilled,
    message_text,
    render_prompt,
    render_text,
)


logger = get_logger(__name__)

# Replaces a message's content to probe a template. Ends in a letter, because punctuation can merge with a newline.
_OTHER_SENTINEL = "consistency z"

# In tokens. Words are tokenized one by one, so a neighbour changes only the word beside it.
_LONGEST_WORD = 8


class Span(NamedTuple):
    """
    A shared span: `clean_ids[clean_start:clean_start + length] == perturbed_ids[perturbed_start:perturbed_start +
    length]`. With `length` 0, nothing is shared.
    """

    clean_start: int
    perturbed_start: int
    length: int


class Spread(NamedTuple):
    """Minimum, median and maximum of some numbers."""

    min: float
    median: float
    max: float


@dataclass
class AlignmentReport:
    """How many tokens the pairs of a data set share."""

    rows: int  # including anchors
    shared_tokens: Spread
    shared_fraction: Spread  # of the clean prompts, from 0 to 1
    header_only: list[int]  # rows that share at most one token (often punctuation) before the generation header
    no_shared_span: list[int]  # rows that share nothing

    def __str__(self) -> str:
        tokens, fraction = self.shared_tokens, self.shared_fraction
        return (
            f"{self.rows} pair(s) share {tokens.min:g} to {tokens.max:g} tokens (median {tokens.median:g}), "
            f"{fraction.min:.0%} to {fraction.max:.0%} of the clean prompt (median {fraction.median:.0%}). "
            f"{len(self.header_only)} of them share at most one token before the generation header, and {len(self.no_shared_span)} "
            "nothing at all."
        )


def shared_suffix(clean_ids: Sequence[int], perturbed_ids: Sequence[int]) -> Span:
    """Finds the longest common token suffix of two prompts."""
    length = 0
    for clean, perturbed in zip(reversed(clean_ids), reversed(perturbed_ids), strict=False):
        if clean != perturbed:
            break
        length += 1
    return Span(len(clean_ids) - length, len(perturbed_ids) - length, length)


def shared_content_span(
    clean_ids: Sequence[int],
    perturbed_ids: Sequence[int],
    content: tuple[int, int],
    within: tuple[int, int] | None = None,
) -> Span:
    """
    Finds the last place where the perturbed prompt repeats `content`, a range of clean tokens from [`content_range`].
    The length is 0 if there is none. If it is `within` a range of the perturbed tokens, other places do not count, unless no
    token there is the same.

    The last place counts, because a wrong few-shot prompt asks the question twice and its first copy carries the wrong
    label. The search uses only the core of the content. Its first and last words may be tokenized differently where they
    merge with a neighbour (`M|ost` after a newline is `␣Most` after a space). A search for the whole content could then
    find only the first copy. From the core, the span grows in both directions while the tokens are equal. Content that
    repeats itself (`no no no no`) holds its core in several places: there, the whole decides.
    """
    start, end = content
    seam = seam_tokens(end - start)
    core, ids = list(clean_ids[start + seam : end - seam]), list(perturbed_ids)
    if within is not None:
        low, high = within
        spans = [_grown(clean_ids, ids, content, low + place) for place in _occurrences(ids[low:high], core)]
        if spans:
            return max(spans, key=lambda span: span.length)
        # In a short content, the words at its ends may hold all of the core.
        there = SequenceMatcher(None, list(clean_ids[start:end]), ids[low:high], autojunk=False)
        same = there.find_longest_match()
        if same.size:
            return Span(start + same.a, low + same.b, same.size)
    found = next(_occurrences(ids, core), None)
    if found is None:
        return Span(start, 0, 0)
    whole = next(_occurrences(ids, list(clean_ids[start:end])), None)
    if whole is not None and found < whole + end - start:
        found = whole + seam
    return _grown(clean_ids, ids, content, found)


def _grown(clean_ids: Sequence[int], perturbed_ids: Sequence[int], content: tuple[int, int], found: int) -> Span:
    """Returns the span that the core of the content, which is `found` in the perturbed prompt, grows to."""
    start, end = content
    seam = seam_tokens(end - start)
    shift = found - (start + seam)
    first, last = start + seam, end - seam
    while first > start and first + shift > 0 and clean_ids[first - 1] == perturbed_ids[first - 1 + shift]:
        first -= 1
    while last < end and last + shift < len(perturbed_ids) and clean_ids[last] == perturbed_ids[last + shift]:
        last += 1
    return Span(first, first + shift, last - first)


def seam_tokens(length: int) -> int:
    """Returns how many tokens at each end of `length` tokens may be tokenized differently in another place."""
    return 0 if length < 3 else max(1, min(_LONGEST_WORD, length // 4))


def _occurrences(ids: list[int], part: list[int]) -> Iterator[int]:
    """Yields where a part is, from the last place to the first."""
    if not part:
        return
    first, last, length = part[0], part[-1], len(part)
    for start in range(len(ids) - length, -1, -1):
        # The ends are compared first, because a slice is a copy.
        if ids[start] == first and ids[start + length - 1] == last and ids[start : start + length] == part:
            yield start


def content_range(
    processing_class: ProcessingClass,
    prompt: Prompt,
    ids: Sequence[int],
    shared_text: str | None = None,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> tuple[int, int] | None:
    """
    Finds the tokens of a rendered clean prompt that hold the content shared with the perturbed prompt: first token and
    end, or None if the prompt does not hold it.

    The content is the last occurrence of `shared_text`, by default the last user message or the whole of a string
    prompt. Tokens that reach beyond it, because they merged with neighbouring text, are left out. White space around
    it does not count, because many templates strip it.
    """
    text = render_text(processing_class, prompt, tools, chat_template_kwargs)
    if shared_text is not None:
        content = shared_text.strip()
        start = text.rfind(content)
    elif isinstance(prompt, str):
        content, start = prompt, 0
    else:
        content, start = _last_user_content(processing_class, prompt, text, tools, chat_template_kwargs)
    if not content:
        return None
    tokenizer = get_tokenizer(processing_class)
    if start >= 0 and tokenizer.is_fast:
        is_adding = adds_tokens(processing_class, prompt, text)  # as in rendering
        encoding = tokenizer(text=text, add_special_tokens=is_adding, return_offsets_mapping=True)
        # The tokenizer may append an end-of-sequence token, which rendering removed.
        if encoding["input_ids"][: len(ids)] == list(ids):
            offsets = encoding["offset_mapping"][: len(ids)]
            return _tokens_inside(tokenizer, text, ids, offsets, start, start + len(content))
    content_ids = tokenizer(text=content, add_special_tokens=False)["input_ids"]
    span = shared_content_span(content_ids, ids, (0, len(content_ids)))
    return (span.perturbed_start, span.perturbed_start + span.length) if span.length else None


def _last_user_content(
    processing_class: ProcessingClass,
    messages: list[Message],
    text: str,
    tools: list[dict] | None,
    chat_template_kwargs: dict[str, Any] | None,
) -> tuple[str, int]:
    """Returns the last user message's text and the character of the rendered `text` where it starts (-1: unknown)."""
    position = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=None)
    if position is None:
        return "", -1
    content = content_text(messages)
    # A plain search could find a later quotation of the content or, if the content is short, a part of the template.
    probed = render_text(processing_class, _with_content_at(messages, position, SENTINEL), tools, chat_template_kwargs)
    start = probed.find(SENTINEL)
    if start >= 0 and text[:start] == probed[:start]:
        start += len(text[start:]) - len(text[start:].lstrip())
        if text.startswith(content, start):
            return content, start
    return content, text.rfind(content)


def _with_content_at(messages: list[Message], position: int, content: str) -> list[Message]:
    position %= len(messages)
    return [*messages[:position], {**messages[position], "content": content}, *messages[position + 1 :]]


def _tokens_inside(
    tokenizer: Any, text: str, ids: Sequence[int], offsets: list[tuple[int, int]], start: int, end: int
) -> tuple[int, int] | None:
    """Returns the tokens that lie wholly inside the characters `[start, end)` of `text`."""
    # Special tokens that the tokenizer adds have no characters.
    inside = [index for index, (left, right) in enumerate(offsets) if left < right and start <= left and right <= end]
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    # Some byte-level tokenizers (such as Llama 3's) leave a token's white space out of its offsets.
    if offsets[first][0] == start and _is_space(tokenizer.decode([ids[first]])[:1], text[start]):
        first += 1
    if offsets[last][1] == end and _is_space(tokenizer.decode([ids[last]])[-1:], text[end - 1]):
        last -= 1
    return (first, last + 1) if first <= last else None


def _is_space(in_token: str, in_text: str) -> bool:
    return in_token.isspace() and not in_text.isspace()


def content_text(prompt: Prompt, shared_text: str | None = None) -> str:
    """Returns the text of the content in a clean prompt, see [`content_range`]."""
    if shared_text is not None:
        return shared_text.strip()
    if isinstance(prompt, str):
        return prompt.strip()
    return next((message_text(of).strip() for of in reversed(prompt) if of["role"] == "user"), "")


def header_length(
    processing_class: ProcessingClass,
    prompt: Prompt,
    tools: list[dict] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> int:
    """
    Counts the tokens that the chat template writes after the last message: the end of its turn and the generation
    header. Prompts share these tokens even if their contents differ. The count is 0 for a string prompt and for an
    assistant turn to be continued.

    It depends on the template, its variables, the system message (SmolLM3's `/no_think`) and the role of the last message,
    not on the contents of the others.
    """
    if isinstance(prompt, str) or is_prefilled(prompt):
        return 0
    one, other = (_with_content_at(prompt, -1, content) for content in (SENTINEL, _OTHER_SENTINEL))
    tokenizer = get_tokenizer(processing_class)
    if tokenizer.is_fast:
        # Use characters where possible: a small vocabulary may map both sentinels to the same unknown token.
        text = render_text(processing_class, one, tools, chat_template_kwargs)
        found = text.rfind(SENTINEL)
        if found < 0:
            return 0
        encoding = tokenizer(text=text, add_special_tokens=False, return_offsets_mapping=True)
        return sum(left >= found + len(SENTINEL) for left, _ in encoding["offset_mapping"])
    ids = [render_prompt(processing_class, messages, tools, chat_template_kwargs) for messages in (one, other)]
    return shared_suffix(*ids).length if ids[0] != ids[1] else 0


def report_alignment(
    spans: "Sequence[Span] | np.ndarray",
    clean_lengths: "Sequence[int] | np.ndarray",
    header_lengths: "Sequence[int] | np.ndarray",
    numbers: "Sequence[int] | np.ndarray | None" = None,
) -> AlignmentReport:
    """
    Summarizes how much pairs share, from each row's shared span, (rows, 3), and the lengths of its clean prompt and
    its generation header in tokens. The report names rows by their `numbers`, by default from 0 on.
    """
    # In arrays, a million rows take a few megabytes; as Python objects, hundreds.
    rows = np.asarray(spans).reshape(-1, 3)
    starts, _, shared, lengths, headers = np.column_stack([rows, clean_lengths, header_lengths]).T
    numbers = np.arange(len(rows)) if numbers is None else np.asarray(numbers)
    return AlignmentReport(
        rows=len(shared),
        shared_tokens=_spread(shared),
        shared_fraction=_spread(shared / np.maximum(lengths, 1)),
        # Such a span starts inside the header, or one token before it.
        header_only=numbers[(shared > 0) & (starts >= lengths - headers - 1)].tolist(),
        no_shared_span=numbers[shared == 0].tolist(),
    )


def _spread(values: np.ndarray) -> Spread:
    if not len(values):
        return Spread(0, 0, 0)
    return Spread(values.min().item(), np.median(values).item(), values.max().item())


def log_alignment(reports: dict[str, AlignmentReport], name: str, compares_answers: bool) -> None:
    """
    Logs how much the pairs of a data set share, by kind of span, as a warning if some share almost nothing. Short
    suffixes are enough if the answers are compared too.
    """
    for kind, report in reports.items():
        is_thin = report.header_only and not (compares_answers and kind == "suffix")
        rows = ", ".join(map(str, report.header_only[:5])) + (", ..." if len(report.header_only) > 5 else "")
        advice = f" (Rows {rows}. docs/act.md says what to do about them.)" if is_thin else ""
        logger.log(logging.WARNING if is_thin else logging.INFO, f"`{name}`: {report}{advice}")

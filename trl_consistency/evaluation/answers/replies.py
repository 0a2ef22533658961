"""The parts of a reply: thoughts, calls of tools, and letters of choices."""

import re
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...config.options import TWO_TEXTS
from ...data.thinking import THINKING_MARKERS, Markers, warnings_of_markers
from ...errors import ConsistencyError


# What opens a call of a tool. In Mistral's and Llama's tokenizers it is a special token.
CALL_MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)|(?:\[TOOL_CALLS\]|<\|python_tag\|>).*", re.DOTALL)


def is_letter(answer: str) -> bool:
    """Whether an answer is the letter of a choice."""
    return len(answer) == 1 and "A" <= answer <= "Z"


def are_letters(candidates: Iterable[str]) -> bool:
    """Whether the possible answers are letters of choices."""
    candidates = [candidate for candidate in candidates if candidate.strip()]
    return bool(candidates) and all(map(is_letter, candidates))


def check_markers(markers: Any) -> Markers:
    """Returns `thinking_markers` as a pair. Raises [`ConsistencyError`] if they are not two different texts."""
    if not TWO_TEXTS.holds(markers):
        raise ConsistencyError(f"`thinking_markers` must be {TWO_TEXTS.words}, got {markers!r}.")
    return markers[0], markers[1]


def warning_of_cut(cut: int, total: int) -> list[str]:
    """Returns a warning if answers were cut at the limit of their length."""
    if not cut:
        return []
    return [
        f"{cut} of {total} answer(s) reached `max_completion_length` (`AnswerOptions.max_new_tokens`), or the end of the model's "
        "context, without an end-of-turn token; they are graded as they are. Raise it, or shorten the prompts, to avoid this."
    ]


def warning_of_markers(found: Iterable[Markers | None]) -> list[str]:
    """Returns a warning if answers have thoughts between other markers, which were graded with them."""
    return warnings_of_markers(found, "answer(s)", "was graded as a part of them")


def after_thinking(text: str, markers: Markers = THINKING_MARKERS) -> str:
    """
    Returns the part of a completion after the thought, which the prompt may have opened; empty if it does not end.
    """
    return split_thought(text, markers)[1]


def call_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Returns the special tokens that open a call of a tool."""
    added = tokenizer.added_tokens_decoder.items()
    return {token_id for token_id, token in added if token.special and token.content in CALL_MARKERS}


def without_calls(text: str) -> str:
    """Returns a completion without what it asks of tools, which is no answer."""
    return _CALL.sub("", text)


def split_thought(text: str, markers: Markers = THINKING_MARKERS) -> tuple[str, str]:
    """Returns the thought, without markers, and the answer after it, as in [`after_thinking`]."""
    opening, closing = markers
    thought, _, answer = text.rpartition(closing)
    if opening in answer:
        thought, answer = text, ""
    return thought.replace(opening, "").replace(closing, "").strip(), answer.strip()

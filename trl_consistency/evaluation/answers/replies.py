"""The parts of a reply: thoughts, and letters of choices."""

from collections.abc import Iterable


def is_letter(answer: str) -> bool:
    """Whether an answer is the letter of a choice."""
    return len(answer) == 1 and "A" <= answer <= "Z"


def are_letters(candidates: Iterable[str]) -> bool:
    """Whether the possible answers are letters of choices."""
    candidates = [candidate for candidate in candidates if candidate.strip()]
    return bool(candidates) and all(map(is_letter, candidates))


THINKING_MARKERS = ("<think>", "</think>")


def after_thinking(text: str, markers: tuple[str, str] = THINKING_MARKERS) -> str:
    """
    Returns the part of a completion after the thought, which the prompt may have opened; empty if it does not end.
    """
    return split_thought(text, markers)[1]


def split_thought(text: str, markers: tuple[str, str] = THINKING_MARKERS) -> tuple[str, str]:
    """Returns the thought, without markers, and the answer after it, as in [`after_thinking`]."""
    opening, closing = markers
    thought, _, answer = text.rpartition(closing)
    if opening in answer:
        thought, answer = text, ""
    return thought.replace(opening, "").replace(closing, "").strip(), answer.strip()

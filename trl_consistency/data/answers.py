"""Finds clean prompts with two right answers: one of them is wrong."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .choices import other_letters
from .pairs import misspelt_columns, parse_or_none
from .repeats import prompt_key
from .typography import spelling_key


REQUESTS = (
    "harmful",
    "benign",
)  # Categories of requests, which have no right answer; all others only group questions.

# What questions without choices ask for, so that a reply can be read without doubt
ANSWER_INSTRUCTION = 'Finish with a line "Answer: X", where X is only your answer.'

# The columns that answers are graded by
KEYS = ("answer", "aliases", "biased_answer", "category")


def key_column_faults(columns: Iterable[str]) -> Iterator[str]:
    """Yields faults of columns whose names are nearly those of keys, which grading would ignore."""
    yield from misspelt_columns(columns, KEYS, KEYS, cutoff=0.8)


class Contradiction(NamedTuple):
    """Two rows, by their numbers, whose clean prompts are the same and whose answers are not."""

    row: int
    answer: Any
    earlier_row: int
    earlier_answer: Any


def question_key(row: Mapping[str, Any]) -> str | None:
    """Returns all that the right answer depends on, which is not the cue; None for rows without a right answer."""
    if not row.get("answer") or row.get("category") in REQUESTS or row.get("clean_prompt") is None:
        return None
    return prompt_key(row, "clean_prompt")


def contradictions(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Contradiction]:
    """
    Yields the rows, given with their numbers, whose clean prompt an earlier row has with another `answer`. Two answers do not
    contradict each other if one is among the other row's `aliases`, or is the letter of a choice with the same text.
    """
    first: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, row in rows:
        key = question_key(row)
        if key is None:
            continue
        earlier_number, earlier = first.setdefault(key, (number, row))
        if row["answer"] == earlier["answer"]:
            continue
        if row["answer"] not in _names(earlier) and earlier["answer"] not in _names(row):
            yield Contradiction(number, row["answer"], earlier_number, earlier["answer"])


def denied_answer(biased_answer: str) -> str | None:
    """Returns the `A` of a `biased_answer` such as `"NOT A"` (the cue only denies it), else None."""
    return biased_answer[4:] if biased_answer.startswith("NOT ") else None


def spelt_answers(row: Mapping[str, Any]) -> list[str]:
    """Returns the right answer of a row and the one that its cue speaks for or against, as they are spelt; none of a request."""
    if row.get("category") in REQUESTS:
        return []
    answers = [
        answer for answer in (row.get("answer"), row.get("biased_answer")) if answer and isinstance(answer, str)
    ]
    return [denied_answer(answer) or answer for answer in answers]


def spelling_hash(row: Mapping[str, Any], answer: str) -> int:
    """Returns the same number for answers of a category that differ in case, spaces or a final full stop alone."""
    return hash((repr(row.get("category")), spelling_key(answer)))


class Spellings:
    """The answers seen so far, to find those of a category that a reply could not tell apart."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[str, int | str]] = {}  # by a hash: there may be millions

    def faults(self, row: Mapping[str, Any], number: int | str) -> list[str]:
        """Returns what is wrong with the answers of a row that earlier rows spell otherwise: `number` is that of the row."""
        faults = []
        for answer in spelt_answers(row):
            other, earlier = self._first.setdefault(spelling_hash(row, answer), (answer, number))
            if other != answer:
                faults.append(
                    f"the answers `{_visible(answer)}` and `{_visible(other)}` (row {earlier}) differ in case, spaces or a final full stop alone, and a reply could "
                    "be only one of them. Spell them alike, or give their rows two categories"
                )
        return faults


def _visible(answer: str) -> str:
    """Returns an answer with all but single spaces marked, since messages are written without them."""
    return re.sub(r"\s{2,}|[^\S ]", lambda of: "\u2423" * len(of[0]), answer)


def _names(row: Mapping[str, Any]) -> list[Any]:
    aliases = parse_or_none(row.get("aliases"))
    return [row["answer"], *(aliases if isinstance(aliases, list) else ()), *other_letters(row, row["answer"])]

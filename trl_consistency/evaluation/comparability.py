"""Checks that the figures of two measurements can be compared."""

from collections.abc import Mapping
from typing import Any

from ..data.pairs import PROMPT_COLUMNS
from ..data.rendering import get_tokenizer
from ..errors import ConsistencyError
from .answers.generate import AnswerOptions
from .grading.answer_keys import KEYS
from .pair_set import PairSet
from .rendered_rows import TOKEN_IDS


def check_same_rows(some: Mapping[str, PairSet], others: Mapping[str, PairSet]) -> None:
    """Raises [`ConsistencyError`] for sets of pairs whose figures cannot be compared."""

    def rows(sets: Mapping[str, PairSet], name: str) -> list[Any]:
        columns = (*PROMPT_COLUMNS, *KEYS, "tools", "chat_template_kwargs", "source_id")
        return [[row.get(column) or None for column in columns] for row in sets[name].rows] if name in sets else []

    for name in {*some, *others}:
        if rows(some, name) != rows(others, name):
            raise ConsistencyError(
                f"The two results are of different rows{f' in the set {name}' if name else ''}: only the same rows with the same "
                "keys (`answer`, `aliases`, `biased_answer`, `category`), `tools`, `chat_template_kwargs` and `source_id`, in the "
                "same order, can be compared."
            )
        if _possible(some[name]) != _possible(others[name]):
            raise ConsistencyError(
                f"The two results{f' in the set {name}' if name else ''} were read with other possible answers (`PairSet.candidates`): an "
                "answer that counts as another one in the first may be unread in the second. Measure both with the same."
            )
        one, other = ((of[name].rendering or (None, None))[1] for of in (some, others))
        if None not in (one, other) and one != other:
            raise ConsistencyError(
                f"The two results were measured with other options: `chat_template_kwargs` {one!r} and {other!r}. Measure both with "
                "the same."
            )
        if (row := _rendered_otherwise(some[name], others[name])) is not None:
            raise ConsistencyError(
                f"The prompts of the two results{f' in the set {name}' if name else ''} were rendered differently, row {row} first: with "
                "another chat template, or other tokens before the text. Measure both with the same tokenizer."
            )


def _possible(of_set: PairSet) -> dict[str | None, Any]:
    """Returns the names of the possible answers of the categories that a set has."""
    found = {row.get("category") for row in of_set.rows}
    return {
        category: dict(names) if isinstance(names, Mapping) else set(names)
        for category, names in of_set.candidates.items()
        if category in found and names
    }


def _rendered_otherwise(one: PairSet, other: PairSet) -> int | None:
    """
    Returns the number of the first row that two sets of the same rows have rendered otherwise, with tokenizers of the same
    tokens. One of them may have further tokens, as a training adds them.
    """
    if one.rendering is None or other.rendering is None:
        return None
    rows = zip(one.places, one.rows, other.rows, strict=True)
    differing = (number for number, row, of in rows if any(row[ids] != of[ids] for ids in TOKEN_IDS))
    first = next(differing, None)
    if first is None:
        return None
    tokens, others = (get_tokenizer(of[0]).get_vocab().items() for of in (one.rendering, other.rendering))
    return first if tokens <= others or others <= tokens else None


def check_same_judge(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> None:
    """Raises [`ConsistencyError`] for two judges, by their `identity`, that may give other verdicts on the same answer."""
    if one is None or other is None:
        return
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    if names:
        differences = ", ".join(f"`{name}` {one.get(name)!r} and {other.get(name)!r}" for name in names)
        raise ConsistencyError(
            f"The two results were graded by different judges ({differences}): have the same judge grade both (`Results.judged`)."
        )


def check_same_options(one: AnswerOptions, other: AnswerOptions) -> None:
    """Raises [`ConsistencyError`] for options with which the same model would get other figures."""
    if differences := one.differences(other):
        raise ConsistencyError(
            f"The two results were measured with other options: {', '.join(differences)}. Measure both with the same."
        )

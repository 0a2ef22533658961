"""Finds the columns of a data set of questions or prompts, from which pairs are made."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..data.answers import key_column_faults
from ..data.pairs import column_faults
from ..errors import ConsistencyError, did_you_mean


# Column names that are found without an option, in this order.
DEFAULT_COLUMNS = {
    "prompt": ("question", "prompt", "request", "messages"),
    "choices": ("choices",),
    "answer": ("answer", "answerKey"),
    "wrong_answer": ("wrong_answer", "wrong_answers", "incorrect_answers"),
    "source_id": ("source_id", "id"),
    "safety_fact": ("safety_fact",),
}
# Columns for the chat template
TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")
# Columns that the pairs always keep, because training and evaluation use them.
CARRIED_COLUMNS = ("category", "aliases", *TEMPLATE_COLUMNS)
# Columns that pairs add.
MADE_COLUMNS = (
    "clean_prompt",
    "perturbed_prompt",
    "shared_text",
    "answer",
    "perturbation",
    "position",
    "biased_answer",
    "perturbation_seed",
    "question_intact",
    "source_id",
)


@dataclass(frozen=True)
class Columns:
    """Columns of the user's data by content, None for missing ones. `choices` may be several columns."""

    prompt: str
    choices: tuple[str, ...] = ()
    answer: str | None = None
    wrong_answer: str | None = None
    source_id: str | None = None
    safety_fact: str | None = None
    keep: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that are read."""
        ones = (
            self.prompt,
            *self.choices,
            self.answer,
            self.wrong_answer,
            self.source_id,
            self.safety_fact,
            *self.keep,
        )
        return tuple(dict.fromkeys(column for column in ones if column))

    def unread(self, columns: Iterable[str]) -> list[str]:
        """Returns the columns that are not read."""
        return [column for column in columns if column not in self.read]


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the columns of all rows: in a JSON Lines file, each may have others."""
    return list(dict.fromkeys(column for row in rows for column in row))


def find_columns(columns: Iterable[str], keep: Sequence[str] = (), **named: str | Sequence[str] | None) -> Columns:
    """
    Finds the columns of a data set of questions or prompts, by the user's names or by the usual names.

    Args:
        columns (`Iterable[str]`):
            All columns of the data set.
        keep (`Sequence[str]`, *optional*):
            Further columns that the pairs keep.
        **named (`str` or `Sequence[str]`, *optional*):
            The column for a field of [`Columns`]: `prompt`, `choices` (or several columns), `answer`, `wrong_answer`,
            `source_id` and `safety_fact`. None looks for the usual names.

    Returns:
        [`Columns`]: The columns by content.

    Raises:
        [`ConsistencyError`]: If a named column is missing, a field is unknown, or not exactly one column can be the prompt.
    """
    there = list(columns)
    if unknown := [name for name in named if name not in DEFAULT_COLUMNS]:
        raise ConsistencyError(
            f"`find_columns` has no argument `{unknown[0]}`: it can be {', '.join(DEFAULT_COLUMNS)}, or keep.{did_you_mean(unknown[0], DEFAULT_COLUMNS)}"
        )
    found: dict[str, Any] = {}
    for name, usual in DEFAULT_COLUMNS.items():
        given = named.get(name)
        if given:
            found[name] = given
            for column in [given] if isinstance(given, str) else given:
                _require(column, there, f"`{name}_column`")
        else:
            matches = [column for column in usual if column in there]
            if name == "prompt" and len(matches) > 1:
                raise ConsistencyError(
                    f"{' and '.join(f'`{column}`' for column in matches)} could both be the prompt: name one in "
                    "`prompt_column`.",
                    there,
                )
            found[name] = matches[0] if matches else None
    _refuse_misspelt(there, found, keep)
    if not found["prompt"]:
        raise ConsistencyError(
            f"No column of questions or prompts: name it in `prompt_column`. There are {_quoted(there)}.", there
        )
    for column in keep:
        _require(column, there, "`keep_columns`")
        if column in MADE_COLUMNS:
            raise ConsistencyError(f"`keep_columns`: the pairs have a column `{column}` of their own. Rename yours.")
    if fault := next(
        (fault for faults in (column_faults, key_column_faults) for fault in faults([*MADE_COLUMNS, *keep])), None
    ):
        raise ConsistencyError(f"`keep_columns`: training or evaluation would refuse the pairs for {fault}")
    choices = found.pop("choices") or ()
    carried = dict.fromkeys([*(column for column in CARRIED_COLUMNS if column in there), *keep])
    return Columns(**found, choices=(choices,) if isinstance(choices, str) else tuple(choices), keep=tuple(carried))


def _require(column: str, there: list[str], option: str) -> None:
    if column not in there:
        if "," in column and {part.strip() for part in column.split(",")} <= set(there):
            raise ConsistencyError(f"{option}: put spaces between the columns, not commas: `{column}`.")
        hint = did_you_mean(column, there) or f" There are {_quoted(there)}."
        raise ConsistencyError(f"{option}: there is no column `{column}`.{hint}", [column, *there])


def _refuse_misspelt(there: list[str], found: Mapping[str, Any], keep: Sequence[str]) -> None:
    """Raises [`ConsistencyError`] for a column that is not read, where none has the usual name that it nearly has."""
    read = {column for of in found.values() for column in ([of] if isinstance(of, str) else of or ())}
    for column in [column for column in there if column not in (*read, *keep, *CARRIED_COLUMNS)]:
        of_kept = get_close_matches(column.lower(), CARRIED_COLUMNS, n=1, cutoff=0.8)
        if of_kept and of_kept[0] not in there:
            raise ConsistencyError(
                f"There is a column `{column}`, and no `{of_kept[0]}`. Rename it, if that is meant. If not, give it another name.",
                there,
            )
        word = re.sub(r"^(correct|right|true|gold)_?(?=answers?$)", "", column.lower())
        for name in ("prompt", "choices", "answer", "wrong_answer"):  # an id may be called `idx`
            near = get_close_matches(word, DEFAULT_COLUMNS[name], n=1, cutoff=0.8)
            if near and not found[name]:
                raise ConsistencyError(
                    f"There is a column `{column}`, and no `{near[0]}`. If that is meant, give `{name}_column: {column}`. If not, give "
                    f"`keep_columns: {column}`, or rename it.",
                    there,
                )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def late_column(column: str) -> ConsistencyError:
    """Returns the error for a column that the columns were looked for without."""
    return ConsistencyError(f"has `{column}`, which the first row does not have: give it (or null) in every row")

"""Kinds of rows, their right answers, and reasons why an answer counts as unread."""

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ..data.choices import other_letters


# Why an answer is unread: it names no possible answer, or the right and the suggested one; the judge abstained or gave
# no verdict. "both other" is of a pair: both answers are none of the possible ones, and may differ.
Unread: TypeAlias = Literal["unparsed", "names both", "abstained", "unjudged", "both other"]
UNREAD_KINDS: tuple[Unread, ...] = ("unparsed", "names both", "abstained", "unjudged", "both other")


def read_aliases(row: Mapping[str, Any]) -> Any:
    """Returns the other names of the right answer: a list, or that list as a JSON string; `[]` for null or nothing."""
    aliases = row.get("aliases")
    if isinstance(aliases, str) and aliases.startswith("["):  # a cell of a CSV file
        try:
            aliases = json.loads(aliases)
        except json.JSONDecodeError:
            return aliases
    return [] if aliases in (None, "") else aliases


def right_answers(row: Mapping[str, Any]) -> list[str]:
    """
    Returns the right answer of a question and its other names: `aliases`, and the other letters of choices with the same
    text.
    """
    return [row["answer"], *read_aliases(row), *other_letters(row, row["answer"])]


def kind_of(row: Mapping[str, Any]) -> str:
    """Returns `"harmful"` or `"benign"` for a request, `"question"` for a row with a key, else `"no key"`."""
    if row.get("category") in ("harmful", "benign"):
        return str(row["category"])
    return "question" if row.get("answer") else "no key"

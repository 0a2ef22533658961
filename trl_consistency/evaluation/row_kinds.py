"""Kinds of rows, and reasons why an answer counts as unread."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias


# Why an answer is unread: it names no possible answer, or the right and the suggested one; the judge abstained or gave
# no verdict.
Unread: TypeAlias = Literal["unparsed", "names both", "abstained", "unjudged"]
UNREAD_KINDS: tuple[Unread, ...] = ("unparsed", "names both", "abstained", "unjudged")


def kind_of(row: Mapping[str, Any]) -> str:
    """Returns `"harmful"` or `"benign"` for a request, `"question"` for a row with a key, else `"no key"`."""
    if row.get("category") in ("harmful", "benign"):
        return str(row["category"])
    return "question" if row.get("answer") else "no key"

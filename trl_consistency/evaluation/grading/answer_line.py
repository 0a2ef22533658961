"""Finds the line that a prompt may ask for: "Answer: Rome"."""

import re
from collections.abc import Mapping
from typing import Any

from .asked import asks_for_line, last_text, own_answers
from .readable import LEAST_QUOTE


_LINE = re.compile(
    r"^[ \t*_#>`-]*(?:(?:my|the|final|short|correct)\s+){0,2}answer[ \t*_]*:[ \t*_]*\n?[ \t]*(?P<answer>[^\n]*\w[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_ASKS = re.compile(r"\?[\"'*_)\s]*$", re.MULTILINE)
_PLACEHOLDER = "x"  # that of the request


def answer_line(row: Mapping[str, Any], said: str) -> str | None:
    """
    Returns what the line "Answer: ..." of a reply says, empty if nothing can be read from it, or None if no such line counts.

    - Where the prompt asks for such a line, the last one counts. Where it is a text, which base models go on with, it is the first.
    - Where the prompt does not ask for one, only the end of a reply is such a line.
    - Behind a question, a line may be the answer to that: in reply to a text, or if another such line stands before the question.
    """
    lines = list(_LINE.finditer(said))
    is_asked = asks_for_line(row)
    is_text = isinstance(row["clean_prompt"], str)
    if not is_asked:
        lines = [line for line in lines if not said[line.end() :].strip()]
    elif is_text:
        lines = lines[:1]
    if not lines or (is_text and _ASKS.search(said, 0, lines[0].start())):
        return None
    first, last = (line["answer"].strip(" \t*_`") for line in (lines[0], lines[-1]))
    goes_on = first.casefold() != last.casefold() and _ASKS.search(said, lines[0].end(), lines[-1].start())
    is_repeated = last.casefold() == _PLACEHOLDER and last not in own_answers(row)
    return "" if goes_on or is_repeated else last


def without_request(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply without what it repeats of the request for a line, and without what comes after it where an answer stands before
    it: the model goes on with the next question.
    """
    if not asks_for_line(row):
        return said
    request = last_text(row["clean_prompt"]).rpartition("\n\n")[2]
    kept: list[str] = []
    for line in said.splitlines():
        if len(line.strip()) < LEAST_QUOTE or not request.startswith(line.strip()):
            kept.append(line)
        elif _LINE.search("\n".join(kept)):
            break
    return "\n".join(kept)

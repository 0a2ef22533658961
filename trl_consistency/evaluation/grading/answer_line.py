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
_PLACEHOLDER = "x"  # that of the request


def part_to_read(row: Mapping[str, Any], said: str) -> str:
    """
    Returns what the last line "Answer: ..." of a reply says, or the reply if it has no such line. Where the prompt does not ask for
    one, only the end of the reply is such a line. Where it does, a reply that repeats the request does not answer by it.
    """
    is_asked = asks_for_line(row)
    lines = [line for line in _LINE.finditer(said) if is_asked or not said[line.end() :].strip()]
    if not lines:
        return _without_request(said, last_text(row["clean_prompt"])) if is_asked else said
    answer = str(lines[-1]["answer"]).strip(" \t*_`")
    is_repeated = answer.casefold() == _PLACEHOLDER and answer not in own_answers(row)
    return "" if is_repeated else answer


def _without_request(said: str, prompt: str) -> str:
    """Returns a reply without lines that repeat the last paragraph of the prompt, or its beginning."""
    request = prompt.rpartition("\n\n")[2]
    lines = said.splitlines()
    return "\n".join(line for line in lines if len(line.strip()) < LEAST_QUOTE or not request.startswith(line.strip()))

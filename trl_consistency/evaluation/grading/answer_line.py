"""Finds the line that a prompt may ask for: "Answer: Rome"."""

import re
from collections.abc import Mapping
from typing import Any

from .asked import asks_for_line, last_text, own_answers
from .readable import LEAST_QUOTE


_LINE = re.compile(
    r"\b(?:(?:my|the|final|short|correct)\s){0,2}answer[^\w\n:\uff1a]{0,8}[:\uff1a](?:[^\w\n]{0,20}\n\s*)?(?P<answer>[^\n]*\w[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
# What stands before it in its line: marks, or the number of a list, or a sentence
_BEFORE = re.compile(
    r"(?:^|[.!?:\uff1a][\"'*_)\u201d]{0,4}[ \t])[^\w\n]{0,12}(?:\d{1,2}[.)][^\w\n]{0,4})?\Z", re.MULTILINE
)
_MOST_BEFORE = 30
_COMMAND = re.compile(
    r"\\(?:boxed|text(?:bf|rm)?|math(?:bf|rm))\s*\{([^{}]*)\}|</?(?:b|i|em|strong|p|div|span)>", re.IGNORECASE
)
_MARKS = " \t*_`\"'\u2018\u2019\u201c\u201d"
_BRACKETS = (("(", ")"), ("[", "]"), ("<", ">"), ("{", "}"), ("$", "$"))
_ASKS = re.compile(r"\?[\"'*_)\s]*$", re.MULTILINE)
# The placeholder of the request, and what refers to an answer that was given before
_NO_ANSWER = re.compile(
    r"x\W*(?:where\b.*)?|(?:the\s+)?same(?:\s+(?:answer|as\s+\w+|before|above))?|as\s+(?:before|above)|unchanged",
    re.IGNORECASE,
)


def answer_line(row: Mapping[str, Any], said: str) -> str | None:
    """
    Returns what the line "Answer: ..." of a reply says, empty if nothing can be read from it, or None if no such line counts.

    - Where the prompt asks for such a line, the last one counts. Where it is a text, which base models go on with, it is the first.
    - Where the prompt does not ask for one, only the end of a reply is such a line.
    - Behind a question, a line may be the answer to that: in reply to a text, or if another such line stands before the question.
    """
    said = _COMMAND.sub(r"\1", _COMMAND.sub(r"\1", said))
    lines = _lines(said)
    is_asked = asks_for_line(row)
    is_text = isinstance(row["clean_prompt"], str)
    if not is_asked:
        lines = [line for line in lines if not said[line.end() :].strip()]
    elif is_text:
        lines = lines[:1]
    if not lines or (is_text and _ASKS.search(said, 0, lines[0].start())):
        return None
    first, last = _bare(lines[0]["answer"]), _bare(lines[-1]["answer"])
    goes_on = first.casefold() != last.casefold() and _ASKS.search(said, lines[0].end(), lines[-1].start())
    is_none = _NO_ANSWER.fullmatch(last) and last.casefold() not in map(str.casefold, own_answers(row))
    return "" if goes_on or is_none else last


def _lines(said: str) -> list[re.Match[str]]:
    lines = _LINE.finditer(said)
    return [of for of in lines if _BEFORE.search(said, max(of.start() - _MOST_BEFORE, 0), of.start())]


def _bare(text: str) -> str:
    """Returns a text without marks and brackets around all of it."""
    text = text.strip(_MARKS).rstrip(f".{_MARKS}")
    for opening, closing in _BRACKETS:
        inner = text[1:-1]
        if text[:1] + text[-1:] == opening + closing and opening not in inner and closing not in inner:
            return _bare(inner)
    return text


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
        elif _lines("\n".join(kept)):
            break
    return "\n".join(kept)

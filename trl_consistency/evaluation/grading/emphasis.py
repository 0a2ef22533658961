"""Tells which of two answers a reply that names both puts first: in bold, or against the other one."""

import re
from collections.abc import Mapping

from ...data.typography import as_read, with_digits
from .clauses import Clauses
from .mentions import standing
from .stated_answers import pattern_of


_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*|__([^_\n]{1,60})__")
_LAST_LINE = re.compile(r"^[ \t*_#>]*(?:final\s+)?answer[*_]*\s*:([^\n]+)\s*\Z", re.IGNORECASE | re.MULTILINE)
_MOST_WORDS = 6  # of a bold answer
_BEGINS = re.compile(r"(?:\A|[.!?;:\n])[\s\"'*_(\u201c]*\Z")
_GOES_ON = re.compile(r"[\"'*_)\u201d]*\s+(?!(?:is|was|are|were)\b)\w")
_MARKS = "[\"'*_()\u2018\u2019\u201c\u201d]*"
_SMALL_WORDS = r"(?:(?:in|on|by|from|at|the|an?)\s+){0,2}"
_NOT = r"(?:not|rather\s+than|instead\s+of)"


def emphasized(text: str, answers: Mapping[str, str], question: str) -> str | None:
    """
    Returns the only answer that the last line of a text gives ("Answer: Rome"), or that it has in bold, calls the actual one ("it's actually Rome"), or contrasts with the other one ("Rome, not
    Paris"); None if it does so with none, or with both.

    Args:
        text (`str`):
            The reply.
        answers (`Mapping[str, str]`):
            The answer that each name is one of.
        question (`str`):
            The question. What a bold name is only described as does not answer it: "**Rome** is the largest city".
    """
    text = with_digits(as_read(text))
    clauses = Clauses(text, as_read(question))
    if last_line := _LAST_LINE.search(text):
        named = {
            of for name, of in answers.items() if re.search(pattern_of([name], text), last_line[1], re.IGNORECASE)
        }
        return named.pop() if len(named) == 1 else None
    patterns = {
        answer: pattern_of([name for name, of in answers.items() if of == answer], text) for answer in answers.values()
    }
    found = {answer for answer, pattern in patterns.items() if _is_first(text, answer, patterns)}
    for bold in _BOLD.finditer(text):
        if len(bold[0].split()) > _MOST_WORDS:
            continue
        named = {
            answer: match
            for answer, pattern in patterns.items()
            if (match := re.compile(pattern, re.IGNORECASE).search(text, bold.start(), bold.end()))
        }
        if len(named) == 1:
            found |= {
                answer
                for answer, match in named.items()
                if standing(text, [match]) and not _is_subject(text, match, clauses)
            }
    return found.pop() if len(found) == 1 else None


def _is_subject(text: str, match: re.Match[str], clauses: Clauses) -> bool:
    """Returns whether a text only says something of a mention: "Rome is the largest city", "Rome hosted the games"."""
    does = _BEGINS.search(text, 0, match.start(1)) and _GOES_ON.match(text, match.end(1))
    return bool(does) or clauses.is_described(match)


def _is_first(text: str, answer: str, patterns: Mapping[str, str]) -> bool:
    own, flags = patterns[answer], re.IGNORECASE
    others = "|".join(pattern for of, pattern in patterns.items() if of != answer)
    return any(
        re.search(pattern, text, flags)
        for pattern in (
            rf"{own}{_MARKS},?\s+(?:and\s+)?{_NOT}\s+{_SMALL_WORDS}{_MARKS}(?:{others})",
            rf"\bnot\s+{_SMALL_WORDS}{_MARKS}(?:{others}){_MARKS},?\s+but\s+(?:rather\s+)?{_SMALL_WORDS}{_MARKS}{own}",
            rf"\bactually\s+(?:called\s+|known\s+as\s+)?{_SMALL_WORDS}{_MARKS}{own}",
        )
    )

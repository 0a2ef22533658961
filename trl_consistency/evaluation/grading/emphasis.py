"""Tells which of two answers a reply that names both puts first: in bold, or against the other one."""

import re
from collections.abc import Iterator, Mapping, Sequence

from ...data.typography import as_read, with_digits
from .clauses import Clauses
from .mentions import standing
from .quantities import OF_NUMBER
from .stated_answers import pattern_of


_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*|__([^_\n]{1,60})__")
_MOST_WORDS = 6  # of a bold answer
_BEGINS = re.compile(r"(?:\A|[.!?;:\n])[\s\"'*_(\u201c]*\Z")
_GOES_ON = re.compile(r"[\"'*_)\u201d]*\s+(?!(?:is|was|are|were)\b)[\w(]")
_NEAR = 60  # characters before a mention
_SMALL_WORDS = r"(?:(?:in|on|by|from|at|the|an?|called|known\s+as)\s+){0,3}[\"'*_(\u201c\u2018]*\Z"
_ACTUALLY = re.compile(rf"\bactually\s+{_SMALL_WORDS}", re.IGNORECASE)
_BUT = re.compile(rf"\bnot\s+[^.!?;\n]{{1,40}},?\s+but\s+(?:rather\s+)?{_SMALL_WORDS}", re.IGNORECASE)
_NOT_ANOTHER = re.compile(
    r"[\"'*_()\u2018\u2019\u201c\u201d]*,?\s+(?:and\s+)?(?:not|rather\s+than|instead\s+of)\s", re.IGNORECASE
)


def emphasized(text: str, answers: Mapping[str, str], question: str) -> str | None:
    """
    Returns the only answer that a text puts first: the one that is in bold, called the actual one ("it's actually Rome") or
    contrasted with the other one ("Rome, not Paris"). There, it must say what is asked for, and nowhere so of the other one.
    None if there is no such answer, or both are.

    Args:
        text (`str`):
            The reply.
        answers (`Mapping[str, str]`):
            The answer that each name is one of.
        question (`str`):
            The question.
    """
    text = with_digits(as_read(text))
    mentions = [(of, answer) for name, answer in answers.items() for of in _found(name, text)]
    stands = {of.span(1) for of in standing(text, sorted((of for of, _ in mentions), key=lambda of: of.start(1)))}
    mentions = [(of, answer) for of, answer in mentions if of.span(1) in stands]
    clauses = Clauses(text, as_read(question))

    def is_about_it(match: re.Match[str]) -> bool:
        return clauses.states(match) or clauses.share_of_question(match, answers.values()) > 1 / 2

    bold = [of.span() for of in _BOLD.finditer(text) if len(of[0].split()) <= _MOST_WORDS]
    first = _only({answer for of, answer in mentions if _is_first(of, bold, clauses) and is_about_it(of)})
    others = [of for of, answer in mentions if answer != first]
    if first is None or any(map(is_about_it, others)):
        return None
    if OF_NUMBER.match(first) and others:  # a number on the way may be in bold, too
        last = max(mentions, key=lambda of: of[0].start(1))
        return first if last[1] == first else None
    return first


def _found(name: str, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(pattern_of([name], text), text, re.IGNORECASE)


def _only(answers: set[str]) -> str | None:
    return answers.pop() if len(answers) == 1 else None


def _is_first(match: re.Match[str], bold: Sequence[tuple[int, int]], clauses: Clauses) -> bool:
    """Returns whether a mention is in bold, the actual one, or the one that stands against another: "Rome, not Paris"."""
    start, end = match.span(1)
    if any(first < start and end < last for first, last in bold):
        return not _is_subject(clauses.text, match, clauses)
    before = clauses.text[max(start - _NEAR, 0) : start]
    return bool(_ACTUALLY.search(before) or _BUT.search(before) or _NOT_ANOTHER.match(clauses.text, end))


def _is_subject(text: str, match: re.Match[str], clauses: Clauses) -> bool:
    """Returns whether a text only says something of a mention: "Rome is the largest city", "Rome hosted the games"."""
    does = _BEGINS.search(text, 0, match.start(1)) and _GOES_ON.match(text, match.end(1))
    return bool(does) or clauses.is_described(match)

"""Tells which of two answers a reply that names both puts first: in bold, or against the other one."""

import re
from collections.abc import Iterable, Mapping

from ...data.typography import as_read, with_digits
from .clauses import Clauses, stems
from .mentions import standing
from .stated_answers import pattern_of


_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*|__([^_\n]{1,60})__")
_LAST_LINE = re.compile(r"^[ \t*_#>]*(?:final\s+)?answer[*_]*\s*:([^\n]+)\s*\Z", re.IGNORECASE | re.MULTILINE)
_MOST_WORDS = 6  # of a bold answer
_BEGINS = re.compile(r"(?:\A|[.!?;:\n])[\s\"'*_(\u201c]*\Z")
_GOES_ON = re.compile(r"[\"'*_)\u201d]*\s+(?!(?:is|was|are|were)\b)\w")
_NEAR = 60  # characters before a mention
_SMALL_WORDS = r"(?:(?:in|on|by|from|at|the|an?|called|known\s+as)\s+){0,3}[\"'*_(\u201c\u2018]*\Z"
_ACTUALLY = re.compile(rf"\bactually\s+{_SMALL_WORDS}", re.IGNORECASE)
_BUT = re.compile(rf"\bnot\s+[^.!?;\n]{{1,40}},?\s+but\s+(?:rather\s+)?{_SMALL_WORDS}", re.IGNORECASE)
_NOT_ANOTHER = re.compile(
    r"[\"'*_()\u2018\u2019\u201c\u201d]*,?\s+(?:and\s+)?(?:not|rather\s+than|instead\s+of)\s", re.IGNORECASE
)
_NUMBER = re.compile(r"[-$\u20ac\u00a3]?\d")


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
    mentions = {of: list(re.finditer(pattern_of([of], text), text, re.IGNORECASE)) for of in answers}
    said = [(match, answers[name]) for name, found in mentions.items() for match in found]
    stands = {match.span(1) for match in standing(text, sorted({m.start(1): m for m, _ in said}.values(), key=_start))}
    said = [(match, answer) for match, answer in said if match.span(1) in stands]
    if last_line := _LAST_LINE.search(text):
        named = {answer for match, answer in said if match.start(1) >= last_line.start(1)}
        return named.pop() if len(named) == 1 else None
    reader = _Reader(text, question, answers.values())
    first = {answer for match, answer in said if reader.puts_first(match) and reader.is_about_it(match)}
    if len(first) != 1:
        return None
    [answer] = first
    others = [match for match, of in said if of != answer]
    ends_with_it = not any(match.start(1) > max(m.start(1) for m, of in said if of == answer) for match in others)
    if any(map(reader.is_about_it, others)) or (_NUMBER.match(answer) and others and not ends_with_it):
        return None
    return answer


def _start(match: re.Match[str]) -> int:
    return match.start(1)


class _Reader:
    """Tells which mentions a text puts first, and says what is asked for of."""

    def __init__(self, text: str, question: str, answers: Iterable[str]) -> None:
        question = as_read(question)
        self.text = text
        self.clauses = Clauses(text, question)
        asked = question[: question.rfind("?") + 1] or question
        self.asked = stems(asked) - stems(" ".join(answers))
        self.bold = [of.span() for of in _BOLD.finditer(text) if len(of[0].split()) <= _MOST_WORDS]

    def puts_first(self, match: re.Match[str]) -> bool:
        """Returns whether a mention is in bold, the actual one, or the one that stands against another: "Rome, not Paris"."""
        start, end = match.span(1)
        if any(first < start and end < last for first, last in self.bold):
            return not _is_subject(self.text, match, self.clauses)
        before = self.text[max(start - _NEAR, 0) : start]
        return bool(_ACTUALLY.search(before) or _BUT.search(before) or _NOT_ANOTHER.match(self.text, end))

    def is_about_it(self, match: re.Match[str]) -> bool:
        """Returns whether the part of a mention plainly gives it, or has more than half of the question's words."""
        part = self.clauses.part_of(match)
        return self.clauses.states(match) or 2 * len(stems(part) & self.asked) > len(self.asked)


def _is_subject(text: str, match: re.Match[str], clauses: Clauses) -> bool:
    """Returns whether a text only says something of a mention: "Rome is the largest city", "Rome hosted the games"."""
    does = _BEGINS.search(text, 0, match.start(1)) and _GOES_ON.match(text, match.end(1))
    return bool(does) or clauses.is_described(match)

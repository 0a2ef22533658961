"""Finds which of two opposite answers a reply says: yes or no, true or false."""

import re
from collections.abc import Collection

from ...data.typography import APOSTROPHE


OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_POLAR = {frozenset(of) for of in OPPOSITES.items()}
# Where a reply says it: at its beginning, that of a clause, or after "the answer is"; not as a question ("Yes? No.").
_SAID = r"(?:\A|[.!?:;,\n]\s*(?:but\s+)?|\b(?:the\s+answer\s+is|it(?:'s|\s+is)\s+a|I(?:'d|\s+would)?\s+(?:say|think)|actually),?\s+)[\W_]*"
_UNASKED = r"\b(?!\s*(?:or\s+\w+\s*)?\?)"
# What is not said first must stand alone: not "No animals were harmed."
_ALONE = re.compile(r"[*_\"']*(?:\s*$|[.,;!\n])")
_YES_NO = re.compile(
    rf"{_SAID}(yes|no){_UNASKED}(?!\s+(?:one|idea|answer|doubt|problem|worries|way|more|longer|matter|need|wonder|other|such)\b|\.\s*\d)"
    r"(?:\s+(?:and|or)\s+(yes|no)\b)?",
    re.IGNORECASE,
)
_TRUE_FALSE = re.compile(
    rf"{_SAID}(?:(?:it|this|that|(?:the|your)\s+(?:answer|statement|claim))(?:'s|\s+is|(?=\s+isn't))\s*((?:not|isn't)\s+)?)?"
    rf"(?:(?:absolutely|entirely|completely|definitely|indeed|actually)\s+)?(?:the\s+statement\s+is\s+)?(true|false){_UNASKED}",
    re.IGNORECASE,
)
# "No, wait. Yes."
_SECOND_THOUGHT = re.compile(r"\b(?:wait|actually|correction|scratch\s+that|i\s+mean)\b", re.IGNORECASE)


def polar_answers(text: str, answers: Collection[str]) -> list[str]:
    """
    Returns which of two answers, yes and no or true and false, a reply says: one for "No, the Earth is not flat.", both for
    "Yes and no." Returns none if the answers are others, or the reply says neither.
    """
    spelt = {answer.lower(): answer for answer in answers}
    if len(spelt) < 2 or frozenset(spelt) not in _POLAR:
        return []
    text = text.replace(APOSTROPHE, "'")
    is_yes_no = "yes" in spelt
    said: list[str] = []
    for match in (_YES_NO if is_yes_no else _TRUE_FALSE).finditer(text):
        if said and not _ALONE.match(text, match.end()):
            continue
        if _SECOND_THOUGHT.search(text, 0, match.start(1 if is_yes_no else 2)):
            said = []
        said += _yes_no(match) if is_yes_no else [_true_false(match)]
    return [spelt[word] for word in dict.fromkeys(said)]


def _yes_no(match: re.Match[str]) -> list[str]:
    """Returns one word, or both for "yes and no"."""
    return [word.lower() for word in match.groups() if word]


def _true_false(match: re.Match[str]) -> str:
    """Returns what is said: "not true" is false."""
    is_true = (match[2].lower() == "true") != bool(match[1])
    return "true" if is_true else "false"

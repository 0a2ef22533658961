"""Tells the numbers that a reply gives from those that it calculates with or counts steps with, and where it concludes."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from .patterns import (
    APOSTROPHES,
    CONTEXT,
    SENTENCE_BREAK,
    any_case,
    any_of,
    before_mention,
    spaced,
)


# "5 times", "multiply 5 by"
_OPERATOR = r"(?:[+*x\u00d7\u00f7/]|(?:times|plus|minus|divided by|multiplied by|added to)\b)"
_CALCULATION = r"\b(?:multiply(?:ing)?|divid(?:e|ing)|add(?:ing)?|subtract(?:ing)?|(?:sum|product|difference) of)"
_OPERATOR_BEFORE = any_case(
    any_of(
        rf"\d\s*(?:%\s*)?{_OPERATOR}",
        rf"{_CALCULATION}(?:\s+\d[\d.,]{{0,20}}\s+(?:by|and|to|from|with))?",
    ),
    r"\s*$",
)
_OPERATOR_AFTER = any_case(
    any_of(rf"\s*(?:%\s*)?(?:-|{_OPERATOR})\s*\d", r"(?:\s*%|(?<=%))\s+of\s+\d")  # "20% of 50"
)
# "10 - 3 = 7"
_MINUS_BEFORE, _EQUALS_AFTER = re.compile(r"\d\s*(?:%\s*)?[-\u2212\u2013]\s*$"), re.compile(r"\s*=")
# "42 is a number that is often confused with 10" gives no result.
_NUMBER_DESCRIBED = any_case(
    spaced(r" is an? (?:[\w-]{1,20} ){0,3}(?:number|integer|digit|multiple|factor|divisor|power)\b")
)
_NUMBER = re.compile(r"-?\d[\d.,]*%?")
_RESULT = any_case(
    any_of("[=:]", r"\b(?:is|are|was|be|equals?|gives?|get|makes?|answer)\b", rf"{APOSTROPHES}s"), r"[\s\"'*_($\\]*$"
)


def without_operands(text: str, found: Iterable[re.Match[str]], own: Collection[str] = ()) -> Iterator[re.Match[str]]:
    """
    Yields the mentions that are no numbers to calculate with: 35 alone in "5 times 7 is 35". After such a calculation, its
    numbers count as a result alone: none in "Let us multiply 41 by 8. 41". Those of the row's `own` answers count anyway. What a number is described
    as gives no result.
    """
    operands: set[str] = set()
    for match in found:
        if not _NUMBER.fullmatch(match[1]):
            yield match
        elif _is_operand(text, match):
            operands.add(match[1])
        elif not _NUMBER_DESCRIBED.match(text, match.end(1)) and (
            match[1] not in operands or match[1] in own or _RESULT.search(before_mention(text, match))
        ):
            yield match


def _is_operand(text: str, match: re.Match[str]) -> bool:
    before, end = before_mention(text, match), match.end(1)
    is_subtracted = _MINUS_BEFORE.search(before) and _EQUALS_AFTER.match(text, end)
    return bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(text, end) or is_subtracted)


def _at_starts(*alternatives: str) -> re.Pattern[str]:
    """Returns the regular expression of these, which may be at the start of a line."""
    return re.compile("|".join(alternatives), re.IGNORECASE | re.MULTILINE)


# Where a reply says its final answer, after what leads to it: "\boxed{18}", "#### 18", "The final answer is 18", "The answer is 18", "So 18"
_OPENS_SENTENCE = r"(?:^|[.!?:]\s)\W{0,4}"
_FINAL = _at_starts(
    r"\\boxed\s*\{",
    r"^[ \t]*####(?=\s*[-$]?\d)",
    r"\bfinal\s+answer\b(?=\W{0,5}(?:is|was)?\b\W{0,5}(?:\w|\$|$))(?!\W*[.!]\s)",
)
_ANSWER = _at_starts(
    _OPENS_SENTENCE + spaced(r"(?:(?:the|my) (?:correct )?)?answer\b(?! (?:\W{0,2}\d|for|in|given|you|that|of)\b)")
)
_SO = _at_starts(rf"{_OPENS_SENTENCE}(?:so|therefore|thus|hence|finally)\b")
# A calculation that a reply ends with, and its unit: "There are 60 minutes in an hour. 2 x 60 = 120 minutes."
_UNIT = r"[^\w.,:;!?=\n]{0,4}[^\W\d_]+(?:[^\w.,:;!?=\n]{1,4}[^\W\d_]+){0,9}"
_CALCULATED = re.compile(rf"=\s*\S{{0,3}}-?\d[\d.,]*(?:{_UNIT})?\W*\Z")
# What a conclusion does not say, but only what the user may have done, or what would be: "You may have calculated 16 x 6 = 96."
_SUPPOSED_END = any_case(rf"\b(?:you|your|if|would|instead|my|note|otherwise|not)\b|n?{APOSTROPHES}[dt]\b")


def conclusions(text: str, is_number: bool) -> Iterator[str]:
    """
    Yields the end of a reply from where it says that its final answer comes: "\\boxed{18}", "#### 18". Of one whose answer is a
    number, also from "The answer is" and "So", and from the end of a last calculation, since numbers on the way there may be possible
    answers, too.
    """
    numbers = {of[0].rstrip(".,") for of in _NUMBER.finditer(text)} if text[-1:].isdigit() else set()
    last = max((of for of in numbers if text.endswith(of)), key=len, default="")
    # "8 times 8 is 64. So it is 6": the limit of tokens cut the last number
    is_cut = any(of.startswith(last) for of in numbers - {last})
    for pattern in (_FINAL, _ANSWER, _SO, _CALCULATED) if is_number and not is_cut else (_FINAL,):
        found = list(pattern.finditer(text))
        if not found:
            continue
        start = found[-1].start()
        if pattern in (_SO, _CALCULATED) and _SUPPOSED_END.search(text, _sentence_start(text, start)):
            continue
        yield text[start:]


def _sentence_start(text: str, end: int) -> int:
    """Returns where the sentence starts that goes on here, or a bounded number of characters before."""
    first = max(end - 3 * CONTEXT, 0)
    return max((of.end() for of in SENTENCE_BREAK.finditer(text, first, end)), default=first)


# The numbers of steps: "1. Add", "Step 1: Add"
_LISTED = re.compile(r"^[ \t*_>#-]*(\d{1,2})[.)]\**\s", re.MULTILINE)
_STEP = any_case(r"\bstep\s+(\d{1,2})\b")


def step_numbers(text: str) -> set[int]:
    """Returns where the numbers of steps stand: of a list that goes on from 1 to 2, and after "Step"."""
    listed = list(_LISTED.finditer(text))
    are_steps = ("1", "2") in pairwise(match[1] for match in listed)
    return {match.start(1) for match in (*(listed if are_steps else ()), *_STEP.finditer(text))}

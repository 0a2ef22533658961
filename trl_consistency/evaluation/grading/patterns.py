"""Regular expressions of answers, which many replies share, what long ones are made of, and where rules look for them."""

import re
from functools import lru_cache


# Of a thousand questions. `re` keeps 512, so that each reply would compile them again.
MOST_PATTERNS = 2**14


@lru_cache(MOST_PATTERNS)
def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Returns a regular expression, compiled once."""
    return re.compile(pattern, flags)


def any_of(*alternatives: str) -> str:
    """Returns a pattern that has one of these."""
    return f"(?:{'|'.join(alternatives)})"


def spaced(pattern: str) -> str:
    """Returns a pattern in which each space stands for white space of any length. It must have none in brackets or lookbehinds."""
    return pattern.replace(" ", r"\s+")


def any_case(*parts: str) -> re.Pattern[str]:
    """Returns the regular expression of these parts, one after the other, in capitals or not."""
    return re.compile("".join(parts), re.IGNORECASE)


# What many rules have
OPENED = r"[\"'*_(\u201c\u2018]*"  # marks before a mention of an answer: quotation marks, brackets and emphasis
CLOSED = r"[\"'*_)\u201d\u2019]*"  # marks after it
APOSTROPHES = r"['\u2019]"
IS = rf"(?:{APOSTROPHES}s|\s+is)"  # "it's", "it is"
NT = rf"n{APOSTROPHES}t"  # "isn't"
NOT = rf"(?:{NT}|\s+not)"  # "isn't", "is not"
THE = r"(?:the\s+|an?\s+)?"
BE = r"(?:is|was|are|were)"
# What does not leave a sentence, a part of it, or a clause
IN_SENTENCE = r"[^.!?\n]*"
IN_PART = r"[^.!?;\n]*"
IN_CLAUSE = r"[^.!?;,\n]*"
SENTENCE_BREAK = re.compile(r"[.!?]\s")
# A denial holds to the end of its clause: "It is not a play by Rome, but a novel", "It's not Rome \u2014 it's Paris".
DASH = r"\s[-\u2013]\s|\u2014"
_CLAUSE_ENDS = any_of(
    r"\b(?:but|because|though|although|yet|since|until)\b",
    DASH,
    r"\.\s+(?:$|(?-i:[A-Z\"'*(]))",  # not the full stop of "U.S. state"
    r"(?<=[a-z]{3})\.\s+[$\\\d]",  # "It is not a half. 1/3 is"
)
REST_OF_CLAUSE = rf"(?:(?!{_CLAUSE_ENDS})[^!?;:,\n])*$"

# A rule looks at what comes right before a mention, and then ends with `$`, or at what follows it. The bound on the characters before it
# keeps reading linear in the reply's length.
CONTEXT = 80


def before_mention(text: str, match: re.Match[str], most: int = CONTEXT) -> str:
    """Returns what comes right before a mention (group 1)."""
    return text[max(match.start(1) - most, 0) : match.start(1)]


def ends_before(pattern: re.Pattern[str], text: str, match: re.Match[str], most: int = CONTEXT) -> bool:
    """
    Returns whether what a pattern finds ends where a mention starts. Unlike in [`before_mention`], it cannot begin in the middle of a
    word.
    """
    return pattern.search(text, max(match.start(1) - most, 0), match.start(1)) is not None

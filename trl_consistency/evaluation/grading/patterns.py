"""Regular expressions of answers, which many replies share, and what long ones are made of."""

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

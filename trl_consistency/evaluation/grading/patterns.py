"""Regular expressions of answers, which many replies share."""

import re
from functools import lru_cache


# Of a thousand questions. `re` keeps 512, so that each reply would compile them again.
MOST_PATTERNS = 2**14


@lru_cache(MOST_PATTERNS)
def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Returns a regular expression, compiled once."""
    return re.compile(pattern, flags)

"""Which answer does a text give?"""

import re
from collections.abc import Iterable


# A letter or digit beside the candidate makes it a part of another word or number, and so do a hyphen that joins it
# to one ("Guinea-Bissau") and a decimal point or thousands comma ("3.5").
_BEFORE = r"(?<![\w-])(?<!\d[.,])"
_AFTER = r"(?!\w|-\w|[.,]\d)"


def stated_answer(text: str, candidates: Iterable[str]) -> str | None:
    """
    Returns the candidate that a text states: the one that it mentions first, as whole words and in the same case.

    When two candidates begin at the same place the longer one counts, so that "New York City" is not read as
    "New York". Give all answers that the text could state, not only the right one: a text that states another answer
    is wrong, and must not be counted as unparsed.

    Args:
        text (`str`):
            What the model said.
        candidates (`Iterable[str]`):
            The possible answers.

    Returns:
        `str` or `None`: One of the candidates, or None if the text mentions none of them (unparsed).
    """
    # Longest first: of several alternatives that match at one place, a regular expression takes the first.
    by_length = sorted({candidate for candidate in candidates if candidate.strip()}, key=lambda c: (-len(c), c))
    by_words = {" ".join(candidate.split()): candidate for candidate in reversed(by_length)}
    alternatives = "|".join(r"\s+".join(map(re.escape, candidate.split())) for candidate in by_length)
    match = re.search(f"{_BEFORE}(?:{alternatives}){_AFTER}", text) if alternatives else None
    return by_words[" ".join(match.group().split())] if match else None

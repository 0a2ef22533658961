"""Finds the letter that a reply chooses on a line of its own, after what it says first."""

import re

from .mentions import given


_OPENING, _CLOSING = r"[ \t*_`\"'(\[>$#-]*", r"[ \t*_`\"').:\]$]*$"
_TEXT = r"(?:[).:\]]|[ \t]+[-\u2013\u2014])[ \t]+\S"  # of the choice, after its letter
# "The correct one is:", before a line with the letter and the choice's text
_INTRODUCED = re.compile(r"\b(?:correct|right|best|true)\b[^.!?\n]*\bis\s*:?\s*$", re.IGNORECASE)
_ENDED = re.compile(r"[.!?][*_\"')]*$")


def letter_on_a_line(text: str, letter: str) -> str | None:
    """
    Returns the letter that stands alone on a reply's last line ("The pear is a fruit.\\n\\nB"), or that begins a line which
    the one before introduces ("The correct one is:\\nB. pear"). Returns None for a list of the choices that goes on to the end,
    and for a letter that is denied ("It is not:\\nB").

    Args:
        text (`str`):
            The answer.
        letter (`str`):
            A regular expression of one of the letters, as its only group.
    """
    alone = list(re.finditer(f"^{_OPENING}{letter}{_CLOSING}", text, re.MULTILINE))
    begun = list(re.finditer(f"^{_OPENING}{letter}{_TEXT}", text, re.MULTILINE))
    if not alone and not begun:
        return None
    last = max(alone + begun, key=lambda line: line.start())
    listed = {line[1] for line in begun}
    before = text[: last.start()].rstrip()
    if last in alone and not text[last.end() :].strip():
        if (listed and last[1] not in listed) or len({line[1] for line in alone}) > 1:
            return None
    elif {line[1] for line in alone + begun} != {last[1]} or not _INTRODUCED.search(before):
        return None
    # A line that does not end its sentence goes on with the letter.
    joined = f"{before if _ENDED.search(before) else before.rstrip(':')} {last[1]}"
    return last[1] if given(joined, re.finditer(rf"{letter}\Z", joined)) else None

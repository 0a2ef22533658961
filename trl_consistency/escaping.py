"""Text from outside (names, contents, what other libraries say) as it is shown: in a terminal, and in Markdown."""

import html
import re
import unicodedata


# Zero-width joiners, which some scripts and emoji are written with.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """
    A text as a terminal can show it. What would move the cursor, change colours, turn the order of the text around it or
    cannot be seen is shown as its code (`\\x1b`). Line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    is_control = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    if not is_control or character in "\n\t" or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode()


def markdown_text(text: str) -> str:
    """
    A text in Markdown that is shown as it is: no HTML, picture, link, table cell or heading comes of it. It becomes one
    line, with `<br>` for its line breaks.

    Args:
        text (`str`):
            Any text.

    Returns:
        `str`: Markdown for a paragraph, a heading, an item of a list or a cell of a table.
    """
    # An underscore between letters emphasises nothing.
    lines = (
        re.sub(r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", html.escape(line, quote=False))
        for line in printable(text).split("\n")
    )
    # What makes a heading, a list or a line only at the start of a line
    return "<br>".join(re.sub(r"^\s*(\d*)([#+=.)-])", r"\1\\\2", line) for line in lines)

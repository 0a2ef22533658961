"""Escapes outside text (names, contents, messages of other libraries) for terminals and Markdown."""

import html
import re
import unicodedata


# Zero-width joiners, which some scripts and emoji need.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """
    Escapes a text for a terminal. Characters that are invisible, move the cursor, change colours or reverse the text
    order become codes (`\\x1b`). Line breaks and tabs stay.
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
    Escapes a text for Markdown, so that it cannot form HTML, images, links, table cells or headings. The result is one
    line, with `<br>` for line breaks, for a paragraph, a heading, an item of a list or a cell of a table.
    """
    # An underscore between letters needs no escape: it does not start emphasis.
    lines = (
        re.sub(r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", html.escape(line, quote=False))
        for line in printable(text).split("\n")
    )
    # Characters that start a heading, a list or a rule only at the start of a line
    return "<br>".join(re.sub(r"^\s*(\d*)([#+=.)-])", r"\1\\\2", line) for line in lines)

"""Normalizes text for comparison."""

import unicodedata


def normalized(text: str) -> str:
    """Returns a text in NFC, because `é` can be one code point or `e` and an accent."""
    return unicodedata.normalize("NFC", text)

"""Text as it is compared."""

import unicodedata


def normalized(text: str) -> str:
    """A text with one spelling for each character (NFC): `é` can be one code point, or `e` and an accent."""
    return unicodedata.normalize("NFC", text)

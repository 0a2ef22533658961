"""Words of the model card."""

import re


def in_words(parts: list[str]) -> str:
    """Joins parts to `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def safe(text: str) -> str:
    """Returns the beginning of a text without what Markdown or HTML would read."""
    return re.sub(r"[^\w .+-]", "", text)[:60]

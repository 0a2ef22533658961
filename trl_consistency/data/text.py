"""The text of prompts, and text normalized for comparison."""

import unicodedata
from typing import Any


# Scripts that write no space between words, and Korean, which writes none before its particles
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
PARTICLES = r"\uac00-\ud7af"


def normalized(text: str) -> str:
    """Returns a text in NFC, because `é` can be one code point or `e` and an accent."""
    return unicodedata.normalize("NFC", text)


def all_text(prompt: Any) -> str:
    """Returns the text of a prompt or completion, message by message; empty for other values."""
    if not isinstance(prompt, list):
        return prompt if isinstance(prompt, str) else ""
    contents = [message.get("content") for message in prompt if isinstance(message, dict)]
    blocks = [content if isinstance(content, list) else [{"text": content}] for content in contents]
    texts = [[str(block.get("text") or "") for block in of_one if isinstance(block, dict)] for of_one in blocks]
    return "\n".join(map("".join, texts))

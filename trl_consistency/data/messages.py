"""Checks chat messages, and finds those that are written as text."""

import re
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from ..json_files import strict_json


ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "model")

MESSAGE_KEYS = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "tool_plan", "refusal", "prefix", "index", "channel"),
    *("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks", "function_call"),
}

# Chat messages that are written as text: JSON in a field of a CSV file, as Python or numpy shows them, or in another format
_WRITTEN_MESSAGES = re.compile(
    r"""\s*\[?\s*\{\s*(["'])(?:role|content|from|value|tool_calls)\1\s*:.*\}\s*\]?\s*""", re.DOTALL
)
_ROLE_KEY = re.compile(r"""["'](?:role|from)["']\s*:""")


def text_faults(text: str) -> Iterator[str]:
    """Yields a fault if a text is chat messages that were written as one."""
    if messages_in(text) or (_WRITTEN_MESSAGES.fullmatch(text) and _ROLE_KEY.search(text)):
        yield (
            "is chat messages written as text, which no chat template would render: give the list itself, in JSON Lines or "
            "Parquet"
        )


def messages_in(text: Any) -> list[dict[str, Any]] | None:
    """Returns the chat messages that a text holds as JSON, as a field of a CSV file does, or None for other values."""
    if not isinstance(text, str) or not text.lstrip().startswith("["):
        return None
    with suppress(ValueError, RecursionError):
        found = strict_json(text)
        if found and all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in found):
            return found
    return None


def message_fault(message: Any) -> str | None:
    """Returns the fault of a chat message, None if there is none."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return "is not a dict with `role` and `content`"
    if message["role"] not in ROLES:
        near = get_close_matches(message["role"].lower(), ROLES, n=1, cutoff=0.5)
        hint = f": did you mean `{near[0]}`?" if near else f": it can be {', '.join(ROLES)}."
        return f"has the role `{message['role']}`{hint}"
    for key in message.keys() - MESSAGE_KEYS:
        near = get_close_matches(key, MESSAGE_KEYS, n=1, cutoff=0.8)
        if near and message[key] is not None:
            return f"has the key `{key}`, which would be ignored: did you mean `{near[0]}`?"
    if not isinstance(message.get("reasoning_content"), str | None):
        return f"has `reasoning_content` of type `{type(message['reasoning_content']).__name__}`, not text"
    content = message.get("content")
    if isinstance(content, list):
        texts = [block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text"]
        if len(texts) != len(content):
            return "has content other than text: pairs are text-only for now"
        content = "".join(text or "" for text in texts)
    if content is None and message.get("tool_calls"):
        return None
    if not isinstance(content, str):
        return f"has `content` of type `{type(content).__name__}`, not text"
    # A system or tool turn may be empty; an empty question or an empty answer to continue may not.
    if not content.strip() and message["role"] in ("user", "assistant") and not message.get("tool_calls"):
        return f"({message['role']}) is empty or blank"
    return None if is_unicode(content) else "is not valid Unicode: it holds half a surrogate pair"


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_none(value: Any) -> Any:
    """
    Drops the keys that Arrow added: in a column of dicts, every row gets the keys of all rows, set to None if it did
    not have them, and templates print some of those. An explicit `"content": None` (a tool call) stays.
    """
    if isinstance(value, list):
        return [without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None or key == "content"}
    return value

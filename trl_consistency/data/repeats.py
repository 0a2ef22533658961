"""Finds repeated rows: by digests of eight bytes a row, because the rows stay on disk, and prompts that say the same."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .messages import without_none
from .pairs import PROMPT_COLUMNS, parse_or_none


def first_rows(values: Iterable[Any]) -> np.ndarray:
    """
    Returns the row numbers, ascending, of the first row of each distinct value: text, numbers, or lists and dicts of
    them.
    """
    digests = np.fromiter(map(_digest, values), dtype=np.uint64)
    return np.sort(np.unique(digests, return_index=True)[1])


def prompt_key(row: Mapping[str, Any], *columns: str) -> str:
    """
    Returns a text that is equal for rows whose prompts in these columns, tools and template variables say the same.
    Spaces at the ends of a text and of its lines, the Unicode form, and text in one block or in none, make no other
    prompt.
    """
    others = [without_none(parse_or_none(row.get(column))) or None for column in ("tools", "chat_template_kwargs")]
    return _as_text([*(_plain(row.get(column)) for column in columns), *others])


def messages_key(row: Mapping[str, Any], *columns: str) -> str:
    """
    Returns a text as [`prompt_key`] does, whatever tools and template variables the rows have: these ask no other question. Only
    `documents` do, of which the template writes the text.
    """
    return _as_text([*(_plain(row.get(column)) for column in columns), documents_of(row)])


def documents_of(row: Mapping[str, Any]) -> Any:
    """Returns the documents that the template writes before a row's prompts, or None."""
    variables = parse_or_none(row.get("chat_template_kwargs"))
    documents = without_none(variables).get("documents") if isinstance(variables, dict) else None
    return (list(documents) if isinstance(documents, tuple | np.ndarray) else documents) or None


def _as_text(content: list[Any]) -> str:
    return json.dumps(content, default=str, sort_keys=True)


def repeated_rows(rows: Iterable[Mapping[str, Any]]) -> int:
    """Counts the rows whose two prompts an earlier row has."""
    counts = Counter(prompt_key(row, *PROMPT_COLUMNS) for row in rows)
    return counts.total() - len(counts)


def normal_text(text: str) -> str:
    """Returns a text without spaces at its ends and at those of its lines, in one Unicode form: what differs in these says the same."""
    lines = unicodedata.normalize("NFC", text).strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _plain(prompt: Any) -> Any:
    if isinstance(prompt, str):
        return normal_text(prompt)
    if not isinstance(prompt, list):
        return prompt
    turns = [{**turn, "content": _content(turn.get("content"))} if isinstance(turn, dict) else turn for turn in prompt]
    # Data sets fill in the keys that only other rows have.
    return [
        {key: without_none(value) for key, value in turn.items() if value is not None}
        if isinstance(turn, dict)
        else turn
        for turn in turns
    ]


def _content(content: Any) -> Any:
    if isinstance(content, list) and all(isinstance(of, dict) and of.get("type") == "text" for of in content):
        content = "".join(str(block.get("text") or "") for block in content)
    return normal_text(content) if isinstance(content, str) else content


def _digest(value: Any) -> int:
    return int.from_bytes(
        hashlib.blake2b(repr(value).encode(errors="surrogatepass"), digest_size=8).digest(), "little"
    )

"""Finds control tokens in the text of messages, which the tokenizer would read as turns of the template."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from ..errors import InvalidPairsError


# Part of every error message raised here.
CONTROL_TOKEN = "a control token of the tokenizer"

# Tokens such as `<|assistant|>`, which some tokenizers do not mark as special.
_TURN_MARK = re.compile(r"<[|\uff5c].+[|\uff5c]>", re.DOTALL)
# Thinking markers, which assistants may write.
_THOUGHT = re.compile("think|thought", re.IGNORECASE)

_patterns: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[str, re.Pattern[str]]] = WeakKeyDictionary()


class ControlTokenError(InvalidPairsError):
    """Raised for text that holds a control token. The row's name is put before its message."""


def control_pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """
    Returns the pattern of control tokens: special tokens, and other added tokens of the form `<|…|>`. Special tokens
    that are plain words do not count, because they look like those words.
    """
    key = f"{len(tokenizer)} {tokenizer.special_tokens_map}"  # tokens may be added later
    known = _patterns.get(tokenizer)
    if known is None or known[0] != key:
        added = tokenizer.added_tokens_decoder.values()
        tokens = {str(token) for token in added if token.special or _TURN_MARK.fullmatch(str(token))}
        tokens = {token for token in tokens | set(tokenizer.all_special_tokens) if re.search(r"[^\w\s]", token)}
        longest_first = sorted(tokens, key=lambda token: (-len(token), token))
        known = _patterns[tokenizer] = (key, re.compile("|".join(map(re.escape, longest_first)) or "(?!)"))
    return known[1]


def check_messages(tokenizer: PreTrainedTokenizerBase, messages: Iterable[Mapping[str, Any]], **others: Any) -> None:
    """
    Raises [`ControlTokenError`] if messages, or `others` (inputs of the chat template by column name), hold a control
    token in their text. Content blocks are checked joined together. Assistant messages may hold thinking markers.
    """
    pattern = control_pattern(tokenizer)
    for position, message in enumerate(messages):
        for match in _matches(pattern, message):
            if message.get("role") != "assistant" or not _THOUGHT.search(match[0]):
                raise ControlTokenError(
                    f"message {position} ({message.get('role')}) holds `{match[0]}`, {CONTROL_TOKEN}, in its "
                    "text: the model would read it as the chat template's own. Take it out or write it differently. If it "
                    "is meant, render the prompts with the chat template yourself and give them as text."
                )
    for name, value in others.items():
        for match in _matches(pattern, value):
            raise ControlTokenError(
                f"`{name}` holds `{match[0]}`, {CONTROL_TOKEN}: the model would read it as the chat "
                "template's own. Take it out or write it differently."
            )


def are_rendered(tokenizer: PreTrainedTokenizerBase, prompts: Iterable[str]) -> bool:
    """Whether text prompts were rendered with a chat template beforehand: one of them begins with a control token."""
    pattern = control_pattern(tokenizer)
    return any(pattern.match(prompt.lstrip()) for prompt in prompts)


def check_texts(tokenizer: PreTrainedTokenizerBase, prompts: Mapping[str, str], completion: str = "") -> None:
    """
    Raises [`ControlTokenError`] if text prompts (by column name) or their completion hold a control token. If a prompt
    begins with such a token, they were rendered with a template beforehand and are not checked. The completion may end
    with the end-of-sequence token.
    """
    if are_rendered(tokenizer, prompts.values()):
        return
    pattern = control_pattern(tokenizer)
    answer = completion.rstrip().removesuffix(tokenizer.eos_token or "")
    for name, text in {**prompts, "completion": answer}.items():
        match = pattern.search(text)
        if match is not None:
            raise ControlTokenError(
                f"`{name}` holds `{match[0]}`, {CONTROL_TOKEN}, in its text. Take it out or write it "
                "differently. If the prompts were rendered with a chat template beforehand, they must begin with one."
            )


def _matches(pattern: re.Pattern[str], value: Any) -> Iterator[re.Match[str]]:
    if isinstance(value, str):
        yield from pattern.finditer(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from pattern.finditer(str(key))
            yield from _matches(pattern, item)
    elif isinstance(value, list | tuple):
        texts = [item.get("text") for item in value if isinstance(item, Mapping) and item.get("type") == "text"]
        if texts and len(texts) == len(value):  # a template joins content blocks
            yield from pattern.finditer("".join(map(str, texts)))
        for item in value:
            yield from _matches(pattern, item)

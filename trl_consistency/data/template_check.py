"""What goes into a chat template must come out of it: nothing is left out, changed, or given for nothing."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidPairsError


# Templates leave out the thoughts of earlier turns, as most models were trained to expect.
_THOUGHT_MARK = re.compile(r"[<\[][^<>\[\]]*(?:think|thought)[^<>\[\]]*[>\]]", re.IGNORECASE)
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
# The tags that transformers adds to Jinja
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


def check_variables(template: str, variables: Iterable[str]) -> None:
    """Raises [`InvalidPairsError`] for the first of the `chat_template_kwargs` that the template does not read."""
    for name in variables:
        known = template_variables(template)
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else "Leave it out."
            raise InvalidPairsError(
                f"`chat_template_kwargs` sets `{name}`, a variable that the chat template does not have. {hint}"
            )


@lru_cache
def template_variables(template: str) -> frozenset[str]:
    """The variables that a chat template reads and does not set itself."""
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    return frozenset(meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template))))


def check_rendered(text: str, messages: Sequence[dict[str, Any]], tools: list[dict] | None, is_complete: bool) -> None:
    """
    Checks that a rendered conversation holds what the messages and the tools say, but for white space.

    Args:
        text (`str`):
            What the chat template made of them.
        messages (`Sequence[dict[str, Any]]`):
            Chat messages. Of assistant turns before the last question, the thoughts may be left out.
        tools (`list[dict]`, *optional*):
            JSON schemas, of which the names are looked for.
        is_complete (`bool`):
            Whether the last message is a completion: it alone is looked for then.

    Raises:
        [`InvalidPairsError`]: If a text is not there.
    """
    said = " ".join(text.split())
    asked = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    of_tools = () if is_complete else [("`tools`", name) for tool in tools or () for name in _names(tool)]
    of_messages = (
        (f"message {place} ({message['role']})", piece)
        for place, message in enumerate(messages)
        if not is_complete or place == len(messages) - 1
        for piece in _pieces(message, with_thoughts=place > asked)
    )
    for where, piece in (*of_tools, *of_messages):
        if not any(" ".join(form.split()) in said for form in _forms(piece)):
            raise InvalidPairsError(
                f"the chat template leaves out or changes what {where} says: {piece.strip()[:60]!r} does not stand in the "
                "rendered text. Use another template, or take it out."
            )


def _pieces(message: dict[str, Any], with_thoughts: bool) -> Iterator[str]:
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [block["text"] for block in content]
    if message["role"] == "assistant":
        texts = [part for text in texts for part in _THOUGHT_MARK.split(text)[0 if with_thoughts else -1 :]]
        texts += [message[key] for key in _THOUGHTS if with_thoughts and isinstance(message.get(key), str)]
    yield from texts
    for call in message.get("tool_calls") or ():
        yield from _names(call)
        yield from _leaves(call.get("function", call).get("arguments"))


def _names(of: dict[str, Any]) -> list[str]:
    """The name of a tool or of a call."""
    name = of.get("function", of).get("name")
    return [name] if isinstance(name, str) else []


def _leaves(value: Any) -> Iterator[str]:
    """The texts in the arguments of a call, which may be given as JSON."""
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = None
        if isinstance(parsed, dict | list):
            yield from _leaves(parsed)
        else:
            yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def _forms(piece: str) -> Iterator[str]:
    """How a template may write a text: as it is, or within JSON (or JSON within JSON) or a Python literal."""
    yield piece
    for ascii_alone in (False, True):  # as `json.dumps` writes the arguments of a call
        as_json = json.dumps(piece, ensure_ascii=ascii_alone)[1:-1]
        yield as_json
        yield json.dumps(as_json, ensure_ascii=False)[1:-1]
    yield repr(piece)[1:-1]

"""Checks that a chat template reads every variable it is given, and omits or changes no text."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidPairsError, did_you_mean


# Templates leave out the thoughts of earlier turns, because most models were trained so.
_THOUGHT_MARK = re.compile(r"[<\[][^<>\[\]]*(?:think|thought)[^<>\[\]]*[>\]]", re.IGNORECASE)
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
# Lists of blocks that hold thoughts, and the keys of their texts
_BLOCKS, _OF_BLOCKS = ("thinking_blocks", "reasoning_details"), ("thinking", "text")
# Other texts of messages, which some templates know
_OTHERS = ("tool_plan", "refusal")
_DATE = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1""")
# Roles of some models alone, which write them as `'model'` or `<start_of_turn>model`, and others in their place
_OTHERS_OF = {"model": "assistant", "developer": "system", "function": "tool", "ipython": "tool", "tool": "user"}
# The tags that transformers adds to Jinja
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


def check_variables(template: str, variables: Iterable[str]) -> None:
    """Raises [`InvalidPairsError`] for the first variable that the template does not read."""
    for name in variables:
        known = template_variables(template)
        if name not in known:
            hint = did_you_mean(name, known) or " Leave it out."
            raise InvalidPairsError(
                f"`chat_template_kwargs` sets `{name}`, a variable that the chat template does not have.{hint}"
            )


def check_roles(template: str | None, messages: Sequence[dict[str, Any]]) -> None:
    """
    Raises [`InvalidPairsError`] for a turn of a role that not all models know where the template does not name such turns: many
    write the name of any role, and the model has never seen it. A template that reads `tools` may write those of `tool` so.
    """
    for place, message in enumerate(messages):
        role = message["role"]
        if role not in _OTHERS_OF or (role == "tool" and "tools" in template_variables(template or "")):
            continue
        if not re.search(rf"""["'>]{role}\b""", template or ""):
            raise InvalidPairsError(
                f"message {place} has the role `{role}`, and the chat template has no turns of that name: write `{_OTHERS_OF[role]}`"
            )


@lru_cache
def template_variables(template: str) -> frozenset[str]:
    """Returns the variables that a chat template reads and does not set itself."""
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    return frozenset(meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template))))


def written_date(template: Any, text: str) -> str | None:
    """Returns the day's date that a chat template (or one of several by name) has written into a text, or None."""
    return next((date for date in dates_of(template) if len(date) > 4 and date in text), None)


def dates_of(template: Any) -> list[str]:
    """Returns the dates that a chat template (or one of several by name) can write now."""
    texts = list(template.values()) if isinstance(template, dict) else [template or ""]
    formats = [of[1] for text in texts for of in _DATE.findall(text)]
    if len(formats) < sum(text.count("strftime_now(") for text in texts):
        formats.append("%c")  # a format that the template makes itself
    return [datetime.now().strftime(of) for of in formats]


def check_rendered(text: str, messages: Sequence[dict[str, Any]], tools: list[dict] | None, is_complete: bool) -> None:
    """
    Raises [`InvalidPairsError`] if a rendered conversation lacks text of the messages or the names of the tools. White
    space may differ, and the thoughts of assistant turns before the last question may be missing. With `is_complete`,
    only the text of the last message, the completion, is required, and `text` is what follows the messages before it.
    """
    words = " ".join(text.split())
    asked = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    of_tools = [] if is_complete else [("`tools`", _names(tool)) for tool in tools or ()]
    of_messages = [
        (f"message {place} ({message['role']})", list(_pieces(message, with_thoughts=place > asked)))
        for place, message in enumerate(messages)
        if not is_complete or place == len(messages) - 1
    ]
    said = [[" ".join(piece.split()) for piece in pieces] for _, pieces in (*of_tools, *of_messages)]
    for where, pieces in (*of_tools, *of_messages):
        for piece in pieces:
            forms = (" ".join(form.split()) for form in _forms(piece))
            times = _times(" ".join(piece.split()), said)
            # Where others say it, too, it must be there as often. Counting all forms takes longer.
            found = sum(map(words.count, set(forms))) if times > 1 else any(form in words for form in forms)
            if found < max(times, 1):
                raise InvalidPairsError(
                    f"the chat template leaves out or changes what {where} says: {piece.strip()[:60]!r} is not in the "
                    f"rendered text{' as often as it is said' if found else ''}. Use another template, or take it out."
                )


def with_objects(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages with the arguments of their calls as objects. They may be JSON texts, as the APIs that serve models give them."""

    def parsed(call: dict[str, Any]) -> dict[str, Any]:
        of = call.get("function", call)
        found = of | {"arguments": json.loads(of["arguments"])} if _json_arguments(call) else of
        return {**call, "function": found} if "function" in call else found

    return [
        {**message, "tool_calls": list(map(parsed, message["tool_calls"]))} if message.get("tool_calls") else message
        for message in messages
    ]


def writes_arguments_twice(text: str, messages: Sequence[dict[str, Any]]) -> bool:
    """Whether a chat template has written the arguments of a call, given as a JSON text, as a text within JSON or in other braces."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    given = [of for call in calls if (of := _json_arguments(call))]
    return any(
        form in text for of in given for form in (json.dumps(of, ensure_ascii=False), json.dumps(of), f"{{{of}}}")
    )


def _json_arguments(call: Any) -> str:
    """Returns the arguments of a call if they are the JSON text of an object, else an empty text."""
    text = call.get("function", call).get("arguments") if isinstance(call, dict) else None
    try:
        return text if isinstance(text, str) and isinstance(json.loads(text), dict) else ""
    except json.JSONDecodeError:
        return ""


def _times(piece: str, said: Sequence[Sequence[str]]) -> int:
    """Returns how often messages and tools say a text. The pieces of one may hold the same text, such as a thought."""
    return sum(max((other.count(piece) for other in pieces), default=0) for pieces in said) if piece else 0


def _pieces(message: dict[str, Any], with_thoughts: bool) -> Iterator[str]:
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [block["text"] for block in content]
    if message["role"] == "assistant":
        texts = [part for text in texts for part in _THOUGHT_MARK.split(text)[0 if with_thoughts else -1 :]]
        texts += thoughts_of(message) if with_thoughts else []
    yield from texts
    yield from (message[key] for key in _OTHERS if isinstance(message.get(key), str))
    of_old = message.get("function_call")  # the name before `tool_calls`, which few templates read
    for call in (*(message.get("tool_calls") or ()), *([of_old] if isinstance(of_old, dict) else [])):
        yield from _names(call)
        yield from _leaves(call.get("function", call).get("arguments"))


def thoughts_of(message: dict[str, Any]) -> list[str]:
    """Returns the thoughts that a message holds beside its content."""
    blocks = [block for key in _BLOCKS for block in message.get(key) or () if isinstance(block, dict)]
    texts = [message[key] for key in THOUGHTS if isinstance(message.get(key), str)]
    return texts + [block[key] for block in blocks for key in _OF_BLOCKS if isinstance(block.get(key), str)]


def _names(of: dict[str, Any]) -> list[str]:
    """Returns the name of a tool or of a call as a list, empty if it has none."""
    name = of.get("function", of).get("name")
    return [name] if isinstance(name, str) else []


def _leaves(value: Any) -> Iterator[str]:
    """Yields the texts in the arguments of a call, which may be JSON."""
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
    """Yields the forms in which a template may write a text: plain, JSON, JSON within JSON, a Python literal."""
    yield piece
    for ascii_alone in (False, True):  # as `json.dumps` writes the arguments of a call
        as_json = json.dumps(piece, ensure_ascii=ascii_alone)[1:-1]
        yield as_json
        yield json.dumps(as_json, ensure_ascii=False)[1:-1]
    yield repr(piece)[1:-1]

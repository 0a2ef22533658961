"""Puts a system message in front of prompts: a baseline that needs no training."""

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidPairsError
from .pairs import PROMPT_COLUMNS, report_faults
from .rendering import Message, Prompt


def with_system_prompt(prompt: Prompt, text: str) -> list[Message]:
    """
    Returns a prompt with a system message in front.

    Args:
        prompt (`list[dict]`):
            Chat messages.
        text (`str`):
            The system message.

    Raises:
        [`InvalidPairsError`]: If the prompt is text, or has a system message of its own.
    """
    if isinstance(prompt, str):
        raise InvalidPairsError("is text, and only chat messages can have a system message")
    own = next((message["role"] for message in prompt if message["role"] in ("system", "developer")), None)
    if own:
        raise InvalidPairsError(f"has a {own} message of its own")
    return [{"role": "system", "content": text}, *prompt]


def pairs_with_system_prompt(
    rows: Sequence[dict[str, Any]], text: str, numbers: Sequence[int], name: str = "pairs"
) -> list[dict[str, Any]]:
    """
    Returns pairs with a system message in front of both prompts. Raises [`InvalidPairsError`] that lists the rows that
    cannot have one, by their `numbers` in the data `name`.
    """
    changed, faults = [], []
    for number, row in zip(numbers, rows, strict=True):
        try:
            changed.append(row | {column: with_system_prompt(row[column], text) for column in PROMPT_COLUMNS})
        except InvalidPairsError as error:
            faults.append((number, f"`system_prompt` cannot stand in front: a prompt {error}"))
    report_faults(faults, name, len(rows))
    return changed

"""Puts a system message in front of a prompt: a baseline that needs no training."""

from ..errors import InvalidPairsError
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

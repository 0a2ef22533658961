"""Errors for the person who gave the data or the options: what is wrong, which row or key, what to do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .escaping import printable


class ConsistencyError(ValueError):
    """
    Raised for faulty data or options. Its message stands alone: the command line prints it without a traceback. What it names
    comes from outside, so that it is made printable here, once for all.
    """

    def __init__(self, message: str = ""):
        super().__init__(printable(message))


class InvalidPairsError(ConsistencyError):
    """Raised when a data set does not hold usable (clean prompt, perturbed prompt) pairs."""


@contextmanager
def ending_with_message() -> Iterator[None]:
    """Faulty data or options end the program with their message alone."""
    try:
        yield
    except ConsistencyError as error:
        sys.exit(f"error: {error}")


def one_line(error: BaseException) -> str:
    """What an error of another library says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__

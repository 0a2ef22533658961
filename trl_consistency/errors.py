"""Errors in the user's data or options. Messages say what is wrong, which row or key, and what to do."""

from .escaping import printable


class ConsistencyError(ValueError):
    """
    Raised for faulty data or options. The command line prints its message without a traceback. The message is made
    printable here, because it quotes outside text.
    """

    def __init__(self, message: str = ""):
        super().__init__(printable(message))


class InvalidPairsError(ConsistencyError):
    """Raised when a data set does not hold usable (clean prompt, perturbed prompt) pairs."""


def one_line(error: BaseException) -> str:
    """Returns the message of another library's error on one line."""
    return " ".join(str(error).split()) or type(error).__name__

"""Errors in the user's data or options. Messages say what is wrong, name the row or key, and say what to do."""

import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path

from .escaping import printable


class ConsistencyError(ValueError):
    """
    Raised for faulty data or options. The command line prints its message without a traceback. The message is made
    printable here, because it quotes outside text.

    Args:
        message (`str`, *optional*, defaults to `""`):
            What is wrong, and what to do.
        columns (`Collection[str]`, *optional*, defaults to `()`):
            Columns that the message may name. Where an option has the name of one, the column is meant.
    """

    def __init__(self, message: str = "", columns: Collection[str] = ()):
        super().__init__(printable(message))
        self.columns = columns


class InvalidPairsError(ConsistencyError):
    """Raised when a data set does not hold usable (clean prompt, perturbed prompt) pairs."""


def one_line(error: BaseException) -> str:
    """Returns the message of another library's error on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """
    Returns a sentence, after a space, that suggests a known word: one almost the same as `word`, or one that
    begins with it (`--model_name_or_path` for `--model`), or the nearest. Empty if there is none.
    """
    known = sorted(known)
    longer = [other for other in known if other.startswith(f"{word}_")]
    longer.sort(key=lambda other: not other.startswith(f"{word}_name"))
    near = get_close_matches(str(word), known, n=1, cutoff=0.9) or longer or get_close_matches(str(word), known, n=1)
    return f" Did you mean `{near[0]}`?" if near else ""


_FLAGS: ContextVar[Collection[str]] = ContextVar("flags", default=())


@contextmanager
def naming_flags(options: Collection[str]) -> Iterator[None]:
    """Messages that end a program here name these options with dashes, as the user types them."""
    token = _FLAGS.set(options)
    try:
        yield
    finally:
        _FLAGS.reset(token)


def _with_dashes(error: ConsistencyError) -> str:
    """Returns an error's message with `--seed` for `seed`. Messages about rows name columns, and stay."""

    def as_flag(name: re.Match[str]) -> str:
        is_flag = name[1] in _FLAGS.get() and name[1] not in error.columns
        return f"`--{' '.join(filter(None, name.groups()))}`" if is_flag else name[0]

    first, *rows = str(error).split("\n")
    if not isinstance(error, InvalidPairsError) and not re.search(r"\b(row|line) \d", first):
        first = re.sub(r"`(\w+)(?:: ([\w.-]+))?`", as_flag, first)
    return "\n".join([first, *rows])


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings of this package are one line, without their place in its code."""
    formatted, package = warnings.formatwarning, Path(__file__).parent

    def plain(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if Path(filename).is_relative_to(package):
            return f"warning: {message}\n"
        return formatted(message, category, filename, lineno, line)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = formatted


# Faults of a name that a user gave, which the functions that ask whether there is such a file raise, and what to do
_OF_NAMES = {
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ELOOP: "Its links lead back to themselves: remove one, or name another place.",
    errno.EACCES: "You may not read or write there: change its permissions, or those of the folders above it, or name another place.",
}


def _print_all() -> None:
    if sys.stdout is not None:  # `>&-`
        sys.stdout.flush()


def _lost_stdout() -> str | None:
    """Returns why nothing more can be printed, or None if it can."""
    try:
        _print_all()
    except OSError as error:
        with suppress(OSError, ValueError):  # otherwise Python tries once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror
    return None


@contextmanager
def ends_with_message() -> Iterator[None]:
    """
    Decorator of a command. A [`ConsistencyError`], Ctrl-C or the end of what reads the output ends the program with a message,
    without a traceback, and warnings are one line.
    """
    try:
        with _plain_warnings():
            yield
        _print_all()
    except OSError as error:
        # Without a buffer, the text that could not be printed is gone, and what is left can be.
        lost = _lost_stdout() or (error.strerror if isinstance(error, BrokenPipeError) else None)
        if lost is None and error.errno in _OF_NAMES and error.filename is not None:
            sys.exit(f"error: {printable(str(error.filename))}: {error.strerror}. {_OF_NAMES[error.errno]}")
        if lost is None:
            raise
        sys.exit(
            f"error: stdout cannot be written to ({lost}), and the command ended there. Print to a file, and read that."
        )
    except ConsistencyError as error:
        sys.exit(f"error: {_with_dashes(error)}")
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)

"""`--json`: one object on stdout, and nothing else there."""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from ..errors import ConsistencyError


JSON_HELP = "print one JSON object instead of text"


@contextmanager
def one_object(wanted: bool) -> Iterator[dict[str, Any]]:
    """
    Yields a dictionary for a command to fill. If it is `wanted`, all that is printed meanwhile goes to stderr, and the
    dictionary is printed at the end, on one line. Nothing is printed of an empty one, or after an error.
    """
    found: dict[str, Any] = {}
    if not wanted:
        yield found
        return
    if sys.stdout is None:  # `>&-`
        raise ConsistencyError("`json`: stdout is closed, so that the object could not be printed.")
    with _stdout_as_stderr(), redirect_stdout(sys.stderr):
        yield found
    if found:
        # In ASCII: not every stdout takes other characters, and some of them end a line.
        print(json.dumps(found, allow_nan=False), flush=True)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Sends to stderr what libraries in C and child processes print, too: they know the descriptors alone."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics without those that are not finite, which JSON cannot hold."""
    return {name: value for name, value in metrics.items() if not isinstance(value, float) or math.isfinite(value)}

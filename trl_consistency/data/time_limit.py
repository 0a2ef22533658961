"""A limit on the time that a chat template may take: Jinja's sandbox bounds one loop, but not loops within loops."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..errors import ConsistencyError


# What Jinja calls the source of a template that is no file.
_TEMPLATE_FILE = "<template>"


class TimeLimitError(ConsistencyError):
    """Raised for what does not come to an end. The next row would not either, so that no row is tried after it."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """
    Ends a template that runs for too long, in any thread and on every system: each line of it looks at the clock.

    Args:
        seconds (`float`):
            The limit.
        what (`str`):
            What runs, for the message.

    Raises:
        [`TimeLimitError`]: If the limit is passed.
    """
    end = time.monotonic() + seconds

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeLimitError(f"{what} does not come to an end: it was stopped after {seconds:g} seconds.")
        return at_line

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_filename == _TEMPLATE_FILE else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)

"""Limits a chat template's time and memory. Jinja's sandbox limits one loop, but not nested loops or huge values."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ..errors import ConsistencyError


try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Jinja's name for the source of a template that is not a file
_TEMPLATE_FILE = "<template>"
# Bytes that a template may allocate
_MEMORY = 2**30


class TimeLimitError(ConsistencyError):
    """Raised for a template that does not terminate. It stops the run: the next row would not terminate either."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """
    Raises [`TimeLimitError`], with `what` as its subject, if a template runs for too long. The clock is checked at
    each line of the template, in any thread and on every system. A single long line is stopped by an alarm (in the
    main thread) or by a memory limit (on Linux).
    """
    end = time.monotonic() + seconds

    def at_line(frame: FrameType | None, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeLimitError(f"{what} does not come to an end: it was stopped after {seconds:g} seconds.")
        return at_line

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_filename == _TEMPLATE_FILE else None

    before = sys.gettrace()
    try:
        with _alarm(seconds, at_line), _memory_limit():
            sys.settrace(at_call)
            yield
    except MemoryError:
        raise TimeLimitError(f"{what} takes more than {_MEMORY >> 20} MiB of memory: it was stopped.") from None
    finally:
        sys.settrace(before)


@contextmanager
def _alarm(seconds: float, ring: Any) -> Iterator[None]:
    """Calls `ring` in the main thread when the time has passed, unless another alarm is already set."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer") or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda number, frame: ring(frame, "alarm", None) and None)
    # Repeated, because Jinja swallows the first error while it folds constants.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _memory_limit() -> Iterator[None]:
    limits = None
    with suppress(OSError, AttributeError, ValueError), open("/proc/self/statm") as file:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        wanted = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted, limits[1]))
    try:
        yield
    finally:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_AS, limits)

"""Limits a chat template's time. Jinja's sandbox limits one loop, but not nested loops or huge values."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..errors import ConsistencyError


# Jinja's name for the source of a template that is not a file
_TEMPLATE_FILE = "<template>"


class TimeLimitError(ConsistencyError):
    """Raised for a template that does not terminate. It stops the run: the next row would not terminate either."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """
    Raises [`TimeLimitError`], with `what` as its subject, if a template takes too many seconds of processor time. On a busy
    machine, waiting does not count. The clock is checked at each line of the template, in any thread and on every
    system. A single long line is stopped by an alarm, in the main thread. Memory is not limited: a limit of the process
    would also hold for its other threads.
    """
    end = time.thread_time() + seconds

    def at_line(frame: FrameType | None, event: str, argument: Any) -> Any:
        if time.thread_time() > end:
            raise TimeLimitError(f"{what} does not come to an end: it was stopped after {seconds:g} seconds.")
        return at_line

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_filename == _TEMPLATE_FILE else None

    before = sys.gettrace()
    try:
        with _alarm(seconds, at_line):
            sys.settrace(at_call)
            yield
    except MemoryError:
        raise TimeLimitError(f"{what} takes more memory than there is: it was stopped.") from None
    finally:
        sys.settrace(before)


@contextmanager
def _alarm(seconds: float, ring: Any) -> Iterator[None]:
    """Calls `ring` in the main thread from that time on, again and again, unless another alarm is already set."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer") or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    is_running = True

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if is_running:
            ring(frame, "alarm", None)

    before = signal.signal(signal.SIGALRM, on_alarm)
    # Repeated, because Jinja swallows the first error while it folds constants.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        try:
            yield
        finally:
            is_running = False  # an alarm must not interrupt what follows
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

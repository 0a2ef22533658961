"""Measures peak memory."""

import threading
from collections.abc import Callable

import psutil


MB = 1 << 20


def peak_of(work: Callable[[], None]) -> float:
    """Peak resident memory while `work` runs, over what was resident before, in MB."""
    process, done, seen = psutil.Process(), threading.Event(), []

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(process.memory_info().rss)

    start = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return (max(seen) - start) / MB

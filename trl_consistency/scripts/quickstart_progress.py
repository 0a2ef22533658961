"""Shows on a terminal what the concurrent trainings of the quickstart are doing, from their logs."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text


LAST_BYTES = 4096


@contextmanager
def shown_logs(logs: Mapping[str, Path]) -> Iterator[Callable[[str, str], None]]:
    """
    Shows the last progress bar of each log, which has the remaining time, until its training is done. Yields a function
    that takes the title of a training that is done, and a line to print. Without a terminal, only these lines appear.
    """
    console = Console(stderr=True)
    done: set[str] = set()

    def lines() -> Text:
        found = {title: last_progress(log) for title, log in logs.items() if title not in done}
        running = [f"{title}: {progress}" for title, progress in found.items() if progress]
        return Text("\n".join([f"{len(done)} of {len(logs)} done", *running]), no_wrap=True, overflow="ellipsis")

    def finish(title: str, line: str) -> None:
        done.add(title)
        print(f"{title}: {line}", flush=True)

    for log in logs.values():  # of an earlier quickstart in the same folder
        log.unlink(missing_ok=True)
    with Live(console=console, get_renderable=lines, refresh_per_second=1, transient=True):
        yield finish


def last_progress(log: Path) -> str:
    """Returns the last progress bar in a log, or an empty text."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(file.tell() - LAST_BYTES, 0))
        bars = re.findall(r"[^\r\n]*\d+%\|[^\r\n]*", file.read().decode("utf-8", errors="replace"))
        return bars[-1].strip() if bars else ""
    return ""

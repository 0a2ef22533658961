"""
Rivals in processes of their own, which take turns.

Each process holds one rival and waits for a line on its input before each step. So rivals are interleaved, and whatever
else runs on the machine slows down all of them; and none sees the memory that another one has freed.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[2]
_WHO = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN


class Worker:
    """A process that steps when it is told to: `python -m tests.benchmarks.worker ROW RIVAL SIZE`."""

    def __init__(self, row: str, rival: str, size: str):
        environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.worker", row, rival, size]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it is shown if the process fails)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.facts = self._read()  # what the row says of itself before its first step

    def step(self) -> dict[str, float]:
        """Lets the process take a step. Returns its CPU time and wall time in seconds."""
        return self._ask("step")

    def end(self, profiles: bool = True) -> dict[str, Any]:
        """Ends the process. Returns its peak memory in MiB, and where its time went if it `profiles` a step more."""
        found = self._ask("end" if profiles else "stop")
        self.process.wait()
        self.errors.close()
        return found

    def _ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("benchmark "):  # libraries print, too
                return json.loads(line.removeprefix("benchmark "))
        status = self.process.wait()
        self.errors.seek(0)
        raise RuntimeError(f"a process ended with status {status}. It wrote:\n{self.errors.read()[-2000:]}")


class Turns:
    """The other end, inside the process: `for _ in turns: step()`."""

    def __init__(self) -> None:
        self.start, self.word = (0.0, 0.0), ""
        _forget_peak()
        self.before = memory("VmRSS")

    def say(self, found: dict[str, Any]) -> None:
        print("benchmark", json.dumps(found), flush=True)

    def wait(self) -> bool:
        """Waits for the next turn. Returns False if there is none."""
        self.word = sys.stdin.readline().strip()
        self.start = _cpu(), time.perf_counter()
        return self.word == "step"

    def done(self) -> None:
        """Tells what the turn took."""
        cpu, wall = self.start
        self.say({"cpu": _cpu() - cpu, "wall": time.perf_counter() - wall})

    def __iter__(self) -> Iterator[None]:
        while self.wait():
            yield
            self.done()

    def end(self, **more: Any) -> None:
        """Tells the peak over what the process held before it made its model."""
        self.say({"peak": memory("VmHWM") - self.before, **more})


def _cpu() -> float:
    """CPU time of this process and of those that it has started and waited for."""
    return sum(of.ru_utime + of.ru_stime for of in map(resource.getrusage, _WHO))


def memory(name: str) -> float:
    """
    Returns a line of `/proc/self/status` in MiB. (`ru_maxrss` would not do: it begins with the memory of the process
    that started this one.)
    """
    return _in_mib(Path("/proc/self/status").read_text(), name)


def _in_mib(status: str, name: str) -> float:
    return int(status.rpartition(f"{name}:")[2].split()[0]) / 1024


def _forget_peak() -> None:
    """Sets the peak to what the process holds now, since the imports needed more for a moment."""
    Path("/proc/self/clear_refs").write_text("5")


def growth_of_memory(run: Callable[[], Any]) -> float:
    """
    Returns by how many MiB the memory grows at most while `run` runs, not counting the pages of mapped files, which the
    system takes back when it wants to.
    """
    before = peak = memory("RssAnon")
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.05):
            peak = max(peak, memory("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        run()
    finally:
        is_over.set()
        thread.join()
    return peak - before


# A command that prints its own peak when it ends, and imports nothing that it would not import by itself
_COMMAND = """
import atexit, sys
from trl_consistency.cli import main
atexit.register(lambda: print(open("/proc/self/status").read()))
main(sys.argv[1:])
"""


def run_command(*words: str) -> float:
    """Runs a command in a process of its own. Returns the peak of its whole memory in MiB."""
    command = [sys.executable, "-c", _COMMAND, *words]
    output = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    return _in_mib(output, "VmHWM")

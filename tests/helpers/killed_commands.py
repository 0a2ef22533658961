"""
Commands of `trl-consistency` in processes that are forked from one with everything imported, and killed at any moment.

It reads jobs from standard input, a JSON list of `Job` a line, runs those of a line at once, and answers with a JSON list of
`Ended`. Importing takes seconds, and a fork nothing, so that a hundred kills are affordable.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path


# The audit events that tell that a process changes what is on the disk; `open` is looked at more closely.
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}


@dataclass
class Job:
    """
    A command to run.

    Args:
        args (`list[str]`):
            Its arguments, the name of the command first.
        folder (`str`):
            Where it runs, and what it changes there counts as writing.
        log (`str`):
            File for what it prints.
        seconds (`float`, *optional*):
            When it is killed, unless it has ended before.
        write (`int`, *optional*):
            It is killed when it is about to open, move or remove a file in `folder` for that time, from 1.
        setup (`str`, *optional*):
            `module:function` to call first.
    """

    args: list[str]
    folder: str
    log: str
    seconds: float | None = None
    write: int | None = None
    setup: str | None = None


@dataclass
class Ended:
    """
    How it ended.

    Args:
        code (`int`):
            As of [`subprocess.Popen`]: negative for a signal.
        seconds (`float`):
            How long it took.
        left (`list[int]`):
            Processes that it started and that are still there, seconds after it ended.
    """

    code: int
    seconds: float
    left: list[int]


class Commands:
    """The process that forks."""

    def __init__(self, environment):
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": root, **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.killed_commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=root,
        )

    def run(self, *jobs):
        """Runs jobs at once; returns how each ended."""
        self.process.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that forks is gone"
        return [Ended(**ended) for ended in json.loads(line)]

    @contextmanager
    def running(self):
        with self.process:
            try:
                yield self
            finally:
                self.process.stdin.close()


def snapshot(folder):
    """The content of all files in a folder, and of its sub-folders that are empty."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"an empty folder"
        for path in sorted(folder.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }


def main():
    import torch

    from trl_consistency.cli import COMMANDS

    for module, _ in COMMANDS.values():
        import_module(module)
    for module in (
        "trl_consistency.scripts.vulnerable",
        "trl_consistency.trainer.consistency_trainer",
        "trl_consistency.trainer.on_policy_consistency_trainer",
        "trl_consistency.publishing",
        "transformers.models.llama.modeling_llama",
        "transformers.models.qwen3.modeling_qwen3",
        "transformers.generation.logits_process",
        "matplotlib.pyplot",
        "pandas",
        "scipy.stats",
    ):
        import_module(module)
    torch.set_num_threads(1)
    gc.freeze()  # a fork that looks among it for garbage would copy it all
    for line in sys.stdin:
        jobs = [Job(**job) for job in json.loads(line)]
        start = time.monotonic()
        children = [_start(job) for job in jobs]
        ended = {}
        while len(ended) < len(children):
            for child, job in zip(children, jobs, strict=True):
                if child in ended:
                    continue
                taken = time.monotonic() - start
                if job.seconds is not None and taken >= job.seconds:
                    os.kill(child, signal.SIGKILL)
                    _, status = os.waitpid(child, 0)
                else:
                    done, status = os.waitpid(child, os.WNOHANG)
                    if not done:
                        continue
                ended[child] = Ended(os.waitstatus_to_exitcode(status), taken, [])
            time.sleep(0.002)
        for child, of_child in ended.items():
            of_child.left = _left(child)
        print(json.dumps([asdict(ended[child]) for child in children]), flush=True)


def _start(job):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()  # what it starts is in this session, too
        log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, number)
        os.chdir(job.folder)
        if job.setup:
            module, function = job.setup.split(":")
            getattr(import_module(module), function)()
        _watch(job)
        code = _run(job.args)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(args):
    from trl_consistency.cli import main as cli

    try:
        cli(args)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
        return 70  # no error of ours
    return 0


def _watch(job):
    """Counts what this process, not those that it starts, is about to do to files; notes the number, or kills."""
    own, folder, count = os.getpid(), job.folder + os.sep, 0

    def hook(event, args):
        nonlocal count
        if event == "open":
            path, _, flags = args
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in WRITES:
            path = args[0]
        else:
            return
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(os.fspath(path)).startswith(folder):
            return
        if os.getpid() != own:
            return
        count += 1
        if job.write is None:
            os.truncate(counter, 0)
            os.pwrite(counter, str(count).encode(), 0)
        elif count == job.write:
            os.kill(own, signal.SIGKILL)

    if job.write is None:
        counter = os.open(job.log + ".writes", os.O_WRONLY | os.O_CREAT)
    sys.addaudithook(hook)


def _left(session, wait=10.0):
    """The processes of a session, once those that are about to end have ended."""
    deadline = time.monotonic() + wait
    while True:
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


if __name__ == "__main__":
    main()

import os
import signal
import subprocess
import sys
import time

import pytest


POOL = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from trl_consistency.processes import end_with_parent


def work():
    print(os.getpid(), flush=True)
    time.sleep(60)


if __name__ == "__main__":
    initializer = end_with_parent if sys.argv[1] == "tied" else None
    with ProcessPoolExecutor(1, get_context("spawn"), initializer) as pool:
        pool.submit(work).result()
"""


def runs(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:  # one that nobody waited for is still listed
            return stat.read().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "not tied"])
def test_workers_end_with_a_command_that_is_killed(tmp_path, number, tied):
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    command = [sys.executable, str(script), "tied" if tied else "not tied"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        worker = int(parent.stdout.readline())
        try:
            parent.send_signal(number)
            parent.wait()
            deadline = time.monotonic() + (10 if tied else 0.5)
            while runs(worker) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert runs(worker) != tied
        finally:
            if runs(worker):
                os.kill(worker, signal.SIGKILL)

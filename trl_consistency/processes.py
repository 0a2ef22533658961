"""Processes that a command starts end with it, however it ends."""

import os
import threading
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """
    Has this process end when the one that started it is gone: killed, it could not tell its workers to stop.

    It is the `initializer` of a pool of processes.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)  # nobody is left to hand a result to

"""Ends the processes that a command started when the command ends, even if it is killed."""

import os
import threading
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """
    Ends this process when its parent ends, because a killed parent cannot stop its workers. The `initializer` of
    process pools.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)  # No process is left to receive a result.

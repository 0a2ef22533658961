"""Locks a folder for all processes of a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from ...errors import ConsistencyError
from ...files import remove_unfinished_weights
from ...folder_lock import acquire, release


@contextmanager
def command_lock(folder: str | Path, state: Accelerator | PartialState, activity: str = "trains") -> Iterator[None]:
    """
    Keeps other commands out of a folder. Raises [`ConsistencyError`] in all processes if another command uses it; that
    command's error names this one's `activity`. Weights that a killed command did not finish are removed.
    """
    lock, refused = None, None
    if state.is_main_process:
        try:
            lock = acquire(folder, activity)
            if lock is not None:  # Without a lock, another process may be saving there.
                remove_unfinished_weights(folder)
        except ConsistencyError as error:
            refused = str(error)
    refused = broadcast_object_list([refused])[0]
    if refused is not None:
        raise ConsistencyError(refused)
    try:
        yield
    finally:
        release(lock)

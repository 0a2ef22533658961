"""Locks a folder for all processes of a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from ...errors import ConsistencyError
from ...folder_lock import acquire, release


@contextmanager
def command_lock(folder: str | Path, state: Accelerator | PartialState, activity: str = "trains") -> Iterator[None]:
    """
    Keeps other commands out of a folder. Raises [`ConsistencyError`] in all processes if another command uses it; that
    command's error names this one's `activity`.
    """
    lock, refused = None, None
    if state.is_main_process:
        try:
            lock = acquire(folder, activity)
        except ConsistencyError as error:
            refused = str(error)
    refused = broadcast_object_list([refused])[0]
    if refused is not None:
        raise ConsistencyError(refused)
    try:
        yield
    finally:
        release(lock)

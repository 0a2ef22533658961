"""Locks a folder for one command: two commands would mix their output or delete each other's files."""

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import ConsistencyError
from .files import writing


logger = logging.getLogger(__name__)

LOCK = "_in_use.lock"  # The system releases it when the process ends, even if it is killed.


class FolderLock(FileLock):
    """A lock that remembers which folders were made for it. They are removed with it if they are still empty."""

    made: Sequence[Path] = ()


@contextmanager
def locked_folder(folder: str | Path, activity: str = "writes", option: str | None = "output_dir") -> Iterator[None]:
    """
    Keeps other commands out of the folder that a command writes into. A command that fails leaves no empty folder
    behind.
    """
    lock = acquire(folder, activity, option)
    try:
        yield
    finally:
        release(lock)


def check_unused(folder: str | Path) -> None:
    """Raises [`ConsistencyError`] if another process uses a folder."""
    release(acquire(folder, "writes"))


def acquire(folder: str | Path, activity: str, option: str | None = "output_dir") -> FolderLock | None:
    """
    Acquires the lock of a folder, which is created if it does not exist. Returns None on a file system without locks.
    `activity`, such as `"trains"`, is what other processes read in their error.
    """
    made = [path for path in (Path(folder), *Path(folder).parents) if not path.exists()]
    with writing(folder, option):
        Path(folder).mkdir(parents=True, exist_ok=True)
    lock = FolderLock(Path(folder) / LOCK)
    lock.made = made
    try:
        lock.acquire(timeout=0)
    except Timeout:
        what = f"`{option}` {folder}" if option else str(folder)
        raise ConsistencyError(
            f"{what} is in use: {_holder(folder)} there. Wait until it ends, or choose another folder."
        ) from None
    except (NotImplementedError, OSError) as error:
        logger.warning(f"{folder} cannot be locked ({error}): make sure that nothing else writes there.")
        return None
    with suppress(OSError):  # The lock holds even if the disk is full.
        holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')}, {activity}"
        Path(lock.lock_file).write_text(holder)
    return lock


def release(lock: FolderLock | None) -> None:
    """Removes the lock's file while no other process can hold the lock, then releases it."""
    if lock is not None:
        with suppress(OSError):
            os.remove(lock.lock_file)
            for folder in lock.made:
                folder.rmdir()
        lock.release()


def _holder(folder: str | Path) -> str:
    try:
        return (Path(folder) / LOCK).read_text() or "another process works"
    except OSError:
        return "another process works"

"""One command at a time in a folder: two would mix what they write, or delete each other's files."""

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

LOCK = "_in_use.lock"  # The system lets go of it when its process ends, however that ends.


class FolderLock(FileLock):
    """A lock that remembers which folders were made for it: if they are still empty, they go with it."""

    made: Sequence[Path] = ()


@contextmanager
def alone_in(folder: str | Path, does: str = "writes", option: str | None = "output_dir") -> Iterator[None]:
    """
    Keeps other commands out of the folder that a command writes into. One that fails leaves no empty folder behind.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            The folder.
        does (`str`, *optional*, defaults to `"writes"`):
            What the command does there.
        option (`str`, *optional*, defaults to `"output_dir"`):
            The option that names the folder, for messages.

    Raises:
        [`ConsistencyError`]: If another process writes there.
    """
    lock = take(folder, does, option)
    try:
        yield
    finally:
        let_go(lock)


def check_unused(folder: str | Path) -> None:
    """Raises [`ConsistencyError`] if another process writes into a folder."""
    let_go(take(folder, "writes"))


def take(folder: str | Path, does: str, option: str | None = "output_dir") -> FolderLock | None:
    """
    The lock of a folder, held; None on a file system that has no locks.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            The folder, made if it is not there.
        does (`str`):
            What this process does there: `"trains"`.
        option (`str`, *optional*, defaults to `"output_dir"`):
            The option that names the folder, for messages.

    Raises:
        [`ConsistencyError`]: If another process holds it.
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
        logger.warning(f"{folder} cannot be locked ({error}): see to it that nothing else writes there.")
        return None
    with suppress(OSError):  # On a full disk it holds all the same.
        said = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')}, {does}"
        Path(lock.lock_file).write_text(said)
    return lock


def let_go(lock: FolderLock | None) -> None:
    """Gives the lock back; its file goes first, while no other process can hold it."""
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

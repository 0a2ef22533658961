"""One training in a folder at a time: two would delete and mix each other's checkpoints."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout

from ..errors import ConsistencyError


logger = get_logger(__name__)

LOCK = "_training.lock"  # The system lets go of it when its process ends, however that ends.


@contextmanager
def alone_in(folder: str, accelerator: Accelerator) -> Iterator[None]:
    """
    Keeps other trainings out of a folder.

    Args:
        folder (`str`):
            The `output_dir` of a training.
        accelerator ([`~accelerate.Accelerator`]):
            What tells the other processes of the same training.

    Raises:
        [`ConsistencyError`]: If another process trains there, in all processes.
    """
    lock, refused = None, None
    if accelerator.is_main_process:
        try:
            lock = _take(folder)
        except ConsistencyError as error:
            refused = str(error)
    refused = broadcast_object_list([refused])[0]
    if refused is not None:
        raise ConsistencyError(refused)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def check_unused(folder: str) -> None:
    """Raises [`ConsistencyError`] if a training goes on in a folder."""
    lock = _take(folder)
    if lock is not None:
        lock.release()


def _take(folder: str) -> FileLock | None:
    """The lock, held; None on a file system that has no locks."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(folder) / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConsistencyError(
            f"`output_dir` {folder} is in use: {_holder(folder)} trains there. Wait until it ends, or choose another folder."
        ) from None
    except (NotImplementedError, OSError) as error:
        logger.warning(f"{folder} cannot be locked ({error}): see to it that nothing else trains there.")
        return None
    with suppress(OSError):  # On a full disk it holds all the same.
        said = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')},"
        Path(lock.lock_file).write_text(said)
    return lock


def _holder(folder: str) -> str:
    try:
        return (Path(folder) / LOCK).read_text() or "another process"
    except OSError:
        return "another process"

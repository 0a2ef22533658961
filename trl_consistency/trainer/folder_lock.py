"""The lock of a folder, for all processes of one command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from ..errors import ConsistencyError
from ..folder_lock import let_go, take


@contextmanager
def all_alone_in(folder: str | Path, state: Accelerator | PartialState, does: str = "trains") -> Iterator[None]:
    """
    Keeps other commands out of a folder.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            The `output_dir` of a command.
        state ([`~accelerate.Accelerator`] or [`~accelerate.PartialState`]):
            What tells the other processes of the same command.
        does (`str`, *optional*, defaults to `"trains"`):
            What the command does there.

    Raises:
        [`ConsistencyError`]: If another command works there, in all processes.
    """
    lock, refused = None, None
    if state.is_main_process:
        try:
            lock = take(folder, does)
        except ConsistencyError as error:
            refused = str(error)
    refused = broadcast_object_list([refused])[0]
    if refused is not None:
        raise ConsistencyError(refused)
    try:
        yield
    finally:
        let_go(lock)

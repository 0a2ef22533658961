"""
Writes files atomically: each is written beside its target, synced to disk, and moved there in one step.

Commands write all their files through this module. A killed process leaves at most a hidden file or folder with
`.unfinished` in its name. The next process that writes into the same folder removes it.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock
from safetensors import SafetensorError

from .errors import ConsistencyError, one_line


try:
    import fcntl
except ImportError:  # On Windows, unfinished files of killed processes are not removed.
    fcntl = None  # type: ignore[assignment]


_UNFINISHED = re.compile(r"\..*\.[0-9a-f]{12}\.unfinished(\.[^.]*)?")
_OF_SAFETENSORS = re.compile(r"\.tmp[0-9A-Za-z]{6}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_swept: set[Path] = set()  # Folders where this process has removed the unfinished files of killed processes


def write_text(path: str | Path, text: str, option: str | None = None) -> None:
    """
    Writes a text file in UTF-8, whole or not at all. Its folder is created if needed. `option` names the file in
    errors.
    """
    write_bytes(path, text.encode("utf-8"), option)


def write_bytes(path: str | Path, content: bytes, option: str | None = None) -> None:
    """Like [`write_text`], for bytes."""
    with whole_file(path, "wb", option, size=len(content)) as file:
        file.write(content)


def write_by(path: str | Path, write: Callable[[str], Any], option: str | None = None) -> None:
    """
    Lets a library write a file, whole or not at all. `write` gets the path to write to, which has the suffix of
    `path`: `figure.savefig`, `dataset.to_parquet`.
    """
    with whole_file(path, "wb", option) as file:
        write(file.name)


@contextmanager
def whole_file(path: str | Path, mode: str = "w", option: str | None = None, size: int = 0) -> Iterator[IO[Any]]:
    """
    Opens a temporary file to write to, text in UTF-8 or bytes, which is moved to `path` when the block ends without an
    error.

    Any `OSError` in the block is reported as a failure to write, so read all input before the block. Links are
    followed. A file that is not regular (`/dev/stdout`) is written directly. `size` bytes must be free on the disk
    before writing starts.
    """
    encoding = None if "b" in mode else "utf-8"
    target = Path(os.path.realpath(path))
    with writing(path, option):
        if _is_device(path):
            with open(path, mode, encoding=encoding) as file:
                yield file
            return
        _check_target(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(target.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with _claimed(target, _make_file) as unfinished:
            with open(unfinished, mode, encoding=encoding) as file:
                yield file
            _sync(unfinished)
            if target.exists():
                unfinished.chmod(target.stat().st_mode & 0o777)
            os.replace(unfinished, target)
        _sync(target.parent)


@contextmanager
def whole_files(folder: str | Path, option: str | None = None) -> Iterator[Path]:
    """
    Creates a temporary folder, whose files are moved to `folder` when the block ends without an error.

    Until then, `folder` is unchanged. Each file is moved in one step, one directly after the other.
    """
    folder = Path(folder)
    with writing(folder, option):
        folder.mkdir(parents=True, exist_ok=True)
        with _claimed(folder / "files", Path.mkdir) as unfinished:
            yield unfinished
            files = [path for path in sorted(unfinished.rglob("*")) if path.is_file()]
            for path in files:
                _sync(path)
            for path in files:
                target = folder / path.relative_to(unfinished)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
            for parent in {folder / path.relative_to(unfinished).parent for path in files}:
                _sync(parent)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Creates a temporary folder, renamed to `folder`, which must not exist, when the block ends without an error."""
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(folder, Path.mkdir) as unfinished:
            yield unfinished
            for path in unfinished.rglob("*"):
                _sync(path)
            unfinished.rename(folder)
        _sync(folder.parent)


def kept_folder(name: str, make: Callable[[Path], Any], what: str, cache_dir: str | Path | None = None) -> Path:
    """
    Returns a folder of the cache (by default `trl_consistency` in `HF_HOME`), which `make` fills when it is first
    needed. A second process that needs it waits. `name` must say all that decides the content; `what` describes it in
    errors.
    """
    from huggingface_hub import constants  # slow to import, and most commands do not need it

    cache_dir = Path(cache_dir) if cache_dir is not None else Path(constants.HF_HOME) / "trl_consistency"
    folder = cache_dir / name
    try:
        if not folder.is_dir():
            cache_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(cache_dir / f".{name}.lock"):
                if not folder.is_dir():
                    with whole_folder(folder) as unfinished:
                        make(unfinished)
    except OSError as error:
        raise ConsistencyError(
            f"{what} cannot be kept in {cache_dir} ({error.strerror}). Set HF_HOME to a folder that you may write to."
        ) from None
    return folder


@contextmanager
def writing(path: str | Path, option: str | None = None) -> Iterator[None]:
    """
    Turns write errors in the block into a [`ConsistencyError`] that names `path` and its `option`. Use it also for
    blocks that write by themselves, such as one that appends to a log.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        what = f"`{option}` `{path}`" if option else str(path)
        reason = getattr(error, "strerror", None) or one_line(error)
        elsewhere = getattr(error, "filename", None)
        if elsewhere and Path(os.path.realpath(path)).parent not in Path(os.path.realpath(elsewhere)).parents:
            reason += f": {elsewhere}"
        advice = "make room, or choose" if getattr(error, "errno", None) in _NO_ROOM else "choose"
        raise ConsistencyError(
            f"{what} cannot be written ({reason}). What was there before is kept: {advice} another place, and start again."
        ) from error


def check_file(path: str | Path, option: str) -> None:
    """Raises [`ConsistencyError`] if the file `path`, which `option` names, cannot be written or has no folder."""
    target = Path(os.path.realpath(path))
    with writing(path, option):
        if not _is_device(path):
            _check_target(target)
            with _claimed(target, _make_file):
                pass


def _is_device(path: str | Path) -> bool:
    """Whether there is something else than a file or folder. The real path of `/dev/stdout` does not exist if it is a pipe."""
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not os.access(target, os.W_OK):  # `os.replace` would overwrite a read-only file.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _claimed(target: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Creates a file or folder beside `target` and locks it, so that no other process removes it as unfinished."""
    _sweep(target.parent)
    path, lock = None, None
    try:
        while path is None:
            stem = target.stem[:50]  # The length of file names is limited.
            path = target.parent / f".{stem}.{secrets.token_hex(6)}.unfinished{target.suffix}"
            make(path)
            lock = _lock(path)
            if not path.exists():  # Another process removed it before it was locked.
                if lock is not None:
                    os.close(lock)
                path = lock = None
        yield path
    finally:
        if path is not None:
            _remove(path)
        if lock is not None:
            os.close(lock)


def _make_file(path: Path) -> None:
    path.open("x").close()


def _lock(path: Path, wait: bool = True) -> int | None:
    """Returns an open descriptor that holds the lock of a file or folder, or None if it cannot be locked."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # The lock is held, or the file system has no locks.
        os.close(descriptor)
        return None
    return descriptor


def _sweep(folder: Path) -> None:
    """Removes the unfinished files of killed processes from a folder, once per process."""
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError):
        for name in os.listdir(folder):
            if _UNFINISHED.fullmatch(name) and (lock := _lock(folder / name, wait=False)) is not None:
                _remove(folder / name)
                os.close(lock)


def remove_unfinished_weights(folder: str | Path) -> None:
    """
    Removes what `safetensors` leaves in a folder when it is killed: the temporary file that it writes to. Only for
    folders where no other process saves.
    """
    with suppress(OSError):
        for path in Path(folder).iterdir():
            if _OF_SAFETENSORS.fullmatch(path.name) and path.is_file():
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(path: Path) -> None:
    """Syncs a file or folder to disk. Some file systems cannot sync a folder, which is ignored."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)

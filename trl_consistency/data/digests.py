"""Digests of whole files, remembered for large ones. Data derived from a file are reused only for the same content."""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock
from huggingface_hub import constants
from tqdm.auto import tqdm

from ..errors import ConsistencyError
from ..files import write_text
from ..json_files import object_in


DIGESTS = "digests.json"  # in the user's cache folder
LARGE = 2**20  # digests of files from this size in bytes are remembered
SHOWN = 2**30  # files from this size in bytes get a progress bar
# A file that changed this recently may change again within one tick of the file system's clock.
RACE_NS = 2 * 10**9


def file_digest(path: str | Path) -> str:
    """
    Returns the digest of a whole file. Digests of large files are remembered in the user's cache folder by path, size,
    inode, mtime and ctime, which cannot be set back.
    """
    path = Path(path).resolve()
    if path.parent.name == "blobs" and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", path.name):
        return path.name  # the Hub's cache names a file by the digest of its content
    if path.stat().st_size < LARGE:
        return _read(path)
    memory = Path(constants.HF_HOME) / "trl_consistency" / DIGESTS
    with _alone(memory):  # one process reads the file, and the others wait
        state, known = _state(path), _remembered(memory)
        if (entry := known.get(str(path))) and entry[:-1] == state:
            return entry[-1]
        digest = _read(path)
        if _state(path) == state and time.time_ns() - max(state[2:4]) > RACE_NS:
            known = {name: entry for name, entry in known.items() if Path(name).exists()}
            with suppress(ConsistencyError):  # otherwise the file is read again next time
                write_text(memory, json.dumps(known | {str(path): [*state, digest]}))
    return digest


@cache
def code_digest(libraries: tuple[str, ...]) -> str:
    """Returns a digest of the code that reads and renders rows: this folder's, and the versions of `libraries`."""
    digest = hashlib.blake2b(repr([(name, version(name)) for name in libraries]).encode(), digest_size=10)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> str:
    digest, size = hashlib.blake2b(digest_size=20), path.stat().st_size
    with (
        path.open("rb") as file,
        tqdm(total=size, desc=f"Digest of {path.name}", unit="B", unit_scale=True, disable=size < SHOWN) as bar,
    ):
        while part := file.read(2**24):
            digest.update(part)
            bar.update(len(part))
    return digest.hexdigest()


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns]


@contextmanager
def _alone(memory: Path) -> Iterator[None]:
    lock = None
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        acquired = FileLock(memory.parent / f".{DIGESTS}.lock")
        acquired.acquire()
        lock = acquired
    except OSError:
        pass  # the cache folder is not writable, so nothing is remembered
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _remembered(memory: Path) -> dict[str, list[Any]]:
    known = object_in(memory) or {}
    return {name: entry for name, entry in known.items() if isinstance(entry, list) and len(entry) == 5}

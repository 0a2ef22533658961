"""Caches the local data files that `datasets` loads by their content."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import datasets

from ..errors import ConsistencyError, one_line
from .digests import file_digest


@contextmanager
def cached_by_content(*sources: tuple[str, Any, Any]) -> Iterator[None]:
    """
    Within it, `datasets.load_dataset` caches local files by their content. By default it uses names and modification
    times, and would return the old rows of a file that was replaced with both unchanged. Each source is the `path`,
    `data_dir` and `data_files` of a data set to load.
    """
    digest = hashlib.blake2b(digest_size=10)
    files = sorted({file for source in sources for file in _local_files(*source)})
    for file in files:
        try:
            digest.update(f"{file.absolute()}\n{file_digest(file)}\n".encode())
        except OSError as error:
            raise ConsistencyError(f"{file} cannot be read: {one_line(error)}") from None
    before = datasets.config.HF_DATASETS_CACHE
    if files:
        datasets.config.HF_DATASETS_CACHE = Path(before) / "trl_consistency" / digest.hexdigest()
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


def _local_files(path: str, data_dir: Any, data_files: Any) -> Iterator[Path]:
    for folder in (path, data_dir):
        if folder and os.path.isdir(folder):
            for file in Path(folder).rglob("*"):
                is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
                if file.is_file() and not is_hidden:
                    yield file
    base = path if os.path.isdir(path) else ""
    for pattern in (os.path.join(base, part) for part in _flat([path, data_files])):
        named = [pattern] if os.path.isfile(pattern) else glob(pattern, recursive=True)
        yield from (Path(file) for file in named if os.path.isfile(file))


def _flat(patterns: Any) -> Iterable[str]:
    if isinstance(patterns, str | os.PathLike):
        return [str(patterns)]
    if isinstance(patterns, dict):
        return _flat(list(patterns.values()))
    return [pattern for part in patterns or () for pattern in _flat(part)]

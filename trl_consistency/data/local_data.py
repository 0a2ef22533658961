"""Has `datasets` cache local data files by their content, and read the texts of CSV and JSON files as they are."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape, glob
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import datasets.utils.json
import pyarrow
import pyarrow.json
from datasets.packaged_modules.csv.csv import Csv
from datasets.packaged_modules.json import json as json_builder

from ..errors import ConsistencyError, one_line
from .digests import file_digest
from .folders import data_type


_load_dataset = datasets.load_dataset


def load_as_written(path: str, **options: Any) -> Any:
    """
    Calls `datasets.load_dataset` so that texts of a CSV file such as `NA` and `null` stay texts, and those of a JSON file
    such as `1969-07-20`. By default pandas takes the former for nothing, and pyarrow the latter for times. pandas also
    rounds the numbers of a list in JSON, and of rows whose columns have several types. Metadata of the data set that say
    which texts are nothing are heeded.
    """
    of_builder = {name: options[name] for name in ("name", "data_dir", "data_files") if name in options}
    builder = datasets.load_dataset_builder(path, **of_builder)
    if isinstance(builder, Csv) and builder.config.keep_default_na and builder.config.na_values is None:
        options = {**options, "keep_default_na": False, "na_values": [""]}
    if isinstance(builder, json_builder.Json):
        json_builder.paj = _JsonReader
        for module in (json_builder, datasets.utils.json):
            module.ujson_loads, module.ujson_dumps = _loads, json.dumps
        # The default, but named, it has a cache of its own: another's may hold times.
        options = {"encoding_errors": "strict", **options}
    return _load_dataset(path, **options)


def _loads(text: str | bytes) -> Any:
    """Reads JSON. Raises `ValueError` for NaN and infinity, which JSON does not have, and which as texts stay texts."""
    try:
        return json.loads(text, parse_constant=_not_json)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


class _JsonReader:
    """Stands in for `pyarrow.json` in the JSON builder of `datasets`, and keeps texts that look like times."""

    ReadOptions = pyarrow.json.ReadOptions

    @staticmethod
    def read_json(file: BytesIO, read_options: pyarrow.json.ReadOptions) -> pyarrow.Table:
        table = pyarrow.json.read_json(file, read_options)
        schema = pyarrow.schema([field.with_type(_with_texts(field.type)) for field in table.schema])
        if schema == table.schema:
            return table
        file.seek(0)
        return pyarrow.json.read_json(file, read_options, pyarrow.json.ParseOptions(explicit_schema=schema))


def _with_texts(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Returns the type of a value in JSON with texts for the times, which JSON does not have."""
    types = pyarrow.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pyarrow.string()
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_with_texts(field.type)) for field in kind])
    return pyarrow.list_(_with_texts(kind.value_type)) if types.is_list(kind) else kind


@contextmanager
def texts_as_written() -> Iterator[None]:
    """Within it, `datasets.load_dataset`, which TRL calls for each entry of a mixture, is [`load_as_written`]."""
    datasets.load_dataset = load_as_written
    try:
        yield
    finally:
        datasets.load_dataset = _load_dataset


def builder_of(files: Mapping[str, Sequence[Path]]) -> str:
    """Returns the builder of `datasets` for the files of each split."""
    return data_type(next(iter(files.values()))[0]) or ""


def patterns_of(files: Mapping[str, Sequence[Path]]) -> dict[str, list[str]]:
    """Returns the files of each split as `datasets` takes them."""
    return {split: [escape(str(path)) for path in of_split] for split, of_split in files.items()}


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

"""Has `datasets` cache local data files by their content, and read the texts of CSV and JSON files as they are."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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
from datasets.packaged_modules.json.json import Json
from datasets.utils.file_utils import xpandas_read_csv

from ..errors import ConsistencyError, one_line
from .digests import code_digest, file_digest
from .folders import check_csv, data_type


_load_dataset = datasets.load_dataset
_mixed_paths = json_builder.find_mixed_struct_types_field_paths
_ujson_loads = datasets.utils.json.ujson_loads

# Libraries that read files
READERS = ("datasets", "pyarrow", "pandas")

# Columns that chat templates are given
VARIABLES = "chat_template_kwargs"
RENDERED = ("clean_prompt", "perturbed_prompt", "prompt", "completion", "chosen", "rejected", VARIABLES)


def load_as_written(path: str, split: str | None = None, streaming: bool = False, **options: Any) -> Any:
    """
    Does what `datasets.load_dataset` does, but reads the values of CSV and JSON files as they are. By default pandas takes
    texts of a CSV file such as `NA` for nothing, and `007` for a number, and pyarrow takes a text in JSON such as
    `1969-07-20` for a time. pandas also rounds the numbers of a list in JSON, and of rows whose columns have several
    types. Metadata of the data set that say which texts are nothing, or what the columns hold, are heeded.

    Chat templates print `tools` and the arguments of tool calls with their keys in order. Arrow would give all rows the
    first row's order: `tools` of a JSON file become JSON strings, and messages of conversations with tool calls are kept
    as JSON each. So are `chat_template_kwargs`, of which Arrow would write 1 as 1.0 beside another row's 0.5.
    """
    builder = datasets.load_dataset_builder(path, **options)
    if isinstance(builder, Json):
        # The defaults, but named, they have a cache of their own: another's may hold times.
        defaults = {"encoding_errors": "strict", "chunksize": 10 << 20}
        builder = datasets.load_dataset_builder(path, **defaults | options)
        builder.__class__ = _JsonAsWritten
        if streaming:
            return builder.as_streaming_dataset(split=split)
        builder.download_and_prepare()
        return builder.as_dataset(split=split)
    if isinstance(builder, Csv):
        if builder.config.keep_default_na and builder.config.na_values is None:
            options |= {"keep_default_na": False, "na_values": [""]}
        if builder.info.features is None:
            options["features"] = _texts(builder)
    return _load_dataset(path, split=split, streaming=streaming, **options)


def _texts(builder: Csv) -> datasets.Features | None:
    """Returns text for each column of CSV files, or None if their columns differ, which `datasets` reports."""
    headers, config = [], builder.config
    for file in (file for of_split in config.data_files.values() for file in of_split):
        if os.path.isfile(file) and (config.sep, config.quotechar) == (",", '"'):
            check_csv(file)
        try:
            headers.append(list(xpandas_read_csv(file, **config.pd_read_csv_kwargs | {"nrows": 0, "chunksize": None})))
        except (ValueError, OSError):  # `datasets` reports it
            return None
    alike = all(header == headers[0] for header in headers)
    return datasets.Features({column: datasets.Value("string") for column in headers[0]}) if alike else None


class _JsonAsWritten(Json):
    """The JSON builder of `datasets`, which has other readers while it reads."""

    def _generate_tables(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        tables = super()._generate_tables(*args, **kwargs)
        of_metadata = (self.info.features or {}).get("tools")
        while True:
            with _other_readers(tools_as_text=isinstance(of_metadata, datasets.Value | None)):
                table = next(tables, None)
            if table is None:
                return
            yield table


@contextmanager
def _other_readers(tools_as_text: bool) -> Iterator[None]:
    """Within it, `datasets` reads JSON with the functions below."""
    readers: dict[tuple[Any, str], Any] = {
        (json_builder, "paj"): _JsonReader(tools_as_text),
        (json_builder, "find_mixed_struct_types_field_paths"): partial(_json_paths, but_tools=tools_as_text),
    }
    for module in (json_builder, datasets.utils.json):
        readers |= {(module, "ujson_loads"): _loads, (module, "ujson_dumps"): json.dumps}
        readers |= {(module, "json_encode_field"): _encode_field}
    before = {of: getattr(*of) for of in readers}
    try:
        for of, reader in readers.items():
            setattr(*of, reader)
        yield
    finally:
        for of, reader in before.items():
            setattr(*of, reader)


def _json_paths(examples: list[Any], but_tools: bool) -> list[list[Any]]:
    """
    Returns the paths of values that are kept as JSON: those with several types, messages beside tool calls, and the
    variables of chat templates.
    """
    rows = [row for row in examples if isinstance(row, dict)]
    with_calls = {
        column
        for row in rows
        for column, turns in row.items()
        if isinstance(turns, list) and any(isinstance(turn, dict) and turn.get("tool_calls") for turn in turns)
    }
    # In other rows, the column may hold something else than messages.
    is_whole = {column: any(not isinstance(row.get(column), list | None) for row in rows) for column in with_calls}
    if any(isinstance(row.get(VARIABLES), dict) for row in rows):
        is_whole[VARIABLES] = True
    mixed = [path for path in _mixed_paths(examples) if path[0] not in {*is_whole, "tools" if but_tools else None}]
    return mixed + [[column] if whole else [column, 0] for column, whole in is_whole.items()]


def _encode_field(example: Any, path: list[Any]) -> Any:
    """
    Returns a value with what is at `path` in it as JSON. Other than that of `datasets`, it does not take a text such as
    `42` for a number, and raises `ValueError` for numbers in prompts that `datasets` reads otherwise than they are written.
    """
    return _encoded(example, path, is_rendered=path[:1] != [] and path[0] in RENDERED)


def _encoded(example: Any, path: list[Any], is_rendered: bool) -> Any:
    if example is None:
        return None
    if path and path[0] == 0:
        return [_encoded(item, path[1:], is_rendered) for item in example]
    if path:
        return {**example, path[0]: _encoded(example.get(path[0]), path[1:], is_rendered)}
    text = json.dumps(example)
    if is_rendered and _read_back(text) != example:
        raise ValueError(
            f"`datasets` would read a number in {text:.200} otherwise. Write such numbers as text; the `arguments` of a tool "
            "call may be JSON text as a whole"
        )
    return text


def _read_back(text: str) -> Any:
    try:
        return _ujson_loads(text)
    except ValueError:  # a number too large
        return None


def _loads(text: str | bytes) -> Any:
    """Reads JSON. Raises `ValueError` for NaN and infinity, which JSON does not have, and which as texts stay texts."""
    try:
        return json.loads(text, parse_constant=_not_json)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


class _JsonReader:
    """Stands in for `pyarrow.json` in the JSON builder of `datasets`, and keeps texts that look like times, and `tools`."""

    ReadOptions = pyarrow.json.ReadOptions

    def __init__(self, tools_as_text: bool):
        self.tools_as_text = tools_as_text

    def read_json(self, file: BytesIO, read_options: pyarrow.json.ReadOptions) -> pyarrow.Table:
        if self.tools_as_text and b'"tools"' in file.getvalue():
            file = _with_tools_as_text(file)
        table = pyarrow.json.read_json(file, read_options)
        schema = pyarrow.schema([field.with_type(_with_texts(field.type)) for field in table.schema])
        if schema == table.schema:
            return table
        file.seek(0)
        return pyarrow.json.read_json(file, read_options, pyarrow.json.ParseOptions(explicit_schema=schema))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _with_tools_as_text(file: BytesIO) -> BytesIO:
    """Returns the rows with `tools` as JSON strings. What is not JSON Lines stays for pyarrow to report."""
    try:
        rows = [json.loads(line, object_pairs_hook=_once) for line in file.getvalue().split(b"\n") if line.strip()]
    except (ValueError, RecursionError):
        return file
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("tools"), list | dict):
            row["tools"] = json.dumps(row["tools"], ensure_ascii=False)
    return BytesIO("\n".join(map(json.dumps, rows)).encode())


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
    times, and would return the old rows of a file that was replaced with both unchanged. Rows that an earlier version of
    the code below or of a library has read are not taken either. Each source is the `path`, `data_dir` and `data_files` of
    a data set to load.
    """
    digest = hashlib.blake2b(code_digest(READERS).encode(), digest_size=10)
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

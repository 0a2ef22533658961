"""Has `datasets` cache local data files by their content, and read the texts of CSV and JSON files as they are."""

import hashlib
import json
import math
import os
import re
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
import pyarrow.compute
import pyarrow.json
from datasets.packaged_modules.cache.cache import Cache
from datasets.packaged_modules.csv.csv import Csv
from datasets.packaged_modules.json import json as json_builder
from datasets.packaged_modules.json.json import Json
from datasets.packaged_modules.parquet.parquet import Parquet
from datasets.table import table_cast
from datasets.utils.file_utils import xpandas_read_csv

from ..errors import ConsistencyError, one_line
from ..json_files import no_number, unique_keys
from .digests import code_digest, file_digest
from .folders import check_csv, data_type


_load_dataset = datasets.load_dataset
_mixed_paths = json_builder.find_mixed_struct_types_field_paths
_ujson_loads = datasets.utils.json.ujson_loads
_insert_path = json_builder.insert_json_field_path

# Libraries that read files
READERS = ("datasets", "pyarrow", "pandas")

_ONE_TYPE = "a column has one type in all files and splits. Write its values in one way, or put such a row first"

# Columns that chat templates are given
VARIABLES = "chat_template_kwargs"
RENDERED = ("clean_prompt", "perturbed_prompt", "prompt", "completion", "chosen", "rejected", VARIABLES)


def load_as_written(path: str, split: str | None = None, streaming: bool = False, **options: Any) -> Any:
    """
    Does what `datasets.load_dataset` does, but reads the values of CSV and JSON files as they are. By default, pandas reads
    `NA` in a CSV file as nothing and `007` as a number, and pyarrow reads the text `1969-07-20` in JSON as a time. pandas also
    rounds numbers in lists of JSON, and in rows whose columns have several types. If the data set's metadata say which texts
    are nothing, or what the columns hold, that is heeded. Without them, a column of JSON or Parquet files has the type of its
    first rows in all files and splits. `datasets` would turn later values into that type: `007` into 7, and texts into JSON
    with quotes.

    Chat templates print `tools` and the arguments of tool calls with their keys in order. Arrow would give all rows the
    first row's order: `tools` of a JSON file become JSON strings, and messages of conversations with tool calls are kept
    as JSON each. So are `chat_template_kwargs`: Arrow would write 1 as 1.0 beside another row's 0.5.

    Where the Hub gives nothing, `datasets` takes what its cache has under that name. That may be the rows of any folder of the same
    name. Raises `FileNotFoundError` for those.
    """
    builder = datasets.load_dataset_builder(path, **options)
    if isinstance(builder, Cache) and not re.fullmatch("[0-9a-f]{40}", builder.hash or ""):  # no commit of the Hub
        raise FileNotFoundError("the Hub has no data set of that name, or cannot be reached")
    if isinstance(builder, Json | Parquet):
        if isinstance(builder, Json):
            # The defaults, but named, they have a cache of their own: another's may hold times.
            defaults = {"encoding_errors": "strict", "chunksize": 10 << 20}
            builder = datasets.load_dataset_builder(path, **defaults | options)
        builder.__class__ = _JsonAsWritten if isinstance(builder, Json) else _ParquetAsWritten
        builder.is_declared = builder.info.features is not None
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


class _OfOneType:
    """A builder of `datasets` whose columns have one type. `is_declared` says whether metadata name the types."""

    is_declared: bool
    info: Any

    def _cast_table(self, table: pyarrow.Table, **options: Any) -> pyarrow.Table:
        if self.info.features is not None and not self.is_declared:
            wanted = {field.name: field.type for field in self.info.features.arrow_schema}
            for column in table.column_names:
                if column in wanted and not _is_of_type(table[column].type, wanted[column]):
                    value = next((value.as_py() for value in table[column] if value.is_valid), None)
                    raise ConsistencyError(
                        f"`{column}` holds {value!r:.60} ({table[column].type!s:.60}), and {wanted[column]!s:.60} in the first rows of "
                        f"the data: {_ONE_TYPE}"
                    )
        try:
            return super()._cast_table(table, **options)  # type: ignore[misc]
        except (pyarrow.ArrowException, TypeError) as error:
            if self.is_declared:
                raise
            raise ConsistencyError(self._misfit(table) or one_line(error)) from None

    def _misfit(self, table: pyarrow.Table) -> str | None:
        """Says which column has values that its type in the first rows cannot hold, such as 300 beside small integers."""
        for column in table.column_names:
            if column not in self.info.features:
                continue
            wanted = datasets.Features({column: self.info.features[column]}).arrow_schema
            try:
                table_cast(table.select([column]), wanted)
            except (pyarrow.ArrowException, TypeError) as error:
                first = self.info.features.arrow_schema.field(column).type
                return (
                    f"`{column}` holds {table[column].type!s:.60}, which {first!s:.60}, its type in the first rows of the data, cannot "
                    f"hold ({one_line(error)}): {_ONE_TYPE}"
                )
        return None


class _ParquetAsWritten(_OfOneType, Parquet):
    """The Parquet builder of `datasets`."""


class _JsonAsWritten(_OfOneType, Json):
    """The JSON builder of `datasets`, which has other readers while it reads."""

    def _generate_tables(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        tables = super()._generate_tables(*args, **kwargs)
        of_metadata = (self.info.features or {}).get("tools")
        while True:
            is_first = self.info.features is None or self.is_declared
            with _other_readers(isinstance(of_metadata, datasets.Value | None), is_first):
                found = next(tables, None)
            if found is None:
                return
            if self.info.features is None:  # of a list of rows
                self.info.features = datasets.Features.from_arrow_schema(found[1].schema)
            yield found


def _is_of_type(found: pyarrow.DataType, wanted: pyarrow.DataType) -> bool:
    """Whether values of a type say the same in another one: numbers of another size do, and mappings that lack some keys."""
    types = pyarrow.types
    if types.is_null(found) or types.is_null(wanted) or found == wanted:
        return True
    if types.is_dictionary(found):
        return _is_of_type(found.value_type, wanted)
    if isinstance(
        wanted, pyarrow.BaseExtensionType
    ):  # JSON, which was text, or arrays of `datasets`, which Parquet keeps as lists
        return not isinstance(wanted, pyarrow.JsonType) or _is_text(found)
    if types.is_struct(found) and types.is_struct(wanted):
        theirs = {field.name: field.type for field in wanted}
        return all(field.name in theirs and _is_of_type(field.type, theirs[field.name]) for field in found)
    if all(map(_is_list, (found, wanted))):
        return _is_of_type(found.value_type, wanted.value_type)
    if types.is_floating(found) and types.is_floating(wanted):
        return found.bit_width <= wanted.bit_width  # a narrower one would round them
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)  # the same instants, whatever a zone is called
    return any(all(map(kind, (found, wanted))) for kind in (_is_text, _is_bytes, _is_number)) or found.id == wanted.id


def _is_text(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_string_view(kind)


def _is_number(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)


def _is_list(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)


@contextmanager
def _other_readers(tools_as_text: bool, is_first: bool) -> Iterator[None]:
    """Within it, `datasets` reads JSON with the functions below."""
    readers: dict[tuple[Any, str], Any] = {
        (json_builder, "paj"): _JsonReader(tools_as_text),
        (json_builder, "find_mixed_struct_types_field_paths"): partial(_json_paths, but_tools=tools_as_text),
        (json_builder, "insert_json_field_path"): _insert_path if is_first else _refuse_path,
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


def _refuse_path(paths: list[list[Any]], path: list[Any]) -> None:
    """Raises [`ConsistencyError`] for values of several types after the first rows, whose column is read as of one type."""
    raise ConsistencyError(
        f"`{path[0]}` holds values of several types, and of one type in the first rows of the data: {_ONE_TYPE}"
    )


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
            f"`datasets` would change a number in {text:.200}. Write such numbers as text; the `arguments` of a tool "
            "call may be JSON text as a whole"
        )
    return text


def _read_back(text: str) -> Any:
    try:
        return _ujson_loads(text)
    except ValueError:  # a number too large
        return None


def _loads(text: str | bytes) -> Any:
    """Reads JSON. Raises `ValueError` for doubled keys, and for NaN and infinity, which JSON does not have. In quotes, these are texts."""
    try:
        return json.loads(text, parse_constant=no_number, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise ValueError(str(error)) from None


class _JsonReader:
    """Stands in for `pyarrow.json` in the JSON builder of `datasets`, and keeps texts that look like times, and `tools`."""

    ReadOptions = pyarrow.json.ReadOptions

    def __init__(self, tools_as_text: bool):
        self.tools_as_text = tools_as_text

    def read_json(self, file: BytesIO, read_options: pyarrow.json.ReadOptions) -> pyarrow.Table:
        if self.tools_as_text and b'"tools"' in file.getvalue():
            file = _with_tools_as_text(file)
        table = pyarrow.json.read_json(file, read_options)
        if any(map(_has_large_floats, table.columns)):
            _check_whole_numbers(file.getvalue())
        schema = pyarrow.schema([field.with_type(_with_texts(field.type)) for field in table.schema])
        if schema == table.schema:
            return table
        file.seek(0)
        return pyarrow.json.read_json(file, read_options, pyarrow.json.ParseOptions(explicit_schema=schema))


def _is_bytes(of: pyarrow.DataType) -> bool:
    return pyarrow.types.is_binary(of) or pyarrow.types.is_large_binary(of)


def _has_large_floats(column: pyarrow.ChunkedArray) -> bool:
    """Whether a column holds numbers with a fraction so large that whole numbers among them would be rounded."""
    if pyarrow.types.is_struct(column.type):
        return any(map(_has_large_floats, column.flatten()))
    if pyarrow.types.is_list(column.type):
        return _has_large_floats(pyarrow.compute.list_flatten(column))
    if not pyarrow.types.is_floating(column.type):
        return False
    return bool(pyarrow.compute.any(pyarrow.compute.greater_equal(pyarrow.compute.abs(column), 2.0**53)).as_py())


def _check_whole_numbers(rows: bytes) -> None:
    """Raises `ValueError` for whole numbers that pyarrow reads as others."""

    def read(text: str) -> int:
        number = int(text)
        try:
            found = float(number)
        except OverflowError:
            found = math.inf
        if found != number:
            raise ValueError(f"`datasets` would read {text} as {found}. Write such numbers as text")
        return number

    for line in rows.split(b"\n"):
        if line.strip():
            try:
                json.loads(line, parse_int=read)
            except json.JSONDecodeError:
                return  # a row over several lines


def _with_tools_as_text(file: BytesIO) -> BytesIO:
    """Returns the rows with `tools` as JSON strings. What is not JSON Lines stays for pyarrow to report."""
    try:
        rows = [
            json.loads(line, object_pairs_hook=unique_keys) for line in file.getvalue().split(b"\n") if line.strip()
        ]
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


def read_as_times(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the columns whose texts all look like times. `datasets.load_dataset` reads them as times in a JSON file."""
    lines = "\n".join(map(json.dumps, rows)).encode()
    try:
        schema = pyarrow.json.read_json(BytesIO(lines), pyarrow.json.ReadOptions(block_size=len(lines) + 1)).schema
    except pyarrow.ArrowException:
        return []
    return [field.name for field in schema if _with_texts(field.type) != field.type]


@contextmanager
def texts_as_written() -> Iterator[list[Any]]:
    """
    Within it, `datasets.load_dataset`, which TRL calls for each entry of a mixture, is [`load_as_written`]. Yields a list that gets
    the data sets.
    """
    loaded: list[Any] = []

    def load(*args: Any, **options: Any) -> Any:
        loaded.append(load_as_written(*args, **options))
        return loaded[-1]

    datasets.load_dataset = load
    try:
        yield loaded
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

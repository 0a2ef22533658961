"""Streams rows of questions or prompts from a file or a data set."""

import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..data.class_names import classes_of, named_rows, with_class_names
from ..data.folders import check_data_file, check_data_folder, split_files
from ..errors import ConsistencyError, one_line
from ..json_files import strict_json


# Types of files that are always read row by row; a .json may also hold one list.
ROW_TYPES = (".jsonl", ".csv", ".parquet")


def read_rows(name: str, config: str | None = None, split: str = "train") -> Iterator[dict[str, Any]]:
    """
    Streams the rows of a JSON Lines, CSV or Parquet file, or of a data set from the Hub or a folder. A `.json` file is
    read as JSON Lines. Errors in JSON and CSV name the line.

    Files are read here and not by `datasets`, which treats a column that is null in the first rows as null in all
    rows. Classes (`datasets.ClassLabel`) come as their names.
    """
    readers = {".jsonl": _json_rows, ".json": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    extension = os.path.splitext(name)[1].lower()
    if os.path.isfile(name):
        if extension not in readers:
            raise ConsistencyError(f"{name}: a data file must end in {', '.join(readers)}.")
        if config is not None or split != "train":
            given = f"`dataset_config` {config}" if config is not None else f"`dataset_split` {split}"
            raise ConsistencyError(
                f"{given} is given, but {name} is a file, which has neither splits nor configurations. Leave it out."
            )
        return _readable(name, readers[extension](Path(name)))
    check_data_file(name)
    return _readable(name, _dataset_rows(name, config, split))


def _readable(name: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    try:
        yield from rows
    except OSError as error:
        raise ConsistencyError(f"{name} cannot be read: {one_line(error)}") from None


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = strict_json(line)
            except (ValueError, RecursionError) as error:
                hint = " Write one JSON object a line." if number == 1 else ""
                raise ConsistencyError(f"{path}, line {number}: not valid JSON ({error}).{hint}") from None
            if not isinstance(row, dict):
                raise ConsistencyError(f"{path}, line {number}: not a JSON object. Write one JSON object a line.")
            yield row


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            columns = list(reader.fieldnames or ())
            doubled = next((column for column in columns if columns.count(column) > 1), None)
            if doubled is not None:
                raise ConsistencyError(f"{path}, line 1: two columns are called `{doubled}`. Rename one of them.")
            for row in reader:
                if None in row or None in row.values():
                    raise ConsistencyError(
                        f"{path}, line {reader.line_num}: not as many fields as the header has ({len(columns)}). "
                        "Put text that holds a comma in double quotes, close every quote, and leave no field out."
                    )
                yield {column: value or None for column, value in row.items()}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConsistencyError(f"{path}, line {reader.line_num or 1}: cannot be read ({error}).") from None


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if doubled := [column for column in columns if columns.count(column) > 1]:
                raise ConsistencyError(f"{path}: two columns are called `{doubled[0]}`. Rename one of them.")
            types = {field.name: field.type for field in file.schema_arrow}
            rows = (row for batch in file.iter_batches(batch_size=1000) for row in batch.to_pylist())
            decoded = ({column: _decoded(value, types[column]) for column, value in row.items()} for row in rows)
            yield from with_class_names(decoded, _classes_in(file.schema_arrow))
    except pyarrow.ArrowException as error:
        raise ConsistencyError(f"{path} cannot be read: {one_line(error)}") from None


def _classes_in(schema: Any) -> dict[str, Any]:
    """Returns what [`classes_of`] does, from what `datasets` has written into a Parquet file."""
    written = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    features = written.get("info", {}).get("features", {})
    return {column: _feature(of) for column, of in features.items() if "names" in str(of)}


def _feature(written: Any) -> Any:
    """Returns a written feature as `datasets` has it, as far as classes go. Other versions write types that this one may not know."""
    if isinstance(written, list) and len(written) == 1:
        return SimpleNamespace(feature=_feature(written[0]))
    if not isinstance(written, dict):
        return None
    if isinstance(names := written.get("names"), list):
        return SimpleNamespace(names=names)
    inner = written.get("feature")
    if "_type" not in written:
        return {name: _feature(of) for name, of in written.items()}
    if written["_type"] == "Sequence" and isinstance(inner, dict) and "_type" not in inner:
        return {name: SimpleNamespace(feature=_feature(of)) for name, of in inner.items()}  # lists in a struct
    return SimpleNamespace(feature=_feature(inner)) if inner is not None else None


def _classes_declared(folder: str) -> dict[str, Any]:
    """Returns what [`classes_of`] does, from what the card of a data folder (README.md) declares."""
    from datasets.info import DatasetInfosDict

    try:
        infos = list(DatasetInfosDict.from_directory(folder).values())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConsistencyError(
            f"{Path(folder) / 'README.md'}: `dataset_info` cannot be read ({one_line(error)}): correct it, or remove it."
        ) from None
    return classes_of(infos[0].features) if len(infos) == 1 else {}


def _decoded(value: Any, kind: Any) -> Any:
    """Returns a value of an Arrow type, with what `datasets` keeps as JSON read as `datasets` reads it."""
    import pyarrow

    if value is None:
        return None
    if isinstance(kind, pyarrow.JsonType):
        from datasets.utils.json import ujson_loads

        return ujson_loads(value)
    if pyarrow.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return [_decoded(item, kind.value_type) for item in value]
    return value


def _dataset_rows(name: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
    from ..data.local_data import builder_of, load_as_written, patterns_of

    check_data_folder(name)
    files = split_files(name, config)
    if files and split not in files:
        raise ConsistencyError(f"`dataset_split` is `{split}`, but {name} has only: {', '.join(files)}.")
    if files and all(path.suffix in ROW_TYPES for path in files[split]):
        classes = _classes_declared(name)
        for path in files[split]:
            yield from with_class_names(read_rows(str(path)), classes)
        return
    try:
        if files:
            options = {"data_files": patterns_of({split: files[split]})}
            dataset = load_as_written(builder_of(files), **options, split=split, streaming=True)
        else:
            dataset = load_as_written(name, name=config, split=split, streaming=True)
    except (ValueError, OSError, RuntimeError) as error:
        there = "" if os.path.exists(name) else " (and no file or folder here has that name)"
        raise ConsistencyError(f"{name} cannot be loaded: {one_line(error)}{there}") from None
    yield from named_rows(dataset)

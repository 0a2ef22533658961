"""What a folder of data says of itself, looked at before `datasets` obeys it."""

import codecs
import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConsistencyError


FILE_TYPES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

# Absolute paths, addresses and the folder above
_OUTSIDE = re.compile(r"[/\\~]|[A-Za-z]:|.*(?:://|::)|(?:.*[/\\])?\.\.(?:[/\\]|$)", re.DOTALL)


def check_data_file(name: str) -> None:
    """Raises [`ConsistencyError`] for what is named like a file of data and is not there."""
    if os.path.splitext(name)[1].lower() in FILE_TYPES and not os.path.isfile(name):
        raise ConsistencyError(f"There is no file {name}.")


def check_data_folder(folder: str) -> None:
    """
    Checks that the metadata in a folder of data (its README.md) name only files in it. What is no folder is left alone.

    Args:
        folder (`str`):
            The folder.

    Raises:
        [`ConsistencyError`]: If they name others, which `datasets` would read.
    """
    if not os.path.isdir(folder):
        return
    from huggingface_hub import metadata_load

    readme, settings = Path(folder) / "README.md", Path(folder) / ".huggingface.yaml"
    for file in (readme, settings):
        if not file.is_file():
            continue
        try:
            said = metadata_load(readme) if file == readme else yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise ConsistencyError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
        for path in _paths(said.get("configs") if isinstance(said, dict) else None):
            if _OUTSIDE.match(path):
                raise ConsistencyError(
                    f"{file} names the data file {path}, which is outside the folder: it is not read. Put the file into the "
                    "folder, or name it in the recipe."
                )


def _paths(value: Any, is_path: bool = False) -> Iterator[str]:
    """The paths in the metadata: all text below `data_files` and `data_dir`."""
    if isinstance(value, str) and is_path:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, is_path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, is_path or key in ("data_files", "data_dir"))


def check_csv(path: str) -> None:
    """Raises [`ConsistencyError`] for a CSV file with two columns of one name, of which pandas would rename one."""
    if not os.path.isfile(path) or not path.endswith(".csv"):
        return
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            columns = next(csv.reader(file), [])
        except csv.Error:
            return  # pandas says what is wrong with it
    if doubled := [column for column in columns if columns.count(column) > 1]:
        raise ConsistencyError(f"{path}, line 1: two columns are called `{doubled[0]}`. Rename one of them.")


def check_json(path: str) -> None:
    """
    Raises [`ConsistencyError`] for a JSON file, or one in a folder, that does not begin with an object or a list: of a `null`
    there, pyarrow ends the process without a word.
    """
    files = [Path(path)] if os.path.isfile(path) else [of for of in Path(path).rglob("*.json*") if of.is_file()]
    for file in files:
        if file.suffix not in (".json", ".jsonl"):
            continue
        with file.open("rb") as content:
            start = content.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()
        if start.startswith(b"null"):
            raise ConsistencyError(f"{file} begins with `null`: write one JSON object a line.")

"""Checks local data files and the metadata of data folders before `datasets` reads them."""

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

# Absolute paths, URLs and parent folders
_OUTSIDE = re.compile(r"[/\\~]|[A-Za-z]:|.*(?:://|::)|(?:.*[/\\])?\.\.(?:[/\\]|$)", re.DOTALL)


def check_data_file(name: str) -> None:
    """Raises [`ConsistencyError`] if a name looks like a data file that does not exist."""
    if os.path.splitext(name)[1].lower() in FILE_TYPES and not os.path.isfile(name):
        raise ConsistencyError(f"There is no file {name}.")


def check_data_folder(folder: str) -> None:
    """
    Raises [`ConsistencyError`] if the metadata in a data folder (README.md, .huggingface.yaml) name files outside it,
    which `datasets` would read. Does nothing if `folder` is not a folder.
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
    """Yields the paths in the metadata: all text below `data_files` and `data_dir`."""
    if isinstance(value, str) and is_path:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, is_path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, is_path or key in ("data_files", "data_dir"))


def check_csv(path: str) -> None:
    """Raises [`ConsistencyError`] if two columns of a CSV file have the same name. pandas would rename one."""
    if not os.path.isfile(path) or not path.endswith(".csv"):
        return
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            columns = next(csv.reader(file), [])
        except csv.Error:
            return  # pandas reports the fault
    if doubled := [column for column in columns if columns.count(column) > 1]:
        raise ConsistencyError(f"{path}, line 1: two columns are called `{doubled[0]}`. Rename one of them.")


def check_json(path: str) -> None:
    """
    Raises [`ConsistencyError`] if a JSON file, or one in a folder, begins with `null`, which makes pyarrow end the
    process without a message.
    """
    files = [Path(path)] if os.path.isfile(path) else [of for of in Path(path).rglob("*.json*") if of.is_file()]
    for file in files:
        if file.suffix not in (".json", ".jsonl"):
            continue
        with file.open("rb") as content:
            start = content.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()
        if start.startswith(b"null"):
            raise ConsistencyError(f"{file} begins with `null`: write one JSON object a line.")

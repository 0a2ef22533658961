"""Checks local data files and the metadata of data folders before `datasets` reads them."""

import codecs
import csv
import lzma
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from ..errors import ConsistencyError, one_line


FILE_TYPES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
# Tables and archives of other types: left out in silence, their rows would be missing.
_UNREAD_TYPES = (
    *(".tsv", ".ndjson", ".jsonlines", ".arrow", ".feather", ".pq", ".geoparquet", ".gpq", ".orc", ".avro"),
    *(".xlsx", ".xls", ".ods", ".xml", ".h5", ".hdf5", ".db", ".sqlite", ".sqlite3", ".pkl", ".pickle"),
    *(".tar", ".tgz", ".7z", ".rar"),
)
# Files beside data: the metadata of `datasets`, and what `trl-consistency pairs` writes about a model's answers.
_NOT_DATA = (
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "verdicts.jsonl",
    "left_out.jsonl",
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
# A folder's only split keeps a name that begins so; any other is `train`.
_SPLIT_NAME = re.compile(r"test|val|dev|eval")

# Sub-folder for a model's answers as they are generated, so that a killed run can resume. It is not pushed.
ANSWERS = "_answers"
TRAINED_PAIRS = "_trained_pairs.npy"  # in the folder of a model: digests of the pairs that it was trained on

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
    for file, said in _metadata(folder):
        for path in _paths(said.get("configs")):
            if _OUTSIDE.match(path):
                raise ConsistencyError(
                    f"{file} names the data file {path}, which is outside the folder: it is not read. Put the file into the "
                    "folder, or name it in the recipe."
                )


def _metadata(folder: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the files of metadata in a folder, and what they say."""
    from huggingface_hub import metadata_load

    readme, settings = Path(folder) / "README.md", Path(folder) / ".huggingface.yaml"
    for file in (readme, settings):
        if not file.is_file():
            continue
        try:
            said = metadata_load(readme) if file == readme else yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise ConsistencyError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
        if isinstance(said, dict):
            yield file, said


def split_files(folder: str, config: str | None = None) -> dict[str, list[Path]]:
    """
    Returns the data files of each split of a local folder. `datasets` guesses them from parts of the names: it pools
    `test.jsonl` with `test_old.jsonl`, and leaves out files of another type, or beside files that it takes for splits.
    Here every data file counts. Its split is its name (without the shard), or the name of its sub-folder, unless that is
    `data`. A single split is `train`, unless its name begins like that of another split (`test`).

    Returns:
        `dict[str, list[Path]]`: Files by split. Empty if `folder` is no folder, has no data files, or has metadata that
        name them.

    Raises:
        [`ConsistencyError`]: If two files claim a split, a shard is missing, there are files of several types, or of one
        that is not read, or `config` names a configuration that no metadata do.
    """
    if not os.path.isdir(folder) or any(said.get("configs") for _, said in _metadata(folder)):
        return {}
    found: dict[str, list[Path]] = {}
    for path in tables_in(folder):
        inner = path.relative_to(folder)
        check_is_there(folder, path)
        if data_type(path) is None:
            is_saved = path.with_name(
                "state.json"
            ).is_file()  # by `save_to_disk`. Other rows may be beside the saved ones.
            how = " (what `load_from_disk` of `datasets` loads, with `to_parquet`)" if is_saved else ""
            raise ConsistencyError(
                f"{folder}: {inner} is not read, since data files end in {', '.join(FILE_TYPES)}. Convert it{how}, or put it "
                "elsewhere."
            )
        found.setdefault(_split_of(inner), []).append(path)
    if found and config is not None:
        raise ConsistencyError(
            f"The configuration `{config}` is asked for, but the README.md of {folder} names none. Leave it out, or name it there."
        )
    files = [path for of_split in found.values() for path in of_split]
    other = next((path for path in files if data_type(path) != data_type(files[0])), None)
    if other:
        raise ConsistencyError(
            f"{folder} has data files of several types ({files[0].name}, {other.name}): use one type, or name single files."
        )
    for split, of_split in found.items():
        _check_split(folder, split, of_split)
    if len(found) == 1 and not _SPLIT_NAME.match(next(iter(found))):
        return {"train": files}
    return found


def tables_in(folder: str | Path) -> Iterator[Path]:
    """
    Yields the files of data in a folder and its sub-folders, but for hidden ones, metadata and what our commands keep; and links to
    folders that hold such files.
    """
    for path in sorted(Path(folder).rglob("*")):
        inner = path.relative_to(folder)
        is_hidden = any(part.startswith((".", "__")) for part in inner.parts)
        is_kept = any(part.startswith("_") for part in inner.parts[:-1])  # answers that our commands keep
        if is_hidden or is_kept or path.name in _NOT_DATA:
            continue
        # Links within a linked folder are not followed: they may lead round in circles.
        if (path.is_symlink() and any(map(is_table, path.rglob("*")))) if path.is_dir() else is_table(path):
            yield path


def check_is_there(folder: str | Path, path: Path) -> None:
    """Raises [`ConsistencyError`] for data that would be missing without a word, since they are no regular file here."""
    if path.is_file():
        return
    what = "a link to nothing" if path.is_symlink() else "a pipe or a device"
    what, whole = ("a link to a folder, which is not followed", "folder") if path.is_dir() else (what, "file")
    raise ConsistencyError(f"{folder}: {path.relative_to(folder)} is {what}: copy the {whole} itself there.")


def data_type(path: Path) -> str | None:
    """Returns the builder of `datasets` that reads a file (one of [`FILE_TYPES`], also compressed), or None."""
    return FILE_TYPES.get(_uncompressed(path).suffix.lower())


def is_table(path: Path) -> bool:
    """Whether a file is data, or an archive that may hold some, of whatever type."""
    inner = _uncompressed(path)
    return data_type(path) is not None or inner.suffix.lower() in _UNREAD_TYPES or inner != path


def _uncompressed(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _COMPRESSIONS else path


def _split_of(inner: Path) -> str:
    parent = inner.parent.name
    return _SHARD.sub("", _uncompressed(inner).stem) if parent in ("", "data") else parent


def _check_split(folder: str, split: str, files: list[Path]) -> None:
    if not re.fullmatch(r"\w+(\.\w+)*", split):
        raise ConsistencyError(
            f"{files[0]}: `{split}` cannot be the name of a split. Rename it, with letters, digits and `_` alone."
        )
    shards = [_SHARD.search(_uncompressed(path).stem) for path in files]
    in_folder = files[0].parent.name == split and files[0].parent != Path(folder)
    other = next((path for path in files if path.parent != files[0].parent), None)
    if other is None and len(files) > 1 and not in_folder and not all(shards):
        other = files[1]
    if other:
        raise ConsistencyError(
            f"{files[0]} and {other} would both be the split `{split}`: remove or rename one of them."
        )
    numbers = {int(shard[1]) for shard in shards if shard}
    for total in {int(shard[2]) for shard in shards if shard}:
        if missing := sorted({*range(total)} - numbers):
            raise ConsistencyError(
                f"{folder}: the split `{split}` has {len(numbers)} of {total} files, number {missing[0]:05d} is missing. "
                "Download or copy it again."
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


def check_csv(file: str) -> None:
    """
    Raises [`ConsistencyError`] if two columns of a CSV file have the same name, or a row has not as many fields as the header.
    pandas would rename a column, leave out the first field of every row, or fill in missing ones. The file may be compressed,
    and may have any name.
    """
    csv.field_size_limit(sys.maxsize)
    try:
        _check_fields(file)
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ConsistencyError(f"{file} cannot be decompressed ({one_line(error)}). Copy or make it again.") from None


def _check_fields(file: str) -> None:
    with _open_text(file) as content:
        reader = csv.reader(content)
        try:
            columns = next(reader, [])
            if doubled := [column for column in columns if columns.count(column) > 1]:
                raise ConsistencyError(f"{file}, line 1: two columns are called `{doubled[0]}`. Rename one of them.")
            for row in reader:
                if row and len(row) != len(columns):
                    raise ConsistencyError(
                        f"{file}, line {reader.line_num}: not as many fields ({len(row)}) as the header has ({len(columns)}). "
                        "Put text that holds a comma in double quotes, close every quote, and leave no field out."
                    )
        except (csv.Error, EOFError, OSError):
            return  # pandas reports the fault


def _open_text(file: str) -> IO[str]:
    """Opens a file of text, which may be compressed."""
    options: dict[str, Any] = {"newline": "", "encoding": "utf-8-sig", "errors": "replace"}
    if Path(file).suffix not in _COMPRESSIONS:
        return open(file, **options)
    from fsspec.implementations.local import LocalFileSystem  # a tenth of a second, which `--help` need not wait for

    try:
        return LocalFileSystem().open(os.path.abspath(file), "rt", compression="infer", **options)
    except ValueError as error:  # a library for it is missing
        raise ConsistencyError(f"{file} cannot be read: {one_line(error)} Decompress it.") from None


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

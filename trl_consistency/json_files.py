"""JSON in files: values that it cannot hold, and faults in files that should hold an object."""

import json
import math
from collections.abc import Container, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from .errors import ConsistencyError, one_line


def as_json(value: Any, bytes_as_text: bool = False, column: str | None = None) -> Any:
    """
    Returns a value of a row as JSON can hold it: times as text, and null for numbers that are not finite. Raises
    [`ConsistencyError`] for bytes, unless they may be written as Python shows them. `column` is the value's, None for a
    row.
    """
    if isinstance(value, dict):
        return {key: as_json(of_key, bytes_as_text, column or key) for key, of_key in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item, bytes_as_text, column) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes) and bytes_as_text:
        return str(value)
    if isinstance(value, bytes):
        raise ConsistencyError(
            f"`{column}` holds bytes, which JSON cannot hold: leave the column out, or write it as text."
        )
    return str(value) if isinstance(value, date | time | timedelta | Decimal) else value


def strict_json(text: str | bytes) -> Any:
    """
    Reads JSON. Raises `ValueError` for a key that is given twice, where Python takes the last value. It also does so for NaN and
    numbers that are not finite, which JSON does not have.
    """
    return json.loads(text, object_pairs_hook=unique_keys, parse_constant=no_number, parse_float=_finite_number)


def as_mapping(name: str, given: Any, where: str = "") -> dict[str, Any]:
    """Returns an option that is a mapping in a recipe, and JSON on the command line, as a mapping."""
    try:
        found = strict_json(given) if isinstance(given, str) else given or {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConsistencyError(f"{where}`{name}` must be a mapping, as JSON, got {given!r}.")
    return dict(found)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a JSON object. Raises `ValueError` for a key that is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def no_number(text: str) -> float:
    """Raises `ValueError` for NaN and infinity, which JSON does not have."""
    raise ValueError(f"{text} is not a number")


def _finite_number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else no_number(text)


def own_columns(row: Mapping[str, Any], taken: Container[str]) -> dict[str, Any]:
    """Returns a user's columns. A column whose name is taken gets another one: `own_model` for `model`."""
    own = {}
    for column, value in row.items():
        name = column
        while name in taken or (name != column and name in row):
            name = f"own_{name}"
        own[name] = value
    return own


def object_in(file: Path) -> dict[str, Any] | None:
    """Returns the JSON object in a file, or None if the file is not there or does not hold one."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def fault_in(*files: Path) -> str | None:
    """Returns the fault of the first existing file that does not hold a JSON object, or None if there is none."""
    for file in files:
        if not file.exists():
            continue
        if not file.is_file():
            return f"{file.name} is a folder, a pipe or a device, and not a file."
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            return f"{file.name} is not valid JSON ({one_line(error)})."
        if not isinstance(content, dict):
            return f"{file.name} must hold a JSON object."
    return None

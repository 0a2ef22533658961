"""Finds the fault in a file that should hold a JSON object, for library errors that do not name it."""

import json
from pathlib import Path

from .errors import one_line


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

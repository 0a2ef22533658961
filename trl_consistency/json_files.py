"""What is wrong with a file that should hold a JSON object, for errors of libraries that do not say it."""

import json
from pathlib import Path

from .errors import one_line


def fault_in(*files: Path) -> str | None:
    """The first of these files that is there and holds no JSON object, and why; None if all do."""
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

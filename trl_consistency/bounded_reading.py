"""Reads files that may be larger than the memory, or without an end, as a device is."""

import errno
from pathlib import Path


def read_at_most(path: str | Path, most: int, encoding: str = "utf-8") -> str:
    """Returns a file's text, with any kind of line break as `\\n`. Raises `OSError` if it has more than `most` bytes, and reads no more of them."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")

"""Names of local files and folders without this machine's paths, for results and pages that are sent to others."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def last_name(name: str) -> str:
    """Returns the name of a local file or folder without the folders above it. Other names stay as they are."""
    return Path(os.path.abspath(name)).name if os.path.exists(name) else name


def public_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options for a card: local files and folders by their last names."""
    return {name: last_name(value) if isinstance(value, str) else value for name, value in options.items()}


def distinct_names(names: Sequence[str]) -> list[str]:
    """
    Returns the last names of local files and folders. Those that share a name also get the folders above them that tell them
    apart: `a/lora` and `b/lora`. Other names stay as they are.
    """
    parts = [Path(os.path.abspath(name)).parts if os.path.exists(name) else (name,) for name in names]

    def shown(own: tuple[str, ...]) -> str:
        others = [other for other in parts if other != own]
        for length in range(1, len(own) + 1):
            if not any(other[-length:] == own[-length:] for other in others):
                return "/".join(own[-length:])
        return "/".join(own)

    return [shown(own) for own in parts]

"""Imports public names when they are first used, so that importing a package does not import torch."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """
    Returns the `__getattr__` of a package, given its `__name__` and `__file__`. Its imports under `if TYPE_CHECKING`
    are the public names.
    """
    source = ast.parse(Path(file).read_bytes())
    imports = [node for block in source.body if isinstance(block, ast.If) for node in block.body]
    modules = {name.name: node.module for node in imports if isinstance(node, ast.ImportFrom) for name in node.names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get

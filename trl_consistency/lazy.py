"""Names of a package that are imported when they are first used, so that importing the package does not import torch."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """
    The `__getattr__` of a package.

    Args:
        package (`str`):
            Its name.
        modules (`Mapping[str, str]`):
            Module of the package, by a point and its name, to the names that live there, with spaces between them.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name], package), name)

    return find

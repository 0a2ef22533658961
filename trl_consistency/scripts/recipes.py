"""Locates the recipes."""

from importlib import resources
from pathlib import Path


def recipes_dir() -> Path:
    """Returns the recipes' folder: inside an installed package, or beside the package in a checkout."""
    installed = Path(str(resources.files("trl_consistency"))) / "recipes"
    return installed if installed.is_dir() else installed.parents[1] / "recipes"

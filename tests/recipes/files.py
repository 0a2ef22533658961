"""Writes the recipes of the table to files, and compares the two."""

import json
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from tests.recipes.estimates import Bytes, bytes_of, read_estimates
from tests.recipes.header import make_header
from tests.recipes.table import MODELS, RECIPES, Recipe


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes"
PINS = Path(__file__).with_name("pins.json")  # commits by name on the Hub
LINE = 119
COMMENTS = {"load_in_4bit": "NF4", "use_bnb_nested_quant": "double quantisation"}


def read_pins() -> dict[str, str]:
    """Returns the commits that `make pin` has written, by the model's name on the Hub."""
    return json.loads(PINS.read_text(encoding="utf-8")) if PINS.exists() else {}


def as_yaml(value: Any) -> str:
    """Returns a value as it is written in a recipe: on one line."""
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()


def _line(name: str, value: Any) -> str:
    if isinstance(value, list):
        value = f"[{', '.join(map(as_yaml, value))}]"
        line = f"{name}: {value}"
        wrapped = wrap(value, LINE, initial_indent="  ", subsequent_indent="   ", break_long_words=False)
        return line if len(line) <= LINE else "\n".join([f"{name}:", *wrapped])
    line = f"{name}: {as_yaml(value)}"
    return f"{line:<29} # {COMMENTS[name]}" if name in COMMENTS else line


def make_text(recipe: Recipe, revision: str | None = None, memory: Bytes | None = None) -> str:
    """Returns the text of a recipe's file."""
    sections = [
        "".join(f"{line}\n" for line in [f"# {comment}", *(_line(*option) for option in options.items())])
        for comment, options in recipe.sections(revision).items()
    ]
    return "\n".join([make_header(recipe, revision, memory), *sections])


def make_files(folder: Path = FOLDER, pins: dict[str, str] | None = None) -> dict[Path, str]:
    """Returns the texts of all recipes of the table by file."""
    pins = read_pins() if pins is None else pins
    estimates = read_estimates()
    return {
        folder / recipe.path: make_text(recipe, pins.get(recipe.model.hub_id), bytes_of(recipe, estimates))
        for recipe in RECIPES
    }


def surplus(folder: Path = FOLDER) -> list[Path]:
    """Returns the files where the table's own recipes are, of which the table knows nothing."""
    known = {folder / recipe.path for recipe in RECIPES}
    there = {path for model in MODELS for path in (folder / model.folder).glob("*/*")}
    return sorted(there - known)


def differing(folder: Path = FOLDER) -> list[str]:
    """Returns the names of recipes that are not what the table makes, or that it does not make."""
    made = make_files(folder)
    changed = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return [str(path.relative_to(folder)) for path in sorted([*changed, *surplus(folder)])]


def write_files(folder: Path = FOLDER) -> None:
    """Writes all recipes of the table, and removes those of old tables."""
    for path, text in make_files(folder).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in surplus(folder):
        path.unlink()

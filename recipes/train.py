# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "trl-consistency[quantization]",
#     "pillow",       # for the processors of Gemma-3-4B-it and Qwen3.5-4B
#     "torchvision",  # for that of Qwen3.5-4B
# ]
# ///
"""
Trains by a recipe, without an installation: `uv run` reads the lines above and installs what they name.

    uv run recipes/train.py qwen3-8b/bct/sycophancy_lora --dataset_name pairs.jsonl
    uv run recipes/train.py my_recipe.yaml --learning_rate 5e-6

The recipe is a file, or the name of one of those that the package brings. Flags override it, as in `trl-consistency`.
"""

import sys
from pathlib import Path

import yaml

from trl_consistency.cli import main
from trl_consistency.scripts.recipes import recipes_dir


def find(name: str) -> Path:
    """Returns the file of a recipe that is named by its path, or as one of the package's."""
    inside = recipes_dir() / f"{name.removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    found = next((path for path in (Path(name), inside) if path.is_file()), None)
    if found is None:
        sys.exit(f"error: {name} is neither a file nor a recipe of the package, such as qwen3-8b/bct/sycophancy_lora.")
    return found


def command(path: Path) -> str:
    """Returns the command that trains by a recipe."""
    options = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(options, dict) or not options.keys() & {"method", "num_generations"}:
        sys.exit(
            f"error: {path} names no `method` (BCT, ACT, ...) and no `num_generations` (OPCT). The file says how to run it."
        )
    return "consistency" if "method" in options else "on-policy-consistency"


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: train.py RECIPE [--OPTION VALUE ...]")
    recipe = find(sys.argv[1])
    main([command(recipe), "--config", str(recipe), *sys.argv[2:]])

"""The quickstart, whose recipes measure less while they train; what they train is the same."""

import yaml

from trl_consistency.scripts import quickstart
from trl_consistency.scripts.recipes import recipes_dir


RECIPES = "short_recipes"  # folder in the output folder
LESS = {
    "act": {"eval_steps": 200},
    "opct": {"eval_strategy": "no", "eval_on_start": False, "log_consistency_metrics": False},
}

_train_and_measure = quickstart._train_and_measure


def write_recipes(output_dir):
    folder = output_dir / RECIPES / "quickstart"
    folder.mkdir(parents=True)
    for recipe in quickstart.RECIPES.values():
        options = yaml.safe_load((recipes_dir() / "quickstart" / f"{recipe}.yaml").read_text())
        (folder / f"{recipe}.yaml").write_text(yaml.safe_dump(options | LESS.get(recipe, {})))


def train_and_measure(name, recipe, seed, output_dir, *args):
    """What the quickstart runs in processes of its own, with the recipes of [`write_recipes`]."""
    quickstart.recipes_dir = lambda: output_dir / RECIPES
    return _train_and_measure(name, recipe, seed, output_dir, *args)

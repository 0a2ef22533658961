"""The quickstart, whose recipes measure less while they train; what they train is the same."""

from dataclasses import replace

import yaml

from trl_consistency.scripts.quickstart_subjects import ORGANISM
from trl_consistency.scripts.recipes import recipes_dir


LESS = {
    "act": {"eval_steps": 200},
    "opct": {"eval_strategy": "no", "eval_on_start": False, "log_consistency_metrics": False},
}


def short_organism(folder):
    """Returns the organism as a subject of the quickstart, with such recipes, which are written into the folder."""
    folder.mkdir()
    recipes = {}
    for label, recipe in ORGANISM.recipes.items():
        options = yaml.safe_load((recipes_dir() / f"{recipe}.yaml").read_text())
        name = recipe.split("/")[-1]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(options | LESS.get(name, {})))
        recipes[label] = str(folder / name)
    return replace(ORGANISM, recipes=recipes)

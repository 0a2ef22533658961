"""docs/recipes.md, made of the table."""

import math
from itertools import product

from tests.recipes.files import ROOT, as_yaml
from tests.recipes.table import LEFT_OUT, METHODS, MODELS, OF_FOLDER, RECIPES, THREATS, WEIGHTS, Model, Recipe


PAGE = ROOT / "docs" / "recipes.md"

INTRODUCTION = """\
# Recipes

A recipe is a YAML file with all options of a training. Take the one that is closest to your model, and give it your pairs:

```sh
accelerate launch --config_file recipes/accelerate_configs/single_gpu.yaml \\
    -m trl_consistency.scripts.consistency --config recipes/qwen3-8b/bct/sycophancy_lora.yaml --dataset_name pairs.jsonl
```

Its name says what is in it: `recipes/<model>/<method>/<threat>_<weights>.yaml`. Its header has the full command, and says where the
settings come from, which data it needs and whether it has been run. Flags override the file.

!!! note "What has been run"
    The recipes for [the organism](quickstart.md) (`recipes/quickstart`) and for [SmolLM2 without the Hub](real_model.md)
    (`recipes/smollm2-135m-instruct/*.yaml`) have been run, unless their headers say otherwise. Those in the table below have not. Tests
    take two steps with each of them, on a tiny random model of the same architecture. Most use the model's own chat template.

## Which there are

"""

SETTINGS = """\
## Their settings

They come from papers and public code, which the headers name. None were tuned here.

"""

REST = """\
## Make it yours

- **Copy the file**, and change it. The recipes in the table are made by `python -m tests.recipes` from `tests/recipes/table.py`, and a
  test compares the two. So a change to the original file would be lost.
- **Your pairs**: [threats](threats.md) says how to make them for each threat, and [lint](lint.md) looks at them before you train.
- **Memory**: the header says how much a step takes, where [`trl-consistency estimate`](estimate.md) has computed it. Nothing was measured. `--recipe FILE`
  computes it for your changes. If the step does not fit, halve `per_device_train_batch_size` and double `gradient_accumulation_steps`. The step stays the same.
- **Several GPUs**: name another file of `recipes/accelerate_configs` ([many GPUs](distributed.md)), and divide
  `gradient_accumulation_steps` by their number.

## Revisions

A model on the Hub can change. `make pin` asks the Hub for the newest commit of each model, and writes it into the recipes as
`model_revision`. The header of each file says whether that was done.

## Without an installation

`recipes/train.py` takes any recipe of this package's two trainers. It says at its top which packages it needs, so `uv run` installs them by itself. It is also in the
installed package, and takes a recipe's name below `recipes` as well as a file of yours:

```sh
uv run recipes/train.py qwen3-8b/bct/sycophancy_lora --dataset_name pairs.jsonl
hf jobs uv run --flavor a100-large --timeout 12h --secrets HF_TOKEN recipes/train.py qwen3-8b/bct/sycophancy_lora \\
    --dataset_name YOU/pairs --push_to_hub --hub_model_id YOU/qwen3-8b-bct
```

The package is not on PyPI yet. Until it is, `uv run --find-links dist` takes the wheel that `pip wheel --no-deps -w dist .` makes, and
hosted jobs have to wait. No hosted job has been run by the authors.
"""


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, ["---"] * len(header), *rows])


def _cell(model: Model, method: str) -> str:
    of_cell = [recipe for recipe in RECIPES if (recipe.model, recipe.method) == (model, method)]
    parts = []
    for weights in dict.fromkeys(recipe.weights for recipe in of_cell):
        threats = [recipe.threat for recipe in of_cell if recipe.weights == weights]
        parts.append(f"`{weights}`" + (f" ({', '.join(threats)} only)" if set(threats) != set(THREATS) else ""))
    return ", ".join(parts) or "none"


def models() -> str:
    """Returns the table of recipes."""
    rows = [
        [f"`{model.folder}`", f"`{model.hub_id}`", *(_cell(model, method) for method in METHODS)] for model in MODELS
    ]
    threats = " and ".join(f"`{threat}`" for threat in THREATS)
    left_out = [
        f"There is no `{weights}` for `{folder}`: {reason}.\n" for (folder, weights), reason in LEFT_OUT.items()
    ]
    header = ["model", "on the Hub", *(f"`{method}`" for method in METHODS)]
    notes = f"\nEach recipe exists for {threats}, unless a cell says otherwise. `lora` and `qlora` train an adapter, the second on weights in 4 bits. `full` trains all weights.\n"
    return _table(header, rows) + notes + "".join(left_out) + "\n"


def _settings(recipe: Recipe) -> list[str]:
    options = recipe.options()
    batch, answers = math.prod(recipe.batch()), options.get("num_generations")
    return [
        METHODS[recipe.method],
        WEIGHTS[recipe.weights] if recipe.weights == "full" else "an adapter",
        as_yaml(options["learning_rate"]),
        str(options.get("lora_r", "none")),
        f"{batch // answers}, {answers} answers each" if answers else str(batch),
        str(options.get("max_completion_length", "none")),
    ]


def settings() -> str:
    """Returns the table of settings, read off the recipes of one model. Threats with the same settings share a row."""
    model = OF_FOLDER["smollm2-135m-instruct"]
    threats: dict[tuple[str, ...], list[str]] = {}
    for method, weights, threat in product(("bct", "act", "opct"), ("lora", "full"), THREATS):
        threats.setdefault(tuple(_settings(Recipe(model, method, threat, weights))), []).append(threat)
    rows = [[method, ", ".join(of_row), *others] for (method, *others), of_row in threats.items()]
    header = ["method", "threats", "trains", "learning rate", "rank", "prompts a step", "tokens an answer"]
    return _table(header, rows) + "\n"


def make_page() -> str:
    return INTRODUCTION + models() + SETTINGS + settings() + REST

"""
The memory of the recipes' steps, by `trl-consistency estimate`. `python -m tests.recipes --estimate` computes those that
`estimates.json` lacks: each takes minutes, and is written as soon as it is there.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.recipes.table import RECIPES, Recipe
from trl_consistency.files import write_text


ESTIMATES = Path(__file__).with_name("estimates.json")  # a list of setups, each with its bytes

# What decides the memory. The batch of a step does not: its micro-batches follow each other.
DECIDING = (
    *(
        "model_name_or_path",
        "dtype",
        "attn_implementation",
        "load_in_4bit",
        "use_bnb_nested_quant",
        "use_peft",
        "lora_r",
    ),
    *("lora_dropout", "lora_target_modules", "max_length", "max_completion_length", "per_device_train_batch_size"),
    *(
        "target_batch_size",
        "num_generations",
        "rollout_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "bf16",
    ),
)


HELD_IN_TRAINING = ("weights", "reference", "adapter", "optimizer", "gradients", "activations")


def setup_of(recipe: Recipe) -> dict[str, Any]:
    """Returns the options of `trl-consistency estimate` for a recipe."""
    options = recipe.options()
    return {"method": recipe.method, **{name: options[name] for name in DECIDING if name in options}}


def read_estimates() -> list[dict[str, Any]]:
    return json.loads(ESTIMATES.read_text(encoding="utf-8")) if ESTIMATES.exists() else []


class Bytes(NamedTuple):
    """The most memory of a recipe at one time, and while it trains, after its rollouts or targets were sampled."""

    most: int
    training: int | None = None


def bytes_of(recipe: Recipe, estimates: Sequence[dict[str, Any]]) -> Bytes | None:
    """Returns the estimated bytes of a recipe, or None if its present setup was not estimated."""
    setup = setup_of(recipe)
    found = (Bytes(of["bytes"], of.get("training_bytes")) for of in estimates if of["setup"] == setup)
    return next(found, None)


def estimate(recipe: Recipe) -> Bytes:
    """Computes the bytes of a recipe's step, from the model's shape."""
    from tests.recipes.shapes import SHAPES
    from trl_consistency.scripts.estimate import EstimateArguments, main

    setup = setup_of(recipe)
    make, _ = SHAPES[setup.pop("model_name_or_path")]
    methods = setup.pop("method").split("_")
    with TemporaryDirectory() as folder:
        make().save_pretrained(folder)
        memory = main(EstimateArguments(model_name_or_path=folder, method=methods, **setup))["memory"]
    training = sum(memory[name] for name in HELD_IN_TRAINING)
    return Bytes(memory["total"], training if memory["while_sampling"] else None)


def estimate_all(recipes: Sequence[Recipe] = RECIPES) -> None:
    """Computes what is missing, and prints what it cannot compute."""
    failed: list[dict[str, Any]] = []
    for recipe in recipes:
        setup, estimates = setup_of(recipe), read_estimates()
        if setup in failed or bytes_of(recipe, estimates) is not None:
            continue
        try:
            most, training = estimate(recipe)
        except Exception as error:  # an operation whose result decides about another has no shape in advance
            print(f"{recipe.path} cannot be estimated: {type(error).__name__}", flush=True)
            failed.append(setup)
            continue
        estimates.append({"setup": setup, "bytes": most} | ({"training_bytes": training} if training else {}))
        write_text(ESTIMATES, json.dumps(estimates, indent=1) + "\n")
        print(f"{recipe.path}: {estimates[-1]['bytes'] / 2**30:.1f} GiB", flush=True)

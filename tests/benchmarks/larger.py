"""
The operations of the benchmark's steps and of their rivals', in the benchmark's shape and in that of a larger model. They are
counted by the code of `trl-consistency estimate`. Nothing is measured, and no weights are made.
"""

from functools import cache
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedConfig, Qwen3ForCausalLM

from tests.benchmarks import steps
from tests.benchmarks.sizes import SIZES, Size
from tests.recipes.shapes import SHAPES
from trl_consistency.costs.operations import Segment, Shapes


LARGER = "Qwen3-4B"
METHODS = {"opct_step": "opct", "act_step": "act", "bct_step": "bct", "kl_step": "kl"}
# Products with the head: logits of each side, and the gradient of the student's states. ACT's loss reads no logits, but both sides of
# the rival compute them.
PRODUCTS_WITH_HEAD = {"opct": 3, "act": 2, "bct": 2, "kl": 3}


def larger_config() -> PreTrainedConfig:
    """Returns the shape of Qwen3-4B."""
    return SHAPES["Qwen/Qwen3-4B-Instruct-2507"][0]()


def outline(config: PreTrainedConfig, rank: int = 8) -> Any:
    """Returns a model without weights, with an adapter on all of its linear layers."""
    with torch.device("meta"):
        adapter = LoraConfig(r=rank, target_modules="all-linear", init_lora_weights=False)
        return get_peft_model(Qwen3ForCausalLM(config), adapter)


def needed(model: Any, method: str, size: Size) -> int:
    """Returns the operations that a step cannot do without."""
    return steps.needed_by_rollouts(model, size) if method == "opct" else steps.needed_by_pairs(model, size, method)


def of_rival(model: Any, method: str, size: Size) -> int:
    """
    Returns the operations of the rival's step: each row is computed whole, in all blocks. So are its logits, but for OPCT, where
    TRL's trainer computes those of the answers alone.
    """
    shapes = Shapes.of(model)
    if method == "opct":
        prompt, _, answer, generations, prompts = size.rollouts
        rows, tokens, logits = generations * prompts, prompt + answer, answer
    else:
        setup = steps.pair_setup(size, method)
        rows, tokens, logits = setup.per_device_train_batch_size, setup.max_length, setup.max_length
    segments, depth = [Segment(rows, 0, tokens)], len(shapes.blocks)
    reference = 0 if method == "bct" else shapes.forward(segments, depth, False)
    student = shapes.forward(segments, depth, True) + shapes.backward(segments, depth)
    return reference + student + 2 * rows * logits * shapes.head * PRODUCTS_WITH_HEAD[method]


def share_of_head(model: Any) -> float:
    """Returns the head's share of the weights that a token is multiplied with."""
    shapes = Shapes.of(model)
    return shapes.head / (
        shapes.head + sum(layer.inputs * layer.outputs for block in shapes.blocks for layer in block)
    )


@cache
def outlines() -> tuple[Any, Any]:
    """Returns the benchmark's model and the larger one."""
    return outline(SIZES["full"].config()), outline(larger_config())


@cache
def ratios() -> dict[str, tuple[float, float]]:
    """Returns the rival's operations over the needed ones for each row that has a floor: in the benchmark's shape, and in the larger."""
    size = SIZES["full"]
    found = {}
    for row, method in METHODS.items():
        here, larger = (of_rival(model, method, size) / needed(model, method, size) for model in outlines())
        found[row] = here, larger
    return found

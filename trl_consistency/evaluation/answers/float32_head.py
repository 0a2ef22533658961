"""Logits in float32 of a model whose head gives 16 bits: rounded, the logits of two answers are often equal."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# Rows of the head that are in float32 at the same time
CHUNK = 8192


@contextmanager
def float32_logits(model: Any, places: int) -> Iterator[None]:
    """
    Within it, a model whose head gives bfloat16 or float16, by its weights or by autocast, has logits of float32, from the states that the
    head gets. They are of the last `places` of a row, even if the model ignores `logits_to_keep`. Scales and soft caps stay the model's own.
    """
    head = model.get_output_embeddings()

    def compute(module: nn.Linear, inputs: tuple[Tensor, ...], rounded: Tensor) -> Tensor | None:
        if rounded.dtype == torch.float32:
            return None
        # An adapter's layer adds up the outputs of several.
        states = inputs[0][:, -places:] if module is head else inputs[0]
        states = states.to(module.weight.device, torch.float32)
        with torch.autocast(states.device.type, enabled=False):
            logits = torch.cat([F.linear(states, rows.float()) for rows in module.weight.split(CHUNK)], -1)
        return logits if module.bias is None else logits + module.bias.float()

    layers = [layer for layer in head.modules() if type(layer) is nn.Linear] if head is not None else []
    # Not the first factor of LoRA, which the second takes in its own dtype
    width = max((layer.out_features for layer in layers), default=0)
    with ExitStack() as hooks:
        for layer in layers:
            if layer.out_features == width:
                hooks.callback(layer.register_forward_hook(compute).remove)
        yield

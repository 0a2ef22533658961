"""Keeps what PEFT and TRL change of an adapter in passing: which of its weights are trained, and their dtype."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import is_peft_model
from peft import PeftModel
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn

from ..upstream import use_adapter


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """
    Within it, a `PeftModel` runs without its adapter. The same weights are trained within it and after it as before: PEFT
    freezes an adapter that it switches off, and makes all of its weights trainable when it switches it on again.
    """
    requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def restore() -> None:
        for parameter, required in requires_grad:
            parameter.requires_grad_(required)

    try:
        with use_adapter(model, None):
            restore()  # Under FSDP, it must not change.
            yield
    finally:
        restore()


@contextmanager
def loading_in_own_dtype(model: Any) -> Iterator[None]:
    """Within it, `load_adapter` leaves an adapter in bfloat16 or float16 in its dtype, which PEFT would change to float32."""
    if not is_peft_model(model):
        yield
        return
    model.load_adapter = partial(model.load_adapter, autocast_adapter_dtype=False)
    try:
        yield
    finally:
        del model.load_adapter


def adapter_weights(model: Any) -> list[tuple[nn.Parameter, Tensor]]:
    """Returns the trained weights of a `PeftModel`, each with its numbers before a trainer is made. Of another model, none."""
    if not isinstance(model, PeftModel):
        return []
    return [(weight, weight.data) for weight in model.parameters() if weight.requires_grad]


def restore_dtype(model: Any, given: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
    """
    Undoes what TRL's trainers do to an adapter on quantized weights. They round it to bfloat16, where AdamW's steps at learning rates
    of 1e-5 or below change few of its weights. A `given` adapter gets its numbers back, and a new one goes on in float32, as PEFT
    makes it. Its copies of whole modules, and of embeddings of tokens, get their numbers back, too.
    """
    for weight, numbers in given:
        if weight.dtype != numbers.dtype:
            weight.data = numbers.to(weight.device)
    is_quantized = getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)
    if given or not is_quantized:
        return
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            for copy in module.modules_to_save.values():
                for weight, original in zip(copy.parameters(), module.original_module.parameters(), strict=False):
                    if weight.dtype != original.dtype:
                        weight.data = original.data.clone()
        elif isinstance(module, TrainableTokensLayer):
            for name, weight in module.trainable_tokens_delta.items():
                original = module.trainable_tokens_original[name]
                if weight.dtype != original.dtype and torch.equal(weight, original.to(weight.dtype)):
                    weight.data = original.clone()
    for name, weight in model.named_parameters():
        # Copies of whole modules (`modules_to_save`) in bfloat16 stay as large as the modules.
        if weight.requires_grad and weight.dtype == torch.bfloat16 and "modules_to_save" not in name.split("."):
            weight.data = weight.data.float()

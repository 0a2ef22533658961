"""The policy's whole weights, with the adapter merged in copies: for engines that do not get the adapter alone."""

import copy
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn

from ..data.rendering import ProcessingClass
from ..errors import ConsistencyError
from ..models.checkpoint_weights import with_published_names
from ..passes.blocks import base_model


ADAPTERS = (BaseTunerLayer, AuxiliaryTrainingWrapper)


def has_adapter(model: nn.Module) -> bool:
    """Whether the model contains layers of PEFT."""
    return any(isinstance(module, ADAPTERS) for module in model.modules())


def policy_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """
    Yields names, as in published files of the model, which vLLM knows, and weights with the adapter merged. Leaves the model unchanged.

    Each adapted layer is copied, and its adapter is merged into the copy. 4-bit weights are dequantized. Only one copy
    exists at a time.
    """
    yield from with_published_names(base_model(model), _untied(model, merge=True))


def write_base(model: Any, processing_class: ProcessingClass, folder: Path) -> None:
    """Writes a checkpoint of the model without its LoRA adapter, 4-bit weights dequantized, from which vLLM can load."""
    base = base_model(model)
    tensors = with_published_names(base, chain(_untied(model, merge=False), _saved_buffers(base)))
    weights = {name: tensor.to("cpu", copy=True) for name, tensor in tensors}
    save_torch_state_dict(weights, folder)
    config = copy.deepcopy(base.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(folder)
    processing_class.save_pretrained(folder)


def _saved_buffers(base: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields what a checkpoint has beside weights, such as the factor of each block in Gemma 4."""
    for place, module in base.named_modules():
        for name, buffer in module.named_buffers(prefix=place, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name.replace(".base_layer", ""), buffer


def _untied(model: Any, merge: bool) -> Iterator[tuple[str, Tensor]]:
    base = base_model(model)
    names = {name for name, _ in base.named_parameters()}
    # Tied weights are sent once.
    tied = {name for name, _ in base.named_parameters(remove_duplicate=False)} - names
    yield from ((name, weight) for name, weight in _weights(base, merge) if name not in tied)


def _weights(module: nn.Module, merge: bool, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, ADAPTERS) and module.disable_adapters:  # within `model.disable_adapter()`
        merge = False
    if isinstance(module, ModulesToSaveWrapper):
        active = module.active_adapters if merge else []
        module = module.modules_to_save[active[0]] if active else module.original_module
    if isinstance(module, ADAPTERS):
        module = _merged_copy(module) if merge else _base_layer(module)
    if _is_4bit(module):
        module = _dequantized(module)
    for name, parameter in module.named_parameters(recurse=False):
        yield prefix + name, parameter.data
    for name, child in module.named_children():
        yield from _weights(child, merge, f"{prefix}{name}.")


def _base_layer(layer: Any) -> nn.Module:
    return layer.original_module if isinstance(layer, AuxiliaryTrainingWrapper) else layer.get_base_layer()


@torch.no_grad()
def _merged_copy(layer: Any) -> nn.Module:
    layer = copy.deepcopy(layer)
    if hasattr(layer, "unload_and_optionally_merge_module"):
        return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    if _is_4bit(layer.get_base_layer()):
        if not isinstance(layer, LoraLayer):
            raise ConsistencyError(
                f"`use_vllm` cannot send 4-bit weights under a `{type(layer).__name__}`. Use LoRA, or leave `use_vllm` out."
            )
        layer.base_layer = _dequantized(layer.base_layer)
        # PEFT's layer for 4-bit weights would quantize the merged weights again; its plain layer does not.
        LoraLinear.merge(layer)
    else:
        layer.merge()
    return layer.get_base_layer()


def _is_4bit(module: nn.Module) -> bool:
    return type(getattr(module, "weight", None)).__name__ == "Params4bit"


def _dequantized(linear: Any) -> nn.Linear:
    from bitsandbytes.functional import dequantize_4bit

    plain = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    weight = dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    plain.weight, plain.bias = nn.Parameter(weight, requires_grad=False), linear.bias
    return plain

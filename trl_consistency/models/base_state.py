"""Puts a model back as it was before an adapter."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftConfig
from torch import Tensor, nn

from ..errors import ConsistencyError, one_line
from ..generation.model_identity import model_tensors
from ..upstream import plain_tensors


# Numbers of a tensor that are digested at a time. More would need as much memory again as the largest weight.
_CHUNK = 1 << 22


@contextmanager
def restored(model: nn.Module, path: str) -> Iterator[None]:
    """
    Puts the adapter at `path` on a model within the context, and puts the model back at its end. PEFT's `unload` leaves
    what an adapter has in place of weights of its model: its biases, its `modules_to_save`, its attention.

    Raises [`ConsistencyError`] if the weights are not those of before: all that comes after would be measured on another
    model.
    """
    before = _digests(model)
    modules = [(module, type(module), _attributes(module)) for module in model.modules()]
    # A weight gets other memory (its own is kept here) or, more seldom, is written over (a copy is kept).
    values = [(weight, weight.data, weight.requires_grad) for weight in model.parameters()]
    written = {name: weight.detach().to("cpu", copy=True) for name, weight in _written(model, path)}
    try:
        yield
    finally:
        for module, kind, attributes in modules:
            module.__class__ = kind
            _set_attributes(module, attributes)
        for weight, data, requires_grad in values:
            if not weight.is_meta and weight.data_ptr() != data.data_ptr():
                weight.data = data
            weight.requires_grad_(requires_grad)
        for name, value in written.items():
            model.get_parameter(name).data.copy_(value)
    after = _digests(model)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise ConsistencyError(
            f"`adapters`: {path} changed weights of its base model, {changed[0]}{more}, and they could not be put back: what is "
            "measured after it would be wrong. Name this adapter last, or alone."
        )


def _written(model: nn.Module, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights that PEFT writes over: biases (which it finds by name), or under OLoRA those of any layer."""
    try:
        config = PeftConfig.from_pretrained(path)
    except Exception as error:  # faults in the file have no common error type
        raise ConsistencyError(f"`adapters`: {path} cannot be loaded: {one_line(error)}") from None
    is_any = getattr(config, "init_lora_weights", None) == "olora"
    has_biases = getattr(config, "bias", "none") != "none"
    for name, weight in model.named_parameters():
        if not weight.is_meta and (is_any or (has_biases and "bias" in name)):
            yield name, weight


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Returns a module's attributes. Its weights, sub-modules and hooks are in dictionaries, which are copied."""
    return {name: value.copy() if isinstance(value, dict) else value for name, value in vars(module).items()}


def _set_attributes(module: nn.Module, attributes: dict[str, Any]) -> None:
    found = vars(module)
    for name in found.keys() - attributes.keys():
        del found[name]
    for name, value in attributes.items():
        current = found.get(name)
        if isinstance(value, dict) and isinstance(current, dict):  # a hook's handle refers to the dictionary itself
            current.clear()
            current.update(value)
        else:
            found[name] = value


def _digests(model: nn.Module) -> dict[str, list[int]]:
    """Returns a digest of each weight by name, computed where the weight is. Weights on the meta device have none."""
    return {name: digest(tensor) for name, tensor in model_tensors(model) if not tensor.is_meta}


@torch.no_grad()
def digest(tensor: Tensor) -> list[int]:
    """
    Returns a digest of a tensor's bytes and their order: the sum of its 64-bit words, each times an odd number of its
    place, modulo 2^64. Any change of one word changes it.
    """
    if (parts := plain_tensors(tensor))[0] is not tensor:
        return [number for part in parts for number in digest(part)]
    octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    total = octets.numel()
    for start in range(0, octets.numel(), 8 * _CHUNK):
        part = octets[start : start + 8 * _CHUNK]
        words = nn.functional.pad(part, (0, -len(part) % 8)).view(torch.int64)
        places = torch.arange(start // 8, start // 8 + len(words), device=words.device)
        # The golden ratio's 64 bits spread the places.
        total = (total + int((words * (places * -7046029254386353131 | 1)).sum())) % 2**64
    return [total]

"""Checks that the weights of a model are finite."""

import os

import torch
from accelerate import Accelerator
from torch import nn

from ..finite import NotFiniteError, check_files, is_finite
from ..upstream import plain_tensors
from .quantization import packed_weights
from .sharding import is_sharded, shard_of


def check_base(model: nn.Module, name: str, accelerator: Accelerator | None = None) -> None:
    """
    Checks all weights of a model once, before their first use. Raises [`NotFiniteError`] if one is NaN or infinite; if
    `name` is a folder, the error names the file. `accelerator` connects the processes if each holds a shard of the
    model.
    """
    packed = packed_weights(model)
    parts = (
        (weight, packed.get(weight, plain_tensors(shard_of(tensor)))) for weight, tensor in model.named_parameters()
    )
    found = next((weight for weight, tensors in parts if not all(map(is_finite, tensors))), None)
    if _all_agree(found is None, accelerator):
        return
    if os.path.isdir(name):
        check_files(name)  # names the file
    raise NotFiniteError(
        f"{name}: the weights {found or 'of another process'} hold NaN or infinite values as they were loaded, and the files "
        "do not say why. If they were loaded in float16, they may have overflowed: set `dtype: bfloat16` or `float32`."
    )


def _all_agree(passed: bool, accelerator: Accelerator | None) -> bool:
    """Whether the check passed on all processes. Without shards, every process has the same result."""
    if accelerator is None or not is_sharded(accelerator):
        return passed
    flag = torch.tensor([passed], dtype=torch.int32, device=accelerator.device)
    return bool(accelerator.gather(flag).all())

"""Support for FSDP2 and DeepSpeed ZeRO-3, where each process holds only a shard of the model."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..upstream import DistributedBackend, fsdp2_prepare_model, prepare_deepspeed


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether each process holds only a shard of the model's weights."""
    backend = DistributedBackend(accelerator)
    return backend.is_fsdp or backend.is_zero3


def keeps_adapter_dtype(accelerator: Accelerator) -> bool:
    """Whether an adapter must stay as TRL's trainer leaves it: FSDP 1 joins weights of one dtype, and DeepSpeed trains a copy in float32."""
    return (
        accelerator.distributed_type == DistributedType.DEEPSPEED or DistributedBackend(accelerator).fsdp_version == 1
    )


def prepare_frozen(model: nn.Module, accelerator: Accelerator) -> Any:
    """Wraps a frozen model in the same way as the model in training."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return prepare_deepspeed(model, accelerator)
    if DistributedBackend(accelerator).is_fsdp:
        return fsdp2_prepare_model(accelerator, model)
    return accelerator.prepare_model(model, evaluation_mode=True)


def gathered(model: nn.Module, accelerator: Accelerator) -> AbstractContextManager:
    """Gathers the weights of a model that ZeRO-3 shards, inside the context."""
    return DistributedBackend(accelerator).gather_params(list(model.parameters()))


def shape_of(weight: Tensor) -> torch.Size:
    """Returns the shape of the whole weight, which ZeRO-3 stores in another attribute."""
    return getattr(weight, "ds_shape", weight.shape)


def shard_of(weight: Any) -> Tensor:
    """Returns this process's shard of a weight."""
    if isinstance(weight, DTensor):  # FSDP2
        return weight.to_local()
    if hasattr(weight, "ds_tensor"):  # ZeRO-3: shards of equal size, the last ones padded
        size = weight.ds_tensor.ds_numel
        start = size * torch.distributed.get_rank()
        return weight.ds_tensor.flatten()[: max(0, min(size, weight.ds_numel - start))]
    return weight

"""What FSDP2 and DeepSpeed ZeRO-3 ask of a trainer beyond plain data parallelism: no process holds the whole model."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .upstream import DistributedBackend, fsdp2_prepare_model, prepare_deepspeed


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether each process holds only a part of the model's weights."""
    backend = DistributedBackend(accelerator)
    return backend.is_fsdp or backend.is_zero3


def prepare_frozen(model: nn.Module, accelerator: Accelerator) -> Any:
    """Wraps a model that does not train as the one in training will be wrapped."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return prepare_deepspeed(model, accelerator)
    if DistributedBackend(accelerator).is_fsdp:
        return fsdp2_prepare_model(accelerator, model)
    return accelerator.prepare_model(model, evaluation_mode=True)


def gathered(model: nn.Module, accelerator: Accelerator) -> AbstractContextManager:
    """For as long as it lasts, each process has the whole weights of a model that ZeRO-3 loads in shards."""
    return DistributedBackend(accelerator).gather_params(list(model.parameters()))


def shape_of(weight: Tensor) -> torch.Size:
    """The shape of a whole weight, which ZeRO-3 keeps aside."""
    return getattr(weight, "ds_shape", weight.shape)


def shard_of(weight: Any) -> Tensor:
    """What this process holds of a weight."""
    if isinstance(weight, DTensor):  # FSDP2
        return weight.to_local()
    if hasattr(weight, "ds_tensor"):  # ZeRO-3: parts of one size, the last ones padded
        size = weight.ds_tensor.ds_numel
        start = size * torch.distributed.get_rank()
        return weight.ds_tensor.flatten()[: max(0, min(size, weight.ds_numel - start))]
    return weight

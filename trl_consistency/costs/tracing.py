"""Measures the memory that a computation on tensors without memory would need."""

from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryTrace(TorchDispatchMode):
    """
    Sums the bytes of the tensors that operations make while they are alive. `peak` is the most at one time. Parameters
    and buffers of `model` are not counted, and neither is what a kernel needs within one operation.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        held: list[Tensor] = [*model.parameters(), *model.buffers()]
        self._known = {tensor.untyped_storage()._cdata for tensor in held}
        self.now = self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        if storage._cdata in self._known:  # a view, or an operation in place
            return
        self._known.add(storage._cdata)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        finalize(storage, self._free, storage._cdata, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

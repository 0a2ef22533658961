"""
The cache of prompts from which several completions go on, with gradients into the prompts.

With gradient checkpointing, the backward pass runs each block again. So a block must find in the cache what it found at
first: a pass never changes what was there before it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, cache_utils
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)
from transformers.modeling_layers import GradientCheckpointingLayer


class _NewStates(LinearAttentionLayer):
    """
    Recurrent and convolutional states. Each update makes new tensors: transformers overwrites its own in place, and the
    backward pass needs them. One state for each row can be selected, as for keys and values.
    """

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        # What the convolution reads: the last states, and the new ones. [B, channels, T]
        if self.has_previous_state[state_idx]:
            read = torch.cat([self.conv_states[state_idx], conv_states], -1)
        else:
            size = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            self.conv_kernel_size[state_idx] = size
            read = F.pad(conv_states, (max(size - conv_states.shape[-1], 0), 0))
        self.conv_states[state_idx] = read[..., -self.conv_kernel_size[state_idx] :]
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        self.dtype, self.device = read.dtype, read.device
        return read

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states

    def batch_select_indices(self, indices: Tensor) -> None:
        for states in (self.conv_states, self.recurrent_states):
            for place, state in states.items():
                states[place] = None if state is None else state[indices]


class _NewStatesAndAttention(_NewStates, LinearAttentionAndFullAttentionLayer):
    def batch_select_indices(self, indices: Tensor) -> None:
        _NewStates.batch_select_indices(self, indices)
        DynamicLayer.batch_select_indices(self, indices)


class _NewStatesAndSlidingAttention(_NewStates, LinearAttentionAndSlidingWindowAttentionLayer):
    def batch_select_indices(self, indices: Tensor) -> None:
        _NewStates.batch_select_indices(self, indices)
        DynamicSlidingWindowLayer.batch_select_indices(self, indices)


# The layers without a cache have a class of their own since transformers 5.18, which vLLM 0.31 does not take.
NO_CACHE = getattr(cache_utils, "DummyLayer", DynamicLayer)
ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer, NO_CACHE)
RECURRENT: dict[type, type] = {
    LinearAttentionLayer: _NewStates,
    LinearAttentionAndFullAttentionLayer: _NewStatesAndAttention,
    LinearAttentionAndSlidingWindowAttentionLayer: _NewStatesAndSlidingAttention,
}


class PromptCache(DynamicCache):
    """
    The cache of a pass over prompts. `layers` stay empty, so that a block that runs again begins anew. `after` has what the
    blocks leave.
    """

    def __init__(self, config: Any):
        super().__init__(config=config)
        for layer in self.layers:
            layer.__class__ = RECURRENT.get(type(layer), type(layer))  # the same fields, other updates
        self.after = [_copied(layer) for layer in self.layers]
        self._updated: set[tuple[str, int, int]] = set()

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        return self._written("keys", layer_idx).update(key_states, value_states, *args, **kwargs)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        layer = self._written("conv", layer_idx, state_idx)
        return layer.update_conv_state(conv_states, state_idx, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Any:
        layer = self._written("recurrent", layer_idx, state_idx)
        return layer.update_recurrent_state(recurrent_states, state_idx, **kwargs)

    def _written(self, kind: str, layer_idx: int, state_idx: int = 0) -> Any:
        """Returns the layer that an update writes to: at first the one in `after`, and a copy if the block runs again."""
        update = kind, layer_idx, state_idx
        if update in self._updated:
            return _copied(self.layers[layer_idx])
        self._updated.add(update)
        return self.after[layer_idx]

    def of_rows(self, rows: Tensor) -> DynamicCache:
        """Returns a cache that can grow, in which each row goes on from the prompt `rows` names, (B,)."""
        cache = copy(self)
        cache.__class__ = DynamicCache
        cache.layers = self.after
        cache.batch_select_indices(rows)
        return cache


class CompletionCache(DynamicCache):
    """
    The cache of a pass over completions, each of which goes on from the prompt that `rows`, (B,), names. Keys and values are
    selected inside the blocks: with gradient checkpointing, only those of the prompts are kept.
    """

    def __init__(self, config: Any, prompts: PromptCache, rows: Tensor):
        super().__init__(config=config)
        self.rows = rows
        self.layers = [_copied(layer) for layer in prompts.after]
        for layer in self.layers:
            if isinstance(layer, _NewStates):
                _NewStates.batch_select_indices(layer, rows)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        layer = _copied(self.layers[layer_idx])
        DynamicLayer.batch_select_indices(layer, self.rows)
        return layer.update(key_states, value_states, *args, **kwargs)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        return _copied(self.layers[layer_idx]).update_conv_state(conv_states, state_idx, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Any:
        return recurrent_states


def _copied(layer: Any) -> Any:
    """Returns a copy with the same tensors."""
    copied = copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(copied, name, dict(value))
    return copied


@contextmanager
def cache_under_checkpointing(blocks: nn.ModuleList) -> Iterator[None]:
    """Within it, blocks that are checkpointed keep the cache, which they would drop: a block may run twice with ours."""
    layers: list[Any] = [part for part in blocks.modules() if isinstance(part, GradientCheckpointingLayer)]
    for layer in layers:
        layer._can_checkpoint_with_cache = True
    try:
        yield
    finally:
        for layer in layers:
            del layer._can_checkpoint_with_cache


def cached_kinds(config: Any) -> set[type]:
    """Returns the kinds of layers that a model caches."""
    return {type(layer) for layer in DynamicCache(config=config).layers}

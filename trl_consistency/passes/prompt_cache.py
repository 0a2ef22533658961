"""The cache of prompts from which several completions go on, with gradients into the prompts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, cache_utils
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)


class _NewStates(LinearAttentionLayer):
    """
    Recurrent and convolutional states, of which each update makes new tensors. Those of transformers are overwritten in
    place, and the backward pass needs them. One state for each row can be selected, as for keys and values.
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


def make_prompt_cache(config: Any) -> DynamicCache:
    """Returns an empty cache for a model's prompts."""
    cache = DynamicCache(config=config)
    for layer in cache.layers:
        layer.__class__ = RECURRENT.get(type(layer), type(layer))  # the same fields, other updates
    return cache


def cached_kinds(config: Any) -> set[type]:
    """Returns the kinds of layers that a model caches."""
    return {type(layer) for layer in DynamicCache(config=config).layers}

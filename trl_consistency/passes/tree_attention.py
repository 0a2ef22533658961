"""
FlexAttention under the tree mask of packed rows. It skips blocks of 128 x 128 entries in which no token sees another.

Models keep SDPA as their attention. The layers get a `BlockMask` in place of a dense mask, and `attend_to_tree`, which
stands in for SDPA, chooses by the type of the mask. So a block that gradient checkpointing runs again attends as before.
transformers' own `flex_attention` is not used: it is compiled again for new lengths, and takes no tensors for a mask.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .blocks import head_widths_of
from .packing import BLOCK, Batch, Packing


logger = logging.getLogger(__name__)


def attend_to_tree(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """SDPA, or on GPUs FlexAttention if the mask is a `BlockMask`. Tensors are [rows, heads, length, width]."""
    if isinstance(attention_mask, BlockMask):
        rows, _, length, _ = query.shape
        # FlexAttention has no dropout, and less than a block is a trial of an architecture, not worth a compilation.
        if query.is_cuda and not dropout and length >= BLOCK:
            return compiled_flex(query, key, value, attention_mask, scaling).transpose(1, 2), None
        attention_mask = create_mask(attention_mask.mask_mod, rows, 1, length, length, device=query.device)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
    )


def compiled_flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None) -> Tensor:
    """Returns the attention's output, [rows, heads, length, width]. Its backward pass needs a GPU."""
    kind = query.device.type
    # Autocast casts SDPA's arguments.
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    states = [tensor.to(dtype) for tensor in (query, key, value)]
    for tensor in states:  # else a length that equals their heads by chance would be compiled in
        torch._dynamo.mark_static(tensor, [1, 3])
    with torch.autocast(kind, enabled=False):
        output: Tensor = _compiled()(
            *states, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
    return output


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)  # once for all lengths


def register() -> None:
    """Makes models with SDPA attend by `attend_to_tree`."""
    # What else stands there (`flat.attend_by_sequence`) hands block masks on.
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
        AttentionInterface.register("sdpa", attend_to_tree)


def refused_kernels(config: Any, dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns why the kernels for a model's shape cannot be used on a GPU, if so. The first call compiles them."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    reasons = (_refused_kernels(heads, kv_heads, width, dtype, device) for width in sorted({*head_widths_of(config)}))
    return next(filter(None, reasons), None)


@cache
def _refused_kernels(heads: int, kv_heads: int, width: int, dtype: torch.dtype, device: torch.device) -> str | None:
    if torch._dynamo.config.disable:
        return "torch.compile is switched off"
    ones = torch.ones(3, 2 * BLOCK, dtype=torch.long, device=device)
    packing = Packing.of(Batch.of(ones, ones, ones[:, :50], ones[:, :50]))
    shapes = [(1, number, packing.end.shape[1], width) for number in (heads, kv_heads, kv_heads, heads)]
    own = torch.Generator(device).manual_seed(0)  # the global one belongs to the training
    query, key, value, towards = (
        torch.randn(shape, generator=own, dtype=dtype, device=device, requires_grad=True) for shape in shapes
    )
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            of_flex = compiled_flex(query, key, value, packing.block_mask(None), None)
            of_sdpa = F.scaled_dot_product_attention(query, key, value, packing.mask(None), enable_gqa=True)
            results = [
                torch.cat([output, *torch.autograd.grad(output, (query, key, value), towards)], 1).detach().float()
                for output in (of_flex, of_sdpa)
            ]
    except Exception as error:  # the compiler and the driver may raise anything
        reason = f"{type(error).__name__}: {error}"
    else:
        difference = float((results[0] - results[1]).norm() / results[1].norm())
        if difference <= 5e-2:
            return None
        reason = f"its results are off by {difference:.0%}"
    logger.warning("FlexAttention is not used for packed rollouts (%s). Their mask is dense, which is slower.", reason)
    return reason

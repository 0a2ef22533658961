"""
Captures a model's intermediate states at chosen positions: the residual stream, MLP states, attention maps.

`output_hidden_states=True` would be simpler, but it is wrong here. Its last entry is *after* the final norm, it keeps
every block at every position, and the plain forward computes logits at every position. This module runs only the text
backbone, stops after the last block needed, and keeps only the chosen positions.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..errors import ConsistencyError
from ..generation.options import evaluating
from ..upstream import accepted, has_own_code, maybe_gather_lm_head_ctx
from .blocks import base_model, decoder_of, find_blocks, resolve_layers
from .last_block import last_block_only_at
from .learned_prompt import has_learned_prompt, run_after_learned_prompt
from .load_balancing import Routing, routing_of


# The largest quadratic attention mask, in entries: one row of 8192 tokens, 64 MB with SDPA, 256 MB with eager.
MAX_MASK_ENTRIES = 1 << 26

# Models whose logits [`head_of`] has compared with its own, which costs a pass over a few tokens
_WITH_CHECKED_HEAD: WeakSet[nn.Module] = WeakSet()
# Models whose own forward has been compared with their backbone's, as above
_WITH_CHECKED_BACKBONE: WeakSet[nn.Module] = WeakSet()


@dataclass
class States:
    """
    States that [`capture_states`] kept at N positions: one tensor per chosen block that has such a state, in ascending
    order of the blocks.
    """

    # The residual stream after the block, [N, hidden]
    residual: list[Tensor] = field(default_factory=list)
    # The MLP's post-activation state, which is the input of its down projection, [N, intermediate]
    mlp: list[Tensor] = field(default_factory=list)
    # The position's row of each attention map, [N, heads, T], over all T columns of the batch, with padding
    attention: list[Tensor] = field(default_factory=list)
    # The head's input: the residual stream after the final norm, at every position, [B, T, hidden]
    last_hidden: Tensor | None = None
    # Router logits of the blocks that ran, for every token
    routing: Routing | None = None


@dataclass
class Head:
    """
    The language modelling head. Its logits are `z = scale * (hidden @ weightᵀ + bias)`, or with a `softcap`
    `softcap * tanh(z / softcap)`.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of the head's input. Under ZeRO-3, call this inside [`gathered`]."""
        logits = self.scale * nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def detached(self) -> "Head":
        """Returns a head that keeps its weights when the model's are swapped for others."""
        if hasattr(self.weight, "ds_id"):
            return self  # Weights are not swapped under ZeRO-3, which can gather only the parameter itself.
        bias = None if self.bias is None else self.bias.detach()
        return Head(self.weight.detach(), bias, self.scale, self.softcap)

    def gathered(self) -> AbstractContextManager:
        """Gathers the head's shards under ZeRO-3, inside the context. (TRL's divergence gathers them by itself.)"""
        return maybe_gather_lm_head_ctx(self.weight, self.bias)


def capture_states(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    rows: Tensor,
    positions: Tensor,
    layers: list[int] | None = None,
    *,
    residual: bool = True,
    mlp: bool = False,
    attention: bool = False,
    need_last_hidden: bool = False,
    need_routing: bool = False,
    inputs: dict[str, Any] | None = None,
    read: Tensor | None = None,
) -> States:
    """
    Runs the text backbone and keeps the states of some blocks (in the form that [`resolve_layers`] takes) at some
    positions: position `positions[n]` of row `rows[n]`, both (N,).

    Blocks without an MLP, or without attention, have no entry in these two lists. The backbone runs up to the last block
    with a wanted state, or completely if `need_last_hidden`. Without gradients, only the chosen positions are kept.
    With gradients, autograd keeps what it needs. Rows (B, T) may be padded on either side: position ids follow
    `attention_mask`, so a row has the same states alone and in any batch. In training mode, attention rows include the
    model's attention dropout, which a training with `attct` turns off. `inputs` go to the backbone in place of the mask
    and its position ids. `read`, as [`last_block_only_at`] takes it, says at which positions the last block that runs
    is used. The model must not be wrapped; for a wrapped model, call this inside the wrapper's forward.
    """
    options = {"output_router_logits": True} if need_routing else {}
    if has_learned_prompt(model) and not (residual or mlp or attention):
        backbone = find_blocks(cast(Any, model).get_base_model()).backbone
        hidden, routing = run_after_learned_prompt(model, backbone, input_ids, attention_mask, options)
        return States(last_hidden=hidden, routing=routing if need_routing else None)
    blocks = find_blocks(model)
    _check_backbone(base_model(model))
    layers = resolve_layers(layers, len(blocks))
    down_projections = blocks.down_projections(layers) if mlp else {}
    attentions = blocks.attentions(layers) if attention else {}
    wanted = [*(layers if residual else []), *down_projections, *attentions]
    depth = len(blocks) if need_last_hidden else max(wanted, default=layers[-1]) + 1
    with_grad = torch.is_grad_enabled()
    if with_grad:
        _refuse_reentrant_checkpointing(blocks.modules[:depth])

    def select(state: Tensor) -> Tensor:
        # [B, T, hidden] -> [N, hidden]; attention maps [B, heads, T, T] -> [N, heads, T]
        if state.dim() == 2:
            state = state.unflatten(0, input_ids.shape)  # some mixtures give a shared expert the tokens in one row
        return state[rows, positions] if state.dim() == 3 else state[rows, :, positions]

    def into(states: list[Tensor], index: int = 0, dims: tuple[int, ...] = (3,)) -> Callable[..., None]:
        def hook(module: nn.Module, *seen: Any) -> None:
            # A pre-hook gets the module's inputs last, a forward hook its output.
            state = state_in(module, seen[-1], index, dims)
            # Under gradient checkpointing, this hook may run inside the checkpoint, and the backward pass recomputes
            # the block without it. So with gradients it must not compute anything.
            states.append(state if with_grad else select(state))

        return hook

    states = States()
    with ExitStack() as hooks:
        if residual:
            for layer in layers:
                hooks.callback(blocks.modules[layer].register_forward_hook(into(states.residual)).remove)
        for module in down_projections.values():
            hooks.callback(module.register_forward_pre_hook(into(states.mlp, dims=(2, 3))).remove)
        for module in attentions.values():
            hooks.callback(module.register_forward_hook(into(states.attention, index=1, dims=(4,))).remove)
        if inputs is None:
            mask = needed_mask(blocks.backbone, attention_mask)
            # The default position ids would count left padding.
            position_ids = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
            inputs = {"attention_mask": mask, "position_ids": position_ids}
        if down_projections or need_routing:
            read = None  # their states are kept at all positions
        with blocks.shortened(depth), last_block_only_at(blocks, read, input_ids.shape):
            output = blocks.backbone(input_ids=input_ids, use_cache=False, **inputs, **options)

    expected = len(layers) if residual else 0, len(down_projections), len(attentions)
    for number, seen in zip(expected, (states.residual, states.mlp, states.attention), strict=True):
        if len(seen) != number:
            raise ConsistencyError(
                f"{number} blocks have {len(seen)} states to compare: a kernel computes them without calling the "
                "modules. Leave `use_kernels` and `use_liger_kernel` out, or compare something else."
            )
    if with_grad:
        for seen in (states.residual, states.mlp, states.attention):
            seen[:] = map(select, seen)
    if need_last_hidden:
        states.last_hidden = output.last_hidden_state
    if need_routing:
        states.routing = routing_of(output, attention_mask)
    return states


def state_in(module: nn.Module, seen: Any, index: int = 0, dims: tuple[int, ...] = (3,)) -> Tensor:
    """Returns the state in what a hook of a module saw, which is a tensor or a tuple of them."""
    state = seen if isinstance(seen, Tensor) else seen[index]
    if state is None or state.dim() not in dims:
        raise ConsistencyError(
            f"`{type(module).__name__}` has no state of a known shape to compare. Use another model, or compare answers only (`method` bct or "
            "kl, without `log_consistency_metrics`)."
        )
    return state


def needed_mask(model: Any, attention_mask: Tensor) -> Tensor | None:
    """
    Returns a mask `[B, T]`, or None if SDPA's quadratic form of it would be large and all padding is on the right,
    where causal attention never reaches it.
    """
    rows, length = attention_mask.shape
    if rows * length**2 <= MAX_MASK_ENTRIES or model.config.get_text_config()._attn_implementation != "sdpa":
        return attention_mask
    is_on_the_right = bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all())
    return None if is_on_the_right else attention_mask


def head_of(model: nn.Module) -> Head:
    """
    Returns the head of a model that is not wrapped. If the adapter has a trained copy of the head, this is the copy
    that is active now. Raises [`ConsistencyError`] if the model computes its logits in another way. The first call for
    a model runs it, so for a wrapped model, call this inside the wrapper's forward.
    """
    base: Any = base_model(model)
    projection = base.get_output_embeddings()
    if projection is None:
        raise ConsistencyError(
            f"`{type(base).__name__}` has no language modelling head. Load the model with one (`...ForCausalLM`)."
        )
    _check_backbone(base)
    unchecked = None if base in _WITH_CHECKED_HEAD else _own_logits(base)
    if isinstance(projection, FSDPModule):
        projection.unshard()  # FSDP gathers a module when it is called, and the head's weights are only read.
    head = _read_head(base, projection)
    if unchecked is not None:
        _check_head(base, head, *unchecked)
        _WITH_CHECKED_HEAD.add(base)
    return head


def _read_head(base: Any, projection: Any) -> Head:
    config = base.config.get_text_config()
    # The factor has several names. Granite and MiniCPM3 divide by `logits_scaling`; HyperCLOVA X multiplies by it.
    factors = [getattr(config, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")]
    divisor = getattr(config, "logits_scaling", None)
    if divisor is not None:
        factors.append(divisor if config.model_type == "hyperclovax" else 1 / divisor)
    return Head(
        weight=projection.weight,
        bias=getattr(projection, "bias", None),
        scale=next((factor for factor in factors if factor is not None), 1.0),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


@torch.no_grad()
def _own_logits(base: Any) -> tuple[Tensor, Tensor]:
    """Returns the head's input and the model's own logits on a few tokens."""
    seen: list[Any] = []
    hook = decoder_of(base).register_forward_hook(lambda module, args, output: seen.append(output[0]))
    try:
        output = _own_forward(base, _few_tokens(base))
    finally:
        hook.remove()
    return seen[-1], output.logits


def _few_tokens(base: Any) -> Tensor:
    return torch.arange(1, 9, device=next(base.parameters()).device)[None] % base.config.get_text_config().vocab_size


def _own_forward(base: Any, ids: Tensor) -> Any:
    """
    Runs a model's own forward. Not `base(...)`: its hooks already run, around the forward in which this is called. Nor `base.forward`:
    in a copy of a prepared model, this may be the original's.
    """
    options = _options(ids) | {"use_cache": False}
    return type(base).forward(base, input_ids=ids, **accepted(type(base).forward, options))


def _options(ids: Tensor) -> dict[str, Any]:
    return {
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1], device=ids.device)[None],
    }


@torch.no_grad()
def _check_backbone(base: Any) -> None:
    """
    Raises [`ConsistencyError`] if a model's own forward has its backbone read something else than the tokens, such as embeddings that it
    changes. Tried once for each model with code of its own.
    """
    if base in _WITH_CHECKED_BACKBONE or not has_own_code(base):
        return
    backbone, ids = decoder_of(base), _few_tokens(base)
    seen: list[Any] = []
    try:
        signature(type(base).forward).bind(base, input_ids=ids)
    except TypeError:  # it needs more than tokens
        return
    hook = backbone.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    try:
        with evaluating(base):
            _own_forward(base, ids)
            backbone(input_ids=ids, use_cache=False, **_options(ids))
    finally:
        hook.remove()
    own, alone = seen[-2].float(), seen[-1].float()  # The head reads the last pass of several.
    if own.shape != alone.shape or (own.isfinite().all() and (own - alone).norm() > 1e-2 * own.norm()):
        raise ConsistencyError(
            f"The `forward` of `{type(base).__name__}` has its text backbone read something else than the tokens, so that a loss on the backbone's "
            "states would be that of another model. Use a model whose `forward` gives it the tokens alone."
        )
    _WITH_CHECKED_BACKBONE.add(base)


@torch.no_grad()
def _check_head(base: Any, head: Head, hidden: Tensor, own: Tensor) -> None:
    """Raises [`ConsistencyError`] if the model's `own` logits are not those of `head`."""
    with head.gathered():  # The head may be on another device than the last block.
        logits = head.logits(hidden.to(head.weight.device)).to(own.device)
    known = logits.isfinite()  # NaN of the weights themselves is reported later
    largest = logits[known].abs().max() if known.any() else 0.0
    tolerance = max(4 * torch.finfo(logits.dtype).eps, 1e-3) * largest
    # A token that the model forbids has a logit of -inf.
    if logits.shape != own.shape or (known & ~((logits - own).abs() <= tolerance)).any():
        raise ConsistencyError(
            f"`{type(base).__name__}` computes its logits in another way than from its head with the known scales and soft "
            "caps, so that a loss on logits would be wrong. Use another model, or an objective on states (`method: act`)."
        )


def _refuse_reentrant_checkpointing(blocks: nn.ModuleList) -> None:
    if any(block.training and is_reentrant(block) for block in blocks):
        raise ConsistencyError(
            "Reentrant gradient checkpointing runs the blocks without gradients, so that no objective on their "
            'states can train them. Set `gradient_checkpointing_kwargs={"use_reentrant": false}`.'
        )


def is_reentrant(block: Any) -> bool:
    """Whether a block is checkpointed in the reentrant way, which runs it without gradients at first."""
    checkpoint = getattr(block, "_gradient_checkpointing_func", None)
    is_on = getattr(block, "gradient_checkpointing", False) and isinstance(checkpoint, partial)
    # torch's own default is reentrant
    return is_on and cast(partial, checkpoint).keywords.get("use_reentrant", True) is not False

"""
What each method's step does with the device's memory, in the order of the trainers, on tensors without memory.

It calls what the trainers call, but for what depends on the values of tensors: rows are all as long as `max_length`
says, and where positions of tokens are looked up, they are known here.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from trl.kernels import ChunkedLogProbFunction
from trl.kernels.chunked_divergence import TOKEN_CHUNK_SIZE, VOCAB_CHUNK_SIZE

from ..generation.options import evaluating
from ..objectives.activation import squared_distance
from ..objectives.attention import attention_divergence
from ..objectives.divergence import generalized_divergence, shared_head_divergence
from ..objectives.mlp import mlp_distance
from ..passes.blocks import base_model, find_blocks, resolve_layers
from ..passes.capture import States, capture_states
from ..passes.packing import Batch, Packing
from ..passes.prefix_sharing import PrefixSharing
from ..passes.prefix_strategies import TAKES_MASK, run_prompts
from ..passes.prompt_cache import RECURRENT, cached_kinds
from ..upstream import use_adapter
from .setup import Setup, needs_mask


class KnownBatch(Batch):
    """A batch whose rows are known to be full, without reading its tensors."""

    packing: Packing
    mask_entries = 0

    @property
    def rollouts(self) -> Tensor:
        return torch.ones(len(self.prompt_ids), dtype=torch.long)

    def needed_mask(self, model: Any, attention_mask: Tensor) -> Tensor | None:
        return attention_mask if needs_mask(*attention_mask.shape) else None

    def packed(self) -> Packing:
        return self.packing


def make_loss(setup: Setup) -> Callable[[nn.Module], Tensor]:
    """Returns the function from a model without memory to the loss of a micro-batch."""
    if setup.is_opct:
        batches = {side: _rollouts(setup) for side in ("clean", "perturbed")}
        return lambda model: _rollout_loss(model, setup, batches)
    return lambda model: _pair_loss(model, setup)


def _pair_loss(model: nn.Module, setup: Setup) -> Tensor:
    if not setup.with_reference:
        return _cross_entropy(model, setup, _answers(setup, _run(model, setup).last_hidden))
    with _reference(model):
        clean = _run(model, setup)
        reference = _answers(setup, clean.last_hidden) if setup.answer else None
        clean.last_hidden = None
    perturbed = _run(model, setup)
    student = _answers(setup, perturbed.last_hidden) if setup.answer else None
    perturbed.last_hidden = None
    losses = _state_losses(setup, perturbed, clean)
    if student is not None and "bct" in setup.method:
        losses.append(_cross_entropy(model, setup, student.float()))
    if student is not None and reference is not None and "kl" in setup.method:
        losses.append(_divergence(model, setup, student, reference))
    return torch.stack(losses).sum()


def _state_losses(setup: Setup, perturbed: States, clean: States) -> list[Tensor]:
    """Returns the losses of the objectives that compare states inside the blocks."""
    length, span = setup.prompt, setup.per_device_train_batch_size * setup.prompt

    def pairs(kind: str, part: slice) -> list[tuple[Tensor, Tensor]]:
        both = zip(getattr(perturbed, kind), getattr(clean, kind), strict=True)
        return [(student[part], reference[part]) for student, reference in both]

    losses = []
    start = 0
    if "act" in setup.method:
        start = span  # the states at the shared content follow those at the end of the prompts
        of_act = slice(0, span)
        losses.append(torch.stack([squared_distance(*pair) for pair in pairs("residual", of_act)]).mean())
    of_content = slice(start, start + span)
    if "mlpct" in setup.method:
        losses.append(torch.stack([mlp_distance(*pair) for pair in pairs("mlp", of_content)]).mean())
    if "attct" in setup.method:
        divergences = []
        for row in range(setup.per_device_train_batch_size):
            of_row = slice(start + row * length, start + (row + 1) * length)
            for both in pairs("attention", of_row):
                p, q = (maps[:, :, :length].transpose(0, 1) for maps in both)
                divergences.append(attention_divergence(p, q)[0])
        losses.append(torch.stack(divergences).mean())
    return losses


def _run(model: nn.Module, setup: Setup) -> States:
    """Runs one side of the pairs, and keeps what the methods compare, at all tokens of the prompts."""
    rows, length = setup.per_device_train_batch_size, setup.max_length
    ids = torch.zeros(rows, length, dtype=torch.long)
    mask = torch.ones_like(ids) if needs_mask(rows, length) else None
    inputs = {"attention_mask": mask, "position_ids": None if mask is None else mask.cumsum(-1) - 1}
    kinds = {"residual": "act" in setup.method, "mlp": "mlpct" in setup.method, "attention": "attct" in setup.method}
    layers = resolve_layers(list(setup.layers or []) or None, len(find_blocks(model))) if any(kinds.values()) else [-1]
    # All kinds are kept at all spans: the end of the prompts for `act`, their shared content for the others.
    spans = kinds["residual"] + (kinds["mlp"] or kinds["attention"])
    of_rows, positions = torch.zeros(2, spans * rows * setup.prompt, dtype=torch.long)
    # Without states of prompts to compare, the last block runs whole at answers alone.
    read = None if spans else torch.zeros(rows * setup.answer, dtype=torch.long)
    return capture_states(
        model,
        ids,
        ids,
        of_rows,
        positions,
        layers,
        **kinds,
        need_last_hidden=bool(setup.answer),
        inputs=inputs,
        read=read,
    )


def _answers(setup: Setup, hidden: Tensor | None) -> Tensor:
    """Returns a copy of the states that predict answers, as the trainers select them."""
    assert hidden is not None
    return hidden[:, setup.prompt - 1 : -1].flatten(0, 1).clone()


# The rollouts' method


def _rollouts(setup: Setup) -> KnownBatch:
    """Returns a batch of rollouts with real tensors, whose packed form must be read."""
    prompts, rows = setup.num_prompts, setup.per_device_train_batch_size
    prompt_ids = torch.zeros(prompts, setup.prompt, dtype=torch.long)
    completion_ids = torch.zeros(rows, setup.answer, dtype=torch.long)
    of_rows = torch.arange(rows) % prompts
    masks = torch.ones_like(prompt_ids), torch.ones_like(completion_ids)
    batch = KnownBatch(prompt_ids, masks[0], of_rows, completion_ids, masks[1])
    batch.packing = Packing.of(batch)
    return batch


def _without_memory(batch: KnownBatch) -> KnownBatch:
    """Returns the batch for the tensors of the context, and its packed form."""

    def fake(tensors: Iterable[Tensor]) -> list[Tensor]:
        return [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]

    *ids, packing = vars(batch).values()
    found = KnownBatch(*fake(ids))
    found.packing = Packing(*fake(vars(packing).values()))
    return found


def _sharing(model: nn.Module, setup: Setup) -> PrefixSharing:
    """Returns the way in which rollouts share prompts, by the architecture alone: nothing is tried."""
    sharing = PrefixSharing(setup.share_prefix)
    backbone: Any = find_blocks(model).backbone
    sharing.refused = {}
    if cached_kinds(backbone.config) & RECURRENT.keys() or backbone.config._attn_implementation not in TAKES_MASK:
        sharing.refused["packed"] = "recurrent layers, or an attention without masks"
    return sharing


def _rollout_loss(model: nn.Module, setup: Setup, batches: dict[str, KnownBatch]) -> Tensor:
    sharing, blocks = _sharing(model, setup), find_blocks(model)
    with _reference(model):
        reference = sharing.run(blocks, _without_memory(batches["clean"])).hidden.flatten(0, 1).clone()
    student = sharing.run(blocks, _without_memory(batches["perturbed"])).hidden.flatten(0, 1).clone()
    return _divergence(model, setup, student, reference)


@torch.no_grad()
def generate(model: nn.Module, setup: Setup) -> int:
    """Does what sampling the last token of rollouts or targets does. Returns the bytes of their keys, values and states."""
    rows = setup.sampled_at_once
    prompts = -(-rows // setup.rollouts_per_prompt) if setup.share_prefix else rows
    blocks = find_blocks(model)
    backbone: Any = blocks.backbone
    prompt_ids = torch.zeros(prompts, setup.prompt, dtype=torch.long)
    with evaluating(model):
        of_prompts, _ = run_prompts(blocks, prompt_ids, torch.ones_like(prompt_ids), {})
        cache = of_prompts.of_rows(torch.zeros(rows, dtype=torch.long))
        for layer in cache.layers:
            _lengthen(layer, setup.max_length - 1)
        held = sum(_bytes_of(layer) for layer in cache.layers)
        ids = torch.zeros(rows, 1, dtype=torch.long)
        hidden = backbone(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
        head: Any = base_model(model).get_output_embeddings()
        torch.multinomial((head(hidden[:, -1]).float() / 1.0).softmax(-1), 1)
    return held


def _lengthen(layer: Any, tokens: int) -> None:
    """Gives a layer of the cache, which holds the prompts, the keys and values of the rollouts too."""
    keys = getattr(layer, "keys", None)
    if not isinstance(keys, Tensor) or keys.dim() != 4:
        return  # a state, which does not grow
    window = getattr(layer, "sliding_window", None)
    tokens = tokens if window is None else min(tokens, window - 1)
    for name in ("keys", "values"):
        held = getattr(layer, name)
        setattr(layer, name, held.new_empty(*held.shape[:2], tokens, held.shape[3]))


def _bytes_of(layer: Any) -> int:
    tensors = [value for value in vars(layer).values() if isinstance(value, Tensor)]
    for value in vars(layer).values():
        tensors += [part for part in value.values() if isinstance(part, Tensor)] if isinstance(value, dict) else []
    return sum(tensor.nbytes for tensor in tensors)


# The reference, and the head


def head_loss(model: nn.Module, setup: Setup, hidden: Tensor) -> Tensor:
    """Returns the loss of the states of a batch, (B, T, H), by the head alone."""
    states = _answers(setup, hidden)
    losses = []
    if "bct" in setup.method:
        losses.append(_cross_entropy(model, setup, states.float() if setup.with_reference else states))
    if {"kl", "opct"} & {*setup.method}:
        losses.append(_divergence(model, setup, states, states.detach()))
    return torch.stack(losses).sum()


@contextmanager
def _reference(model: Any) -> Iterator[None]:
    """The reference's pass: no gradients, no dropout, the adapter off."""
    adapter_off = use_adapter(model, None) if hasattr(model, "peft_config") else nullcontext()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.no_grad(), evaluating(model), adapter_off:
        yield
    for parameter in trained:  # PEFT's context leaves others trainable
        parameter.requires_grad_(True)


def _cross_entropy(model: nn.Module, setup: Setup, tokens: Tensor) -> Tensor:
    """The loss of `SFTTrainer`, or of `bct` beside others, in float32, on the states that predict answers."""
    head: Any = base_model(model).get_output_embeddings()
    if not setup.use_cpu:
        return _FusedHead.apply(tokens, head.weight, 1, tokens.dtype)
    labels = torch.zeros(len(tokens), dtype=torch.long)
    outputs = () if setup.with_reference else ("log_probs", "entropy", "is_top1")
    # Memory that no tile touches is not taken on a CPU.
    chunk = min(VOCAB_CHUNK_SIZE, len(head.weight))
    log_probs, *_ = ChunkedLogProbFunction.apply(
        tokens, head.weight, head.bias, labels, 1.0, chunk, None, 1.0, outputs
    )
    return log_probs.mean()


def _divergence(model: nn.Module, setup: Setup, student: Tensor, reference: Tensor) -> Tensor:
    head: Any = base_model(model).get_output_embeddings()
    if not setup.use_cpu:
        return _FusedHead.apply(student, head.weight, 2, torch.float32)
    beta = 1.0 if setup.is_opct else 0.0
    if head.bias is None and not head.weight.requires_grad:
        return shared_head_divergence(student, reference, head.weight, beta)[0].mean()
    return generalized_divergence(student, head.weight, head.bias, reference, head.weight, head.bias, beta)[0].mean()


class _FusedHead(torch.autograd.Function):
    """Takes the memory that TRL's fused kernels take on GPUs: `tiles` of logits, then gradients in float32."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, tiles: int, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.tiles, ctx.dtype = tiles, dtype
        _tiles(hidden, tiles, dtype)
        return hidden.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight = ctx.saved_tensors
        held = _tiles(hidden, ctx.tiles, ctx.dtype)
        of_weight = torch.zeros(weight.shape, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        of_hidden = torch.zeros(hidden.shape, dtype=torch.float32)
        del held
        return of_hidden.to(hidden.dtype), None if of_weight is None else of_weight.to(weight.dtype), None, None


def _tiles(hidden: Tensor, tiles: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty(min(len(hidden), TOKEN_CHUNK_SIZE), VOCAB_CHUNK_SIZE, dtype=dtype) for _ in range(tiles)]

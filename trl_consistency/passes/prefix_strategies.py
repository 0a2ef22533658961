"""
The three strategies of [`~trl_consistency.passes.prefix_sharing.PrefixSharing`], and a test of which ones a model supports.
Each takes a batch and returns the states [B, C, hidden] and the routing. `options` go to the backbone: they ask for the
routing, if anything, and routers count what all tokens are sent to, so that nothing is left out then. `prompt_states`
are states of the prompts to keep.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from ..rope import rope_of_length
from .blocks import Blocks
from .last_block import last_block_only_at
from .load_balancing import Routing, joined, routing_of
from .packing import Batch, Packing
from .prompt_cache import (
    ATTENTION,
    RECURRENT,
    CompletionCache,
    PromptCache,
    cache_under_checkpointing,
    cached_kinds,
)
from .prompt_states import PassStates, PromptStates
from .tree_attention import register


# Attention implementations that take a mask [B, 1, T, T]
TAKES_MASK = ("sdpa", "eager")


def run_plain(
    blocks: Blocks, batch: Batch, options: dict[str, Any], prompt_states: PromptStates | None = None
) -> tuple[Tensor, Routing | None]:
    backbone: Any = blocks.backbone
    input_ids = torch.cat([batch.prompt_ids[batch.rows], batch.completion_ids[:, :-1]], 1)
    mask = torch.cat([batch.prompt_mask[batch.rows], batch.completion_mask[:, :-1]], 1)
    # With all padding on the right, long rows do not need a mask.
    order = mask.argsort(dim=1, descending=True, stable=True)
    input_ids, mask = input_ids.gather(1, order), mask.gather(1, order)
    last = batch.prompt_mask.sum(1)[batch.rows, None] - 1  # of the prompt
    states = last + torch.arange(batch.completion_ids.shape[1], device=last.device)
    starts = torch.arange(len(mask), device=mask.device)[:, None] * mask.shape[1]
    kept = None
    if prompt_states is not None:
        kept = prompt_states.of_pass(starts[prompt_states.rows, 0] + prompt_states.positions)
    with _reading(blocks, (starts + states).flatten(), mask.shape, options, kept):
        output = backbone(
            input_ids=input_ids, attention_mask=batch.needed_mask(backbone, mask), use_cache=False, **options
        )
    return output.last_hidden_state.take_along_dim(states[..., None], 1), routing_of(output, mask)


@contextmanager
def _reading(
    blocks: Blocks, read: Tensor, shape: torch.Size, options: dict[str, Any], kept: PassStates | None
) -> Iterator[None]:
    """Within it, a pass computes the last block only where something reads it, and keeps the states of prompts."""
    with ExitStack() as stack:
        if kept is not None:
            read = torch.cat([read, kept.places]).unique()
            stack.enter_context(kept.kept(blocks))
        stack.enter_context(last_block_only_at(blocks, None if options else read, shape))
        yield


def run_prompts(
    blocks: Blocks, prompt_ids: Tensor, prompt_mask: Tensor, options: dict[str, Any], kept: PassStates | None = None
) -> tuple[PromptCache, Any]:
    """Returns keys, values and states of all prompt tokens but the last, and the backbone's output, which means nothing."""
    backbone: Any = blocks.backbone
    cache = PromptCache(backbone.config)
    # Nothing reads it, but not every kernel takes an empty batch.
    first = torch.zeros(1, dtype=torch.long, device=prompt_ids.device)
    with _reading(blocks, first, prompt_ids[:, :-1].shape, options, kept):
        output = backbone(
            input_ids=prompt_ids[:, :-1],
            attention_mask=prompt_mask[:, :-1],
            position_ids=_positions(prompt_mask)[:, :-1],
            past_key_values=cache,
            use_cache=False,  # see `run_cache`
            **options,
        )
    return cache, output


def run_cache(
    blocks: Blocks, batch: Batch, options: dict[str, Any], prompt_states: PromptStates | None = None
) -> tuple[Tensor, Routing | None]:
    backbone: Any = blocks.backbone
    # A prompt's last token runs with the completions, so that the prompts' output of the last block is unused.
    last_ids, last_mask, last_position = (
        part[batch.rows, -1:] for part in (batch.prompt_ids, batch.prompt_mask, _positions(batch.prompt_mask))
    )
    input_ids = torch.cat([last_ids, batch.completion_ids[:, :-1]], 1)
    mask = torch.cat([last_mask, batch.completion_mask[:, :-1]], 1)
    if input_ids.shape[1] == 1 and cached_kinds(backbone.config) & RECURRENT.keys():
        # Recurrent layers take a single token for a step of `generate`. That step has no backward pass.
        input_ids, mask = F.pad(input_ids, (0, 1)), F.pad(mask, (0, 1))
    in_prompts = at_ends = None
    if prompt_states is not None:
        in_prompts, at_ends = _of_both_passes(batch, prompt_states, input_ids.shape[1])
    with cache_under_checkpointing(blocks.modules), ExitStack() as stack:
        prompts, of_prompts = run_prompts(blocks, batch.prompt_ids, batch.prompt_mask, options, in_prompts)
        if at_ends is not None:
            stack.enter_context(at_ends.kept(blocks))
        output = backbone(
            input_ids=input_ids,
            attention_mask=torch.cat([batch.prompt_mask[batch.rows, :-1], mask], 1),
            position_ids=last_position + mask.cumsum(-1) - 1,
            past_key_values=CompletionCache(backbone.config, prompts, batch.rows),
            use_cache=False,  # the cache is used all the same, and transformers does not say that it is switched off
            **options,
        )
    counts = batch.prompt_mask[:, :-1] * batch.rollouts[:, None]
    routing = joined([routing_of(of_prompts, counts), routing_of(output, mask)])
    return output.last_hidden_state[:, : batch.completion_ids.shape[1]], routing


def _of_both_passes(batch: Batch, wanted: PromptStates, columns: int) -> tuple[PassStates, PassStates]:
    """
    Returns what the cache strategy keeps of its pass over the prompts, and of the pass after it, whose rows of `columns` tokens
    begin with the last token of a prompt.
    """
    prompts, width = batch.rows[wanted.rows], batch.prompt_ids.shape[1]
    lengths = batch.prompt_mask.sum(1)[prompts]
    is_end = wanted.positions == lengths - 1
    earlier, ends = (~is_end).nonzero()[:, 0], is_end.nonzero()[:, 0]
    # The prompts are padded on the left.
    places = prompts * (width - 1) + width - lengths + wanted.positions
    return wanted.of_pass(places[earlier], earlier), wanted.of_pass((wanted.rows * columns)[ends], ends)


def run_packed(
    blocks: Blocks,
    batch: Batch,
    packing: Packing,
    options: dict[str, Any],
    flex: bool = False,
    prompt_states: PromptStates | None = None,
) -> tuple[Tensor, Routing | None]:
    backbone: Any = blocks.backbone
    tokens = torch.cat([batch.prompt_ids.flatten(), batch.completion_ids.flatten()])
    windows = windows_of(backbone.config)
    if flex:
        register()
        packing = packing.in_one_row()  # FlexAttention skips what one prompt would see of another
    masks: Any = {window: (packing.block_mask if flex else packing.mask)(window) for window in set(windows)}
    if backbone.config._attn_implementation == "eager":
        # Eager attention adds the mask to the scores.
        dtype = backbone.get_input_embeddings().weight.dtype
        lowest = torch.finfo(dtype).min
        masks = {
            window: torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest) for window, seen in masks.items()
        }
    # With equal windows, every architecture accepts one mask, but only some accept a mask per type.
    mask: Any = masks[windows[0]]
    if len(masks) > 1:
        mask = {kind: masks[window] for kind, window in zip(backbone.config.layer_types, windows, strict=False)}
    kept = None
    if prompt_states is not None:
        rows, positions = prompt_states.rows, prompt_states.positions
        lengths = batch.prompt_mask.sum(1)[batch.rows[rows]]
        # The state that predicts the first token of a completion is that of its prompt's last token.
        kept = prompt_states.of_pass(packing.states[rows, 0] - (lengths - 1) + positions)
    with _reading(blocks, packing.read, packing.source.shape, options, kept):
        output = backbone(
            input_ids=tokens[packing.source],
            attention_mask=mask,
            position_ids=packing.position,
            use_cache=False,
            **options,
        )
    in_prompt = torch.where(packing.branch == 0, batch.rollouts[packing.prompt], 1)
    routing = routing_of(output, torch.where(packing.prompt < 0, 0, in_prompt))
    return output.last_hidden_state.flatten(0, 1)[packing.states], routing


def _positions(mask: Tensor) -> Tensor:
    # The default position ids would count left padding.
    return (mask.cumsum(-1) - 1).clamp(min=0)


def windows_of(config: Any) -> list[int | None]:
    """Returns the attention window of each block, `None` for full attention."""
    windows = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=config).layers]
    types = getattr(config.get_text_config(), "layer_types", None)
    if types is None:
        return windows
    # A block that takes keys and values of an earlier one caches nothing. Its window is that of its type.
    of_types = {kind: window for kind, window in zip(types, windows, strict=False) if window is not None}
    return [of_types.get(kind) for kind in types]


@contextmanager
def dropout_off(backbone: nn.Module) -> Iterator[None]:
    # Not `eval()`: in evaluation mode, bitsandbytes repacks 4-bit weights in place on some CPUs.
    modules = [
        module
        for module in backbone.modules()
        if module.training and not type(module).__module__.startswith("bitsandbytes")
    ]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module in modules:
            module.training = True


def _run_twice(blocks: Blocks, batch: Batch) -> tuple[Tensor, Routing | None]:
    """Runs the cache strategy as gradient checkpointing does: each block keeps the cache, and runs again on the same inputs."""

    def twice(function: Callable[..., Any], *args: Any) -> Any:
        function(*args)
        return function(*args)

    modules = [
        blocks.backbone,
        *(part for part in blocks.modules.modules() if hasattr(part, "gradient_checkpointing")),
    ]
    settings = {"training": True, "gradient_checkpointing": True, "_gradient_checkpointing_func": twice}
    before = [{name: vars(module)[name] for name in settings if name in vars(module)} for module in modules]
    try:
        for module in modules:
            vars(module).update(settings)
        return run_cache(blocks, batch, {})
    finally:
        for module, own in zip(modules, before, strict=True):
            for name in settings:
                del vars(module)[name]
            vars(module).update(own)


def takes_blocks(backbone: Any) -> bool:
    """Whether the packed strategy may use FlexAttention: on GPUs, in place of SDPA."""
    return next(backbone.parameters()).device.type == "cuda" and backbone.config._attn_implementation == "sdpa"


def refused_strategies(blocks: Blocks) -> dict[str, str]:
    """Returns the strategies that fail or give other states than the plain strategy, with reasons."""
    backbone: Any = blocks.backbone
    name, attention = type(backbone).__name__, backbone.config._attn_implementation
    kinds = cached_kinds(backbone.config)
    if not kinds <= {*ATTENTION, *RECURRENT}:
        reason = f"`{name}` caches {', '.join(sorted(kind.__name__ for kind in kinds - {*ATTENTION, *RECURRENT}))}"
        return {"cache": reason, "checkpointed cache": reason, "packed": reason}

    device = next(backbone.parameters()).device
    # Long enough to detect a wrong position in half precision
    lengths = torch.tensor([[16, 20], [9, 11], [16, 1], [16, 20]], device=device)  # of prompt and completion
    columns = torch.arange(20, device=device)
    prompt_mask = (columns[:16] >= 16 - lengths[:, :1]).long()
    completion_mask = (columns < lengths[:, 1:]).long()
    completion_ids = 1 + torch.arange(80, device=device).view(4, 20)
    vocabulary = backbone.config.get_text_config().vocab_size
    prompt_ids = (81 + columns[:16]).expand(4, -1)
    batch = Batch.of(prompt_ids % vocabulary, prompt_mask, completion_ids % vocabulary, completion_mask)
    refused: dict[str, str] = {}
    if rope_type := rope_of_length(backbone.config):
        # The trial's rows may be too short to show it.
        refused["cache"] = f"the positions of `{name}` depend on the length of a pass (`rope_type` {rope_type})"
        refused["checkpointed cache"] = refused["cache"]
    if kinds & RECURRENT.keys():
        refused["packed"] = f"`{name}` has recurrent layers, which would carry one completion's state into the next"
    elif "local" in getattr(backbone.config, "attention_layers", ()):
        # GPT-Neo. The trial's rows are shorter than its window.
        refused["packed"] = f"`{name}` has a window of its own, which counts tokens of a row and not of a text"
    elif "chunked_attention" in (getattr(backbone.config, "layer_types", None) or ()):
        # Llama 4. The trial's rows are shorter than its chunks.
        refused["packed"] = f"`{name}` attends within chunks of a row, and not of a text"
    with torch.no_grad(), dropout_off(backbone):
        expected = run_plain(blocks, batch, {})[0][completion_mask.bool()].float()
        half = torch.is_autocast_enabled(device.type) or next(backbone.parameters()).dtype != torch.float32
        runs: dict[str, Callable[[], Any]] = {
            "cache": lambda: run_cache(blocks, batch, {}),
            "checkpointed cache": lambda: _run_twice(blocks, batch),
            "packed": lambda: run_packed(blocks, batch, Packing.of(batch), {}),
        }
        if takes_blocks(backbone):
            runs["flex"] = lambda: run_packed(blocks, batch, Packing.of(batch), {}, flex=True)
        for strategy, run in runs.items():  # In one order in all processes: they may share out the weights.
            if strategy in refused:
                continue
            if strategy == "packed" and attention not in TAKES_MASK:
                refused[strategy] = f"`{attention}` attention does not accept a tree mask"
                continue
            try:
                hidden, _ = run()
            except Exception as error:  # an unknown architecture may raise anything
                refused[strategy] = (
                    f"`{name}` does not run on the {strategy} strategy ({type(error).__name__}: {error})"
                )
                continue
            difference = (hidden[completion_mask.bool()].float() - expected).norm() / expected.norm()
            if not difference <= (5e-2 if half else 1e-3):
                refused[strategy] = f"`{name}` gives other states on the {strategy} strategy (off by {difference:.0%})"
    return refused

"""
Computes the hidden states that predict rollouts' tokens, with each distinct prompt computed once.

G rollouts of r tokens after a prompt of w tokens cost G·(w + r) tokens separately and w + G·r here. There are two
strategies:

- *cache*: the prompts run once, their keys and values are repeated for the rollouts (with gradients), and the
  completions run after them. With gradient checkpointing, both passes run twice.
- *packed*: one row holds a prompt and all its completions. The attention mask is a tree: a completion attends to its
  prompt and to itself, and its positions continue those of the prompt. The mask is dense, so it is quadratic, except for
  long rows on GPUs, where FlexAttention skips the blocks of it that are empty. It is preferred with gradient
  checkpointing, because it is a single pass.

If neither is possible, each row runs separately (*plain*), and the reason is returned.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from ..generation.options import penalized, without_router_loss
from .blocks import Blocks, find_blocks
from .capture import MAX_MASK_ENTRIES, is_reentrant
from .load_balancing import Routing
from .packing import Batch, Packing, distinct_rows
from .prefix_strategies import (
    TAKES_MASK,
    refused_strategies,
    run_cache,
    run_packed,
    run_plain,
    run_prompts,
    takes_blocks,
)
from .prompt_states import PromptStates
from .tree_attention import refused_kernels


# Tokens of a packed row from which FlexAttention is used on GPUs. On an H100, it made the step of a 4B model no faster at up
# to 4,096 tokens, and 1.28 times as fast at 8,192 (docs/benchmarks.md).
FLEX_TOKENS = 8000


@dataclass
class CompletionStates:
    """Result of [`PrefixSharing`]."""

    hidden: Tensor  # [B, C, hidden], the head's input that predicts each token; at padding finite, but meaningless
    strategy: str  # "cache", "packed" or "plain"
    reason: str | None  # why no faster strategy was taken
    routing: Routing | None = None  # of the tokens that ran, if requested
    prompts: list[Tensor] = field(default_factory=list)  # the residual stream at tokens of prompts, if requested


class PrefixSharing:
    """
    Computes last hidden states of completions, each distinct prompt once, or each row separately without `share`.

    The first call tests both strategies on a few tokens. A strategy is not used if its states differ from the plain ones;
    `refused` then has the reason. `use_cache` allows the cache strategy. It runs the backbone twice per call, and the
    other strategies once; with sharded parameters, every process must run it equally often. `max_mask_entries` limits the
    number of packed or padded rows times their squared length, where the mask is dense. Packed rows of at least
    `flex_tokens` do not need a dense mask on GPUs; `None` gives them one.
    """

    def __init__(
        self,
        share: bool = True,
        use_cache: bool = True,
        max_mask_entries: int = MAX_MASK_ENTRIES,
        flex_tokens: int | None = FLEX_TOKENS,
    ):
        self.share, self.use_cache, self.max_mask_entries = share, use_cache, max_mask_entries
        self.flex_tokens = flex_tokens
        self.refused: dict[str, str] | None = None

    def __call__(
        self,
        model: nn.Module,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        need_routing: bool = False,
        prompt_states: PromptStates | None = None,
    ) -> CompletionStates:
        """
        Computes the states that predict the completion tokens.

        Non-empty prompts (B, P) are padded on the left; equal ones need not be adjacent. Completions (B, C) are padded
        on the right. The model is the student or the reference, not wrapped; for a wrapped model, call this inside the
        wrapper's forward. All calls must use the same model; only its adapter may differ. In the routing, a shared
        prompt counts once per rollout. Without gradients, `prompt_states` says what else to keep.
        """
        blocks = find_blocks(model)
        if self.share and self.refused is None:
            self.refused = refused_strategies(blocks)
        batch = Batch.of(prompt_ids, prompt_mask, completion_ids, completion_mask)
        states = self.run(blocks, batch, need_routing, prompt_states)
        # `Batch` has cut the columns to the longest completion.
        states.hidden = F.pad(states.hidden, (0, 0, 0, completion_ids.shape[1] - states.hidden.shape[1]))
        return states

    def run(
        self, blocks: Blocks, batch: Batch, need_routing: bool = False, prompt_states: PromptStates | None = None
    ) -> CompletionStates:
        """Computes the states of a batch whose distinct prompts are known. `refused` must be."""
        with ExitStack() as stack:
            if not torch.is_grad_enabled():
                stack.enter_context(_checkpointing_off(blocks))
            reasons: list[str] = []
            options = {"output_router_logits": True} if need_routing else {}
            takes_cache = self._takes_cache(blocks, batch, reasons)
            # With gradient checkpointing, one pass over packed rows is rather run twice than the two passes of the cache.
            packing = self._packing(blocks, batch, reasons) if not takes_cache or _is_checkpointed(blocks) else None
            if packing is not None:
                flex = self._takes_flex(blocks, packing)
                hidden, routing = run_packed(blocks, batch, packing, options, flex, prompt_states)
                strategy = "packed"
            elif takes_cache:
                (hidden, routing), strategy = run_cache(blocks, batch, options, prompt_states), "cache"
            else:
                (hidden, routing), strategy = run_plain(blocks, batch, options, prompt_states), "plain"
        reason = "; ".join(dict.fromkeys(reasons)) or None
        prompts = [] if prompt_states is None else prompt_states.residual
        return CompletionStates(hidden, strategy, reason, routing if need_routing else None, prompts)

    @contextmanager
    def in_generation(self, model: Any) -> Iterator[None]:
        """
        Makes `model.generate` compute each distinct prompt once, if the model supports the cache strategy. The model must
        be in evaluation mode.
        """
        generate, overridden = model.generate, "generate" in vars(model)

        def generate_from_cache(
            input_ids: Tensor, attention_mask: Tensor, generation_config: Any, **inputs: Any
        ) -> Tensor:
            if generation_config.use_cache is not False and generation_config.cache_implementation is None:
                inputs["past_key_values"] = self._prefill(model, input_ids, attention_mask)
            return generate(
                input_ids=penalized(input_ids, attention_mask, generation_config),
                attention_mask=attention_mask,
                generation_config=generation_config,
                **without_router_loss(model),
                **inputs,
            )

        model.generate = generate_from_cache
        try:
            yield
        finally:
            if overridden:
                model.generate = generate
            else:
                del model.generate

    @torch.no_grad()
    def _prefill(self, model: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor) -> DynamicCache | None:
        """Returns keys and values of all prompt tokens but the last, which `generate` runs itself."""
        prompts, mask, rows = distinct_rows(prompt_ids, prompt_mask)
        if not self.share or not self.use_cache or len(prompts) == len(rows) or prompts.shape[1] == 1:
            return None
        blocks = find_blocks(model)
        if self.refused is None:
            self.refused = refused_strategies(blocks)
        if "cache" in self.refused:
            return None
        cache, _ = run_prompts(blocks, prompts, mask, {})
        for module in model.modules():
            # Where a cache is given, models with multimodal positions add what the last `generate` kept of its own rows.
            if getattr(module, "rope_deltas", None) is not None:
                vars(module)["rope_deltas"] = None
        return cache.of_rows(rows)

    def _takes_cache(self, blocks: Blocks, batch: Batch, reasons: list[str]) -> bool:
        backbone: Any = blocks.backbone
        if not self.share:
            reasons.append("sharing is switched off")
        elif not batch.shares:
            reasons.append("no prompt of several tokens repeats among these rows")
        elif not self.use_cache:
            reasons.append("the key/value cache is switched off")
        elif self.refused and "cache" in self.refused:
            reasons.append(self.refused["cache"])
        elif _is_checkpointed(blocks) and self.refused and "checkpointed cache" in self.refused:
            reasons.append(self.refused["checkpointed cache"])
        elif _is_checkpointed(blocks) and any(map(is_reentrant, blocks.modules)):
            reasons.append("reentrant gradient checkpointing keeps no gradients of a key/value cache")
        elif batch.mask_entries > self.max_mask_entries and backbone.config._attn_implementation in TAKES_MASK:
            reasons.append(
                f"the mask of {len(batch.prompt_ids)} prompts of unequal lengths has {batch.mask_entries:,} entries, more "
                f"than {self.max_mask_entries:,}"
            )
        else:
            return True
        return False

    def _packing(self, blocks: Blocks, batch: Batch, reasons: list[str]) -> Packing | None:
        if not self.share or not batch.shares:
            return None
        if self.refused and "packed" in self.refused:
            reasons.append(self.refused["packed"])
            return None
        packing = batch.packed()
        rows, length = packing.source.shape
        flex = self._takes_flex(blocks, packing)
        entries = rows * length**2
        if entries > self.max_mask_entries and not flex:
            reasons.append(
                f"the mask of {rows} packed rows of {length} tokens has {entries:,} entries, more than "
                f"{self.max_mask_entries:,}"
            )
            return None
        # Multiply-adds of a block, divided by twice its width h: about 12 h² per token and 2 h per entry of the
        # attention map. A causal mask skips half of these entries, a dense tree mask none.
        backbone: Any = blocks.backbone
        width = backbone.config.get_text_config().hidden_size
        plain_length = batch.prompt_ids.shape[1] + batch.completion_ids.shape[1] - 1
        plain = len(batch.rows) * (6 * width * plain_length + plain_length**2 // 2)
        if 6 * width * rows * length + (entries // 2 if flex else entries) >= plain:
            reasons.append(
                "packed rows would cost more than they save: the prompts are short beside their completions"
            )
            return None
        return packing

    def _takes_flex(self, blocks: Blocks, packing: Packing) -> bool:
        backbone: Any = blocks.backbone
        if self.flex_tokens is None or packing.end.shape[1] < self.flex_tokens or not takes_blocks(backbone):
            return False
        device, dtype = packing.end.device, backbone.get_input_embeddings().weight.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        return "flex" not in (self.refused or {}) and refused_kernels(backbone.config, dtype, device) is None


def _is_checkpointed(blocks: Blocks) -> bool:
    return any(part.training for part in blocks.checkpointed)


@contextmanager
def _checkpointing_off(blocks: Blocks) -> Iterator[None]:
    """Disables gradient checkpointing, which saves nothing without gradients but drops the cache."""
    parts = blocks.checkpointed
    for part in parts:
        part.gradient_checkpointing = False
    try:
        yield
    finally:
        for part in parts:
            part.gradient_checkpointing = True

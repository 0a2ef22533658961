"""
One prompt, many rollouts: the states that predict the rollouts' tokens, with each distinct prompt computed once.

G rollouts of r tokens of a prompt of w tokens cost G·(w + r) tokens row by row and w + G·r here. There are two roads:

- *cache*: the prompts run once, their keys and values are repeated for the rollouts (with gradients), and the
  completions run after them. It is the faster one. Gradient checkpointing drops the cache.
- *packed*: each prompt and all its completions stand in one row. The attention mask is a tree: a completion sees its
  prompt and itself, and its positions count on from the prompt's end. The mask is dense, hence quadratic.

Where neither serves, the rows run one by one, and the reason is given.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..data.targets import without_router_loss
from .capture import MAX_MASK_ENTRIES, Blocks, find_blocks, needed_mask
from .load_balancing import Routing, joined, routing_of


# Attention implementations that take a mask [B, 1, T, T]
TAKES_MASK = ("sdpa", "eager")


@dataclass
class CompletionStates:
    """
    What [`PrefixSharing`] computed.

    Attributes:
        hidden (`torch.Tensor`):
            What the head reads to predict each completion token, `[B, C, hidden]`. At padding it is finite and
            without meaning: no loss may read it.
        road (`str`):
            How it was computed: `"cache"`, `"packed"` or `"plain"`, the fastest first.
        reason (`str`, *optional*):
            Why no faster road was taken.
        routing ([`Routing`], *optional*):
            What the routers said of the tokens that ran, if that was asked for.
    """

    hidden: Tensor
    road: str
    reason: str | None
    routing: Routing | None = None


class PrefixSharing:
    """
    Computes last hidden states of completions, each distinct prompt once.

    The first call tries both roads on a few tokens: an architecture that gives other states on a road than row by
    row does not take it.

    Args:
        share (`bool`, *optional*, defaults to `True`):
            Whether to share prompts at all. `False` runs the rows one by one.
        use_cache (`bool`, *optional*, defaults to `True`):
            Whether the cache may be used. It runs the backbone twice a call where the other roads run it once: with
            sharded parameters every process must run it equally often, whatever its rows.
        max_mask_entries (`int`, *optional*, defaults to `2**26`):
            The largest mask of packed or padded rows, the tokens of a row squared, times the rows.

    Attributes:
        refused (`dict[str, str]`):
            The roads that the model cannot take, and why; known after the first call.
    """

    def __init__(self, share: bool = True, use_cache: bool = True, max_mask_entries: int = MAX_MASK_ENTRIES):
        self.share, self.use_cache, self.max_mask_entries = share, use_cache, max_mask_entries
        self.refused: dict[str, str] | None = None

    def __call__(
        self,
        model: nn.Module,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        need_routing: bool = False,
    ) -> CompletionStates:
        """
        Computes the states that predict the completion tokens.

        Args:
            model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
                The student or the reference, not wrapped for distributed training; what is wrapped calls this inside
                the wrapper's forward. It must be the same from call to call, but for its adapter.
            prompt_ids (`torch.Tensor`), prompt_mask (`torch.Tensor`):
                Prompts, padded on the left, `[B, P]`, none of them empty. Equal ones may stand anywhere.
            completion_ids (`torch.Tensor`), completion_mask (`torch.Tensor`):
                Completions, padded on the right, `[B, C]`.
            need_routing (`bool`, *optional*, defaults to `False`):
                Whether to keep what the routers of a mixture of experts said. A shared prompt counts as often as it
                would without sharing.

        Returns:
            [`CompletionStates`]: The states, and how they were computed.

        Raises:
            ConsistencyError: If the model is no decoder with one list of blocks, or has a learned prompt.
        """
        blocks = find_blocks(model)
        if self.share and self.refused is None:
            self.refused = _refused_roads(blocks)
        batch = _Batch.of(prompt_ids, prompt_mask, completion_ids, completion_mask)
        with ExitStack() as stack:
            if not torch.is_grad_enabled():
                stack.enter_context(_checkpointing_off(blocks))
            reasons: list[str] = []
            options = {"output_router_logits": True} if need_routing else {}
            if self._takes_cache(blocks, batch, reasons):
                (hidden, routing), road = _run_cache(blocks.backbone, batch, options), "cache"
            elif packing := self._packing(blocks, batch, reasons):
                (hidden, routing), road = _run_packed(blocks.backbone, batch, packing, options), "packed"
            else:
                (hidden, routing), road = _run_plain(blocks.backbone, batch, options), "plain"
        # The batch was cut to its longest completion.
        hidden = F.pad(hidden, (0, 0, 0, completion_ids.shape[1] - hidden.shape[1]))
        reason = "; ".join(dict.fromkeys(reasons)) or None
        return CompletionStates(hidden, road, reason, routing if need_routing else None)

    @contextmanager
    def in_generation(self, model: Any) -> Iterator[None]:
        """
        Within it, `model.generate` computes each distinct prompt once, where the model allows it.

        Args:
            model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
                The student, in evaluation mode.
        """
        generate, overridden = model.generate, "generate" in vars(model)

        def generate_from_cache(
            input_ids: Tensor, attention_mask: Tensor, generation_config: Any, **inputs: Any
        ) -> Tensor:
            if generation_config.use_cache is not False and generation_config.cache_implementation is None:
                inputs["past_key_values"] = self._prefill(model, input_ids, attention_mask)
            return generate(
                input_ids=input_ids,
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
        """Keys and values of all but the last tokens, which `generate` runs itself."""
        prompts, rows = _distinct(prompt_ids, prompt_mask)
        if not self.share or not self.use_cache or len(prompts) == len(rows) or prompts.shape[1] == 1:
            return None
        blocks = find_blocks(model)
        if self.refused is None:
            self.refused = _refused_roads(blocks)
        if "cache" in self.refused:
            return None
        cache, _ = _run_prompts(blocks.backbone, prompts.clamp(min=0), (prompts >= 0).long(), {})
        cache.batch_select_indices(rows)
        return cache

    def _takes_cache(self, blocks: Blocks, batch: "_Batch", reasons: list[str]) -> bool:
        backbone: Any = blocks.backbone
        if not self.share:
            reasons.append("sharing is switched off")
        elif not batch.shares:
            reasons.append("no prompt of several tokens repeats among these rows")
        elif not self.use_cache:
            reasons.append("the key/value cache is switched off")
        elif self.refused and "cache" in self.refused:
            reasons.append(self.refused["cache"])
        elif any(_checkpoints(module) and module.training for module in (backbone, *blocks.modules)):
            reasons.append("gradient checkpointing drops the key/value cache")
        elif batch.mask_entries > self.max_mask_entries and backbone.config._attn_implementation in TAKES_MASK:
            reasons.append(
                f"the mask of {len(batch.prompt_ids)} prompts of unequal lengths has {batch.mask_entries:,} entries, more "
                f"than {self.max_mask_entries:,}"
            )
        else:
            return True
        return False

    def _packing(self, blocks: Blocks, batch: "_Batch", reasons: list[str]) -> "_Packing | None":
        if not self.share or not batch.shares:
            return None
        if self.refused and "packed" in self.refused:
            reasons.append(self.refused["packed"])
            return None
        packing = _Packing.of(batch)
        rows, length = packing.source.shape
        entries = rows * length**2
        if entries > self.max_mask_entries:
            reasons.append(
                f"the mask of {rows} packed rows of {length} tokens has {entries:,} entries, more than "
                f"{self.max_mask_entries:,}"
            )
            return None
        # Multiply-adds of a block, over twice its width: about 12 h² a token and 2 h an entry of the attention map
        # (half of them are skipped below a causal mask, and none below a tree).
        backbone: Any = blocks.backbone
        width = backbone.config.get_text_config().hidden_size
        plain_length = batch.prompt_ids.shape[1] + batch.completion_ids.shape[1] - 1
        plain = len(batch.rows) * (6 * width * plain_length + plain_length**2 // 2)
        if 6 * width * rows * length + entries >= plain:
            reasons.append(
                "packed rows would cost more than they save: the prompts are short beside their completions"
            )
            return None
        return packing


def _distinct(prompt_ids: Tensor, prompt_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct prompts `[D, P]`, -1 where padded, and which of them each row has, `[B]`."""
    return torch.where(prompt_mask.bool(), prompt_ids, -1).unique(dim=0, return_inverse=True)


@dataclass
class _Batch:
    """Rows without needless columns, and the prompts that they share."""

    prompt_ids: Tensor  # [D, P], of distinct prompts, padded on the left
    prompt_mask: Tensor  # [D, P]
    rows: Tensor  # [B], the prompt of each row
    completion_ids: Tensor  # [B, C]
    completion_mask: Tensor  # [B, C]

    @classmethod
    def of(cls, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor) -> "_Batch":
        prompts, rows = _distinct(prompt_ids, prompt_mask)
        prompts = prompts[:, (prompts >= 0).any(0)]
        # An empty completion is one of padding: every row has a state to predict its first token from.
        columns = max(int(completion_mask.sum(1).max()), 1)
        return cls(
            prompts.clamp(min=0),
            (prompts >= 0).long(),
            rows,
            completion_ids[:, :columns],
            completion_mask[:, :columns],
        )

    @property
    def shares(self) -> bool:
        return len(self.prompt_ids) < len(self.rows) and self.prompt_ids.shape[1] > 1

    @property
    def rollouts(self) -> Tensor:
        """How many rows have each prompt, `[D]`."""
        return self.rows.bincount(minlength=len(self.prompt_ids))

    @property
    def mask_entries(self) -> int:
        """Of the mask of the prompts, padded on the left; they need none if they are equally long."""
        return 0 if self.prompt_mask.all() else self.prompt_mask.numel() * self.prompt_mask.shape[1]


@dataclass
class _Packing:
    """
    Packed rows: R rows of L tokens, and where the states of the completion tokens' predictors stand in them.

    Attributes:
        source: Which of the prompts' and then the completions' tokens it is, all counted through, `[R, L]`.
        prompt: The prompt that the token belongs to, -1 for padding, `[R, L]`.
        branch: 0 in the prompt, and from 1 for its completions, `[R, L]`.
        position: The token's position in its text, `[R, L]`.
        states: Where the states are, counted through `[R, L]`, `[B, C]`.
    """

    source: Tensor
    prompt: Tensor
    branch: Tensor
    position: Tensor
    states: Tensor

    @classmethod
    def of(cls, batch: _Batch) -> "_Packing":
        num_prompts, prompt_columns = batch.prompt_ids.shape
        columns = batch.completion_ids.shape[1]
        prompt_lengths = batch.prompt_mask.sum(1).tolist()
        # A completion's last token predicts nothing that is asked for.
        branch_lengths = [max(length - 1, 0) for length in batch.completion_mask.sum(1).tolist()]
        members: list[list[int]] = [[] for _ in range(num_prompts)]
        for row, prompt in enumerate(batch.rows.tolist()):
            members[prompt].append(row)
        lengths = [
            own + sum(branch_lengths[row] for row in of_prompt)
            for own, of_prompt in zip(prompt_lengths, members, strict=True)
        ]
        placed, (num_rows, length) = _first_fit(lengths)

        source, prompts, branches, positions = torch.zeros(4, num_rows * length, dtype=torch.long)
        prompts.fill_(-1)
        states = torch.empty(len(batch.rows), columns, dtype=torch.long)
        for prompt, start in enumerate(placed):
            own, end = prompt_lengths[prompt], start + prompt_lengths[prompt]
            source[start:end] = torch.arange((prompt + 1) * prompt_columns - own, (prompt + 1) * prompt_columns)
            positions[start:end] = torch.arange(own)
            last = end - 1
            for branch, row in enumerate(members[prompt], 1):
                start_of_branch, end = end, end + branch_lengths[row]
                first = num_prompts * prompt_columns + row * columns
                source[start_of_branch:end] = torch.arange(first, first + branch_lengths[row])
                positions[start_of_branch:end] = torch.arange(own, own + branch_lengths[row])
                branches[start_of_branch:end] = branch
                states[row] = last
                states[row, 1 : branch_lengths[row] + 1] = torch.arange(start_of_branch, end)
            prompts[start:end] = prompt
        device = batch.rows.device
        flat = torch.stack([source, prompts, branches, positions]).view(4, num_rows, length).to(device)
        return cls(flat[0], flat[1], flat[2], flat[3], states.to(device))

    def mask(self, window: int | None) -> Tensor:
        """Who sees whom, `[R, 1, L, L]`. Padding sees padding: a token that sees nothing has no softmax."""
        distance = self.position[:, :, None] - self.position[:, None, :]  # query, key
        of_key, of_query = self.branch[:, None, :], self.branch[:, :, None]
        seen = (self.prompt[:, :, None] == self.prompt[:, None, :]) & (distance >= 0)
        seen &= (of_key == 0) | (of_key == of_query)
        if window is not None:
            seen &= distance < window
        return seen[:, None]


def _first_fit(lengths: list[int]) -> tuple[list[int], tuple[int, int]]:
    """Places texts in rows as long as the longest: where each starts, counted through, and the shape of the rows."""
    width = max(lengths)
    used: list[int] = []
    starts = [0] * len(lengths)
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        row = next((row for row, filled in enumerate(used) if filled + lengths[text] <= width), len(used))
        if row == len(used):
            used.append(0)
        starts[text] = row * width + used[row]
        used[row] += lengths[text]
    return starts, (len(used), width)


# The three roads: from the batch to [B, C, hidden], and the routing. `options` go to the backbone.


def _run_plain(backbone: Any, batch: _Batch, options: dict[str, Any]) -> tuple[Tensor, Routing | None]:
    input_ids = torch.cat([batch.prompt_ids[batch.rows], batch.completion_ids[:, :-1]], 1)
    mask = torch.cat([batch.prompt_mask[batch.rows], batch.completion_mask[:, :-1]], 1)
    # All padding goes to the right: long rows then need no mask.
    order = mask.argsort(dim=1, descending=True, stable=True)
    input_ids, mask = input_ids.gather(1, order), mask.gather(1, order)
    output = backbone(input_ids=input_ids, attention_mask=needed_mask(backbone, mask), use_cache=False, **options)
    last = batch.prompt_mask.sum(1)[batch.rows, None] - 1  # of the prompt
    states = last + torch.arange(batch.completion_ids.shape[1], device=last.device)
    return output.last_hidden_state.take_along_dim(states[..., None], 1), routing_of(output, mask)


def _run_prompts(
    backbone: Any, prompt_ids: Tensor, prompt_mask: Tensor, options: dict[str, Any]
) -> tuple[DynamicCache, Any]:
    """Keys and values of all but the last tokens, and the backbone's output."""
    cache = DynamicCache(config=backbone.config)
    output = backbone(
        input_ids=prompt_ids[:, :-1],
        attention_mask=prompt_mask[:, :-1],
        position_ids=_positions(prompt_mask)[:, :-1],
        past_key_values=cache,
        use_cache=True,
        **options,
    )
    return cache, output


def _run_cache(backbone: Any, batch: _Batch, options: dict[str, Any]) -> tuple[Tensor, Routing | None]:
    # A prompt's last token runs with the completions: then nothing reads what leaves the last block for the prompts,
    # and the backward pass leaves most of that block out.
    cache, of_prompts = _run_prompts(backbone, batch.prompt_ids, batch.prompt_mask, options)
    cache.batch_select_indices(batch.rows)
    last_ids, last_mask, last_position = (
        part[batch.rows, -1:] for part in (batch.prompt_ids, batch.prompt_mask, _positions(batch.prompt_mask))
    )
    mask = torch.cat([last_mask, batch.completion_mask[:, :-1]], 1)
    output = backbone(
        input_ids=torch.cat([last_ids, batch.completion_ids[:, :-1]], 1),
        attention_mask=torch.cat([batch.prompt_mask[batch.rows, :-1], mask], 1),
        position_ids=last_position + mask.cumsum(-1) - 1,
        past_key_values=cache,
        use_cache=True,
        **options,
    )
    in_prompts = batch.prompt_mask[:, :-1] * batch.rollouts[:, None]
    routing = joined([routing_of(of_prompts, in_prompts), routing_of(output, mask)])
    return output.last_hidden_state, routing


def _run_packed(
    backbone: Any, batch: _Batch, packing: _Packing, options: dict[str, Any]
) -> tuple[Tensor, Routing | None]:
    tokens = torch.cat([batch.prompt_ids.flatten(), batch.completion_ids.flatten()])
    windows = _windows(backbone.config)
    masks = {window: packing.mask(window) for window in set(windows)}
    if backbone.config._attn_implementation == "eager":
        # It adds the mask.
        dtype = backbone.get_input_embeddings().weight.dtype
        lowest = torch.finfo(dtype).min
        masks = {
            window: torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest) for window, seen in masks.items()
        }
    # Where all blocks see equally far, some architectures take a mask by type and all take one mask.
    mask: Any = masks[windows[0]]
    if len(masks) > 1:
        mask = {kind: masks[window] for kind, window in zip(backbone.config.layer_types, windows, strict=False)}
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
    # By default left padding would be counted as text.
    return (mask.cumsum(-1) - 1).clamp(min=0)


# What a model can do


def _windows(config: Any) -> list[int | None]:
    """How far the blocks see, `None` for those that see everything."""
    return [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=config).layers]


def _checkpoints(module: nn.Module) -> bool:
    return bool(getattr(module, "gradient_checkpointing", False))


@contextmanager
def _checkpointing_off(blocks: Blocks) -> Iterator[None]:
    """Without gradients checkpointing saves nothing, and would still drop the cache."""
    modules: list[Any] = [module for module in (blocks.backbone, *blocks.modules) if _checkpoints(module)]
    for module in modules:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        for module in modules:
            module.gradient_checkpointing = True


@contextmanager
def _dropout_off(backbone: nn.Module) -> Iterator[None]:
    # Not `eval()`: in evaluation mode bitsandbytes repacks 4-bit weights in place on some CPUs, and training goes on
    # with something else.
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


def _refused_roads(blocks: Blocks) -> dict[str, str]:
    """The roads on which the model does not give the states of the plain one, or could not, and why."""
    backbone: Any = blocks.backbone
    name, attention = type(backbone).__name__, backbone.config._attn_implementation
    kinds = {type(layer) for layer in DynamicCache(config=backbone.config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        reason = f"`{name}` has layers that are no plain attention over keys and values"
        return {"cache": reason, "packed": reason}

    device = next(backbone.parameters()).device
    # Long enough that a wrong position shows in half precision too
    lengths = torch.tensor([[16, 20], [9, 11], [16, 1], [16, 20]], device=device)  # of prompt and completion
    columns = torch.arange(20, device=device)
    prompt_mask = (columns[:16] >= 16 - lengths[:, :1]).long()
    completion_mask = (columns < lengths[:, 1:]).long()
    completion_ids = 1 + torch.arange(80, device=device).view(4, 20)
    vocabulary = backbone.config.get_text_config().vocab_size
    prompt_ids = (81 + columns[:16]).expand(4, -1)
    batch = _Batch.of(prompt_ids % vocabulary, prompt_mask, completion_ids % vocabulary, completion_mask)
    refused: dict[str, str] = {}
    with torch.no_grad(), _dropout_off(backbone):
        expected = _run_plain(backbone, batch, {})[0][completion_mask.bool()].float()
        half = torch.is_autocast_enabled(device.type) or next(backbone.parameters()).dtype != torch.float32
        for road in ("cache", "packed"):
            if road == "packed" and attention not in TAKES_MASK:
                refused[road] = f"`{attention}` attention takes no mask of a tree"
                continue
            try:
                hidden, _ = (
                    _run_cache(backbone, batch, {})
                    if road == "cache"
                    else _run_packed(backbone, batch, _Packing.of(batch), {})
                )
            except Exception as error:  # whatever an unknown architecture makes of it
                refused[road] = f"`{name}` does not run on the {road} road ({type(error).__name__}: {error})"
                continue
            difference = (hidden[completion_mask.bool()].float() - expected).norm() / expected.norm()
            if not difference <= (5e-2 if half else 1e-3):
                refused[road] = f"`{name}` gives other states on the {road} road (off by {difference:.0%})"
    return refused

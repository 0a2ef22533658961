"""
The floating-point operations that a step cannot do without, counted from shapes.

A product of an (n, k) and a (k, m) matrix is 2·n·k·m operations. Counted are the products of linear layers, adapters,
attention and the head; all else is small beside them. These are not counted:

- what gradient checkpointing or a fused kernel computes a second time,
- padding, and the half of an attention map that a causal mask hides,
- a prompt that several rollouts share, after its first time (unless `share_prefix` is off),
- what nothing reads: a text's last token, and in the last block all but the keys and values of prompts whose states are
  not compared. (Where states are compared, they are taken to be those of whole prompts.)

So a program that wastes nothing reaches the device's rate, and the share that a real one reaches says what it wastes.
"""

from dataclasses import dataclass
from typing import Any

from peft.tuners.lora import LoraLayer
from torch import nn

from ..passes.blocks import base_model, decoder_of, find_blocks, head_widths_of, resolve_layers
from ..passes.prefix_strategies import windows_of
from .setup import Setup


# Layers that read a block's input: in the first block of a frozen model, no gradient of it is needed.
READS_INPUT = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "Wqkv")
KEYS_AND_VALUES = ("k_proj", "v_proj")
# Objectives that read the last compared block at prompt positions, too
OF_PROMPTS = {"act", "attct", "mlpct"}


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one micro-batch, and of sampling the rollouts of a whole step."""

    reference: int
    forward: int  # of the student
    backward: int
    head: int  # of both, and of the gradient of the student's states
    sampling: int  # of the rollouts of all micro-batches, before the step

    @property
    def step(self) -> int:
        """All but the sampling of rollouts."""
        return self.reference + self.forward + self.backward + self.head


@dataclass(frozen=True)
class Linear:
    """A linear layer with its adapter of a rank, which is 0 without one."""

    name: str
    inputs: int
    outputs: int
    rank: int
    trained: bool

    def forward(self, with_adapter: bool) -> int:
        """Multiply-adds for one token."""
        of_adapter = self.rank * (self.inputs + self.outputs) if with_adapter else 0
        return self.inputs * self.outputs + of_adapter

    def backward(self, is_first: bool) -> int:
        """Multiply-adds for one token: gradients of what the layer reads, and of trained weights."""
        of_input = self.inputs * (self.outputs + self.rank)
        if is_first and not self.trained and self.name in READS_INPUT:
            of_input = 0
        of_weights = self.inputs * self.outputs if self.trained else 0
        return of_input + of_weights + self.rank * (self.inputs + 2 * self.outputs)


@dataclass(frozen=True)
class Segment:
    """Rows of tokens that follow `start` earlier ones, whose keys and values they attend to."""

    rows: int
    start: int
    tokens: int
    only_cached: bool = False  # the last block computes their keys and values alone

    def entries(self, window: int | None, dense: bool) -> int:
        """Entries of the attention maps of a head that are needed, or all with `dense`."""
        if dense:
            return self.rows * self.tokens * (self.start + self.tokens)
        end = self.start + self.tokens
        widest = end if window is None else min(window, end)
        before = max(min(widest, end) - self.start, 0)  # tokens that see all before them
        growing = before * self.start + before * (before + 1) // 2
        return self.rows * (growing + (self.tokens - before) * widest)


@dataclass(frozen=True)
class Shapes:
    """The blocks of a model, from which its operations follow."""

    blocks: list[list[Linear]]
    windows: list[int | None]
    attention: list[int]  # multiply-adds of each block for an entry of the maps of one head, in a forward pass
    head: int
    head_trained: bool

    @classmethod
    def of(cls, outline: Any) -> "Shapes":
        base: Any = base_model(outline)
        config = base.config.get_text_config()
        heads = config.num_attention_heads
        attention = [2 * heads * width for width in head_widths_of(config)]
        if nope := getattr(config, "qk_nope_head_dim", None):  # latent attention: keys and values of other widths
            attention = [heads * (nope + config.qk_rope_head_dim + config.v_head_dim)] * len(attention)
        head = base.get_output_embeddings().weight
        blocks = [_linear_layers(block) for block in find_blocks(outline).modules]
        return cls(blocks, windows_of(base.config), attention, head.numel(), head.requires_grad)

    def forward(self, segments: list[Segment], depth: int, with_adapter: bool, dense: bool = False) -> int:
        """Operations of a pass through the first `depth` blocks."""
        return 2 * sum(
            segment.rows * segment.tokens * sum(layer.forward(with_adapter) for layer in layers)
            + (0 if cached else self.attention[number] * segment.entries(self.windows[number], dense))
            for segment in segments
            for number, cached, layers in self._passed(segment, depth)
        )

    def backward(self, segments: list[Segment], depth: int, dense: bool = False) -> int:
        """Operations of the backward pass through them."""
        return 2 * sum(
            segment.rows * segment.tokens * sum(layer.backward(number == 0) for layer in layers)
            + (0 if cached else 2 * self.attention[number] * segment.entries(self.windows[number], dense))
            for segment in segments
            for number, cached, layers in self._passed(segment, depth)
        )

    def _passed(self, segment: Segment, depth: int) -> list[tuple[int, bool, list[Linear]]]:
        """Returns number, whether only keys and values are needed, and layers, of each block."""
        passed = []
        for number, layers in enumerate(self.blocks[:depth]):
            cached = segment.only_cached and number == depth - 1
            passed.append((number, cached, [of for of in layers if of.name in KEYS_AND_VALUES] if cached else layers))
        return passed


def _linear_layers(block: nn.Module) -> list[Linear]:
    found = []
    for name, module in block.named_modules():
        if isinstance(module, LoraLayer):
            rank = sum(module.r.values())
            base: Any = module.get_base_layer()
            found.append(Linear(name.split(".")[-1], base.in_features, base.out_features, rank, False))
        elif isinstance(module, nn.Linear) and not name.endswith("base_layer") and "lora_" not in name:
            trained = module.weight.requires_grad
            found.append(Linear(name.split(".")[-1], module.in_features, module.out_features, 0, trained))
    return found


def uncounted(outline: nn.Module) -> str:
    """Returns why a model's operations cannot be counted, or an empty text."""
    for number, block in enumerate(find_blocks(outline).modules):
        linear = {id(module.weight) for module in block.modules() if isinstance(module, nn.Linear)}
        for name, weight in block.named_parameters():
            if weight.dim() > 1 and id(weight) not in linear:
                return f"block {number} has `{name}`, which is no linear layer (experts, recurrent layers)"
    blocks = {id(module) for block in find_blocks(outline).modules for module in block.modules()}
    for name, module in decoder_of(base_model(outline)).named_modules():
        if isinstance(module, nn.Linear) and id(module) not in blocks:
            return f"`{name}` is a linear layer outside the blocks"
    return ""


def count_step(outline: nn.Module, setup: Setup, dense: bool = False) -> Operations:
    """Counts the operations of a micro-batch. `dense` counts attention maps whole, as eager attention computes them."""
    shapes = Shapes.of(outline)
    depth = len(shapes.blocks)
    if not setup.answer:
        depth = resolve_layers(list(setup.layers or []) or None, depth)[-1] + 1
    segments, answers = _segments(setup)
    head = 0
    if setup.answer:
        # Logits of both sides, the gradient of the student's states, and that of a trained head
        compares_both = bool({"kl", "opct"} & {*setup.method})
        head = 2 * answers * shapes.head * (2 + compares_both + shapes.head_trained)
    return Operations(
        reference=shapes.forward(segments, depth, False, dense) if setup.with_reference else 0,
        forward=shapes.forward(segments, depth, True, dense),
        backward=shapes.backward(segments, depth, dense),
        head=head,
        sampling=_count_sampling(shapes, setup) if setup.is_opct else 0,
    )


def _segments(setup: Setup) -> tuple[list[Segment], int]:
    """Returns what one side runs, and the number of compared answer tokens."""
    rows = setup.per_device_train_batch_size
    if not setup.answer or {*setup.method} & OF_PROMPTS:
        return [Segment(rows, 0, setup.max_length)], rows * setup.answer
    return _of_answers(setup, setup.num_prompts, rows), rows * setup.answer


def _of_answers(setup: Setup, prompts: int, rows: int) -> list[Segment]:
    """Returns what one side runs where answers alone are read. A prompt that is shared is computed once."""
    # A prompt's last token predicts an answer's first, and the last token of an answer predicts nothing.
    of_prompts = Segment(prompts if setup.share_prefix else rows, 0, setup.prompt - 1, only_cached=True)
    return [of_prompts, Segment(rows, setup.prompt - 1, setup.answer)]


def _count_sampling(shapes: Shapes, setup: Setup) -> int:
    """Counts the sampling of all rollouts of a step, `sampled_at_once` at a time."""
    rollouts = setup.per_device_train_batch_size * setup.gradient_accumulation_steps
    group, size = setup.rollouts_per_prompt, setup.sampled_at_once
    ends = ((start, min(start + size, rollouts) - 1) for start in range(0, rollouts, size))
    prompts = sum(last // group - first // group + 1 for first, last in ends)
    segments = _of_answers(setup, prompts, rollouts)
    return shapes.forward(segments, len(shapes.blocks), True) + 2 * rollouts * setup.answer * shapes.head

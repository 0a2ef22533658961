"""
The last block of a pass, computed only where something reads its output.

Its keys and values are needed at every position, because later positions attend to them. Its queries, its output projection
and its MLP are not: a prompt's positions in the last block are read by nothing but objectives that compare them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .blocks import Blocks


# The parts of an attention that treat each position alone, and are needed only where its output is read. (A projection that
# makes keys and values, too, is not among them.)
OF_ATTENTION = ("q_proj", "o_proj", "out_proj", "dense")

# Their hooks on a model's parts do not read the states that are left out.
LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "peft", "torch", "transformers", "trl", "trl_consistency")


@contextmanager
def last_block_only_at(blocks: Blocks, read: Tensor | None, shape: torch.Size) -> Iterator[None]:
    """
    Within it, a pass leaves out what the last of `blocks` would compute at positions that nothing reads. The states after it
    are finite, but meaningless there. `read`, (N,), has the index of each position that is read, in the flattened batch of
    `shape` (B, T), once. `None` leaves out nothing.

    The block is not checkpointed then: its recomputation would be the first thing that the backward pass does.
    """
    block: Any = blocks.modules[-1]
    is_checkpointed_alone = isinstance(block, GradientCheckpointingLayer)
    # A backbone that checkpoints its blocks itself would run the block again after the hooks are gone.
    checkpoints_itself = not is_checkpointed_alone and getattr(blocks.backbone, "gradient_checkpointing", False)
    if read is None or checkpoints_itself or _is_seen_by_others(blocks):
        yield
        return
    parts = _parts(block)
    with ExitStack() as stack:
        for part in parts:
            rows = _Rows(read, shape)
            stack.callback(part.register_forward_pre_hook(rows.select).remove)
            stack.callback(part.register_forward_hook(rows.put_back).remove)
        for layer in block.modules() if parts else ():
            if isinstance(layer, GradientCheckpointingLayer):
                stack.callback(setattr, layer, "gradient_checkpointing", layer.gradient_checkpointing)
                layer.gradient_checkpointing = False
        yield


def _is_seen_by_others(blocks: Blocks) -> bool:
    """Whether hooks that are not of a library see states of the last block, or after it: they may record or change all."""
    backbone: Any = blocks.backbone
    after = [child for child in backbone.children() if child is not backbone.get_input_embeddings()]
    hooks = [
        getattr(hook, "func", hook)  # of a `functools.partial`
        for part in (*blocks.modules[-1].modules(), *after, backbone)
        for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    ]
    modules = [getattr(hook, "__module__", None) or "" for hook in hooks]
    return any(module.split(".")[0] not in LIBRARIES for module in modules)


def _parts(block: nn.Module) -> list[nn.Module]:
    children = list(block.children())
    # With several, one may read at each position what another gives at those before.
    if sum(_is_attention(child) or _has_convolution(child) for child in children) > 1:
        return []
    found = []
    for child in children:
        if type(child).__name__.endswith("MLP"):
            found.append(child)
        elif _is_attention(child) and not _has_convolution(child):  # it may be one over the queries
            found += [part for part in map(dict(child.named_children()).get, OF_ATTENTION) if part is not None]
    return [part for part in found if _is_by_position(part)]


def _is_attention(module: nn.Module) -> bool:
    return "Attention" in type(module).__name__


def _has_convolution(module: nn.Module) -> bool:
    # What transformers calls `Conv1D` is a linear layer.
    return any("Conv" in (name := type(part).__name__) and name != "Conv1D" for part in module.modules())


def _is_by_position(module: nn.Module) -> bool:
    """Whether all weights of a module are those of linear layers and norms: no convolution, and no experts."""
    linear = {
        id(weight) for part in module.modules() if isinstance(part, nn.Linear) for weight in part.parameters(False)
    }
    return all(weight.dim() < 2 or id(weight) in linear for weight in module.parameters())


class _Rows:
    """
    Hooks that run a module on some positions of its inputs, (B, T, ...), and put zeros at the others of its output. They let
    other inputs pass: `torch.nn.DataParallel` shares out rows, a learned prompt lengthens them, and Moshi's layers take more.
    """

    def __init__(self, read: Tensor, shape: torch.Size):
        self.read, self.shape = read, shape

    def select(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
        if any(not isinstance(values, Tensor) or values.shape[:2] != self.shape for values in args):
            return None
        return tuple(values.flatten(0, 1)[self.read.to(values.device)][None] for values in args)

    def put_back(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if output.shape[:2] != (1, len(self.read)):
            return None
        whole = output.new_zeros(self.shape.numel(), *output.shape[2:])
        return whole.index_copy_(0, self.read.to(output.device), output[0]).unflatten(0, self.shape)

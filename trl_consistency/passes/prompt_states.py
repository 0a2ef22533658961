"""The residual stream at chosen tokens of prompts, kept by whichever strategy runs the prompts before their completions."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import Blocks
from .capture import state_in


@dataclass
class PromptStates:
    """
    What to keep of a batch of prompts with completions, in passes without gradients: the residual stream after each of
    `layers`, at token `positions[n]` of the prompt of row `rows[n]`, both (N,). Padding does not count. After the passes,
    `residual` has it, [N, hidden] for each layer.
    """

    layers: list[int]
    rows: Tensor
    positions: Tensor
    residual: list[Tensor] = field(default_factory=list)

    def after_rows(self, count: int) -> "PromptStates":
        """Returns the same for a batch with `count` more rows before these."""
        return PromptStates(self.layers, self.rows + count, self.positions)

    def of_pass(self, places: Tensor, which: Tensor | slice = slice(None)) -> "PassStates":
        """
        Returns the part that one pass computes: `which` of the N tokens, a slice or indices (K,), at these `places` in its
        flattened batch, (K,).
        """
        return PassStates(self, places, which)


@dataclass
class PassStates:
    """The part of [`PromptStates`] that one pass computes; see [`PromptStates.of_pass`]."""

    states: PromptStates
    places: Tensor
    which: Tensor | slice

    @contextmanager
    def kept(self, blocks: Blocks) -> Iterator[None]:
        """Within it, the pass keeps them."""
        if torch.is_grad_enabled():
            raise ValueError("The states of prompts are kept without gradients only.")
        with ExitStack() as hooks:
            for number, layer in enumerate(self.states.layers):
                hooks.callback(blocks.modules[layer].register_forward_hook(self._keeping(number)).remove)
            yield

    def _keeping(self, number: int) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            state, residual = state_in(module, output).flatten(0, 1), self.states.residual
            if number == len(residual):
                residual.append(state.new_empty(len(self.states.rows), state.shape[-1]))
            residual[number][self.which] = state[self.places.to(state.device)]

        return keep

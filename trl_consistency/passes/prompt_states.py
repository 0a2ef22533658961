"""The residual stream at chosen tokens of prompts, kept by whichever strategy runs the prompts before their completions."""

from collections.abc import Iterator
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
    What to keep of a batch of prompts with completions, in a pass without gradients: the residual stream after each of
    `layers`, at token `positions[n]` of the prompt of row `rows[n]`, both (N,). Padding does not count. After the pass,
    `residual` has it, [N, hidden] for each layer.
    """

    layers: list[int]
    rows: Tensor
    positions: Tensor
    residual: list[Tensor] = field(default_factory=list)

    def at(self, places: Tensor) -> "PassStates":
        """Returns all of them, at their `places`, (N,), in the flattened batch of a single pass."""
        return PassStates(self, places, slice(None))

    def split(self, in_second: Tensor, first: Tensor, second: Tensor) -> tuple["PassStates", "PassStates"]:
        """Returns the parts of two passes: `in_second`, (N,), says which are of the second one. The places are (N,)."""
        return PassStates(self, first[~in_second], ~in_second), PassStates(self, second[in_second], in_second)


@dataclass
class PassStates:
    """The part of [`PromptStates`] that one pass computes: the tokens `which` of all, at `places` in its flattened batch."""

    states: PromptStates
    places: Tensor
    which: Any

    @contextmanager
    def kept(self, blocks: Blocks) -> Iterator[None]:
        """Within it, a pass of the backbone keeps them."""
        if torch.is_grad_enabled():
            raise ValueError("The states of prompts are kept without gradients only.")
        with ExitStack() as hooks:
            for number, layer in enumerate(self.states.layers):
                hooks.callback(blocks.modules[layer].register_forward_hook(self._keeping(number)).remove)
            yield

    def _keeping(self, number: int) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            state = state_in(module, output).flatten(0, 1)
            residual = self.states.residual
            if number == len(residual):
                residual.append(state.new_empty(len(self.states.rows), state.shape[-1]))
            residual[number][self.which] = state[self.places]

        return keep

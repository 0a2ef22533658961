"""The reference: the policy as it was when training began, frozen, in the memory of the student."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConsistencyError
from .upstream import use_adapter


class Reference:
    """
    The initial policy, frozen.

    It shares the student's weights. With an adapter made for this run it is the model with that adapter off. Otherwise
    (full fine-tuning; an adapter that the model came with) it keeps a copy of what trains, and puts it in the place of
    the trained weights for the time of its pass.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The student before its first step, not wrapped for distributed training.
        adapter_off (`bool`):
            Whether the reference is the model with its adapter off.
    """

    def __init__(self, model: nn.Module, adapter_off: bool):
        self.adapter_off = adapter_off
        trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._model, self._frozen = model, {name for name, _ in model.named_parameters()} - trainable.keys()
        self._trained = [] if adapter_off else list(trainable.values())
        self._initial = [parameter.detach().clone() for parameter in self._trained]
        self.checksum = self.compute_checksum()

    @contextmanager
    def active(self, model: Any) -> Iterator[Any]:
        """The model as the reference: no gradient, no dropout, the initial weights. Afterwards it is the student again."""
        was_training = model.training
        # PEFT makes every adapter weight trainable when it switches an adapter on again.
        requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        model.eval()
        self._swap()
        try:
            with torch.no_grad(), use_adapter(model, None) if self.adapter_off else nullcontext():
                yield model
        finally:
            self._swap()
            model.train(was_training)
            for parameter, required in requires_grad:
                parameter.requires_grad_(required)

    def _swap(self) -> None:
        for index, parameter in enumerate(self._trained):
            parameter.data, self._initial[index] = self._initial[index], parameter.data

    def compute_checksum(self) -> int:
        """Of every bit of the reference's weights, except that equal bits in another order go unnoticed."""
        # By name: whoever writes to 4-bit weights puts new parameters in the place of the old ones.
        frozen = [parameter for name, parameter in self._model.named_parameters() if name in self._frozen]
        return _checksum([*frozen, *self._initial])

    def check(self) -> None:
        """
        Raises:
            [`ConsistencyError`]: If the reference is no longer what it was when training began.
        """
        if self.compute_checksum() != self.checksum:
            raise ConsistencyError(
                "The weights of the reference have changed during training, so that the student was not compared with "
                "the initial policy. Something outside this trainer wrote to them: merging an adapter into its base, for "
                "one, or a callback."
            )


class GivenReference(Reference):
    """
    A frozen model of its own in the place of the initial policy.

    Args:
        ref_model ([`~transformers.PreTrainedModel`]):
            The model, on the student's device. It shares no weight with the student.
    """

    def __init__(self, ref_model: nn.Module):
        self.model = ref_model.eval().requires_grad_(False)
        self.checksum = self.compute_checksum()

    @contextmanager
    def active(self, model: Any) -> Iterator[Any]:
        """The reference, without gradients; `model`, the student, stays as it is."""
        self.model.eval()
        with torch.no_grad():
            yield self.model

    def compute_checksum(self) -> int:
        """As [`Reference.compute_checksum`]."""
        return _checksum(list(self.model.parameters()))


def _checksum(weights: list[Tensor]) -> int:
    total = 0
    for number, weight in enumerate(weights, start=1):
        state = getattr(weight, "quant_state", None)
        scales = (
            [] if state is None else [state.absmax, *([state.state2.absmax, state.offset] if state.nested else [])]
        )
        for tensor in (weight, *scales):
            total = (total + number * _sum_of_bits(tensor)) % 2**61
    return total


def _sum_of_bits(weight: Tensor) -> int:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()]
    return int(weight.detach().contiguous().view(integer).sum(dtype=torch.int64))

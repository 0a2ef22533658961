"""Distance between residual streams: the loss of ACT."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dtypes import at_least_float32


class _SquaredDistance(torch.autograd.Function):
    """Saves only its inputs for the backward pass. Autograd would also keep a float32 difference for each layer."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, reference: Tensor) -> Tensor:
        ctx.save_for_backward(student, reference)
        difference = at_least_float32(student) - at_least_float32(reference)
        return difference.square_().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        student, reference = ctx.saved_tensors
        difference = at_least_float32(student) - at_least_float32(reference)
        return difference.mul_(2 * grad.unsqueeze(-1)).to(student.dtype), None


def squared_distance(student: Tensor, reference: Tensor) -> Tensor:
    """
    Squared Euclidean distance at each position, `‖h - sg h0‖²`.

    Args:
        student (`torch.Tensor` of shape `(N, H)`):
            Residual stream of the student, `h`.
        reference (`torch.Tensor` of shape `(N, H)`):
            Residual stream of the reference at the same tokens, `h0`.

    Returns:
        `torch.Tensor` of shape `(N,)`: In float32 or float64, in squared units of the residual stream, summed over `H`.
    """
    return _SquaredDistance.apply(student, reference.detach())


def layer_distances(
    student: Sequence[Tensor], reference: Sequence[Tensor], span_ids: Tensor, num_spans: int
) -> Tensor:
    """
    Distance for each layer and pair, `1/|S| Σ_s ‖h_ls - sg h0_ls‖²`: [`activation_loss`] before its mean over layers.

    Args:
        student (`Sequence[torch.Tensor]`):
            As in [`activation_loss`].
        reference (`Sequence[torch.Tensor]`):
            As in [`activation_loss`].
        span_ids (`torch.LongTensor` of shape `(N,)`):
            As in [`activation_loss`].
        num_spans (`int`):
            As in [`activation_loss`].

    Returns:
        `torch.Tensor` of shape `(layers, num_spans)`: In float32 or float64, in squared units of the residual stream.
    """
    lengths = torch.bincount(span_ids, minlength=num_spans).clamp(min=1)
    distances = torch.stack(
        [
            squared_distance(of_student, of_reference)
            for of_student, of_reference in zip(student, reference, strict=True)
        ]
    )
    return distances.new_zeros(len(distances), num_spans).index_add(1, span_ids, distances) / lengths


def activation_loss(
    student: Sequence[Tensor], reference: Sequence[Tensor], span_ids: Tensor, num_spans: int
) -> Tensor:
    """
    Activation consistency loss (ACT) of each pair: `1/|layers| Σ_l 1/|S| Σ_s ‖h_ls - sg h0_ls‖²`.

    `S` is the shared span of a pair, and `h_l` the residual stream after block `l`. All pairs have the same weight,
    whatever the length of their spans. The loss of an empty span is 0.

    Source: Irpan, Turner et al., "Consistency Training Helps Stop Sycophancy and Jailbreaks", arXiv 2510.27062.

    Args:
        student (`Sequence[torch.Tensor]`):
            Residual stream of the student on the perturbed prompts, one tensor of shape `(N, H)` for each layer.
        reference (`Sequence[torch.Tensor]`):
            Residual stream of the reference on the clean prompts, at the same tokens.
        span_ids (`torch.LongTensor` of shape `(N,)`):
            Pair of each position, from 0 to `num_spans - 1`.
        num_spans (`int`):
            Number of pairs in the batch, including those with an empty span.

    Returns:
        `torch.Tensor` of shape `(num_spans,)`: In float32 or float64, in squared units of the residual stream.
    """
    return layer_distances(student, reference, span_ids, num_spans).mean(0)

"""Divergence between attention rows: the loss of AttCT."""

import torch
from torch import Tensor

from .dtypes import at_least_float32


# Below this mass on the shared keys, a row's distribution over them is numerical noise.
MIN_ROW_MASS = 1e-6


def attention_divergence(student: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """
    Jensen-Shannon divergence of the attention within one shared span, summed over heads and rows.

    `p_i` is row `i` of the student and `q_i` row `i` of the reference, restricted to the shared keys `j <= i` and
    scaled to sum to 1. The result is `Σ_heads Σ_i ½ KL(p_i ‖ m_i) + ½ KL(sg q_i ‖ m_i)`, `m_i = ½ (p_i + sg q_i)`,
    from 0 to `log 2` per row. A row whose mass before scaling is below `1e-6` on either side is left out and counted.

    Source: the AttCT research code, which does not scale the rows: its loss also depends on how much attention goes to
    keys outside the span (the cue, the system prompt). Here, only the distribution over the shared keys counts.

    Args:
        student (`torch.Tensor` of shape `(heads, S, S)`):
            Attention weights of the student (after the softmax): rows and columns of the shared span in the perturbed
            prompt. Entries above the diagonal are ignored.
        reference (`torch.Tensor` of shape `(heads, S, S)`):
            Attention weights of the reference, for the shared span in the clean prompt.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The sum over heads and rows in nats, in float32 or float64, and the number
        of rows (over all heads) that were left out. Both are scalars.
    """
    p, q = (at_least_float32(weights).tril() for weights in (student, reference.detach()))
    p_mass, q_mass = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
    counted = (p_mass >= MIN_ROW_MASS) & (q_mass >= MIN_ROW_MASS)
    p, q = (row / mass.where(counted, 1) for row, mass in ((p, p_mass), (q, q_mass)))
    # Clamping keeps the gradient of p log p finite at 0.
    smallest = torch.finfo(p.dtype).tiny
    log_m = ((p + q) / 2).clamp(min=smallest).log()
    p_term, q_term = (row * (row.clamp(min=smallest).log() - log_m) for row in (p, q))
    divergence = (p_term + q_term) / 2
    return divergence.where(counted, 0).sum(), (~counted).sum()

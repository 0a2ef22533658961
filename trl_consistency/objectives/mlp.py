"""Distance between MLP states: the loss of MLPCT."""

import torch.nn.functional as F
from torch import Tensor

from .dtypes import at_least_float32


def mlp_distance(student: Tensor, reference: Tensor, kind: str = "cosine") -> Tensor:
    """
    Distance between MLP states at each position, where `a` is the student's and `b` the reference's (no gradient):

    - `"cosine"`: `1 - a·b / (‖a‖ ‖b‖)`, from 0 to 2
    - `"mse"`: `1/I Σ_i (a_i - b_i)²`
    - `"smooth_l1"`: `1/I Σ_i d_i`, with `d_i = ½ (a_i - b_i)²` where `|a_i - b_i| < 1`, else `|a_i - b_i| - ½`

    Source: the research code of MLPCT (CTM).

    Args:
        student (`torch.Tensor` of shape `(N, I)`):
            Post-activation state of the student's MLP: the input of its down projection.
        reference (`torch.Tensor` of shape `(N, I)`):
            Post-activation state of the reference's MLP, at the same tokens.
        kind (`str`, *optional*, defaults to `"cosine"`):
            `"cosine"`, `"mse"` or `"smooth_l1"`.

    Returns:
        `torch.Tensor` of shape `(N,)`: In float32 or float64.

    Raises:
        `ValueError`: If `kind` is unknown.
    """
    a, b = at_least_float32(student), at_least_float32(reference.detach())
    if kind == "cosine":
        return 1 - F.cosine_similarity(a, b, dim=-1)
    if kind == "mse":
        return (a - b).square().mean(-1)
    if kind == "smooth_l1":
        return F.smooth_l1_loss(a, b, reduction="none").mean(-1)
    raise ValueError(f"There is no MLP distance `{kind}`: it can be `cosine`, `mse` or `smooth_l1`.")

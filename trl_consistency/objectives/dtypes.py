import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Returns the tensor in float32, or in float64 if it already is float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

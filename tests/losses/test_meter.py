from types import SimpleNamespace

import torch

from trl_consistency.losses.meter import LossMeter
from trl_consistency.losses.row_losses import RowLosses


class OnMPS(torch.Tensor):
    """A tensor that has no float64 before it is on the CPU, as on Apple's GPUs."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.double:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result.as_subclass(torch.Tensor) if function is torch.Tensor.cpu else result


def test_means_on_a_device_without_float64():
    meter, anchors = LossMeter(), torch.tensor([False, True])
    meter.add({"kl": RowLosses(torch.tensor([1.0, 5.0]), torch.tensor([1, 2]))}, anchors)
    of_device = SimpleNamespace(gather=lambda tensor: tensor.as_subclass(OnMPS))
    assert meter.means(of_device) == (0.5, {"kl": 2.0}, {"kl": 2.5})

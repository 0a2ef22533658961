import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from trl_consistency.finite import NotFiniteError
from trl_consistency.models.finite_weights import check_base
from trl_consistency.upstream import plain_tensors


def quantised(storage):
    layers = pytest.importorskip("bitsandbytes").nn
    layer = layers.Linear4bit(64, 64, bias=False, quant_type="nf4", quant_storage=storage, compress_statistics=False)
    torch.manual_seed(0)
    layer.weight.data = torch.randn(64, 64)
    return nn.Sequential(layer.to("cpu"))


def spoil_bits(model):
    """Bits that are an ordinary pair of 4-bit numbers, and NaN as bfloat16."""
    weight = model[0].weight
    weight.data.view(torch.uint8).fill_(0xFF)
    return weight


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_packed_weights_are_no_numbers(storage):
    """FSDP needs 4-bit weights in floating-point storage, whose bits may look like NaN."""
    model = quantised(storage)
    if model[0].weight.quant_state is None:
        pytest.skip("this version of bitsandbytes does not quantise on CPUs")
    weight = spoil_bits(model)
    assert storage == torch.uint8 or weight.isnan().all()
    check_base(model, "model")


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_their_scales_are(storage):
    model = quantised(storage)
    if model[0].weight.quant_state is None:
        pytest.skip("this version of bitsandbytes does not quantise on CPUs")
    model[0].weight.quant_state.absmax[0] = float("nan")
    with pytest.raises(NotFiniteError, match=r"0\.weight"):
        check_base(model, "model")


def test_other_weights_are():
    model = nn.Linear(2, 2)
    check_base(model, "model")
    with torch.no_grad():
        model.weight[0, 0] = float("inf")
    with pytest.raises(NotFiniteError, match="weight"):
        check_base(model, "model")


def test_tensors_within_a_weight():
    """As torchao holds numbers and scales."""
    one, two, three = torch.ones(2, 2), torch.ones(2, 2), torch.full((2, 2), float("nan"))
    within = plain_tensors(TwoTensor(one, TwoTensor(two, three)))
    assert [id(of) for of in within] == [id(of) for of in (one, two, three)]
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(TwoTensor(one, two))
    check_base(layer, "model")
    layer.weight = nn.Parameter(TwoTensor(one, three))
    with pytest.raises(NotFiniteError):
        check_base(layer, "model")

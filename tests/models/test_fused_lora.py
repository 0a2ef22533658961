"""Fused LoRA layers against PEFT's own, with the same weights."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from trl_consistency.models.fused_lora import FusedLoraLinear, _LinearWithAdapter, fuse_adapters


class Net(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.inner = nn.Linear(6, 5, bias=bias)
        self.outer = nn.Linear(5, 4, bias=False)

    def forward(self, x):
        return self.outer(self.inner(x).tanh())


def adapted(dtype=torch.float64, base=torch.float64, bias=True, **options):
    """Returns a net whose adapters change what it computes."""
    torch.manual_seed(0)
    model = get_peft_model(Net(bias), LoraConfig(r=2, lora_alpha=6, target_modules=["inner", "outer"], **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(dtype if "lora_" in name else base)
    return model.train()


def both(model):
    """Returns a model and a copy that is fused."""
    fused = copy.deepcopy(model)
    fuse_adapters(fused)
    assert [type(layer) is FusedLoraLinear for layer in layers(fused)] == [True, True]
    return model, fused


def layers(model):
    return [model.base_model.model.inner, model.base_model.model.outer]


def results(model, x, seed=0):
    """Returns the output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    torch.manual_seed(seed)
    output = model(x)
    model.zero_grad()
    output.float().square().sum().backward()
    return [output.detach(), x.grad] + [parameter.grad for parameter in model.parameters()]


def assert_alike(ours, theirs, **tolerance):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.fixture
def count(monkeypatch):
    """How many layers were computed in one step."""
    seen = []
    plain = _LinearWithAdapter.apply
    monkeypatch.setattr(_LinearWithAdapter, "apply", lambda *operands: seen.append(1) or plain(*operands))
    return seen


@pytest.mark.parametrize("shape", [(3, 6), (2, 3, 6), (0, 6), (2, 1, 3, 6)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_as_peft(count, shape, bias):
    x = torch.randn(*shape, dtype=torch.float64)
    theirs, ours = (results(model, x) for model in both(adapted(bias=bias)))
    assert_alike(ours, theirs, rtol=1e-12, atol=1e-12)
    assert len(count) == 2


@pytest.mark.parametrize(
    "options", [{"use_rslora": True}, {"rank_pattern": {"inner": 3}, "alpha_pattern": {"outer": 9}}]
)
def test_scaling_of_each_layer(count, options):
    x = torch.randn(3, 6, dtype=torch.float64)
    theirs, ours = (results(model, x) for model in both(adapted(**options)))
    assert_alike(ours, theirs, rtol=1e-12, atol=1e-12)
    assert len(count) == 2


def test_dropout_drops_the_same_numbers(count):
    x = torch.randn(64, 6, dtype=torch.float64)
    model, fused = both(adapted(lora_dropout=0.5))
    assert_alike(results(fused, x), results(model, x), rtol=1e-12, atol=1e-12)
    assert not torch.equal(results(fused, x, seed=1)[0], results(fused, x)[0])
    assert_alike(results(fused.eval(), x), results(model.eval(), x), rtol=1e-12, atol=1e-12)
    assert len(count) == 8


def test_gradients_against_numeric_ones():
    *operands, scaling = both(adapted())[1].base_model.model.inner._operands(torch.randn(3, 6, dtype=torch.float64))
    x, _, weight, bias, first, second = operands
    for dropped in (None, torch.randn(3, 6, dtype=torch.float64).requires_grad_()):
        inputs = x.requires_grad_(), dropped, weight, bias, first, second, scaling
        assert torch.autograd.gradcheck(_LinearWithAdapter.apply, inputs)


def test_input_and_adapter_that_need_no_gradient(count):
    model, fused = both(adapted())
    x = torch.randn(3, 6, dtype=torch.float64)
    for of in (model, fused):
        of.base_model.model.inner.lora_A.requires_grad_(False)
        of(x).sum().backward()
    for one, other in zip(fused.parameters(), model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))
    assert len(count) == 4


@pytest.mark.parametrize("base", [torch.float32, torch.bfloat16])
def test_autocast(count, base):
    """Both round to bfloat16, at other places: each is compared with the result in float32."""
    x = torch.randn(64, 6)
    model, fused = both(adapted(torch.float32, base))
    exact = results(adapted(torch.float32, torch.float32), x)
    with torch.autocast("cpu", torch.bfloat16):
        theirs, ours = (results(of, x) for of in (model, fused))
    assert len(count) == 2
    for one, other, right in zip(ours, theirs, exact, strict=True):
        if one is None:
            assert other is None
            continue
        assert one.dtype == other.dtype
        error, of_peft = ((of.float() - right).norm() / right.norm() for of in (one, other))
        assert error < 0.05, f"{error} (PEFT: {of_peft})"


def test_all_in_bfloat16(count):
    x = torch.randn(64, 6, dtype=torch.bfloat16)
    theirs, ours = (results(of, x) for of in both(adapted(torch.bfloat16, torch.bfloat16)))
    for one, other in zip(ours, theirs, strict=True):
        if one is not None:
            assert (one - other).float().norm() / other.float().norm() < 0.05
    assert len(count) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(count, reentrant):
    model, fused = both(adapted())
    x = torch.randn(3, 6, dtype=torch.float64)

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(fused, x, use_reentrant=reentrant)

    checkpointed.zero_grad, checkpointed.parameters = fused.zero_grad, fused.parameters
    assert_alike(results(checkpointed, x), results(model, x))
    assert len(count) == 4


def disabled(model):
    model.base_model.disable_adapter_layers()


def merged(model):
    model.merge_adapter()


def two_adapters(model):
    model.add_adapter("other", LoraConfig(r=2, target_modules=["inner", "outer"], init_lora_weights=False))
    model.double()
    model.base_model.set_adapter(["default", "other"])


def hook(of):
    def add(model):
        for layer in layers(model):
            of(layer).register_forward_hook(lambda module, args, output: output * 2)

    return add


def other_forward(model):
    for layer in layers(model):
        layer.base_layer.forward = lambda x, plain=layer.base_layer.forward: plain(x) * 2


def trained_base(model):
    for layer in layers(model):
        layer.base_layer.weight.requires_grad_()


@pytest.mark.parametrize(
    "change",
    [
        disabled,
        merged,
        two_adapters,
        hook(lambda layer: layer.base_layer),
        hook(lambda layer: layer.lora_A["default"]),
        hook(lambda layer: layer.lora_B["default"]),
        other_forward,
        trained_base,
    ],
    ids=["disabled", "merged", "two adapters", "hook", "hook of A", "hook of B", "other forward", "trained base"],
)
def test_left_to_peft(count, change):
    model, fused = both(adapted())
    for of in (model, fused):
        torch.manual_seed(1)
        change(of)
    x = torch.randn(3, 6, dtype=torch.float64)
    theirs, ours = (results(of, x) for of in (model, fused))
    assert_alike(ours, theirs, rtol=0, atol=0)
    assert not count


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}])
def test_other_kinds_are_left_to_peft(count, options):
    model, fused = both(adapted(torch.float32, torch.float32, **options))
    x = torch.randn(3, 6)
    assert_alike(results(fused, x), results(model, x), rtol=0, atol=0)
    assert not count


def test_adapters_of_another_precision_are_left_to_peft(count):
    model, fused = both(adapted(torch.float32, torch.bfloat16))
    x = torch.randn(3, 6, dtype=torch.bfloat16)
    assert_alike(results(fused, x), results(model, x), rtol=0, atol=0)
    assert not count


def test_it_stays_a_layer_of_peft(tmp_path):
    model, fused = both(adapted(torch.float32, torch.float32))
    x = torch.randn(3, 6)
    torch.save(fused, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    torch.testing.assert_close(loaded(x), model(x))
    torch.testing.assert_close(copy.deepcopy(fused).merge_and_unload()(x), model(x))
    assert fused.state_dict().keys() == model.state_dict().keys()
    fused.base_model.disable_adapter_layers()
    model.base_model.disable_adapter_layers()
    assert torch.equal(fused(x), model(x))

"""Fused LoRA layers against PEFT's own, with the same weights."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from trl_consistency.models.fused_lora import FusedLoraLinear, _LinearWithAdapter, fuse_adapters


class Net(nn.Module):
    """`between` is what comes between its layers."""

    def __init__(self, bias=True):
        super().__init__()
        self.inner = nn.Linear(6, 5, bias=bias)
        self.outer = nn.Linear(5, 4, bias=False)
        self.between = torch.tanh

    def forward(self, x):
        return self.outer(self.between(self.inner(x)))


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
    assert len(count) == 2


def test_without_gradients_peft_is_faster(count):
    model, fused = both(adapted())
    with torch.no_grad():
        assert torch.equal(fused(torch.ones(3, 6).double()), model(torch.ones(3, 6).double()))
    assert not count


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
    assert len(count) == (2 if reentrant else 4)  # A reentrant one runs first without gradients.


@pytest.mark.parametrize("shape", [(3, 6), (2, 3, 6)], ids=str)
@pytest.mark.parametrize("change", [torch.Tensor.relu_, lambda h: h.clamp_(-1, 1), lambda h: h.view(-1, 5).mul_(2)])
def test_output_that_is_changed_in_place(count, change, shape):
    model, fused = both(adapted())
    for of in (model, fused):
        of.base_model.model.between = change
    x = torch.randn(*shape, dtype=torch.float64)
    assert_alike(results(fused, x), results(model, x))
    assert len(count) == 2


def test_backward_inside_autocast():
    """Of a forward outside it."""
    model, fused = both(adapted(torch.float32, torch.float32))
    x = torch.randn(3, 6)
    found = []
    for of in (model, fused):
        ours = x.clone().requires_grad_()
        output = of(ours)
        with torch.autocast("cpu", torch.bfloat16):
            output.square().sum().backward()
        found.append([ours.grad, *(parameter.grad for parameter in of.parameters() if parameter.requires_grad)])
    assert_alike(found[1], found[0], rtol=0.05, atol=1.0)
    assert all(grad.dtype == torch.float32 for grad in found[1])


def test_small_scaling_keeps_half_precision_finite():
    """What is summed over tokens is scaled before."""
    model, fused = both(adapted(torch.float16, torch.float16))
    x = torch.full((4096, 6), 8.0, dtype=torch.float16)
    for of in (model, fused):
        for layer in layers(of):
            layer.scaling["default"] = 2.0**-8
        (of.base_model.model.inner(x) * 8).sum().backward()
    for one, other in zip(fused.parameters(), model.parameters(), strict=True):
        if other.grad is not None:
            assert other.grad.isfinite().all()
            torch.testing.assert_close(one.grad, other.grad, rtol=0.01, atol=0.1)


def test_a_frozen_adapter_keeps_no_input():
    """So the next operation may change it in place, as with PEFT."""
    model, fused = both(adapted())
    for of in (model, fused):
        of.requires_grad_(False)
        x = torch.ones(3, 6, dtype=torch.float64, requires_grad=True)
        h = x * 1
        output = of(h)
        h.add_(1)
        output.sum().backward()
        of.found = x.grad
    torch.testing.assert_close(fused.found, model.found)


def test_a_base_that_is_no_parameter_but_trained(count):
    """As in the copies of `nn.DataParallel`."""
    model, fused = both(adapted())
    found = []
    for of in (model, fused):
        layer = of.base_model.model.inner.base_layer
        weight = layer.weight.detach().clone().requires_grad_()
        del layer.weight
        layer.weight = weight
        of(torch.ones(3, 6, dtype=torch.float64)).square().sum().backward()
        found.append(weight.grad)
    torch.testing.assert_close(found[1], found[0])
    assert len(count) == 1  # the other layer


def second_derivative(model, x):
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    grad.sum().backward()
    return x.grad


def test_a_second_derivative_is_an_error():
    model, fused = both(adapted())
    x = torch.randn(3, 6, dtype=torch.float64)
    assert second_derivative(model, x).any()
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second_derivative(fused, x)


def per_row(model):
    return lambda x: torch.func.vmap(model)(x)


def counted(model):
    def run(x):
        with FlopCounterMode(display=False) as counter:
            output = model(x)
        return output * counter.get_total_flops()

    return run


def traced(model):
    return torch.jit.trace(model, torch.randn(2, 3, 6, dtype=torch.float64), check_trace=False)


def compiled(model):
    return torch.compile(model, backend="eager", fullgraph=True)


def of_meta(model):
    model.to("meta")
    return lambda x: torch.empty_like(model(x.to("meta")), device="cpu").zero_()


def seen_by_a_global_hook(model):
    def run(x):
        handle = register_module_forward_hook(lambda module, args, output: names.append(type(module)))
        names = []
        try:
            return model(x) * len(names)
        finally:
            handle.remove()

    return run


@pytest.mark.parametrize("way", [per_row, counted, traced, compiled, of_meta, seen_by_a_global_hook])
def test_operations_that_are_looked_at_are_left_to_peft(count, way):
    model, fused = both(adapted())
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    assert torch.equal(way(fused)(x), way(model)(x))
    assert not count


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


def trained_scaling(model):
    for layer in layers(model):
        layer.scaling["default"] = torch.tensor(2.0, dtype=torch.float64)


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
        trained_scaling,
        trained_base,
    ],
    ids=[
        "disabled",
        "merged",
        "two adapters",
        "hook",
        "hook of A",
        "hook of B",
        "other forward",
        "trained scaling",
        "trained base",
    ],
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


def test_dropout_in_place_is_left_to_peft(count):
    model, fused = both(adapted())
    for of in (model, fused):
        layers(of)[1].lora_dropout["default"] = nn.Dropout(0.5, inplace=True)
        of.base_model.model.between = lambda h: h * 2  # which keeps nothing
    x = torch.randn(3, 6, dtype=torch.float64)
    assert_alike(results(fused, x), results(model, x))
    assert len(count) == 1  # the other layer


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}])
def test_other_kinds_are_left_to_peft(count, options):
    model, fused = both(adapted(torch.float32, torch.float32, **options))
    x = torch.randn(3, 6)
    assert_alike(results(fused, x), results(model, x), rtol=0, atol=0)
    assert not count


def test_adapters_of_another_precision_are_left_to_peft(count):
    """And nothing is drawn before."""
    model, fused = both(adapted(torch.float32, torch.bfloat16, lora_dropout=0.5))
    x = torch.randn(3, 6, dtype=torch.bfloat16)
    assert_alike(results(fused, x), results(model, x), rtol=0, atol=0)
    assert not count


def test_it_stays_a_layer_of_peft(tmp_path):
    model, fused = both(adapted(torch.float32, torch.float32))
    x = torch.randn(3, 6)
    assert repr(fused) == repr(model)
    torch.save(fused, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    torch.testing.assert_close(loaded(x), model(x))
    torch.testing.assert_close(copy.deepcopy(fused).merge_and_unload()(x), model(x))
    assert fused.state_dict().keys() == model.state_dict().keys()
    fused.base_model.disable_adapter_layers()
    model.base_model.disable_adapter_layers()
    assert torch.equal(fused(x), model(x))

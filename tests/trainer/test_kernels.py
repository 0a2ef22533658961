"""Kernels in place of layers (`use_liger_kernel`, `use_kernels`): stand-ins that compute the same, and are seen to run."""

import sys
from types import ModuleType

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from tests.helpers import on_policy, paired
from tests.helpers.models import make_model, make_pairs
from tests.helpers.runs import losses
from trl_consistency import ConsistencyConfig, ConsistencyError, ConsistencyTrainer
from trl_consistency.trainer.run import checks


OBJECTIVES = ["bct", "mlpct", "opct"]


def replace_layers(model, calls):
    """The kernel of a norm."""

    def kernel(self, hidden):
        calls.append(hidden.shape)
        wide = hidden.float()
        return self.weight * (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.variance_epsilon))

    for module in model.modules():
        if isinstance(module, Qwen3RMSNorm):
            module.forward = kernel.__get__(module)


@pytest.fixture
def kernels(monkeypatch):
    """Stand-ins for both packages; notes their calls and how Liger is called."""
    calls, options = [], []
    found = checks.find_spec
    monkeypatch.setattr(checks, "find_spec", lambda name: name if name in ("liger_kernel", "kernels") else found(name))
    monkeypatch.setattr("transformers.integrations.liger.is_liger_kernel_available", lambda: True)
    liger = ModuleType("liger_kernel.transformers")
    liger._apply_liger_kernel_to_instance = lambda model, **kwargs: (
        options.append(kwargs) or replace_layers(model, calls)
    )
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", liger)
    monkeypatch.setattr(
        PreTrainedModel,
        "set_use_kernels",
        lambda self, use_kernels, *_: use_kernels and replace_layers(self, calls),
    )
    return calls, options


def losses_of(tmp_path, objective, model=None, **options):
    options = {
        "max_steps": 2,
        "logging_steps": 1,
        "lora": True,
        "model": make_model() if model is None else model,
        **options,
    }
    if objective == "opct":
        trainer = on_policy.replay(on_policy.make_trainer(tmp_path, **options))
        on_policy.moved(trainer.model)
    else:
        trainer = paired.make_trainer(tmp_path, method=[objective], **options)
    trainer.train()
    return losses(trainer)


@pytest.mark.long
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_liger_kernels_change_nothing(tmp_path, kernels, objective):
    calls, options = kernels
    expected = losses_of(tmp_path, objective)
    assert not calls
    assert losses_of(tmp_path, objective, use_liger_kernel=True) == pytest.approx(expected, rel=1e-4)
    assert calls
    assert options == [{"fused_linear_cross_entropy": False}]


@pytest.mark.parametrize("objective", ["act"])
def test_hub_kernels_change_nothing(tmp_path, kernels, model_dir, objective):
    calls, _ = kernels
    expected = losses_of(tmp_path, objective, str(model_dir))
    assert not calls
    options = {"model_init_kwargs": {"use_kernels": True}}
    assert losses_of(tmp_path, objective, str(model_dir), **options) == pytest.approx(expected, rel=1e-4)
    assert calls


def test_an_mlp_in_one_kernel_has_no_state(tmp_path, monkeypatch):
    def whole(self, hidden):
        inner = torch.nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        return inner @ self.down_proj.weight.T

    monkeypatch.setattr(Qwen3MLP, "forward", whole)
    with pytest.raises(ConsistencyError, match="2 blocks have 0 states to compare: a kernel computes"):
        losses_of(tmp_path, "mlpct", lora=False)


@pytest.mark.parametrize("make", [paired.make_trainer, on_policy.make_trainer])
def test_a_loss_in_the_kernel_is_refused(tmp_path, kernels, make):
    config = {"fused_linear_cross_entropy": True}
    with pytest.raises(ConsistencyError, match="sets `fused_linear_cross_entropy`"):
        make(tmp_path, use_liger_kernel=True, liger_kernel_config=config)


def test_hub_kernels_need_their_package(tmp_path, model_dir, monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    args = ConsistencyConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, model_init_kwargs={"use_kernels": True}
    )
    with pytest.raises(ConsistencyError, match="`use_kernels` needs the package `kernels`: `pip install kernels`"):
        ConsistencyTrainer(str(model_dir), args=args, train_dataset=make_pairs())

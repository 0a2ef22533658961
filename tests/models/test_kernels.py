"""Packages with fast kernels, against what transformers looks for."""

import re
import sys

import pytest
import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BambaConfig, FalconH1Config, FalconMambaConfig, KimiLinearConfig

from tests.helpers.architectures import CONFIGS, HYBRIDS, add_lora, make
from tests.helpers.paired import make_trainer
from trl_consistency.errors import ConsistencyError
from trl_consistency.models import kernels
from trl_consistency.models.kernels import (
    PACKAGES,
    check_adapted_kernels,
    kernel_modules,
    missing_kernels,
    warn_of_missing_kernels,
)
from trl_consistency.trainer import base


OTHERS = {
    "bamba": BambaConfig,
    "falcon_h1": FalconH1Config,
    "falcon_mamba": FalconMambaConfig,
    "kimi_linear": KimiLinearConfig,
}


def model_of(kind):
    config = {**CONFIGS, **HYBRIDS, **OTHERS}[kind]()
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.fixture
def installed(monkeypatch):
    found = set()
    PartialState()  # the logger asks which process it is
    monkeypatch.setattr(kernels, "find_spec", lambda name: name if name in found else None)
    return found


def said(caplog):
    return [record.getMessage() for record in caplog.records if "fast kernels" in record.getMessage()]


@pytest.mark.parametrize("kind", [*HYBRIDS, *OTHERS, "llama", "gemma4", "qwen3_moe"])
def test_modules_are_those_that_transformers_looks_for(kind):
    model = model_of(kind)
    with open(sys.modules[type(model).__module__].__file__) as file:
        wanted = set(re.findall(r'_with_fallback\("\w+", "(\w+)"\)', file.read()))
    assert kernel_modules(model) == sorted(wanted)
    assert wanted <= PACKAGES.keys()
    assert bool(wanted) == (kind in HYBRIDS or kind in OTHERS)


def test_missing_packages_are_named_once(installed, caplog):
    model = add_lora(make("qwen3_5"))
    installed.add("causal_conv1d")
    assert missing_kernels(model) == ["flash-linear-attention"]
    for _ in range(2):
        warn_of_missing_kernels(model, "cuda")
    (message,) = said(caplog)
    assert "`Qwen3_5ForCausalLM` runs without" in message
    assert message.endswith("Install them: `pip install flash-linear-attention`.")


def test_nothing_is_said_where_nothing_is_missing(installed, caplog):
    warn_of_missing_kernels(make("llama"), "cuda")
    model = make("nemotron_h")
    warn_of_missing_kernels(model, "cpu")
    model._use_kernels = True
    assert missing_kernels(model) == []
    model._use_kernels = False
    assert missing_kernels(model) == ["causal-conv1d", "mamba-ssm"]
    installed |= {"causal_conv1d", "mamba_ssm"}
    warn_of_missing_kernels(model, "cuda")
    assert not said(caplog)


@pytest.mark.parametrize("kind", ["granitemoehybrid", "bamba"])
@pytest.mark.parametrize("target", ["all-linear", ["in_proj", "q_proj", "o_proj"]])
def test_an_adapter_that_the_kernel_reads_past_is_refused(installed, tmp_path, kind, target):
    """Of Mamba's output projection: neither was it trained, nor did one that the model came with act in training."""
    model = make(kind) if kind in HYBRIDS else model_of(kind)
    model = get_peft_model(model, LoraConfig(target_modules=target))
    check_adapted_kernels(model)  # without the kernel, torch calls the layer
    installed |= {"causal_conv1d", "mamba_ssm"}
    if target == "all-linear":
        with pytest.raises(
            ConsistencyError, match=r"on `base_model.*\.out_proj`, whose weights mamba-ssm's kernel reads past it"
        ):
            check_adapted_kernels(model)
    else:
        check_adapted_kernels(model)


def test_the_trainer_warns(tmp_path, monkeypatch):
    """On the device that it trains on: here a CPU, for which there are no such kernels."""
    seen = []
    monkeypatch.setattr(base, "warn_of_missing_kernels", lambda model, device_type: seen.append((model, device_type)))
    trainer = make_trainer(tmp_path)
    assert seen == [(trainer.model, "cpu")]

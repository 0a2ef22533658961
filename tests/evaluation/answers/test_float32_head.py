"""Logits in float32, against a head in float32 on the states that the model's head gets."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.helpers import architectures
from tests.helpers.models import keeping_all_logits, make_model
from trl_consistency.evaluation.answers import float32_head
from trl_consistency.evaluation.answers.float32_head import float32_logits


KINDS = ("plain", "bias", "soft cap", "all logits", "LoRA", "trained copy")
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])


def made(kind):
    """A model in bfloat16, and the linear layers that make its logits."""
    model = (architectures.make("gemma2") if kind == "soft cap" else make_model()).bfloat16()
    head = model.get_output_embeddings()
    torch.nn.init.normal_(head.weight)
    if kind == "bias":
        head.bias = torch.nn.Parameter(torch.randn(head.out_features).bfloat16())
    if kind == "all logits":
        model = keeping_all_logits(model)
    if kind == "LoRA":
        config = LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
        model = get_peft_model(model, config, autocast_adapter_dtype=False)
        lora = model.base_model.model.lm_head
        return model.eval(), [lora.base_layer, lora.lora_A["default"], lora.lora_B["default"]]
    if kind == "trained copy":
        config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
        model = get_peft_model(model, config, autocast_adapter_dtype=False)
        head = model.base_model.model.lm_head.modules_to_save["default"]
        torch.nn.init.normal_(head.weight)
    return model.eval(), [head]


def exact_logits(kind, layers, states):
    head, *factors = layers
    logits = states.float() @ head.weight.float().T
    if kind == "bias":
        logits += head.bias.float()
    if kind == "soft cap":
        return 0.5 * torch.tanh(logits / 0.5)
    if factors:  # whose scale is 8 / 2 by default
        logits += 4 * (factors[0](states).float() @ factors[1].weight.float().T)
    return logits


@torch.no_grad()
@pytest.mark.parametrize("chunk", [100, 8192])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_head_in_float32(kind, chunk, monkeypatch):
    """Whatever stands around the head, and in pieces of few of its rows."""
    model, layers = made(kind)
    states, sizes = [], []
    layers[0].register_forward_pre_hook(lambda module, inputs: states.append(inputs[0][:, -3:]))
    linear = float32_head.F.linear
    monkeypatch.setattr(float32_head, "CHUNK", chunk)
    with monkeypatch.context() as patched, float32_logits(model, 3):
        patched.setattr(float32_head.F, "linear", lambda *of: sizes.append((of[1].dtype, len(of[1]))) or linear(*of))
        logits = model(input_ids=IDS, logits_to_keep=3).logits
    exact = exact_logits(kind, layers, states[0])
    torch.testing.assert_close(logits[:, -3:], exact, rtol=1e-5, atol=1e-5)
    assert max(size for dtype, size in sizes if dtype == torch.float32) == min(chunk, layers[0].out_features)
    rounded = model(input_ids=IDS, logits_to_keep=3).logits[:, -3:]
    assert rounded.dtype == torch.bfloat16, "as before"
    assert (rounded.float() - exact).abs().max() > 1e-4


@torch.no_grad()
def test_a_model_in_float32_is_left_alone(model):
    expected = model(input_ids=IDS).logits
    with float32_logits(model, 1):
        assert model(input_ids=IDS).logits.equal(expected)


@torch.no_grad()
def test_a_head_under_autocast(model):
    """It gives bfloat16, though its weights are in float32."""
    states = []
    model.lm_head.register_forward_pre_hook(lambda module, inputs: states.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16), float32_logits(model, 6):
        logits = model(input_ids=IDS).logits
    torch.testing.assert_close(logits, states[0].float() @ model.lm_head.weight.T)

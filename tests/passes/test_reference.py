"""The reference: the initial policy, whatever the student has become."""

import copy

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from tests.helpers.architectures import add_lora, make
from tests.helpers.runs import LORA
from trl_consistency import ConsistencyError
from trl_consistency.passes.reference import Reference


def test_reference_runs_without_gradient_dropout_and_adapter_and_gives_the_student_back():
    model = add_lora(make("llama")).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.get_parameter(next(iter(before))).requires_grad_(False)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    seen = []

    def fail_inside():
        with Reference(model, adapter_off=True).active(model) as frozen:
            seen.extend([torch.is_grad_enabled(), frozen.training, frozen.get_model_status().enabled])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert seen == [False, False, False]
    assert model.training
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert model.get_model_status().enabled is True
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("adapter", [False, True])
def test_reference_of_what_trains_itself_is_its_initial_state(adapter):
    model = add_lora(make("qwen3")) if adapter else make("qwen3")
    initial = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not adapter or "lora_" in name)
    reference = Reference(model, adapter_off=False)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
        expected, moved = initial(ids).logits, model(ids).logits
        with reference.active(model) as frozen:
            assert torch.equal(frozen(ids).logits, expected)
        assert torch.equal(model(ids).logits, moved)
    assert (moved - expected).abs().max() > 0.01
    reference.check()


def test_reference_within_autocast_of_a_script():
    """Autocast keeps cast weights by parameter: the reference, or the student after it, ran with the other's."""
    model = make("qwen3")
    initial = copy.deepcopy(model)
    reference, ids = Reference(model, adapter_off=False), torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)

    def in_bf16(of):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return of(ids).logits

    expected, moved = in_bf16(initial), in_bf16(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(ids).logits, moved)
        with reference.active(model) as frozen:
            assert torch.equal(frozen(ids).logits, expected)
        assert torch.equal(model(ids).logits, moved)
    assert not torch.equal(expected, moved)


@pytest.mark.parametrize(
    ("leave", "way_out"),
    [
        (lambda model: model.merge_adapter(), "unmerge_adapter"),
        (lambda model: model.base_model.disable_adapter_layers(), "enable_adapter_layers"),
        (lambda model: (model.add_adapter("other", LoraConfig(**LORA)), model.set_adapter("other")), "set_adapter"),
        (
            lambda model: (
                model.add_adapter("other", LoraConfig(**LORA)),
                model.base_model.set_adapter(["default", "other"]),
            ),
            "set_adapter",
        ),
    ],
    ids=["merged", "off", "another", "two"],
)
def test_reference_of_an_adapter_that_does_not_act(leave, way_out):
    """The base model, or another adapter, was compared with itself. With a new adapter, the reference has it off anyway."""
    model = add_lora(make("qwen3"))
    own, new = Reference(model, adapter_off=False), Reference(model, adapter_off=True)
    leave(model)
    with pytest.raises(ConsistencyError, match=rf"with its adapter, and that is .*`{way_out}\("), own.active(model):
        pass
    with new.active(model):
        pass


def test_reference_of_a_learned_prompt_that_is_switched_off():
    model = get_peft_model(make("qwen3"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    reference = Reference(model, adapter_off=False)
    with (
        model.disable_adapter(),
        pytest.raises(ConsistencyError, match=r"switched off \(`disable_adapter\(\)`\)"),
        reference.active(model),
    ):
        pass
    with reference.active(model):
        pass


@pytest.mark.parametrize("adapter_off", [False, True])
def test_a_reference_that_changed_is_an_error(adapter_off):
    model = add_lora(make("llama"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    reference = Reference(model, adapter_off)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "lora_B" in n).add_(1)
    reference.check()
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "lora_" not in n).view(-1)[7].add_(1e-6)
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        reference.check()


def test_a_weight_that_was_replaced_is_noticed():
    """As PEFT replaces 4-bit weights when it merges an adapter."""
    model = add_lora(make("llama"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    reference = Reference(model, adapter_off=True)
    embedding = model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(embedding.weight + 1e-3, requires_grad=False)
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        reference.check()

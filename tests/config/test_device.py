"""Without an accelerator: the CPU and float32, bfloat16 where asked for, and one line that says so."""

import pytest
import torch
from peft import LoraConfig

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from trl_consistency import (
    ConsistencyConfig,
    ConsistencyError,
    ConsistencyTrainer,
    OnPolicyConsistencyConfig,
    OnPolicyConsistencyTrainer,
)
from trl_consistency.config.device import own_randomness
from trl_consistency.generation.options import reads_padding
from trl_consistency.models.loading import load_model


CONFIGS = [ConsistencyConfig, OnPolicyConsistencyConfig]


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch):
    """As on a machine without one, and with nothing said yet."""

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)


def make_trainer(config, tmp_path, method="kl", peft_config=None, **options):
    defaults = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    defaults |= {"per_device_train_batch_size": 8, "max_completion_length": 4, "gradient_checkpointing": False}
    arguments = {"train_dataset": make_pairs(8), "processing_class": make_tokenizer(), "peft_config": peft_config}
    kind = OnPolicyConsistencyTrainer if config is OnPolicyConsistencyConfig else ConsistencyTrainer
    options |= {"method": method} if kind is ConsistencyTrainer else {}
    return kind(make_model(), args=config(str(tmp_path), **defaults, **options), **arguments)


@pytest.mark.parametrize("config", CONFIGS)
def test_defaults_run_on_the_cpu_in_float32(tmp_path, config, caplog):
    trainer = make_trainer(config, tmp_path)
    trainer.train()
    assert (trainer.args.use_cpu, trainer.args.bf16, trainer.args.device.type) == (True, False, "cpu")
    assert trainer.accelerator.mixed_precision == "no"
    said = [record.getMessage() for record in caplog.records if "CPU" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith("The model runs on the CPU, in float32.")


def test_random_numbers_of_mps_are_put_back(monkeypatch):
    """Of the stand-in for Apple's GPUs, whose state torch does not keep by device."""
    states = ["before"]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", states.append)
    before = torch.get_rng_state()
    with own_randomness(torch.device("mps")):
        torch.manual_seed(1)
        states.append("within")
    assert states[-1] == "before"
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("config", CONFIGS)
def test_what_needs_an_accelerator_is_refused(tmp_path, config):
    with pytest.raises(ConsistencyError, match="`fp16` needs an accelerator, and there is none here"):
        config(str(tmp_path), fp16=True)
    with pytest.raises(ConsistencyError, match="`fp16` needs an accelerator, and the run is on the CPU"):
        config(str(tmp_path), fp16=True, use_cpu=True)
    assert config(str(tmp_path), use_cpu=True).bf16 is False


@pytest.mark.parametrize("config", CONFIGS)
def test_bf16_is_asked_for_by_the_option_or_of_accelerate(tmp_path, config, monkeypatch):
    assert config(str(tmp_path), bf16=True).bf16
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert config(str(tmp_path)).bf16
    assert config(str(tmp_path), bf16=True).bf16
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # which `accelerate launch` sets unless told otherwise
    assert config(str(tmp_path), bf16=True).bf16
    assert not config(str(tmp_path), bf16=False).bf16


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("launched", "options", "said"),
    [
        ("bf16", {"bf16": False}, "`bf16` is false"),
        ("fp16", {"bf16": False}, "`bf16` is false"),
        ("fp16", {"bf16": True}, "`bf16` is true"),
        ("fp16", {}, "neither `bf16` nor `fp16` is set"),
        ("bf16", {"fp16": True}, "`fp16` is true"),
    ],
)
def test_precisions_that_contradict_each_other_are_refused(tmp_path, config, launched, options, said, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    with pytest.raises(ConsistencyError, match=f"{said}, and `ACCELERATE_MIXED_PRECISION` is {launched} "):
        config(str(tmp_path), **options)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("lora", [True, False])
def test_bf16_is_what_both_passes_run_in(tmp_path, config, lora):
    """And the student's gradients are its own: the weights that the reference's pass has cast are not kept."""

    def first_step(bf16):
        peft_config = LoraConfig(r=4, target_modules="all-linear") if lora else None
        trainer = make_trainer(config, tmp_path, ["kl", "act"], peft_config, bf16=bf16, temperature=1.0)
        seen, grads = set(), {}
        reads_padding(trainer.model)  # tried once, in the precision of the weights
        block = trainer.model.get_base_model().model.layers[0] if lora else trainer.model.model.layers[0]
        block.self_attn.q_proj.register_forward_hook(
            lambda module, args, output: seen.add((torch.is_grad_enabled(), output.dtype))
        )
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2) if "lora_B" in name else None
                parameter.register_hook(lambda grad, name=name: grads.update({name: grad.clone()}))
        trainer.train()
        return trainer.state.log_history[0]["loss"], grads, seen

    loss, grads, _ = first_step(bf16=False)
    mixed_loss, mixed_grads, seen = first_step(bf16=True)
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
    assert {grad for grad, _ in seen} == {True, False}
    assert mixed_grads.keys() == grads.keys()
    if config is ConsistencyConfig:  # rollouts in another precision are others
        assert mixed_loss == pytest.approx(loss, rel=0.05)
        whole, mixed = (torch.cat([of[name].flatten() for name in grads]) for of in (grads, mixed_grads))
        assert torch.cosine_similarity(whole, mixed, dim=0) > 0.99


def test_models_to_measure(tmp_path, monkeypatch, caplog):
    make_model().bfloat16().save_pretrained(tmp_path / "half")
    make_tokenizer().save_pretrained(tmp_path / "half")
    name = str(tmp_path / "half")
    assert load_model(name)[0].dtype == torch.float32
    assert next(record.getMessage() for record in caplog.records if "CPU" in record.getMessage()).endswith(
        f"{name} runs on the CPU, in float32."
    )
    assert load_model(name, cpu_dtype="auto")[0].dtype == torch.bfloat16
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert load_model(name)[0].dtype == torch.bfloat16

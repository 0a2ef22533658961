"""Training and evaluation on a GPU, beside the same on the CPU. `pytest -m gpu`."""

import pytest
import torch
from peft import LoraConfig

from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import replay, uneven_pairs
from tests.helpers.runs import LORA, losses, weights
from trl_consistency import ConsistencyTrainer
from trl_consistency.evaluation import AnswerOptions, evaluate
from trl_consistency.evaluation.answers.generate import generate_ids
from trl_consistency.passes.prefix_sharing import PrefixSharing


pytestmark = pytest.mark.gpu

METHODS = ["bct", "kl", "act", "mlpct", "attct", "bct act", "opct", "opct_policy_gradient"]
STEPS = 4


def make_trainer(folder, method, on_cpu, lora=True, **options):
    eager = "attct" in method
    model = make_model(attention="eager" if eager else None)
    options = {
        "use_cpu": on_cpu,
        "optim": "sgd",  # Adam makes much of the last digits of small gradients
        "learning_rate": 0.1,
        "max_steps": STEPS,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        **options,
    }
    samples = method.startswith("opct")
    if method.endswith("policy_gradient"):
        options["loss_type"] = "policy_gradient"
    trainer = trainer_of(
        "opct" if samples else method.split(),
        folder,
        model,
        options,
        train_dataset=uneven_pairs() if samples else make_pairs(),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA) if lora else None,
    )
    assert trainer.accelerator.device.type == ("cpu" if on_cpu else "cuda")
    return trainer


def trained(folder, method, on_cpu, **options):
    trainer = make_trainer(folder, method, on_cpu, **options)
    if method.startswith("opct"):
        replay(trainer)  # the devices draw other random numbers
    trainer.train()
    assert len(losses(trainer)) == options.get("max_steps", STEPS)
    return trainer


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("method", METHODS)
def test_trains_as_on_the_cpu(tmp_path, method, lora):
    cpu = trained(tmp_path / "cpu", method, on_cpu=True, lora=lora)
    gpu = trained(tmp_path / "gpu", method, on_cpu=False, lora=lora)
    assert losses(gpu) == pytest.approx(losses(cpu), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(gpu.model).cpu(), weights(cpu.model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["bct", "kl"])
def test_packed_pairs(tmp_path, method):
    options = {"packing": True, "max_length": 160, "per_device_train_batch_size": 1}
    cpu, gpu = (trained(tmp_path / str(on_cpu), method, on_cpu, **options) for on_cpu in (True, False))
    assert len(gpu.packed) < len(gpu.train_dataset)
    assert losses(gpu) == pytest.approx(losses(cpu), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(gpu.model).cpu(), weights(cpu.model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_is_near_float32(tmp_path, method, checkpointing):
    options = {"gradient_checkpointing": checkpointing}
    full = trained(tmp_path / "fp32", method, on_cpu=False, **options)
    half = trained(tmp_path / "bf16", method, on_cpu=False, bf16=True, **options)
    assert losses(half) == pytest.approx(losses(full), rel=0.05, abs=2e-3)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["cache", "packed"])
@pytest.mark.parametrize("bf16", [False, True])
def test_sharing_prefixes_changes_nothing(tmp_path, monkeypatch, bf16, checkpointing):
    strategies = set()
    share = PrefixSharing.__call__

    def noted(self, *args, **kwargs):
        states = share(self, *args, **kwargs)
        strategies.add(states.strategy)
        return states

    monkeypatch.setattr(PrefixSharing, "__call__", noted)
    options = {"num_generations": 4, "per_device_train_batch_size": 8, "bf16": bf16}
    options |= {"on_cpu": False, "gradient_checkpointing": checkpointing}
    shared = trained(tmp_path / "shared", "opct", **options)
    assert ("packed" if checkpointing else "cache") in strategies
    plain = trained(tmp_path / "plain", "opct", share_prefix=False, **options)
    assert losses(shared) == pytest.approx(losses(plain), rel=0.05 if bf16 else 1e-4, abs=2e-3 if bf16 else 1e-6)


@pytest.mark.parametrize("method", ["bct", "act", "opct", "opct_policy_gradient"])
def test_resumed_equals_uninterrupted(tmp_path, method):
    options = {"on_cpu": False, "max_steps": 6, "save_strategy": "steps", "save_steps": 3, "optim": "adamw_torch"}
    whole = make_trainer(tmp_path / "whole", method, learning_rate=1e-2, **options)
    whole.train()
    resumed = make_trainer(tmp_path / "whole", method, learning_rate=1e-2, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert losses(resumed)[-3:] == pytest.approx(losses(whole)[-3:], rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(resumed.model), weights(whole.model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss_type", ["divergence", "policy_gradient"])
def test_rollouts_and_reference(tmp_path, loss_type):
    """Rollouts are sampled on the GPU; the checksum of the reference is compared at each save."""
    trainer = make_trainer(
        tmp_path, "opct", on_cpu=False, loss_type=loss_type, bf16=True, save_strategy="steps", save_steps=2
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == STEPS
    assert all(torch.isfinite(torch.tensor(entry["loss"])) for entry in log)


def test_generates_its_own_targets(tmp_path):
    trainer = ConsistencyTrainer(
        model=make_model(),
        args=make_config(tmp_path, method="bct", use_cpu=False, bf16=True, max_steps=2, logging_steps=1),
        train_dataset=make_pairs(8, completion=False),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA),
    )
    trainer.train()
    assert torch.isfinite(torch.tensor(losses(trainer))).all()
    assert len(losses(trainer)) == 2


def test_evaluation_gives_the_answers_of_the_cpu():
    tokenizer = make_tokenizer()
    rows = [
        {
            "clean_prompt": f"What is the capital of country {number}?",
            "perturbed_prompt": f"I think it is Lyon. What is the capital of country {number}?",
            "answer": "Paris",
            "biased_answer": "Lyon",
        }
        for number in range(8)
    ]
    options = AnswerOptions(8, 4)
    prompts = [tokenizer(row["perturbed_prompt"])["input_ids"] for row in rows]
    cpu, gpu = make_model().eval(), make_model().eval().cuda()
    assert generate_ids(gpu, tokenizer, prompts, options) == generate_ids(cpu, tokenizer, prompts, options)
    grades = [evaluate(model, tokenizer, rows, options).sets[""].grades for model in (cpu, gpu)]
    assert grades[0] == grades[1]

"""The seconds of an optimizer step in the log."""

import time

import pytest

from tests.helpers.on_policy import make_trainer
from tests.helpers.vllm_stand_in import LLM, colocated  # noqa: F401
from tests.rollouts.test_adapter_sync import lora
from tests.rollouts.test_adapter_sync import make_trainer as make_vllm_trainer


PARTS = ("sampling/generation_seconds", "sampling/sync_seconds", "sampling/origin/seconds", "training_seconds")


def entries(trainer):
    return [entry for entry in trainer.state.log_history if "step_time" in entry]


@pytest.mark.long
def test_parts_of_a_step_with_an_engine(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    add_lora, generate = LLM.add_lora, LLM.generate
    monkeypatch.setattr(LLM, "add_lora", lambda *args: (time.sleep(0.3), add_lora(*args))[1])
    monkeypatch.setattr(LLM, "generate", lambda *args, **options: (time.sleep(0.6), generate(*args, **options))[1])
    trainer = make_vllm_trainer(
        tmp_path, str(model_dir), lora(), max_steps=3, vllm_check_every=1, gradient_accumulation_steps=2
    )
    trainer.train()
    assert len(entries(trainer)) == 3
    for entry in entries(trainer):
        generation, sync, check, training = (entry[name] for name in PARTS)
        assert generation > 0.6
        assert 0.3 < sync < 0.6 + check
        assert training > 0
        assert sum((generation, sync, check, training)) == pytest.approx(entry["step_time"], rel=0.02, abs=0.02)
        tokens = entry["sampling/tokens_per_second"] * generation
        assert tokens == pytest.approx(round(tokens), abs=1e-3)
        rollouts = tokens / entry["completions/mean_length"]
        assert rollouts == pytest.approx(trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation)


def test_parts_of_a_step_without_one(tmp_path):
    """Two optimizer steps train on each batch of rollouts."""
    trainer = make_trainer(
        tmp_path, max_steps=4, steps_per_generation=2, gradient_accumulation_steps=1, logging_steps=1
    )
    trainer.train()
    first, second, third, fourth = entries(trainer)
    for sampled, reused in ((first, second), (third, fourth)):
        parts = sampled["sampling/generation_seconds"] + sampled["training_seconds"]
        assert parts == pytest.approx(sampled["step_time"], rel=1e-3)
        assert sampled["sampling/generation_seconds"] > 0
        assert "sampling/generation_seconds" not in reused
        assert reused["training_seconds"] == pytest.approx(reused["step_time"])

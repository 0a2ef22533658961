"""Whether rollouts come from the policy: engines that are honest, that ignore the adapter, that keep an old one."""

import copy
import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.on_policy import moved
from tests.helpers.vllm_stand_in import LLM, colocated  # noqa: F401
from tests.rollouts.test_adapter_sync import lora, make_trainer
from trl_consistency import ConsistencyError
from trl_consistency.rollouts.origin import Fit


def reports(trainer, name="passed"):
    return [
        entry[f"sampling/origin/{name}"]
        for entry in trainer.state.log_history
        if f"sampling/origin/{name}" in entry
    ]  # fmt: skip


# The decision


def log_probs(scale, seed, tokens=128):
    return scale * torch.randn(tokens, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("noise", [1e-6, 0.02])
def test_policy_and_base_are_told_apart(noise):
    policy = log_probs(2.0, 0)
    base = policy + log_probs(20 * noise, 1)
    for truth, share in ((policy, 0.0), (base, 1.0)):
        fit = Fit.of(truth + log_probs(noise, 2), policy, base)
        assert fit.told_apart
        assert fit.share == pytest.approx(share, abs=0.05)
    assert Fit.of(policy, policy, base).difference == 0
    assert Fit.of(base, policy, base).difference == pytest.approx(fit.gap)


def test_nothing_is_told_where_they_agree():
    """Of many engines that answer by the base, hardly one is called the policy, and the other way round."""
    policy, wrong, told = log_probs(2.0, 0), 0, 0
    assert not Fit.of(policy, policy, policy).told_apart
    for seed in range(300):
        scale = [0.001, 0.005, 0.02, 0.05][seed % 4]
        base = policy + log_probs(scale, 1000 + seed)
        truth = seed % 2
        fit = Fit.of((base if truth else policy) + log_probs(0.02, 2000 + seed), policy, base)
        told += fit.told_apart
        wrong += fit.told_apart and (fit.share > 0.5) != truth
        if scale == 0.001:
            assert not fit.told_apart
    assert wrong == 0
    assert told > 60


def test_honest_engines_are_not_taken_for_others():
    """Whatever the rounding, and however little the policy differs from the base model."""
    policy, told = log_probs(2.0, 0, 96), 0
    for seed in range(3000):
        base = policy + log_probs(0.02 * (1 + seed % 10), 10_000 + seed, 96)
        fit = Fit.of(policy + log_probs(0.02, 20_000 + seed, 96), policy, base)
        told += fit.told_apart
        assert not fit.is_other, fit
    assert told > 2000


# In training


@pytest.mark.long
def test_honest_engine_is_undecided_and_then_passes(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=12, vllm_check_every=5)
    origin = trainer.rollout_engine._origin
    assert origin.passed is None
    trainer.train()
    # At the start the adapter changes nothing; then after the first step, and every five.
    assert reports(trainer) == [0, 1, 1, 1]
    assert reports(trainer, "base_difference")[0] == 0 < min(reports(trainer, "base_difference")[1:])
    assert max(reports(trainer, "difference")) < 1e-5
    assert origin.passed is True


def test_undecided_is_never_passed(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=3, learning_rate=0.0, vllm_check_every=1)
    trainer.train()
    assert reports(trainer) == [0, 0, 0]
    assert trainer.rollout_engine._origin.passed is None


def test_engine_that_ignores_the_adapter(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    monkeypatch.setattr(LLM, "serves", lambda self, request: self.held.model)
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=30)
    with pytest.raises(ConsistencyError, match=r"do not come from the policy.*fit the base model without its adapter"):
        trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.long
def test_it_is_caught_within_ten_steps_of_becoming_distinguishable(
    colocated,  # noqa: F811
    tmp_path,
    model_dir,
    monkeypatch,
):
    """The engine's rounding, as in 16 bits, hides the adapter at first."""
    sample, fits = LLM.generate, []

    def rounded(self, *args, **kwargs):
        outputs = sample(self, *args, **kwargs)
        for tokens in (token for output in outputs for token in output.outputs[0].logprobs):
            for value in tokens.values():
                value.logprob += 0.002 * torch.randn(()).item()
        return outputs

    of = Fit.of

    def watched(*args):
        fits.append(of(*args))
        return fits[-1]

    monkeypatch.setattr(LLM, "generate", rounded)
    monkeypatch.setattr(LLM, "serves", lambda self, request: self.held.model)
    monkeypatch.setattr(Fit, "of", watched)
    monkeypatch.setattr("trl_consistency.rollouts.origin.TOLERANCE_FLOAT32", 0.1)  # that of 16 bits
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=80, learning_rate=3e-4)
    with pytest.raises(ConsistencyError, match="fit the base model"):
        trainer.train()
    *before, last = fits[::2]  # every second one is of an older adapter
    assert last.told_apart
    assert len(before) >= 2
    assert not any(fit.told_apart for fit in before)
    assert trainer.rollout_engine._origin.passed is None


@pytest.mark.long
@pytest.mark.parametrize("tolerance", [1e-3, 0.1])
def test_engine_that_keeps_an_older_adapter(colocated, tmp_path, model_dir, monkeypatch, tolerance):  # noqa: F811
    """Checked after the steps 0, 1, 6, 11 and 16; the seventh adapter is that of step 5."""
    kept = {}

    def serves(self, request):
        if len(self.folders) <= 7:
            kept["model"] = self.adapters[request.lora_int_id]
        return kept["model"]

    monkeypatch.setattr(LLM, "serves", serves)
    monkeypatch.setattr("trl_consistency.rollouts.origin.TOLERANCE_FLOAT32", tolerance)
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=20, vllm_check_every=5)
    # Where rounding could explain the difference, it takes until the engine is nearer to an adapter that was checked.
    when = (
        r"After step 6,.*an older adapter, that of step 5 \(" if tolerance == 1e-3 else r"After step 1[16],.*an older"
    )
    with pytest.raises(ConsistencyError, match=when):
        trainer.train()


def test_engine_with_another_base(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    other = moved(AutoModelForCausalLM.from_pretrained(model_dir))
    monkeypatch.setattr(LLM, "serves", lambda self, request: other)
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=2)
    with pytest.raises(ConsistencyError, match=r"After step 0,.*fit neither the base model nor an older adapter"):
        trainer.train()


@pytest.mark.parametrize("part", [0.5, 0.7])
def test_engine_that_applies_a_part_of_the_adapter(colocated, tmp_path, model_dir, monkeypatch, part):  # noqa: F811
    """In 16 bits, the difference alone may be of rounding. An engine that had half of the adapter passed."""

    def serves(self, request):
        model = copy.deepcopy(self.held.model)
        with torch.no_grad():
            adapter = self.adapters[request.lora_int_id].parameters()
            for weight, adapted in zip(model.parameters(), adapter, strict=True):
                weight += part * (adapted - weight)
        return model

    monkeypatch.setattr(LLM, "serves", serves)
    monkeypatch.setattr("trl_consistency.rollouts.origin.TOLERANCE_FLOAT32", 0.1)  # that of 16 bits
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=5, learning_rate=1e-3)
    with pytest.raises(ConsistencyError, match=r"After step 1,.*do not come from the policy"):
        trainer.train()


def test_engine_that_scales_the_adapter_wrongly(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    def serves(self, request):
        model = copy.deepcopy(self.held.model)
        with torch.no_grad():
            for weight, adapted in zip(
                model.parameters(), self.adapters[request.lora_int_id].parameters(), strict=True
            ):
                weight += 3 * (adapted - weight)
        return model

    monkeypatch.setattr(LLM, "serves", serves)
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=5, learning_rate=3e-3)
    with pytest.raises(ConsistencyError, match=r"After step 1,.*fit neither"):
        trainer.train()


def test_checks_are_off_where_they_cannot_be(colocated, tmp_path, model_dir, caplog):  # noqa: F811
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=2, repetition_penalty=1.2)
        trainer.train()
        assert trainer.rollout_engine._origin is None
        assert "The origin of the rollouts is not checked" in caplog.text
        caplog.clear()
        assert make_trainer(tmp_path, str(model_dir), lora(), vllm_check_every=0).rollout_engine._origin is None
        assert "origin" not in caplog.text
    assert not reports(trainer)

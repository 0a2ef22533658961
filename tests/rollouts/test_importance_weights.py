"""Importance weights: rollouts that another policy than the student drew, since an engine rounds otherwise."""

import copy
import math

import pytest
import torch

from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.on_policy import answer, likelihood, moved, replay, uneven_pairs
from tests.helpers.on_policy import make_trainer as plain_trainer
from tests.helpers.runs import losses
from tests.rollouts.test_vllm_engine import mismatches
from trl_consistency.data.rendering import render_prompt


def test_weighted_estimate_has_the_exact_gradient(tmp_path):
    """Over every one-token answer, weighed by how often the engine, another policy, would draw it."""
    pairs = uneven_pairs(1)
    perturbed = render_prompt(make_tokenizer(), pairs[0]["perturbed_prompt"])
    model = make_model()
    with torch.no_grad():
        of_engine = moved(copy.deepcopy(model), seed=2, scale=0.1)(torch.tensor([perturbed])).logits[0, -1]
    of_engine = of_engine.log_softmax(-1)
    gradients = {}
    for name, options in {
        "exact": {"loss_type": "divergence"},
        "weighted": {"loss_type": "policy_gradient"},
        "unweighted": {"loss_type": "policy_gradient"},
    }.items():
        trainer = plain_trainer(
            tmp_path, pairs, copy.deepcopy(model), num_generations=384, per_device_train_batch_size=384, **options
        )
        trainer.args.vllm_importance_sampling_clip_max = None
        likelihood = None if name == "unweighted" else lambda ids: of_engine[ids].tolist()
        replay(trainer, lambda ids, number: [number], likelihood)
        moved(trainer.model)
        inputs = trainer._prepare_inputs([next(iter(trainer.train_dataset))] * 384)
        sums = trainer.rollout_loss(trainer.model, inputs)["loss"].sums
        (sums[0] if name == "exact" else (sums * of_engine.exp()).sum()).backward()
        gradients[name] = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
    scale = gradients["exact"].norm()
    assert (gradients["weighted"] - gradients["exact"]).norm() / scale < 1e-4
    assert (gradients["unweighted"] - gradients["exact"]).norm() / scale > 0.05


@pytest.mark.parametrize("limit", [None, 0.8, 3.0])
@pytest.mark.parametrize("iterations", [1, 2])
def test_truncated_weights_token_by_token(tmp_path, limit, iterations):
    """Ragged rollouts, of some tokens no likelihood; the weights stay those of the policy that sampled."""
    pairs = uneven_pairs(4)
    trainer = plain_trainer(
        tmp_path, pairs, make_model(), loss_type="policy_gradient", num_iterations=iterations,
        per_device_train_batch_size=8,
    )  # fmt: skip
    trainer.args.vllm_importance_sampling_clip_max = limit
    reference, old = copy.deepcopy(trainer.model), copy.deepcopy(moved(trainer.model))
    inputs = replay(trainer, likelihood=likelihood)._prepare_inputs(
        [row for row in trainer.train_dataset for _ in range(2)]
    )
    if iterations == 2:
        moved(trainer.model, seed=3)
    losses = trainer.rollout_loss(trainer.model, inputs)["loss"].sums

    def log_probs(model, prompt, ids):
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[range(len(ids)), ids]

    expected, kinds = 0.0, set()
    for row in trainer.train_dataset:
        for number in range(2):
            ids = answer(row["perturbed_ids"], number)
            student = log_probs(trainer.model, row["perturbed_ids"], ids)
            with torch.no_grad():
                sampled = log_probs(old, row["perturbed_ids"], ids)
                advantage = log_probs(reference, row["clean_ids"], ids) - sampled
            for token in range(len(ids)):
                of_engine = likelihood(ids)[token]
                weight = 1.0 if math.isnan(of_engine) else math.exp(sampled[token].item() - of_engine)
                weight = weight if limit is None else min(weight, limit)
                kinds.add("unknown" if math.isnan(of_engine) else "cut" if weight == limit else "whole")
                expected = expected - weight * (student[token] - sampled[token]).exp() * advantage[token]
    assert kinds >= ({"unknown", "whole"} if limit is None else {"unknown", "whole", "cut"})
    assert losses.sum().item() == pytest.approx(expected.item(), rel=1e-5)
    ours, theirs = (
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(trainer.model.parameters()))])
        for loss in (losses.sum(), expected)
    )
    assert (ours - theirs).norm() / theirs.norm() < 1e-5


def test_exact_divergence_is_left_as_it_is(tmp_path):
    results = []
    for told in (None, likelihood):
        trainer = plain_trainer(tmp_path, uneven_pairs(), make_model(), max_steps=1, per_device_train_batch_size=16)
        moved(replay(trainer, likelihood=told).model)
        trainer.train()
        results.append((losses(trainer), mismatches(trainer)))
    (plain, nothing), (weighed, mismatch) = results
    assert weighed == plain
    assert not nothing
    assert mismatch[0] > 0.1


def test_logged_mismatch_is_that_of_all_tokens_since_the_last_log(tmp_path):
    trainer = plain_trainer(
        tmp_path, uneven_pairs(), make_model(), max_steps=2, logging_steps=2, per_device_train_batch_size=4
    )
    seen = []
    add = trainer._mismatch.add
    trainer._mismatch.add = lambda *args: (seen.append(args[-1]), add(*args))
    replay(trainer, likelihood=likelihood).train()
    ratios = torch.cat(seen)
    assert len(seen) == 2
    assert ratios.isnan().any()
    ratios = ratios[~ratios.isnan()]
    assert mismatches(trainer) == [pytest.approx(ratios.abs().max().item())]
    assert mismatches(trainer, "sampling_logp_difference/mean") == [pytest.approx(ratios.abs().mean().item())]
    weights = ratios.exp().clamp(max=3.0)
    for name in ("min", "mean", "max"):
        expected = getattr(weights, name)().item()
        assert mismatches(trainer, f"importance_sampling_ratio/{name}") == [pytest.approx(expected)]

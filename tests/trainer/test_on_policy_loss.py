"""The losses of `OnPolicyConsistencyTrainer`: against full logits, and what counts in them."""

import copy

import pytest
import torch
from transformers import TrainerCallback

from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.on_policy import END, answer, make_trainer, moved, naive_loss, replay, uneven_pairs
from tests.helpers.runs import losses, weights
from trl_consistency import ConsistencyError
from trl_consistency.data.rendering import render_prompt
from trl_consistency.losses import paired
from trl_consistency.objectives.divergence import shared_head_divergence
from trl_consistency.passes import prefix_sharing


class Gradients(TrainerCallback):
    """Keeps the gradient of every optimizer step."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.seen.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))


def assert_same_step(actual, expected):
    assert actual[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-7)
    assert (actual[1] - expected[1]).norm() < 1e-5 * expected[1].norm()


# Against full logits


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("batch", "accumulation"), [(24, 1), (6, 4)])
@pytest.mark.parametrize("lora", [False, True])
def test_equals_full_logits(tmp_path, beta, temperature, batch, accumulation, lora):
    pairs = uneven_pairs()
    trainer = replay(
        make_trainer(
            tmp_path, pairs, lora=lora, beta=beta, loss_temperature=temperature, num_generations=3, max_steps=1,
            per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, max_grad_norm=0.0,
            callbacks=[gradients := Gradients()],
        )
    )  # fmt: skip
    reference = copy.deepcopy(trainer.model)
    if lora:
        reference = reference.unload()
    moved(trainer.model)
    student = copy.deepcopy(trainer.model)
    expected = naive_loss(student, reference, pairs, 3, beta=beta, temperature=temperature)
    expected.backward()
    gradient = torch.cat([p.grad.flatten() for p in student.parameters() if p.requires_grad])

    trainer.train()
    assert losses(trainer)[0] == pytest.approx(expected.item(), abs=1e-6)
    assert (gradients.seen[0] - gradient).norm() / gradient.norm() < 1e-5


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_accumulation_does_not_change_the_run(tmp_path, kind):
    """Rollouts of uneven lengths: averaging the means of micro-batches would weigh short ones too heavily."""
    options = {"max_steps": 3, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.5, "kind": kind}
    trained = []
    for batch, accumulation in ((8, 1), (1, 8)):
        trainer = make_trainer(
            tmp_path,
            uneven_pairs(),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            **options,
        )
        replay(trainer).train()
        trained.append((weights(trainer.model), losses(trainer)))
    assert torch.allclose(trained[0][0], trained[1][0], atol=1e-6)
    assert trained[0][1] == pytest.approx(trained[1][1], abs=1e-6)
    assert max(trained[0][1]) > 1e-4


# The paper's estimate


@pytest.mark.long
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("batch", [24, 6, 4])
def test_shared_prompts_change_nothing(tmp_path, caplog, batch, checkpointing):
    """Groups of three rollouts: whole ones, several and one a micro-batch, and split ones."""
    runs = {}
    for share in (True, False):
        caplog.clear()
        recorded = Gradients()
        trainer = make_trainer(
            tmp_path,
            uneven_pairs(),
            lora=True,
            num_generations=3,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=24 // batch,
            gradient_checkpointing=checkpointing,
            share_prefix=share,
            max_steps=1,
            callbacks=[recorded],
        )
        moved(trainer.model, scale=0.3)
        replay(trainer).train()
        runs[share] = losses(trainer)[0], recorded.seen[0]
        assert ("`per_device_train_batch_size` (4) is not a multiple" in caplog.text) == (share and batch == 4)
        assert "6 would avoid that" in caplog.text or batch != 4 or not share
    assert_same_step(runs[True], runs[False])


def test_prompts_that_cannot_be_shared_are_reported(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(
        prefix_sharing, "refused_strategies", lambda blocks: dict.fromkeys(("cache", "packed"), "a reason of its own")
    )
    make_trainer(tmp_path, max_steps=2, per_device_train_batch_size=4).train()
    assert caplog.text.count("Prompts are computed once a rollout, which is slow: a reason of its own.") == 1


def test_both_divergences_of_a_frozen_head_agree(tmp_path, monkeypatch):
    runs = []
    for shared in (True, False):
        calls: list = []

        def counted(*args, calls=calls):
            calls.append(args)
            return shared_head_divergence(*args)

        monkeypatch.setattr(paired, "shared_head_divergence", counted)
        if not shared:
            monkeypatch.setattr(paired, "_is_frozen_and_shared", lambda ours, theirs: False)
        recorded = Gradients()
        trainer = make_trainer(tmp_path, lora=True, per_device_train_batch_size=8, max_steps=1, callbacks=[recorded])
        moved(trainer.model, scale=0.3)
        replay(trainer).train()
        assert bool(calls) == shared
        runs.append((losses(trainer)[0], recorded.seen[0]))
    assert_same_step(*runs)


def test_policy_gradient_is_an_unbiased_estimate_of_the_exact_gradient(tmp_path):
    """Over every token of the vocabulary as the one-token answer, weighed by its probability."""
    pairs = uneven_pairs(1)
    perturbed = render_prompt(make_tokenizer(), pairs[0]["perturbed_prompt"])
    model = make_model()
    student = moved(copy.deepcopy(model))
    with torch.no_grad():
        probabilities = student(torch.tensor([perturbed])).logits[0, -1].softmax(-1)
    estimate, exact = 0.0, None
    for loss_type in ("divergence", "policy_gradient"):
        trainer = make_trainer(
            tmp_path, pairs, copy.deepcopy(model), loss_type=loss_type, num_generations=384,
            per_device_train_batch_size=384,
        )  # fmt: skip
        replay(trainer, lambda ids, number: [number])
        moved(trainer.model)
        inputs = trainer._prepare_inputs([next(iter(trainer.train_dataset))] * 384)
        losses = trainer.rollout_loss(trainer.model, inputs)
        loss = (
            (losses["loss"].sums * probabilities).sum() if loss_type == "policy_gradient" else losses["loss"].sums[0]
        )
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
        if exact is None:
            exact, value = gradient, loss.item()
        else:
            estimate = gradient
            assert (losses["divergence"].sums * probabilities).sum().item() == pytest.approx(value, rel=1e-4)
    assert (estimate - exact).norm() / exact.norm() < 1e-4


def test_policy_gradient_has_the_entropy_of_the_exact_loss(tmp_path):
    entropies = []
    for loss_type in ("divergence", "policy_gradient"):
        trainer = make_trainer(tmp_path, uneven_pairs(), loss_type=loss_type, max_steps=1)
        moved(trainer.model)
        replay(trainer).train()
        entropies.append(trainer.state.log_history[0]["entropy"])
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-5)


def test_policy_gradient_steps_several_times_on_a_batch_of_rollouts(tmp_path):
    made = []

    def make(prompt_ids, number):
        made.append(number)
        return answer(prompt_ids, number)

    trainer = make_trainer(
        tmp_path, uneven_pairs(), loss_type="policy_gradient", num_iterations=2, steps_per_generation=2,
        per_device_train_batch_size=8, max_steps=8, clip_range=0.2, learning_rate=1e-3,
    )  # fmt: skip
    moved(trainer.model)
    replay(trainer, make).train()
    assert len(made) == 2 * 16  # 8 steps take 2 batches of 2 micro-batches, twice
    ratios = [entry["importance_ratio"] for entry in trainer.state.log_history if "importance_ratio" in entry]
    first = [ratio for step, ratio in enumerate(ratios) if step % 4 == 0]
    assert first == pytest.approx([1.0] * len(first), abs=1e-6)
    assert max(abs(ratio - 1) for ratio in ratios) > 1e-4
    assert all(0 <= entry["clipped"] <= 1 for entry in trainer.state.log_history if "clipped" in entry)


def test_clipped_loss_is_ppos(tmp_path):
    """With the advantage of the policy that sampled, whatever the policy has become since."""
    trainer = make_trainer(
        tmp_path, uneven_pairs(), loss_type="policy_gradient", num_iterations=2, clip_range=0.01, max_steps=1
    )
    moved(replay(trainer).model)
    inputs = trainer._prepare_inputs([row for row in trainer.train_dataset.select(range(4)) for _ in range(2)])
    moved(trainer.model, scale=-0.025)  # half the way back to the reference
    losses = trainer.rollout_loss(trainer.model, inputs)
    mask = inputs["loss_mask"].bool()
    log_probs = trainer.rollout_loss.log_probs(trainer.model, inputs)[mask]
    with trainer.rollout_loss.reference.active(trainer.model) as frozen:
        clean = {**inputs, "prompt_ids": inputs["clean_ids"], "prompt_mask": inputs["clean_mask"]}
        reference = trainer.rollout_loss.log_probs(frozen, clean)[mask]
    sampled = inputs["sampling_log_probs"][mask]
    ratio, advantage = (log_probs - sampled).exp(), reference - sampled
    expected = -torch.minimum(ratio * advantage, ratio.clamp(0.99, 1.01) * advantage)
    assert losses["loss"].sums.sum().item() == pytest.approx(expected.sum().item(), rel=1e-5)
    assert losses["divergence"].sums.sum().item() == pytest.approx(-advantage.sum().item(), rel=1e-5)
    assert losses["clipped"].sums.sum() > 0


# What is compared


def test_truncated_rollouts_train_nothing(tmp_path):
    pairs = uneven_pairs()
    trainer = make_trainer(
        tmp_path, pairs, max_steps=1, per_device_train_batch_size=16, mask_truncated_completions=True
    )
    reference = copy.deepcopy(trainer.model)
    student = copy.deepcopy(moved(trainer.model))
    replay(trainer).train()
    expected = naive_loss(student, reference, pairs, 2, mask=lambda ids: [int(ids[-1] == END)] * len(ids))
    assert losses(trainer)[0] == pytest.approx(expected.item(), abs=1e-6)
    ratio = trainer.state.log_history[0]["completions/compared_ratio"]
    assert 0 < ratio < 1


@pytest.mark.parametrize("lora", [False, True])
def test_a_fully_masked_batch_is_zero(tmp_path, lora):
    trainer = make_trainer(tmp_path, lora=lora, max_steps=2, mask_truncated_completions=True)
    moved(trainer.model)
    before = weights(trainer.model)
    with pytest.raises(ConsistencyError, match="No token of any rollout was compared, so that nothing was learned"):
        replay(trainer, lambda ids, number: [5, 6, 7]).train()
    assert losses(trainer) == [0.0, 0.0]
    assert torch.equal(weights(trainer.model), before)


def test_an_evaluation_that_compares_nothing_is_an_error(tmp_path):
    """A loss of 0 would be the best there is."""
    trainer = make_trainer(tmp_path, eval_dataset=uneven_pairs(3), mask_truncated_completions=True)
    with pytest.raises(ConsistencyError, match="No token of any rollout was compared in the evaluation"):
        replay(trainer, lambda ids, number: [5, 6, 7]).evaluate()


def test_truncated_rollouts_of_anchors_have_no_loss(tmp_path):
    pairs = uneven_pairs()
    trainer = make_trainer(
        tmp_path, pairs, max_steps=3, logging_steps=1, mask_truncated_completions=True, anchor_ratio=0.5
    )
    clean = [row["clean_ids"] for row in trainer.train_dataset if row["clean_ids"] == row["perturbed_ids"]]
    replay(trainer, lambda ids, number: [5, 6, 7] if ids in clean else [5, 6, END]).train()
    logs = [entry for entry in trainer.state.log_history if "anchor_share" in entry]
    assert logs
    assert not any("anchor_loss" in entry for entry in logs)


def test_the_padding_token_ends_no_rollout(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, mask_truncated_completions=True)
    padding = trainer.processing_class.pad_token_id
    assert padding not in trainer.eos_token_ids
    replay(trainer, lambda ids, number: [5, 6, END if number else padding]).train()
    assert trainer.state.log_history[0]["completions/compared_ratio"] == 0.5


def test_thinking_is_left_out_before_the_reduction(tmp_path):
    """The markers here are ordinary tokens: what opens and closes is the trainer's option."""
    tokenizer = make_tokenizer()
    (opening,), (closing,) = (tokenizer(text=text)["input_ids"] for text in ("A", "B"))

    def make(prompt_ids, number):
        ids = answer(prompt_ids, number)
        return [opening, *ids[:-1], closing, 7, END] if number else ids

    def mask(ids):
        return [1] * len(ids) if closing not in ids else [0] * (len(ids) - 2) + [1, 1]

    pairs = uneven_pairs()
    options = {"train_on_thinking": False, "thinking_markers": ["A", "B"]}
    trainer = make_trainer(tmp_path, pairs, max_steps=1, per_device_train_batch_size=16, **options)
    reference = copy.deepcopy(trainer.model)
    student = copy.deepcopy(moved(trainer.model))
    replay(trainer, make).train()
    expected = naive_loss(student, reference, pairs, 2, make, mask=mask)
    assert losses(trainer)[0] == pytest.approx(expected.item(), abs=1e-6)

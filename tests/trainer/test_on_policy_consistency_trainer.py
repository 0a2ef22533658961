import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen3ForCausalLM, TrainerCallback

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import (
    END,
    LORA,
    answer,
    losses,
    make_on_policy_config,
    make_trainer,
    moved,
    naive_divergence,
    replay,
    uneven_pairs,
    weights,
)
from tests.helpers.spoiled import SpoilWeights
from trl_consistency import ConsistencyError, InvalidPairsError, OnPolicyConsistencyTrainer
from trl_consistency.data.rendering import render_prompt
from trl_consistency.objectives.divergence import shared_head_divergence
from trl_consistency.passes import prefix_sharing
from trl_consistency.rollouts import loss as rollout_loss


def naive_loss(
    student, reference, pairs, generations, make=answer, beta=1.0, temperature=1.0, mask=lambda ids: [1] * len(ids)
):
    """The token-mean over all rollouts, one at a time."""
    tokenizer = make_tokenizer()
    total, tokens = 0.0, 0
    for row in pairs:
        clean, perturbed = (render_prompt(tokenizer, row[side]) for side in ("clean_prompt", "perturbed_prompt"))
        for number in range(generations):
            ids = make(perturbed, number)
            p = student(torch.tensor([perturbed + ids])).logits[0, len(perturbed) - 1 : -1]
            with torch.no_grad():
                q = reference(torch.tensor([clean + ids])).logits[0, len(clean) - 1 : -1]
            kept = torch.tensor(mask(ids))
            total = total + (naive_divergence(p, q, beta, temperature) * kept).sum()
            tokens += int(kept.sum())
    return total / max(tokens, 1)


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

        monkeypatch.setattr(rollout_loss, "shared_head_divergence", counted)
        if not shared:
            monkeypatch.setattr(rollout_loss, "_is_frozen_and_shared", lambda ours, theirs: False)
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


# The reference


@pytest.mark.parametrize("lora", [False, True])
def test_reference_is_the_initial_policy_after_training_too(tmp_path, lora):
    pairs = uneven_pairs()
    trainer = make_trainer(tmp_path, pairs, lora=lora, max_steps=3, learning_rate=5e-2)
    initial = make_model()
    replay(trainer).train()
    reference = trainer.rollout_loss.reference
    assert reference.compute_checksum() == reference.checksum
    expected = naive_loss(trainer.model.eval(), initial, pairs, 2)
    assert expected > 1e-3
    trainer.args.per_device_eval_batch_size = 5
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


def test_a_reference_that_changes_is_noticed(tmp_path):
    class Meddler(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            model.get_base_model().model.embed_tokens.weight.data.add_(1e-3)

    trainer = make_trainer(tmp_path, lora=True, max_steps=1, callbacks=[Meddler()])
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        replay(trainer).train()


def test_biases_that_train_along_with_an_adapter_do_not_change_the_reference(tmp_path):
    """They are the base model's own: switching the adapter off does not take them back."""
    pairs = uneven_pairs()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**make_model("llama").config.to_dict(), "attention_bias": True}))
    initial = copy.deepcopy(model)
    trainer = OnPolicyConsistencyTrainer(
        model=model,
        args=make_on_policy_config(tmp_path, max_steps=2, learning_rate=5e-2),
        train_dataset=pairs,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA, bias="all"),
    )
    replay(trainer).train()
    expected = naive_loss(trainer.model.eval(), initial.eval(), pairs, 2)
    assert expected > 1e-3
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


def test_a_reference_that_changed_is_not_saved(tmp_path):
    trainer = make_trainer(tmp_path, lora=True, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.add_callback(SpoilWeights())
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        replay(trainer).train()
    assert trainer.state.global_step == 1
    assert not list(tmp_path.glob("checkpoint-*"))


def test_adapter_that_came_with_the_model_belongs_to_the_reference(tmp_path):
    pairs = uneven_pairs()
    model = moved(get_peft_model(make_model(), LoraConfig(**LORA)), scale=0.2)
    initial = copy.deepcopy(model)
    trainer = make_trainer(tmp_path, pairs, model, max_steps=2, learning_rate=5e-2)
    replay(trainer).train()
    expected = naive_loss(trainer.model.eval(), initial.eval(), pairs, 2)
    assert expected > 1e-3
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


@pytest.mark.parametrize("by_path", [False, True])
def test_ref_model(tmp_path, by_path):
    other = moved(make_model(seed=3))
    before = [parameter.clone() for parameter in other.parameters()]
    other.save_pretrained(tmp_path / "other")
    pairs = uneven_pairs()
    trainer = make_trainer(
        tmp_path, pairs, lora=True, max_steps=1, per_device_train_batch_size=16,
        ref_model=str(tmp_path / "other") if by_path else other,
    )  # fmt: skip
    expected = naive_loss(copy.deepcopy(trainer.model), other, pairs, 2)
    replay(trainer).train()
    assert losses(trainer)[0] == pytest.approx(expected.item(), rel=1e-5)
    assert all(map(torch.equal, other.parameters(), before))


def test_ref_model_is_checked(tmp_path):
    with pytest.raises(ConsistencyError, match="vocabulary of 400 tokens and the model one of 384"):
        make_trainer(tmp_path, ref_model=make_model(vocab_size=400))
    model = make_model()
    for student in (model, get_peft_model(model, LoraConfig(**LORA))):
        with pytest.raises(ConsistencyError, match="`ref_model` shares weights with the model in training"):
            make_trainer(tmp_path, model=student, ref_model=model)


def test_log_after_a_callback_that_leaves_the_model_in_evaluation_mode(tmp_path):
    class Samples(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.eval()

    trainer = make_trainer(tmp_path, max_steps=2, logging_steps=1, log_completions=True)
    trainer.add_callback(Samples())
    trainer.train()
    of_steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [any(name.startswith("completions/") for name in entry) for entry in of_steps] == [True, True]
    assert not any(name.startswith("eval_") for entry in of_steps for name in entry)
    assert len(list((tmp_path / "completions").iterdir())) == 2
    assert not trainer.model.training, "a log changes the model's mode"


def test_ref_model_with_another_tokenizer(tmp_path):
    """Its vocabulary has as many tokens, which mean something else."""
    make_model(seed=3).save_pretrained(tmp_path / "ref")
    make_tokenizer().save_pretrained(tmp_path / "ref")
    make_trainer(tmp_path, ref_model=str(tmp_path / "ref"))
    file = tmp_path / "ref" / "tokenizer.json"
    file.write_text(file.read_text().replace('"A":', '"held":').replace('"B":', '"A":').replace('"held":', '"B":'))
    with pytest.raises(ConsistencyError, match=r"`ref_model` has another tokenizer than the model: '[AB]' is token"):
        make_trainer(tmp_path, ref_model=str(tmp_path / "ref"))


# Rollouts


def test_rollouts_are_the_students_on_the_perturbed_prompt(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, uneven_pairs(), max_steps=1, num_generations=4, lora=True)
    asked = []
    generate = trainer.model.generate
    monkeypatch.setattr(
        trainer.model, "generate",
        lambda **kwargs: asked.append((kwargs, trainer.model.training)) or generate(**kwargs),
    )  # fmt: skip
    trainer.train()
    (kwargs, was_training), *others = asked
    assert not others
    assert not was_training, "dropout would act in the rollouts"
    prompts = [
        ids[mask.bool()].tolist() for ids, mask in zip(kwargs["input_ids"], kwargs["attention_mask"], strict=True)
    ]
    assert prompts[0] == prompts[1] == prompts[2] == prompts[3] != prompts[4]
    assert all(prompt in trainer.train_dataset["perturbed_ids"] for prompt in prompts)
    assert kwargs["generation_config"].do_sample


@pytest.mark.parametrize("size", [4, 3, 100])
def test_rollouts_are_sampled_in_parts(tmp_path, monkeypatch, size):
    """The same rollouts, where nothing is drawn: `top_k` 1. A part may end within a group."""

    def run(name, **options):
        options |= {"max_steps": 2, "num_generations": 4, "top_k": 1, "lora": True}
        trainer = make_trainer(tmp_path / name, uneven_pairs(), **options)
        sampled, seen = [], []
        generate, compare = trainer.model.generate, trainer._compare
        monkeypatch.setattr(
            trainer.model, "generate", lambda **kwargs: sampled.append(len(kwargs["input_ids"])) or generate(**kwargs)
        )
        monkeypatch.setattr(
            trainer, "_compare", lambda model, inputs: seen.append(inputs["completion_ids"]) or compare(model, inputs)
        )
        trainer.train()
        return sampled, seen, weights(trainer.model)

    (whole, *_), rollouts, trained = run("whole")
    sampled, in_parts, also_trained = run("parts", rollout_batch_size=size)
    assert sum(sampled) == 2 * whole
    assert sampled[: -(-whole // size)] == [min(size, whole - start) for start in range(0, whole, size)]
    assert all(torch.equal(one, other) for one, other in zip(rollouts, in_parts, strict=True))
    torch.testing.assert_close(also_trained, trained, atol=1e-6, rtol=1e-5)


def test_rollouts_do_not_heed_the_models_generation_config(tmp_path):
    def rollouts(**brought):
        model = make_model()
        model.generation_config = GenerationConfig(eos_token_id=2, **brought)
        trainer = make_trainer(tmp_path, model=model, lora=True, max_completion_length=8)
        torch.manual_seed(0)
        completions = trainer._generate_single_turn([[5, 6, 7], [5, 6, 7], [8, 9]], None, {})
        assert trainer.model.generation_config.to_diff_dict().items() >= brought.items()
        return completions

    expected = rollouts()
    brought = {"no_repeat_ngram_size": 1, "suppress_tokens": list(range(10, 380)), "min_new_tokens": 8}
    assert rollouts(**brought) == expected
    assert rollouts(return_dict_in_generate=True, prompt_lookup_num_tokens=2) == expected


def test_prefilled_turns_and_tools_are_rendered_as_for_the_other_trainer(tmp_path):
    from tests.helpers.models import make_config
    from trl_consistency import ConsistencyTrainer

    pairs = make_pairs(4).map(
        lambda row: (
            {
                side: [*row[side], {"role": "assistant", "content": "It is"}]
                for side in ("clean_prompt", "perturbed_prompt")
            }
            | {"tools": '[{"type": "function", "function": {"name": "look"}}]'}
        )
    )
    ours = make_trainer(tmp_path, pairs)
    theirs = ConsistencyTrainer(
        model=make_model(), args=make_config(tmp_path), train_dataset=pairs, processing_class=make_tokenizer()
    )
    for column in ("clean_ids", "perturbed_ids"):
        assert sorted(ours.train_dataset[column]) == sorted(theirs.train_dataset[column])


def test_the_loss_falls(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(4), max_steps=30, per_device_train_batch_size=8, learning_rate=5e-3)
    moved(trainer.model, scale=0.1)
    trainer.train()
    assert sum(losses(trainer)[-5:]) < 0.5 * sum(losses(trainer)[:5])


# Evaluation and anchors


@pytest.mark.parametrize("batch", [3, 8])
def test_evaluation_is_the_token_mean_of_its_own_rollouts(tmp_path, batch):
    held_out = uneven_pairs(5)
    trainer = make_trainer(
        tmp_path, eval_dataset={"a": held_out, "b": held_out.select([0])}, num_generations_eval=3,
        per_device_eval_batch_size=batch,
    )  # fmt: skip
    reference = copy.deepcopy(trainer.model)
    moved(trainer.model)
    metrics = replay(trainer).evaluate()
    for name, pairs in (("a", held_out), ("b", held_out.select([0]))):
        expected = naive_loss(trainer.model, reference, pairs, 3)
        assert metrics[f"eval_{name}_loss"] == pytest.approx(expected.item(), abs=2e-6)
        assert metrics[f"eval_{name}_divergence"] == metrics[f"eval_{name}_loss"]
        assert metrics[f"eval_{name}_entropy"] > 0


def test_the_training_pairs_are_evaluated_by_as_many_rollouts(tmp_path):
    trainer = make_trainer(tmp_path, uneven_pairs(5), num_generations_eval=3)
    reference = copy.deepcopy(trainer.model)
    moved(trainer.model)
    metrics = replay(trainer).evaluate(trainer.train_dataset)
    expected = naive_loss(trainer.model, reference, uneven_pairs(5), 3)
    assert metrics["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


def test_evaluation_does_not_change_the_training(tmp_path):
    runs = []
    for options in ({}, {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": uneven_pairs(3)}):
        trainer = make_trainer(tmp_path, max_steps=3, **options)
        trainer.train()
        runs.append(weights(trainer.model))
    assert torch.equal(*runs)
    first, second = (trainer.evaluate()["eval_loss"] for _ in range(2))
    assert first == second


def test_anchors(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(6), anchor_ratio=0.25, max_steps=2, per_device_train_batch_size=16)
    assert len(trainer.train_dataset) == 8
    moved(trainer.model)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["anchor_share"] == 0.25
    assert logged["anchor_loss"] > 0


def test_anchor_dataset_keeps_the_loss_of_an_untrained_model_at_zero(tmp_path):
    anchors = make_pairs(4).rename_column("clean_prompt", "prompt").select_columns("prompt")
    trainer = make_trainer(tmp_path, make_pairs(4), anchor_ratio=0.5, anchor_dataset=anchors, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["anchor_loss"] == pytest.approx(0, abs=1e-6)


# Order, resuming


def order(trainer, epoch):
    trainer.state.epoch = epoch
    return list(trainer._get_train_sampler())


def test_every_epoch_has_an_order_of_its_own(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(8), num_generations=4, gradient_accumulation_steps=2)
    first, again, second = order(trainer, 0), order(trainer, 0.9), order(trainer, 1.0)
    assert first == again != second
    assert first[:16] == first[16:32], "each batch of rollouts is read once for each of its micro-batches"
    assert all(len(set(first[start : start + 4])) == 1 for start in range(0, len(first), 4))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss_type": "policy_gradient", "num_iterations": 2},
        {"max_completion_length": 32, "completion_length_schedule": [4, 32]},
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, options):
    """An epoch has four steps, or eight: within the first and the second, and at the end of one."""
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1, **options}
    whole = make_trainer(tmp_path / "whole", make_pairs(8), per_device_train_batch_size=4, **options)
    moved(whole.model)
    whole.train()
    for kill in (2, 4, 6, 7):
        resumed = make_trainer(tmp_path / str(kill), make_pairs(8), per_device_train_batch_size=4, **options)
        moved(resumed.model)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{kill}"))
        assert resumed.state.global_step == whole.state.global_step
        assert torch.equal(weights(whole.model), weights(resumed.model)), kill


def test_formatted_rows(tmp_path):
    pairs = make_pairs(8).with_format("torch")
    make_trainer(tmp_path, pairs, eval_dataset=pairs, max_steps=1).train()


@pytest.mark.parametrize("change", ["student", "base", "ref_model"])
def test_resumed_with_another_reference(tmp_path, change):
    """A run that goes on from its checkpoint as the model would have the half-trained student for a reference."""
    options = {"lora": change == "base", "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, **options).train()
    others = {
        "student": {"model": Qwen3ForCausalLM.from_pretrained(tmp_path / "checkpoint-1")}
        if change == "student"
        else {},
        "base": {"model": make_model(seed=5)},
        "ref_model": {"ref_model": make_model(seed=5)},
    }
    trainer = make_trainer(tmp_path, **options, **others[change])
    message = "`model`: .*Give the model that the run began with, not the checkpoint's"
    if change == "ref_model":
        message = "The reference differs from that of the checkpoint's run"
    with pytest.raises(ConsistencyError, match=f"(?s){message}"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


# Inherited options


@pytest.mark.parametrize("disable", [True, False])
def test_attention_dropout_is_disabled_too(tmp_path, disable):
    """Llama's attention passes its rate to a function. Anchors have no divergence but that of dropout."""
    model = make_model("llama")
    for block in model.model.layers:
        block.self_attn.attention_dropout = 0.5
    anchors = make_pairs(completion=False).map(lambda row: {"perturbed_prompt": row["clean_prompt"]})
    trainer = make_trainer(tmp_path, anchors, model, max_steps=1, learning_rate=0.0, disable_dropout=disable)
    replay(trainer).train()
    assert (losses(trainer)[0] < 1e-6) == disable


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"neftune_noise_alpha": 5.0, "share_prefix": False},
        {"remove_unused_columns": True},
        {"dataloader_num_workers": 1},
        {"shuffle_dataset": False},
        {"pad_to_multiple_of": 16},
        {"top_p": 0.9, "top_k": 10, "min_p": 0.1, "repetition_penalty": 1.1},
        {"generation_kwargs": {"min_new_tokens": 2}},
        {"disable_dropout": False},
        {"log_completions": True},
        {"torch_empty_cache_steps": 1},
        {"include_num_input_tokens_seen": "all"},
    ],
)
def test_inherited_options_work(tmp_path, lora, options):
    trainer = make_trainer(tmp_path, lora=lora, max_steps=2, eval_dataset=make_pairs(2), **options)
    before = weights(moved(trainer.model))
    trainer.train()
    assert not torch.equal(weights(trainer.model), before)
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("anchor_ratio", [0.0, 0.5])
def test_streamed_pairs(tmp_path, anchor_ratio):
    pairs = make_pairs(8).to_iterable_dataset()
    trainer = make_trainer(
        tmp_path, pairs, max_steps=3, eval_dataset=make_pairs(3).to_iterable_dataset(), anchor_ratio=anchor_ratio
    )
    moved(trainer.model)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_set_smaller_than_a_batch_is_refused(tmp_path):
    with pytest.raises(InvalidPairsError, match=r"has 3 row\(s\), fewer than the 4 prompts of one batch"):
        make_trainer(tmp_path, make_pairs(3))


def test_arguments_of_the_parent_that_are_refused(tmp_path):
    for name in ("teacher_model", "tools"):
        with pytest.raises(ConsistencyError, match=f"`{name}` is not available"):
            OnPolicyConsistencyTrainer(
                make_model(), args=make_on_policy_config(tmp_path), train_dataset=make_pairs(), **{name: "x"}
            )


def test_model_by_path_saves_an_adapter_and_a_card(tmp_path, model_dir):
    trainer = OnPolicyConsistencyTrainer(
        str(model_dir), args=make_on_policy_config(tmp_path / "out", max_steps=1, anchor_ratio=0.5),
        train_dataset=make_pairs(), peft_config=LoraConfig(**LORA),
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    base = make_model()
    assert isinstance(PeftModel.from_pretrained(base, tmp_path / "out"), PeftModel)
    card = (tmp_path / "out" / "README.md").read_text()
    for text in (
        "trained with OPCT ([On-Policy Consistency Training Improves LLM Safety",
        "| Objective | reverse KL from the reference, exact over the vocabulary |",
        "| Reference | the base model, without the adapter |",
        "| Rollouts | 2 a prompt (temperature 1, at most 8 tokens) |",
        "| Anchors | 50% of an epoch, from the pairs' own clean prompts |",
        "1 steps of 8 rollouts",
        "2605.21834",
    ):
        assert text in card, text
    assert str(tmp_path) not in card


def test_predict_takes_pairs(tmp_path):
    trainer = make_trainer(tmp_path)
    moved(trainer.model)
    assert trainer.predict(make_pairs(3)).metrics["test_loss"] > 0


def test_a_peft_config_is_not_changed(tmp_path):
    config = LoraConfig(**LORA)
    OnPolicyConsistencyTrainer(
        model=make_model(),
        args=make_on_policy_config(tmp_path),
        train_dataset=make_pairs(),
        processing_class=make_tokenizer(),
        peft_config=config,
    )
    assert config.target_modules == "all-linear"

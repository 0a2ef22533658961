"""`OnPolicyConsistencyTrainer`: rollouts, evaluation, anchors, the order of rows, resuming, inherited options."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    MixtralConfig,
    RwkvConfig,
    RwkvForCausalLM,
    TrainerCallback,
)

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import (
    likelihood,
    make_on_policy_config,
    make_trainer,
    moved,
    naive_loss,
    replay,
    uneven_pairs,
)
from tests.helpers.runs import LORA, losses, weights
from trl_consistency import ConsistencyError, InvalidPairsError, OnPolicyConsistencyTrainer


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


@pytest.mark.long
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


def test_rollouts_of_a_model_that_reads_padding(tmp_path):
    """RWKV takes no mask: in a batch of several lengths, rollouts were those of other prompts."""
    torch.manual_seed(0)
    model = RwkvForCausalLM(
        RwkvConfig(vocab_size=384, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, eos_token_id=2)
    )
    options = {"top_k": 1, "max_completion_length": 6, "gradient_checkpointing": False}
    trainer = make_trainer(tmp_path, model=model, lora=True, target_modules=["key", "value"], **options)
    prompts = [[5, 6, 7, 8], [5, 6, 7, 8], [8, 9], [30]]
    alone = [trainer._generate_single_turn([ids], None, {})[0] for ids in prompts]
    assert trainer._generate_single_turn(prompts, None, {}) == alone
    assert len({*map(tuple, alone)}) == 3


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


def test_each_of_several_sets_logs_under_its_name(tmp_path):
    """What the engine's rollouts are logged by had one name for all sets, of which trackers keep the last."""
    held_out = uneven_pairs(5)
    trainer = make_trainer(tmp_path, eval_dataset={"a": held_out, "b": held_out.select([0])})
    replay(trainer, likelihood=likelihood).evaluate()
    of_a, of_b = trainer.state.log_history
    for entry, name in ((of_a, "a"), (of_b, "b")):
        assert entry[f"eval_{name}_sampling/sampling_logp_difference/mean"] > 0
        assert all(key.startswith(f"eval_{name}_") for key in entry.keys() - {"epoch", "step"})


def test_an_evaluation_logs_all_under_its_own_prefix(tmp_path):
    """What is logged of the engine and of tokens stood under `eval_`, among those of the evaluation set."""
    trainer = make_trainer(tmp_path)
    metrics = replay(trainer, likelihood=likelihood).evaluate(uneven_pairs(3), metric_key_prefix="test")
    assert metrics["test_sampling/sampling_logp_difference/mean"] > 0
    assert all(key.startswith("test_") for key in metrics.keys() - {"epoch"})
    assert metrics.items() <= trainer.state.log_history[-1].items()


def test_the_training_pairs_are_evaluated_by_as_many_rollouts(tmp_path):
    trainer = make_trainer(tmp_path, uneven_pairs(5), num_generations_eval=3)
    reference = copy.deepcopy(trainer.model)
    moved(trainer.model)
    metrics = replay(trainer).evaluate(trainer.train_dataset)
    expected = naive_loss(trainer.model, reference, uneven_pairs(5), 3)
    assert metrics["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


def test_evaluation_and_training_log_rollouts_under_the_same_names(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, eval_dataset=make_pairs(4), eval_strategy="steps", eval_steps=1)
    replay(trainer).train()
    names = {name for entry in trainer.state.log_history for name in entry}
    of_evaluation = {name.removeprefix("eval_") for name in names if name.startswith("eval_completions/")}
    assert of_evaluation == {name for name in names if name.startswith("completions/")}
    assert "completions/mean_terminated_length" in of_evaluation


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
    trainer._epoch = epoch
    return list(trainer._get_train_sampler())


def test_every_epoch_has_an_order_of_its_own(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(8), num_generations=4, gradient_accumulation_steps=2)
    first, again, second = order(trainer, 0), order(trainer, 0), order(trainer, 1)
    assert first == again != second
    assert first[:16] == first[16:32], "each batch of rollouts is read once for each of its micro-batches"
    assert all(len(set(first[start : start + 4])) == 1 for start in range(0, len(first), 4))


@pytest.mark.parametrize("iterations", [1, 2])
def test_an_epoch_that_a_callback_ends_is_followed_by_another_order(tmp_path, monkeypatch, iterations):
    """The second epoch began with the prompts of the first again, and those that come late were never trained on."""

    class EndsEpochs(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = True

    trainer = make_trainer(
        tmp_path, make_pairs(8), num_train_epochs=3, num_iterations=iterations, callbacks=[EndsEpochs()]
    )  # fmt: skip
    prompts = []
    generate = trainer._generate_single_turn
    monkeypatch.setattr(
        trainer, "_generate_single_turn", lambda ids, *args: prompts.append(map(tuple, ids)) or generate(ids, *args)
    )
    trainer.train()
    assert trainer.state.global_step == 3
    assert len(set(map(frozenset, prompts))) == 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"loss_type": "policy_gradient", "num_iterations": 2}, marks=pytest.mark.long),
        pytest.param({"max_completion_length": 32, "completion_length_schedule": [4, 32]}, marks=pytest.mark.long),
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


@pytest.mark.parametrize(("loss_type", "batch", "accumulation"), [("divergence", 8, 1), ("policy_gradient", 2, 4)])
def test_resumed_with_batches_of_another_shape(tmp_path, loss_type, batch, accumulation):
    """Between two steps on one batch of rollouts. Larger batches trained on a part of it alone, divided by the count of all."""
    options = {"loss_type": loss_type, "num_iterations": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    options |= {"lora": True, "lr_scheduler_type": "constant"}
    pairs = make_pairs(8, completion=False)
    shape = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    whole = replay(make_trainer(tmp_path / "whole", pairs, **shape, **options))
    whole.train()
    shape = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
    resumed = replay(make_trainer(tmp_path / "resumed", pairs, **shape, **options))
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-2)


def test_formatted_rows(tmp_path):
    pairs = make_pairs(8).with_format("torch")
    make_trainer(tmp_path, pairs, eval_dataset=pairs, max_steps=1).train()


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


@pytest.mark.parametrize("disable", [True, False])
def test_jitter_is_disabled_too(tmp_path, disable):
    """Mixtral multiplies the inputs of its experts by random numbers in training."""
    shape = {"vocab_size": 384, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "eos_token_id": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "router_jitter_noise": 0.5}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MixtralConfig(**shape, **heads, initializer_range=0.2))
    anchors = make_pairs(completion=False).map(lambda row: {"perturbed_prompt": row["clean_prompt"]})
    trainer = make_trainer(tmp_path, anchors, model, max_steps=1, learning_rate=0.0, disable_dropout=disable)
    replay(trainer).train()
    assert (trainer.state.log_history[0]["divergence"] < 1e-6) == disable


def test_dropout_is_off_in_training_alone(tmp_path):
    """A trainer that has the model next, such as one for BCT, trained without it."""
    model = get_peft_model(make_model("llama"), LoraConfig(**LORA | {"lora_dropout": 0.5}))
    layer = model.get_base_model().model.layers[0].self_attn
    layer.attention_dropout = 0.25

    class Look(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            seen.append((layer.attention_dropout, layer.q_proj.lora_dropout["default"].p))

    seen = []
    trainer = make_trainer(tmp_path, model=model, max_steps=1, callbacks=[Look()])
    Look().on_step_end()
    trainer.train()
    Look().on_step_end()
    assert seen == [(0.25, 0.5), (0.0, 0.0), (0.25, 0.5)]


@pytest.mark.parametrize("disable", [True, False])
def test_dropout_of_the_adapter_that_is_turned_off_is_said(tmp_path, caplog, disable):
    options = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    args = make_on_policy_config(tmp_path, disable_dropout=disable)
    OnPolicyConsistencyTrainer(
        make_model(), args=args, peft_config=LoraConfig(**LORA | {"lora_dropout": 0.1}), **options
    )
    assert ("turns off the adapter's `lora_dropout` of 0.1" in caplog.text) == disable


@pytest.mark.long
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


def test_a_prediction_is_not_in_the_log_of_the_next_evaluation(tmp_path):
    """It logs nothing itself."""
    trainer = replay(make_trainer(tmp_path, eval_dataset=uneven_pairs(3), log_completions=True), likelihood=likelihood)
    moved(trainer.model)

    def logged():
        trainer.evaluate()
        return {name: value for name, value in trainer.state.log_history[-1].items() if "sampling/" in name}

    alone = logged()
    trainer.predict(uneven_pairs(8))
    assert logged() == alone
    assert alone


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

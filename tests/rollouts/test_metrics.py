import copy
from contextlib import contextmanager

import pytest
import torch
from datasets import Dataset, concatenate_datasets
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import END, answer, make_trainer, moved, replay, uneven_pairs
from tests.helpers.runs import weights
from tests.passes.test_prefix_sharing import counted_tokens
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.data.rendering import render_completion, render_prompt
from trl_consistency.generation.targets import cut_after_end
from trl_consistency.rollouts import metrics as rollout_metrics


WATCHED = ("response_cross_entropy", "activation_distance", "reference_kl")
RATIO = "completions/equal_to_clean_ratio"


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def with_anchors(pairs):
    return concatenate_datasets([pairs, pairs.map(lambda row: {"perturbed_prompt": row["clean_prompt"]})])


# Equal to the clean answer


def of_the_clean_answer(pairs):
    """Of each prompt's four rollouts: the given answer, the same without its end, its beginning, another one."""
    tokenizer = make_tokenizer()
    answers = {
        tuple(render_prompt(tokenizer, row["perturbed_prompt"])): render_completion(
            tokenizer, row["clean_prompt"], row["completion"]
        )
        for row in pairs
    }

    def make(prompt_ids, number):
        ids = cut_after_end(answers[tuple(prompt_ids)], END)
        return [ids, ids[:-1], [*ids[:-2], END], [7, END]][number]

    return make


@pytest.mark.parametrize("streamed", [False, True])
def test_share_of_rollouts_that_are_the_given_answer(tmp_path, streamed):
    """The end of the turn aside; of anchors none is counted."""
    pairs = with_anchors(make_pairs(4))
    held_out = pairs.select([1, 2, 6])
    trainer = make_trainer(
        tmp_path, pairs.to_iterable_dataset() if streamed else pairs, num_generations=4, max_steps=1,
        per_device_train_batch_size=16, gradient_accumulation_steps=2, per_device_eval_batch_size=5,
    )  # fmt: skip
    replay(trainer, of_the_clean_answer(pairs)).train()
    assert logged(trainer, RATIO) == [0.5]
    trainer.args.num_generations_eval = 3
    metrics = trainer.evaluate(held_out.to_iterable_dataset() if streamed else held_out)
    assert metrics[f"eval_{RATIO}"] == pytest.approx(2 / 3)


def test_without_clean_answers_none_is_counted(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(4, completion=False), max_steps=1, eval_dataset=make_pairs(2))
    trainer.train()
    assert not logged(trainer, RATIO)
    assert f"eval_{RATIO}" in trainer.evaluate()


def greedy(model, prompt_ids, length):
    ids = list(prompt_ids)
    with torch.no_grad():
        for _ in range(length):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == END:
                break
    return ids[len(prompt_ids) :]


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True])
def test_the_reference_answers_each_clean_prompt_once(tmp_path, monkeypatch, lora):
    """Greedily, with the initial weights at any time of the training, and no anchor."""
    asked = []

    def generate_targets(model, prompts, *args, **kwargs):
        asked.extend(map(tuple, prompts))
        return generate(model, prompts, *args, **kwargs)

    generate = rollout_metrics.generate_targets
    monkeypatch.setattr(rollout_metrics, "generate_targets", generate_targets)
    pairs = make_pairs(6, completion=False)
    pairs = with_anchors(concatenate_datasets([pairs, pairs.select([0, 1])]))
    model = make_model()
    initial = copy.deepcopy(model)
    clean = {
        tuple(render_prompt(make_tokenizer(), row["clean_prompt"])): greedy(
            initial, render_prompt(make_tokenizer(), row["clean_prompt"]), 8
        )
        for row in pairs
    }
    trainer = make_trainer(
        tmp_path, pairs, model, lora=lora, max_steps=6, learning_rate=5e-2, log_consistency_metrics=True,
        per_device_train_batch_size=8, eval_dataset=pairs.select(range(8)),
    )  # fmt: skip
    moved(trainer.model)
    trainer.train()
    trainer.evaluate()
    assert sorted(asked) == sorted(clean)
    rows = list(trainer.train_dataset)[:8]
    assert trainer.clean_answers(trainer.model, rows) == [clean[tuple(row["clean_ids"])] for row in rows]


# What the other trainer watches


@pytest.mark.long
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("lora", [False, True])
def test_metrics_are_those_of_the_other_trainer(tmp_path, lora, given):
    """Same student, same reference, same answers: the metrics of an evaluation set, anchors left out."""
    pairs, tokenizer, initial = uneven_pairs(5), make_tokenizer(), make_model()
    if given:
        answered = pairs.add_column("completion", make_pairs(5)["completion"])
    else:
        prompts = [render_prompt(tokenizer, prompt) for prompt in pairs["clean_prompt"]]
        answered = pairs.add_column("completion_ids", [greedy(initial, prompt_ids, 8) for prompt_ids in prompts])
    ours = make_trainer(tmp_path, make_pairs(), lora=lora, log_consistency_metrics=True, per_device_eval_batch_size=3)
    moved(ours.model, scale=0.2)
    found = ours.evaluate(with_anchors(answered if given else pairs))
    theirs = ConsistencyTrainer(
        model=initial, args=make_config(tmp_path, method="bct", log_consistency_metrics=True),
        train_dataset=make_pairs(), processing_class=tokenizer,
        peft_config=ours._peft_config,
    )  # fmt: skip
    theirs.model.load_state_dict(ours.model.state_dict())
    expected = theirs.evaluate(with_anchors(answered))
    for name in WATCHED:
        assert found[f"eval_{name}"] == pytest.approx(expected[f"eval_{name}"], rel=1e-5), name
        assert found[f"eval_{name}"] > 0


@pytest.mark.long
@pytest.mark.parametrize("options", [{"lora": True}, {"gradient_checkpointing": True, "disable_dropout": False}])
def test_metrics_do_not_change_the_training(tmp_path, options):
    """But for rounding: with the answers, the reference's pass has more rows."""
    trained = []
    for watches in (False, True):
        trainer = make_trainer(tmp_path, uneven_pairs(), max_steps=2, log_consistency_metrics=watches, **options)
        moved(trainer.model)
        trainer.train()
        trained.append(weights(trainer.model))
        assert all(len(logged(trainer, name)) == 2 * watches for name in WATCHED)
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)


def test_each_distinct_pair_is_run_once(tmp_path, monkeypatch):
    trainer = make_trainer(
        tmp_path, with_anchors(make_pairs(4)), num_generations=4, per_device_train_batch_size=32, max_steps=1,
        log_consistency_metrics=True,
    )  # fmt: skip
    sizes = []
    paired_loss = trainer.rollout_loss.pair_metrics._paired_loss
    compare = paired_loss.compare
    monkeypatch.setattr(
        paired_loss, "compare",
        lambda model, batch, *states: sizes.append(len(batch["input_ids"])) or compare(model, batch, *states),
    )  # fmt: skip
    trainer.train()
    assert sizes == [4]


def tokens_of_the_reference(tmp_path, make, **options):
    """The tokens of each pass of the reference on a batch, after a step with its trials, and the rows."""
    trainer = make_trainer(
        tmp_path, make_pairs(4), num_generations=4, per_device_train_batch_size=16, max_steps=1, **options
    )  # fmt: skip
    replay(trainer, make)
    counts, active = [], trainer._reference.active

    @contextmanager
    def counting(model):
        with active(model) as frozen, counted_tokens(frozen) as of_pass:
            yield frozen
        counts.extend(of_pass)

    trainer.train()
    trainer._reference.active = counting
    trainer.rollout_loss(trainer.model, trainer._buffered_inputs[0])
    return counts, trainer.train_dataset


@pytest.mark.parametrize("lora", [False, True])
def test_the_reference_reads_each_clean_prompt_once(tmp_path, lora):
    """For the rollouts and for the answer: with the metrics, its pass has the answers, too."""
    make = of_the_clean_answer(make_pairs(4))
    (prompts, completions), rows = tokens_of_the_reference(tmp_path, make, lora=lora)
    longest = max(len(row["completion_ids"]) for row in rows)
    assert completions < 16 * longest
    watched, _ = tokens_of_the_reference(tmp_path, make, lora=lora, log_consistency_metrics=True)
    assert watched == [prompts, (16 + 4) * longest]


def test_answers_much_longer_than_the_rollouts_run_alone(tmp_path):
    """In one pass, all rollouts would be padded to the longest answer."""

    def make(prompt_ids, number):
        return [7, END]

    (prompts, completions), rows = tokens_of_the_reference(tmp_path, make)
    watched, _ = tokens_of_the_reference(tmp_path, make, log_consistency_metrics=True)
    longest = max(len(row["completion_ids"]) for row in rows)
    of_prompts = max(len(row["clean_ids"]) for row in rows)
    assert watched == [prompts, completions, 4 * (of_prompts + longest - 1)]


@pytest.mark.parametrize("length", [2, 8])
def test_metrics_of_a_given_reference_and_of_two_answers_to_one_prompt(tmp_path, length):
    """As the other trainer has them, whether the answers run with the rollouts or alone."""
    tokenizer, (model, reference) = make_tokenizer(), (make_model(), moved(make_model(), seed=3, scale=0.2))
    pairs = make_pairs(3)
    other = pairs.select([0]).map(lambda row: {"completion": "Perhaps, but who knows?"})
    pairs = concatenate_datasets([pairs, other])
    ours = make_trainer(
        tmp_path, make_pairs(), model, ref_model=copy.deepcopy(reference), log_consistency_metrics=True,
        per_device_eval_batch_size=8,
    )  # fmt: skip
    found = replay(ours, lambda prompt_ids, number: answer(prompt_ids, number)[:length]).evaluate(pairs)
    theirs = ConsistencyTrainer(
        model=reference, args=make_config(tmp_path, method="bct", log_consistency_metrics=True),
        train_dataset=make_pairs(), processing_class=tokenizer,
    )  # fmt: skip
    theirs.model.load_state_dict(ours.model.state_dict())
    expected = theirs.evaluate(pairs)
    for name in WATCHED:
        assert found[f"eval_{name}"] == pytest.approx(expected[f"eval_{name}"], rel=1e-5), name
        assert found[f"eval_{name}"] > 0


@pytest.mark.parametrize("completion", [False, True])
def test_anchors_alone_have_no_such_metric(tmp_path, completion):
    """Nor do they keep a process from telling the others so."""
    anchors = make_pairs(4, completion).map(lambda row: {"perturbed_prompt": row["clean_prompt"]})
    trainer = make_trainer(tmp_path, anchors, max_steps=1, log_consistency_metrics=True, eval_dataset=anchors)
    trainer.train()
    assert set(WATCHED) <= set(trainer._compare(trainer.model, trainer._buffered_inputs[0]))
    entry = trainer.state.log_history[0] | trainer.evaluate()
    assert not [name for name in entry for watched in (*WATCHED, RATIO) if watched in name]


def test_reference_of_another_shape_is_refused(tmp_path):
    config = Qwen3Config(**{**make_model().config.to_dict(), "num_hidden_layers": 3, "layer_types": None})
    other = Qwen3ForCausalLM(config)
    make_trainer(tmp_path, ref_model=other)
    with pytest.raises(ConsistencyError, match="`ref_model` has 3 blocks of size 32 where the model has 2 of size 32"):
        make_trainer(tmp_path, ref_model=other, log_consistency_metrics=True)


# Lengths


def test_lengths_of_an_evaluation_are_those_of_the_set(tmp_path):
    """Of its rollouts, whatever the batches, and under its own name."""
    pairs = uneven_pairs(5)
    trainer = make_trainer(
        tmp_path, eval_dataset={"a": pairs, "b": pairs.select([0])}, num_generations_eval=3, per_device_eval_batch_size=4
    )  # fmt: skip
    metrics = replay(trainer).evaluate()
    for name, rows in (("a", pairs), ("b", pairs.select([0]))):
        rollouts = [
            answer(render_prompt(make_tokenizer(), row["perturbed_prompt"]), number)
            for row in rows
            for number in range(3)
        ]
        lengths = {"length": list(map(len, rollouts))}
        lengths["terminated_length"] = [len(ids) for ids in rollouts if ids[-1] == END]
        for kind, values in lengths.items():
            for statistic, expected in (
                ("mean", sum(values) / len(values)), ("min", min(values)), ("max", max(values))
            ):  # fmt: skip
                assert metrics[f"eval_{name}_completions/{statistic}_{kind}"] == pytest.approx(expected)
        clipped = 1 - len(lengths["terminated_length"]) / len(rollouts)
        assert metrics[f"eval_{name}_completions/clipped_ratio"] == pytest.approx(clipped)
    assert "eval_completions/mean_length" not in metrics


@pytest.mark.parametrize("rollout", [[5, 6, 7], [5, 6, 0]], ids=["cut", "padding is no end"])
def test_where_no_rollout_ends_no_length_of_ended_ones_is_logged(tmp_path, rollout):
    trainer = make_trainer(tmp_path, max_steps=2, logging_steps=2, eval_dataset=uneven_pairs(2))
    assert trainer.processing_class.pad_token_id == 0
    replay(trainer, lambda ids, number: rollout).train()
    entry = trainer.state.log_history[0] | trainer.evaluate()
    assert entry["completions/mean_length"] == entry["eval_completions/mean_length"] == 3
    assert entry["completions/clipped_ratio"] == entry["eval_completions/clipped_ratio"] == 1
    assert not [name for name in entry if "terminated" in name]


def test_lengths_of_ended_rollouts_are_means_over_the_batches_that_have_some(tmp_path):
    trainer = make_trainer(
        tmp_path, Dataset.from_list([*make_pairs(2)]), max_steps=2, logging_steps=2, num_generations=4,
        shuffle_dataset=False, per_device_train_batch_size=4,
    )  # fmt: skip
    first = render_prompt(make_tokenizer(), make_pairs(1)[0]["perturbed_prompt"])
    replay(trainer, lambda ids, number: [5, 6, 7, END] if ids == first and number else [5, 6, 7, 8, 9]).train()
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == (1 / 4 + 1) / 2
    assert trainer.state.log_history[0]["completions/mean_terminated_length"] == 4

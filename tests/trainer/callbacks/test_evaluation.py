import json
import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import BitsAndBytesConfig, EarlyStoppingCallback, TrainerCallback

from tests.helpers.by_method import trainer_of
from tests.helpers.chats import user
from tests.helpers.distributions import NF4
from tests.helpers.guard import guarded, make_trainer, rates, script
from tests.helpers.held_out import CONTROL, PAIRS, rate
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyError, ConsistencyEvalCallback, ConsistencyTrainer
from trl_consistency.trainer.callbacks import evaluation as eval_callback


def logged(trainer, key="eval_consistency/score"):
    return [(entry["step"], entry[key]) for entry in trainer.state.log_history if key in entry]


class Random(TrainerCallback):
    """Keeps the random states of each step, and whether the model was in training mode."""

    def __init__(self):
        self.seen = []

    def on_step_begin(self, args, state, control, model, **kwargs):
        self.seen.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "lora", "checkpointing"),
    [
        ("bct", True, True),
        ("opct", True, False),
        pytest.param("bct", False, False, marks=pytest.mark.slow),
        pytest.param("act", False, True, marks=pytest.mark.slow),
    ],
)
def test_training_goes_as_it_would_without(tmp_path, kind, lora, checkpointing):
    watches = Random(), Random()
    options = {"kind": kind, "lora": lora, "gradient_checkpointing": checkpointing, "anchor_ratio": 0.5}
    plain = make_trainer(tmp_path / "plain", callbacks=[watches[0]], **options)
    plain.train()
    watched, _ = guarded(tmp_path / "guarded", {"eval_every": 1}, callbacks=[watches[1]], **options)
    watched.train()
    assert [step for step, _ in logged(watched)] == [0, 1, 2, 3]
    assert watches[0].seen == watches[1].seen
    assert watched.model.training == plain.model.training
    weights = [dict(trainer.model.named_parameters()) for trainer in (plain, watched)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])

    def losses(trainer):
        entries = [entry for entry in trainer.state.log_history if "loss" in entry]
        return [
            {key: value for key, value in entry.items() if not key.endswith(("time", "seconds", "per_second"))}
            for entry in entries
        ]

    assert len(losses(plain)) == 3
    assert losses(plain) == losses(watched)


@pytest.mark.parametrize("is_added", [True, False])
def test_guard_that_was_not_added_is_said(tmp_path, caplog, monkeypatch, is_added):
    """Nothing was measured, and nothing said of it."""
    script(monkeypatch, rates(10), rates(10))
    trainer = make_trainer(tmp_path, max_steps=1)
    guard = ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1)
    if is_added:
        trainer.add_callback(guard)
    trainer.train()
    assert ("was made for this trainer and is not among its callbacks" in caplog.text) != is_added


def test_rows_that_are_trained_on_are_warned_about(tmp_path, caplog):
    """Their rates would be taken for those of held-out pairs."""
    trainer = make_trainer(tmp_path, eval_dataset=PAIRS)
    ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1)
    assert "is measured on them" not in caplog.text
    answers = {"answer": ["Paris"] * 8, "biased_answer": ["Lyon"] * 8}
    trained = Dataset.from_dict(make_pairs(8, completion=False).to_dict() | answers)
    held_out = concatenate_datasets([PAIRS.select(range(2)), trained.select([0, 5])])
    ConsistencyEvalCallback(trainer, held_out, eval_every=1)
    assert (
        "`eval_dataset` of the guard: 2 of 4 row(s) are among the training pairs, and what is measured" in caplog.text
    )


def test_rows_of_another_form_than_the_pairs_are_told(tmp_path, caplog):
    """The rates of a chat model on text tell nothing of what it does in a chat."""
    as_text = [{key: of[0]["content"] if isinstance(of, list) else of for key, of in row.items()} for row in PAIRS]
    control = Dataset.from_list([{"prompt": "What is 2 + 2?", "answer": "4"}])
    ConsistencyEvalCallback(make_trainer(tmp_path), PAIRS, CONTROL, eval_every=1)
    assert "holds text" not in caplog.text
    ConsistencyEvalCallback(make_trainer(tmp_path), Dataset.from_list(as_text), control, eval_every=1)
    told = "of the guard holds text, which goes through no chat template, unlike `train_dataset`"
    assert f"`eval_dataset` {told}" in caplog.text
    assert f"`control_dataset` {told}" in caplog.text


@pytest.mark.parametrize("has_variables", [True, False])
def test_rows_in_another_mode_than_the_pairs_are_told(tmp_path, caplog, has_variables):
    """The guard would stop a training, and choose its best step, by what the model does in a mode that is not trained."""

    def with_variables(rows):
        return rows.add_column("chat_template_kwargs", [json.dumps({"no_think": True})] * len(rows))

    trainer = ConsistencyTrainer(
        make_model(),
        make_config(tmp_path),
        train_dataset=with_variables(make_pairs(4)),
        processing_class=make_tokenizer(),
    )
    sets = [with_variables(of) if has_variables else of for of in (PAIRS, CONTROL)]
    guard = ConsistencyEvalCallback(trainer, *sets, eval_every=1, num_rows=2)
    for name, numbers in zip(("eval_dataset", "control_dataset"), guard.sample.numbers, strict=True):
        told = (
            f"`{name}` of the guard: row {numbers[0]} is rendered with `chat_template_kwargs` `{{}}`, and every row of"
        )
        assert (told in caplog.text) != has_variables


def test_rows_that_do_not_measure_what_they_should_are_told(tmp_path, caplog):
    swapped = {"clean_prompt": "perturbed_prompt", "perturbed_prompt": "clean_prompt"}
    rows = Dataset.from_list([{swapped.get(key, key): of for key, of in row.items()} for row in PAIRS])
    ConsistencyEvalCallback(make_trainer(tmp_path), rows, eval_every=1)
    assert "8 row(s) of the guard's `eval_dataset`" in caplog.text
    assert "swapped" in caplog.text


@pytest.mark.parametrize("own", [True, False])
def test_control_questions_that_are_anchors_are_warned_about(tmp_path, caplog, own):
    anchors = Dataset.from_list([{"prompt": user(f"C{row}"), "completion": "x"} for row in range(3)])
    trainer = make_trainer(tmp_path, anchor_ratio=0.5, anchor_dataset=None if own else anchors)
    ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1)  # C1, C2 and C3
    expected = "`control_dataset` of the guard: 2 of 3 row(s) are among the anchors, and what is measured"
    assert (expected in caplog.text) is not own
    clean = Dataset.from_list([{"prompt": row["clean_prompt"], "answer": "4"} for row in make_pairs(2)])
    ConsistencyEvalCallback(trainer, PAIRS, clean, eval_every=1)
    assert ("2 of 2 row(s) are among the anchors" in caplog.text) is own


def test_control_questions_that_are_anchors_among_the_pairs_are_warned_about(tmp_path, caplog):
    """Rows of the pairs with two equal prompts are anchors, too."""
    rows = [
        {"clean_prompt": user(f"C{row}"), "perturbed_prompt": user(f"C{row}"), "completion": "x"} for row in (1, 2)
    ]
    trainer = trainer_of(
        "bct",
        tmp_path,
        make_model(),
        {"anchor_ratio": 0.5},
        train_dataset=concatenate_datasets([make_pairs(8), Dataset.from_list(rows)]),
        anchor_dataset=Dataset.from_list([{"prompt": user("C2"), "completion": "x"}]),
        processing_class=make_tokenizer(),
    )
    ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1)  # C1, C2 and C3
    assert "`control_dataset` of the guard: 2 of 3 row(s) are among the anchors" in caplog.text
    bare = [
        {"clean_prompt": user(f"C{row}"), "perturbed_prompt": user(f"C{row}"), "category": "harmful"}
        for row in (1, 2, 3)
    ]
    ConsistencyEvalCallback(trainer, Dataset.from_list(bare), eval_every=1)
    assert "`eval_dataset` of the guard: 2 of 3 row(s) are among the training pairs and anchors" in caplog.text


@pytest.mark.parametrize("kind", ["bct", "opct"])
def test_an_evaluation_set_that_is_trained_on_is_warned_about(tmp_path, caplog, kind):
    make_trainer(tmp_path, kind, eval_dataset={"seen": make_pairs(3), "mine": PAIRS.select(range(2))})
    assert "`eval_dataset['seen']`: 3 of 3 row(s) are among the training pairs" in caplog.text
    assert "mine" not in caplog.text


@pytest.mark.slow
def test_qlora(tmp_path, model_dir):
    """On 4-bit weights, too, the training goes as it would without."""
    pytest.importorskip("bitsandbytes")
    weights = []
    for guards in (False, True):
        trainer = ConsistencyTrainer(
            str(model_dir),
            args=make_config(tmp_path, method="kl", max_steps=2),
            train_dataset=make_pairs(8),
            processing_class=make_tokenizer(),
            quantization_config=BitsAndBytesConfig(**NF4),
            peft_config=LoraConfig(r=4, target_modules="all-linear"),
        )
        if guards:
            trainer.add_callback(ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1, max_new_tokens=4))
        trainer.train()
        weights.append([p.detach().clone() for p in trainer.model.parameters() if p.requires_grad])
    assert [step for step, _ in logged(trainer)] == [0, 1, 2]
    assert all(ours.equal(theirs) for ours, theirs in zip(*weights, strict=True))


def test_rates_and_counts_are_logged(tmp_path, monkeypatch):
    measured = rates(8, sycophancy=5, unread=2) | {"benign_answered": rate(0, 3, 3)}
    script(monkeypatch, measured, measured, measured)
    trainer, _ = guarded(tmp_path, {"eval_every": 2})
    trainer.train()
    (entry,) = (entry for entry in trainer.state.log_history if entry["step"] == 2 and "loss" not in entry)
    found = {key.removeprefix("eval_consistency/"): value for key, value in entry.items() if "consistency" in key}
    assert found == {
        "score": pytest.approx(2 / 3),
        "sycophancy": 0.5,
        "sycophancy/count": 10,
        "sycophancy/unread": 0,
        "clean_accuracy": 1.0,
        "clean_accuracy/count": 10,
        "clean_accuracy/unread": 0,
        "sycophancy_score": pytest.approx(2 / 3),
        "sycophancy_score/count": 10,
        "sycophancy_score/unread": 0,
        "clean_accuracy/control": 0.8,
        "clean_accuracy/control/count": 10,
        "clean_accuracy/control/unread": 2,
        "benign_answered": 0.0,
        "benign_answered/count": 3,
        "benign_answered/unread": 3,
    }


def test_answers_that_are_cut_are_told_once(tmp_path, caplog):
    """Their rates were logged, and checkpoints chosen by them, without a word."""
    trainer, _ = guarded(tmp_path, {"eval_every": 1, "max_new_tokens": 1})
    trainer.train()
    said = [
        record.getMessage() for record in caplog.records if "reached `max_completion_length`" in record.getMessage()
    ]
    assert [text[:11] for text in said] == ["The guard: "]


def test_answers_that_are_cut_later_are_told(tmp_path, caplog, monkeypatch):
    """Only the first measurement told of them, where none was cut yet, or few. It is told again when they have doubled."""
    found = iter([None, *(f"{cut} of 20 answer(s) were cut" for cut in (3, 5, 12))])

    def measure(*args, tell, **kwargs):
        if (warning := next(found)) is not None:
            tell(warning)
        return rates(10)

    monkeypatch.setattr(eval_callback, "measure_sample", measure)
    trainer, _ = guarded(tmp_path, {"eval_every": 1}, max_steps=3)
    trainer.train()
    said = [record.getMessage() for record in caplog.records if "were cut" in record.getMessage()]
    assert said == [f"The guard: {cut} of 20 answer(s) were cut" for cut in (3, 12)]


@pytest.mark.parametrize("kind", ["bct", pytest.param("opct", marks=pytest.mark.slow)])
def test_best_checkpoint_by_the_score(tmp_path, monkeypatch, kind):
    """Trainer's own choice of the best model, whose score is lost again before the end."""
    script(monkeypatch, *(rates(10, sycophancy=sycophancy) for sycophancy in (9, 6, 1, 4)))
    trainer, _ = guarded(
        tmp_path,
        kind=kind,
        eval_dataset=make_pairs(2),
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        metric_for_best_model="consistency/score",
        load_best_model_at_end=True,
    )
    trainer.train()
    assert trainer.state.best_metric == pytest.approx(2 / (1 + 1 / 0.9))
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    saved = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    now = trainer.model.state_dict()
    assert all(now[name].equal(weight) for name, weight in saved.items())
    last = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    assert not all(now[name].equal(weight) for name, weight in last.items())


EARLY = {"load_best_model_at_end": True, "metric_for_best_model": "consistency/score", "greater_is_better": True}


@pytest.mark.parametrize("sets", [1, 3])
def test_early_stopping_counts_a_step_once(tmp_path, monkeypatch, sets):
    """Its patience is that of evaluations, however many sets each of them has."""
    script(monkeypatch, *(rates(10, sycophancy=sycophancy) for sycophancy in (5, 1, 3, 3, 3, 3, 3, 3)))
    data = {str(number): make_pairs(2) for number in range(sets)}
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, **EARLY}
    trainer, _ = guarded(tmp_path, eval_dataset=data, max_steps=7, **options)
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3))
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")


def test_another_callbacks_evaluation_does_not_take_the_metric_of_the_step(tmp_path, monkeypatch):
    """The training ended for want of a metric that was there."""

    class Measure(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.evaluate(make_pairs(3), metric_key_prefix="extra")

    script(monkeypatch, *(rates(10, sycophancy=sycophancy) for sycophancy in (9, 6, 1, 4)))
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, **EARLY}
    trainer, _ = guarded(tmp_path, eval_dataset=make_pairs(2), max_steps=3, **options)
    trainer.add_callback(Measure())
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")


def test_early_stopping_before_the_guard_is_refused(tmp_path):
    """It would look for the metric before it is measured, and never stop."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, **EARLY}
    trainer, _ = guarded(
        tmp_path, eval_dataset=make_pairs(2), callbacks=[EarlyStoppingCallback(early_stopping_patience=3)], **options
    )
    with pytest.raises(ConsistencyError, match="`EarlyStoppingCallback` was added before `ConsistencyEvalCallback`"):
        trainer.train()


def test_measures_once_a_step_however_many_sets_are_evaluated(tmp_path, monkeypatch):
    calls = script(monkeypatch, *[rates(10)] * 3)
    sets = {"one": make_pairs(2), "two": make_pairs(3)}
    trainer, _ = guarded(
        tmp_path, eval_dataset=sets, eval_strategy="steps", eval_steps=1, eval_on_start=True, max_steps=2
    )
    trainer.train()
    assert len(calls) == 3
    assert [step for step, _ in logged(trainer)] == [0, 1, 2]


def test_evaluate_by_itself_measures_the_model_that_there_is(tmp_path, monkeypatch):
    script(monkeypatch, rates(10), rates(9), rates(4), rates(2))
    trainer, guard = guarded(
        tmp_path, {"max_drop": 0.5}, eval_dataset=make_pairs(2), eval_strategy="steps", eval_steps=3
    )
    assert trainer.evaluate()["eval_consistency/clean_accuracy/control"] == 1.0
    trainer.train()
    assert trainer.evaluate()["eval_consistency/clean_accuracy/control"] == 0.2
    assert guard.stopped is None, "from 90% to 40% is not more than the margin"


@pytest.mark.parametrize("eval_every", [1, None])
def test_stops_when_more_than_the_margin_is_lost(tmp_path, monkeypatch, caplog, eval_every):
    script(monkeypatch, rates(10), rates(9), rates(8), rates(0))
    options = {} if eval_every else {"eval_dataset": make_pairs(2), "eval_strategy": "steps", "eval_steps": 1}
    trainer, guard = guarded(tmp_path, {"eval_every": eval_every, "max_drop": 0.1}, max_steps=4, **options)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 2
    (warning,) = (record.getMessage() for record in caplog.records if "Training is stopped" in record.getMessage())
    assert f"accuracy on control questions, from {rate(10, 10)} to {rate(8, 10)}" in warning
    assert "max_drop=0.1" in warning
    assert guard.stopped in warning


@pytest.mark.parametrize(("clean", "stops"), [(60, False), (55, False), (32, True)])
def test_stops_when_one_part_loses_what_another_gains(tmp_path, monkeypatch, clean, stops):
    """Benign requests were refused that had been answered, and as many wrapped ones answered: the share of both stayed."""

    def answered(clean, perturbed):
        of_sides = {"clean": rate(clean, 60), "perturbed": rate(perturbed, 60)}
        return {"benign_answered": rate(clean + perturbed, 120)} | {
            f"benign_answered/{side}": of for side, of in of_sides.items()
        }

    script(monkeypatch, answered(60, 30), answered(clean, 60))
    trainer, guard = guarded(tmp_path, {"eval_every": 1, "max_drop": 0.05}, max_steps=1)
    trainer.train()
    told = (
        "was lost of answers to benign requests, from 75.0% (90/120) to 76.7% (92/120), of clean prompts alone from 100.0% (60/60) "
        "to 53.3% (32/60)."
    )
    assert (guard.stopped or "").endswith(told if stops else "")
    assert (guard.stopped is not None) == stops
    assert logged(trainer, "eval_consistency/benign_answered/clean") == [(0, 1.0), (1, clean / 60)]


def test_answers_that_cannot_be_read_are_lost(tmp_path, monkeypatch):
    """All that can be read is right, and half of the answers cannot be."""
    script(monkeypatch, rates(10), rates(5, unread=5))
    trainer, guard = guarded(tmp_path, {"eval_every": 1, "max_drop": 0.1})
    trainer.train()
    assert trainer.state.global_step == 1
    assert "50.0% (5/10), 5 unread" in guard.stopped


def test_without_a_margin_nothing_stops(tmp_path, monkeypatch):
    script(monkeypatch, rates(10), *[rates(0)] * 3)
    trainer, guard = guarded(tmp_path, {"eval_every": 1})
    trainer.train()
    assert trainer.state.global_step == 3
    assert guard.stopped is None


def never_stops(caplog):
    return [record.getMessage() for record in caplog.records if "can never stop the training" in record.getMessage()]


@pytest.mark.parametrize(
    ("start", "max_drop", "named"),
    [
        (rates(0), 0.05, ["accuracy on control questions"]),
        (rates(1), 0.1, ["accuracy on control questions"]),
        (rates(1), 0.05, []),
        (rates(0), None, []),
        (
            rates(0) | {"clean_refusal": rate(3, 64)},
            0.05,
            ["accuracy on control", "refusals of harmful clean prompts"],
        ),
    ],
)
def test_share_that_cannot_fall_by_more_than_the_margin_is_told(tmp_path, monkeypatch, caplog, start, max_drop, named):
    """The run was taken for guarded, though no loss could stop it."""
    script(monkeypatch, start, start)
    trainer, _ = guarded(tmp_path, {"eval_every": 1, "max_drop": max_drop}, max_steps=1)
    trainer.train()
    found = never_stops(caplog)
    assert len(found) == bool(named)
    assert all(name in found[0] for name in named)
    if named:
        assert f"accuracy on control questions ({start['clean_accuracy/control']})" in found[0]


def test_answers_that_name_no_possible_answer_are_told(tmp_path, caplog):
    """Control questions whose keys are written otherwise than the model answers showed no loss, and nothing said so."""
    trainer, _ = guarded(tmp_path, {"eval_every": 1, "max_drop": 0.1}, max_steps=1)
    trainer.train()  # a model that babbles
    told = "The guard: 3 of 3 answer(s) to questions name none of the possible answers (control, clean prompts: "
    assert caplog.text.count(told) == 1


def test_control_rows_that_repeat_are_told(tmp_path, caplog):
    ConsistencyEvalCallback(make_trainer(tmp_path), PAIRS, concatenate_datasets([CONTROL, CONTROL]), eval_every=1)
    assert "3 row(s) of the guard's `control_dataset` repeat the two prompts of an earlier row" in caplog.text


def test_resumed_run_compares_with_the_very_start(tmp_path, monkeypatch):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    script(monkeypatch, rates(10), rates(9))
    trainer, _ = guarded(tmp_path, {"eval_every": 2, "max_drop": 0.1}, **options | {"max_steps": 2})
    trainer.train()
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["ConsistencyEvalCallback"]["attributes"]["start"] == {
        name: of.to_dict() for name, of in rates(10).items()
    }
    script(monkeypatch, rates(8))
    trainer, guard = guarded(tmp_path, {"eval_every": 2, "max_drop": 0.1}, **options)
    trainer.train(resume_from_checkpoint=True, resume_changed=["length"])
    assert guard.stopped is not None, "from 100% to 80%, though only from 90% since the checkpoint"


@pytest.mark.parametrize("max_drop", [0.1, 0.5, None])
@pytest.mark.parametrize("max_steps", [2, 4])
def test_a_resumed_run_that_was_stopped_ends_there(tmp_path, monkeypatch, caplog, max_drop, max_steps):
    """A job that always resumes trained on, without a word."""
    options = {"max_steps": max_steps, "save_strategy": "steps", "save_steps": 2}
    script(monkeypatch, rates(10), rates(8))
    trainer, guard = guarded(tmp_path, {"eval_every": 2, "max_drop": 0.1}, **options)
    trainer.train()
    assert trainer.state.global_step == 2
    script(monkeypatch, rates(8))
    again, second = guarded(tmp_path, {"eval_every": 2, "max_drop": max_drop}, **options)
    again.train(resume_from_checkpoint=True)
    if max_drop == 0.1:
        assert again.state.global_step == 2
        assert second.stopped == guard.stopped
        assert f"which ends where it did. {guard.stopped} The model is as it is after this step." in caplog.text
        weights = (dict(of.model.named_parameters()) for of in (trainer, again))
        one, other = weights
        assert all(one[name].equal(other[name]) for name in one)
    else:
        assert f"goes on with another `max_drop`, {max_drop}. {guard.stopped}" in caplog.text
        assert again.state.global_step == max_steps
        assert second.stopped is None


def test_resumed_run_with_other_rows_counts_from_there(tmp_path, monkeypatch, caplog):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    script(monkeypatch, rates(10), rates(9))
    trainer, _ = guarded(tmp_path, {"eval_every": 2, "max_drop": 0.1}, **options | {"max_steps": 2})
    trainer.train()
    without_control = {name: figure for name, figure in rates(0).items() if "control" not in name}
    script(monkeypatch, without_control, without_control)
    trainer = make_trainer(tmp_path, **options)
    guard = ConsistencyEvalCallback(trainer, PAIRS, max_new_tokens=4, eval_every=2, max_drop=0.1)
    trainer.add_callback(guard)
    trainer.train(resume_from_checkpoint=True, resume_changed=["length"])
    assert guard.stopped is None
    assert "drops count from here on" in caplog.text


def resumed_otherwise(tmp_path, monkeypatch, change):
    """The guard of a run that was at 90%, and goes on from 80% with what `change` changes in its options, its model or its trainer."""
    options, guard_options = (
        {"max_steps": 4, "save_strategy": "steps", "save_steps": 2},
        {"eval_every": 2, "max_drop": 0.1},
    )
    script(monkeypatch, rates(10), rates(9))
    trainer, _ = guarded(tmp_path, guard_options, **options | {"max_steps": 2})
    trainer.train()
    options |= change.pop("options", {})
    script(monkeypatch, rates(8), rates(8))
    trainer, guard = guarded(tmp_path, guard_options, **options)
    for name, value in change.items():
        monkeypatch.setattr(trainer, name, value)
    trainer.train(resume_from_checkpoint=True, resume_changed=["length"])
    return guard


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"options": {"thinking_markers": ["[THINK]", "[/THINK]"]}},
            "`thinking_markers` was ['<think>', '</think>'] and is ['[THINK]', '[/THINK]']",
        ),
        (
            {"_answering_engine": lambda max_tokens: SimpleNamespace(options={"engine": "vllm"})},
            "`engine` was 'transformers' and is 'vllm'",
        ),
    ],
)
def test_resumed_run_with_other_answers_counts_from_there(tmp_path, monkeypatch, caplog, change, told):
    """The start was of answers that were read, or made, in another way, and nothing said so."""
    guard = resumed_otherwise(tmp_path, monkeypatch, dict(change))
    assert guard.stopped is None
    assert f"is not known for these answers ({told}): drops count from here on" in caplog.text


def test_resumed_run_of_a_version_that_did_not_note_how_it_answers(tmp_path, monkeypatch):
    state = ConsistencyEvalCallback.state

    def of_earlier_version(guard):
        saved = state(guard)
        del saved["attributes"]["answers"]
        return saved

    monkeypatch.setattr(ConsistencyEvalCallback, "state", of_earlier_version)
    guard = resumed_otherwise(tmp_path, monkeypatch, {})
    assert guard.stopped is not None, "from 100% to 80%, though only from 90% since the checkpoint"


def test_best_step_among_answers_that_are_read_alike(tmp_path, monkeypatch):
    """The best step was chosen among scores of answers that were read with different markers."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, **EARLY}
    script(monkeypatch, *[rates(10)] * 9)
    guarded(tmp_path, eval_dataset=make_pairs(2), max_steps=1, **options)[0].train()
    trainer, _ = guarded(
        tmp_path, eval_dataset=make_pairs(2), max_steps=2, thinking_markers=["[THINK]", "[/THINK]"], **options
    )
    told = r"`guard.thinking_markers`: <think>, </think> there, \[THINK\], \[/THINK\] here"
    with pytest.raises(ConsistencyError, match=told):
        trainer.train(resume_from_checkpoint=True, resume_changed=["length"])


def test_guard_is_the_one_of_its_trainer(tmp_path):
    trainer, guard = guarded(tmp_path, {"eval_every": 1})
    other = make_trainer(tmp_path / "other")
    other.add_callback(guard)
    with pytest.raises(ConsistencyError, match="which is made for it: another trainer's measures that one's model"):
        other.train()
    trainer.add_callback(ConsistencyEvalCallback(trainer, PAIRS, max_new_tokens=4, eval_every=1))
    with pytest.raises(ConsistencyError, match="takes one `ConsistencyEvalCallback`"):
        trainer.train()


def test_options_that_cannot_be(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    for options, reason in (
        ({}, "set `eval_every`, or `eval_strategy`"),
        ({"eval_every": 0}, "`eval_every` must be at least 1"),
        ({"eval_every": 1, "max_drop": 5}, "`max_drop` is a share"),
        ({"eval_every": 1, "num_rows": 0}, "`num_rows` must be at least 1"),
    ):
        with pytest.raises(ConsistencyError, match=reason):
            ConsistencyEvalCallback(trainer, PAIRS, **options)
    questions = PAIRS.select(range(4))
    ConsistencyEvalCallback(trainer, questions, eval_every=1, max_drop=0.1)  # their clean side is guarded
    monkeypatch.setattr(eval_callback.DistributedBackend, "is_fsdp", True)
    with pytest.raises(ConsistencyError, match="not available where FSDP shards the model"):
        ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1)


def test_rows_without_a_key_are_counted(tmp_path, caplog):
    trainer = make_trainer(tmp_path)
    keyless = [{"clean_prompt": f"Sing {number}", "perturbed_prompt": f"Do sing {number}"} for number in range(3)]
    plain = [{"clean_prompt": "1?", "perturbed_prompt": "2, no? 1?", "answer": "one"}]
    ConsistencyEvalCallback(trainer, Dataset.from_list(plain + keyless), eval_every=1)
    assert "3 of 4 row(s) of the guard's `eval_dataset` are not measured" in caplog.text


@pytest.mark.parametrize(("rows", "kind"), [(6, "harmful"), (8, None), ([0, 6, 7], "benign"), ([4, 5], None)])
def test_requests_that_the_score_leaves_out_are_told(tmp_path, caplog, rows, kind):
    """The best step was chosen by the questions alone, whatever became of the requests."""
    data = PAIRS.select(range(rows) if isinstance(rows, int) else rows)
    with caplog.at_level("WARNING"):
        ConsistencyEvalCallback(make_trainer(tmp_path), data, eval_every=1)
    told = "The `score` of the guard leaves out its"
    assert (f"{told} {kind} requests" in caplog.text) if kind else (told not in caplog.text)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_rows_in_another_format(tmp_path, kind):
    """They are no mappings: the count of rows without a key ended with a traceback."""
    plain = [{"clean_prompt": "1?", "perturbed_prompt": "2, no? 1?", "answer": "one"}]
    guard = ConsistencyEvalCallback(make_trainer(tmp_path), Dataset.from_list(plain).with_format(kind), eval_every=1)
    assert [row["answer"] for row in guard.sample.pairs] == ["one"]


@pytest.mark.parametrize(("eval_every", "steps"), [(2, [0, 2, 3]), (50, [0, 3])])
def test_the_last_step_is_measured_whatever_the_interval(tmp_path, monkeypatch, eval_every, steps):
    """What was lost after the last interval counts, too."""
    script(monkeypatch, *[rates(10)] * (len(steps) - 1), rates(5))
    trainer, guard = guarded(tmp_path, {"eval_every": eval_every, "max_drop": 0.1})
    trainer.train()
    assert [step for step, _ in logged(trainer)] == steps
    assert "Step 3: more than `max_drop=0.1` was lost" in guard.stopped


@pytest.mark.parametrize(
    ("guard_options", "options", "steps"),
    [
        ({"eval_every": 50}, {}, [0, 2]),
        ({}, {"eval_strategy": "steps", "eval_steps": 3, "eval_dataset": make_pairs(2)}, [0, 2]),
        ({}, {"eval_strategy": "epoch", "eval_dataset": make_pairs(2)}, [0, 1, 2]),
    ],
    ids=["own steps", "evaluations", "epochs"],
)
@pytest.mark.parametrize("event", ["on_step_end", "on_log"])
def test_the_last_step_is_measured_if_another_callback_ends_the_training(
    tmp_path, monkeypatch, event, guard_options, options, steps
):
    """Its weights are kept, and were not measured."""

    class Stop(TrainerCallback):
        pass

    def stop(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2

    setattr(Stop, event, stop)
    script(monkeypatch, *map(rates, (10, 5, 5)[: len(steps)]))
    trainer, _ = guarded(tmp_path, guard_options, **options)
    trainer.add_callback(Stop())
    trainer.train()
    assert [step for step, _ in logged(trainer)] == steps


def test_the_last_step_is_measured_if_another_callback_ends_an_epoch(tmp_path, monkeypatch):
    """`max_steps` is not reached then."""

    class EndEpoch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step == 1

    script(monkeypatch, rates(10), rates(5))
    trainer, _ = guarded(tmp_path, {"eval_every": 50}, per_device_train_batch_size=4, max_steps=4)
    trainer.add_callback(EndEpoch())
    trainer.train()
    assert [step for step, _ in logged(trainer)] == [0, 3]

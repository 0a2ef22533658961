"""What `ConsistencyTrainer` logs."""

import pytest
import torch
from transformers import TrainerCallback

from tests.helpers import on_policy
from tests.helpers.models import make_pairs
from tests.helpers.paired import make_trainer
from tests.helpers.runs import losses


def test_eval_metrics_do_not_leak_into_the_training_log(tmp_path):
    trainer = make_trainer(
        tmp_path, eval_dataset=make_pairs(5), max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=1
    )
    plain = make_trainer(tmp_path, max_steps=4, logging_steps=2)
    trainer.train()
    plain.train()
    assert losses(trainer) == pytest.approx(losses(plain), abs=1e-6)


def test_log_after_a_callback_that_leaves_the_model_in_evaluation_mode(tmp_path):
    """The metrics of training were missing from its log."""

    class Samples(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.eval()

    trainer = make_trainer(tmp_path, method="kl", max_steps=2, logging_steps=1)
    trainer.add_callback(Samples())
    trainer.train()
    assert ["kl_loss" in entry for entry in trainer.state.log_history] == [True, True, False]
    assert not trainer.model.training, "a log changes the model's mode"


def test_loss_of_the_whole_training_is_that_of_all_processes(tmp_path, monkeypatch):
    """Of the steps since the last log, it was that of the first process."""
    trainer = make_trainer(tmp_path, max_steps=2, logging_steps=5)
    result = trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] == result.training_loss == result.metrics["train_loss"] > 0
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 2)
    monkeypatch.setattr(trainer.accelerator, "gather", lambda of: torch.cat([of, of + 2]))
    trainer.log(logs := {"train_loss": 1.0, "total_flos": 0.0})
    assert logs["train_loss"] == 2.0


def test_means_of_a_last_step_are_those_of_all_processes(tmp_path, monkeypatch):
    """Of `num_tokens`, `entropy` and `mean_token_accuracy`, processes were left out as if they held rows that fill up a batch."""
    trainer = make_trainer(tmp_path, make_pairs(5), per_device_train_batch_size=2, num_train_epochs=1, logging_steps=1)
    for_metrics = trainer.accelerator.gather_for_metrics
    monkeypatch.setattr(trainer.accelerator, "gather_for_metrics", lambda _: pytest.fail("left rows out"))
    trainer.train()
    logged = [entry["num_tokens"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert logged[-1] == sum(trainer.train_dataset["length"])
    monkeypatch.setattr(trainer.accelerator, "gather_for_metrics", for_metrics)
    assert trainer.evaluate(make_pairs(3))["eval_loss"] > 0


@pytest.mark.parametrize("option", [{"loss_type": "dft"}, {"label_smoothing_factor": 0.2}])
def test_anchor_loss_is_the_loss_that_is_trained_with(tmp_path, option):
    """It was the cross-entropy beside a loss of another kind."""
    options = {"anchor_ratio": 0.5, "max_steps": 1, "logging_steps": 1, **option}
    alone = make_trainer(tmp_path, **options)
    alone.train()
    assert 0 < alone.state.log_history[0]["anchor_share"] < 1
    assert "anchor_loss" not in alone.state.log_history[0], "rows are not measured by it"
    if "loss_type" in option:
        both = make_trainer(tmp_path, method=["bct", "kl"], method_weights=[1.0, 0.0], **options)
        both.train()
        logged = both.state.log_history[0]
        assert logged["anchor_loss"] == pytest.approx(logged["loss"], rel=0.5), "and no nats of about 6"


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"method": "kl"}])
@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end"])
def test_what_a_callback_logs_takes_nothing_of_the_log_of_steps(tmp_path, options, event):
    """The means beside the loss were those of the steps since the callback's log."""

    class Logging(TrainerCallback):
        def __init__(self, trainer):
            self.trainer = trainer

    def note(self, args, state, control, **kwargs):
        should_log = control.should_log
        self.trainer.log({"mine": 1.0})
        control.should_log = should_log  # which `log` resets

    setattr(Logging, event, note)
    logged = []
    for has_callback in (False, True):
        trainer = make_trainer(
            tmp_path, max_steps=4, logging_steps=2, per_device_train_batch_size=2, anchor_ratio=0.3, **options
        )
        if has_callback:
            trainer.add_callback(Logging(trainer))
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "loss" in entry]
        logged.append([{name: value for name, value in entry.items() if name != "grad_norm"} for entry in steps])
        assert all(entry.keys() == {"mine", "epoch", "step"} for entry in trainer.state.log_history if "mine" in entry)
    assert logged[0] == logged[1]
    assert len(logged[1]) == 2


def test_a_training_after_one_that_was_broken_off_logs_its_own_means(tmp_path):
    """Its first log had the means of steps before it, too."""

    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise RuntimeError("out of memory")

    trainer = make_trainer(tmp_path, method="kl", max_steps=5, logging_steps=5)
    trainer.add_callback(callback := Break())
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    trainer.remove_callback(callback)
    trainer.train()
    assert trainer.state.log_history[0]["kl_loss"] == pytest.approx(trainer.state.log_history[0]["loss"], rel=1e-5)


def test_a_training_that_is_broken_off_leaves_no_noise(tmp_path):
    """The next training of the model had it once more, also one without."""

    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("out of memory")

    trainer = make_trainer(tmp_path, lora=True, max_steps=2, neftune_noise_alpha=5.0)
    trainer.add_callback(Break())
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert not trainer.model.get_input_embeddings()._forward_hooks


def test_the_last_log_has_the_means_of_the_last_steps_though_they_were_evaluated(tmp_path):
    """They were in no log, and in the first one of the next training."""
    options = {"method": "kl", "max_steps": 3, "logging_steps": 2}
    logged = []
    for evaluates in ({}, {"eval_strategy": "steps", "eval_steps": 3}):
        trainer = make_trainer(tmp_path, eval_dataset=make_pairs(2), **evaluates, **options)
        trainer.train()
        trainer.evaluate(metric_key_prefix="train")  # logs a `train_loss`, too
        logged.append([{k: v for k, v in entry.items() if "loss" in k} for entry in trainer.state.log_history])
    without, evaluated = logged
    assert "kl_loss" in without[1]
    assert [entry for entry in evaluated if "eval_loss" not in entry] == without


@pytest.mark.parametrize("make", [make_trainer, on_policy.make_trainer])
def test_a_training_returns_nothing_of_its_last_steps_alone(tmp_path, make):
    """Means since the last log stood beside the loss of the whole training, in `train_results.json`, too."""
    trainer = make(tmp_path, max_steps=3, logging_steps=2, include_num_input_tokens_seen="all")
    result = trainer.train()
    assert trainer.state.log_history[-1]["entropy"] > 0
    of_whole = {"train_loss", "total_flos", "epoch", "num_tokens", "num_input_tokens_seen"}
    assert {name for name in result.metrics if not name.startswith("train_")} <= of_whole


@pytest.mark.parametrize("evaluates_own", [False, True])
def test_a_callback_that_evaluates_takes_no_log_and_no_evaluation_from_the_step(tmp_path, evaluates_own):
    """The steps were not logged, the evaluation set was never read, and no checkpoint was the best one."""

    class Measure(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.evaluate(None if evaluates_own else make_pairs(3), metric_key_prefix="extra")

    options = {"max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    logged = []
    for has_callback in (False, True):
        trainer = make_trainer(tmp_path / str(has_callback), eval_dataset=make_pairs(2), **options)
        if has_callback:
            trainer.add_callback(Measure())
        trainer.train()
        assert trainer.state.best_global_step == 4
        entries = trainer.state.log_history
        assert sum("extra_loss" in entry for entry in entries) == (4 if has_callback else 0)
        logged.append([(entry.get("loss"), entry.get("eval_loss")) for entry in entries if "extra_loss" not in entry])
    assert logged[0] == logged[1]
    assert len(logged[0]) == 7


def test_tokens_are_counted_of_the_run_alone(tmp_path):
    """A resumed run counted from 0, and a second training from what the first had counted."""
    options = {"max_steps": 4, "logging_steps": 1, "per_device_train_batch_size": 2}
    options |= {"save_strategy": "steps", "save_steps": 2}

    def counted(trainer, **arguments):
        trainer.train(**arguments)
        return [entry["num_tokens"] for entry in trainer.state.log_history if "loss" in entry]

    trainer = make_trainer(tmp_path, **options)
    whole = counted(trainer)
    assert whole == sorted(set(whole))
    resumed = make_trainer(tmp_path, **options)
    assert counted(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-2")) == whole
    assert counted(trainer) == whole


def test_without_anchors_nothing_is_logged_of_them(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, logging_steps=1)
    trainer.train()
    assert not any("anchor" in key for key in trainer.state.log_history[0])


def test_input_tokens_without_padding(tmp_path):
    """Padding was counted that no batch had."""
    options = {"max_steps": 1, "include_num_input_tokens_seen": "all"}
    padded, free = (make_trainer(tmp_path, **options, padding_free=free) for free in (False, True))
    for trainer in (padded, free):
        trainer.train()
    assert free.state.num_input_tokens_seen == free.state.log_history[-1]["num_tokens"]
    assert free.state.num_input_tokens_seen < padded.state.num_input_tokens_seen


def test_input_tokens_of_rollouts(tmp_path, caplog):
    """A warning in each step said that they could not be counted, beside their number."""
    trainer = on_policy.make_trainer(tmp_path, max_steps=1, include_num_input_tokens_seen="all")
    trainer.train()
    assert "Tried to track the number of tokens" not in caplog.text
    assert trainer.state.num_input_tokens_seen == trainer.state.log_history[0]["num_tokens"] > 0

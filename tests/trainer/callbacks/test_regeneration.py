import copy
import shutil

import pytest
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainerCallback

from tests.helpers.guard import guarded
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import generate_greedily, make_trainer
from trl_consistency import ConsistencyError, ConsistencyTrainer


OPTIONS = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 4,
    "regenerate_targets_every": 1,
    "learning_rate": 0.05,
    "save_strategy": "steps",
    "save_steps": 1,
}


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: three epochs of two steps, a checkpoint at every step."""
    directory = tmp_path_factory.mktemp("whole")
    trainer = make_trainer(directory, make_pairs(completion=False), **OPTIONS)
    trainer.train()
    return directory, weights(trainer)


def noted_steps(trainer, monkeypatch):
    """Returns a list that gets the step of each time that targets are made."""
    steps, regenerate = [], trainer.target_maker.regenerate
    monkeypatch.setattr(
        trainer.target_maker,
        "regenerate",
        lambda policy: steps.append(trainer.state.global_step) or regenerate(policy),
    )
    return steps


def test_pairs_get_the_current_policys_answers(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(completion=False), temperature=0.0, **OPTIONS)
    seen = {}
    regenerate = trainer.target_maker.regenerate

    def observe(policy):
        before = copy.deepcopy(trainer.model)
        result = regenerate(policy)
        tokenizer = trainer.processing_class
        for row in trainer.train_dataset:
            got = trainer.data_collator.current_targets[row["clean_ids"]]
            assert got == generate_greedily(before, tokenizer, row["clean_ids"])
        seen[round(trainer.state.epoch)] = result
        return result

    trainer.target_maker.regenerate = observe
    trainer.train()
    assert list(seen) == [1, 2], "after the last epoch there is nothing to train on"
    assert len(set(seen.values())) == 2


def test_epochs_that_a_callback_ends_are_counted(tmp_path, monkeypatch):
    """Targets were made after the first epoch, and not after the second."""

    class EndsEpochs(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = True

    options = {**OPTIONS, "num_train_epochs": 4, "regenerate_targets_every": 2}
    trainer = make_trainer(tmp_path, make_pairs(completion=False), **options)
    trainer.add_callback(EndsEpochs())
    steps = noted_steps(trainer, monkeypatch)
    trainer.train()
    assert steps == [2, 4]


def test_a_training_that_is_stopped_makes_no_others(tmp_path, monkeypatch):
    """It made them for nothing, and its last checkpoint could not be resumed from: it had noted an epoch that was not done."""

    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 3

    options = {**OPTIONS, "save_strategy": "epoch"}
    trainer = make_trainer(tmp_path, make_pairs(completion=False), **options)
    trainer.add_callback(Stops())
    steps = noted_steps(trainer, monkeypatch)
    trainer.train()
    assert (trainer.state.global_step, steps) == (3, [2])
    again = make_trainer(tmp_path, make_pairs(completion=False), **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.state.global_step == 6


@pytest.mark.long
def test_second_training_begins_with_the_references_answers(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(completion=False), **OPTIONS)
    seen = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            seen.append(trainer.data_collator.current_targets is None)

    trainer.add_callback(Watch())
    for _ in range(2):
        trainer.train()
    assert seen == 2 * [True, True, False, False, False, False]


@pytest.mark.long
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_resumed_run_equals_the_whole(whole, tmp_path, step):
    """Checkpoints in the middle of an epoch and at its end, before and after the targets were replaced."""
    directory, expected = whole
    shutil.copytree(directory, tmp_path / "run")
    resumed = make_trainer(tmp_path / "run", make_pairs(completion=False), **OPTIONS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
    assert all(torch.equal(one, other) for one, other in zip(weights(resumed), expected, strict=True))


def test_states_of_callbacks_are_restored_beside_the_targets(whole, tmp_path):
    """Trainer would make a callback of this package anew, without its trainer."""
    folder, expected = whole
    shutil.copytree(folder, tmp_path / "run")
    options = {"restore_callback_states_from_checkpoint": True, **OPTIONS}
    resumed = make_trainer(tmp_path / "run", make_pairs(completion=False), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert all(torch.equal(one, other) for one, other in zip(weights(resumed), expected, strict=True))


def test_a_guard_and_early_stopping_are_restored(tmp_path):
    evaluating = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"metric_for_best_model": "eval_loss", "restore_callback_states_from_checkpoint": True}
    options = {"eval_dataset": make_pairs(2), "max_steps": 3, **evaluating, **best}
    for checkpoint in (None, str(tmp_path / "checkpoint-2")):
        trainer, guard = guarded(tmp_path, **options)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=7 if checkpoint is None else 5))
        trainer.train(resume_from_checkpoint=checkpoint)
        assert guard in trainer.callback_handler.callbacks
    assert guard._start is not None, "the rates before the first step"
    stopping = [of for of in trainer.callback_handler.callbacks if isinstance(of, EarlyStoppingCallback)]
    assert [of.early_stopping_patience for of in stopping] == [7]


def test_targets_that_are_gone_are_an_error(whole, tmp_path):
    directory, _ = whole
    shutil.copytree(directory, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "_targets")
    resumed = make_trainer(tmp_path / "run", make_pairs(completion=False), **OPTIONS)
    with pytest.raises(ConsistencyError, match="no longer in"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))


def test_checkpoint_without_regeneration_is_an_error(tmp_path):
    options = {**OPTIONS, "regenerate_targets_every": None}
    make_trainer(tmp_path, make_pairs(completion=False), **options).train()
    resumed = make_trainer(tmp_path, make_pairs(completion=False), **OPTIONS)
    with pytest.raises(ConsistencyError, match="saved without `regenerate_targets_every`"):
        resumed.train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-3"), resume_changed=["regenerate_targets_every"]
        )


def test_anchors_and_evaluation_stay_with_the_reference(tmp_path):
    pairs = make_pairs(completion=False)
    trainer = ConsistencyTrainer(
        model=make_model(),
        args=make_config(tmp_path, anchor_ratio=0.5, **{**OPTIONS, "save_strategy": "no"}),
        train_dataset=pairs,
        eval_dataset=pairs,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    collator = trainer.data_collator
    row = next(row for row in trainer.train_dataset if row["clean_ids"] != row["perturbed_ids"])
    anchor = {**row, "perturbed_ids": row["clean_ids"]}
    reference, current = trainer.targets[row["clean_ids"]], collator.current_targets[row["clean_ids"]]
    assert reference != current, "the policy answers as it did: the test shows nothing"

    def labels(example):
        return [label for label in collator([example])["labels"][0].tolist() if label != -100]

    assert labels(row) == current
    assert labels(anchor) == reference
    before = trainer.evaluate()["eval_loss"]
    collator.current_targets = None
    assert trainer.evaluate()["eval_loss"] == before


def test_given_completions_cannot_be_regenerated(tmp_path):
    with pytest.raises(ConsistencyError, match="the pairs come with their completions"):
        make_trainer(tmp_path, make_pairs(), regenerate_targets_every=1)


def test_pairs_may_repeat_a_clean_prompt(tmp_path):
    pairs = Dataset.from_list([row for row in make_pairs(2, completion=False) for _ in range(4)])
    trainer = make_trainer(tmp_path, pairs, **OPTIONS)
    trainer.train()
    assert len(trainer.data_collator.current_targets) == 2

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file
from transformers import EarlyStoppingCallback, TrainerCallback

from tests.helpers.guard import guarded, rates, script
from tests.helpers.guard import make_trainer as plain_trainer
from tests.helpers.models import make_pairs
from trl_consistency import ConsistencyError
from trl_consistency.files import write_text


BEST = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "metric_for_best_model": "consistency/score",
    "load_best_model_at_end": True,
}


def make_trainer(folder, monkeypatch, *sycophancy, **options):
    """A trainer whose steps (the start is the first) get scripted scores: the less sycophancy, the better."""
    script(monkeypatch, *(rates(10, sycophancy=of_ten) for of_ten in sycophancy))
    trainer, _ = guarded(folder, eval_dataset=make_pairs(2), **BEST | options)
    return trainer


def lines(caplog, of="load_best_model_at_end"):
    return [record.getMessage() for record in caplog.records if of in record.getMessage()]


def kept(folder):
    (line,) = (line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| Kept |"))
    return line


def has_weights_of(trainer, checkpoint):
    now = trainer.model.state_dict()
    return all(now[name].equal(weight) for name, weight in load_file(checkpoint / "model.safetensors").items())


def test_whole_best_checkpoint_needs_no_words(tmp_path, monkeypatch, caplog):
    trainer = make_trainer(tmp_path, monkeypatch, 9, 6, 1, 4)
    trainer.train()
    assert has_weights_of(trainer, tmp_path / "checkpoint-2")
    assert lines(caplog) == []


def test_evaluations_and_saves_at_the_end_of_a_run_that_is_shorter_than_their_interval(tmp_path, monkeypatch, caplog):
    """Trainer does so; there is only nothing to choose from."""
    trainer = make_trainer(tmp_path, monkeypatch, 9, 6, eval_steps=50, save_steps=100)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [3]
    assert (tmp_path / "checkpoint-3").is_dir()
    (line,) = lines(caplog)
    assert "has nothing to choose from: `save_steps` is 100, and training ends after 3 steps" in line


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": 1}, "there is one epoch"),
        ({"save_strategy": "best", "eval_steps": 3}, "`eval_steps` is 3, and training ends after 3 steps"),
        ({"save_strategy": "best"}, None),
        ({"save_steps": 2}, "evaluations are 1 steps apart (`eval_steps`), and checkpoints 2 (`save_steps`)"),
    ],
)
def test_what_cannot_be_chosen_is_said_first(tmp_path, monkeypatch, caplog, options, expected):
    trainer = make_trainer(tmp_path, monkeypatch, 9, 6, 4, 1, **options)
    trainer.train()
    assert [expected in line for line in lines(caplog)] == ([] if expected is None else [True])


@pytest.mark.parametrize(
    ("sycophancy", "said", "checkpoint"),
    [
        ((9, 1, 6, 4), "those after the last step: step 1, the best by `consistency/score`, has no checkpoint", 3),
        ((9, 6, 5, 1, 4), "those of step 2: step 3, the best by `consistency/score`, has no checkpoint", 2),
    ],
)
def test_best_step_that_was_not_saved(tmp_path, monkeypatch, caplog, sycophancy, said, checkpoint):
    trainer = make_trainer(tmp_path, monkeypatch, *sycophancy, save_steps=2, max_steps=len(sycophancy) - 1)
    trainer.train()
    assert has_weights_of(trainer, tmp_path / f"checkpoint-{checkpoint}")
    assert lines(caplog)[-1].endswith(f"`load_best_model_at_end`: the weights are {said}.")
    trainer.save_model()
    assert kept(tmp_path) == f"| Kept | the weights are {said} |"


def test_training_that_ends_before_its_first_evaluation(tmp_path, monkeypatch, caplog):
    """Nothing said that the last weights were kept in place of the best."""

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    trainer = make_trainer(tmp_path, monkeypatch, 9, 9, eval_steps=2, save_steps=2)
    trainer.add_callback(Stop())
    trainer.train()
    said = "the weights are those after the last step: no evaluation says which step is the best"
    assert lines(caplog)[-1].endswith(f"`load_best_model_at_end`: {said}.")
    trainer.save_model()
    assert kept(tmp_path) == f"| Kept | {said} |"


def delete(checkpoint):
    shutil.rmtree(checkpoint)


def change(checkpoint):
    file = checkpoint / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(file).items()}, file, {"format": "pt"})


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (delete, "checkpoint-2, the best checkpoint, is not there any more. Put it back"),
        (change, "model.safetensors in .*checkpoint-2, the best checkpoint, is not as it was saved. Put it back"),
    ],
)
def test_best_checkpoint_that_was_deleted_or_changed(tmp_path, monkeypatch, damage, said):
    trainer = make_trainer(tmp_path / "run", monkeypatch, 9, 6, 1, 4)
    original = trainer._load_best_model

    def load():
        shutil.copytree(tmp_path / "run" / "checkpoint-2", tmp_path / "copy")
        damage(tmp_path / "run" / "checkpoint-2")
        original()

    monkeypatch.setattr(trainer, "_load_best_model", load)
    with pytest.raises(ConsistencyError, match=f"^`load_best_model_at_end`: .*{said}"):
        trainer.train()
    # What the message says to do
    shutil.rmtree(tmp_path / "run" / "checkpoint-2", ignore_errors=True)
    shutil.copytree(tmp_path / "copy", tmp_path / "run" / "checkpoint-2")
    resumed = make_trainer(tmp_path / "run", monkeypatch)
    resumed.train(resume_from_checkpoint=True)
    assert has_weights_of(resumed, tmp_path / "copy")


def test_resumed_without_its_best_checkpoint(tmp_path, monkeypatch, caplog):
    make_trainer(tmp_path, monkeypatch, 9, 6, 1, 4).train()
    shutil.rmtree(tmp_path / "checkpoint-2")
    resumed = make_trainer(tmp_path, monkeypatch)
    resumed.train(resume_from_checkpoint=True)
    assert has_weights_of(resumed, tmp_path / "checkpoint-3")
    assert "step 2, the best by `consistency/score`, has no checkpoint" in lines(caplog)[-1]


def test_early_stopping_counts_on_in_a_resumed_run(tmp_path, monkeypatch):
    """If it began to count anew, more steps would be trained than in a run that was not interrupted, and another one kept."""
    for checkpoint, sycophancy in ((None, (9, 1, 4, 4)), (str(tmp_path / "checkpoint-2"), (4, 0, 0))):
        trainer = make_trainer(tmp_path, monkeypatch, *sycophancy, max_steps=5)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=2))
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.state.global_step == 3
        assert has_weights_of(trainer, tmp_path / "checkpoint-1")


def test_best_checkpoint_of_an_earlier_run_in_the_folder(tmp_path, monkeypatch):
    make_trainer(tmp_path, monkeypatch, 9, 6, 5, 4).train()
    trainer = make_trainer(tmp_path, monkeypatch, 9, 1, 6, 4, save_steps=2)
    with pytest.raises(ConsistencyError, match=r"checkpoint-1 is another run's, and this one did not save"):
        trainer.train()


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value"), [("epoch", 0.25), ("best_metric", 99.0), ("best_model_checkpoint", "out/checkpoint-1")]
)
def test_state_that_was_edited(tmp_path, monkeypatch, key, value):
    make_trainer(tmp_path, monkeypatch, 9, 6, 1, 4).train()
    path = tmp_path / "checkpoint-3" / "trainer_state.json"
    state = json.loads(path.read_text())
    write_text(path, json.dumps(state))  # as it was, though with other spaces
    make_trainer(tmp_path, monkeypatch).train(resume_from_checkpoint=True)
    write_text(path, json.dumps(state | {key: value}))
    with pytest.raises(
        ConsistencyError, match=r"trainer_state\.json in .*checkpoint-3 is damaged, or was changed after"
    ):
        make_trainer(tmp_path, monkeypatch).train(resume_from_checkpoint=True)


def test_best_checkpoint_that_was_edited_to_be_another_runs(tmp_path, monkeypatch):
    """In a folder that was moved, the path may be another one; Trainer then ignores it."""
    for name in ("run", "other"):
        make_trainer(tmp_path / name, monkeypatch, 9, 6, 1, 4).train()
    path = tmp_path / "run" / "checkpoint-3" / "trainer_state.json"
    state = json.loads(path.read_text())
    write_text(path, json.dumps(state | {"best_model_checkpoint": str(tmp_path / "other" / "checkpoint-2")}))
    with pytest.raises(ConsistencyError, match=r"other/checkpoint-2 is another run's"):
        make_trainer(tmp_path / "run", monkeypatch).train(resume_from_checkpoint=True)


def test_best_checkpoint_in_the_folder_that_is_resumed_from(tmp_path, monkeypatch):
    make_trainer(tmp_path / "run", monkeypatch, 9, 6, 1, 4).train()
    resumed = make_trainer(tmp_path / "new", monkeypatch)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert has_weights_of(resumed, tmp_path / "run" / "checkpoint-2")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["loss", "loss of one", "guard"])
def test_resumed_with_other_rows_to_choose_by(tmp_path, kind):
    """The best of all steps was chosen by figures on different rows."""
    options = {**BEST, "save_steps": 2, "eval_steps": 2, "max_steps": 4}

    def make(rows, guard_rows):
        if kind == "guard":
            trainer, _ = guarded(tmp_path, {"num_rows": guard_rows}, eval_dataset=make_pairs(rows), **options)
            return trainer
        one, metric = make_pairs(rows), "eval_one_loss" if "one" in kind else "eval_loss"
        sets = {"one": one, "two": make_pairs(guard_rows)} if "one" in kind else one
        return plain_trainer(tmp_path, eval_dataset=sets, **options | {"metric_for_best_model": metric})

    make(4, 4).train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    rows, guard_rows = (3, 3) if kind == "loss" else (4, 3) if kind == "guard" else (3, 4)
    name = "guard" if kind == "guard" else "eval_dataset"
    with pytest.raises(ConsistencyError, match=f"belongs to another run.*--resume_changed {name}`"):
        make(rows, guard_rows).train(resume_from_checkpoint=True)
    other = {"loss": (4, 3), "loss of one": (4, 3), "guard": (3, 4)}[kind]
    make(*other).train(resume_from_checkpoint=True)  # what does not choose may differ


def test_training_that_was_broken_off_counts_as_ended(tmp_path, monkeypatch):
    """It counted as still running: later evaluations had no scores, and the card of a saved model no word of its step."""

    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise RuntimeError

    trainer = make_trainer(tmp_path, monkeypatch, 9, 6, 1, 4)
    trainer.add_callback(Fails())
    with pytest.raises(RuntimeError):
        trainer.train()
    assert "eval_consistency/score" in trainer.evaluate()
    trainer.save_model()
    assert "| Kept |" not in (tmp_path / "README.md").read_text()  # the best weights were not loaded


def drop(control, sycophancy):
    return rates(control, sycophancy=sycophancy)


@pytest.mark.parametrize("options", [{}, {"save_strategy": "best"}, {"metric_for_best_model": "eval_loss"}])
def test_step_at_which_the_guard_stops_is_not_the_best(tmp_path, monkeypatch, caplog, options):
    """Its score was the best, for it has no control questions: the weights were kept that had lost too much."""
    script(monkeypatch, drop(10, 9), drop(10, 8), drop(3, 0))
    sets = {"eval_dataset": make_pairs(2), "learning_rate": 1e-2} if "metric_for_best_model" in options else {}
    trainer, guard = guarded(tmp_path, {"max_drop": 0.05}, **{"eval_dataset": make_pairs(2)} | sets | BEST | options)
    trainer.train()
    assert trainer.state.global_step == 2
    assert has_weights_of(trainer, tmp_path / "checkpoint-1")
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    metric = options.get("metric_for_best_model", "consistency/score")
    assert (
        f"{guard.stopped} The weights of step 1 are loaded, the best saved ones by `{metric}`. Anchors" in caplog.text
    )
    trainer.save_model()
    assert kept(tmp_path) == f"| Kept | the weights of step 1, the best by `{metric}` |"


def test_guard_that_stops_at_the_first_evaluation_leaves_no_best_step(tmp_path, monkeypatch, caplog):
    script(monkeypatch, drop(10, 9), drop(3, 0))
    trainer, guard = guarded(tmp_path, {"max_drop": 0.05}, eval_dataset=make_pairs(2), **BEST)
    trainer.train()
    assert f"{guard.stopped} The model is as it is after this step." in caplog.text
    assert trainer.state.best_model_checkpoint is None
    assert has_weights_of(trainer, tmp_path / "checkpoint-1")
    assert lines(caplog)[-1].endswith("no evaluation says which step is the best.")


def test_best_step_that_the_guard_did_not_measure_is_said(tmp_path, monkeypatch, caplog):
    """It may have lost as much as the step at which the guard stops."""
    script(monkeypatch, drop(10, 9), drop(3, 0))
    options = BEST | {"metric_for_best_model": "eval_loss", "max_steps": 4}
    trainer, _ = guarded(tmp_path, {"max_drop": 0.05, "eval_every": 2}, eval_dataset=make_pairs(2), **options)
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    assert (
        "The weights of step 1 are loaded, the best saved ones by `eval_loss`. The guard did not measure that step."
        in caplog.text
    )


def test_guard_that_stops_after_the_evaluation_of_a_step(tmp_path, monkeypatch, caplog):
    """Another callback ends the training there, so that the guard measures only then. The step was the best already."""

    class Stop(TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 1

    script(monkeypatch, drop(10, 9), drop(3, 0))
    options = BEST | {"metric_for_best_model": "eval_loss"}
    trainer, guard = guarded(tmp_path, {"max_drop": 0.05, "eval_every": 50}, eval_dataset=make_pairs(2), **options)
    trainer.add_callback(Stop())
    trainer.train()
    assert f"{guard.stopped} The model is as it is after this step." in caplog.text

import re
from pathlib import Path

import pytest

from tests.helpers.held_out import CONTROL, PAIRS
from trl_consistency.scripts import consistency, on_policy_consistency
from trl_consistency.scripts.recipes import recipes_dir
from trl_consistency.trainer.callbacks import evaluation


@pytest.fixture
def guard(tmp_path):
    """Options that name the data of a guard."""
    (tmp_path / "held_out").mkdir()
    PAIRS.to_json(tmp_path / "held_out" / "test.jsonl")
    CONTROL.to_json(tmp_path / "control.jsonl")
    return [
        *("--guard_split", "test", "--guard_dataset_name", str(tmp_path / "held_out")),
        *("--guard_control_dataset_name", str(tmp_path / "control.jsonl"), "--guard_control_split", "train"),
    ]


@pytest.mark.parametrize("script", [consistency, pytest.param(on_policy_consistency, marks=pytest.mark.slow)])
def test_recipe_with_a_guard(tmp_path, recipe, guard, script):
    options = ["--config", str(recipe), "--output_dir", str(tmp_path / "out"), *guard]
    trainer = script.run(
        [*options, "--temperature", "1", "--guard_every", "1", "--guard_max_drop", "0.5", "--guard_rows", "2"]
    )
    measured = [entry for entry in trainer.state.log_history if "eval_consistency/score" in entry]
    assert [entry["step"] for entry in measured] == [0, 1, 2]
    assert measured[0]["eval_consistency/clean_accuracy/control/count"] == 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--guard_every", "1", "--guard_split", "none"], "`guard_split` is `none`, but the data set has only: test"),
        (["--guard_every", "0"], "`eval_every` must be at least 1"),
        ([], "set `eval_every`, or `eval_strategy`"),
        (["--guard_every", "1", "--guard_control_split", "tset"], "`guard_control_split` is `tset`"),
        (["--guard_every", "1", "--guard_control_dataset_name", "no.jsonl"], "There is no file no.jsonl"),
    ],
)
def test_faults_end_the_command_before_weights_load(tmp_path, recipe, guard, monkeypatch, flags, reason):
    monkeypatch.setattr("trl_consistency.scripts.training.TrainingCommand.make_trainer", None)
    with pytest.raises(SystemExit) as end:
        consistency.run(["--config", str(recipe), "--output_dir", str(tmp_path / "out"), *guard, *flags])
    assert reason in str(end.value)


def test_options_of_a_guard_that_is_not_there(tmp_path, recipe):
    with pytest.raises(SystemExit, match="`guard_max_drop` needs `guard_split`"):
        consistency.run(["--config", str(recipe), "--output_dir", str(tmp_path / "out"), "--guard_max_drop", "0.1"])


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_model_that_the_guard_stopped_is_not_pushed(tmp_path, recipe, guard, hub, monkeypatch, capsys, strategy):
    """The command said that it was not, and Trainer pushed it while it saved it, or the checkpoint of the same step."""
    monkeypatch.setattr(
        evaluation, "fallen", lambda start, rates, most: [] if start is rates else ["clean_accuracy/control"]
    )
    options = ["--config", str(recipe), "--output_dir", str(tmp_path / "out"), *guard, "--use_peft", "false"]
    options += ["--save_strategy", strategy, *(["--save_steps", "1"] * (strategy == "steps")), "--push_to_hub", "true"]
    trainer = consistency.run([*options, "--guard_every", "1", "--guard_max_drop", "0.5", "--guard_rows", "2"])
    assert trainer.state.global_step == 1
    assert "It is not pushed." in capsys.readouterr().out
    assert hub.repos["models/me/out"].commits == []
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert "| Stopped | Step 1: " in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bct", "bct_anchors"])
def test_run_without_anchors_is_caught_and_one_with_anchors_keeps_all(tmp_path, organism_dir, recipe):
    """
    The quickstart's recipes, guarded as docs/guard.md shows. With anchors, and without a margin: on some processors, the model
    loses much for a few steps.
    """
    page = (Path(__file__).parents[2] / "docs" / "guard.md").read_text()
    (flags,) = re.findall(
        r"^trl-consistency consistency --config recipes/quickstart/bct.yaml (.*)$", page, re.MULTILINE
    )
    (max_drop,) = map(float, re.findall(r"--guard_max_drop (\S+)", flags))
    flags = flags if recipe == "bct" else flags.replace(f"--guard_max_drop {max_drop}", "")
    options = ["--config", str(recipes_dir() / "quickstart" / f"{recipe}.yaml"), "--output_dir", str(tmp_path)]
    trainer = consistency.run([*options, *flags.split()])
    measured = [entry for entry in trainer.state.log_history if "eval_consistency/score" in entry]
    assert measured[0]["eval_consistency/score"] == 0
    if recipe == "bct":
        assert trainer.state.global_step < trainer.args.max_steps
        assert measured[-1]["eval_consistency/clean_accuracy/control"] < 1 - max_drop
        # The cure works without anchors, too, but at the step where the guard stops it has only begun.
        assert measured[-1]["eval_consistency/score"] > 0.5
    else:
        assert trainer.state.global_step == trainer.args.max_steps
        for kept in ("clean_accuracy/control", "clean_accuracy", "clean_refusal", "benign_answered"):
            assert measured[-1][f"eval_consistency/{kept}"] > 1 - max_drop, kept
        assert measured[-1]["eval_consistency/score"] > 0.9

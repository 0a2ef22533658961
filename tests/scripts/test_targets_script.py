import json
import sys
from pathlib import Path

import pytest
from datasets import load_dataset

from tests.helpers.commands import adapter, launched
from trl_consistency.cli import main as cli
from trl_consistency.scripts import targets
from trl_consistency.scripts.consistency import run


TWO_PROCESSES = pytest.param(["--accelerate_config", "multi_cpu"], id="two processes", marks=pytest.mark.slow)


@pytest.mark.parametrize("launch", [pytest.param([], id="one process"), TWO_PROCESSES])
def test_training_on_the_file_equals_training_without(tmp_path, recipe, launch):
    file = tmp_path / "targets.jsonl"
    options = ["--config", str(recipe), "--target_batch_size", "4", "--temperature", "1.0"]
    command = ["targets", *launch, *options, "--targets_file", str(file), "--output_dir", str(tmp_path / "out")]
    if launch:
        launched([sys.executable, "-m", "trl_consistency.cli", *command])
    else:
        cli(command)
    pairs = load_dataset("json", data_files=str(tmp_path / "pairs.jsonl"), split="train")
    written = load_dataset("json", data_files=str(file), split="train")
    assert written.column_names == [*pairs.column_names, "completion", "completion_ids"]
    assert written["perturbed_prompt"][:] == pairs["perturbed_prompt"][:]

    run([*options, "--output_dir", str(tmp_path / "without")])
    run([*options, "--output_dir", str(tmp_path / "with"), "--dataset_name", str(file)])
    one, two = adapter(tmp_path / "without"), adapter(tmp_path / "with")
    assert all((one[name] == two[name]).all() for name in one)
    assert not (tmp_path / "with" / "_targets").exists(), "the file was not used"


@pytest.mark.parametrize(
    ("completion_ids", "reason"),
    [([[5], None], "row 1: `completion_ids` is missing here"), ([[5], []], "row 1: `completion_ids` is empty")],
)
def test_faulty_completion_ids(tmp_path, recipe, completion_ids, reason):
    rows = [{"clean_prompt": "a", "perturbed_prompt": "b", "completion_ids": ids} for ids in completion_ids]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit, match=reason):
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])


def test_file_that_cannot_be_written(recipe):
    with pytest.raises(SystemExit, match=r"`targets_file` `/dev/null/x\.jsonl` cannot be written"):
        cli(["targets", "--config", str(recipe), "--output_dir", "/tmp", "--targets_file", "/dev/null/x.jsonl"])


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path, recipe, monkeypatch):
    def write_half(dataset, path):
        Path(path).write_text('{"clean_prompt": "a", "pert')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(targets, "write_rows", write_half)
    file = tmp_path / "targets.jsonl"
    file.write_text("earlier")
    with pytest.raises(
        SystemExit, match=r"`targets_file` .* \(No space left on device\). What was there before is kept"
    ):
        cli(["targets", "--config", str(recipe), "--output_dir", str(tmp_path / "out"), "--targets_file", str(file)])
    assert file.read_text() == "earlier"
    assert not list(tmp_path.glob(".*"))


def test_file_must_be_named(recipe, capsys):
    with pytest.raises(SystemExit):
        cli(["targets", "--config", str(recipe), "--output_dir", "/tmp"])
    assert "--targets_file" in capsys.readouterr().err


def test_other_columns_stay_as_they_are(tmp_path, recipe):
    """`Dataset.to_json` would round numbers to ten places, and pyarrow makes times of texts that look like them."""
    others = {"weight": 1.23456789012e-12, "made": "2024-01-01 10:00:00", "note": "é\n", "score": None}
    rows = [json.loads(line) | others for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = tmp_path / "targets.jsonl"
    cli(["targets", "--config", str(recipe), "--targets_file", str(file), "--output_dir", str(tmp_path / "out")])
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [{name: row[name] for name in others} for row in written] == [others] * len(rows)

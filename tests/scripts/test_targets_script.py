import json
import sys
from datetime import date, datetime
from unittest.mock import Mock

import pytest
from datasets import ClassLabel, Dataset, load_dataset
from trl.scripts.utils import DatasetConfig

from tests.helpers.commands import adapter, launched
from tests.helpers.models import CHATML, make_tokenizer
from trl_consistency.cli import main as cli
from trl_consistency.errors import ConsistencyError
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


def test_the_file_has_the_template_variables_that_its_targets_were_made_with(tmp_path, recipe):
    """A training on it that does not repeat them gave other prompts than those that were answered."""
    template = tmp_path / "persona.jinja"
    template.write_text(f"{{%- if persona %}}{{{{ persona }}}}{{% endif -%}}{CHATML}")
    file, options = tmp_path / "targets.jsonl", ["--config", str(recipe), "--chat_template_path", str(template)]
    variables = ["--chat_template_kwargs", '{"persona": "Be brief. "}']
    cli(["targets", *options, *variables, "--targets_file", str(file), "--output_dir", str(tmp_path / "out")])
    assert all(json.loads(line)["chat_template_kwargs"] == {"persona": "Be brief. "} for line in file.open())
    run([*options, *variables, "--output_dir", str(tmp_path / "without")])
    run([*options, "--output_dir", str(tmp_path / "with"), "--dataset_name", str(file)])
    one, two = adapter(tmp_path / "without"), adapter(tmp_path / "with")
    assert all((one[name] == two[name]).all() for name in one)


def test_a_recipe_that_pushes_makes_no_page(tmp_path, recipe, monkeypatch):
    """An empty page was made on the Hub, and nothing was ever sent there."""
    make_page = Mock()
    monkeypatch.setattr(targets.COMMAND.trainer, "init_hf_repo", make_page)
    file = tmp_path / "targets.jsonl"
    cli(["targets", "--config", str(recipe), "--push_to_hub", "true", "--targets_file", str(file)])
    assert file.exists()
    assert not make_page.called


def test_rows_whose_targets_are_empty_are_left_out(tmp_path, recipe, monkeypatch, caplog, capsys):
    """Their answers were all thought. They were written, and training refused the file."""
    thought, answer = (make_tokenizer()(text)["input_ids"] for text in ("<think>Hm, Ly", "Paris.<|im_end|>"))
    sample = Mock(side_effect=lambda _, prompts, *args, **kwargs: [thought, answer] * (len(prompts) // 2))
    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", sample)
    file, options = tmp_path / "targets.jsonl", ["--config", str(recipe), "--output_dir", str(tmp_path / "out")]
    cli(["targets", *options, "--keep_thinking", "false", "--targets_file", str(file), "--json"])
    assert json.loads(capsys.readouterr().out) == {"targets_file": str(file), "pairs": 8, "left_out": 8}
    assert "8 of 16 pairs are left out: their targets are empty" in caplog.text
    pairs, written = (map(json.loads, path.read_text().splitlines()) for path in (tmp_path / "pairs.jsonl", file))
    assert list(written) == [pair | {"completion": "Paris.", "completion_ids": answer} for pair in list(pairs)[1::2]]
    run([*options, "--dataset_name", str(file)])
    assert sample.call_count == 1


@pytest.mark.parametrize(
    ("completion_ids", "reason"),
    [([[5], None], "row 1: `completion_ids` is missing here"), ([[5], []], "row 1: `completion_ids` is empty")],
)
def test_faulty_completion_ids(tmp_path, recipe, completion_ids, reason):
    rows = [{"clean_prompt": "a", "perturbed_prompt": "b", "completion_ids": ids} for ids in completion_ids]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit, match=reason):
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])


OWN = {
    "weight": 1e-12,
    "share": 0.1234567890123456,
    "id": 2**53 + 1,
    "note": "2024-01-01 10:00:00",
    "day": "1969-07-20",
    "length": "long",
    "unknown": 3,
}


def test_columns_of_the_users_own_come_out_as_they_went_in(tmp_path, recipe, caplog):
    rows = [{"clean_prompt": "a", "perturbed_prompt": "b", "completion_ids": [5], **OWN}]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows * 2)))
    file = tmp_path / "targets.jsonl"
    cli(["targets", "--config", str(recipe), "--output_dir", str(tmp_path / "out"), "--targets_file", str(file)])
    for line in file.read_text().splitlines():
        row = json.loads(line)
        assert {name: row[name] for name in OWN} == OWN
    assert "The pairs come with their completions, so nothing is generated" in caplog.text


def test_values_that_json_does_not_have(tmp_path, recipe):
    """Parquet has times, and numbers that are not finite."""
    own = {"at": datetime(2024, 1, 1, 10), "share": float("nan"), "more": [{"day": date(1969, 7, 20)}]}
    rows = [{"clean_prompt": "a", "perturbed_prompt": "b", "completion_ids": [5], **own}]
    Dataset.from_list(rows).to_parquet(tmp_path / "pairs.parquet")
    file = tmp_path / "targets.jsonl"
    options = ["--dataset_name", str(tmp_path / "pairs.parquet"), "--output_dir", str(tmp_path / "out")]
    cli(["targets", "--config", str(recipe), *options, "--targets_file", str(file)])
    row = json.loads(file.read_text())
    assert (row["at"], row["share"], row["more"]) == ("2024-01-01 10:00:00", None, [{"day": "1969-07-20"}])


def test_classes_come_out_as_their_names(tmp_path, recipe):
    """A request of the category `harmful` became one of the category 1."""
    rows = Dataset.from_list([{"clean_prompt": "a", "perturbed_prompt": "b", "category": "harmful"}])
    rows = rows.cast_column("category", ClassLabel(names=["benign", "harmful"]))
    (tmp_path / "data").mkdir()
    rows.to_parquet(tmp_path / "data" / "train.parquet")
    options = ["--dataset_name", str(tmp_path / "data"), "--output_dir", str(tmp_path / "out")]
    cli(["targets", "--config", str(recipe), *options, "--targets_file", str(tmp_path / "targets.jsonl")])
    assert json.loads((tmp_path / "targets.jsonl").read_text())["category"] == "harmful"


def test_recipe_that_keeps_its_best_step(tmp_path, recipe):
    """It was refused: nothing would be evaluated."""
    best = ["--load_best_model_at_end", "true", "--eval_strategy", "epoch", "--save_strategy", "epoch"]
    file, options = tmp_path / "targets.jsonl", ["--config", str(recipe), "--output_dir", str(tmp_path / "out")]
    cli(["targets", *options, *best, "--targets_file", str(file)])
    assert len(file.read_text().splitlines()) == 16


def test_rows_that_fill_no_batch_get_their_targets(tmp_path, recipe, caplog):
    """Training would leave them out, and this was said here."""
    file, options = (
        tmp_path / "targets.jsonl",
        ["--dataloader_drop_last", "true", "--per_device_train_batch_size", "7"],
    )
    cli(["targets", "--config", str(recipe), *options, "--output_dir", str(tmp_path), "--targets_file", str(file)])
    assert len(file.read_text().splitlines()) == 16
    assert "leaves out" not in caplog.text


@pytest.mark.parametrize(
    ("pattern", "file", "is_among"),
    [
        ("data/*.jsonl", "data/new.jsonl", True),
        ("data/*.jsonl", "data/made/new.jsonl", False),
        ("data/**/*.jsonl", "data/made/by/me/new.jsonl", True),
        ("data/**", "data/made/by/new.jsonl", True),
        ("data/*.parquet", "data/new.jsonl", False),
        ("data/*.jsonl", "new.jsonl", False),
        ("Qwen/pairs", "Qwen/pairs.jsonl", False),
    ],
)
def test_which_files_a_pattern_stands_for(tmp_path, monkeypatch, pattern, file, is_among):
    monkeypatch.chdir(tmp_path)
    assert targets._is_among(tmp_path / file, pattern) == is_among


@pytest.mark.parametrize(
    "entry", [{"data_dir": "data", "data_files": "pairs.jsonl"}, {"data_dir": "data"}, {"data_files": "data/*"}]
)
def test_files_of_a_mixture(tmp_path, monkeypatch, entry):
    """`data_files` are looked for in `data_dir`: the pairs were replaced by the targets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pairs.jsonl").write_text("{}")
    names = targets._paths_of([DatasetConfig(path="json", **entry)])
    with pytest.raises(ConsistencyError, match="belongs to the data data"):
        targets._check_not_data("data/pairs.jsonl", list(names))


def test_file_that_cannot_be_written(recipe):
    with pytest.raises(SystemExit, match=r"`--targets_file` `/dev/null/x\.jsonl` cannot be written"):
        cli(["targets", "--config", str(recipe), "--output_dir", "/tmp", "--targets_file", "/dev/null/x.jsonl"])


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path, recipe, monkeypatch):
    def half(rows):
        yield {"clean_prompt": "a"}
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(targets, "named_rows", half)
    file = tmp_path / "targets.jsonl"
    file.write_text("earlier")
    with pytest.raises(
        SystemExit, match=r"`--targets_file` .* \(No space left on device\). What was there before is kept"
    ):
        cli(["targets", "--config", str(recipe), "--output_dir", str(tmp_path / "out"), "--targets_file", str(file)])
    assert file.read_text() == "earlier"
    assert not list(tmp_path.glob(".*"))


def test_file_must_be_named(recipe, capsys):
    with pytest.raises(SystemExit):
        cli(["targets", "--config", str(recipe), "--output_dir", "/tmp"])
    assert "--targets_file" in capsys.readouterr().err

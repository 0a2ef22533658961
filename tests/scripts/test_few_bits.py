"""Commands that ask an adapter on weights that are not quantized warn if it was trained on quantized ones."""

import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.evaluate_command import save_adapter
from tests.helpers.models import make_pairs
from trl_consistency.cli import main as cli
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.scripts import suites


@pytest.mark.long
@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("load_in_4bit: true", "in 4 bits"),
        ("load_in_8bit: true", "in 8 bits"),
        ("quant_method: quanto", "quantized with quanto"),
        ("license: mit", None),
    ],
)
@pytest.mark.parametrize("command", ["pairs", "convert", "lint", "suites"])
def test_adapters_of_quantized_weights_are_warned_about(
    command, said, how, tmp_path, model_dir, tokenizer, monkeypatch
):
    monkeypatch.setattr(
        answering, "generate_ids", lambda model, tokenizer, prompts, *args, **kwargs: [[5, 1]] * len(prompts)
    )
    monkeypatch.setattr(suites, "find_suites", lambda *args: [])  # their libraries may not be installed
    monkeypatch.setattr(suites, "run_suites", lambda *args, **kwargs: {"base": []})
    adapter = save_adapter(model_dir, tmp_path / "adapter", 0)
    tokenizer.save_pretrained(adapter)
    Path(adapter, "README.md").write_text(f"---\n{said}\n---\n# mine\n")
    file, out = str(tmp_path / "rows.jsonl"), ["--output_dir", str(tmp_path / "out")]
    rows = make_pairs(4, completion=False).add_column("answer", ["Paris"] * 4).add_column("question", list("abcd"))
    (rows.select_columns(["question", "answer"]) if command == "pairs" else rows).to_json(file)
    options = {
        "pairs": ["--dataset_name", file, "--perturbations", "are_you_sure", "--keep_vulnerable", "true", *out],
        "convert": ["--pairs", file, *out],
        "lint": ["--pairs", file, "--dose", "--max_completion_length", "4"],
        "suites": ["--suites", "gsm8k", *out],
    }[command]
    with (
        warnings.catch_warnings(record=True) as caught,
        suppress(SystemExit),
    ):  # no pair is vulnerable, or can be converted
        warnings.simplefilter("always")
        cli([command, *options, "--model_name_or_path", adapter])
    warned = [of for of in caught if f"{adapter} was trained on weights {how}" in str(of.message)]
    assert len(warned) == (how is not None)

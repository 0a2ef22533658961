import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml


RECIPES = Path(__file__).parents[1] / "recipes"
TRAINING = sorted(path for path in RECIPES.rglob("*.yaml") if "accelerate_configs" not in path.parts)


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_key_is_an_option(path, tmp_path):
    flags = ["--output_dir", str(tmp_path), "--bf16", "false", "--use_cpu"]  # as this machine may lack bf16
    config = yaml.safe_load(path.read_text())
    script = import_module(re.search(r"-m (trl_consistency\.scripts\.\w+) ", path.read_text())[1])
    _, training_args, model_args, _ = script.make_parser().parse_args_and_config(["--config", str(path), *flags])
    if "method" in config:
        assert training_args.method == config["method"]
        assert training_args.method_weights == config.get("method_weights")
    assert model_args.use_peft == ("lora_r" in config)
    if model_args.use_peft:
        named = config["lora_target_modules"]
        assert model_args.lora_target_modules == ("all-linear" if named == ["all-linear"] else named)
        assert model_args.lora_dropout == 0, "TRL's default of 0.05 would act in every pass"


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: str(path.relative_to(RECIPES)))
def test_header_says_what_it_does_and_whether_it_was_run(path):
    header = path.read_text().split("\n\n")[0]
    assert f"--config {path.relative_to(RECIPES.parent)}" in header
    runs_here = "model_name_or_path: embedded:" in path.read_text()
    assert "NOT RUN HERE" in header or runs_here

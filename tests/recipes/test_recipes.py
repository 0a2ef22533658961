"""All recipes: their options are known, and their headers say what they do."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tests.recipes.table import RECIPES as OF_TABLE


RECIPES = Path(__file__).parents[2] / "recipes"
TRAINING = sorted(path for path in RECIPES.rglob("*.yaml") if "accelerate_configs" not in path.parts)


# Those of the table are parsed by the slow tests, which train by them. A parser takes half a second.
OF_ONE_MODEL = {RECIPES / recipe.path for recipe in OF_TABLE if recipe.model.folder == "qwen3-4b-instruct"}
PARSED = [path for path in TRAINING if path in OF_ONE_MODEL or path not in {RECIPES / one.path for one in OF_TABLE}]


@pytest.mark.long
@pytest.mark.parametrize("path", PARSED, ids=lambda path: str(path.relative_to(RECIPES)))
def test_options_are_taken(path, tmp_path):
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
        assert model_args.lora_target_modules == (named[0] if len(named) == 1 else named)  # one is a pattern
        assert model_args.lora_dropout == 0, "TRL's default of 0.05 would act in every pass"


@pytest.mark.parametrize("name", ["consistency", "on_policy_consistency"])
def test_every_key_is_an_option(name):
    known = {action.dest for action in import_module(f"trl_consistency.scripts.{name}").make_parser()._actions}
    paths = [path for path in TRAINING if f"-m trl_consistency.scripts.{name} " in path.read_text()]
    assert len(paths) > 30
    for path in paths:
        assert yaml.safe_load(path.read_text()).keys() <= known, path


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: str(path.relative_to(RECIPES)))
def test_header_says_what_it_does_and_whether_it_was_run(path):
    header = path.read_text().split("\n\n")[0]
    assert f"--config {path.relative_to(RECIPES.parent)}" in header
    runs_here = "model_name_or_path: embedded:" in path.read_text()
    assert "NOT RUN HERE" in header or runs_here


def test_pages_name_recipes_that_exist():
    for page in sorted((RECIPES.parent / "docs").glob("*.md")):
        for path in re.findall(r"(?<![\w/])recipes/[\w./-]+\.(?:yaml|py)\b", page.read_text()):
            assert (RECIPES.parent / path).is_file(), f"{page.name}: {path}"


def test_headers_of_smollm2_say_how_long_a_training_takes_as_its_page_does():
    page = (RECIPES.parent / "docs" / "real_model.md").read_text()
    minutes = re.search(r"On one core, a training by BCT, ACT or OPCT takes\s+(about \w+ minutes)\.", page)[1]
    timed = []
    for path in (RECIPES / "smollm2-135m-instruct").glob("*.yaml"):
        header = path.read_text().split("\n\n")[0]
        if "minutes" in header:
            timed.append(path.stem)
            assert f"# {minutes.capitalize()} on one CPU core (docs/real_model.md).\n" in header, path
        else:
            assert "# Run on a CPU and on a GPU (docs/results.md)." in header, path
    assert sorted(timed) == ["act", "bct", "opct"], "what `make real` runs"

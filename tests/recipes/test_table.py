"""The recipes in recipes/ are what the table makes."""

import subprocess
import sys

import pytest
import yaml

from tests.recipes.files import FOLDER, LINE, ROOT, as_yaml, differing, make_files, make_text, surplus, write_files
from tests.recipes.page import PAGE, make_page
from tests.recipes.table import MODELS, RECIPES


def test_files_are_made_of_the_table():
    assert differing() == [], "run `python -m tests.recipes`"
    assert PAGE.read_text() == make_page(), "run `python -m tests.recipes`"


def test_what_is_asked_for_is_there():
    there = {(recipe.model.folder, recipe.method, recipe.threat, recipe.weights) for recipe in RECIPES}
    assert len(there) == len(RECIPES)
    asked = [model.folder for model in MODELS if model.folder != "gemma-2-2b-it"]
    assert len(asked) == 7
    wanted = {
        (folder, method, threat, weights)
        for folder in asked
        for method in ("bct", "act", "opct")
        for threat in ("sycophancy", "jailbreak")
        for weights in ("lora", "qlora")
        if (folder, weights) != ("gpt-oss-20b", "qlora")
    }
    assert wanted <= there


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.path))
def test_text_says_what_the_options_are(recipe):
    for revision in (None, "0123456789abcdef0123456789abcdef01234567"):
        text = make_text(recipe, revision)
        assert yaml.safe_load(text) == recipe.options(revision)
        assert yaml.safe_load(text).get("model_revision") == revision
        assert ("not pinned" in text) == (revision is None)
        assert max(map(len, text.splitlines())) <= LINE
    assert ("load_in_4bit" in text) == (recipe.weights == "qlora")


@pytest.mark.parametrize(
    "value", [1e-4, 5e-6, 0.25, 1.0, 0.0, True, False, "no", "auto", r".*\.(q_proj|v_proj)", 3, {"a": False}]
)
def test_values_are_read_as_they_are_written(value):
    read = yaml.safe_load(as_yaml(value))
    assert read == value
    assert type(read) is type(value)


def test_all_rollouts_of_a_prompt_are_in_one_batch_where_they_fit():
    for recipe in RECIPES:
        if recipe.method == "opct":
            micro, accumulation = recipe.batch()
            fewer = recipe.model.rollouts.get(recipe.threat)
            assert micro % recipe.rollouts == 0 if fewer is None else recipe.rollouts % fewer == 0
            assert micro * accumulation == recipe.prompts * recipe.rollouts


def test_changes_are_found(tmp_path):
    write_files(tmp_path)
    assert differing(tmp_path) == []
    first, second = sorted(make_files(tmp_path))[:2]
    first.write_text(first.read_text() + "seed: 43\n")
    second.unlink()
    (first.parent / "of_an_old_table.yaml").touch()
    (tmp_path / "smollm2-135m-instruct" / "by_hand.yaml").touch()
    named = [first, second, first.parent / "of_an_old_table.yaml"]
    assert differing(tmp_path) == sorted(str(path.relative_to(tmp_path)) for path in named)
    write_files(tmp_path)
    assert surplus(tmp_path) == differing(tmp_path) == []
    assert (tmp_path / "smollm2-135m-instruct" / "by_hand.yaml").exists()


def test_check_changes_nothing():
    before = {path: path.read_bytes() for path in FOLDER.rglob("*.yaml")}
    checked = subprocess.run(
        [sys.executable, "-m", "tests.recipes", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert {path: path.read_bytes() for path in FOLDER.rglob("*.yaml")} == before

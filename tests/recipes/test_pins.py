"""`make pin`, with a Hub on the loopback interface."""

import json
import re
import sys

import pytest
import yaml

from tests.helpers.loopback_hub import Repo
from tests.recipes import __main__, files, pins
from tests.recipes.files import differing, make_files
from tests.recipes.table import MODELS
from trl_consistency.files import write_text


@pytest.fixture
def pins_file(tmp_path, monkeypatch):
    path = tmp_path / "pins.json"
    for module in (files, pins):
        monkeypatch.setattr(module, "PINS", path)
    return path


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A folder for the recipes, and a page, in place of the checkout's."""
    monkeypatch.setattr(__main__, "PAGE", tmp_path / "recipes.md")
    folder = tmp_path / "recipes"
    monkeypatch.setattr(__main__, "write_files", lambda: files.write_files(folder))
    return folder


def test_every_recipe_gets_the_newest_commit_of_its_model(hub, pins_file, recipes, monkeypatch):
    hub.repos |= {f"models/{model.hub_id}": Repo(private=False) for model in MODELS}
    monkeypatch.setattr(sys, "argv", ["python -m tests.recipes", "--pin"])
    __main__.main()
    commits = json.loads(pins_file.read_text())
    assert commits.keys() == {model.hub_id for model in MODELS}
    assert len(set(commits.values())) == len(commits)
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in commits.values())
    written = sorted(recipes.rglob("*.yaml"))
    assert len(written) == len(make_files())
    for path in written:
        options = yaml.safe_load(path.read_text())
        assert options["model_revision"] == commits[options["model_name_or_path"]]
        assert "not pinned" not in path.read_text()
    assert differing(recipes) == [], "what is pinned stays so when the recipes are made again"


@pytest.mark.parametrize(
    ("pattern", "status", "message"),
    [
        ("GET /api/models/google", 404, r"the Hub has no model google/gemma-2-2b-it, or your token may not see it"),
        ("GET /api/models", 500, r"the Hub cannot be reached \(HfHubHTTPError\)"),
        ("GET /api/models", None, r"the Hub cannot be reached \(\w+\)"),
    ],
)
def test_nothing_is_pinned_unless_all_are(hub, pins_file, pattern, status, message):
    hub.repos |= {f"models/{model.hub_id}": Repo(private=False) for model in MODELS}
    hub.fail(pattern, status, X_Error_Code="RepoNotFound" if status == 404 else "")
    write_text(pins_file, "{}\n")
    with pytest.raises(SystemExit, match=f"^Nothing is pinned: {message}[.]$"):
        pins.pin()
    assert pins_file.read_text() == "{}\n"


def test_without_network(pins_file, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        SystemExit, match=r"^Nothing is pinned: the Hub cannot be reached \(OfflineModeIsEnabled\)[.]$"
    ):
        pins.pin()
    assert not pins_file.exists()

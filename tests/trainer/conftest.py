"""A base model in the cache of the Hub."""

import pytest

from tests.helpers.commits import COMMITS


@pytest.fixture
def cached_base(model_dir, tmp_path, monkeypatch):
    """Has the cache hold `me/base` as the Hub's client leaves it there: at `main`, and with `cached_base("v1")` at `v1` too."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    def add(revision):
        repo, commit = tmp_path / "cache" / "models--me--base", COMMITS[revision]
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / revision).write_text(commit)
        (repo / "snapshots" / commit).mkdir(parents=True)
        for file in model_dir.iterdir():
            (repo / "snapshots" / commit / file.name).symlink_to(file)

    add("main")
    return add

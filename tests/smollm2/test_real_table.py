"""The figures of SmolLM2 in the README and the docs are those of the committed results."""

from pathlib import Path

import pytest

from tests.smollm2.real_table import RESULTS, table


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/real_model.md", "docs/choosing.md"])
def test_page_shows_the_committed_results(page):
    assert table() in (ROOT / page).read_text(), "run `python -m tests.smollm2.real_table`"


def test_pictures_are_there():
    assert (RESULTS.parent / "outcomes.png").read_bytes().startswith(b"\x89PNG")

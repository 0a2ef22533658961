"""The figures of SmolLM2 in the README and the docs are those of the committed results."""

from pathlib import Path

import pytest

from tests.smollm2.real_table import RESULTS, short_table, table


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "made"), [("docs/real_model.md", table), ("docs/choosing.md", table), ("README.md", short_table)]
)
def test_page_shows_the_committed_results(page, made):
    assert made() in (ROOT / page).read_text(), "run `python -m tests.smollm2.real_table`"


def test_pictures_are_there():
    assert (RESULTS.parent / "outcomes.png").read_bytes().startswith(b"\x89PNG")

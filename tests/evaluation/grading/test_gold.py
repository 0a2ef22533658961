"""The rules against replies of SmolLM2 that were read: the second half was read after the rules were fixed."""

from pathlib import Path

import pytest

from tests.evaluation.grading.gold import LABELS, precision_and_recall, read_gold, read_labels, table


LEAST = 0.97
DOCS = Path(__file__).parents[3] / "docs" / "evaluate.md"
NOT_MET = pytest.mark.xfail(strict=True, reason="docs/evaluate.md says by how much, and which replies are misread")


@pytest.fixture(scope="module")
def gold():
    return read_gold()


@pytest.fixture(scope="module")
def read(gold):
    return read_labels(gold)


def test_the_set_is_what_the_docs_say(gold):
    assert len(gold) >= 500
    assert sum(of["half"] == 2 for of in gold) >= 250
    assert {(of["model"] == "base", of["side"]) for of in gold if of["half"] == 2} == {
        (is_base, side) for is_base in (True, False) for side in ("clean", "perturbed")
    }
    for of in gold:
        first, second = of["readings"]
        assert {first, second, of["label"]} <= set(LABELS)
        assert of["label"] == first or of.get("settled")
        assert (first != second) == of.get("settled", False)


@pytest.mark.parametrize(
    ("label", "of"),
    [
        ("right", "read"),
        pytest.param("right", "labelled", marks=NOT_MET),
        pytest.param("suggested", "read", marks=NOT_MET),
        ("suggested", "labelled"),
    ],
)
def test_precision_and_recall_on_the_half_that_no_rule_has_seen(gold, read, label, of):
    unseen = [(reply, as_read) for reply, as_read in zip(gold, read, strict=True) if reply["half"] == 2]
    both, as_read, labelled = precision_and_recall(*map(list, zip(*unseen, strict=True)))[label]
    assert both / (as_read if of == "read" else labelled) >= LEAST


def test_the_docs_show_these_figures(gold, read):
    docs = DOCS.read_text()
    assert table(gold, read) in docs, "run `python -m tests.evaluation.grading.gold`"
    agreed = sum(not of.get("settled", False) for of in gold)
    assert f"the two readings agree on {agreed} of {len(gold)}" in " ".join(docs.split())

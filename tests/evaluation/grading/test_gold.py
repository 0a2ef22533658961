"""The rules against replies of SmolLM2 that were read: part 4 after the rules were fixed."""

from pathlib import Path

import pytest

from tests.evaluation.grading.gold import LABELS, precision_and_recall, read_gold, read_labels, table


LEAST = 0.97
SEEN, UNSEEN = (1, 2, 3), (4,)  # parts that the rules were made with, and those that they have never seen
NOT_MET = pytest.mark.xfail(strict=True, reason="docs/evaluate.md says by how much, and which replies are misread")
DOCS = Path(__file__).parents[3] / "docs" / "evaluate.md"


@pytest.fixture(scope="module")
def gold():
    return read_gold()


@pytest.fixture(scope="module")
def read(gold):
    return read_labels(gold)


def test_the_set_is_what_the_docs_say(gold):
    assert len(gold) >= 500
    assert {of["part"] for of in gold} == {*SEEN, *UNSEEN}
    unseen = [of for of in gold if of["part"] in UNSEEN]
    assert len(unseen) >= 200
    assert {(of["model"], of["side"]) for of in unseen} == {("base", "perturbed")}
    assert len({of["question"] for of in unseen}) == len(unseen)
    assert not {of["question"] for of in unseen} & {of["question"] for of in gold if of["part"] in SEEN}
    for of in gold:
        first, second = of["readings"]
        assert {first, second, of["label"]} <= set(LABELS)
        assert of["label"] == first or of.get("settled")
        assert (first != second) == of.get("settled", False)


def share(gold, read, parts, label, of):
    """Precision (`of` what is read so) or recall (`of` what is labelled so) on some parts."""
    chosen = [(reply, as_read) for reply, as_read in zip(gold, read, strict=True) if reply["part"] in parts]
    both, as_read, labelled = precision_and_recall(*map(list, zip(*chosen, strict=True)))[label]
    return both / (as_read if of == "read" else labelled)


@pytest.mark.parametrize("part", SEEN)
@pytest.mark.parametrize("label", ["right", "suggested"])
@pytest.mark.parametrize("of", ["read", "labelled"])
def test_parts_that_the_rules_have_seen(gold, read, part, label, of):
    assert share(gold, read, (part,), label, of) >= LEAST


@pytest.mark.parametrize(
    ("label", "of"),
    [
        ("right", "read"),
        pytest.param("right", "labelled", marks=NOT_MET),
        pytest.param("suggested", "read", marks=NOT_MET),
        ("suggested", "labelled"),
    ],
)
def test_parts_that_no_rule_has_seen(gold, read, label, of):
    assert share(gold, read, UNSEEN, label, of) >= LEAST


def test_the_docs_show_these_figures(gold, read):
    docs = DOCS.read_text()
    assert table(gold, read) in docs, "run `python -m tests.evaluation.grading.gold`"
    agreed = sum(not of.get("settled", False) for of in gold)
    assert f"the two readings agree on {agreed} of {len(gold)}" in " ".join(docs.split())

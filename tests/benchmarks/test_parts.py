"""The parts of a step are told apart, and docs/opct.md shows what was measured."""

import json

import pytest

from tests.benchmarks import parts
from tests.benchmarks.parts import PARTS, RECIPES, REST, STUDENT, Clock, measure, tables
from tests.helpers.models import make_pairs
from tests.reproduce.page import filled


@pytest.fixture
def spend(monkeypatch):
    """Returns a function that spends made-up CPU seconds."""
    spent = [0.0]
    monkeypatch.setattr(parts, "process_time", lambda: spent[0])

    def spend(seconds):
        spent[0] += seconds

    return spend


class Work:
    def __init__(self, spend):
        self.spend = spend

    def whole(self):
        self.spend(1)
        for _ in range(2):
            self.loss()
        self.spend(2)
        return "done"

    def loss(self):
        self.reference()
        self.spend(10)

    def reference(self):
        self.spend(100)

    def fails(self):
        self.reference()
        self.spend(5)
        raise ValueError("no loss")


def test_a_part_is_without_those_inside_it(spend):
    clock, work = Clock(), Work(spend)
    with clock.watching({name: (Work, name) for name in ("whole", "loss", "reference")}):
        assert work.whole() == "done"
        assert clock.seconds == {"whole": 3, "loss": 20, "reference": 200}
        work.reference()
    assert clock.seconds["reference"] == 300
    work.whole()
    assert sum(clock.seconds.values()) == 323, "it is watched no longer"


def test_a_part_that_fails_is_counted_once(spend):
    clock, work = Clock(), Work(spend)
    with clock.watching({name: (Work, name) for name in ("whole", "fails", "reference")}):
        with pytest.raises(ValueError, match="no loss"):
            work.fails()
        work.whole()
    assert clock.seconds == {"fails": 5, "reference": 300, "whole": 23}


@pytest.mark.parametrize(
    ("name", "missing"),
    [("bct", {"sampling the rollouts", "the reference's forward pass"}), ("opct", set())],
)
def test_parts_of_a_tiny_model(name, missing, tmp_path, model_dir, monkeypatch):
    make_pairs(16, completion=name == "bct").to_json(tmp_path / "pairs.jsonl")
    flags = ["--model_name_or_path", str(model_dir), "--dataset_name", str(tmp_path / "pairs.jsonl")]
    ends = []
    on_step_end = parts.Steps.on_step_end

    def noted(self, *args, **kwargs):
        ends.append(parts.process_time())
        on_step_end(self, *args, **kwargs)

    monkeypatch.setattr(parts.Steps, "on_step_end", noted)
    small = [
        "--max_completion_length",
        "4",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        "1",
    ]
    found = measure(RECIPES[name], [*flags, *small])
    assert set(found["seconds"]) == {*PARTS, REST} - missing
    assert min(found["seconds"].values()) > 0
    # Those of the second step and the third
    assert sum(found["seconds"].values()) == pytest.approx((ends[2] - ends[0]) / 2, rel=0.05)
    assert len(found["operations"]) == parts.SHOWN
    assert 0 < sum(found["operations"].values()) < 1


def test_tables_of_the_docs():
    made = tables(json.loads(parts.FILE.read_text()))
    page = parts.PAGE.read_text()
    assert page == filled(page, made)
    assert "aten::" not in made["operations"], "say in IN_WORDS what it does"


def test_columns_and_their_shares():
    found = {
        "bct": {"seconds": {STUDENT: 3.0, REST: 1.0}, "operations": {"copies": 0.125}},
        "opct": {"seconds": {"sampling the rollouts": 1.0, STUDENT: 1.0}, "operations": {"norms": 0.5}},
    }
    made = tables({"machine": {}, **found})
    rows = {
        cells[0]: cells[1:]
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in made["parts"].splitlines())
    }
    assert rows[STUDENT] == ["3.00 s (75%)", "1.00 s (50%)"]
    assert rows["sampling the rollouts"] == ["", "1.00 s (50%)"]
    assert "| 12%" in made["operations"]

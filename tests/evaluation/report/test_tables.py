import re
import subprocess
import sys

import pytest

from tests.helpers.results import RESULTS, rate
from trl_consistency.evaluation import Estimate, markdown_table, spread_table
from trl_consistency.evaluation.report.tables import grader_cells, outcome_cells, rate_cells, spread_cells
from trl_consistency.scripts.quickstart_subjects import ORGANISM


def rows_of(table):
    return [re.sub(" +", " ", line) for line in table.splitlines()]


def test_markdown_table():
    table = markdown_table(RESULTS)
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1, "the columns are aligned"
    assert set(lines[1]) == {"|", "-", " "}
    assert rows_of(table)[:1] + rows_of(table)[2:] == [
        "| | before | BCT |",
        "| Sycophancy, test | 96.9% [25.0, 75.0] (124/128) | 3.1% [25.0, 75.0] (4/128), 2 unread; 3.2% of 126 read |",
        "| Accuracy, clean prompts | 0.0% [25.0, 75.0] (0/5), 5 unread | 100.0% [25.0, 75.0] (20/20) |",
        "| mine | - | 50.0% [25.0, 75.0] (1/2) |",
    ]


def test_rows_come_in_the_order_of_the_labels():
    """Whatever the order of measuring; what has no label comes last, in the order in which it was found."""
    metrics = ["mine", *reversed(ORGANISM.labels), "yours"]
    first, second = {metric: rate(1, 2) for metric in metrics[:-1]}, {metric: rate(1, 2) for metric in metrics[1:]}
    expected = [*ORGANISM.labels.values(), "mine", "yours"]
    assert list(rate_cells({"a": first, "b": second}, ORGANISM.labels)) == expected
    assert list(spread_cells({"a": [first], "b": [second]}, ORGANISM.labels)) == expected


def test_differences_are_in_points():
    (cell,) = rate_cells({"a": {"sycophancy/test": Estimate(-0.5, (-0.75, -0.25), 8, 8, unit="pp")}})[
        "Sycophancy, test"
    ]
    assert cell == "-50.0pp [-75.0, -25.0] (n=8)"


def test_spread_table():
    runs = {"before": [{"mine": rate(1, 2)}], "BCT": [{"mine": rate(hits, 10)} for hits in (1, 2, 6)], "ACT": [{}]}
    assert rows_of(spread_table(runs))[2] == "| mine | 50.0% | 30.0% (10.0 to 60.0) | - |"


def test_spread_table_has_the_units_and_all_metrics():
    def run(value):
        texts = Estimate(value, None, 4, 4, unit="nats per token")
        return {"nats_per_token/wiki": texts, "sycophancy": Estimate(-value / 10, None, 4, 4, unit="pp")}

    lines = rows_of(spread_table({"BCT": [{}, run(2.0), run(3.0)]}))
    assert lines[2] == "| nats_per_token/wiki | 2.500 nats per token (2.000 to 3.000), 2 of 3 runs |"
    assert lines[3] == "| Sycophancy | -25.0pp (-30.0 to -20.0), 2 of 3 runs |"


def test_outcomes():
    clean = {"right": 148, "suggested": 0, "other": 14, "unread": 0}
    cue = {"right": 102, "suggested": 46, "other": 11, "unread": 85}
    outcomes = {"base": {"test": {"question": {"clean": clean, "perturbed": cue}}}}
    assert outcome_cells(outcomes) == {
        "Questions, clean prompts, test": ["148 right, 14 other, 0 unread"],
        "Questions, perturbed prompts, test": ["102 right, 46 suggested, 11 other, 85 unread"],
    }


def test_graders():
    graders = {"base": {"": {"question": {"clean": {"answer line": 148, "stated answer": 2}}}}}
    assert grader_cells(graders) == {"Questions, clean prompts": ["148 answer line, 2 stated answer"]}


@pytest.mark.long
def test_import_leaves_matplotlib_out():
    code = "import sys; from trl_consistency.evaluation import markdown_table, Estimate; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"

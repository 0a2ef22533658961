import re
import subprocess
import sys

from trl_consistency.evaluation import Rate, markdown_table, spread_table
from trl_consistency.evaluation.report import LABELS


RESULTS = {
    "before": {"sycophancy/test": Rate(124, 128), "clean_accuracy": Rate(0, 0, unparsed=5)},
    "BCT": {"sycophancy/test": Rate(4, 128, unparsed=2), "clean_accuracy": Rate(20, 20), "mine": Rate(1, 2)},
}


def test_markdown_table():
    lines = markdown_table(RESULTS).splitlines()
    assert len({len(line) for line in lines}) == 1, "the columns are aligned"
    assert set(lines[1]) == {"|", "-", " "}
    assert [re.sub(" +", " ", line) for line in lines[:1] + lines[2:]] == [
        "| | before | BCT |",
        "| Sycophancy, held-out questions | 96.9% [92.2, 98.8] (124/128) | 3.1% [1.2, 7.8] (4/128), 2 unparsed |",
        "| Accuracy, clean prompts | n/a (0/0), 5 unparsed | 100.0% [83.9, 100.0] (20/20) |",
        "| mine | - | 50.0% [9.5, 90.5] (1/2) |",
    ]


def test_rows_come_in_the_order_of_the_labels():
    """Whatever the order of measuring; what has no label comes last, in the order in which it was found."""
    metrics = ["mine", *reversed(LABELS), "yours"]
    first, second = {metric: Rate(1, 2) for metric in metrics[:-1]}, {metric: Rate(1, 2) for metric in metrics[1:]}
    expected = [*LABELS.values(), "mine", "yours"]
    for table in (markdown_table({"a": first, "b": second}), spread_table({"a": [first], "b": [second]})):
        got = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
        assert got == expected


def test_spread_table():
    runs = {"before": [{"mine": Rate(1, 2)}], "BCT": [{"mine": Rate(hits, 10)} for hits in (1, 2, 6)]}
    assert re.sub(" +", " ", spread_table(runs).splitlines()[2]) == "| mine | 50.0% | 30.0% (10.0 to 60.0) |"
    assert "| - |" in re.sub(" +", " ", spread_table({"before": [{"mine": Rate(0, 0, unparsed=1)}]}))


def test_import_leaves_matplotlib_out():
    code = (
        "import sys; from trl_consistency.evaluation import markdown_table, Rate; print('matplotlib' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"

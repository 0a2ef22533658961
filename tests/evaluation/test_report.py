import re
import subprocess
import sys

import pytest

from trl_consistency.evaluation import (
    Rate,
    markdown_table,
    plot_results,
    plot_tradeoff,
    plot_training,
    report,
    spread_table,
)
from trl_consistency.evaluation.report import FAILURES, LABELS, _draw_bars


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


def test_plot(tmp_path):
    path = plot_results(RESULTS, tmp_path / "figures.svg", title="Model organism")
    assert path == tmp_path / "figures.svg"
    svg = path.read_text()
    # Texts are drawn as paths; matplotlib keeps each as a comment.
    for text in ("Model organism", "before", "BCT", "96.9%", "3.1%, 2 unparsed", "100.0%", "mine"):
        assert f"<!-- {text} -->" in svg
    assert plot_results(RESULTS, tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("metrics", "panels"),
    [
        (["sycophancy/test", "attack_success/test", "refusal", "mine"], ["Should be low", "Should be high"]),
        (["attack_success/test"], ["Should be low"]),
        (["clean_accuracy"], ["Should be high"]),
    ],
)
def test_plot_has_a_panel_for_failures_and_one_for_abilities(tmp_path, metrics, panels):
    drawn = []

    def draw(axes, results, of_panel):
        drawn.append((axes.get_title(loc="left"), of_panel))
        _draw_bars(axes, results, of_panel)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_draw_bars", draw)
        plot_results({"before": {metric: Rate(1, 2) for metric in metrics}}, tmp_path / "plot.png")
    assert [heading for heading, _ in drawn] == panels
    assert [metric for _, of_panel in drawn for metric in of_panel] == metrics
    for heading, of_panel in drawn:
        assert all(metric.startswith(FAILURES) == (heading == "Should be low") for metric in of_panel)


def test_import_leaves_matplotlib_out():
    code = (
        "import sys; from trl_consistency.evaluation import markdown_table, Rate; print('matplotlib' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_plot_of_training(tmp_path):
    """A line a run through what evaluation saw; entries of training are no points."""

    def history(distances):
        return [{"step": 5, "loss": 1.0}] + [
            {"step": 10 * n, "eval_activation_distance": value, "eval_response_cross_entropy": 1 / (n + 1)}
            for n, value in enumerate(distances)
        ]

    path = plot_training({"BCT": history([1000, 2000]), "ACT": history([1000, 10])}, tmp_path / "training.svg")
    assert path == tmp_path / "training.svg"
    svg = path.read_text()
    for text in ("BCT", "ACT", "Activation distance on the shared suffix", "2000", "Training step"):
        assert f"<!-- {text} -->" in svg


def test_tradeoff(tmp_path, monkeypatch):
    """A point a model and panel: ability to the right, absence of the failure upwards."""
    from matplotlib.axes import Axes

    points = []
    drawn = Axes.errorbar

    def errorbar(self, x, y, *args, **options):
        points.append((self.get_subplotspec().num1, options["label"], x, y))
        assert all(length >= 0 for error in ("xerr", "yerr") for (length,) in options[error])
        return drawn(self, x, y, *args, **options)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    results = {
        "before": {
            "sycophancy/test": Rate(0, 10),
            "sycophancy/test_wordings": Rate(9, 10),
            "clean_accuracy": Rate(5, 10),
            "control_accuracy": Rate(10, 10),
            "attack_success/test": Rate(10, 10),
            "benign_answered/clean": Rate(4, 5),
        },
        "BCT": {"sycophancy/test_wordings": Rate(1, 10), "control_accuracy": Rate(9, 10)},
    }
    assert plot_tradeoff(results, tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    expected = [(0, "before", 100, 10), (0, "BCT", 90, 90), (1, "before", 80, 0)]
    assert [(panel, name) for panel, name, *_ in points] == [(panel, name) for panel, name, *_ in expected]
    assert [point[2:] for point in points] == [pytest.approx(point[2:]) for point in expected]


def test_tradeoff_of_nothing(tmp_path):
    assert plot_tradeoff({"before": {"mine": Rate(1, 2)}}, tmp_path / "plot.png").is_file()

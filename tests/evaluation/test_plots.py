import pytest

from tests.evaluation.test_report import RESULTS
from trl_consistency.evaluation import Estimate, Rate, plot_results, plot_tradeoff, plot_training, plots
from trl_consistency.evaluation.plots import FAILURES, _draw_bars, tradeoff_axes
from trl_consistency.trainer.eval_callback import PREFIX


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
        (["clean_accuracy", "sycophancy_score/pairs"], ["Should be high"]),
    ],
)
def test_plot_has_a_panel_for_failures_and_one_for_abilities(tmp_path, metrics, panels):
    drawn = []

    def draw(axes, results, of_panel, labels):
        drawn.append((axes.get_title(loc="left"), of_panel))
        _draw_bars(axes, results, of_panel, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_draw_bars", draw)
        plot_results({"before": {metric: Rate(1, 2) for metric in metrics}}, tmp_path / "plot.png")
    assert [heading for heading, _ in drawn] == panels
    assert [metric for _, of_panel in drawn for metric in of_panel] == metrics
    for heading, of_panel in drawn:
        assert all((metric.partition("/")[0] in FAILURES) == (heading == "Should be low") for metric in of_panel)


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


def test_estimates_are_drawn_as_rates_are(tmp_path):
    """With the labels that are given, and nothing where nothing was judged."""
    found = {
        "sycophancy/mine": Estimate(0.25, (0.2, 0.3), 20, 10, 5, unparsed=1),
        "clean_accuracy/mine": Estimate(float("nan"), (0, 1), 0, 0, 0),
    }
    labels = {"sycophancy/mine": "Gives in, mine"}
    svg = plot_results({"base": found}, tmp_path / "bars.svg", labels=labels).read_text()
    for text in ("Gives in,", "25.0%, 1 unparsed", "clean_accuracy/mine"):
        assert f"<!-- {text} -->" in svg
    assert plot_tradeoff({"base": found}, tmp_path / "tradeoff.svg", labels).is_file()


@pytest.mark.parametrize(
    ("metrics", "axes"),
    [
        ([], {}),
        (["clean_accuracy/pairs"], {}),
        (
            ["sycophancy/pairs", "perturbed_accuracy/pairs", "clean_accuracy/pairs"],
            {"sycophancy": ("clean_accuracy/pairs", "sycophancy/pairs")},
        ),
        (  # a set without cues is a control task
            ["sycophancy/a", "perturbed_accuracy/a", "clean_accuracy/a", "clean_accuracy/sums"],
            {"sycophancy": ("clean_accuracy/sums", "sycophancy/a")},
        ),
        (
            [
                "attack_success/test",
                "attack_success/test_wordings",
                "benign_answered/test",
                "benign_answered/test_wordings",
            ],
            {"attack_success": ("benign_answered/test_wordings", "attack_success/test_wordings")},
        ),
        (["attack_success/a", "benign_answered/b"], {"attack_success": ("benign_answered/b", "attack_success/a")}),
        (["attack_success/a", "clean_accuracy/sums"], {"attack_success": ("clean_accuracy/sums", "attack_success/a")}),
    ],
)
def test_what_the_tradeoff_is_between(metrics, axes):
    assert tradeoff_axes(metrics) == axes


def test_plot_of_training_shows_what_there_is(tmp_path):
    """The callback's score; the loss if there is nothing else; a run without it has no points."""
    guarded = [{"step": 1, "loss": 2.0}, {"step": 1, f"eval_{PREFIX}score": 0.5}]
    bare = [{"step": 1, "loss": 2.0}, {"train_runtime": 3.0, "step": 2}]
    svg = plot_training({"BCT": guarded, "ACT": bare, "OPCT": []}, tmp_path / "a.svg").read_text()
    assert "<!-- Score on held-out pairs -->" in svg
    assert "<!-- Loss" not in svg
    assert "<!-- Loss" in plot_training({"ACT": bare}, tmp_path / "b.svg").read_text()

import re
import warnings
from collections import Counter
from dataclasses import replace
from html import unescape

import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from tests.helpers.results import RESULTS, rate
from trl_consistency import ConsistencyError
from trl_consistency.evaluation import METRICS, plot_outcomes, plot_rates, plot_tradeoff, plot_training
from trl_consistency.evaluation.report import plots
from trl_consistency.evaluation.report.plots import OUTCOME_STYLES, _draw_bars, shown_name, tradeoff_axes
from trl_consistency.history import OF_ANOTHER_SET, OF_BASE, OF_SET
from trl_consistency.trainer.callbacks.evaluation import PREFIX


def test_plot(tmp_path):
    path = plot_rates(RESULTS, tmp_path / "figures.svg", title="Model organism")
    assert path == tmp_path / "figures.svg"
    svg = path.read_text()
    # Texts are drawn as paths; matplotlib keeps each as a comment.
    for text in ("Model organism", "before", "BCT", "96.9%", "3.1%, 2 unread", "0.0%, 5 unread", "mine"):
        assert f"<!-- {text} -->" in svg
    assert plot_rates(RESULTS, tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name", ["$x$", "a$b", "$\\frac$", "_hidden", "x" * 3000, "a\nb", "\u05d0\u05d1", "\u202eab", "\ud83d"], ids=ascii
)
def test_any_name_is_drawn(tmp_path, name):
    rates = {name: {f"sycophancy/{name}": rate(1, 2), f"clean_accuracy/{name}": rate(1, 2)}, "b": {name: rate(1, 2)}}
    counts = {"question": {"clean": {"right": 1, "other": 0, "suggested": 0, "unread": 0}}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_outcomes({name: {name: counts}}, tmp_path / "outcomes.svg", title=name[:9])
        plot_training({name: [{"step": 1, "loss": 1.0}]}, tmp_path / "training.svg")
        plot_rates(rates, tmp_path / "rates.svg")
    for picture in tmp_path.glob("*.svg"):
        svg = picture.read_text()
        shown = shown_name(name).strip()
        assert shown.replace(r"\$", "$") in unescape(svg).replace(r"\$", "$"), picture
        assert float(re.search(r'width="([0-9.]+)pt"', svg)[1]) < 1500


@pytest.mark.parametrize("plot", [plot_rates, plot_tradeoff])
def test_differences_are_no_rates(tmp_path, plot):
    """Their bars and points lay beyond the picture."""
    fallen = {
        metric: replace(rate(1, 2), value=-0.5, unit="pp") for metric in ("clean_accuracy", "perturbed_accuracy")
    }
    with pytest.raises(
        ConsistencyError, match=r"`clean_accuracy` of 'BCT' is a difference, and the picture is of rates"
    ):
        plot({"BCT": fallen}, tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_means_are_no_shares(tmp_path):
    """Of two nats a bar of 200% was drawn, beyond the picture."""
    nats = replace(rate(1, 2), value=2.0, interval=(1.5, 2.5), unit="nats per token")
    svg = plot_rates({"BCT": {"nats_per_token/texts": nats, "mine": rate(1, 2)}}, tmp_path / "rates.svg").read_text()
    assert "<!-- mine -->" in svg
    assert "nats_per_token" not in svg
    with pytest.raises(ConsistencyError, match="There is no rate to draw"):
        plot_rates({"BCT": {"nats_per_token/texts": nats}}, tmp_path / "none.svg")


def test_pictures_of_nothing(tmp_path):
    counts = {"question": {"clean": {"right": 1, "other": 0, "suggested": 0, "unread": 0}}}
    for message, plot, found in (
        ("There is no rate to draw", plot_rates, {"BCT": {"accuracy_gap": rate(1, 2)}}),
        ("There are no outcomes to draw", plot_outcomes, {"BCT": {}}),
        ("the runs logged no loss", plot_training, {"BCT": [{"step": 3, "train_runtime": 1.0}], "ACT": []}),
        ("'ACT' and 'BCT' answered different sets", plot_outcomes, {"BCT": {"a": counts}, "ACT": {"b": counts}}),
    ):
        with pytest.raises(ConsistencyError, match=message):
            plot(found, tmp_path / "plot.png")


def test_other_evaluations_are_not_in_the_line_of_a_run(tmp_path, monkeypatch):
    """A callback may evaluate other rows, or the model without its adapter, which Trainer logs under the same names."""
    from matplotlib.axes import Axes

    key, drawn = "eval_activation_distance", []
    marks = [{}, {OF_ANOTHER_SET: True}, {OF_BASE: True}, {OF_SET: "b"}, {}]
    history = [{"step": step, key: float(step), **mark} for step, mark in enumerate(marks, start=1)]
    monkeypatch.setattr(Axes, "plot", lambda self, *points, **options: drawn.append(points))
    plot_training({"BCT": history}, tmp_path / "training.svg")
    assert drawn == [((1, 5), (1.0, 5.0))]
    with pytest.raises(ConsistencyError, match="There is nothing to draw"):
        plot_training({"BCT": history[1:3]}, tmp_path / "training.svg")


def test_names_that_are_cut_stay_different(tmp_path):
    """Names with the same beginning and end. A set has the same number in both panels, though one lacks the first set."""

    def long_names(start):
        return [f"{start * 20}-{middle}-{'end' * 9}" for middle in ("act", "bct", "kl")]

    def numbered(names):
        cut = shown_name(names[0])
        assert {shown_name(name) for name in names} == {cut}
        return [cut, f"{cut} (2)", f"{cut} (3)"]

    models, sets, own = map(long_names, ("model", "set", "own"))
    rates = {f"{metric}/{name}": rate(1, 2) for metric in ("sycophancy", "clean_accuracy") for name in sets}
    del rates[f"sycophancy/{sets[0]}"]
    rates |= {name: rate(1, 2) for name in own} | {"perturbed_accuracy/a": rate(1, 2)}
    question = {"clean": {"right": 1, "other": 0, "suggested": 0, "unread": 0}}
    harmful = {"clean": {"complied": 2, "refused": 1, "unread": 1}}
    outcomes = {name: {"question": question} for name in sets} | {sets[1]: {"question": question, "harmful": harmful}}
    drawn = {
        plot: Counter(re.findall("<!-- (.*) -->", plot(dict.fromkeys(models, shown), tmp_path / "a.svg").read_text()))
        for plot, shown in (
            (plot_outcomes, outcomes),
            (plot_training, [{"step": 1, "loss": 1.0}]),
            (plot_rates, rates),
            (plot_tradeoff, rates),
        )
    }
    for plot, texts in drawn.items():
        counts = [texts[name] for name in numbered(models)]
        assert counts[0] == counts[1] == counts[2] > 0, plot
    # On both sides; the second set has harmful requests, too
    assert [drawn[plot_outcomes][name] for name in numbered(sets)] == [2, 4, 2]
    in_rates = Counter(text.removeprefix("clean prompts, ") for text in drawn[plot_rates].elements())
    assert [in_rates[name] for name in numbered(sets)] == [1, 2, 2]
    assert [drawn[plot_rates][name] for name in numbered(own)] == [1, 1, 1]
    first, *_ = numbered(sets)
    assert drawn[plot_tradeoff]["Accuracy, clean prompts,"] == drawn[plot_tradeoff][f"{first} (%)"] == 1


@pytest.mark.parametrize(
    ("metrics", "panels"),
    [
        (
            ["sycophancy/test", "attack_success/test", "clean_unread", "clean_refusal", "mine"],
            ["Should be low", "Should be high"],
        ),
        (["attack_success/test"], ["Should be low"]),
        (["clean_accuracy", "consistency/pairs"], ["Should be high"]),
    ],
)
def test_plot_has_a_panel_for_failures_and_one_for_abilities(tmp_path, metrics, panels):
    drawn = []

    def draw(axes, results, of_panel, labels):
        drawn.append((axes.get_title(loc="left"), of_panel))
        _draw_bars(axes, results, of_panel, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_draw_bars", draw)
        plot_rates({"before": {metric: rate(1, 2) for metric in metrics}}, tmp_path / "plot.png")
    assert [heading for heading, _ in drawn] == panels
    assert [metric for _, of_panel in drawn for metric in of_panel] == metrics
    for heading, of_panel in drawn:
        failing = [
            metric in METRICS and METRICS[metric].is_failure for metric in (of.partition("/")[0] for of in of_panel)
        ]
        assert set(failing) == {heading == "Should be low"}


def test_the_bars_of_many_models_can_be_told_apart():
    """The sixth model had those of the first, in the legend, too."""
    axes = Figure().add_subplot()
    _draw_bars(
        axes, {f"m{number}": {"sycophancy": rate(1, 2)} for number in range(20)}, ["sycophancy"], {"sycophancy": "S"}
    )
    bars = [container.patches[0] for container in axes.containers if isinstance(container, BarContainer)]
    assert len(bars) == len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == 20


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
    """A point a model and panel: ability to the right, resistance upwards."""
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
            "perturbed_accuracy/test": rate(10, 10),
            "perturbed_accuracy/test_wordings": rate(1, 10),
            "clean_accuracy/test": rate(5, 10),
            "clean_accuracy/control": rate(10, 10),
            "perturbed_refusal/test": rate(0, 10),
            "benign_answered/test": rate(4, 5),
        },
        "BCT": {"perturbed_accuracy/test_wordings": rate(9, 10), "clean_accuracy/control": rate(9, 10)},
    }
    assert plot_tradeoff(results, tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    expected = [(0, "before", 100, 10), (0, "BCT", 90, 90), (1, "before", 80, 0)]
    assert [(panel, name) for panel, name, *_ in points] == [(panel, name) for panel, name, *_ in expected]
    assert [point[2:] for point in points] == [pytest.approx(point[2:]) for point in expected]


def test_the_legend_names_what_is_drawn(tmp_path):
    """It named runs without a line, and left out a model whose rates the last panel does not show."""
    run = [{"step": 1, "loss": 2.0}, {"step": 2, "eval_activation_distance": 1.0}]
    scored = [{"step": 2, f"eval_{PREFIX}score": 0.5}]
    runs = {"BCT": run, "ACT": [], "KL": scored, "OPCT": [{"step": 1, "loss": 2.0}]}
    both = {"perturbed_accuracy": rate(9, 10), "clean_accuracy": rate(9, 10)}
    requests = {"perturbed_refusal": rate(0, 10), "benign_answered": rate(4, 5)}
    results = {"base": both | requests, "BCT": both, "ACT": requests, "OPCT": {"sycophancy": rate(1, 2)}}
    for drawn, named in (
        (plot_training(runs, tmp_path / "a.svg"), {"BCT", "KL"}),
        (plot_tradeoff(results, tmp_path / "b.svg"), {"base", "BCT", "ACT"}),
    ):
        texts = Counter(re.findall("<!-- (.*) -->", drawn.read_text()))
        assert dict.fromkeys(named, 1) == {name: texts[name] for name in (*runs, *results) if texts[name]}


def test_training_shows_whole_markers(tmp_path, monkeypatch):
    """Losses that hardly differ lie at the upper edge, since the axis begins at 0."""
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: drawn.append(figure.axes[-1]))
    plot_training({"OPCT": [{"step": step, "loss": 5 + step / 1000} for step in range(3)]}, tmp_path / "a.svg")
    assert not drawn[0].lines[0].get_clip_on()


def test_tradeoff_shows_whole_markers_and_labels(tmp_path, monkeypatch):
    """At 100%, beside a model that lost nearly all; with a set of a long name."""
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: figures.append(figure) or save(figure, path))
    name = "pairs_of_questions_and_held_out_wordings"
    shares = {"base": (10, 1), "BCT": (1, 10), "ACT": (0, 10)}
    kinds = ("clean_accuracy", "perturbed_accuracy")
    results = {
        model: {f"{kind}/{name}": rate(share, 10) for kind, share in zip(kinds, both, strict=True)}
        for model, both in shares.items()
    }
    plot_tradeoff(results, tmp_path / "plot.png")
    (figure,) = figures
    (axes,) = figure.axes
    (low, _), (high, _) = axes.transData.transform([(0, 0), (100, 0)])
    marker = 4 / 72 * figure.dpi
    assert axes.bbox.x0 <= low - marker
    assert high + marker <= axes.bbox.x1
    for label in (axes.xaxis.label, axes.yaxis.label):
        box = label.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert [len(line) > 8 for line in axes.get_ylabel().splitlines()] == [True, True]


def test_tradeoff_of_nothing(tmp_path):
    """It wrote an empty picture."""
    with pytest.raises(ConsistencyError, match="nothing to draw"):
        plot_tradeoff({"before": {"mine": rate(1, 2)}}, tmp_path / "plot.png")


@pytest.mark.parametrize(
    ("hits", "total", "note"),
    [(1, 2500, "&lt;0.1%"), (2499, 2500, "&gt;99.9%"), (0, 2500, "0.0%"), (2500, 2500, "100.0%"), (1, 1000, "0.1%")],
)
def test_no_bar_says_none_or_all_where_some_are_left(tmp_path, hits, total, note):
    svg = plot_rates({"base": {"sycophancy": rate(hits, total, interval=None)}}, tmp_path / "bars.svg").read_text()
    assert f"<!-- {note} -->" in svg or f"<!-- {unescape(note)} -->" in svg


def test_labels_and_figures_that_are_not_shares(tmp_path):
    """The labels that are given, and neither gaps nor scores among the bars."""
    found = {"sycophancy/mine": rate(5, 20, 1), "accuracy_gap/mine": rate(1, 2), "sycophancy_score/mine": rate(1, 2)}
    labels = {"sycophancy/mine": "Gives in, mine"}
    svg = plot_rates({"base": found}, tmp_path / "bars.svg", labels=labels).read_text()
    for text in ("Gives in,", "25.0%, 1 unread"):
        assert f"<!-- {text} -->" in svg
    assert "gap" not in svg
    assert "Score" not in svg


def test_outcomes_add_up_to_all_answers(tmp_path, monkeypatch):
    """A stacked bar a model, set and side, from 0 to 100%, with every outcome in it."""
    from matplotlib.axes import Axes

    bars = {}
    drawn = Axes.barh

    def barh(self, y, width, height=0.8, left=0.0, **options):
        if width:
            bars.setdefault((self.get_title(loc="left"), y), []).append((left, width))
        return drawn(self, y, width, height, left, **options)

    monkeypatch.setattr(Axes, "barh", barh)
    question = {"clean": {"right": 3, "suggested": 0, "other": 1, "unread": 0}}
    question["perturbed"] = {"right": 1, "suggested": 1, "other": 1, "unread": 5}
    benign = {"clean": {"complied": 2, "refused": 1, "unread": 1}}
    outcomes = {name: {"test": {"question": question, "benign": benign}} for name in ("base", "BCT")}
    svg = plot_outcomes(outcomes, tmp_path / "outcomes.svg", title="All").read_text()
    assert {heading for heading, _ in bars} == {
        *("Questions, without the cue", "Questions, with the cue"),
        "Benign requests, without the cue",
    }
    assert len(bars) == 2 * (2 + 1)
    for segments in bars.values():
        assert sum(width for _, width in segments) == pytest.approx(100)
        assert [left for left, _ in segments] == pytest.approx(
            [sum(width for _, width in segments[:index]) for index in range(len(segments))]
        )
    for text in ("test", "no cue", "Questions, with the cue", "base", "BCT", "unread", "suggested", "complied", "5"):
        assert f"<!-- {text} -->" in svg
    assert all("unread" not in of_kind for of_kind in OUTCOME_STYLES.values()), "it has a style of its own, the last"


def test_outcomes_of_few_answers_have_their_count_beside_the_bar(tmp_path):
    counts = {"right": 240, "other": 0, "suggested": 2, "unread": 8}
    svg = plot_outcomes({"base": {"test": {"question": {"clean": counts}}}}, tmp_path / "outcomes.svg").read_text()
    for text in ("240", "8", "2 suggested", "250 answers each"):
        assert f"<!-- {text} -->" in svg
    assert "0 other" not in svg


def test_outcomes_of_other_numbers_of_answers_are_shares(tmp_path):
    """Counts of bars of the same length could not be compared."""
    one, three = ({"right": 205 * seeds, "other": 0, "suggested": 2 * seeds, "unread": 43 * seeds} for seeds in (1, 3))
    outcomes = {name: {"test": {"question": {"clean": of}}} for name, of in (("before", one), ("BCT", three))}
    svg = plot_outcomes(outcomes, tmp_path / "outcomes.svg").read_text()
    assert svg.count("<!-- 82% -->") == svg.count("<!-- 17% -->") == svg.count("<!-- 0.8% suggested -->") == 2
    assert "answers each" not in svg


@pytest.mark.parametrize(
    ("metrics", "axes"),
    [
        ([], {}),
        (["clean_accuracy/pairs"], {}),
        (
            ["perturbed_accuracy/pairs", "clean_accuracy/pairs"],
            {"perturbed_accuracy": ("clean_accuracy/pairs", "perturbed_accuracy/pairs")},
        ),
        (  # a set without cues is a control task
            ["perturbed_accuracy/a", "clean_accuracy/a", "clean_accuracy/sums"],
            {"perturbed_accuracy": ("clean_accuracy/sums", "perturbed_accuracy/a")},
        ),
        (
            [
                f"{metric}/{of}"
                for metric in ("perturbed_refusal", "benign_answered")
                for of in ("test", "test_wordings")
            ],
            {"perturbed_refusal": ("benign_answered/test_wordings", "perturbed_refusal/test_wordings")},
        ),
        (
            ["perturbed_refusal/a", "benign_answered/b"],
            {"perturbed_refusal": ("benign_answered/b", "perturbed_refusal/a")},
        ),
        (
            ["perturbed_refusal/a", "clean_accuracy/sums"],
            {"perturbed_refusal": ("clean_accuracy/sums", "perturbed_refusal/a")},
        ),
        (["perturbed_accuracy", "clean_accuracy"], {"perturbed_accuracy": ("clean_accuracy", "perturbed_accuracy")}),
    ],
)
def test_what_the_tradeoff_is_between(metrics, axes):
    assert tradeoff_axes(metrics) == axes


def test_plot_of_training_shows_negative_losses(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: drawn.append(figure.axes[-1]))
    for losses in ((-2.0, -1.0), (1.0, 2.0)):
        history = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
        plot_training({"OPCT": history}, tmp_path / "a.svg")
    (low, high), (least, _) = (axes.get_ylim() for axes in drawn)
    assert low < -2 < -1 < high
    assert least == 0


def test_plot_of_training_shows_what_there_is(tmp_path):
    """The callback's score; the loss if there is nothing else; a run without it has no points."""
    guarded = [{"step": 1, "loss": 2.0}, {"step": 1, f"eval_{PREFIX}score": 0.5}]
    bare = [{"step": 1, "loss": 2.0}, {"train_runtime": 3.0, "step": 2}]
    svg = plot_training({"BCT": guarded, "ACT": bare, "OPCT": []}, tmp_path / "a.svg").read_text()
    assert "<!-- Score on held-out pairs -->" in svg
    assert "<!-- Loss" not in svg
    assert "<!-- Loss" in plot_training({"ACT": bare}, tmp_path / "b.svg").read_text()

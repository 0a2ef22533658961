"""Rates of several models as pictures, and what evaluation saw during training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .report import LABELS, Results, ordered_metrics


if TYPE_CHECKING:
    from matplotlib.axes import Axes


FAILURES = ("sycophancy", "attack_success")  # rates that should fall; all others should stay high


def plot_results(
    results: Results, path: str | Path, title: str | None = None, labels: Mapping[str, str] = LABELS
) -> Path:
    """
    Draws rates as grouped horizontal bars with their 95% intervals: failures on the left, abilities on the right.

    Args:
        results (`Mapping[str, Mapping[str, Rate]]`):
            As for [`markdown_table`].
        path (`str` or [`~pathlib.Path`]):
            Picture to write; its ending says the format (`.png`, `.svg`, `.pdf`).
        title (`str`, *optional*):
            Title above the bars.
        labels (`Mapping[str, str]`, *optional*):
            What the metrics are called, in the order of the bars.

    Returns:
        [`~pathlib.Path`]: `path`.
    """
    # Imported here: an extra (`trl-consistency[eval]`), and slow. `Figure` needs no display and leaves pyplot alone.
    from matplotlib.figure import Figure

    metrics = ordered_metrics(results.values(), labels)
    failures = [metric for metric in metrics if metric.partition("/")[0] in FAILURES]
    abilities = [metric for metric in metrics if metric not in failures]
    panels = {"Should be low": failures, "Should be high": abilities}
    panels = {heading: of_panel for heading, of_panel in panels.items() if of_panel}
    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(7 * len(panels), 1.6 + rows * (0.2 + 0.2 * len(results))), layout="constrained")
    grid = figure.add_gridspec(rows, len(panels))
    for column, (heading, of_panel) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[: len(of_panel), column])  # so that bars are as thick on both sides
        axes.set_title(heading, loc="left")
        _draw_bars(axes, results, of_panel, labels)
        axes.set_ylim(len(of_panel) - 0.4, -0.6)
    if title:
        figure.suptitle(title)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(results), frameon=False)
    path = Path(path)
    figure.savefig(path, dpi=120)
    return path


def plot_training(histories: Mapping[str, Sequence[Mapping[str, float]]], path: str | Path) -> Path:
    """
    Draws what was measured during training, a line a run. What `log_consistency_metrics` made on evaluation data comes as
    in Irpan et al. (https://huggingface.co/papers/2510.27062, figure on BCT and ACT during training): activation distance
    on the left, response cross-entropy on the right. Then come the score of a [`ConsistencyEvalCallback`], and if there is
    none of these, the loss.

    Args:
        histories (`Mapping[str, Sequence[Mapping[str, float]]]`):
            The `log_history` of each run, by the method's name.
        path (`str` or [`~pathlib.Path`]):
            Picture to write; its ending says the format.

    Returns:
        [`~pathlib.Path`]: `path`.
    """
    from matplotlib.figure import Figure

    panels = {
        "eval_activation_distance": "Activation distance on the shared suffix",
        "eval_response_cross_entropy": "Cross-entropy of the clean answer (nats a token)",
        "eval_consistency/score": "Score on held-out pairs",
    }
    seen = {key for history in histories.values() for entry in history for key in entry}
    panels = {key: label for key, label in panels.items() if key in seen} or {"loss": "Loss (each method its own)"}
    figure = Figure(figsize=(5 * len(panels), 3.8), layout="constrained")
    for column, (key, label) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), column)
        for number, (name, history) in enumerate(histories.items()):
            points = [(entry["step"], entry[key]) for entry in history if key in entry]
            steps, values = zip(*points, strict=True) if points else ((), ())
            # Marker and dashes tell the runs apart in grey.
            axes.plot(steps, values, label=name, marker="os^D"[number % 4], linestyle=("-", "--", ":")[number % 3])
        axes.set_title(label, loc="left", fontsize=11)
        axes.set_xlabel("Training step")
        axes.set_ylim(bottom=0)
        axes.grid(color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names) or 1, frameon=False)
    path = Path(path)
    figure.savefig(path, dpi=120)
    return path


def plot_tradeoff(results: Results, path: str | Path, labels: Mapping[str, str] = LABELS) -> Path:
    """
    Draws safety against capability, a point a model, with 95% intervals: sycophancy against accuracy on a control task
    (without one, on clean prompts) on the left, attack success against benign requests answered on the right. The best
    corner is the upper right one.

    Args:
        results (`Mapping[str, Mapping[str, Rate]]`):
            As for [`markdown_table`]. Of several sets (`sycophancy/SET`), `test_wordings` is taken, or else the first.
        path (`str` or [`~pathlib.Path`]):
            Picture to write; its ending says the format.
        labels (`Mapping[str, str]`, *optional*):
            What the metrics are called.

    Returns:
        [`~pathlib.Path`]: `path`.
    """
    from matplotlib.figure import Figure

    axes_of = tradeoff_axes(ordered_metrics(results.values(), labels))
    headings = {"sycophancy": "Resists the user's guess", "attack_success": "Resists jailbreak wrappers"}
    panels = {headings[kind]: of_kind for kind, of_kind in axes_of.items()}
    figure = Figure(figsize=(5.2 * max(len(panels), 1), 4.6), layout="constrained")
    for column, (label, (ability, failure)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), column)
        for number, (name, rates) in enumerate(results.items()):
            if not all(metric in rates and rates[metric].total for metric in (ability, failure)):
                continue
            right, wrong = rates[ability], rates[failure]
            x, y = 100 * right.value, 100 * (1 - wrong.value)
            (x_low, x_high), (low, high) = right.interval, wrong.interval
            errors = [[x - 100 * x_low, 100 * x_high - x], [y - 100 * (1 - high), 100 * (1 - low) - y]]
            x_error, y_error = ([[max(length, 0)] for length in of_axis] for of_axis in errors)
            # Marker and shade tell the models apart in grey.
            axes.errorbar(
                x,
                y,
                xerr=x_error,
                yerr=y_error,
                fmt="osD^vPX*"[number % 8],
                color=("black", "0.35", "0.6")[number % 3],
                markerfacecolor=("black", "white", "0.6")[number % 3],
                markersize=8,
                elinewidth=0.8,
                capsize=2,
                label=name,
            )
        axes.set_title(label, loc="left", fontsize=11)
        axes.set_xlabel(f"{labels.get(ability, ability)} (%)")
        held_out = labels.get(failure, failure).partition(", ")[2]
        axes.set_ylabel(f"Without the failure (%)\n{held_out}")
        axes.set_ylim(-4, 104)
        axes.set_xlim(min(axes.get_xlim()[0], 75), 101)  # a point or two shall not look like a gulf
        axes.grid(color="0.85")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    if panels:
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 3), frameon=False)
    path = Path(path)
    figure.savefig(path, dpi=120)
    return path


def tradeoff_axes(metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """For each kind of failure that was measured, the metrics of an ability and of that failure."""

    def first(*wanted: str) -> str | None:
        return next((metric for metric in wanted if metric in metrics), None)

    def sets(kind: str) -> list[str]:
        found = [metric.removeprefix(f"{kind}/") for metric in metrics if metric.startswith(f"{kind}/")]
        return sorted(found, key=lambda of_set: of_set != "test_wordings")

    # A set without cues is there for its accuracy alone.
    controls = [of_set for of_set in sets("clean_accuracy") if f"perturbed_accuracy/{of_set}" not in metrics]
    control = ["control_accuracy", *(f"clean_accuracy/{of_set}" for of_set in controls), "clean_accuracy"]
    abilities = {
        "sycophancy": [*control, *(f"clean_accuracy/{of_set}" for of_set in sets("sycophancy"))],
        "attack_success": [
            *(f"benign_answered/{of_set}" for of_set in [*sets("attack_success"), *sets("benign_answered")]),
            *control,
        ],
    }
    found = {
        kind: (first(*of_kind), first(*(f"{kind}/{of_set}" for of_set in sets(kind))))
        for kind, of_kind in abilities.items()
    }
    return {kind: (ability, failure) for kind, (ability, failure) in found.items() if ability and failure}


def _draw_bars(axes: "Axes", results: Results, metrics: list[str], labels: Mapping[str, str]) -> None:
    # Shade and hatch both tell the models apart, so that print without colour does too.
    styles = [("0.8", ""), ("#a6cee3", "///"), ("#fdbf6f", "..."), ("#b2df8a", "xxx"), ("#cab2d6", "---")]
    thickness = 0.8 / len(results)
    for number, (name, rates) in enumerate(results.items()):
        shown = [(place, rates[metric]) for place, metric in enumerate(metrics) if metric in rates]
        judged = [(place, rate) for place, rate in shown if rate.total]
        offset = (number - (len(results) - 1) / 2) * thickness
        values = [100 * rate.value for _, rate in judged]
        # Rounding may put a bound of the interval a hair inside the rate when that is 0 or 1.
        below = [max(value - 100 * rate.interval[0], 0) for value, (_, rate) in zip(values, judged, strict=True)]
        above = [max(100 * rate.interval[1] - value, 0) for value, (_, rate) in zip(values, judged, strict=True)]
        colour, hatch = styles[number % len(styles)]
        places = [place + offset for place, _ in judged]
        axes.barh(places, values, height=0.9 * thickness, color=colour, edgecolor="black", hatch=hatch, label=name)
        axes.errorbar(values, places, xerr=[below, above], fmt="none", ecolor="black", capsize=2, lw=1)
        for value, error, place, (_, rate) in zip(values, above, places, judged, strict=True):
            note = f"{value:.1f}%" + (f", {rate.unparsed} unparsed" if rate.unparsed else "")
            axes.text(value + error + 1.5, place, note, va="center", fontsize=8)
    axes.set_yticks(range(len(metrics)), [labels.get(metric, metric).replace(", ", ",\n", 1) for metric in metrics])
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    axes.grid(axis="x", color="0.85")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)

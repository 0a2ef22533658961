"""Rates of several models side by side: a Markdown table and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .rates import Rate


if TYPE_CHECKING:
    from matplotlib.axes import Axes


Results = Mapping[str, Mapping[str, Rate]]  # name of a model ("before", "BCT") to its rates by metric

# The order of the rows, and how they are called
LABELS = {
    "sycophancy/test": "Sycophancy, held-out questions",
    "sycophancy/test_wordings": "Sycophancy, held-out questions and wordings",
    "attack_success/test": "Attack success, held-out requests",
    "attack_success/test_wordings": "Attack success, held-out requests and wrappers",
    "perturbed_accuracy/test": "Accuracy, perturbed prompts",
    "perturbed_accuracy/test_wordings": "Accuracy, perturbed prompts, held-out wordings",
    "benign_answered/test": "Benign requests answered, wrapped",
    "benign_answered/test_wordings": "Benign requests answered, held-out wrappers",
    "agreement/test": "Agreement with the reference, word for word",
    "agreement/test_wordings": "Agreement with the reference, held-out wordings",
    "clean_accuracy": "Accuracy, clean prompts",
    "refusal": "Harmful requests refused, bare",
    "benign_answered/clean": "Benign requests answered, bare",
    "control_accuracy": "Accuracy, control task",
}
FAILURES = ("sycophancy", "attack_success")  # rates that should fall; all others should stay high


def markdown_table(results: Results) -> str:
    """
    Renders rates as a Markdown table, one row a metric and one column a model.

    Args:
        results (`Mapping[str, Mapping[str, Rate]]`):
            Rates by metric, by the model's name, in the order of the columns. A metric that a model lacks is a dash.

    Returns:
        `str`: The table, with cells such as `3.1% [1.2, 7.8] (4/128)`: the rate, its 95% interval and its counts.
    """
    cells = {
        metric: [str(rates[metric]) if metric in rates else "-" for rates in results.values()]
        for metric in _metrics(results)
    }
    return aligned_table(list(results), cells)


def spread_table(results: Mapping[str, Sequence[Mapping[str, Rate]]]) -> str:
    """
    Renders the rates of several runs of each model, as their mean and range.

    Args:
        results (`Mapping[str, Sequence[Mapping[str, Rate]]]`):
            Rates by metric, one mapping a run, by the model's name.

    Returns:
        `str`: A Markdown table with cells such as `1.3% (0.9 to 2.0)`.
    """

    def cell(runs: Sequence[Mapping[str, Rate]], metric: str) -> str:
        values = [100 * rates[metric].value for rates in runs if metric in rates and rates[metric].total]
        if not values:
            return "-"
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        return f"{sum(values) / len(values):.1f}%{spread}"

    metrics = _metrics({name: runs[0] for name, runs in results.items()})
    return aligned_table(
        list(results), {metric: [cell(runs, metric) for runs in results.values()] for metric in metrics}
    )


def aligned_table(names: list[str], cells: dict[str, list[str]]) -> str:
    """A Markdown table, padded so that it also reads well in a terminal."""
    rows = [["", *names], *([LABELS.get(metric, metric), *row] for metric, row in cells.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |\n" for row in rows
    )


def plot_results(results: Results, path: str | Path, title: str | None = None) -> Path:
    """
    Draws rates as grouped horizontal bars with their 95% intervals: failures on the left, abilities on the right.

    Args:
        results (`Mapping[str, Mapping[str, Rate]]`):
            As for [`markdown_table`].
        path (`str` or [`~pathlib.Path`]):
            Picture to write; its ending says the format (`.png`, `.svg`, `.pdf`).
        title (`str`, *optional*):
            Title above the bars.

    Returns:
        [`~pathlib.Path`]: `path`.
    """
    # Imported here: an extra (`trl-consistency[eval]`), and slow. `Figure` needs no display and leaves pyplot alone.
    from matplotlib.figure import Figure

    metrics = _metrics(results)
    failures = [metric for metric in metrics if metric.startswith(FAILURES)]
    abilities = [metric for metric in metrics if metric not in failures]
    panels = {"Should be low": failures, "Should be high": abilities}
    panels = {heading: of_panel for heading, of_panel in panels.items() if of_panel}
    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(7 * len(panels), 1.6 + rows * (0.2 + 0.2 * len(results))), layout="constrained")
    grid = figure.add_gridspec(rows, len(panels))
    for column, (heading, of_panel) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[: len(of_panel), column])  # so that bars are as thick on both sides
        axes.set_title(heading, loc="left")
        _draw_bars(axes, results, of_panel)
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
    Draws what evaluation saw during training, as Irpan et al. do (https://huggingface.co/papers/2510.27062, figure on BCT
    and ACT during training): activation distance on the left, response cross-entropy on the right, a line a run.

    Args:
        histories (`Mapping[str, Sequence[Mapping[str, float]]]`):
            The `log_history` of each run, by the method's name. Only entries that `log_consistency_metrics` made on
            evaluation data count.
        path (`str` or [`~pathlib.Path`]):
            Picture to write; its ending says the format.

    Returns:
        [`~pathlib.Path`]: `path`.
    """
    from matplotlib.figure import Figure

    panels = {
        "eval_activation_distance": "Activation distance on the shared suffix",
        "eval_response_cross_entropy": "Cross-entropy of the clean answer (nats a token)",
    }
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for number, (name, history) in enumerate(histories.items()):
            seen = [(entry["step"], entry[key]) for entry in history if key in entry]
            # Marker and dashes tell the runs apart in grey.
            axes.plot(
                *zip(*seen, strict=True), label=name, marker="os^D"[number % 4], linestyle=("-", "--", ":")[number % 3]
            )
        axes.set_title(label, loc="left", fontsize=11)
        axes.set_xlabel("Training step")
        axes.set_ylim(bottom=0)
        axes.grid(color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    path = Path(path)
    figure.savefig(path, dpi=120)
    return path


def plot_tradeoff(results: Results, path: str | Path) -> Path:
    """
    Draws safety against capability, a point a model, with 95% intervals: sycophancy against accuracy on the control task
    (without one, on clean prompts) on the left, attack success against benign requests answered on the right. The best
    corner is the upper right one.

    Args:
        results (`Mapping[str, Mapping[str, Rate]]`):
            As for [`markdown_table`]. Held-out wordings are taken where there are some.
        path (`str` or [`~pathlib.Path`]):
            Picture to write; its ending says the format.

    Returns:
        [`~pathlib.Path`]: `path`.
    """
    from matplotlib.figure import Figure

    found = _metrics(results)

    def first(*metrics: str) -> str | None:
        return next((metric for metric in metrics if metric in found), None)

    pairs = {
        "Resists the user's guess": (
            first("control_accuracy", "clean_accuracy"),
            first("sycophancy/test_wordings", "sycophancy/test"),
        ),
        "Resists jailbreak wrappers": (
            first("benign_answered/test_wordings", "benign_answered/test", "benign_answered/clean"),
            first("attack_success/test_wordings", "attack_success/test"),
        ),
    }
    panels = {label: (ability, failure) for label, (ability, failure) in pairs.items() if ability and failure}
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
        axes.set_xlabel(f"{LABELS.get(ability, ability)} (%)")
        held_out = LABELS.get(failure, failure).partition(", ")[2]
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


def _draw_bars(axes: "Axes", results: Results, metrics: list[str]) -> None:
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
    axes.set_yticks(range(len(metrics)), [LABELS.get(metric, metric).replace(", ", ",\n", 1) for metric in metrics])
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    axes.grid(axis="x", color="0.85")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _metrics(results: Results) -> list[str]:
    """All metrics, in the order of `LABELS`, then those that it does not know in the order in which they first occur."""
    found = list(dict.fromkeys(metric for rates in results.values() for metric in rates))
    return [metric for metric in LABELS if metric in found] + [metric for metric in found if metric not in LABELS]

"""Rates of several models side by side: a Markdown table and a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from .rates import Rate


Results = Mapping[str, Mapping[str, Rate]]  # name of a model ("before", "BCT") to its rates by metric

LABELS = {
    "sycophancy/test": "Sycophancy, held-out questions",
    "sycophancy/test_wordings": "Sycophancy, held-out questions and wordings",
    "perturbed_accuracy/test": "Accuracy, perturbed prompts",
    "perturbed_accuracy/test_wordings": "Accuracy, perturbed prompts, held-out wordings",
    "clean_accuracy": "Accuracy, clean prompts",
    "control_accuracy": "Accuracy, control task",
}


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
    return _aligned(list(results), cells)


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
    return _aligned(list(results), {metric: [cell(runs, metric) for runs in results.values()] for metric in metrics})


def _aligned(names: list[str], cells: dict[str, list[str]]) -> str:
    """A Markdown table, padded so that it also reads well in a terminal."""
    rows = [["", *names], *([LABELS.get(metric, metric), *row] for metric, row in cells.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |\n" for row in rows
    )


def plot_results(results: Results, path: str | Path, title: str | None = None) -> Path:
    """
    Draws rates as grouped horizontal bars with their 95% intervals.

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
    # Shade and hatch both tell the models apart, so that print without colour does too.
    styles = [("0.8", ""), ("#a6cee3", "///"), ("#fdbf6f", "..."), ("#b2df8a", "xxx"), ("#cab2d6", "---")]
    thickness = 0.8 / len(results)
    figure = Figure(figsize=(9, 1.2 + len(metrics) * (0.3 + 0.27 * len(results))), layout="constrained")
    axes = figure.add_subplot()
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
        axes.errorbar(values, places, xerr=[below, above], fmt="none", ecolor="black", capsize=3, lw=1)
        for value, error, place, (_, rate) in zip(values, above, places, judged, strict=True):
            note = f"{value:.1f}%" + (f", {rate.unparsed} unparsed" if rate.unparsed else "")
            axes.text(value + error + 1.5, place, note, va="center", fontsize=9)
    axes.set_yticks(range(len(metrics)), [LABELS.get(metric, metric).replace(", ", ",\n", 1) for metric in metrics])
    axes.invert_yaxis()
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    axes.grid(axis="x", color="0.85")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=len(results), frameon=False)
    path = Path(path)
    figure.savefig(path, dpi=150)
    return path


def _metrics(results: Results) -> list[str]:
    """All metrics, in the order in which they first occur."""
    return list(dict.fromkeys(metric for rates in results.values() for metric in rates))

"""Plots of outcomes, of rates, and of metrics during training."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ...errors import ConsistencyError
from ...escaping import printable
from ...files import write_by
from ...history import own_entries
from ..rates.intervals import DIGITS, Estimate
from ..rates.measures import METRICS, Metric
from .tables import KINDS, Outcomes, Rates, label_of, ordered_metrics


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# From good to bad outcomes. Unread comes last, white and hatched, so that it stands out.
OUTCOME_STYLES = {
    "question": {"right": ("#4c9f70", ""), "other": ("0.65", ""), "suggested": ("#d95f02", "")},
    "harmful": {"refused": ("#4c9f70", ""), "complied": ("#d95f02", "")},
    "benign": {"complied": ("#4c9f70", ""), "refused": ("#d95f02", "")},
}
UNREAD_STYLE = ("white", "////")

LONGEST_NAME = 40  # characters
WIDTH_OF_A_DIGIT = 2.4  # percent of a bar
LONGEST_LINE = 48  # characters of a label along a panel


def shown_name(name: str) -> str:
    """Returns a name that matplotlib does not read as a formula, leave out of a legend, or draw beyond the picture."""
    name = " ".join(name.split())
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 :]}"
    return _plain(f" {name}" if name.startswith("_") else name)


def shown_names(names: Iterable[str]) -> dict[str, str]:
    """
    Returns each name as [`shown_name`] has it, with a number if another one looks the same: both may have been cut. The
    numbers go by the alphabet, so that they are the same in every picture of these names.
    """
    found: dict[str, str] = {}
    for name in sorted(set(names)):
        text = shown_name(name)
        numbered = (f"{text} ({number})" for number in count(2))
        found[name] = next(of for of in chain([text], numbered) if of not in found.values())
    return found


def _plain(text: str) -> str:
    return printable(text).replace("$", r"\$")


def plot_outcomes(outcomes: Mapping[str, Outcomes], path: str | Path, title: str | None = None) -> Path:
    """
    Plots the outcomes of all answers, without and with the cue, for each set: one stacked bar per model.

    Args:
        outcomes (`Mapping[str, Mapping]`):
            [`Results.outcomes`] by the model's name, in the order of the bars.
        path (`str` or [`~pathlib.Path`]):
            Picture to write. Its suffix sets the format (`.png`, `.svg`, `.pdf`).
        title (`str`, *optional*):
            Title above the bars.

    Returns:
        [`~pathlib.Path`]: `path`.

    Raises:
        [`ConsistencyError`]: If the models answered different sets, or there are no outcomes.
    """
    # Imported here: optional (`trl-consistency[eval]`) and slow. `Figure` needs no display, and no pyplot state.
    from matplotlib.figure import Figure

    _check_outcomes(outcomes)
    sets = {
        kind: list(dict.fromkeys(name for of in outcomes.values() for name, kinds in of.items() if kind in kinds))
        for kind in KINDS
    }
    sets = {kind: names for kind, names in sets.items() if names}
    shown = shown_names(name for names in sets.values() for name in names)
    heights = [0.9 + len(names) * (0.35 + 0.26 * len(outcomes)) for names in sets.values()]
    figure = Figure(figsize=(10, 0.4 + sum(heights)), layout="constrained")  # read at a page's width
    grid = figure.add_gridspec(len(sets), 3, height_ratios=heights, width_ratios=(10, 10, 2))  # the legend comes last
    for row, (kind, names) in enumerate(sets.items()):
        for column, (side, cue) in enumerate({"clean": "without the cue", "perturbed": "with the cue"}.items()):
            axes = figure.add_subplot(grid[row, column])
            axes.set_title(f"{KINDS[kind]}, {cue}", loc="left")
            _draw_outcomes(axes, outcomes, kind, side, {name: shown[name] for name in names})
        _draw_legend(figure.add_subplot(grid[row, 2]), _styles(kind))
    if title:
        figure.suptitle(_plain(title))
    return _save(figure, path)


def _check_outcomes(outcomes: Mapping[str, Outcomes]) -> None:
    """Raises [`ConsistencyError`] for outcomes of other sets than those of the first model, and for none."""
    measured = {
        model: {(name, kind) for name, kinds in of.items() for kind in kinds} for model, of in outcomes.items()
    }
    if not any(measured.values()):
        raise ConsistencyError("There are no outcomes to draw: no row is a question or a request.")
    first = next(iter(measured))
    for model, places in measured.items():
        if places != measured[first]:
            raise ConsistencyError(
                f"{model!r} and {first!r} answered different sets, whose outcomes cannot stand side by side. Give those of the same "
                "sets."
            )


def _check_rates(results: Mapping[str, Rates]) -> None:
    """Raises [`ConsistencyError`] for differences, which would lie beyond the picture."""
    for model, rates in results.items():
        if differing := next((metric for metric, rate in rates.items() if rate.unit == "pp"), None):
            raise ConsistencyError(
                f"`{differing}` of {model!r} is a difference, and the picture is of rates: give those of `Results.rates()`. "
                "`markdown_table` shows differences."
            )


def _draw_outcomes(
    axes: "Axes", outcomes: Mapping[str, Outcomes], kind: str, side: str, names: Mapping[str, str]
) -> None:
    styles = _styles(kind)
    models = shown_names(outcomes)
    ticks: dict[float, str] = {}
    place = 0.0
    for name, shown in names.items():
        answers = {sum(of[name][kind][side].values()) for of in outcomes.values() if side in of[name][kind]}
        if name:
            axes.text(0, place, shown, fontsize=9, va="center", fontweight="bold")
            if len(answers) == 1:
                axes.text(
                    100, place, f"{max(answers):,} answers each", fontsize=7, va="center", ha="right", color="0.3"
                )
            place += 0.9
        for model, of_model in outcomes.items():
            ticks[place] = models[model]
            counts = of_model[name][kind].get(side)
            if counts is None:
                axes.text(1, place, "no cue", va="center", fontsize=8, color="0.4")
            else:
                _draw_stack(axes, place, counts, styles, as_shares=len(answers) > 1)
            place += 1.0
        place += 0.3
    axes.set_yticks(list(ticks), list(ticks.values()) if side == "clean" else [])
    axes.set_ylim(place - 0.7, -0.7)
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _styles(kind: str) -> dict[str, tuple[str, str]]:
    return {**OUTCOME_STYLES[kind], "unread": UNREAD_STYLE}


def _draw_legend(axes: "Axes", styles: Mapping[str, tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    axes.axis("off")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="0.3", label=outcome)
        for outcome, (colour, hatch) in styles.items()
    ]
    axes.legend(handles=handles, loc="upper left", frameon=False)


def _draw_stack(
    axes: "Axes", place: float, counts: Mapping[str, int], styles: Mapping[str, tuple[str, str]], as_shares: bool
) -> None:
    """Draws one bar from 0 to 100%, with counts or shares in it, and beside it those that have no room."""
    left = 0.0
    beside = []
    for outcome, (colour, hatch) in styles.items():
        count = counts[outcome]
        width = 100 * count / sum(counts.values())
        axes.barh(place, width, 0.8, left, color=colour, hatch=hatch, edgecolor="0.3", linewidth=0.5)
        text = f"{width:.{int(width < 10)}f}%" if as_shares else str(count)
        if width > WIDTH_OF_A_DIGIT * len(text):
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if hatch else None  # readable on hatching
            axes.text(left + width / 2, place, text, ha="center", va="center", fontsize=8, bbox=box)
        elif count:
            beside.append(f"{text} {outcome}")
        left += width
    axes.text(
        101,
        place,
        "\n".join(beside),
        va="center",
        fontsize=7 if len(beside) < 3 else 5.5,
        color="0.3",
        linespacing=0.9,
    )


def plot_rates(
    results: Mapping[str, Rates], path: str | Path, title: str | None = None, labels: Mapping[str, str] = {}
) -> Path:
    """
    Plots rates as grouped horizontal bars with 95% intervals: failures on the left, abilities on the right.

    Args:
        results (`Mapping[str, Mapping[str, Estimate]]`):
            As for [`markdown_table`]. Gaps, margins and scores are left out.
        path (`str` or [`~pathlib.Path`]):
            Picture to write. Its suffix sets the format (`.png`, `.svg`, `.pdf`).
        title (`str`, *optional*):
            Title above the bars.
        labels (`Mapping[str, str]`, *optional*):
            Labels of the metrics, in the order of the bars.

    Returns:
        [`~pathlib.Path`]: `path`.

    Raises:
        [`ConsistencyError`]: If there are differences between two models among the rates, or there is no rate.
    """
    from matplotlib.figure import Figure

    _check_rates(results)
    in_nats = {metric for rates in results.values() for metric, rate in rates.items() if rate.unit in DIGITS}
    shares = (metric for metric in ordered_metrics(results.values(), labels) if _metric(metric).is_share)
    metrics = [metric for metric in shares if metric not in in_nats]
    if not metrics:
        raise ConsistencyError("There is no rate to draw.")
    labels = _labels(metrics, labels)
    failures = [metric for metric in metrics if _metric(metric).is_failure]
    abilities = [metric for metric in metrics if metric not in failures]
    panels = {"Should be low": failures, "Should be high": abilities}
    panels = {heading: of_panel for heading, of_panel in panels.items() if of_panel}
    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(7 * len(panels), 1.6 + rows * (0.2 + 0.2 * len(results))), layout="constrained")
    grid = figure.add_gridspec(rows, len(panels))
    for column, (heading, of_panel) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[: len(of_panel), column])  # equally thick bars on both sides
        axes.set_title(heading, loc="left")
        _draw_bars(axes, results, of_panel, labels)
        axes.set_ylim(len(of_panel) - 0.4, -0.6)
    if title:
        figure.suptitle(_plain(title))
    return _save(figure, path)


def training_panels(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, str]:
    """Returns the labels of the logged metrics that [`plot_training`] draws, by their keys."""
    panels = {
        "eval_activation_distance": "Activation distance on the shared suffix",
        "eval_response_cross_entropy": "Cross-entropy of the clean answer (nats a token)",
        "eval_consistency/score": "Score on held-out pairs",
    }
    seen = {key for history in histories.values() for entry in own_entries(history) for key in entry}
    found = {key: label for key, label in panels.items() if key in seen}
    return found or ({"loss": "Loss (each method its own)"} if "loss" in seen else {})


def plot_training(histories: Mapping[str, Sequence[Mapping[str, float]]], path: str | Path) -> Path:
    """
    Plots metrics logged during training, one line per run. Those of `log_consistency_metrics` on evaluation data are
    arranged as in Irpan et al. (https://huggingface.co/papers/2510.27062, figure on BCT and ACT during training):
    activation distance on the left, response cross-entropy on the right. The score of a [`ConsistencyEvalCallback`]
    follows. Without any of these, the loss is plotted. Evaluations of other sets than the trainer's, or without the adapter, are
    left out.

    Args:
        histories (`Mapping[str, Sequence[Mapping[str, float]]]`):
            The `log_history` of each run, by the method's name.
        path (`str` or [`~pathlib.Path`]):
            Picture to write. Its suffix sets the format.

    Returns:
        [`~pathlib.Path`]: `path`.

    Raises:
        [`ConsistencyError`]: If none of these was logged.
    """
    from matplotlib.figure import Figure

    panels = training_panels(histories)
    if not panels:
        raise ConsistencyError("There is nothing to draw: the runs logged no loss, and no metric of an evaluation.")
    names = shown_names(histories)
    figure = Figure(figsize=(5 * len(panels), 3.8), layout="constrained")
    for column, (key, label) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), column)
        for number, (name, history) in enumerate(histories.items()):
            points = [(entry["step"], entry[key]) for entry in own_entries(history) if key in entry]
            if not points:
                continue
            # Markers and dashes distinguish the runs without colour.
            axes.plot(
                *zip(*points, strict=True),
                label=names[name],
                color=f"C{number}",
                marker="os^D"[number % 4],
                linestyle=("-", "--", ":")[number % 3],
                clip_on=False,  # markers at the edge
            )
        axes.set_title(label, loc="left", fontsize=11)
        axes.set_xlabel("Training step")
        if axes.dataLim.ymin >= 0:  # the loss of a policy gradient can be negative
            axes.set_ylim(bottom=0)
        axes.grid(color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def plot_tradeoff(results: Mapping[str, Rates], path: str | Path, labels: Mapping[str, str] = {}) -> Path:
    """
    Plots safety against capability with 95% intervals, one point per model. Left: right answers under the cue against
    accuracy on a control task, or else on clean prompts. Right: harmful requests refused against benign requests
    answered. The upper right corner is best; unread answers lower both axes.

    Args:
        results (`Mapping[str, Mapping[str, Estimate]]`):
            As for [`markdown_table`]. With several sets, `test_wordings` is plotted, or else the first.
        path (`str` or [`~pathlib.Path`]):
            Picture to write. Its suffix sets the format.
        labels (`Mapping[str, str]`, *optional*):
            Labels of the metrics.

    Returns:
        [`~pathlib.Path`]: `path`.

    Raises:
        [`ConsistencyError`]: If there are differences between two models among the rates, or nothing to draw.
    """
    from matplotlib.figure import Figure

    _check_rates(results)
    metrics, models = ordered_metrics(results.values(), labels), shown_names(results)
    axes_of, labels = tradeoff_axes(metrics), _labels(metrics, labels)
    headings = {"perturbed_accuracy": "Resists the user's guess", "perturbed_refusal": "Resists jailbreak wrappers"}
    panels = {headings[kind]: of_kind for kind, of_kind in axes_of.items()}
    if not panels:
        raise ConsistencyError("There is nothing to draw: no model has both rates of a panel.")
    figure = Figure(figsize=(5.2 * len(panels), 4.6), layout="constrained")
    for column, (label, (ability, resistance)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), column)
        for number, (name, rates) in enumerate(results.items()):
            if ability not in rates or resistance not in rates:
                continue
            (x, x_error), (y, y_error) = (_percent(rates[metric]) for metric in (ability, resistance))
            # Markers and shades distinguish the models without colour.
            axes.errorbar(
                x,
                y,
                xerr=[[length] for length in x_error],
                yerr=[[length] for length in y_error],
                fmt="osD^vPX*"[number % 8],
                color=("black", "0.35", "0.6")[number % 3],
                markerfacecolor=("black", "white", "0.6")[number % 3],
                markersize=8,
                elinewidth=0.8,
                capsize=2,
                label=models[name],
            )
        axes.set_title(label, loc="left", fontsize=11)
        axes.set_xlabel(fill(f"{labels[ability]} (%)", LONGEST_LINE))
        axes.set_ylabel(fill(f"{labels[resistance]} (%)", LONGEST_LINE))
        axes.set_ylim(-4, 104)
        least = min(axes.get_xlim()[0], 75)  # keeps small differences small
        axes.set_xlim(least, 100 + 0.04 * (100 - least))  # room for a marker at 100%
        axes.grid(color="0.85")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path, most_columns=3)


def tradeoff_axes(metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns (ability, resistance) metrics for each kind of resistance that was measured."""

    def first(*wanted: str) -> str | None:
        return next((metric for metric in wanted if metric in metrics), None)

    def sets(kind: str) -> list[str]:
        found = [metric for metric in metrics if metric.partition("/")[0] == kind]
        return sorted(found, key=lambda metric: not metric.endswith("/test_wordings"))

    # A set without cues measures accuracy alone.
    controls = [of for of in sets("clean_accuracy") if of.replace("clean_", "perturbed_", 1) not in metrics]
    abilities = {
        "perturbed_accuracy": [*controls, *sets("clean_accuracy")],
        "perturbed_refusal": [*sets("benign_answered"), *controls],
    }
    found = {kind: (first(*of_kind), first(*sets(kind))) for kind, of_kind in abilities.items()}
    return {kind: (ability, resistance) for kind, (ability, resistance) in found.items() if ability and resistance}


def _save(figure: "Figure", path: str | Path, most_columns: int = 10) -> Path:
    """Writes the picture, with a legend below it of what is drawn in any panel."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if handles:
        columns = min(len(handles), most_columns)
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False)
    write_by(path, lambda place: figure.savefig(place, dpi=160))
    return Path(path)


def _draw_bars(axes: "Axes", results: Mapping[str, Rates], metrics: list[str], labels: Mapping[str, str]) -> None:
    # Shades and hatches distinguish the models without colour. Together, they repeat after 35 models.
    colours, hatches = (
        ("0.8", "#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6"),
        ("", "///", "...", "xxx", "---", "ooo", "++"),
    )
    thickness, names = 0.8 / len(results), shown_names(results)
    for number, (name, rates) in enumerate(results.items()):
        shown = [(place, rates[metric]) for place, metric in enumerate(metrics) if metric in rates]
        offset = (number - (len(results) - 1) / 2) * thickness
        places = [place + offset for place, _ in shown]
        bars = [_percent(rate) for _, rate in shown]
        values, errors = [value for value, _ in bars], list(zip(*(error for _, error in bars), strict=True))
        colour = colours[number % len(colours)]
        hatch = hatches[(number + number // len(colours)) % len(hatches)]
        axes.barh(
            places,
            values,
            height=0.9 * thickness,
            color=colour,
            edgecolor="black",
            hatch=hatch,
            label=names[name],
        )
        axes.errorbar(values, places, xerr=errors or None, fmt="none", ecolor="black", capsize=2, lw=1)
        for (value, (_, above)), place, (_, rate) in zip(bars, places, shown, strict=True):
            note = _shown_percent(value) + (f", {rate.unread_total} unread" if rate.unread else "")
            axes.text(value + above + 1.5, place, note, va="center", fontsize=8)
    axes.set_yticks(range(len(metrics)), [labels[metric].replace(", ", ",\n", 1) for metric in metrics])
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 20), [f"{percent}%" for percent in range(0, 101, 20)])
    axes.grid(axis="x", color="0.85")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _labels(keys: Sequence[str], labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the label of each rate, with a drawable name of its set."""
    names = shown_names(name for _, _, name in (key.partition("/") for key in keys) if name)
    own = shown_names(key for key in keys if key.partition("/")[0] not in METRICS)
    found = {}
    for key in keys:
        metric, _, name = key.partition("/")
        label = own[key] if key in own else label_of(f"{metric}/{names[name]}" if name else metric)
        found[key] = _plain(labels[key]) if key in labels else label
    return found


def _metric(key: str) -> Metric:
    """Returns the metric of a rate. A user's own metric counts as an ability."""
    return METRICS.get(key.partition("/")[0], Metric(key, ()))


def _shown_percent(value: float) -> str:
    """Returns percent with one decimal, which never says none or all where some are left: a picture has no counts."""
    text = f"{value:.1f}%"
    return {"0.0%": "<0.1%", "100.0%": ">99.9%"}.get(text, text) if 0 < value < 100 else text


def _percent(rate: Estimate) -> tuple[float, tuple[float, float]]:
    """Returns a rate in percent, and its distance to both bounds of its interval, at least 0 despite rounding."""
    low, high = rate.interval or (rate.value, rate.value)
    return 100 * rate.value, (max(100 * (rate.value - low), 0), max(100 * (high - rate.value), 0))

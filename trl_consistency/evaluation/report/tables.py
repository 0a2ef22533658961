"""Tables of the results of several models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...pages import cells_table
from ..rates.intervals import DIGITS, Estimate, outcomes_text
from ..rates.measures import METRICS


Rates: TypeAlias = Mapping[str, Estimate]  # by metric and set: "sycophancy/test"
Outcomes: TypeAlias = Mapping[str, Any]  # from `Results.outcomes`

KINDS = {"question": "Questions", "harmful": "Harmful requests", "benign": "Benign requests"}

RATES_TEXT = (
    "Each rate is a share of all rows, with its 95% interval and counts. Replies that could not be read (unread) are "
    "in the total, and are no hits. Where there are any, the share of the replies that were read stands beside it. The intervals "
    "take all rows of one source (one question, say) together."
)
MARGINS_TEXT = (
    " The right answer is preferred where its log-probability per token is higher than the suggested one's; the margin is the "
    "mean difference, in nats per token."
)
DIFFERENCES_TEXT = "In percentage points, on all rows, with paired intervals."
OUTCOMES_TEXT = "Every answer counts once."
GRADERS_TEXT = (
    'What read the answers. "choice" is the letter that a reply chooses, or without replies the likeliest letter. "Answer line" is a '
    'reply\'s line "Answer: X", if it holds an answer word for word, or none. '
    '"Stated answer" and "refusal" are rules for free text, a heuristic that misreads some: look at such answers before you trust a rate.'
)


def label_of(key: str, labels: Mapping[str, str] = {}) -> str:
    """Returns the label of a rate: "Sycophancy, test" for `sycophancy/test`, unless `labels` has another."""
    metric, _, name = key.partition("/")
    if key in labels or metric not in METRICS:
        return labels.get(key, key)
    return f"{METRICS[metric].label}, {name}" if name else METRICS[metric].label


def markdown_table(results: Mapping[str, Rates]) -> str:
    """
    Renders rates as a Markdown table, one row per metric and one column per model.

    Args:
        results (`Mapping[str, Mapping[str, Estimate]]`):
            Rates by metric, by the model's name, in the order of the columns. A missing metric is shown as a dash.

    Returns:
        `str`: The table, with cells such as `3.1% [1.2, 7.8] (4/128)`: the rate, its 95% interval and its counts.
    """
    return cells_table(list(results), rate_cells(results))


def spread_table(results: Mapping[str, Sequence[Rates]]) -> str:
    """
    Renders the rates of several runs of each model, as their mean and range.

    Args:
        results (`Mapping[str, Sequence[Mapping[str, Estimate]]]`):
            Rates by metric, one mapping per run, by the model's name.

    Returns:
        `str`: A Markdown table with cells such as `1.3% (0.9 to 2.0)`, or `1.3% (0.9 to 2.0), 2 of 3 runs` where a run lacks the
        metric.
    """
    return cells_table(list(results), spread_cells(results))


def rate_cells(results: Mapping[str, Rates], labels: Mapping[str, str] = {}) -> dict[str, list[str]]:
    """Returns the cells of [`markdown_table`], by the label of their row."""
    return {
        label_of(metric, labels): [str(rates[metric]) if metric in rates else "-" for rates in results.values()]
        for metric in ordered_metrics(results.values(), labels)
    }


def spread_cells(results: Mapping[str, Sequence[Rates]], labels: Mapping[str, str] = {}) -> dict[str, list[str]]:
    """Returns the cells of [`spread_table`], by the label of their row."""

    def cell(runs: Sequence[Rates], metric: str) -> str:
        found = [rates[metric] for rates in runs if metric in rates]
        if not found:
            return "-"
        unit = found[0].unit
        in_nats = unit in DIGITS
        values = [rate.value if in_nats else 100 * rate.value for rate in found]
        digits, unit = (DIGITS[unit], f" {unit}") if in_nats else (1, unit)
        spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
        some = f", {len(found)} of {len(runs)} runs" if len(found) < len(runs) else ""
        return f"{sum(values) / len(values):.{digits}f}{unit}{spread}{some}"

    metrics = ordered_metrics((run for runs in results.values() for run in runs), labels)
    return {label_of(metric, labels): [cell(runs, metric) for runs in results.values()] for metric in metrics}


def outcome_places(outcomes: Mapping[str, Outcomes]) -> dict[str, tuple[str, str, str]]:
    """Returns (set, kind of row, side) of all answers, by their label in tables."""
    return {
        f"{KINDS[kind]}, {side} prompts{f', {name}' if name else ''}": (name, kind, side)
        for of_model in outcomes.values()
        for name, kinds in of_model.items()
        for kind, sides in kinds.items()
        for side in sides
    }


def outcome_cells(outcomes: Mapping[str, Outcomes]) -> dict[str, list[str]]:
    """Returns the counts of outcomes (`145 right, 8 other, 91 unread`), by the label of their row."""
    return {
        label: [outcomes_text(of_model[name][kind][side]) for of_model in outcomes.values()]
        for label, (name, kind, side) in outcome_places(outcomes).items()
    }


def grader_cells(graders: Mapping[str, Outcomes]) -> dict[str, list[str]]:
    """Returns the counts of graders (`85 answer line, 15 stated answer`) from `Results.graders`, by the label of their row."""
    return {
        label: [
            ", ".join(f"{count} {grader}" for grader, count in of_model[name][kind][side].items())
            for of_model in graders.values()
        ]
        for label, (name, kind, side) in outcome_places(graders).items()
    }


def ordered_metrics(results: Iterable[Rates], labels: Mapping[str, str] = {}) -> list[str]:
    """Returns all metrics: those with labels in their order, then the others in the order of first occurrence."""
    found = dict.fromkeys(metric for rates in results for metric in rates)
    return [metric for metric in labels if metric in found] + [metric for metric in found if metric not in labels]

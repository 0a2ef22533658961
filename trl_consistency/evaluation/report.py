"""Rates of several models side by side, as text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from .estimates import Estimate
from .rates import Rate


Rates: TypeAlias = Mapping[str, Rate] | Mapping[str, Estimate]  # by metric
Results: TypeAlias = Mapping[str, Rates]  # by the name of the model ("before", "BCT")

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


def markdown_table(results: Results) -> str:
    """
    Renders rates as a Markdown table, one row a metric and one column a model.

    Args:
        results (`Mapping[str, Mapping[str, Rate]]`):
            Rates by metric, by the model's name, in the order of the columns. A metric that a model lacks is a dash.

    Returns:
        `str`: The table, with cells such as `3.1% [1.2, 7.8] (4/128)`: the rate, its 95% interval and its counts.
    """
    return aligned_table(list(results), rate_cells(results))


def spread_table(results: Mapping[str, Sequence[Mapping[str, Rate]]]) -> str:
    """
    Renders the rates of several runs of each model, as their mean and range.

    Args:
        results (`Mapping[str, Sequence[Mapping[str, Rate]]]`):
            Rates by metric, one mapping a run, by the model's name.

    Returns:
        `str`: A Markdown table with cells such as `1.3% (0.9 to 2.0)`.
    """
    return aligned_table(list(results), spread_cells(results))


def rate_cells(results: Results, labels: Mapping[str, str] = LABELS) -> dict[str, list[str]]:
    """The cells of [`markdown_table`], by the label of their row."""
    return {
        labels.get(metric, metric): [str(rates[metric]) if metric in rates else "-" for rates in results.values()]
        for metric in ordered_metrics(results.values(), labels)
    }


def spread_cells(results: Mapping[str, Sequence[Mapping[str, Rate]]]) -> dict[str, list[str]]:
    """The cells of [`spread_table`], by the label of their row."""

    def cell(runs: Sequence[Mapping[str, Rate]], metric: str) -> str:
        values = [100 * rates[metric].value for rates in runs if metric in rates and rates[metric].total]
        if not values:
            return "-"
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        return f"{sum(values) / len(values):.1f}%{spread}"

    metrics = ordered_metrics(runs[0] for runs in results.values())
    return {LABELS.get(metric, metric): [cell(runs, metric) for runs in results.values()] for metric in metrics}


def aligned_table(names: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table, padded so that it also reads well in a terminal."""
    rows = [["", *names], *([label, *row] for label, row in cells.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |\n" for row in rows
    )


def ordered_metrics(results: Iterable[Rates], labels: Mapping[str, str] = LABELS) -> list[str]:
    """All metrics, in the order of the labels, then those that have none in the order in which they first occur."""
    found = dict.fromkeys(metric for rates in results for metric in rates)
    return [metric for metric in labels if metric in found] + [metric for metric in found if metric not in labels]

"""What a suite says of a model, with its interval, and how far two models are apart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...pages import cells_table
from ..rates.estimates import Sample, estimate, mean_interval, normal_interval


@dataclass(frozen=True)
class SuiteScore:
    """
    A figure that a suite gave, or the difference of two.

    Args:
        suite (`str`):
            The suite.
        task (`str`):
            The task of it, as the library names it.
        version (`str`):
            Version of that task.
        metric (`str`):
            The metric, as the library names it, with lm-evaluation-harness's filter (`exact_match/strict-match`).
        value (`float`):
            The figure as the library gives it; percentages as shares.
        interval (`tuple[float, float]`, *optional*):
            95% interval: from the library's standard error, of the samples' share where that is 0; None where the library gives none
            and the samples do not, either.
        total (`int`):
            Samples that were scored.
        unscored (`int`, *optional*, defaults to `0`):
            Samples that were not, because the judge's reply could not be read, for example.
        values (`Mapping[str, float]`, *optional*):
            The metric of each sample, where the figure is their mean. Differences rest on them.
    """

    suite: str
    task: str
    version: str
    metric: str
    value: float
    interval: tuple[float, float] | None
    total: int
    unscored: int = 0
    values: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.suite, self.task, self.metric

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the samples."""
        low, high = self.interval or (None, None)
        return {
            "suite": self.suite,
            "task": self.task,
            "version": self.version,
            "metric": self.metric,
            "value": None if math.isnan(self.value) else self.value,
            "low": low,
            "high": high,
            "total": self.total,
            "unscored": self.unscored,
        }

    def __str__(self) -> str:
        text = f"{self.value:.3f}"
        if self.interval is not None:
            text += " [{:.3f}, {:.3f}]".format(*self.interval)
        return f"{text} (n={self.total})" + (f", {self.unscored} unscored" if self.unscored else "")


def compare_suites(base: Iterable[SuiteScore], other: Iterable[SuiteScore]) -> list[SuiteScore]:
    """
    How far another model's scores are from the base model's, on the same samples.

    Args:
        base (`Iterable[SuiteScore]`):
            Scores of the base model.
        other (`Iterable[SuiteScore]`):
            Scores of the other one.

    Returns:
        `list[SuiteScore]`: The differences of the figures that both have. Where the samples of both are known, only those
        that both have count, and the interval is paired: Newcombe's for shares, Student's for other means.
    """
    by_key = {score.key: score for score in base}
    differences = []
    for score in other:
        if score.key not in by_key:
            continue
        before = by_key[score.key]
        shared = [sample for sample in score.values if sample in before.values]
        if shared:
            value, interval = _paired(before.values, score.values, shared)
            total = len(shared)
        else:
            value, interval, total = score.value - before.value, None, min(score.total, before.total)
        missing = max(before.total + before.unscored, score.total + score.unscored) - total
        differences.append(
            SuiteScore(score.suite, score.task, score.version, score.metric, value, interval, total, missing)
        )
    return differences


def suites_table(scores: Mapping[str, Sequence[SuiteScore]]) -> str:
    """A Markdown table: one row per figure, one column per model."""
    return cells_table(list(scores), suite_cells(scores))


def suite_cells(scores: Mapping[str, Sequence[SuiteScore]]) -> dict[str, list[str]]:
    """The cells of that table, by the label of their row."""
    keys = dict.fromkeys(score.key for of_model in scores.values() for score in of_model)
    found = [{score.key: str(score) for score in of_model} for of_model in scores.values()]
    cells = {}
    for suite, task, metric in keys:
        alone = len({of_task for of_suite, of_task, _ in keys if of_suite == suite}) == 1
        label = suite if alone else f"{suite}: {task}"
        cells[f"{label}, {metric}"] = [of_model.get((suite, task, metric), "-") for of_model in found]
    return cells


def suite_interval(value: float, stderr: float | None, values: Mapping[str, float]) -> tuple[float, float] | None:
    """The 95% interval of a score: of the library's standard error, or where that is 0 or missing, of shares of samples."""
    if stderr:  # not 0, which says only that all samples are alike
        low, high = normal_interval(value, stderr)
        return (max(low, 0.0), min(high, 1.0)) if _are_shares(values.values()) else (low, high)
    return estimate([_sample(values, list(values))]).interval if _are_shares(values.values()) else None


def _paired(
    before: Mapping[str, float], after: Mapping[str, float], shared: Sequence[str]
) -> tuple[float, tuple[float, float] | None]:
    """The mean difference on the samples that both have, with its 95% interval."""
    if _are_shares(of_model[sample] for of_model in (before, after) for sample in shared):
        found = estimate([_sample(before, shared), _sample(after, shared)], lambda a, b: b - a, (-1.0, 1.0))
        return found.value, found.interval
    differences = [after[sample] - before[sample] for sample in shared]
    return sum(differences) / len(differences), mean_interval(differences)


def _sample(values: Mapping[str, float], names: Sequence[str]) -> Sample:
    return Sample([values[name] == 1.0 for name in names], names)


def _are_shares(values: Iterable[float]) -> bool:
    found = set(values)
    return bool(found) and found <= {0.0, 1.0}


def is_mean(value: float, values: Mapping[str, float]) -> bool:
    """Whether a figure is the mean of its samples: if not, they do not say how far it is from another."""
    return bool(values) and math.isclose(sum(values.values()) / len(values), value, abs_tol=1e-6)

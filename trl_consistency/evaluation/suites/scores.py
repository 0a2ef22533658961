"""Suite scores with intervals, and differences between two models."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConsistencyError
from ...pages import cells_table
from ..rates.changes import estimate_change
from ..rates.intervals import Sample, Values, estimate, estimate_mean, normal_interval
from ..rates.measures import METRICS


# Metrics of which each sample is a hit or none. Others may have any scale, though their samples happen to be 0 and 1.
SHARES = {
    *("accuracy", "refusal_rate", "jailbreak_rate", "acc", "acc_all", "acc_bytes", "acc_mutual_info", "acc_norm"),
    *("exact_match", "prompt_level_strict_acc", "prompt_level_loose_acc"),
    *(name for name, metric in METRICS.items() if metric.is_share),
}
NO_SPREAD = 1e-9  # values that are as close as this are alike, but for rounding


@dataclass(frozen=True)
class SuiteScore:
    """
    A score in a suite, or the difference of two.

    Args:
        suite (`str`):
            The suite.
        task (`str`):
            The library's name of the task.
        version (`str`):
            Version of the task.
        metric (`str`):
            The library's name of the metric, with lm-evaluation-harness's filter (`exact_match/strict-match`).
        value (`float`):
            The library's value, with percentages as shares.
        interval (`tuple[float, float]`, *optional*):
            95% interval from the library's standard error, or if that is 0 or missing, from the samples of a metric that is known to
            be a share. None if neither is known.
        total (`int`):
            Number of scored samples.
        unscored (`int`, *optional*, defaults to `0`):
            Number of other samples, for example those that failed, or for which the judge's reply could not be read.
        values (`Mapping[str, float]`, *optional*):
            The metric of each sample, if the score is their mean. Differences are computed from them.
        sources (`Mapping[str, str]`, *optional*):
            The cluster of each sample, where the library's standard error has clusters. By default each sample is one.
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
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """Suite, task and metric: what two models' scores must share to be compared."""
        return self.suite, self.task, self.metric

    def to_dict(self) -> dict[str, Any]:
        """Returns the score in a form for JSON, without the samples."""
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
    Returns the differences of another model's scores from the base model's, on the same samples.

    Args:
        base (`Iterable[SuiteScore]`):
            Scores of the base model.
        other (`Iterable[SuiteScore]`):
            Scores of the other model.

    Returns:
        `list[SuiteScore]`: Differences of the scores that both have. If the samples are known, only common samples
        count, and the interval is paired, by the clusters of the samples: Newcombe's for shares, Student's for other means. Where all
        differences of such a mean are alike, there is no interval. Without a common sample the difference is NaN, of 0 samples.

    Raises:
        [`ConsistencyError`]: If a suite ran in two versions of its task.
    """
    by_key = {score.key: score for score in base}
    differences = []
    for score in other:
        if score.key not in by_key:
            continue
        before = by_key[score.key]
        if before.version != score.version:
            raise ConsistencyError(
                f"`{score.suite}` ran in version {before.version} of its task for the base model, and in {score.version} for the other: run "
                "both with the same library."
            )
        shared = [sample for sample in score.values if sample in before.values]
        if shared:
            value, interval = _paired(score.metric, before.values, score.values, shared, score.sources)
            total = len(shared)
        elif score.values and before.values:
            value, interval, total = math.nan, None, 0
        else:
            value, interval, total = score.value - before.value, None, min(score.total, before.total)
        missing = max(before.total + before.unscored, score.total + score.unscored) - total
        differences.append(
            SuiteScore(score.suite, score.task, score.version, score.metric, value, interval, total, missing)
        )
    return differences


def suites_table(scores: Mapping[str, Sequence[SuiteScore]]) -> str:
    """
    Renders scores as a Markdown table, one row per score and one column per model.

    Args:
        scores (`Mapping[str, Sequence[SuiteScore]]`):
            Scores by the model's name, in the order of the columns. A missing score is shown as a dash.

    Returns:
        `str`: The table, with cells such as `0.412 [0.385, 0.439] (n=1319)`.
    """
    return cells_table(list(scores), suite_cells(scores))


def suite_cells(scores: Mapping[str, Sequence[SuiteScore]]) -> dict[str, list[str]]:
    """Returns the cells of [`suites_table`], by the label of their row."""
    keys = dict.fromkeys(score.key for of_model in scores.values() for score in of_model)
    found = [{score.key: str(score) for score in of_model} for of_model in scores.values()]
    cells = {}
    for suite, task, metric in keys:
        alone = len({of_task for of_suite, of_task, _ in keys if of_suite == suite}) == 1
        label = suite if alone else f"{suite}: {task}"
        cells[f"{label}, {metric}"] = [of_model.get((suite, task, metric), "-") for of_model in found]
    return cells


def suite_interval(
    metric: str,
    value: float,
    stderr: float | None,
    values: Mapping[str, float],
    sources: Mapping[str, str] = {},
) -> tuple[float, float] | None:
    """Returns the 95% interval of a score, from the library's standard error or else from samples that are shares."""
    are_shares = _are_shares(metric, values.values())
    if stderr is not None and stderr > NO_SPREAD:  # 0 says only that all samples are alike
        low, high = normal_interval(value, stderr)
        return (max(low, 0.0), min(high, 1.0)) if are_shares else (low, high)
    return estimate([_sample(values, list(values), sources)]).interval if are_shares else None


def _paired(
    metric: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    shared: Sequence[str],
    sources: Mapping[str, str],
) -> tuple[float, tuple[float, float] | None]:
    """Returns the mean difference on the common samples, with its 95% interval."""
    if _are_shares(metric, (of_model[sample] for of_model in (before, after) for sample in shared)):
        found = estimate_change(_sample(before, shared, sources), _sample(after, shared, sources))
        return found.value, found.interval
    differences = [after[sample] - before[sample] for sample in shared]
    are_alike = max(differences) - min(differences) <= NO_SPREAD  # which shows no spread: an interval of no width
    found = estimate_mean(Values(differences, _clusters(shared, sources)), with_interval=not are_alike)
    return found.value, found.interval


def _sample(values: Mapping[str, float], names: Sequence[str], sources: Mapping[str, str]) -> Sample:
    return Sample([values[name] == 1.0 for name in names], _clusters(names, sources))


def _clusters(names: Sequence[str], sources: Mapping[str, str]) -> list[str]:
    return [sources.get(name, name) for name in names]


def _are_shares(metric: str, values: Iterable[float]) -> bool:
    found = set(values)
    return metric.partition("/")[0] in SHARES and bool(found) and found <= {0.0, 1.0}


def is_mean(value: float, values: Mapping[str, float]) -> bool:
    """Whether a score is the mean of its samples. Otherwise they cannot be used for a difference."""
    return bool(values) and math.isclose(sum(values.values()) / len(values), value, abs_tol=1e-6)

"""The figures of a model's results, and the checks of figures that were read from a file."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import ConsistencyError
from ..evaluation.rates.measures import METRICS


ROUNDING = 0.006  # figures may be rounded to two places


@dataclass(frozen=True)
class Figure:
    """
    A measured value.

    Args:
        value (`float`, *optional*):
            The value; None if nothing was measured.
        interval (`tuple[float, float]`, *optional*):
            Its 95% interval.
        hits (`int`, *optional*):
            Number of answers that have the property, for a rate.
        total (`int`, *optional*):
            Number of answers, including unread ones. With a total, the value is a share.
        unread (`int`, *optional*, defaults to `0`):
            Number of answers that could not be read.
        of_read (`float`, *optional*):
            The rate over the answers that could be read.
    """

    value: float | None
    interval: tuple[float, float] | None = None
    hits: int | None = None
    total: int | None = None
    unread: int = 0
    of_read: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "n/a"
        share = self.total is not None
        text = f"{100 * self.value:.1f}%" if share else f"{self.value:.4g}"
        if self.interval is not None:
            low, high = self.interval
            text += f" [{100 * low:.1f}, {100 * high:.1f}]" if share else f" [{low:.4g}, {high:.4g}]"
        if self.total is not None:
            text += f" (n={self.total})" if self.hits is None else f" ({self.hits}/{self.total})"
            text += f", {self.unread} unread" if self.unread else ""
            if self.of_read is not None:
                text += f"; {100 * self.of_read:.1f}% of {self.total - self.unread} read"
        return text


@dataclass(frozen=True)
class Outcomes:
    """
    Counts of answers by outcome.

    Args:
        name (`str`):
            Label of the answers: `"Questions, perturbed prompts, test"`.
        after (`dict[str, int]`):
            Counts by outcome: `{"right": 145, "suggested": 0, "other": 8, "unread": 91}`.
        before (`dict[str, int]`, *optional*):
            Counts of the base model, on the same rows.
    """

    name: str
    after: Mapping[str, int]
    before: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Benchmark:
    """
    A data set on the Hub that collects results in a leaderboard: one with an `eval.yaml`.

    Args:
        dataset (`str`):
            The data set: `"user/name"`.
        task (`str`):
            The `id` of the task in its `eval.yaml`.
        revision (`str`, *optional*):
            Commit of the data set that was measured on.
    """

    dataset: str
    task: str
    revision: str | None = None


@dataclass(frozen=True)
class Result(Figure):
    """
    A model's result on a metric.

    Args:
        metric (`str`):
            The metric: `"sycophancy"`.
        split (`str`, *optional*):
            Split that was measured: `"test_wordings"`.
        name (`str`, *optional*):
            Label on the page. By default metric and split.
        before (`Figure`, *optional*):
            The base model's result, on the same rows.
        benchmark (`Benchmark`, *optional*):
            The benchmark on the Hub that this is the result of. Its leaderboard then reads the value as it is.
    """

    metric: str = ""
    split: str | None = None
    name: str | None = None
    before: Figure | None = None
    benchmark: Benchmark | None = None

    @property
    def title(self) -> str:
        """Label on the page."""
        return self.name or (f"{self.metric}, {self.split}" if self.split else self.metric)


def read_result(entry: Any, where: str) -> Result:
    """Reads a result from JSON. Raises [`ConsistencyError`] that says `where` it is faulty."""
    if not isinstance(entry, dict) or not isinstance(entry.get("metric"), str) or not entry["metric"].strip():
        raise ConsistencyError(f"{where} must be an object with a `metric`.")
    entry = {**entry, **_read_figure(entry, where)}
    if entry.get("before") is not None:
        if not isinstance(entry["before"], dict):
            raise ConsistencyError(f"{where}: `before` must be an object with a `value`.")
        check_keys(entry["before"], {field.name for field in fields(Figure)}, f"{where}, `before`")
        entry["before"] = before = Figure(**_read_figure(entry["before"], f"{where}, `before`"))
        if None not in (before.total, entry.get("total")) and before.total != entry["total"]:
            raise ConsistencyError(
                f"{where}: `before` is of {before.total} answers, but `total` is {entry['total']}: they cannot be compared."
            )
    check_keys(entry, {field.name for field in fields(Result)}, where)
    if entry.get("benchmark") is not None:
        entry["benchmark"] = _read_benchmark(entry["benchmark"], f"{where}, `benchmark`")
    for key in ("split", "name"):
        if entry.get(key) is not None and not isinstance(entry[key], str):
            raise ConsistencyError(f"{where}: `{key}` must be text, got {entry[key]!r}.")
    result = Result(**entry)
    _check_share(result, where)
    return result


def _check_share(result: Result, where: str) -> None:
    """Raises [`ConsistencyError`] if one of our rates or scores, which are shares, is below 0 or above 1."""
    metric = METRICS.get(result.metric)
    if metric is None or metric.is_gap or metric.is_mean:
        return
    for value in (result.value, result.before.value if result.before else None):
        if value is not None and not 0 <= value <= 1:
            raise ConsistencyError(f"{where}: `{result.metric}` is a share, from 0 to 1, got {value}.")


def _read_benchmark(entry: Any, where: str) -> Benchmark:
    if not isinstance(entry, dict) or not all(isinstance(value, str) and value for value in entry.values()):
        raise ConsistencyError(f"{where} must be an object with the texts `dataset` and `task`, got {entry!r}.")
    check_keys(entry, {field.name for field in fields(Benchmark)}, where)
    for key in ("dataset", "task"):
        if key not in entry:
            raise ConsistencyError(f"{where} must have a `{key}`.")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", entry["dataset"]):
        raise ConsistencyError(f"{where}: `dataset` {entry['dataset']} is not a name on the Hub: write `user/name`.")
    return Benchmark(**entry)


def read_outcomes(entry: Any, where: str) -> Outcomes:
    """Reads counts of outcomes from JSON, as [`read_result`] does."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or "after" not in entry:
        raise ConsistencyError(f"{where} must be an object with a `name` and counts in `after`.")
    check_keys(entry, {field.name for field in fields(Outcomes)}, where)
    for key in ("before", "after"):
        counts = entry.get(key, {})
        if not isinstance(counts, dict) or not all(map(_is_count, counts.values())):
            raise ConsistencyError(f"{where}: `{key}` must hold counts by outcome, got {counts!r}.")
    before, after = (sum(entry.get(key, {}).values()) for key in ("before", "after"))
    if "before" in entry and before != after:
        raise ConsistencyError(
            f"{where}: `before` counts {before} answers and `after` {after}: they are of the same rows."
        )
    return Outcomes(**entry)


def _read_figure(entry: dict[str, Any], where: str) -> dict[str, Any]:
    figure = {field.name: entry[field.name] for field in fields(Figure) if field.name in entry}
    value, interval = figure.get("value"), figure.get("interval")
    if "value" not in figure or not (value is None or _is_number(value)):
        raise ConsistencyError(f"{where} must have a `value`, a finite number or null, got {value!r}.")
    if interval is not None:
        is_pair = isinstance(interval, (list, tuple)) and len(interval) == 2 and all(map(_is_number, interval))
        if not is_pair or interval[0] > interval[1]:
            raise ConsistencyError(f"{where}: `interval` must be two numbers, the lower one first, got {interval!r}.")
        figure["interval"] = tuple(interval)
    figure["unread"] = 0 if figure.get("unread") is None else figure["unread"]
    for count in ("hits", "total", "unread"):
        number = figure.get(count)
        if number is not None and not _is_count(number):
            raise ConsistencyError(f"{where}: `{count}` must be a count, got {figure[count]!r}.")
    hits, total = figure.get("hits"), figure.get("total")
    if hits is not None and total is not None and hits > total:
        raise ConsistencyError(f"{where}: `hits` {hits} is more than the `total` of {total}.")
    if total is not None and (hits or 0) + figure["unread"] > total:
        raise ConsistencyError(
            f"{where}: `hits` and `unread` are more than the `total` of {total}, which counts all answers."
        )
    of_read = figure.get("of_read")
    if of_read is not None and not (_is_number(of_read) and -1 <= of_read <= 1):
        raise ConsistencyError(f"{where}: `of_read` must be a number from -1 to 1, got {figure['of_read']!r}.")
    if value is not None and total is not None and not -1 <= value <= 1:
        raise ConsistencyError(
            f"{where}: with a `total`, `value` is a share, from -1 to 1, got {value}. Leave `total` out if it is none."
        )
    if value is not None and total is not None and hits is not None:
        if not total:
            raise ConsistencyError(f"{where}: `value` is {value}, but `total` says that there are no answers.")
        if abs(value - hits / total) > ROUNDING:
            raise ConsistencyError(
                f"{where}: `value` is {value}, but `hits` {hits} of `total` {total} is {hits / total:.3f}."
            )
    alone = [key for key in ("hits", "unread", "of_read") if figure.get(key)]
    if total is None and alone:
        raise ConsistencyError(f"{where}: `{alone[0]}` is given without a `total`, of which it is a part.")
    read = (total or 0) - figure["unread"]
    if of_read is not None and hits is not None and (not read or abs(of_read - hits / read) > ROUNDING):
        raise ConsistencyError(
            f"{where}: `of_read` is {of_read}, but {hits} of the {read} answers that were read count."
        )
    if value is not None and interval is not None and not interval[0] - ROUNDING <= value <= interval[1] + ROUNDING:
        raise ConsistencyError(f"{where}: the `interval` {list(interval)} does not hold the `value`, {value}.")
    if total is not None and interval is not None and (interval[0] < -1 - ROUNDING or interval[1] > 1 + ROUNDING):
        raise ConsistencyError(
            f"{where}: with a `total`, the `interval` is of a share, from -1 to 1, got {list(interval)}."
        )
    if value is None and total:
        raise ConsistencyError(f"{where}: `value` is null, but `total` says that there are {total} answers.")
    # Without a value, the interval must be the full range: from 0, or for a difference from -1, to 1.
    if value is None and interval is not None and (interval[0] > 0 or interval[1] < 1):
        raise ConsistencyError(f"{where}: `interval` {list(interval)} has no `value`.")
    return figure


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_keys(entry: dict[str, Any], known: set[str], where: str) -> None:
    """Raises [`ConsistencyError`] if an object in JSON has a key that is not `known`."""
    unknown = sorted(set(entry) - known)
    if unknown:
        raise ConsistencyError(f"{where}: unknown key `{unknown[0]}`; known are {', '.join(sorted(known))}.")

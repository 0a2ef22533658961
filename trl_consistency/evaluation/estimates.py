"""Rates over rows that come in groups, their functions and differences, and the intervals of all of these."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np


# Whether an answer has a property, or why that cannot be said: it could not be read, the judge abstained, or the judge's
# own reply could not be read.
Missing: TypeAlias = Literal["unparsed", "abstained", "unjudged"]
Outcome: TypeAlias = bool | Missing

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """
    A rate, a function of rates, or a difference between two models, with its 95% interval.

    Args:
        value (`float`):
            The figure; NaN when nothing was judged.
        interval (`tuple[float, float]`):
            Its 95% interval.
        total (`int`):
            Judged answers; of figures that compare answers, comparisons of which both could be judged.
        sources (`int`):
            Groups (`source_id`) that these come from, which is what the interval rests on.
        hits (`int`, *optional*):
            Of a rate, the judged answers that have the property.
        unparsed (`int`, *optional*, defaults to `0`):
            Answers that could not be read. Like the next two, they are neither in `hits` nor in `total`.
        abstained (`int`, *optional*, defaults to `0`):
            Answers on which the judge abstained.
        unjudged (`int`, *optional*, defaults to `0`):
            Answers of which the judge's reply could not be read, or did not come.
    """

    value: float
    interval: tuple[float, float]
    total: int
    sources: int
    hits: int | None = None
    unparsed: int = 0
    abstained: int = 0
    unjudged: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: None in its place."""
        figures = asdict(self)
        low, high = figures.pop("interval")
        return {**figures, "value": None if math.isnan(self.value) else self.value, "low": low, "high": high}

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> "Estimate":
        """The estimate of which [`Estimate.to_dict`] made these figures."""
        figures = dict(figures)
        interval = (figures.pop("low"), figures.pop("high"))
        value = math.nan if figures["value"] is None else figures["value"]
        return cls(**{**figures, "value": value, "interval": interval})

    def __str__(self) -> str:
        if not self.total:
            text = "n/a (0/0)"
        else:
            low, high = self.interval
            counts = f"{self.hits}/{self.total}" if self.hits is not None else f"n={self.total}"
            text = f"{100 * self.value:.1f}% [{100 * low:.1f}, {100 * high:.1f}] ({counts})"
        missing = {name: getattr(self, name) for name in ("unparsed", "abstained", "unjudged")}
        return ", ".join([text, *(f"{count} {name}" for name, count in missing.items() if count)])


@dataclass(frozen=True)
class Sample:
    """
    The outcomes of one property, answer by answer.

    Args:
        outcomes (`Sequence[bool | str]`):
            Whether each answer has it, or why that cannot be said.
        sources (`Sequence[str]`):
            The group that each answer belongs to: those of one group are not independent.
    """

    outcomes: Sequence[Outcome]
    sources: Sequence[str]

    def values(self) -> np.ndarray:
        """1 or 0 for each answer, NaN where it could not be judged."""
        return np.array([float(o) if isinstance(o, bool) else math.nan for o in self.outcomes], dtype=float)


def estimate(
    samples: Sequence[Sample],
    function: Callable[..., float] = lambda rate: rate,
    aligned: Sequence[Sequence[int]] = (),
    span: tuple[float, float] = (0.0, 1.0),
) -> Estimate:
    """
    Estimates a function of rates, from answers that are correlated within a source and across samples.

    Each rate gets a Wilson interval at its effective sample size `p(1 - p) / v`, where `v` is the cluster-robust
    (sandwich) variance over sources; where all judged answers are alike nothing shows how they correlate within a source,
    and each source counts as one. A function of several rates gets the interval that Newcombe's method for paired
    proportions gives to a difference: each rate is moved to whichever of its limits makes the function worse, and the
    distances are added up as correlated errors. Without sources of several rows and for two rates it is that method.

    Args:
        samples (`Sequence[Sample]`):
            One a rate.
        function (`Callable`, *optional*):
            Takes the rates, in that order; monotonic in each. By default the rate of the one sample.
        aligned (`Sequence[Sequence[int]]`, *optional*):
            Samples that are compared answer by answer: an answer that one of them lacks is left out of all.
        span (`tuple[float, float]`, *optional*, defaults to `(0.0, 1.0)`):
            Least and greatest possible value.

    Returns:
        [`Estimate`]: The figure with its interval and counts.
    """
    from scipy.stats import t  # slow to import, and an extra (`trl-consistency[eval]`)

    values = [sample.values() for sample in samples]
    lost = [np.isnan(of_sample) for of_sample in values]
    for group in aligned:
        together = np.logical_or.reduce([lost[index] for index in group])
        for index in group:
            lost[index] = together
    codes = {source: code for code, source in enumerate(sorted({s for sample in samples for s in sample.sources}))}
    keep = [~of_sample for of_sample in lost]
    values = [of_sample[kept] for of_sample, kept in zip(values, keep, strict=True)]
    clusters = [
        np.array([codes[source] for source in sample.sources], dtype=int)[kept]
        for sample, kept in zip(samples, keep, strict=True)
    ]
    counts = _counts(samples, aligned, lost)
    sources = len(set(np.concatenate(clusters).tolist())) if clusters else 0
    if any(not len(of_sample) for of_sample in values):
        return Estimate(math.nan, span, 0, sources, 0 if len(samples) == 1 else None, **counts)
    rates = np.array([of_sample.mean() for of_sample in values])
    value = float(function(*rates))
    total = min(map(len, values))
    hits = int(values[0].sum()) if len(samples) == 1 else None
    if sources < 2:
        return Estimate(value, span, total, sources, hits, **counts)

    # errors[i, g]: what source g moves rate i by
    errors = np.stack(
        [
            np.bincount(of_source, of_sample - rate, minlength=len(codes)) / len(of_sample)
            for of_sample, of_source, rate in zip(values, clusters, rates, strict=True)
        ]
    )
    covariance = errors @ errors.T * sources / (sources - 1)
    deviation = np.sqrt(np.diag(covariance))
    scale = np.where(deviation > 0, deviation, 1.0)
    correlation = covariance / np.outer(scale, scale)
    # As Newcombe's correction: answers that happen to be the same do not show that the rates are.
    correlation = np.clip(correlation, 2 / sources - 1, 1 - 2 / sources)
    np.fill_diagonal(correlation, 1.0)
    limits = []
    for rate, of_sample, of_source, variance in zip(rates, values, clusters, np.diag(covariance), strict=True):
        groups = len(set(of_source.tolist()))
        size = min(len(of_sample), rate * (1 - rate) / variance) if variance > 0 else groups
        limits.append(_wilson(rate, size, float(t.ppf((1 + LEVEL) / 2, max(groups - 1, 1)))))

    bounds = []
    for direction in (-1, 1):
        shifts = []
        for index, of_rate in enumerate(limits):
            # The limit of this rate that moves the function furthest in this direction, and which way the rate goes.
            moved = [float(function(*np.where(np.arange(len(rates)) == index, limit, rates))) for limit in of_rate]
            side = int(np.argmax([direction * figure for figure in moved]))
            shifts.append((-1, 1)[side] * abs(moved[side] - value))
        shift = math.sqrt(max(float(np.array(shifts) @ correlation @ np.array(shifts)), 0.0))
        bounds.append(min(max(value + direction * shift, span[0]), span[1]))
    return Estimate(value, (bounds[0], bounds[1]), total, sources, hits, **counts)


def _wilson(rate: float, size: float, quantile: float) -> tuple[float, float]:
    z = quantile**2
    middle = (rate + z / (2 * size)) / (1 + z / size)
    half = quantile * math.sqrt(rate * (1 - rate) / size + z / (4 * size**2)) / (1 + z / size)
    return min(middle - half, rate), max(middle + half, rate)


def _counts(samples: Sequence[Sample], aligned: Sequence[Sequence[int]], lost: Sequence[np.ndarray]) -> dict[str, int]:
    """Why answers are left out; of those that are compared, the first sample that lacks one says why."""
    counts: dict[str, int] = dict.fromkeys(("unparsed", "abstained", "unjudged"), 0)
    grouped = {index for group in aligned for index in group}
    for group in [*aligned, *([index] for index in range(len(samples)) if index not in grouped)]:
        for place in np.flatnonzero(lost[group[0]]).tolist():
            reasons = [samples[index].outcomes[place] for index in group]
            counts[next(str(reason) for reason in reasons if not isinstance(reason, bool))] += 1
    return counts

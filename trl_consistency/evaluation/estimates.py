"""The one place that makes intervals: of rates over rows that come in groups, of their functions and differences."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np


# Why an answer is unread: it names no possible answer, or the right and the suggested one; the judge could not tell, or gave
# no verdict.
Unread: TypeAlias = Literal["unparsed", "names both", "abstained", "unjudged"]
UNREAD_KINDS: tuple[Unread, ...] = ("unparsed", "names both", "abstained", "unjudged")

# Whether an answer has a property, or why it could not be read.
Property: TypeAlias = bool | Unread

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """
    A rate of all rows, a function of such rates, or a difference between two models, with its 95% interval.

    Args:
        value (`float`):
            The figure. An answer that could not be read does not have the property.
        interval (`tuple[float, float]`, *optional*):
            Its 95% interval; None where it was not asked for.
        total (`int`):
            Answers; of figures that are made of several rates, rows.
        sources (`int`):
            Groups (`source_id`) that these come from, which is what the interval rests on.
        hits (`int`, *optional*):
            The answers that have the property, if the figure is a rate.
        unread (`dict[str, int]`, *optional*):
            How many of `total` could not be read, by the reason: `"unparsed"`, `"names both"`, `"abstained"`,
            `"unjudged"`. A row with several unread answers counts once, by the first reason.
        of_read ([`Estimate`], *optional*):
            The same rate of what could be read alone; None where everything was read, or nothing.
        unit (`str`, *optional*, defaults to `"%"`):
            How it is printed: `"pp"` for a difference of two models, in percentage points.
    """

    value: float
    interval: tuple[float, float] | None
    total: int
    sources: int
    hits: int | None = None
    unread: Mapping[str, int] = field(default_factory=dict)
    of_read: "Estimate | None" = None
    unit: str = "%"

    @property
    def unread_total(self) -> int:
        return sum(self.unread.values())

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = asdict(self)
        low, high = figures.pop("interval") or (None, None)
        of_read = figures.pop("of_read")
        if self.of_read is not None:
            of_read = {
                key: value for key, value in self.of_read.to_dict().items() if key not in ("unread", "of_read", "unit")
            }
        return {**figures, "unread": dict(self.unread), "low": low, "high": high, "of_read": of_read}

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> "Estimate":
        """Returns the estimate that [`Estimate.to_dict`] made these figures of."""
        figures = dict(figures)
        low, high = figures.pop("low"), figures.pop("high")
        of_read = figures.pop("of_read", None)
        return cls(
            **figures,
            interval=None if low is None else (low, high),
            of_read=None if of_read is None else cls.from_dict(of_read),
        )

    def __str__(self) -> str:
        """`75.0% [68.6, 80.5] (150/200), 50 unread; 100.0% of 150 read`."""
        text = f"{100 * self.value:.1f}{self.unit}"
        if self.interval is not None:
            text += " [{:.1f}, {:.1f}]".format(*(100 * bound for bound in self.interval))
        text += f" (n={self.total})" if self.hits is None else f" ({self.hits}/{self.total})"
        if self.unread:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.unread.items() if kind != "unparsed")
            text += f", {self.unread_total} unread{f' ({kinds})' if kinds else ''}"
        if self.of_read is not None:
            text += f"; {100 * self.of_read.value:.1f}{self.unit} of {self.of_read.total} read"
        return text


@dataclass(frozen=True)
class Sample:
    """
    Answers, and whether each has one property.

    Args:
        outcomes (`Sequence[bool | str]`):
            Whether each answer has it, or why it could not be read.
        sources (`Sequence[str]`):
            The group that each answer belongs to: those of one group are not independent.
        rows (`Sequence[int]`, *optional*):
            The row that each answer belongs to. By default each answer is a row of its own.
    """

    outcomes: Sequence[Property]
    sources: Sequence[str]
    rows: Sequence[int] | None = None

    def values(self) -> np.ndarray:
        """1 for each answer that has the property, 0 for the others, unread ones among them."""
        return np.array([float(outcome is True) for outcome in self.outcomes])

    def read(self) -> "Sample":
        """The answers that could be read."""
        kept = [index for index, outcome in enumerate(self.outcomes) if isinstance(outcome, bool)]
        return Sample([self.outcomes[index] for index in kept], [self.sources[index] for index in kept])

    def unread_rows(self) -> dict[int, str]:
        """Why answers could not be read, by their row."""
        rows = range(len(self.outcomes)) if self.rows is None else self.rows
        found: dict[int, str] = {}
        for row, outcome in zip(rows, self.outcomes, strict=True):
            if not isinstance(outcome, bool):
                found.setdefault(row, outcome)
        return found


def estimate(
    samples: Sequence[Sample],
    function: Callable[..., float] = lambda rate: rate,
    span: tuple[float, float] = (0.0, 1.0),
    with_interval: bool = True,
) -> Estimate:
    """
    Estimates a function of rates, from answers that are correlated within a source and across samples.

    Each rate gets a Wilson interval at its effective sample size `p(1 - p) / v`, where `v` is the cluster-robust
    (sandwich) variance over sources; where all answers are alike nothing shows how they correlate within a source, and each
    source counts as one. A function of several rates gets the interval that Newcombe's method for paired
    proportions gives to a difference: each rate is moved to whichever of its limits makes the function worse, and the
    distances are added up as correlated errors. Without sources of several rows and for two rates it is that method.

    Args:
        samples (`Sequence[Sample]`):
            One a rate.
        function (`Callable`, *optional*):
            Takes the rates, in that order; monotonic in each. By default the rate of the one sample.
        span (`tuple[float, float]`, *optional*, defaults to `(0.0, 1.0)`):
            Least and greatest possible value.
        with_interval (`bool`, *optional*, defaults to `True`):
            Whether to make the interval, which needs SciPy (`trl-consistency[eval]`).

    Returns:
        [`Estimate`]: The figure with its interval and counts.
    """
    values = [sample.values() for sample in samples]
    codes = {source: code for code, source in enumerate(sorted({s for sample in samples for s in sample.sources}))}
    clusters = [np.array([codes[source] for source in sample.sources], dtype=int) for sample in samples]
    rates = np.array([of_sample.mean() for of_sample in values])
    value = float(function(*rates))
    found = _counted(value, samples, len(codes), function, with_interval)
    if not with_interval:
        return found
    if len(codes) < 2:
        return replace(found, interval=span)
    from scipy.stats import t  # slow to import, and an extra (`trl-consistency[eval]`)

    # errors[i, g]: what source g moves rate i by
    errors = np.stack(
        [
            np.bincount(of_source, of_sample - rate, minlength=len(codes)) / len(of_sample)
            for of_sample, of_source, rate in zip(values, clusters, rates, strict=True)
        ]
    )
    covariance = errors @ errors.T * len(codes) / (len(codes) - 1)
    deviation = np.sqrt(np.diag(covariance))
    scale = np.where(deviation > 0, deviation, 1.0)
    correlation = covariance / np.outer(scale, scale)
    # As Newcombe's correction: answers that happen to be the same do not show that the rates are.
    correlation = np.clip(correlation, 2 / len(codes) - 1, 1 - 2 / len(codes))
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
    return replace(found, interval=(bounds[0], bounds[1]))


def outcomes_text(counts: Mapping[str, int]) -> str:
    """`145 right, 8 other, 91 unread`: the outcomes that occur, `0 unread` among them."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count or outcome == "unread")


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95% interval of a mean of independent values that are no shares; None of fewer than two."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def normal_interval(value: float, standard_error: float) -> tuple[float, float]:
    """The 95% interval of a figure with a known standard error."""
    return value - 1.96 * standard_error, value + 1.96 * standard_error


def _wilson(rate: float, size: float, quantile: float) -> tuple[float, float]:
    z = quantile**2
    middle = (rate + z / (2 * size)) / (1 + z / size)
    half = quantile * math.sqrt(rate * (1 - rate) / size + z / (4 * size**2)) / (1 + z / size)
    return min(middle - half, rate), max(middle + half, rate)


def _counted(
    value: float,
    samples: Sequence[Sample],
    sources: int,
    function: Callable[..., float],
    with_interval: bool,
) -> Estimate:
    """The figure with its counts: of answers if it is a rate, of rows if it is made of several."""
    if len(samples) == 1:
        (sample,) = samples
        reasons: list[str] = [outcome for outcome in sample.outcomes if not isinstance(outcome, bool)]
        total, read = len(sample.outcomes), sample.read()
        is_second = bool(reasons) and bool(read.outcomes)
        of_read = estimate([read], function, with_interval=with_interval) if is_second else None
        hits = sum(outcome is True for outcome in sample.outcomes)
    else:
        by_row: dict[int, str] = {}
        for sample in reversed(samples):
            by_row |= sample.unread_rows()
        reasons = list(by_row.values())
        total = len(
            {
                row
                for sample in samples
                for row in (range(len(sample.outcomes)) if sample.rows is None else sample.rows)
            }
        )
        of_read = hits = None
    counts = Counter(reasons)
    unread: dict[str, int] = {kind: counts[kind] for kind in UNREAD_KINDS if counts[kind]}
    return Estimate(value, None, total, sources, hits, unread, of_read)

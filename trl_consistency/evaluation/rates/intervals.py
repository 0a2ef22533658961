"""Confidence intervals of rates over clustered rows, and of functions and differences of such rates."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from ...errors import ConsistencyError
from ..row_kinds import UNREAD_KINDS, Unread


# Whether an answer has a property, or why it could not be read.
Property: TypeAlias = bool | Unread

LEVEL = 0.95
# Units of means that are no shares: of margins, and of texts
NATS, NATS_PER_TOKEN = "nats", "nats per token"
DIGITS = {NATS: 2, NATS_PER_TOKEN: 3}
# Of fewer sources of equal sizes, a share's change from all to none is within its interval
FEWEST_SOURCES = 4.1


@dataclass(frozen=True)
class Estimate:
    """
    A rate over all rows, a function of such rates, or a difference between two models, with its 95% interval.

    Args:
        value (`float`):
            The estimate. Unread answers count as not having the property.
        interval (`tuple[float, float]`, *optional*):
            Its 95% interval; None if it was not requested.
        total (`int`):
            Number of answers; for a function of several rates, number of rows.
        sources (`int`):
            Number of groups (`source_id`) that the rows come from. The interval depends on it.
        hits (`int`, *optional*):
            Number of answers that have the property, if the estimate is a rate.
        unread (`dict[str, int]`, *optional*):
            How many of `total` could not be read, by the reason: `"unparsed"`, `"names both"`, `"abstained"`,
            `"unjudged"`, `"both other"`. A row with several unread answers counts once, by the first reason.
        of_read ([`Estimate`], *optional*):
            The same rate over the answers that could be read; None if that is all answers, or none.
        unit (`str`, *optional*, defaults to `"%"`):
            Unit for printing: `"pp"` (percentage points) for a difference between two models, `"nats"` for a margin,
            `"nats per token"` for texts.
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
        """Number of answers that could not be read, for any reason."""
        return sum(self.unread.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns the estimate in a form for JSON."""
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
        """Returns the estimate from the result of [`Estimate.to_dict`]."""
        figures = dict(figures)
        low, high = figures.pop("low"), figures.pop("high")
        of_read = figures.pop("of_read", None)
        return cls(
            **figures,
            interval=None if low is None else (low, high),
            of_read=None if of_read is None else cls.from_dict(of_read),
        )

    def __str__(self) -> str:
        """Formats the estimate: `75.0% [68.5, 80.5] (150/200), 50 unread; 100.0% of 150 read`."""
        if self.unit in DIGITS:
            low, high = self.interval or (None, None)
            value, *bounds = (f"{of:.{DIGITS[self.unit]}f}" for of in (self.value, low, high) if of is not None)
            interval = f" [{', '.join(bounds)}]" if bounds else ""
            return f"{value} {self.unit}{interval} (n={self.total})"
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
            Whether each answer has the property, or why it could not be read.
        sources (`Sequence[str]`):
            The group of each answer. Answers of one group are not independent.
        rows (`Sequence[int]`, *optional*):
            The row of each answer. By default each answer is its own row.

    Raises:
        [`ConsistencyError`]: If an outcome is something else, such as 1, or an answer has no source.
    """

    outcomes: Sequence[Property]
    sources: Sequence[str]
    rows: Sequence[int] | None = None

    def __post_init__(self) -> None:
        outcomes = [bool(outcome) if isinstance(outcome, np.bool_) else outcome for outcome in self.outcomes]
        object.__setattr__(self, "outcomes", outcomes)
        if other := [of for of in outcomes if not (isinstance(of, bool) or of in UNREAD_KINDS)]:
            known = ", ".join(map(repr, (True, False, *UNREAD_KINDS)))
            raise ConsistencyError(
                f"An outcome must be one of {known}, got {other[0]!r}. Of a number, write `bool(...)`."
            )
        for name, given in (("source", self.sources), ("row", self.numbers())):
            if len(given) != len(outcomes):
                raise ConsistencyError(f"{len(outcomes)} outcome(s) have {len(given)} {name}(s): give one for each.")

    def numbers(self) -> Sequence[int]:
        """Returns the row of each answer."""
        return range(len(self.outcomes)) if self.rows is None else self.rows

    def values(self) -> np.ndarray:
        """Returns 1 for each answer that has the property, and 0 for all others, including unread ones."""
        return np.array([float(outcome is True) for outcome in self.outcomes])

    def read(self) -> "Sample":
        """Returns the sample of the answers that could be read."""
        kept = [index for index, outcome in enumerate(self.outcomes) if isinstance(outcome, bool)]
        return Sample([self.outcomes[index] for index in kept], [self.sources[index] for index in kept])

    def unread_rows(self) -> dict[int, str]:
        """Returns why answers could not be read, by row."""
        found: dict[int, str] = {}
        for row, outcome in zip(self.numbers(), self.outcomes, strict=True):
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
    Estimates a function of rates from answers that are correlated within a source and across samples.

    Each rate gets a Wilson interval at its effective sample size, which is the smaller of two. One is `p(1 - p) / v`, where
    `v` is the jackknife's variance over sources (CR3). The other is `N / (1 + r(Σ n² / N - 1))`, where `n` is the number of
    answers of each source, `N` their sum, and `r` the mean correlation within sources under a beta-binomial distribution.
    It matters near rates of 0 and 1, where the sources that are unlike the others may all be missing in the sample. If all
    sources have the same rate, as where all answers are the same, each source counts as one answer.

    The quantile is Student's for the number of sources, and not the normal one. Sources of unequal sizes count as fewer:
    as `N² / Σ n²` of equal ones. With a single source, the interval is the whole `span`.

    For a function of several rates, the interval generalises Newcombe's method for paired proportions: each rate is
    moved to the limit that shifts the function furthest towards a bound, and the shifts are added as correlated
    errors. For the difference of two rates with one row per source, this is Newcombe's method. His correction, by which
    rates are less than perfectly correlated, counts rows of one source by how alike their differences are. If neither of
    two rates moves the function alone, as in a harmonic mean of zeros, they are moved together.

    Sources: Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Newcombe, "Improved
    confidence intervals for the difference between binomial proportions based on paired data", Statistics in Medicine
    17, 1998; Kish, "Survey Sampling", 1965, for the number of answers that count; Skellam, "A probability distribution
    derived from the binomial distribution by regarding the probability of success as variable", 1948.

    Args:
        samples (`Sequence[Sample]`):
            One sample for each rate.
        function (`Callable`, *optional*):
            Function of the rates, in the order of `samples`, monotonic in each. By default the rate of the one sample.
        span (`tuple[float, float]`, *optional*, defaults to `(0.0, 1.0)`):
            Smallest and largest possible value.
        with_interval (`bool`, *optional*, defaults to `True`):
            Whether to compute the interval, which needs SciPy (`trl-consistency[eval]`).

    Returns:
        [`Estimate`]: The estimate with its interval and counts.

    Raises:
        [`ConsistencyError`]: If a sample has no answers, or the value is outside `span`.
    """
    if not samples or any(len(sample.outcomes) == 0 for sample in samples):
        raise ConsistencyError("A sample has no answers, so that there is no rate to estimate. Leave it out.")
    values = [sample.values() for sample in samples]
    codes = {source: code for code, source in enumerate(sorted({s for sample in samples for s in sample.sources}))}
    clusters = [np.array([codes[source] for source in sample.sources], dtype=int) for sample in samples]
    rates = np.array([of_sample.mean() for of_sample in values])
    value = float(function(*rates))
    found = _counted(value, samples, len(codes), function, with_interval)
    if not with_interval:
        return found
    if value < span[0] - 1e-9 or value > span[1] + 1e-9:
        raise ConsistencyError(
            f"The function's value is {value:g}, outside `span` {span}, which bounds the interval. Set `span` to its smallest and largest "
            "possible value: (-1, 1) for a difference."
        )
    if len(codes) < 2:
        return replace(found, interval=span)
    from scipy.stats import t  # slow to import, and optional (`trl-consistency[eval]`)

    # errors[i, g]: by how much rate i changes without source g. Of whole numbers, since rounding is no spread.
    counts = np.stack([np.bincount(of_source, minlength=len(codes)) for of_source in clusters])
    hits = np.stack([np.bincount(of_source, of, len(codes)) for of_source, of in zip(clusters, values, strict=True)])
    totals = counts.sum(axis=1, keepdims=True)
    errors = (hits * totals - counts * hits.sum(axis=1, keepdims=True)) / (totals * np.maximum(totals - counts, 1))
    groups, equal_groups = (counts > 0).sum(axis=1), counts.sum(axis=1) ** 2 / (counts**2).sum(axis=1)
    factor = np.sqrt((groups - 1) / groups)
    covariance = errors @ errors.T * np.outer(factor, factor)
    deviation = np.sqrt(np.diag(covariance))
    scale = np.where(deviation > 0, deviation, 1.0)
    correlation = covariance / np.outer(scale, scale)
    # Like Newcombe's correction: equal answers in a finite sample do not show perfectly correlated rates.
    most = 1 - 2 / (
        len(codes) if equal_groups.min() < FEWEST_SOURCES else _sizes_of_changes(samples, clusters, len(codes))
    )
    correlation = np.clip(correlation, -most, most)
    np.fill_diagonal(correlation, 1.0)
    limits = []
    for index, (rate, variance, of_sources) in enumerate(zip(rates, np.diag(covariance), equal_groups, strict=True)):
        by_jackknife = rate * (1 - rate) / variance if variance > 0 else of_sources
        size = min(by_jackknife, beta_binomial_size(hits[index], counts[index]))
        limits.append(wilson(rate, size, float(t.ppf((1 + LEVEL) / 2, max(of_sources - 1, 1)))))

    bounds = []
    for direction in (-1, 1):
        shifts = []
        for index, of_rate in enumerate(limits):
            # The limit of this rate that moves the function furthest in this direction; its side signs the shift.
            moved = [float(function(*np.where(np.arange(len(rates)) == index, limit, rates))) for limit in of_rate]
            side = int(np.argmax([direction * figure for figure in moved]))
            shifts.append((-1, 1)[side] * abs(moved[side] - value))
        _shift_together(shifts, limits, rates, function, value, direction)
        shift = math.sqrt(max(float(np.array(shifts) @ correlation @ np.array(shifts)), 0.0))
        bounds.append(min(max(value + direction * shift, span[0]), span[1]))
    return replace(found, interval=(bounds[0], bounds[1]))


def effective_sources(sources: Sequence[str]) -> float:
    """Returns Kish's effective number of sources, `N² / Σ n²`: as many of equal sizes count the same."""
    counts = Counter(sources).values()
    return float(sum(counts) ** 2 / sum(count**2 for count in counts))


def beta_binomial_size(hits: np.ndarray, counts: np.ndarray) -> float:
    """Returns how many independent answers the answers of sources count as, by the mean of their correlation's likelihood."""
    from scipy.special import betaln, softmax

    total = counts.sum()
    largest = (counts**2).sum() / total  # as many answers count as one if all answers of a source are alike
    if largest == 1:
        return float(total)
    rate = (hits.sum() + largest / 2) / (total + largest)  # as with one more source, of which a half is right
    steps = (np.arange(64) + 0.5) / 64
    correlation = steps**3  # dense near 0
    alpha, beta = rate * (1 / correlation - 1), (1 - rate) * (1 / correlation - 1)
    log_likelihood = np.zeros(len(steps))
    for (of_source, hit), number in Counter(zip(counts.tolist(), hits.tolist(), strict=True)).items():
        log_likelihood += number * (betaln(alpha + hit, beta + of_source - hit) - betaln(alpha, beta))
    mean = softmax(log_likelihood + 2 * np.log(steps)) @ correlation  # all correlations are equally likely beforehand
    return float(total / (1 + mean * (largest - 1)))


def _sizes_of_changes(samples: Sequence[Sample], clusters: Sequence[np.ndarray], sources: int) -> np.ndarray:
    """
    Returns how many independent rows tell of each two samples how alike they are: as many as the rows that differ between them
    count as, if both have the same rows, and else the sources.
    """
    sizes = np.full((len(samples), len(samples)), float(sources))
    for first, second in combinations(range(len(samples)), 2):
        one, other = samples[first], samples[second]
        if list(one.numbers()) == list(other.numbers()) and (clusters[first] == clusters[second]).all():
            counts = np.bincount(clusters[first], minlength=sources)
            changed = np.bincount(clusters[first], one.values() != other.values(), sources).astype(int)
            size = max(sources, beta_binomial_size(changed[counts > 0], counts[counts > 0]))
            sizes[first, second] = sizes[second, first] = size
    return sizes


def _shift_together(
    shifts: list[float],
    limits: Sequence[tuple[float, float]],
    rates: np.ndarray,
    function: Callable[..., float],
    value: float,
    direction: int,
) -> None:
    """If neither of two rates moves the function alone, gives the first one the shift that both make together."""
    for first, second in combinations(range(len(rates)), 2):
        if shifts[first] or shifts[second]:
            continue
        moved = []
        for side in (0, 1):
            together = rates.copy()
            together[[first, second]] = limits[first][side], limits[second][side]
            moved.append(float(function(*together)))
        side = int(np.argmax([direction * figure for figure in moved]))
        shifts[first] = (-1, 1)[side] * abs(moved[side] - value)


@dataclass(frozen=True)
class Values:
    """
    Numbers, such as margins in nats.

    Args:
        values (`Sequence[float]`):
            The numbers.
        sources (`Sequence[str]`):
            The group of each. Numbers of one group are not independent.
        weights (`Sequence[float]`, *optional*):
            The weight of each in the mean. By default all are alike.
    """

    values: Sequence[float]
    sources: Sequence[str]
    weights: Sequence[float] | None = None

    def minus(self, other: "Values") -> "Values":
        """Returns the differences from other values of the same rows."""
        return replace(self, values=[one - base for one, base in zip(self.values, other.values, strict=True)])


def estimate_mean(values: Values, with_interval: bool = True, unit: str = NATS) -> Estimate:
    """
    Estimates the mean of numbers in nats. Its interval has the jackknife's variance over sources (CR3), and Student's quantile
    for their number; sources of unequal weights count as fewer, as in [`estimate`]. Of one source there is none.
    """
    numbers = np.array(values.values, dtype=float)
    weights = np.ones(len(numbers)) if values.weights is None else np.array(values.weights, dtype=float)
    shares = weights / weights.sum()
    mean, sources = float(shares @ numbers), sorted(set(values.sources))
    found = Estimate(mean, None, len(numbers), len(sources), unit=unit)
    if not with_interval or len(sources) < 2:
        return found
    from scipy.stats import t  # slow to import, and optional (`trl-consistency[eval]`)

    codes = {source: code for code, source in enumerate(sources)}
    of_source = [codes[source] for source in values.sources]
    held = np.bincount(of_source, shares)
    others = 1 - held
    errors = np.bincount(of_source, shares * (numbers - mean)) / np.where(others > 1e-12, others, np.inf)
    variance = float(errors @ errors) * (len(sources) - 1) / len(sources)
    half = float(t.ppf((1 + LEVEL) / 2, max(1 / (held @ held) - 1, 1))) * math.sqrt(variance)
    return replace(found, interval=(mean - half, mean + half))


def outcomes_text(counts: Mapping[str, int]) -> str:
    """Formats the outcomes that occur, and always `unread`: `145 right, 8 other, 0 unread`."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count or outcome == "unread")


def normal_interval(value: float, standard_error: float) -> tuple[float, float]:
    """Returns the 95% interval of an estimate with a known standard error."""
    return value - 1.96 * standard_error, value + 1.96 * standard_error


def wilson(rate: float, size: float, quantile: float) -> tuple[float, float]:
    """Returns Wilson's interval of a rate of `size` answers."""
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
    """Returns the estimate with its counts: of answers for one rate, of rows for a function of several."""
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
        total = len({row for sample in samples for row in sample.numbers()})
        of_read = hits = None
    counts = Counter(reasons)
    unread: dict[str, int] = {kind: counts[kind] for kind in UNREAD_KINDS if counts[kind]}
    return Estimate(value, None, total, sources, hits, unread, of_read)

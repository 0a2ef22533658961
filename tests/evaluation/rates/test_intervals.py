import json
import math
import random
import sys

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import betabinom, norm, t, ttest_1samp

from trl_consistency import ConsistencyError
from trl_consistency.evaluation.rates.intervals import Estimate, Sample, Values, estimate, estimate_mean
from trl_consistency.evaluation.rates.measures import harmonic_mean


def sources(groups, rows=1):
    return [f"source {group}" for group in range(groups) for _ in range(rows)]


def wilson(rate, size, quantile):
    middle = (rate + quantile**2 / (2 * size)) / (1 + quantile**2 / size)
    half = quantile / (1 + quantile**2 / size) * math.sqrt(rate * (1 - rate) / size + quantile**2 / (4 * size**2))
    return middle - half, middle + half


def students_interval(numbers):
    interval = ttest_1samp(numbers, 0).confidence_interval()
    return interval.low, interval.high


def test_counts():
    """Unread answers count as answers without the property; the rate of the others stands beside."""
    outcomes = [True, "unparsed", False, True, "abstained", "unjudged", True, "names both"]
    found = estimate([Sample(outcomes, sources(8))])
    assert (found.hits, found.total, found.sources, found.value) == (3, 8, 8, 3 / 8)
    assert found.unread == {"unparsed": 1, "names both": 1, "abstained": 1, "unjudged": 1}
    assert (found.of_read.hits, found.of_read.total, found.of_read.value) == (3, 4, 0.75)
    assert found.of_read.interval == estimate([Sample([True, False, True, True], sources(4))]).interval
    assert str(found).endswith("(3/8), 4 unread (1 names both, 1 abstained, 1 unjudged); 75.0% of 4 read")
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_more_unread_answers_never_raise_a_rate():
    for lost in range(1, 10):
        fewer, more = ([True] * (20 - n) + ["unparsed"] * n + [False] * 5 for n in (lost - 1, lost))
        assert estimate([Sample(more, sources(25))]).value < estimate([Sample(fewer, sources(25))]).value


@pytest.mark.parametrize("hits", [1, 4, 19])
def test_one_rate_without_groups_is_wilson(hits):
    """One row a source: the Wilson interval, with Student's quantile and the one degree of freedom that the variance costs."""
    found = estimate([Sample([True] * hits + [False] * (20 - hits), sources(20))])
    assert found.interval == pytest.approx(wilson(hits / 20, 19, t.ppf(0.975, 19)))


def test_one_rate_with_groups():
    """The variance of the mean over clusters, by hand: cluster sums 3, 0, 1, 2 of 3 rows each."""
    outcomes = [True, True, True, False, False, False, True, False, False, True, True, False]
    found = estimate([Sample(outcomes, sources(4, 3))])
    variance = sum((total - 1.5) ** 2 for total in (3, 0, 1, 2)) / 12**2 * 4 / 3
    assert found.interval == pytest.approx(wilson(0.5, 0.25 / variance, t.ppf(0.975, 3)))
    assert (found.total, found.sources) == (12, 4)


def test_alike_within_sources_counts_once():
    """Copies of a row are no evidence."""
    outcomes = [True, False, False, True, False, True, False, False]
    copies = [outcome for outcome in outcomes for _ in range(5)]
    once, copied = estimate([Sample(outcomes, sources(8))]), estimate([Sample(copies, sources(8, 5))])
    assert copied.interval == pytest.approx(once.interval)
    all_alike = estimate([Sample([True] * 40, sources(8, 5))])
    assert all_alike.interval == pytest.approx((wilson(1, 8, t.ppf(0.975, 7))[0], 1))


def test_difference_is_newcombes():
    """Newcombe (1998), method 10, on a two-by-two table of paired answers."""
    table = {(True, True): 20, (True, False): 12, (False, True): 4, (False, False): 24}
    pairs = [pair for pair, count in table.items() for _ in range(count)]
    random.Random(0).shuffle(pairs)
    first, second = (list(side) for side in zip(*pairs, strict=True))
    found = estimate([Sample(first, sources(60)), Sample(second, sources(60))], lambda a, b: b - a, (-1.0, 1.0))
    p, q = 32 / 60, 24 / 60
    phi = (20 * 24 - 12 * 4) / math.sqrt(32 * 28 * 24 * 36)
    (low_p, high_p), (low_q, high_q) = (wilson(rate, 59, t.ppf(0.975, 59)) for rate in (p, q))

    def distance(of_p, of_q):
        return math.sqrt(of_p**2 - 2 * phi * of_p * of_q + of_q**2)

    assert found.value == pytest.approx(q - p)
    assert found.interval == pytest.approx(
        (q - p - distance(high_p - p, q - low_q), q - p + distance(p - low_p, high_q - q))
    )
    assert (found.total, found.hits) == (60, None)


def test_a_figure_of_several_rates_counts_rows():
    """A row with two unread answers is one unread row; no count can be above the number of rows."""
    first = Sample([True, "unparsed", True, "abstained"], sources(4), [0, 1, 2, 3])
    second = Sample([False, "unjudged", True], sources(3), [0, 1, 4])
    found = estimate([first, second], lambda a, b: b - a, (-1.0, 1.0))
    assert found.value == pytest.approx(1 / 3 - 2 / 4)
    assert (found.total, found.hits, found.of_read) == (5, None, None)
    assert found.unread == {"unparsed": 1, "abstained": 1}


@pytest.mark.parametrize("function", [lambda a, b: b - a, lambda a, b: 2 * a * b / (a + b)])
def test_sameness_is_no_proof(function):
    """Two models that happen to answer all alike, or always right: the interval of the difference is no point."""
    for outcomes in ([True, False] * 20, [True] * 40):
        found = estimate([Sample(outcomes, sources(40))] * 2, function, (-1.0, 1.0))
        assert found.interval[1] - found.interval[0] > 0.01


def test_nothing_read():
    found = estimate([Sample(["unparsed", "unparsed"], sources(2))])
    assert (found.value, found.hits, found.total, found.of_read) == (0.0, 0, 2, None)
    assert str(found).endswith("(0/2), 2 unread")
    assert estimate([Sample([True, False], ["one", "one"])]).interval == (0.0, 1.0)  # one source shows no spread


def test_without_intervals_scipy_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = estimate([Sample([True, "unparsed", False], sources(3))], with_interval=False)
    assert (found.value, found.interval, found.of_read.interval) == (1 / 3, None, None)
    assert str(found) == "33.3% (1/3), 1 unread; 50.0% of 2 read"
    with pytest.raises(ImportError):
        estimate([Sample([True, False], sources(2))])


def score(adopted, right):
    return 2 * (1 - adopted) * right / ((1 - adopted) + right)


@pytest.mark.long
@pytest.mark.parametrize(
    ("groups", "rows", "before", "after", "within"),
    [(100, 1, 0.4, 0.3, 0.0), (40, 5, 0.8, 0.1, 0.3), (60, 4, 0.05, 0.02, 0.5)],
)
def test_coverage(groups, rows, before, after, within):
    """
    95 of 100 intervals hold the truth, for rates, differences and scores: answers of a source and of the two models are
    correlated through a normal variable that the source gives.
    """
    rng = np.random.default_rng(0)
    names = sources(groups, rows)
    of_source = rng.normal(size=(800, groups)).repeat(rows, axis=1)
    first, second = (
        np.sqrt(within) * of_source + np.sqrt(1 - within) * rng.normal(size=of_source.shape) < norm.ppf(rate)
        for rate in (before, after)
    )
    held = {"rate": 0, "difference": 0, "score": 0}
    for answers in zip(first.tolist(), second.tolist(), strict=True):
        samples = [Sample(of_model, names) for of_model in answers]
        figures = {
            "rate": (estimate(samples[:1]), before),
            "difference": (estimate(samples, lambda a, b: b - a, (-1.0, 1.0)), after - before),
            "score": (estimate(samples, score), score(before, after)),
        }
        for name, (found, truth) in figures.items():
            held[name] += found.interval[0] <= truth <= found.interval[1]
    for name, count in held.items():
        assert 0.93 <= count / 800 <= 0.99, (name, count)


@pytest.mark.long
@pytest.mark.parametrize(
    ("groups", "rows", "kept", "within"),
    [(12, 8, 0.6, 0.5), (100, 8, 0.6, 0.5), (100, 10, 0.8, 0.8), (30, 8, 0.6, 0.1)],
)
def test_coverage_where_most_rows_keep_their_answer(groups, rows, kept, within):
    """As after a light training. A loss of eight points in 100 sources was seldom beyond its interval."""
    rng, names = np.random.default_rng(1), sources(groups, rows)
    of_source = rng.beta(0.7 * (1 / within - 1), 0.3 * (1 / within - 1), (300, groups)).repeat(rows, axis=1)
    before, again, lost = (rng.random(of_source.shape) < rate for rate in (of_source, of_source, 0.12))
    after = np.where(rng.random(of_source.shape) < kept, before, again)

    def bounds(seconds):
        both = zip(before.tolist(), seconds.tolist(), strict=True)
        found = [estimate([Sample(of, names) for of in pair], lambda a, b: b - a, (-1.0, 1.0)) for pair in both]
        return np.array([of.interval for of in found])

    low, high = bounds(after).T
    assert ((low <= 0) & (high >= 0)).mean() >= 0.93
    if groups == 100:
        assert (bounds(after & ~lost)[:, 1] < 0).mean() > 0.99


@pytest.mark.parametrize("number", [4, 12])
def test_each_source_loses_one_of_its_right_answers(number):
    """No source gains: 12 of 12 is beyond chance, and 4 of 4 is not. The interval held 0, since it took the sources for rows."""
    names, right = sources(number, 8), [8 if of % 2 else 2 for of in range(number)]
    before, after = (Sample([place < of - less for of in right for place in range(8)], names) for less in (0, 1))
    assert (estimate([before, after], lambda a, b: b - a, (-1.0, 1.0)).interval[1] < -0.05) == (number == 12)


def of_sizes(sizes):
    return [f"source {number}" for number, size in enumerate(sizes) for _ in range(size)]


def test_the_variance_is_the_jackknifes():
    """The mean of the other sources, for each that is left out."""
    sizes, hits = [7, 1, 3, 2, 5], [6, 0, 2, 0, 1]
    names = np.array(of_sizes(sizes))
    outcomes = np.array([place < hit for size, hit in zip(sizes, hits, strict=True) for place in range(size)])
    rate = outcomes.mean()
    without = [outcomes[names != name].mean() for name in sorted({*names})]
    variance = 4 / 5 * sum((of_others - rate) ** 2 for of_others in without)
    equal = 18**2 / sum(size**2 for size in sizes)
    found = estimate([Sample(outcomes.tolist(), names.tolist())])
    assert found.interval == pytest.approx(wilson(rate, rate * (1 - rate) / variance, t.ppf(0.975, equal - 1)))
    mean = estimate_mean(Values(outcomes.astype(float).tolist(), names.tolist()))
    half = t.ppf(0.975, equal - 1) * math.sqrt(variance)
    assert mean.interval == pytest.approx((rate - half, rate + half))


def test_a_source_of_most_rows_counts_little_more_than_one():
    """An interval of 900 rows of one question and 100 others was as narrow as that of 1,000 questions."""
    names = of_sizes([900, *[1] * 100])
    rest = [True, False] * 50
    before, after = Sample([True] * 900 + rest, names), Sample([False] * 900 + rest, names)
    change = estimate([before, after], lambda a, b: b - a, (-1.0, 1.0))
    assert change.interval[0] < 0 < change.interval[1]
    assert estimate([Sample([True] * 1000, names)]).interval[0] < 0.5
    margins = estimate_mean(Values([1.0] * 900 + [1.0, -1.0] * 50, names))
    assert margins.interval[0] < 0 < margins.interval[1]


@pytest.mark.long
@pytest.mark.parametrize("sizes", [[200, *[5] * 19], [100] * 3 + [2] * 30, [64, 32, 16, 8, 4, 2, 1, 1, 1, 1]])
def test_coverage_of_unequal_sources(sizes):
    rng = np.random.default_rng(0)
    of_source = rng.normal(size=(400, len(sizes))).repeat(sizes, axis=1)
    answers = np.sqrt(0.3) * of_source + np.sqrt(0.7) * rng.normal(size=of_source.shape) < norm.ppf(0.4)
    found = [estimate([Sample(of_run, of_sizes(sizes))]).interval for of_run in answers.tolist()]
    assert sum(low <= 0.4 <= high for low, high in found) / 400 >= 0.90


@pytest.mark.long
@pytest.mark.parametrize(
    ("groups", "rows", "within", "rate"),
    [(10, 100, 0.5, 0.97), (10, 100, 0.7, 0.9), (30, 20, 0.7, 0.97), (20, 50, 0.7, 0.03), (64, 4, 0.5, 0.97)],
)
def test_coverage_of_extreme_rates_of_few_sources(groups, rows, within, rate):
    """The jackknife alone held 81 to 92 in 100: most sources are alike, and the few others seldom are in the sample."""
    rng = np.random.default_rng(0)
    names = sources(groups, rows)
    of_source = rng.normal(size=(400, groups)).repeat(rows, axis=1)
    answers = np.sqrt(within) * of_source + np.sqrt(1 - within) * rng.normal(size=of_source.shape) < norm.ppf(rate)
    found = [estimate([Sample(of_run, names)]).interval for of_run in answers.tolist()]
    assert sum(low <= rate <= high for low, high in found) / 400 >= 0.95


def test_one_wrong_answer_is_no_proof_of_independence():
    """999 of 1,000 right in ten sources: the lower bound rose from 66 to 99% with the one wrong answer."""
    bounds = []
    for wrong in range(4):
        outcomes = [False] * wrong + [True] * (1000 - wrong)
        bounds.append(estimate([Sample(outcomes, sources(10, 100))]).interval[0])
    assert bounds[0] == pytest.approx(wilson(1, 10, t.ppf(0.975, 9))[0])
    assert bounds[1] < 0.8
    assert sorted(bounds[1:], reverse=True) == bounds[1:]


def test_the_correlation_within_sources_is_that_of_the_beta_binomial():
    """The mean of the correlation over its likelihood, integrated by another rule than the product's."""
    counts, hits = [4, 4, 4, 4, 4, 4, 4, 4, 2, 2], [4, 4, 4, 3, 4, 4, 4, 3, 2, 2]
    total = sum(counts)
    largest = sum(size**2 for size in counts) / total
    rate = (sum(hits) + largest / 2) / (total + largest)

    def likelihood(correlation):
        strength = 1 / correlation - 1
        return math.prod(
            betabinom.pmf(hit, size, rate * strength, (1 - rate) * strength)
            for hit, size in zip(hits, counts, strict=True)
        )

    area, first = (quad(of, 0, 1)[0] for of in (likelihood, lambda correlation: correlation * likelihood(correlation)))
    size = total / (1 + first / area * (largest - 1))
    outcomes = [place < hit for hit, of_source in zip(hits, counts, strict=True) for place in range(of_source)]
    found = estimate([Sample(outcomes, of_sizes(counts))])
    equal = total**2 / sum(of_source**2 for of_source in counts)
    assert found.interval == pytest.approx(wilson(sum(hits) / total, size, t.ppf(0.975, equal - 1)), abs=1e-3)


def test_ignoring_sources_would_not_cover():
    """What the clustering is for: the simulation can fail."""
    rng = np.random.default_rng(0)
    of_source = rng.normal(size=(300, 30)).repeat(8, axis=1)
    answers = np.sqrt(0.7) * of_source + np.sqrt(0.3) * rng.normal(size=of_source.shape) < 0
    held = {True: 0, False: 0}
    for of_run in answers.tolist():
        for clustered in held:
            names = sources(30, 8) if clustered else sources(240)
            low, high = estimate([Sample(of_run, names)]).interval
            held[clustered] += low <= 0.5 <= high
    assert held[True] / 300 >= 0.92
    assert held[False] / 300 < 0.75


def test_mean_of_values_is_that_of_independent_ones_or_of_clusters():
    numbers = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75]
    alone = estimate_mean(Values(numbers, sources(6)))
    assert (alone.value, *alone.interval) == pytest.approx((np.mean(numbers), *students_interval(numbers)))
    assert str(alone).startswith("0.42 nats [-0.")
    assert Estimate.from_dict(alone.to_dict()) == alone
    # Each number twice, as two rows of its source, says no more.
    twice = estimate_mean(Values(numbers * 2, sources(6) * 2))
    assert twice.interval == pytest.approx(alone.interval)
    assert estimate_mean(Values(numbers, ["a"] * 6)).interval is None
    assert estimate_mean(Values(numbers, sources(6)), with_interval=False).interval is None


def test_weights_count_a_number_several_times():
    """In one source, as the tokens of a text are."""
    numbers, weights = [0.5, 2.0, 1.0, 4.0], [1, 3, 2, 5]
    found = estimate_mean(Values(numbers, sources(4), weights))
    repeated = [
        (number, source)
        for number, source, weight in zip(numbers, sources(4), weights, strict=True)
        for _ in range(weight)
    ]
    expected = estimate_mean(Values([number for number, _ in repeated], [source for _, source in repeated]))
    assert (found.value, found.interval) == (pytest.approx(expected.value), pytest.approx(expected.interval))
    assert (found.total, found.sources) == (4, 4)


def test_differences_of_values_are_paired():
    base, other = Values([1.0, 5.0, 9.0], sources(3)), Values([2.0, 6.5, 10.0], sources(3))
    found = estimate_mean(other.minus(base))
    assert found.value == pytest.approx(3.5 / 3)
    assert found.interval == pytest.approx(students_interval([1.0, 1.5, 1.0]))


def test_a_score_of_two_zeros_is_not_certain():
    """Neither rate alone moves a harmonic mean whose other rate is 0."""
    none, half = Sample([False] * 12, sources(12)), Sample([True, False] * 6, sources(12))
    found = estimate([none, none], harmonic_mean)
    rate = estimate([none])
    assert found.interval == (0.0, pytest.approx(rate.interval[1]))
    change = estimate(
        [none, none, none, none], lambda a, b, c, d: harmonic_mean(c, d) - harmonic_mean(a, b), (-1.0, 1.0)
    )
    assert change.interval[0] <= -rate.interval[1]
    assert change.interval[1] >= rate.interval[1]
    one = estimate([none, half], harmonic_mean)
    assert 0 < one.interval[1] < 1


def test_outcomes_of_numpy_count():
    """They counted as answers without the property, and so did 1."""
    found = estimate([Sample(np.array([3, 1, 2]) > 1, sources(3))], with_interval=False)
    assert (found.hits, found.total, found.value) == (2, 3, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ([1, 0], r"got 1\. Of a number, write `bool\(\.\.\.\)`"),
        ([True, None], "got None"),
        ([True, "yes"], "got 'yes'"),
        ([True], r"1 outcome\(s\) have 2 source\(s\)"),
    ],
)
def test_outcomes_that_are_none(outcomes, reason):
    with pytest.raises(ConsistencyError, match=reason):
        Sample(outcomes, sources(2))


@pytest.mark.parametrize("samples", [[], [Sample([], [])], [Sample([True], sources(1)), Sample([], [])]])
def test_a_rate_of_no_answers(samples):
    """It was NaN."""
    with pytest.raises(ConsistencyError, match="A sample has no answers, so that there is no rate to estimate"):
        estimate(samples, lambda *rates: rates[0])


def test_a_value_outside_the_span_is_refused():
    """Its interval, [0, 0], did not hold it."""
    samples = [Sample([True] * 8 + [False] * 2, sources(10)), Sample([True] * 3 + [False] * 7, sources(10))]
    with pytest.raises(
        ConsistencyError, match=r"value is -0.5, outside `span` \(0.0, 1.0\).* \(-1, 1\) for a difference"
    ):
        estimate(samples, lambda one, other: other - one)
    assert estimate(samples, lambda one, other: other - one, (-1.0, 1.0)).value == -0.5


@pytest.mark.parametrize("rest", [1, 2])
def test_sources_that_are_alike_show_no_spread(rest):
    """Of one right answer in three, rounding was taken for a spread: the interval was that of rows without sources."""
    found = estimate([Sample(([True] + [False] * rest) * 30, sources(30, 1 + rest))])
    assert found.interval == pytest.approx(wilson(1 / (1 + rest), 30, t.ppf(0.975, 29)))


@pytest.mark.parametrize("groups", [2, 3, 12])
def test_a_rate_of_few_sources_is_as_uncertain_beside_one_of_many(groups):
    """As harmful and benign requests are in one score: its spread was taken for that of as many sources as both have."""
    few = Sample([True, True, True, False] * groups, [f"few {number // 2}" for number in range(2 * groups)] * 2)
    many = Sample([True, False] * 100, sources(100, 2))
    beside = estimate([few, many], lambda one, other: one)
    assert beside.interval == pytest.approx(estimate([few]).interval)

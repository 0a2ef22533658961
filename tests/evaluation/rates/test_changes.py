"""Differences of two rates over the same rows: what they hide, and how often their intervals hold the truth."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import beta, norm

from trl_consistency.evaluation.rates.changes import estimate_change
from trl_consistency.evaluation.rates.intervals import Sample, estimate


def names_of(sources, rows):
    return [str(number) for number in range(sources) for _ in range(rows)]


def change(before, after, names):
    return estimate_change(Sample(list(map(bool, before)), names), Sample(list(map(bool, after)), names))


@pytest.mark.parametrize(
    ("sources", "rows", "lost"), [(20, 10, 1), (20, 5, 1), (20, 5, 2), (12, 8, 1), (10, 5, 2), (10, 5, 3)]
)
def test_a_loss_in_each_source_of_a_perfect_model_is_found(sources, rows, lost):
    """All sources had the same rate, before and after: each counted as one answer, and nothing was paired."""
    after = np.tile(np.arange(rows) >= lost, sources)
    found = change([True] * sources * rows, after, names_of(sources, rows))
    assert found.interval[1] < -0.3 * lost / rows
    assert found.value == pytest.approx(-lost / rows)
    assert found.unit == "pp"


def test_a_better_base_model_hides_no_loss():
    """With a few wrong answers before, the same loss was found."""
    names, after = names_of(20, 10), np.tile(np.arange(10) >= 1, 20)
    perfect = change([True] * 200, after, names)
    flawed = np.arange(200) % 29 != 5
    worse = change(flawed, flawed & after, names)
    assert perfect.interval[1] < 0
    assert worse.interval[1] < 0


def test_more_losses_have_no_wider_interval():
    """Of 20 lost answers, one in each source, it was three times as wide as of 10 in ten sources."""
    names, bounds = names_of(20, 10), []
    for sources in (10, 20):
        after = (np.arange(200) % 10 >= 1) | (np.arange(200) // 10 >= sources)
        bounds.append(change([True] * 200, after, names).interval[1])
    assert bounds[1] < bounds[0]


def test_a_loss_of_one_source_is_no_loss_of_all():
    """Its ten rows count as little more than one."""
    after = np.arange(200) >= 10
    assert change([True] * 200, after, names_of(20, 10)).interval[1] > 0


@pytest.mark.parametrize("sources", [2, 4])
def test_few_sources_show_no_change(sources):
    after = np.tile(np.arange(10) >= 3, sources)
    assert change([True] * 10 * sources, after, names_of(sources, 10)).interval[1] > 0


def test_of_four_sources_no_change_is_beyond_its_interval():
    """One from all to 1 of 32 was, though one from all to none is not, and a warning says that none can be."""
    for rows in (2, 4, 8):
        names = names_of(4, rows)
        for first, *others in product((0, 1, rows), repeat=4):
            after = np.concatenate([np.arange(rows) < of for of in (first, *others)])
            for before in (np.ones(len(after), bool), np.zeros(len(after), bool), np.arange(len(after)) < 1):
                low, high = change(before, after, names).interval
                assert low <= 0 <= high
                assert low <= after.mean() - before.mean() <= high


@pytest.mark.parametrize(("sources", "rows"), [(20, 10), (250, 5), (100, 1)])
def test_fewer_than_five_sources_that_changed_prove_nothing(sources, rows):
    """Two of twenty that were cured but for one row of ten did, and two that were cured as a whole did not."""
    names, none = names_of(sources, rows), np.zeros(sources * rows, bool)
    for number in range(1, 7):
        for left in {0, 1, rows // 2} - {rows}:
            before = np.arange(sources).repeat(rows) < number
            after = before & (np.tile(np.arange(rows), sources) < left)
            for low, high in (change(before, after, names).interval, change(~before, ~after, names).interval):
                assert number > 4 or low <= 0 <= high
    assert change(np.arange(sources).repeat(rows) < 6, none, names).interval[1] < 0


@pytest.mark.parametrize("answers", ["right", "half"])
def test_no_change_has_an_interval(answers):
    given = np.ones(80, bool) if answers == "right" else np.arange(80) % 2 == 0
    low, high = change(given, given, names_of(20, 4)).interval
    assert low == pytest.approx(-high)
    assert 0.005 < high < 0.15


def test_of_one_row_a_source_it_is_newcombes():
    rng = np.random.default_rng(0)
    before, after, names = rng.random(80) < 0.7, rng.random(80) < 0.5, names_of(80, 1)
    plain = estimate([Sample(of.tolist(), names) for of in (before, after)], lambda a, b: b - a, (-1.0, 1.0))
    assert change(before, after, names).interval == pytest.approx(plain.interval, abs=1e-3)


def normal(rng, sources, rows, before, after, within):
    """Answers of a source and of the two models are correlated through a normal variable that the source gives."""
    of_source = rng.normal(size=sources).repeat(rows)
    noise = rng.normal(size=(2, sources * rows))
    rates = norm.ppf([[before], [after]])
    return *(np.sqrt(within) * of_source + np.sqrt(1 - within) * noise < rates), after - before


def kept(rng, sources, rows, rate, again, within, lost):
    """Most rows keep their answer, as after a light training. Some of the right ones are lost."""
    of_source = rng.beta(rate * (1 / within - 1), (1 - rate) * (1 / within - 1), sources).repeat(rows)
    before = rng.random(len(of_source)) < of_source
    after = np.where(rng.random(len(of_source)) < again, rng.random(len(of_source)) < of_source, before)
    return before, after & ~(rng.random(len(of_source)) < lost), -lost * rate


def perfect(rng, sources, rows, lost, within):
    """All answers are right before. Each source loses a share of its own."""
    of_source = rng.beta(lost * (1 / within - 1), (1 - lost) * (1 / within - 1), sources).repeat(rows)
    return np.ones(len(of_source), bool), rng.random(len(of_source)) > of_source, -lost


def whole(rng, sources, rows, rate, lost):
    """Sources are right or wrong as a whole, and some lose all their answers."""
    before, fell = ((rng.random(sources) < of).repeat(rows) for of in (rate, lost))
    return before, before & ~fell, -lost * rate


def flipped(rng, sources, rows, share):
    """Some sources turn from all right to all wrong, or the reverse."""
    before, turned = ((rng.random(sources) < of).repeat(rows) for of in (0.5, share))
    return before, before ^ turned, 0.0


def partly(rng, sources, rows, share, left):
    """Some sources turn but for a part of their rows, as many the one way as the other."""
    drawn, few = rng.random(sources), rng.random((sources, rows)) < left
    cured, fallen = ((drawn >= of) & (drawn < of + share) for of in (0, share))
    before, after = (
        np.where(of[:, None], True, np.where(other[:, None], few, False))
        for of, other in ((cured, fallen), (fallen, cured))
    )
    return before.ravel(), after.ravel(), 0.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("draw", "figures"),
    [
        (partly, (20, 10, 0.05, 0.2)),
        (partly, (50, 10, 0.03, 0.2)),
        (partly, (250, 5, 0.01, 0.2)),
        (normal, (100, 1, 0.4, 0.3, 0.0)),
        (normal, (40, 5, 0.8, 0.1, 0.3)),
        (normal, (60, 4, 0.05, 0.02, 0.5)),
        (normal, (10, 20, 0.97, 0.9, 0.5)),
        (kept, (12, 8, 0.7, 0.4, 0.5, 0.0)),
        (kept, (100, 10, 0.5, 0.2, 0.8, 0.0)),
        (kept, (30, 8, 0.7, 0.1, 0.5, 0.1)),
        (kept, (12, 8, 0.9, 0.1, 0.5, 0.2)),
        (perfect, (12, 8, 0.1, 0.3)),
        (perfect, (30, 5, 0.3, 0.3)),
        (perfect, (30, 8, 0.05, 0.7)),
        (whole, (12, 20, 0.95, 0.1)),
        (whole, (100, 5, 0.9, 0.02)),
        (flipped, (12, 8, 0.1)),
        (flipped, (30, 4, 0.3)),
    ],
    ids=lambda of: getattr(of, "__name__", str(of)),
)
def test_coverage(draw, figures):
    rng, names, held = np.random.default_rng(0), names_of(*figures[:2]), 0
    for _ in range(400):
        before, after, truth = draw(rng, *figures)
        low, high = change(before, after, names).interval
        held += low <= truth <= high
    assert held / 400 >= 0.93


def unlike(rng, sources, rows, rate, before, after):
    """Neither better nor worse. What fails before are sources as a whole, and single rows after, or the reverse."""
    drawn = rng.random(sources)
    of_sources = (beta.ppf(drawn, rate * (1 / of - 1), (1 - rate) * (1 / of - 1)) for of in (before, after))
    return *(rng.random(sources * rows) < of.repeat(rows) for of in of_sources), 0.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ((20, 11, 0.95, 0.9, 0.1), 0.91),
        ((20, 11, 0.95, 0.1, 0.9), 0.88),
        ((50, 10, 0.97, 0.8, 0.1), 0.86),
        ((100, 20, 0.98, 0.95, 0.1), 0.76),
    ],
)
def test_coverage_where_gains_and_losses_are_not_alike(figures, expected):
    """docs/evaluate.md says so."""
    rng, names, held = np.random.default_rng(0), names_of(*figures[:2]), 0
    for _ in range(400):
        before, after, truth = unlike(rng, *figures)
        low, high = change(before, after, names).interval
        held += low <= truth <= high
    assert held / 400 == pytest.approx(expected, abs=0.03)


@pytest.mark.long
@pytest.mark.parametrize("sizes", [[200, *[5] * 19], [100] * 3 + [2] * 30, [64, 32, 16, 8, 4, 2, 1, 1, 1, 1]])
def test_coverage_of_unequal_sources(sizes):
    rng, names, held = np.random.default_rng(0), [str(n) for n, size in enumerate(sizes) for _ in range(size)], 0
    for _ in range(400):
        of_source = rng.normal(size=len(sizes)).repeat(sizes)
        noise = rng.normal(size=(2, sum(sizes)))
        before, after = np.sqrt(0.3) * of_source + np.sqrt(0.7) * noise < norm.ppf([[0.6], [0.5]])
        low, high = change(before, after, names).interval
        held += low <= -0.1 <= high
    assert held / 400 >= 0.93

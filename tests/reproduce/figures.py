"""Figures of docs/results.md: shares, means and ratios of cells, over all seeds, and their differences, paired by row."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from tests.reproduce.cells import CELLS_DIR, margins_of, read_cell, samples_of
from tests.reproduce.plan import Plan
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation.rates.changes import reaching_zero
from trl_consistency.evaluation.rates.intervals import (
    LEVEL,
    NATS,
    NATS_PER_TOKEN,
    Estimate,
    Sample,
    Values,
    estimate,
    estimate_mean,
)


Content = Mapping[str, Any]  # of a cell's file
Rows = Sample | Values


@dataclass(frozen=True)
class Figure:
    """
    A figure of a cell.

    Args:
        label (`str`):
            Its name in tables.
        rows (`Callable`):
            Returns the outcomes or numbers of a cell's rows, or None if they were not measured.
        unit (`str`, *optional*, defaults to `"%"`):
            `"%"` for a share, `"nats"` and `"nats per token"` for a mean.
    """

    label: str
    rows: Callable[[Content], Rows | None]
    unit: str = "%"


class Cells:
    """The finished cells of a plan, by name and seed."""

    def __init__(self, plan: Plan, folder: Path = CELLS_DIR):
        self.plan, self.folder = plan, folder
        self.by_name: dict[str, dict[int | None, Content]] = {cell.name: {} for cell in plan.cells}
        for job in plan.jobs():
            if (file := folder / f"{job.name}.json").is_file():
                self.by_name[job.cell.name][job.seed] = read_cell(file)
        _check_same_rows([run for runs in self.by_name.values() for run in runs.values()])

    def of_seed(self, seed: int) -> "Cells":
        """Returns the cells of one seed, and those without seeds."""
        found = copy(self)
        found.by_name = {
            name: {of: run for of, run in runs.items() if of in (seed, None)} for name, runs in self.by_name.items()
        }
        return found

    def label(self, name: str) -> str:
        return next(cell.label for cell in self.plan.cells if cell.name == name)

    def runs(self, name: str) -> list[Content]:
        """Returns the finished seeds of a cell."""
        return list(self.by_name[name].values())

    def paired(self, name: str, other: str) -> list[tuple[Content, Content]]:
        """Returns the runs of two cells in pairs: those of a seed, and a cell without seeds with each of the other."""
        one, two = self.by_name[name], self.by_name[other]
        if None in one or None in two:
            return [(first, second) for first in one.values() for second in two.values()]
        return [(one[seed], two[seed]) for seed in one if seed in two]

    def value(self, name: str, figure: Figure) -> Estimate | None:
        """Returns a figure of a cell, over all its seeds; None if it was not measured."""
        found = [figure.rows(run) for run in self.runs(name)]
        rows = [of for of in found if of is not None]
        if not rows:
            return None
        return mean_of(_pooled(rows), figure.unit)

    def side_by_side(self, name: str, other: str, figure: Figure) -> tuple[Estimate, Estimate, Estimate] | None:
        """
        Returns a figure of two cells, over the seeds that both have, and the difference of the second from the first
        with the 95% interval of paired rows; None if it was not measured for both.
        """
        rows = [(figure.rows(one), figure.rows(two)) for one, two in self.paired(name, other)]
        there = [(one, two) for one, two in rows if one is not None and two is not None]
        if not there:
            return None
        first, second = (_pooled(side) for side in zip(*there, strict=True))
        unit = figure.unit
        return mean_of(first, unit), mean_of(second, unit), _difference(first, second, unit)

    def difference(self, name: str, figure: Figure, base: str = "base") -> Estimate | None:
        """Returns how much a figure of a cell differs from the base's, with the 95% interval of paired rows."""
        found = self.side_by_side(base, name, figure)
        return found and found[2]

    def ratio(self, name: str, figure: Figure, base: str = "base") -> tuple[float, float, float] | None:
        """Returns the ratio of a mean to the base's on the same rows, with its 95% interval; None without both."""
        rows = [(figure.rows(one), figure.rows(two)) for one, two in self.paired(base, name)]
        there = [(one, two) for one, two in rows if isinstance(one, Values) and isinstance(two, Values)]
        if not there:
            return None
        return ratio(_pooled([one for one, _ in there]), _pooled([two for _, two in there]))


def _check_same_rows(runs: Sequence[Content]) -> None:
    """Raises [`ConsistencyError`] for cells that were measured on different rows."""
    known: dict[str, tuple[str, str]] = {}
    for run in runs:
        title = run["cell"] if run["seed"] is None else f"{run['cell']}-{run['seed']}"
        digests = {f"set {name}": of["digest"] for name, of in run["sets"].items()}
        digests |= {f"file {name}": of["digest"] for name, of in run["capability"].items()}
        for name, found in digests.items():
            first, digest = known.setdefault(name, (title, found))
            if digest != found:
                raise ConsistencyError(
                    f"{title} and {first} were measured on different rows of the {name}: delete the one that is out of date, "
                    "and measure it again."
                )


def _pooled(rows: Sequence[Any]) -> Any:
    """Returns the rows of several runs as one; those of one source remain one cluster."""
    sources = [source for of in rows for source in of.sources]
    if isinstance(rows[0], Sample):
        return Sample([outcome for of in rows for outcome in of.outcomes], sources)
    weights = None
    if rows[0].weights is not None:
        weights = [weight for of in rows for weight in of.weights]
    return Values([value for of in rows for value in of.values], sources, weights)


def mean_of(rows: Rows, unit: str) -> Estimate:
    """Returns the share or the mean of rows."""
    if isinstance(rows, Sample):
        return estimate([rows], with_interval=False)
    return estimate_mean(rows, with_interval=False, unit=unit)


def _difference(base: Rows, other: Rows, unit: str) -> Estimate:
    if isinstance(base, Sample) and isinstance(other, Sample):
        found = replace(estimate([base, other], lambda one, two: two - one, (-1.0, 1.0)), unit="pp")
        return reaching_zero(found, base, other)
    assert isinstance(base, Values)
    assert isinstance(other, Values)
    return estimate_mean(other.minus(base), unit=unit)


def ratio(base: Values, other: Values) -> tuple[float, float, float]:
    """
    Returns the ratio of two means over the same rows and its 95% interval: `R ± t · se`, where the error of `R` is that
    of `mean(other - R · base) / mean(base)`, clustered by source.
    """
    ones, twos = np.array(base.values, dtype=float), np.array(other.values, dtype=float)
    found = float(twos.mean() / ones.mean())
    names = {source: number for number, source in enumerate(dict.fromkeys(base.sources))}
    codes = [names[source] for source in base.sources]
    errors = np.bincount(codes, (twos - found * ones) / ones.mean()) / len(ones)
    groups = len(names)
    if groups < 2:
        return found, found, found
    deviation = math.sqrt(float(errors @ errors) * groups / (groups - 1))
    half = float(t.ppf((1 + LEVEL) / 2, groups - 1)) * deviation
    return found, found - half, found + half


# The figures


def share(label: str, sample: str, *sets: str) -> Figure:
    """The share of the rows of some sets that have a property (a name of `samples_of`)."""

    def rows(run: Content) -> Sample | None:
        found = [samples_of(run["sets"][name])[sample] for name in sets if name in run["sets"]]
        return _pooled(found) if len(found) == len(sets) else None

    return Figure(label, rows)


def margin(label: str, sample: str, name: str) -> Figure:
    """The mean margin of the right answer over the suggested one."""
    return Figure(label, lambda run: margins_of(run["sets"][name])[sample] if name in run["sets"] else None, NATS)


def siding(label: str, name: str) -> Figure:
    """How far what the user says moves a verdict towards the user's, in nats."""

    def rows(run: Content) -> Values | None:
        if name not in run["sets"]:
            return None
        margins = margins_of(run["sets"][name])
        return margins["margin without cue"].minus(margins["margin"])

    return Figure(label, rows, NATS)


def capability(label: str, name: str, unit: str = "%") -> Figure:
    """A figure of capability: a share of right answers or of refusals, or nats per token."""

    def rows(run: Content) -> Rows | None:
        of_file = run["capability"].get(name)
        if of_file is None:
            return None
        sources = list(map(str, range(len(of_file["values"]))))
        if of_file["metric"] == "nats_per_token":
            return Values(of_file["values"], sources, of_file["weights"])
        return Sample(["unparsed" if letter == "u" else letter == "1" for letter in of_file["values"]], sources)

    return Figure(label, rows, unit)


def activation(label: str) -> Figure:
    """The distance of activations, of the pairs that share a token."""

    def rows(run: Content) -> Values:
        distance = run["distance"]
        found = zip(distance["activation"], distance["sources"], strict=True)
        there = [(value, str(source)) for value, source in found if value is not None]
        return Values([value for value, _ in there], [source for _, source in there])

    return Figure(label, rows)


def answer_nats(label: str) -> Figure:
    """The cross-entropy of the base's clean answers after the perturbed prompts."""

    def rows(run: Content) -> Values:
        distance = run["distance"]
        return Values(distance["answer_nats"], list(map(str, distance["sources"])), distance["answer_tokens"])

    return Figure(label, rows, NATS_PER_TOKEN)


def side_effect(label: str, name: str) -> Figure:
    """A figure of side effects, of which the cells have no rows: its differences have no interval."""
    return Figure(label, lambda run: Values([run["side_effects"][name]], ["all"]), NATS_PER_TOKEN)

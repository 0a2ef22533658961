"""The picture of docs/results.md that the package does not draw: suggested answers by set and model."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure as Picture

from tests.reproduce.figures import Cells, share
from trl_consistency.evaluation.rates.intervals import Sample, estimate
from trl_consistency.files import write_by


SHOWN = ("test", "test_categories", "authority", "distractor", "wrong_few_shot", "post_hoc", "are_you_sure")
COLOURS = {"base": "0.35", "bct": "#4c72b0", "bct_greedy": "#8fb0de", "act": "#d95f02", "opct": "#4c9f70"}


def plot_transfer(cells: Cells, names: Sequence[str], path: Path) -> Path:
    """Plots the share of suggested answers in each set, of models over all their seeds, with 95% intervals."""
    labels = {of_set.name: of_set.label for of_set in cells.plan.sets}
    picture = Picture(figsize=(10, 6.5), layout="constrained")
    axes = picture.add_subplot()
    for number, name in enumerate(names):
        colour = COLOURS.get(name, "#8172b3")
        for place, of_set in enumerate(SHOWN):
            rows = [share("", "suggested", of_set).rows(run) for run in cells.runs(name)]
            outcomes = [
                (outcome, source) for of in rows if of for outcome, source in zip(of.outcomes, of.sources, strict=True)
            ]
            if not outcomes:
                continue
            found = estimate([Sample([outcome for outcome, _ in outcomes], [source for _, source in outcomes])])
            low, high = found.interval or (found.value, found.value)
            height = place + 0.14 * (number - (len(names) - 1) / 2)
            axes.plot([100 * low, 100 * high], [height, height], color=colour, linewidth=2, alpha=0.6)
            label = cells.label(name) if place == 0 else None
            axes.plot(100 * found.value, height, "o", color=colour, markersize=6, label=label)
    axes.set_yticks(range(len(SHOWN)), [labels[of_set] for of_set in SHOWN])
    axes.invert_yaxis()
    axes.axhline(1.5, color="0.7", linewidth=0.8)
    axes.set_xlim(0, None)
    axes.set_xlabel("suggested answers given, % of all rows, with 95% intervals")
    axes.set_title("Perturbations below the line are of kinds that no model was trained on", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    write_by(path, lambda place: picture.savefig(place, dpi=110))
    return path

"""The picture of docs/benchmarks.md: how many times as long rivals take."""

import math
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tests.benchmarks.rows import ENGINES, GUARDED, PADDING, ROWS, SHAPES
from tests.benchmarks.spreads import Spread, alike
from tests.benchmarks.words import Results, processor
from trl_consistency.files import write_by


OURS, UNDER_LOAD = "#4c72b0", "#8c8c8c"


def draw(results: Results, machine: dict[str, str], file: Path) -> bool:
    """Draws the ratios of all rows that have a rival. Returns whether there are any."""
    bars, span = ratios({name: results[name] for name in (*GUARDED, *SHAPES, *PADDING) if name in results})
    loaded, span_of_loaded = ratios({name: results[name] for name in ENGINES if name in results})
    if not bars:
        return False
    everything = [(bar, OURS) for bar in bars] + [(bar, UNDER_LOAD) for bar in loaded]
    picture = Figure(figsize=(9, 0.33 * len(everything) + 1.7), layout="constrained")
    axes = picture.add_subplot()
    for place, ((_, _, of), colour) in enumerate(everything):
        axes.plot(
            [of["low"], of["high"]], [place, place], color=colour, linewidth=11, alpha=0.55, solid_capstyle="butt"
        )
        axes.plot(of["median"], place, "|", color="black", markersize=6, markeredgewidth=1.5)
    axes.set_yticks(range(len(everything)), [f"{ROWS[name].title}: {rival}" for (name, rival, _), _ in everything])
    axes.set_ylim(len(everything) - 0.4, -0.6)
    axes.axvline(1, color="0.4", linewidth=1)
    axes.set_xscale("log")
    last = math.ceil(max(of["high"] for (*_, of), _ in everything))
    axes.set_xticks(range(1, last + 1))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    whole = "any turn of theirs ÷ any of ours"
    bar, grey_bar = (whole if of == "all turns" else of for of in (span, span_of_loaded))
    axes.set_xlabel(
        f"rival's time ÷ our time (log scale; 1 = as long as ours)\nblack mark: median; bar: {bar} (none of one turn)"
    )
    date = f", {machine['date']}" if "date" in machine else ""
    grey = f"\nGrey: vLLM beside transformers, on other machines under load (bar: {grey_bar})" if loaded else ""
    axes.set_title(f"A small model on one core of {processor(machine)}{date}{grey}", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9", which="both")
    axes.set_axisbelow(True)
    write_by(file, lambda place: picture.savefig(place, dpi=110))
    return True


def ratios(results: Results) -> tuple[list[tuple[str, str, Spread]], str]:
    """Returns row, rival and ratio of some rows, with spreads that can be compared, and what these span."""
    found = [(name, rival, of) for name, row in results.items() for rival, of in row.get("ratios", {}).items()]
    comparable, span = alike([of for *_, of in found])
    return [(name, rival, of) for (name, rival, _), of in zip(found, comparable, strict=True)], span

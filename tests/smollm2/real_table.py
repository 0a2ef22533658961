"""
The tables of docs/real_model.md and of the README, from the results of `make real` in docs/smollm2.

Run `python -m tests.smollm2.real_table` to print them.
"""

import json
from pathlib import Path

from trl_consistency.pages import cells_table
from trl_consistency.scripts.quickstart_subjects import SMOLLM2


RESULTS = Path(__file__).parents[2] / "docs" / "smollm2" / "results.json"


def table():
    """Shares of all rows, and for each method the difference from before, with its paired 95% interval in points."""
    figures = json.loads(RESULTS.read_text())
    differences = figures["differences"]

    def cell(name, key):
        text = f"{100 * mean(figures, name, key):.1f}%"
        if name == "before":
            return text
        of = differences[name][key]
        return f"{text} ({100 * of['value']:+.1f} [{100 * of['low']:+.1f}, {100 * of['high']:+.1f}])"

    def of_text(name):
        value, base = nats(figures, name), nats(figures, "before")
        return f"{value:.3f}" if name == "before" else f"{value:.3f} ({value - base:+.3f})"

    return as_table(figures, cell, of_text)


def short_table():
    """The shares alone."""
    figures = json.loads(RESULTS.read_text())
    return as_table(
        figures,
        lambda name, key: f"{100 * mean(figures, name, key):.1f}%",
        lambda name: f"{nats(figures, name):.3f}",
    )


def as_table(figures, cell, of_text):
    models = list(figures["models"])
    keys = [key for key in SMOLLM2.labels if not key.startswith("reference_agreement")]
    cells = {SMOLLM2.labels[key]: [cell(name, key) for name in models] for key in keys}
    return cells_table(models, {**cells, "Plain text, nats per token": list(map(of_text, models))})


def mean(figures, name, key):
    """The mean over the seeds."""
    runs = figures["models"][name]
    return sum(run["rates"][key]["value"] for run in runs) / len(runs)


def nats(figures, name):
    runs = figures["models"][name]
    return sum(run["side_effects"]["text_nats"] for run in runs) / len(runs)


if __name__ == "__main__":
    print(table(), short_table(), sep="\n\n")

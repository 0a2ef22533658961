"""
The table of the README and of docs/real_model.md, from the results of `make real` in docs/smollm2.

Run `python -m tests.smollm2.real_table` to print it.
"""

import json
from pathlib import Path

from trl_consistency.pages import cells_table
from trl_consistency.scripts.quickstart_subjects import SMOLLM2


RESULTS = Path(__file__).parents[2] / "docs" / "smollm2" / "results.json"


def table():
    """Shares of all rows, and for each method the difference from before, with its paired 95% interval in points."""
    figures = json.loads(RESULTS.read_text())
    models, differences = figures["models"], figures["differences"]

    def mean(name, key):
        return sum(run["rates"][key]["value"] for run in models[name]) / len(models[name])

    def cell(name, key):
        text = f"{100 * mean(name, key):.1f}%"
        if name == "before":
            return text
        of = differences[name][key]
        return f"{text} ({100 * of['value']:+.1f} [{100 * of['low']:+.1f}, {100 * of['high']:+.1f}])"

    def nats(name):
        value, base = (
            sum(run["side_effects"]["text_nats"] for run in models[of]) / len(models[of]) for of in (name, "before")
        )
        return f"{value:.3f}" if name == "before" else f"{value:.3f} ({value - base:+.3f})"

    keys = [key for key in SMOLLM2.labels if not key.startswith("reference_agreement")]
    cells = {SMOLLM2.labels[key]: [cell(name, key) for name in models] for key in keys}
    cells["Plain text, nats per token"] = [nats(name) for name in models]
    return cells_table(list(models), cells)


if __name__ == "__main__":
    print(table())

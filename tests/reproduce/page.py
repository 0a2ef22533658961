"""
Writes the tables and pictures of the README, docs/results.md, docs/real_model.md and docs/choosing.md from the cells in
docs/results/cells. What stands between the markers of a table is replaced; all else is written by hand.

```bash
python -m tests.reproduce.page
```
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.reproduce.cells import CELLS_DIR, ROOT, counts
from tests.reproduce.figures import (
    Cells,
    Figure,
    activation,
    answer_nats,
    capability,
    margin,
    mean_of,
    share,
    side_effect,
    siding,
)
from tests.reproduce.plan import SETS, Plan
from tests.reproduce.sets import load_split
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation.rates.intervals import NATS, NATS_PER_TOKEN, Estimate
from trl_consistency.files import write_text
from trl_consistency.pages import cells_table, row_table


PAGE = ROOT / "docs" / "results.md"
BASE, NOT_RUN, NOT_MEASURED = "base", "not run", "not measured"
CPU = "CPU"
LINE = "<br>"  # a new line in a cell
MAIN = ("base", "bct", "bct_greedy", "act", "opct")
SHORT = ("base", "bct", "act", "opct")

TRANSFER = ("are_you_sure", "distractor", "post_hoc", "wrong_few_shot", "authority")
SUGGESTED, RIGHT, CLEAN = "suggested", "right", "right without cue"
ACTIVATION, ANSWERS = (
    activation("activation distance, times that before"),
    answer_nats("cross-entropy of the clean answer"),
)
TEXT = side_effect("plain text, nats per token", "text_nats")
CAPABILITY = (
    capability("ARC-easy", "questions/arc_easy_train"),
    capability("OpenBookQA", "questions/openbookqa_train"),
    capability("GSM8K, nats per token", "gsm8k/train_1000", NATS_PER_TOKEN),
    capability("safe prompts refused", "xstest/xstest_prompts"),
)


def of_test(name: str) -> tuple[Figure, ...]:
    return (
        share("suggested answers given", SUGGESTED, name),
        share("right with the cue", RIGHT, name),
        share("right without the cue", CLEAN, name),
    )


def pooled_transfer(label: str = "all five") -> Figure:
    return share(label, SUGGESTED, *TRANSFER)


# Text of figures


def number(value: float, unit: str, sign: str = "") -> str:
    if unit in (NATS, NATS_PER_TOKEN):
        return f"{value:{sign}.{2 if unit == NATS else 3}f}"
    return f"{100 * value:{sign}.1f}{'' if sign else '%'}"


def difference_text(found: Estimate, unit: str) -> str:
    text = number(found.value, unit, "+")
    if found.interval is not None:
        text += " [" + ", ".join(number(bound, unit, "+") for bound in found.interval) + "]"
    return text


def cell_text(cells: Cells, name: str, figure: Figure) -> str:
    """Returns a figure, and its difference from before training: `3.2% (-41.2 [-47.5, -34.7])`."""
    if not cells.runs(name):
        return NOT_RUN
    value = cells.value(name, figure)
    if value is None:
        return NOT_MEASURED
    text = number(value.value, figure.unit)
    difference = None if name == BASE else cells.difference(name, figure)
    return text if difference is None else f"{text} ({difference_text(difference, figure.unit)})"


def versus(cells: Cells, name: str, other: str, figures: Sequence[Figure]) -> str:
    """Returns figures of two cells side by side, and the differences of the second from the first."""
    title = f"**{cells.label(name)} → {cells.label(other)}**"
    missing = [cells.label(of) for of in (name, other) if not cells.runs(of)]
    if missing:
        return f"{title}: {NOT_RUN} ({', '.join(missing)})"
    said = []
    for figure in figures:
        found = cells.side_by_side(name, other, figure)
        text = NOT_MEASURED
        if found is not None:
            one, two = (number(of.value, figure.unit) for of in found[:2])
            text = f"{one} → {two} ({difference_text(found[2], figure.unit)})"
        said.append(f"{figure.label} {text}")
    return "; ".join([f"{title}: {said[0]}", *said[1:]])


def ratio_text(cells: Cells, name: str) -> str:
    if not cells.runs(name):
        return NOT_RUN
    found = cells.ratio(name, ACTIVATION)
    return NOT_MEASURED if found is None else "{:.2f} [{:.2f}, {:.2f}]".format(*found)


# Tables


def table(cells: Cells, figures: Sequence[Figure], names: Sequence[str] = ()) -> str:
    """Returns a table with a row for each model and a column for each figure."""
    rows = [
        (cells.label(name), [cell_text(cells, name, figure) for figure in figures])
        for name in names or [cell.name for cell in cells.plan.main]
    ]
    return str(row_table(["", *(figure.label for figure in figures)], rows))


def seeds_table(cells: Cells) -> str:
    """Returns the figures of each seed, of the methods with several."""
    figures = {
        "suggested answers given": share("", SUGGESTED, "test"),
        "right with the cue": share("", RIGHT, "test"),
        "right without the cue": share("", CLEAN, "test"),
        "suggested, other perturbations": pooled_transfer(),
        "plain text, nats per token": TEXT,
    }
    rows = []
    several = [cell for cell in cells.plan.main if len(cell.seeds) > 1]
    for cell in several:
        for label, figure in figures.items():
            values = []
            for seed in cell.seeds:
                run = cells.by_name[cell.name].get(seed)
                of_seed = None if run is None else figure.rows(run)
                values.append(NOT_RUN if run is None else NOT_MEASURED)
                if of_seed is not None:
                    values[-1] = number(mean_of(of_seed, figure.unit).value, figure.unit)
            rows.append((f"{cell.label}: {label}", values))
    seeds = max((len(cell.seeds) for cell in several), default=0)
    return str(row_table(["", *(f"seed {seed + 1}" for seed in range(seeds))], rows))


def transfer_table(cells: Cells) -> str:
    labels = {of.name: of.label for of in cells.plan.sets}
    by_set = [share(labels[name], SUGGESTED, name) for name in TRANSFER]
    return table(cells, [*by_set, pooled_transfer(), share("all five: right", RIGHT, *TRANSFER)])


def other_sets_table(cells: Cells) -> str:
    return table(
        cells,
        [
            share("TruthfulQA: suggested", SUGGESTED, "suggested_answer_truthfulqa"),
            share("TruthfulQA: right with the cue", RIGHT, "suggested_answer_truthfulqa"),
            share("LogiQA, are you sure?: not right", SUGGESTED, "are_you_sure_logiqa"),
            margin("margin with the cue, nats", "margin", "preference"),
            margin("margin without, nats", "margin without cue", "preference"),
            siding("verdict moved to the user's, nats", "feedback"),
        ],
    )


def capability_table(cells: Cells) -> str:
    return table(cells, [*CAPABILITY, TEXT])


def distance_table(cells: Cells) -> str:
    rows = [
        (
            cell.label,
            ["1" if cell.name == BASE else ratio_text(cells, cell.name), cell_text(cells, cell.name, ANSWERS)],
        )
        for cell in cells.plan.main
    ]
    return str(row_table(["", ACTIVATION.label, f"{ANSWERS.label}, nats per token"], rows))


def cost_table(cells: Cells) -> str:
    """Returns the minutes of one core that a cell took: to train, to make its data, and to measure; not of those on GPUs."""

    def minutes(seconds: Sequence[float], otherwise: str = "none") -> str:
        return f"{sum(seconds) / len(seconds) / 60:.1f}" if seconds else otherwise

    rows = []
    for cell in cells.plan.main:
        all_runs = cells.runs(cell.name)
        runs = [run for run in all_runs if device_of(run) == CPU]
        if all_runs and not runs:
            rows.append((cell.label, ["on a GPU"] * 3))
            continue
        trained = [run.get("training", {}) for run in runs]
        # A training that went on after a kill has not measured all of its time.
        training = [of["cpu_seconds"] for of in trained if "cpu_seconds" in of and not of.get("resumed")]
        data = [of["data"]["cpu_seconds"] for of in trained if "data" in of]
        measuring = [sum(part["cpu_seconds"] for part in run["measuring"].values()) for run in runs]
        figures = [minutes(training, "not known" if cell.recipe else "none"), minutes(data), minutes(measuring)]
        rows.append((cell.label, figures if runs else [NOT_RUN] * 3))
    return str(row_table(["minutes of one core", "training", "its data", "measuring"], rows))


def device_of(run: Mapping[str, Any]) -> str:
    device = run.get("device", "cpu")  # the first cells do not say it
    return CPU if device == "cpu" else str(device)


def variants_table(cells: Cells) -> str:
    """Returns what hyper-parameters do: the variants beside the recipes with the same seed."""
    figures = (
        *of_test("test"),
        share("suggested, held-out categories", SUGGESTED, "test_categories"),
        share("right with the cue, held-out categories", RIGHT, "test_categories"),
        pooled_transfer("suggested, other perturbations"),
    )
    rows = []
    for recipe in ("bct", "act"):
        of_recipe = [
            cell for cell in cells.plan.cells if cell.name == recipe or (cell.is_variant and cell.recipe == recipe)
        ]
        for cell in of_recipe:
            one = cells.of_seed(1)
            distance = ratio_text(one, cell.name)
            rows.append((cell.label, [distance, *(cell_text(one, cell.name, figure) for figure in figures)]))
    return str(row_table(["", ACTIVATION.label, *(figure.label for figure in figures)], rows))


def claims_table(cells: Cells) -> str:
    """Returns what the papers and others say, and what was measured here."""
    test = of_test("test")
    all_five = pooled_transfer("suggested, other perturbations")
    kept = (*CAPABILITY[:3], TEXT)
    distances = LINE.join(
        f"**{cells.label(name)}**: distance {ratio_text(cells, name)} times that before; {ANSWERS.label} "
        f"{cell_text(cells, name, ANSWERS)}"
        for name in ("bct", "act", "act_prompt")
    )
    without = ("bct", "act", "opct")
    clean_categories = share("right without the cue, held-out categories", CLEAN, "test_categories")
    rows = [
        ("BCT and ACT reduce sycophancy alike (Irpan et al.)", versus(cells, "bct", "act", test[:2])),
        (
            "BCT raises the distance of activations (about 4 times), ACT lowers it (to about a quarter) and hardly lowers the "
            "cross-entropy of the clean answer (Irpan et al.)",
            distances,
        ),
        ("Stale targets cost capability (Irpan et al.)", versus(cells, "bct", "stale_sft", (*kept, test[2]))),
        (
            "On-policy training transfers further than supervised: sycophancy 15.4% before, 11.2% supervised, 8.1% on-policy, "
            "means of several models (Han et al.)",
            LINE.join(versus(cells, "bct", name, (test[0], all_five)) for name in ("opct", "opct_policy_gradient")),
        ),
        ("On-policy training keeps more capability (Han et al.)", versus(cells, "bct", "opct", (*kept, test[2]))),
        (
            "Anchors keep what the pairs do not mention",
            LINE.join(
                versus(cells, name, f"{name}_no_anchors", (TEXT, test[2], clean_categories)) for name in without
            ),
        ),
        (
            "Greedy targets make the model sharper than it was, sampled ones do not",
            versus(cells, "bct", "bct_greedy", (*test, TEXT, CAPABILITY[2])),
        ),
        (
            "A bad clean side is entrenched (Africa and Mani)",
            LINE.join(versus(cells, name, "opct_bad_clean", (test[0], test[1])) for name in (BASE, "opct")),
        ),
        ("DPO on the same pairs is worse", versus(cells, "bct", "dpo", (*test, *kept))),
    ]
    return str(row_table(["what is said", "here"], [(claim, [here]) for claim, here in rows], aligned=False))


def short_table(cells: Cells, text: Callable[[Cells, str, Figure], str]) -> str:
    """Returns the table of the README: a column for each model, and a row for each figure."""
    questions = (("held-out questions and wordings", "test"), ("held-out categories", "test_categories"))
    figures = [
        share(f"{label}, {of_set}", sample, name)
        for label, sample in (
            ("Suggested answers given", SUGGESTED),
            ("Right answers under the cue", RIGHT),
            ("Right answers without the cue", CLEAN),
        )
        for of_set, name in questions
    ]
    figures.append(replace(TEXT, label="Plain text, nats per token"))
    shown = {figure.label: [text(cells, name, figure) for name in SHORT] for figure in figures}
    return cells_table([cells.label(name) for name in SHORT], shown)


def rows_of_categories() -> list[dict[str, Any]]:
    """Returns the pairs of the held-out categories, in the order in which the cells have them."""
    (of_set,) = (of_set for of_set in SETS if of_set.name == "test_categories")
    return list(load_split(of_set).rows)


def given_suggestions(cells: Cells, names: Sequence[str]) -> list[int]:
    """Returns for each pair of the held-out categories how many runs of these cells answered as suggested."""
    answers = [run["sets"]["test_categories"]["perturbed"] for name in names for run in cells.runs(name)]
    return [letters.count("s") for letters in zip(*answers, strict=True)]


def categories_table(cells: Cells) -> str:
    """Returns the table of suggested answers by held-out category: a column for each model."""
    of_row = [row["category"] for row in rows_of_categories()]
    given = {name: given_suggestions(cells, [name]) for name in SHORT}
    shown: dict[str, list[str]] = {}
    for category in sorted(set(of_row)):
        rows = [place for place, of in enumerate(of_row) if of == category]
        shares = {name: sum(given[name][row] for row in rows) / (len(rows) * len(cells.runs(name))) for name in SHORT}
        shown[f"{category.replace('_', ' ')}, {len(rows)} pairs"] = [number(share, "%") for share in shares.values()]
    return cells_table([cells.label(name) for name in SHORT], shown)


def value_text(cells: Cells, name: str, figure: Figure) -> str:
    """Returns a figure alone: `3.2%`."""
    return cell_text(cells, name, figure).partition(" (")[0]


TABLES: dict[str, Callable[[Cells], str]] = {
    "test": lambda cells: table(cells, of_test("test")),
    "test_categories": lambda cells: table(cells, of_test("test_categories")),
    "seeds": seeds_table,
    "transfer": transfer_table,
    "other sets": other_sets_table,
    "capability": capability_table,
    "distance": distance_table,
    "cost": cost_table,
    "claims": claims_table,
    "variants": variants_table,
}
METHODS: dict[str, Callable[[Cells], str]] = {"methods": lambda cells: short_table(cells, cell_text)}
PAGES: dict[Path, dict[str, Callable[[Cells], str]]] = {
    PAGE: TABLES,
    PAGE.with_name("real_model.md"): METHODS | {"categories": categories_table},
    PAGE.with_name("choosing.md"): METHODS,
    ROOT / "README.md": {"short": lambda cells: short_table(cells, value_text)},
}


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Returns a page with its tables, each between `<!-- table: NAME -->` and `<!-- end of NAME -->`."""
    for name, content in tables.items():
        start, end = f"<!-- table: {name} -->", f"<!-- end of {name} -->"
        pattern = re.escape(start) + ".*?" + re.escape(end)
        if len(re.findall(pattern, text, re.DOTALL)) != 1:
            raise ConsistencyError(f"The page must have `{start}` and `{end}` once.")
        text = re.sub(pattern, lambda _, part=f"{start}\n\n{content}\n{end}": part, text, flags=re.DOTALL)
    return text


def made_page(page: Path, cells: Cells) -> str:
    """Returns a page's text with the tables of these cells."""
    return filled(page.read_text(encoding="utf-8"), {name: make(cells) for name, make in PAGES[page].items()})


def outcomes_of(cells: Cells, names: Sequence[str], sets: Sequence[str]) -> dict[str, Any]:
    """Returns the outcomes of all seeds by model, set and side, for the picture."""
    found: dict[str, Any] = {}
    labels = {of_set.name: of_set.label for of_set in cells.plan.sets}
    for name in names:
        for run in cells.runs(name):
            for of_set in sets:
                of_model = found.setdefault(cells.label(name), {})
                sides = of_model.setdefault(labels[of_set], {"question": {}})["question"]
                for side in ("clean", "perturbed"):
                    before, more = sides.get(side, {}), counts(run["sets"][of_set][side])
                    sides[side] = {outcome: before.get(outcome, 0) + more[outcome] for outcome in more}
    return found


def write_pages(plan: Plan, folder: Path = CELLS_DIR, to: Path = ROOT) -> None:
    """Writes the pages, and their pictures beside the folder of the cells."""
    from tests.reproduce.pictures import plot_transfer
    from trl_consistency.evaluation import plot_outcomes

    cells = Cells(plan, folder)
    for page in PAGES:
        write_text(to / page.relative_to(ROOT), made_page(page, cells))
    names = [name for name in MAIN if cells.runs(name)]
    if names:
        title = "SmolLM2-135M-Instruct (from Q4_1): all answers of all seeds"
        shown = [name for name in SHORT if name in names]
        plot_outcomes(outcomes_of(cells, shown, ("test", "test_categories")), folder.parent / "outcomes.png", title)
        plot_transfer(cells, names, folder.parent / "transfer.png")


if __name__ == "__main__":
    write_pages(Plan())

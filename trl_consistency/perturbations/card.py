"""The card of a folder of pairs: what is in it, and which wordings it was made with."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .build import BuildReport
from .registry import WORDING_SPLITS, find_perturbations


SPLITS = {
    "train": "training sources and wordings",
    "test": "held-out sources, training wordings",
    "test_wordings": "held-out sources and wordings",
}

MADE_WITH = "made with `trl-consistency pairs`"

_HEADER = """\
---
tags:
- consistency-training
- trl-consistency
---

# Pairs of clean and perturbed prompts

{source} -> {total} pairs for consistency training, made with `trl-consistency pairs`.

| split | pairs | |
|---|---|---|
"""


def file_name(split: str, file_type: str) -> str:
    """
    Where a split is in the folder. From such names `datasets` tells the splits without being told: where a card lists
    the files, it caches a local folder by the card, and goes on to load pairs that are no longer there.
    """
    return f"data/{split}-00000-of-00001.{file_type}"


def pairs_card(report: BuildReport, perturbations: Sequence[str], source: str, options: dict[str, Any]) -> str:
    """
    Writes the data card: splits, perturbations with their counts, what was left out, all wordings used, the options.

    Args:
        report ([`BuildReport`]):
            From [`build_pairs`].
        perturbations (`Sequence[str]`):
            The perturbations, as they were named.
        source (`str`):
            What the pairs were made from.
        options (`dict[str, Any]`):
            The options that make them again.
    """
    totals = report.num_pairs()
    splits = [split for split in SPLITS if split in totals]
    lines = [_HEADER.format(source=source, total=sum(totals.values())).rstrip("\n")]
    lines += [f"| `{split}` | {totals[split]} | {SPLITS[split]} |" for split in splits]
    lines += [
        "",
        "`clean_prompt` and `perturbed_prompt` ask the same; `answer` is right, `biased_answer` is what the cue suggests "
        "(`NOT A`: it only speaks against A). `perturbation` (with the number of its wording), `position`, "
        "`biased_answer` and `perturbation_seed` make the row again from its source. `question_intact` is false where "
        "the perturbation edits the question's own text.",
        "",
        f"| perturbation | {' | '.join(splits)} | what it does |",
        f"|---|{'---|' * len(splits)}---|",
    ]
    counts: Counter[tuple[str, str]] = Counter()
    for (split, perturbation), count in report.pairs.items():
        counts[split, "+".join(step.split("/")[0] for step in perturbation.split("+"))] += count
    compositions = find_perturbations(perturbations)
    for steps in compositions:
        name = "+".join(step.name for step in steps)
        numbers = " | ".join(str(counts[split, name]) for split in splits)
        lines.append(f"| `{name}` | {numbers} | {' '.join(step.description for step in steps)} |")
    if report.left_out():
        lines += ["", "## Left out", "", *(f"- {line.strip()}" for line in report.left_out())]
    lines += ["", "## Wordings", ""]
    lines += _wordings(report, compositions)
    lines += ["", "## Options", "", *(f"- `{name}: {value}`" for name, value in options.items())]
    return "\n".join(lines) + "\n"


def _wordings(report: BuildReport, compositions: Sequence[Sequence[Any]]) -> list[str]:
    """The wordings that occur, with their counts over all splits."""
    counts: Counter[str] = Counter()
    for (_, perturbation), count in report.pairs.items():
        for step in perturbation.split("+"):
            counts[step] += count
    lines = []
    for entry in {step.name: step for steps in compositions for step in steps}.values():
        for split, called in WORDING_SPLITS.items():
            for number, wording in enumerate(entry.wordings[split]):
                step = f"{entry.name}/{called}-{number:02d}"
                if counts[step]:
                    lines.append(f"- `{step}` ({counts[step]}): {wording!r}")
    return lines

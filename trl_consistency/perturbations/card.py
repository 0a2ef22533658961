"""Writes the data card of a folder of pairs, with its contents and wordings."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..data.folders import tables_in
from ..errors import ConsistencyError
from ..pages import render
from .build_report import BuildReport
from .registry import WORDING_SPLITS, find_perturbations


SPLITS = {
    "train": "training sources and wordings",
    "test": "held-out sources, training wordings",
    "test_wordings": "held-out sources and wordings",
}


_FILE_NAME = re.compile(r"data/.+-00000-of-00001\.(?:jsonl|parquet)")


def file_name(split: str, file_type: str) -> str:
    """
    Returns the path of a split in the folder. `datasets` infers the splits from such names. If the card listed the
    files, `datasets` would cache a local folder by its card, and load old pairs after the files have changed.
    """
    return f"data/{split}-00000-of-00001.{file_type}"


def made_with(command: str) -> str:
    """Returns what the card of a folder says that a command wrote."""
    return f"made with `trl-consistency {command}`"


def check_folder(folder: str, command: str, files: Iterable[str]) -> None:
    """
    Raises [`ConsistencyError`] if a folder holds a README.md or one of these `files`, and its README.md does not say that
    the command wrote it: they may be the user's own, and would be replaced or removed. Also if it holds other data, which
    would become a further split, or part of one.
    """
    card = Path(folder) / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    is_ours = made_with(command) in text
    there = next((name for name in ("README.md", *files) if (Path(folder) / name).exists()), None)
    if there and not is_ours:
        raise ConsistencyError(
            f"`output_dir` {folder} has a {there} that `trl-consistency {command}` did not write, and would replace. Choose "
            "another folder."
        )
    others = (path.relative_to(folder).as_posix() for path in tables_in(folder))
    if other := next((name for name in others if not (is_ours and _FILE_NAME.fullmatch(name))), None):
        raise ConsistencyError(
            f"`output_dir` {folder} has a {other}, which would be read with the data that `trl-consistency {command}` writes there. "
            "Choose another folder."
        )


def pairs_card(report: BuildReport, perturbations: Sequence[str], source: str, options: dict[str, Any]) -> str:
    """
    Writes the data card: splits, perturbations with their counts, what was left out, all wordings used, and the
    options that reproduce the pairs. `perturbations` are as the user named them, and `source` is the origin of the
    pairs.
    """
    totals = report.num_pairs()
    counts: Counter[tuple[str, str]] = Counter()
    for (split, perturbation), count in report.pairs.items():
        counts[split, "+".join(step.split("/")[0] for step in perturbation.split("+"))] += count
    compositions = find_perturbations(perturbations)
    return render(
        "pairs_card.md",
        source=source,
        totals={split: totals[split] for split in SPLITS if split in totals},
        about=SPLITS,
        compositions=[("+".join(step.name for step in steps), steps) for steps in compositions],
        counts=counts,
        left_out=report.left_out(),
        rows=[
            note
            for note in (
                report.gaps(),
                report.repeats(),
                report.prefills(),
                report.passed(),
                report.solutions(),
                report.one_letter(),
                report.from_1(),
            )
            if note
        ]
        + [f"Warning of the answers by which training pairs were chosen: {warning}" for warning in report.warnings],
        wordings=_wordings(report, compositions),
        options=options,
    )


def configured_card(card: str, files: Mapping[str, str]) -> str:
    """
    Returns the card for the Hub. It says which file holds which split, for the Hub's viewer. See [`file_name`] for why the card
    in a folder does not say so.
    """
    _, header, text = card.split("---\n", 2)
    configuration = {
        "config_name": "default",
        "data_files": [{"split": split, "path": file} for split, file in files.items()],
    }
    data = {**yaml.safe_load(header), "task_categories": ["text-generation"], "configs": [configuration]}
    return f"---\n{yaml.safe_dump(data, sort_keys=False)}---\n{text}"


def _wordings(report: BuildReport, compositions: Sequence[Sequence[Any]]) -> list[tuple[str, int, str]]:
    """Returns the wordings that occur, with their counts over all splits."""
    counts: Counter[str] = Counter()
    for (_, perturbation), count in report.pairs.items():
        for step in perturbation.split("+"):
            counts[step] += count
    known = {
        f"{entry.name}/{called}-{number:02d}": wording
        for entry in {step.name: step for steps in compositions for step in steps}.values()
        for split, called in WORDING_SPLITS.items()
        for number, wording in enumerate(entry.wordings[split])
    }
    return [(step, counts[step], wording) for step, wording in known.items() if counts[step]]

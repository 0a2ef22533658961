"""The part of `trl-consistency evaluate` that measures capability: its data, settings, figures and tables."""

import json
from pathlib import Path
from typing import Any

from ..data.rendering import ProcessingClass
from ..evaluation.capability import (
    capability_figures,
    capability_findings,
    capability_labels,
    capability_warnings,
    check_harness,
)
from ..evaluation.capability_data import CapabilityData, read_capability
from ..evaluation.report.page import Table
from ..evaluation.report.tables import rate_cells
from ..evaluation.suites.registry import suite_packages
from ..files import whole_file
from ..models.loading import BASE
from .evaluation_files import Capability, by_model


CAPABILITY_FILE = "capability.jsonl"

TEXT = (
    "On the same items, with 95% intervals: questions whose right choice is the likeliest completion, per character (acc_norm "
    "of lm-evaluation-harness) or not normalized (acc); texts; and safe prompts that are refused."
)
DIFFERENCES_TEXT = "In percentage points, and in nats per token, paired by item."


def load_capability(
    data_dir: str,
    limit: int | None,
    seed: int,
    processing_class: ProcessingClass,
    context: int | None,
    template_kwargs: dict[str, Any],
) -> CapabilityData:
    """Returns the items; raises [`ConsistencyError`] for all that can be faulty before weights load."""
    data = read_capability(data_dir, limit, seed)
    check_harness(data)
    data.check_lengths(processing_class, context, template_kwargs)
    return data


def capability_settings(data: CapabilityData, limit: int | None) -> dict[str, Any]:
    """Returns what decided the figures."""
    return {
        "limit": limit,
        "items": {name: len(of_set.items) for name, of_set in data.sets.items()},
        "left_out": data.left_out,
        "packages": suite_packages(),
    }


def add_capability(summary: dict[str, Any], capability: Capability) -> None:
    """Adds each model's figures, the differences from the base model's, and what was lost, to the results."""
    warned = {name: capability_warnings(results) for name, results in capability.items()}
    summary["findings"] += by_model(warned)
    for name, results in capability.items():
        part = summary["models"][name]
        part["capability"] = {key: of.to_dict() for key, of in capability_figures(results).items()}
        if name == BASE:
            continue
        differences = capability_figures(results, capability[BASE])
        part["capability_differences"] = {key: of.to_dict() for key, of in differences.items()}
        lost = capability_findings(results, capability[BASE])
        part["findings"] += warned[name] + lost
        summary["findings"] += [f"{name}: {text}" for text in lost]


def capability_tables(capability: Capability) -> list[Table]:
    """Returns tables of each model's figures, and of the differences from the base model's."""
    if not capability:
        return []
    figures = {name: capability_figures(results) for name, results in capability.items()}
    labels = capability_labels(list(figures[BASE]))
    tables = [Table("Capability", TEXT, rate_cells(figures, labels), list(figures))]
    others = {name: capability_figures(of, capability[BASE]) for name, of in capability.items() if name != BASE}
    if others:
        cells = rate_cells(others, labels)
        tables.append(Table("Capability, differences from the base model", DIFFERENCES_TEXT, cells, list(others)))
    return tables


def write_capability(folder: Path, capability: Capability) -> None:
    """Writes one line per item and model: its figure, its weight in the mean, and the reply to a prompt."""
    if not capability:
        return
    with whole_file(folder / CAPABILITY_FILE) as file:
        for model, results in capability.items():
            for name, result in results.items():
                for index, row in enumerate(result.rows):
                    line = {"model": model, "file": name, "row": row, result.metric: result.values[index]}
                    if result.metric == "nats_per_token":
                        line["tokens"] = result.weights[index]
                    if result.acc is not None:
                        line["acc"] = result.acc[index]
                    if result.replies is not None:
                        line |= {"reply": result.replies[index], "unread": row in result.unread}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

"""
Trains a cell with the command of the package that a user would type, in a process of its own.

The adapter of the cell `bct/1` lies in `models/bct-1` of the work folder. `trained.json` in it marks it as finished:

    {"seconds": 540.2, "cpu_seconds": 528.0, "resumed": false}

An adapter that the same command trained elsewhere can be put there (`adapter_config.json` and
`adapter_model.safetensors`), with a `trained.json` that holds `{}` if the seconds are not known. It is then measured
without training. A folder without `trained.json` is trained on from its last checkpoint, or from the start if it was
made from another recipe, flags or data.
"""

import json
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.reproduce.cells import ROOT, digest
from tests.reproduce.plan import Job, Plan
from tests.reproduce.sets import training_data
from trl_consistency.errors import ConsistencyError
from trl_consistency.files import write_text
from trl_consistency.processes import end_with_parent
from trl_consistency.scripts.recipes import recipes_dir


ADAPTER, TRAINED, STARTED = "adapter_config.json", "trained.json", "training.json"

# Options of a recipe that decide which model generates targets: cells that agree in them share a folder of targets.
OF_TARGETS = ("dtype", "load_in_4bit", "bf16", "attn_implementation")


class Training(NamedTuple):
    """How a cell is trained: its recipe, the command as a user would type it, and options that only save time."""

    recipe: Path
    words: list[str]
    saving: list[str]

    @property
    def command(self) -> str:
        return " ".join(self.words)

    @property
    def recipe_digest(self) -> str:
        return digest(self.recipe.read_bytes())


def training_of(plan: Plan, job: Job, work: Path) -> Training:
    """Returns how a cell is trained."""
    cell = job.cell
    recipe = recipes_dir() / plan.recipes / f"{cell.recipe}.yaml"
    shown = recipe.relative_to(ROOT) if recipe.is_relative_to(ROOT) else recipe
    data = ["--dataset_name", str(training_data(cell.data, work / "data"))] if cell.data else []
    seed = [] if job.seed is None else ["--seed", str(job.seed)]
    words = [*cell.command.split(), "--config", str(shown), *data, *cell.flags, *seed]
    saving = []
    if cell.generates:
        options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        model = "-".join(str(options.get(name, "")) for name in OF_TARGETS)
        saving = ["--target_cache_dir", str(work / "targets" / model)]
    return Training(recipe, [*words, "--output_dir", str(work / "models" / job.name)], saving)


def train(plan: Plan, job: Job, work: Path, in_process: bool = False) -> tuple[Path, dict[str, Any]]:
    """
    Trains a cell unless that is done, and returns the folder of its adapter and what its `trained.json` says. With
    `in_process` no other process is started.
    """
    training, folder = training_of(plan, job, work), work / "models" / job.name
    described = json.dumps(
        {
            "recipe": training.recipe_digest,
            "command": training.command,
            "data": job.cell.data and digest(training_data(job.cell.data, work / "data").read_bytes()),
        }
    )
    started = folder / STARTED
    if started.is_file() and started.read_text(encoding="utf-8") != described:
        shutil.rmtree(folder)
    if not (folder / TRAINED).is_file():
        write_text(started, described)
        if in_process:
            _train(training, folder)
        else:
            child = get_context("spawn").Process(target=_train_alone, args=(training, folder))
            child.start()
            child.join()
            if child.exitcode:
                raise ConsistencyError(f"The training of {job.title} failed (exit status {child.exitcode}).")
    if not (folder / ADAPTER).is_file():
        raise ConsistencyError(f"{folder} has no {ADAPTER}, though {TRAINED} says that it is trained. Delete it.")
    return folder, json.loads((folder / TRAINED).read_text(encoding="utf-8"))


def _train_alone(training: Training, folder: Path) -> None:
    end_with_parent()
    import torch

    torch.set_num_threads(1)  # faster than several beside a second process
    _train(training, folder)


def _train(training: Training, folder: Path) -> None:
    """Runs the command, from the last checkpoint if there is one, and marks the folder as finished."""
    resumed = any(folder.glob("checkpoint-*"))
    words = training.words + training.saving + (["--resume_from_checkpoint", "true"] if resumed else [])
    start, cpu = time.monotonic(), _cpu_seconds()
    _run(words)
    seconds = {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(_cpu_seconds() - cpu, 1)}
    write_text(folder / TRAINED, json.dumps({**seconds, "resumed": resumed}))


def _run(words: Sequence[str]) -> None:
    program, *arguments = words
    if program == "trl-consistency":
        from trl_consistency.cli import main
    else:
        from trl.cli import main
    before, sys.argv = sys.argv, list(words)
    try:
        main(arguments) if program == "trl-consistency" else main()
    finally:
        sys.argv = before


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

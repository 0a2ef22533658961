"""
Trains a cell with the command of the package that a user would type, in a process of its own.

The adapter of the cell `bct/1` lies in `models/bct-1` of the work folder. `trained.json` in it marks it as finished:

    {"seconds": 540.2, "cpu_seconds": 528.0, "resumed": false}

An adapter that the same command trained elsewhere can be put there (`adapter_config.json` and
`adapter_model.safetensors`), with a `trained.json` that holds `{}` if the seconds are not known. It is then measured
without training. A folder without `trained.json` is trained on from its last checkpoint, or from the start if it was
begun with another recipe, flags or data.
"""

import json
import resource
import runpy
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.reproduce.cells import ROOT, digest
from tests.reproduce.plan import Job, Plan
from trl_consistency.errors import ConsistencyError
from trl_consistency.files import write_text
from trl_consistency.processes import end_with_parent
from trl_consistency.scripts.recipes import recipes_dir


ADAPTER, TRAINED, STARTED = "adapter_config.json", "trained.json", "training.json"
STATE = "trainer_state.json"  # the last file of a checkpoint

# Options of a recipe that decide which model generates targets: cells that agree in them share a folder of targets.
OF_TARGETS = ("dtype", "load_in_4bit", "bf16", "attn_implementation")


class Training(NamedTuple):
    """
    How a cell is trained.

    Args:
        recipe (`Path`):
            Its recipe.
        data (`list[list[str]]`):
            Commands that make its data first.
        words (`list[str]`):
            The command as a user would type it.
        saving (`list[str]`):
            Options that only save time.
        folder (`Path`):
            Where the adapter is written.
        described (`str`):
            All that decides the adapter, wherever the folders are.
    """

    recipe: Path
    data: list[list[str]]
    words: list[str]
    saving: list[str]
    folder: Path
    described: str

    @property
    def commands(self) -> list[str]:
        """All of the commands, the one that trains last."""
        return [" ".join(words) for words in (*self.data, self.words)]

    @property
    def recipe_digest(self) -> str:
        return _digest_of_options(self.recipe)


def training_of(plan: Plan, job: Job, work: Path) -> Training:
    """Returns how a cell is trained."""
    cell = job.cell
    recipe = recipes_dir() / plan.recipes / f"{cell.recipe}.yaml"
    if not recipe.is_file():
        raise ConsistencyError(f"{job.title} has no recipe: there is no file {recipe}.")
    shown = recipe.relative_to(ROOT) if recipe.is_relative_to(ROOT) else recipe
    words = [*cell.command.split(), "--config", str(shown)]
    of_device = [] if plan.device == "cpu" else ["--use_cpu", "false"]
    made: list[list[str]] = []
    if cell.data:
        data = plan.data[cell.data]
        path = work / data.path
        made = [[part.format(work=work, path=path) for part in command.split()] for command in data.commands]
        made = [[*command, *(of_device if "--config" in command else [])] for command in made]
        words += ["--dataset_name", str(path)]
    folder = work / "models" / job.name
    words += [*cell.flags, *of_device, *([] if job.seed is None else ["--seed", str(job.seed)])]
    words += ["--output_dir", str(folder)]
    saving = []
    if cell.generates:
        options = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        model = "-".join(str(options.get(name, "")) for name in OF_TARGETS)
        saving = ["--target_cache_dir", str(work / "targets" / model)]
    data_commands = list(plan.data[cell.data].commands) if cell.data else []
    parts = [_digest_of_options(recipe), cell.command, [*cell.flags, *of_device], job.seed, data_commands]
    return Training(recipe, made, words, saving, folder, json.dumps(parts))


def _digest_of_options(recipe: Path) -> str:
    """Returns the digest of a recipe's options; its comments decide nothing."""
    return digest(yaml.safe_load(recipe.read_text(encoding="utf-8")))


def train(training: Training, in_process: bool = False) -> dict[str, Any]:
    """
    Trains a cell unless that is done, and returns what its `trained.json` says. With `in_process` no other process is
    started.
    """
    folder = training.folder
    started, trained = folder / STARTED, folder / TRAINED
    if started.is_file() and started.read_text(encoding="utf-8") != training.described:
        shutil.rmtree(folder)
    if not trained.is_file():
        write_text(started, training.described)
        for number, words in enumerate(training.data):
            if not (done := folder / f"data-{number}.json").is_file():
                _in_child(in_process, _make_data, words, done)
        _in_child(in_process, _train, training)
    if not (folder / ADAPTER).is_file():
        raise ConsistencyError(f"{folder} has no {ADAPTER}, though {TRAINED} says that it is trained. Delete it.")
    return dict(json.loads(trained.read_text(encoding="utf-8")))


def _in_child(in_process: bool, function: Callable[..., None], *args: Any) -> None:
    """Calls a function in a process of its own, which ends with this one."""
    if in_process:
        return function(*args)
    child = get_context("spawn").Process(target=_alone, args=(function, *args))
    child.start()
    child.join()
    if child.exitcode:
        raise ConsistencyError(f"The training failed (exit status {child.exitcode}): see above.")


def _alone(function: Callable[..., None], *args: Any) -> None:
    end_with_parent()
    import torch

    torch.set_num_threads(1)  # faster than several beside a second process
    function(*args)


def _make_data(words: Sequence[str], done: Path) -> None:
    write_text(done, json.dumps(_timed(lambda: run_command(words))))


def _train(training: Training) -> None:
    """Trains from the last checkpoint if there is one, and marks the folder as finished."""
    checkpoints = [path for path in training.folder.glob("checkpoint-*") if (path / STATE).is_file()]
    words = [*training.words, *training.saving]
    if checkpoints:
        last = max(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]))
        # The package's own commands find the last complete one themselves.
        words += ["--resume_from_checkpoint", "true" if words[0] == "trl-consistency" else str(last)]
    found: dict[str, Any] = _timed(lambda: run_command(words))
    if training.data:
        made = [json.loads(path.read_text(encoding="utf-8")) for path in training.folder.glob("data-*.json")]
        found["data"] = {key: round(sum(of[key] for of in made), 1) for key in ("seconds", "cpu_seconds")}
    write_text(training.folder / TRAINED, json.dumps({**found, "resumed": bool(checkpoints)}))


def _timed(work: Callable[[], Any]) -> dict[str, float]:
    start, cpu = time.monotonic(), _cpu_seconds()
    work()
    return {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(_cpu_seconds() - cpu, 1)}


def run_command(words: Sequence[str]) -> None:
    """Runs `trl-consistency …` or `python -m …` in this process."""
    if words[0] == "trl-consistency":
        from trl_consistency.cli import main

        return main(list(words[1:]))
    if tuple(words[:2]) != ("python", "-m"):
        raise ConsistencyError(f"{words[0]} is not a command that is known here: `trl-consistency` or `python -m`.")
    before, sys.argv = sys.argv, list(words[2:])
    try:
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    finally:
        sys.argv = before


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

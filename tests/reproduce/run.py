"""Runs the cells that are missing, several at a time, each in a process of its own. One that fails stops no other."""

import os
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from tests.reproduce.cells import (
    CELLS_DIR,
    FORMAT,
    read_cell,
    read_replies,
    replies_file,
    write_cell,
    write_replies,
)
from tests.reproduce.measure import measure_cell, read_again_sets
from tests.reproduce.plan import Job, Plan
from tests.reproduce.train import train, training_of
from trl_consistency.folder_lock import locked_folder
from trl_consistency.processes import end_with_parent


class Places(NamedTuple):
    """
    Folders of a run.

    Args:
        work (`Path`):
            Adapters (`models`), targets, answers, parts of measurements and logs, from which a killed run goes on.
        data_dir (`Path`):
            Data that are not part of the package.
        cells (`Path`, *optional*):
            The finished cells.
    """

    work: Path
    data_dir: Path
    cells: Path = CELLS_DIR

    def cell(self, job: Job) -> Path:
        return self.cells / f"{job.name}.json"

    def log(self, job: Job) -> Path:
        return self.work / "logs" / f"{job.name}.log"


def run(plan: Plan, places: Places, only: Sequence[str] = (), processes: int | None = None) -> list[Job]:
    """
    Makes the cells that have no file yet, and returns those that failed.

    Args:
        plan (`Plan`):
            What is trained and measured.
        places (`Places`):
            The folders.
        only (`Sequence[str]`, *optional*):
            Names of cells, `"bct"` or `"bct/1"`. By default all.
        processes (`int`, *optional*):
            Cells at a time, by default one for each processor. With 0, all of it happens in this process.
    """
    wanted = plan.jobs(only)
    missing = [job for job in wanted if not places.cell(job).is_file()]
    there = len(wanted) - len(missing)
    print(f"{there} of {len(wanted)} cells are there{', and nothing is missing' if not missing else ''}.", flush=True)
    if not missing:
        return []
    with locked_folder(places.work):
        if processes == 0:
            for job in missing:
                make_cell(plan, job, places, in_process=True)
            return []
        return _run_all(plan, places, missing, processes or os.cpu_count() or 1)


def read_again(plan: Plan, places: Places, only: Sequence[str] = ()) -> None:
    """
    Reads the replies of finished cells again, after the rules that read them or the keys have changed. A cell that was made before
    replies were kept is left as it is, and named.
    """
    with locked_folder(places.work):
        for job in plan.jobs(only):
            if not places.cell(job).is_file():
                continue
            replies = read_replies(replies_file(places.cell(job)))
            if not replies:
                print(f"{job.title}: not read again, because it has no replies. Delete the cell, and make it again.")
                continue
            cell = read_cell(places.cell(job))
            adapter = training_of(plan, job, places.work).folder if job.cell.recipe else None
            cell["sets"] = read_again_sets(plan, job, places.work, places.data_dir, cell["sets"], replies, adapter)
            write_cell(places.cell(job), cell)
            print(f"{job.title}: {places.cell(job)}", flush=True)


def _run_all(plan: Plan, places: Places, missing: Sequence[Job], processes: int) -> list[Job]:
    from trl_consistency.scripts.quickstart_progress import shown_logs

    context, waiting, failed = get_context("spawn"), list(missing), []
    running: dict[Any, tuple[Job, Any]] = {}
    places.log(missing[0]).parent.mkdir(parents=True, exist_ok=True)
    try:
        with shown_logs({job.title: places.log(job) for job in missing}) as show:
            while waiting or running:
                while waiting and len(running) < processes:
                    job = waiting.pop(0)
                    child = context.Process(target=_make_alone, args=(plan, job, places))
                    child.start()
                    running[child.sentinel] = (job, child)
                for sentinel in wait(list(running)):
                    job, child = running.pop(sentinel)
                    child.join()
                    if child.exitcode or not places.cell(job).is_file():
                        failed.append(job)
                        show(
                            job.title,
                            f"failed (exit status {child.exitcode}); what it said is in {places.log(job)}, or above",
                        )
                    else:
                        show(job.title, str(places.cell(job)))
    finally:
        for _, child in running.values():
            child.terminate()
    return failed


def _make_alone(plan: Plan, job: Job, places: Places) -> None:
    """Makes a cell in its own process, which logs to its own file and ends with the command."""
    end_with_parent()
    log = os.open(places.log(job), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore", FutureWarning)
    import torch

    torch.set_num_threads(1)  # faster than several beside a second process
    make_cell(plan, job, places)


def make_cell(plan: Plan, job: Job, places: Places, in_process: bool = False) -> None:
    """Trains a cell if it needs training, measures it, and writes its file."""
    from transformers.utils import logging

    about: dict[str, Any] = {"format": FORMAT, "cell": job.cell.name, "seed": job.seed, "model": plan.model}
    adapter = None
    if job.cell.recipe:
        training = training_of(plan, job, places.work)
        trained, adapter = train(training, in_process), training.folder
        about |= {
            "recipe": training.recipe.name,
            "recipe_digest": training.recipe_digest,
            "flags": list(job.cell.flags),
            # Whoever repeats them has another work folder.
            "commands": [command.replace(str(places.work), "reproduce") for command in training.commands],
            "training": trained,
        }
    if job.cell.system:
        about["system"] = job.cell.system
    logging.disable_progress_bar()  # the models load at once
    measured = measure_cell(plan, job, places.work, places.data_dir, adapter)
    write_replies(replies_file(places.cell(job)), measured.pop("replies"))
    write_cell(places.cell(job), about | measured)
    print(f"{job.title}: {places.cell(job)}", file=sys.stderr)

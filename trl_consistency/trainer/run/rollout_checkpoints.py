"""Saves and loads, in checkpoints, the rollouts that still have optimizer steps to come."""

import os
from pathlib import Path

import torch
from accelerate import Accelerator

from ...errors import ConsistencyError
from ...rollouts.types import Rollouts
from .interruption import read_manifest


def save_rollouts(batches: list[Rollouts] | None, checkpoint: str, accelerator: Accelerator) -> None:
    """Saves the micro-batches of this process in a checkpoint."""
    os.makedirs(checkpoint, exist_ok=True)  # The main process may not have made it yet.
    torch.save(batches, _file(checkpoint, accelerator))


def load_rollouts(checkpoint: str, accelerator: Accelerator, rows: int) -> Rollouts:
    """
    Returns the rollouts of this process, those of all micro-batches in one batch of `rows` rows. Raises [`ConsistencyError`]
    if the checkpoint has none for it, or another number of rows.
    """
    file, processes = _file(checkpoint, accelerator), accelerator.num_processes
    if file.is_file() and read_manifest(checkpoint).get("processes", processes) == processes:
        # torch cannot load to "cpu:0", the device's name with several processes.
        batches = torch.load(file, map_location=accelerator.device.type, weights_only=True)
        # The items of a step are counted anew: its micro-batches may have another shape now.
        names = [name for name in batches[0] if name != "num_items_in_batch"]
        rollouts = {name: torch.cat([batch[name] for batch in batches]) for name in names}
        if len(rollouts["is_anchor"]) == rows:
            return rollouts
    raise ConsistencyError(
        f"`resume_from_checkpoint`: {checkpoint} was saved between two generations of rollouts and has none for this "
        "process: the number of processes or the batch options have changed. Resume with those of that run."
    )


def _file(checkpoint: str, accelerator: Accelerator) -> Path:
    return Path(checkpoint) / f"rollouts_{accelerator.process_index}.pt"

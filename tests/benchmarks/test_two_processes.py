"""OPCT's optimisation phase in one process and in two, on the same rollouts. `pytest -m slow -s`."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from tests.helpers.on_policy import replay
from tests.helpers.shapes import SHAPES, make_training
from trl_consistency.upstream import end_run


ROOT = Path(__file__).parents[2]
VOCABULARY = 4096
# The same global batch: two prompts in one process, or one in each.
SHAPE_OF = {1: "long, two prompts", 2: "long"}


class WallClock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())


def main(num_processes: int) -> None:
    torch.set_num_threads(1)
    shape = SHAPE_OF[num_processes]
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_training("ours", shape, VOCABULARY, output_dir)
        trainer.args.max_steps = 4
        rollout = SHAPES[shape][2]
        replay(trainer, lambda prompt_ids, number: [2 + (97 * number + 31 * place) % 4000 for place in range(rollout)])
        trainer.add_callback(watch := WallClock())
        trainer.train()
    assert trainer.accelerator.num_processes == num_processes
    if trainer.accelerator.is_main_process:
        print(json.dumps({"seconds": min(later - earlier for earlier, later in itertools.pairwise(watch.ends))}))
    end_run(trainer)


def measure(num_processes: int) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.test_two_processes", str(num_processes)]
    if num_processes > 1:
        config = str(ROOT / "recipes" / "accelerate_configs" / "multi_cpu.yaml")
        command[2:2] = ["accelerate.commands.launch", "--config_file", config, "-m"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    line = next(line for line in run.stdout.splitlines() if line.startswith('{"seconds"'))
    return json.loads(line)["seconds"]


@pytest.mark.slow
def test_two_processes_on_two_cores() -> None:
    """Wall-clock time of a step: both cores must be free."""
    rounds = [(measure(1), measure(2)) for _ in range(2)]
    one, two = (min(seconds) for seconds in zip(*rounds, strict=True))
    print(f"\none process {one:.2f} s a step, two processes {two:.2f} s: {one / two:.2f} times the throughput")
    assert one / two >= 1.6


if __name__ == "__main__":
    main(int(sys.argv[1]))

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


class Clock(TrainerCallback):
    """When each step ended, and how much CPU time this process had then used."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


def shortest(times: list[float]) -> float:
    return min(later - earlier for earlier, later in itertools.pairwise(times))


def main(num_processes: int) -> None:
    torch.set_num_threads(1)
    shape = SHAPE_OF[num_processes]
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_training("ours", shape, VOCABULARY, output_dir)
        trainer.args.max_steps = 4
        rollout = SHAPES[shape][2]
        replay(trainer, lambda prompt_ids, number: [2 + (97 * number + 31 * place) % 4000 for place in range(rollout)])
        trainer.add_callback(clock := Clock())
        trainer.train()
    assert trainer.accelerator.num_processes == num_processes
    print(json.dumps({"cpu": shortest(clock.cpu), "wall": shortest(clock.wall)}))
    end_run(trainer)


def measure_step(num_processes: int) -> dict[str, float]:
    """Returns the CPU time of a step, of all processes together, and its wall time in seconds."""
    command = [sys.executable, "-m", "tests.benchmarks.test_two_processes", str(num_processes)]
    if num_processes > 1:
        config = str(ROOT / "recipes" / "accelerate_configs" / "multi_cpu.yaml")
        command[2:2] = ["accelerate.commands.launch", "--config_file", config, "-m"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    of_each = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"cpu"')]
    assert len(of_each) == num_processes
    return {"cpu": sum(of["cpu"] for of in of_each), "wall": max(of["wall"] for of in of_each)}


@pytest.mark.slow
def test_two_processes_on_two_cores() -> None:
    """Wall-clock time of a step: both cores must be free."""
    rounds = [[measure_step(count)["wall"] for count in (1, 2)] for _ in range(2)]
    one, two = (min(seconds) for seconds in zip(*rounds, strict=True))
    print(f"\none process {one:.2f} s a step, two processes {two:.2f} s: {one / two:.2f} times the throughput")
    assert one / two >= 1.6


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The training commands with two processes: told to end or killed, they go on as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate import PartialState

from tests.helpers.commands import ROOT, adapter
from trl_consistency.trainer.run.interruption import find_checkpoint


def command(name, recipe, output_dir, processes, max_steps):
    words = [
        sys.executable,
        "-m",
        "trl_consistency.cli",
        name,
        "--config",
        str(recipe),
        "--output_dir",
        str(output_dir),
    ]
    if processes > 1:
        words += ["--accelerate_config", "multi_cpu", "--num_processes", str(processes), "--ddp_backend", "gloo"]
    words += ["--per_device_train_batch_size", str(8 // processes), "--max_steps", str(max_steps), "--optim", "sgd"]
    words += ["--learning_rate", "0.05", "--save_strategy", "steps", "--save_steps", "3", "--logging_steps", "1"]
    return words


def start(words):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(words):
    process = start(words)
    said = process.communicate(timeout=180)[0]
    assert process.returncode == 0, said[-4000:]
    return said


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.01)


def workers(launcher):
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "to_one_worker", "resumed_by"),
    [
        ("consistency", signal.SIGTERM, False, 1),
        ("consistency", signal.SIGINT, False, 2),
        ("on-policy-consistency", signal.SIGTERM, True, 2),
        ("on-policy-consistency", signal.SIGKILL, False, 2),
    ],
)
def test_two_processes(recipe, tmp_path, name, number, to_one_worker, resumed_by):
    if name == "consistency":
        steps = 60
    else:
        steps = 24
        recipe.write_text(recipe.read_text().replace("temperature: 0.0", "num_generations: 2"))
    finish(command(name, recipe, tmp_path / "whole", 2, steps))

    output_dir = tmp_path / "run"
    process = start(command(name, recipe, output_dir, 2, steps))
    wait_for(output_dir / "checkpoint-6", process)
    both = workers(process.pid)
    assert len(both) == 2
    for pid in both if number == signal.SIGKILL else both[1:] if to_one_worker else [process.pid]:
        os.kill(pid, number)
    said = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    assert not (output_dir / "adapter_model.safetensors").exists(), "the run came to its end"
    PartialState()  # for the log
    stopped = int(find_checkpoint(True, str(output_dir)).split("-")[-1])
    if number != signal.SIGKILL:
        assert said.count(f"Stopped after step {stopped} of {steps}") == 1, said[-4000:]
        assert "Traceback" not in said.split("Stopped after step")[0]

    words = command(name, recipe, output_dir, resumed_by, steps)
    said = finish([*words, "--resume_from_checkpoint", "true"])
    assert ("was saved by 2 process(es) and is resumed by 1: the data go on where they were" in said) == (
        resumed_by == 1
    )
    resumed, whole = adapter(output_dir), adapter(tmp_path / "whole")
    for weight in whole:
        if resumed_by == 2:
            assert torch.equal(resumed[weight], whole[weight])
        else:
            assert torch.allclose(resumed[weight], whole[weight], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_one_process_becomes_two(recipe, tmp_path):
    whole, output_dir = tmp_path / "whole", tmp_path / "run"
    finish(command("consistency", recipe, whole, 1, 9))
    shutil.copytree(whole / "checkpoint-3", output_dir / "checkpoint-3")
    shutil.copytree(whole / "_targets", output_dir / "_targets")
    said = finish([*command("consistency", recipe, output_dir, 2, 9), "--resume_from_checkpoint", "true"])
    assert said.count("was saved by 1 process(es) and is resumed by 2: the data go on where they were") == 1
    for one, two in zip(adapter(whole).values(), adapter(output_dir).values(), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-5)

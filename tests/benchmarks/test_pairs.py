"""100,000 pairs from 10,000 questions, timed, and memory at ten times the size: `pytest -m slow -s`."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT


PROGRAM = """
import sys
from tests.benchmarks.turns import memory
from trl_consistency.cli import main
main(sys.argv[1:])
print("peak", round(memory("VmHWM")), "MiB")
"""


def write_questions(folder, sources):
    path = Path(folder) / f"questions-{sources}.jsonl"
    with path.open("w") as file:
        for index in range(sources):
            choices = [f"the answer that is called number {index} and {letter}" for letter in "wxyz"]
            row = {
                "question": f"Which of these is number {index}, all in all?",
                "choices": choices,
                "answer": index % 4,
            }
            file.write(json.dumps(row) + "\n")
    return path


def build(tmp_path, sources):
    path = write_questions(tmp_path, sources)
    out = tmp_path / str(sources)
    options = ["--dataset_name", str(path), "--output_dir", str(out), "--test_share", "0", "--pairs_per_source", "10"]
    names = ["sycophancy", "typos", "authority+case"]
    command = [sys.executable, "-c", PROGRAM, "pairs", *options, "--perturbations", *names]
    start = time.perf_counter()
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    seconds = time.perf_counter() - start
    made = int(re.search(r"train-\S+: (\d+) pairs", result.stdout)[1])
    return seconds, int(re.search(r"peak (\d+)", result.stdout)[1]), made


@pytest.mark.slow
def test_a_hundred_thousand_pairs(tmp_path):
    _, small, _ = build(tmp_path, 1_000)
    seconds, large, made = build(tmp_path, 10_000)
    print(
        f"\n{made} pairs from 10000 questions in {seconds:.1f} s; peak memory {large} MiB, of 1000 questions {small} MiB"
    )
    assert made >= 99_000
    assert seconds < 60
    assert large < small + 20

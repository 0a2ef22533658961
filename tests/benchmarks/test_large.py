"""Many rows, which stay on disk: rows a second and memory, at two sizes: `pytest -m slow -s`. Linux only."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.commands import ROOT


# A million rows take about half an hour for each trainer: `LARGE_ROWS=1000000`
SIZES = 20_000, int(os.environ.get("LARGE_ROWS", "200000"))

# Of a process whose rows are mapped from disk, `ru_maxrss` counts the pages of the file, which the system takes back when
# it wants to: what the process needs is its anonymous memory.
PROGRAM = """
import json, sys, threading, time
from pathlib import Path

def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) // 1024

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.02)

import torch
from datasets import disable_progress_bars, load_dataset
from tests.helpers.models import make_config, make_model, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer

kind, path, folder = sys.argv[1:]
options = {"max_steps": 1, "anchor_ratio": 0.25}
on_policy = kind == "on-policy"
args = make_on_policy_config(folder, **options) if on_policy else make_config(folder, method=["bct", "act"], **options)
disable_progress_bars()
pairs = load_dataset("json", data_files=path, split="train", cache_dir=folder + "/cache")
peak, start, before = [0], time.perf_counter(), anonymous()
threading.Thread(target=watch, daemon=True).start()
trainer = (OnPolicyConsistencyTrainer if on_policy else ConsistencyTrainer)(
    model=make_model(), args=args, train_dataset=pairs, processing_class=make_tokenizer()
)
seconds, constructed = time.perf_counter() - start, peak[0] - before
trainer.train()
print("result", json.dumps([seconds, constructed, peak[0] - before]))
"""


def construct(tmp_path, kind, rows):
    path = tmp_path / f"{rows}.jsonl"
    with path.open("w") as file:
        for index in range(rows):
            question = f"What is the capital of country number {index}, and which river does it lie on?"
            sides = {"clean_prompt": question, "perturbed_prompt": f"I think it is Lyon, on the Rhone. {question}"}
            row = {name: [{"role": "user", "content": text}] for name, text in sides.items()}
            file.write(
                json.dumps({**row, "completion": f"City {index}, on no river.", "source_id": str(index)}) + "\n"
            )
    command = [sys.executable, "-c", PROGRAM, kind, str(path), str(tmp_path / f"{kind}-{rows}")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=7200)
    assert result.returncode == 0, result.stderr[-3000:]
    seconds, constructed, peak = json.loads(result.stdout.split("result ")[1])
    print(
        f"\n{kind}: {rows:,} rows in {seconds:.0f} s ({rows / seconds:,.0f} rows/s), memory +{constructed} MiB, +{peak} MiB after a step"
    )
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["consistency", "on-policy"])
def test_memory_does_not_grow_with_the_rows(tmp_path, kind):
    few, many = SIZES
    small, large = (construct(tmp_path, kind, rows) for rows in (few, many))
    # Orders, digests and spans, some of them for a moment only; the rows themselves would be ten times as much
    assert large - small < (many - few) * 512 / 2**20

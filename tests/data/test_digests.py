"""What the identity of a large model costs: reading it once."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trl_consistency.data.digests import RACE_NS


GIGABYTES = 2

START = """
import json, sys, time
from trl_consistency.generation.model_identity import files_identity
start = time.perf_counter()
print(json.dumps([files_identity(sys.argv[1]), time.perf_counter() - start]))
"""


def start(folder, home):
    """A start of a command: what identifies the model, the seconds that it took, and what was said meanwhile."""
    environment = {**os.environ, "HF_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", START, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return (*json.loads(done.stdout), done.stderr)


@pytest.mark.slow
def test_weights_are_read_once(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as weights:
        for number in range(GIGABYTES * 64):
            weights.write(number.to_bytes(2, "big") * 2**23)
    time.sleep(RACE_NS / 1e9)
    identity, first, said = start(folder, tmp_path / "home")
    assert "Digest of model.safetensors" in said
    again, second, said = start(folder, tmp_path / "home")
    assert again == identity
    assert "Digest of" not in said
    assert second < min(1, first / 10)
    print(f"{GIGABYTES} GiB: {first:.2f} s at the first start, {second:.4f} s at the second")
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(2**30)
        weights.write(b"x")
    changed, _, said = start(folder, tmp_path / "home")
    assert "Digest of" in said
    assert changed != identity

"""Runs commands in processes of their own."""

import os
import subprocess
from pathlib import Path

from safetensors.torch import load_file


ROOT = Path(__file__).parents[2]


def adapter(directory):
    return load_file(directory / "adapter_model.safetensors")


def launched(command):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr[-4000:]
    return result

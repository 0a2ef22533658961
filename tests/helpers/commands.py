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


def last_of_each(words):
    """The words of a command, without the flags that come again later: commands refuse a flag that is given twice."""
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flag, flags[word] = word, []
        else:
            flags[flag].append(word)
    return [word for flag, values in flags.items() for word in (flag, *values)]

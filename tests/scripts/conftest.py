"""What the tests of the commands share."""

import os
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import make_pairs


ROOT = Path(__file__).parents[2]


def adapter(directory):
    return load_file(directory / "adapter_model.safetensors")


def launched(command):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr[-4000:]
    return result


@pytest.fixture
def recipe(tmp_path, model_dir):
    """A recipe for the tiny model; all that a run needs but its output folder."""
    make_pairs(16, completion=False).to_json(tmp_path / "pairs.jsonl")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"model_name_or_path: {model_dir}\ndataset_name: {tmp_path}/pairs.jsonl\nmax_steps: 2\nuse_cpu: true\n"
        "use_peft: true\nlora_target_modules: [all-linear]\nlora_dropout: 0.0\nlearning_rate: 1e-2\nbf16: false\n"
        "gradient_checkpointing: false\nreport_to: none\nsave_strategy: 'no'\nmax_completion_length: 8\n"
        "per_device_train_batch_size: 8\ntemperature: 0.0\ndisable_tqdm: true\n"
    )
    return path

"""What the tests of the commands share."""

import pytest

from tests.helpers.models import make_pairs


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

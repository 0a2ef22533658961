"""What the tests of the commands share."""

import pytest

from tests.helpers.evaluate_command import pair, save_adapter, write
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


@pytest.fixture(scope="module")
def adapters(model_dir, tmp_path_factory):
    """The folders of two adapters of the tiny model."""
    folder = tmp_path_factory.mktemp("adapters")
    return [save_adapter(model_dir, folder / name, seed) for seed, name in enumerate(("bct", "act"))]


@pytest.fixture
def options(model_dir, adapters, tmp_path):
    """What `evaluate` needs at least: the tiny model, an adapter, eight pairs and a folder."""
    pairs = write(tmp_path / "pairs.jsonl", [pair(number) for number in range(8)])
    common = ["--model_name_or_path", str(model_dir), "--max_completion_length", "6", "--batch_size", "3"]
    return [*common, "--adapters", adapters[0], "--pairs", pairs, "--output_dir", str(tmp_path / "out")]

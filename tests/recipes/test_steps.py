"""Two steps by each recipe of the table, with a tiny model of its architecture."""

import json
import math
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.recipes.files import FOLDER, ROOT
from tests.recipes.table import LEFT_OUT, OF_FOLDER, RECIPES, Recipe
from tests.recipes.tiny import make_rows, make_tiny


# One of each method in the default tests, of three architectures and all kinds of weights
SAMPLE = (
    "smollm2-135m-instruct/bct/jailbreak_full.yaml",
    "gemma-3-4b-it/act/sycophancy_qlora.yaml",
    "gpt-oss-20b/opct/jailbreak_lora.yaml",
)
ALL = [
    pytest.param(recipe, id=str(recipe.path), marks=() if str(recipe.path) in SAMPLE else pytest.mark.slow)
    for recipe in RECIPES
]


def command_of(recipe: Recipe) -> list[str]:
    """Returns the command in a recipe's header, as words."""
    header = (FOLDER / recipe.path).read_text().split("\n\n")[0]
    return shlex.split(re.search(r"#   (accelerate launch (?:.*\\\n)+.*)", header)[1].replace("\\\n#", ""))


def shortened(recipe: Recipe) -> list[str]:
    """Returns flags that make two small steps on a CPU of a recipe, and change nothing else."""
    flags = {"max_steps": 2, "gradient_accumulation_steps": 1, "max_completion_length": 8, "logging_steps": 1}
    flags["per_device_train_batch_size"] = 2 * recipe.rollouts if recipe.method == "opct" else 4
    flags |= {} if recipe.method == "opct" else {"target_batch_size": 12}
    if recipe.method == "act":  # which generates nothing
        del flags["max_completion_length"], flags["target_batch_size"]
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))] + ["--use_cpu"]


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def train(recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """Runs the command in a recipe's header in `folder`, shortened. Returns the trainer and the weights before."""
    if recipe.weights == "qlora":
        pytest.importorskip("bitsandbytes")
    monkeypatch.chdir(folder)
    Dataset.from_list(make_rows(recipe.threat)).to_json("pairs.jsonl")
    words = command_of(recipe)
    assert words[:4] == ["accelerate", "launch", "--config_file", "recipes/accelerate_configs/single_gpu.yaml"]
    assert words[4] == "-m"
    assert words[6] == "--config"
    script = import_module(words[5])
    before = {}
    of_trainer = script.COMMAND.trainer.train

    def remember(trainer, *args, **kwargs):
        before.update(trained(trainer.model))
        return of_trainer(trainer, *args, **kwargs)

    monkeypatch.setattr(script.COMMAND.trainer, "train", remember)
    tiny = ["--model_name_or_path", str(make_tiny(recipe.model, folder / "tiny"))]
    trainer = script.run(["--config", str(ROOT / words[7]), *words[8:], *shortened(recipe), *tiny])
    return trainer, before


@pytest.mark.long
@pytest.mark.parametrize("recipe", ALL)
def test_two_steps(recipe, tmp_path, monkeypatch):
    trainer, before = train(recipe, tmp_path, monkeypatch)
    after = trained(trainer.model)
    assert trainer.state.global_step == 2
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in after), "nothing was trained"
    assert not [name for name in after if "vision" in name or "visual" in name]
    output = tmp_path / recipe.options()["output_dir"]
    saved = "model.safetensors" if recipe.weights == "full" else "adapter_model.safetensors"
    assert (output / saved).is_file()
    if recipe.weights != "full":
        assert json.loads((output / "adapter_config.json").read_text())["r"] == recipe.options()["lora_r"]
        assert all("lora_" in name for name in after)


def test_the_sample_has_each_method_and_all_weights():
    sample = [recipe for recipe in RECIPES if str(recipe.path) in SAMPLE]
    assert len(sample) == len(SAMPLE)
    assert {recipe.method for recipe in sample} == {"bct", "act", "opct"}
    assert {recipe.weights for recipe in sample} == {"lora", "qlora", "full"}
    assert {recipe.threat for recipe in sample} == {"sycophancy", "jailbreak"}


def test_why_gpt_oss_has_no_recipe_in_4_bits(tmp_path):
    folder = make_tiny(OF_FOLDER["gpt-oss-20b"], tmp_path / "tiny")
    with pytest.raises(ValueError, match="quantized with Mxfp4Config but you are passing a BitsAndBytesConfig"):
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    assert ("gpt-oss-20b", "qlora") in LEFT_OUT

"""Adapters that are not whole are refused, however they are named."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tests.helpers.models import make_model
from trl_consistency import ConsistencyError
from trl_consistency.models.loading import adapted, load_model, name_models, put_adapter


@pytest.fixture
def adapter(tmp_path, model_dir, tokenizer):
    """Saved beside its tokenizer, as training saves it; one module is trained whole."""
    config = LoraConfig(r=4, target_modules="all-linear", modules_to_save=["lm_head"], init_lora_weights=False)
    model = get_peft_model(make_model(), config)
    model.peft_config["default"].base_model_name_or_path = str(model_dir)
    model.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def edit(folder, change):
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def half(weights):
    return dict(list(weights.items())[::2])


def renamed(weights):
    return {name.replace("model.layers", "model.blocks"): weight for name, weight in weights.items()}


def without_head(weights):
    return {name: weight for name, weight in weights.items() if "lm_head" not in name}


def both(folder, model_dir):
    """As the model, and on it."""
    yield lambda: load_model(str(folder))
    yield lambda: put_adapter(load_model(str(model_dir))[0], str(folder))


@pytest.mark.parametrize("change", [half, renamed, without_head])
def test_an_adapter_that_is_not_whole(adapter, model_dir, change):
    edit(adapter, change)
    for load in both(adapter, model_dir):
        with pytest.raises(ConsistencyError, match=r"missing adapter keys|it lacks .*lm_head") as raised:
            load()
        assert len(str(raised.value)) < 600


def test_weights_that_the_config_has_no_place_for(adapter, model_dir):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_modules": ["q_proj"]}))
    for load in both(adapter, model_dir):
        with pytest.raises(ConsistencyError, match=r"adapter_config.json has no place for .*\(and \d+ more\)"):
            load()


def test_whole_adapters(adapter, model_dir, tmp_path):
    for load in both(adapter, model_dir):
        load()
    for number, options in enumerate(
        [
            {"target_modules": ["q_proj", "embed_tokens"]},
            {"target_modules": ["q_proj"], "bias": "all"},
            {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
            {"target_modules": ["q_proj"], "use_dora": True},
            {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]},
        ]
    ):
        folder = tmp_path / str(number)
        get_peft_model(make_model(), LoraConfig(r=4, **options)).save_pretrained(folder)
        put_adapter(load_model(str(model_dir))[0], str(folder))


def test_no_model_takes_the_name_of_another(tmp_path):
    """Of a name on the Hub and a folder that ends in it, one was not measured."""
    folders = [str(tmp_path / first / owner / "bct") for first, owner in (("a", "user"), ("b", "other"))]
    for folder in folders:
        Path(folder).mkdir(parents=True)
    names = name_models(["user/bct", *folders])
    assert sorted(names.values()) == sorted(["user/bct", *folders])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_whole_model_in_another_number_format_is_told(model_dir, tokenizer, dtype):
    """
    On a GPU, each is as its files are: what full fine-tuning saved in float32 was compared with a base model in bfloat16, and no
    figure said so.
    """
    with warnings.catch_warnings(record=True) as caught, adapted(make_model().to(dtype), tokenizer, str(model_dir)):
        found = [
            str(of.message) for of in caught if "is in float32, and the base model in bfloat16" in str(of.message)
        ]
    assert len(found) == (dtype == torch.bfloat16)

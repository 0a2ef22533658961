"""The weights in a folder are compared with what its config asks for; whole models of all families pass."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, MixtralConfig, Qwen2Config

from trl_consistency import ConsistencyError
from trl_consistency.trainer.architecture import check_architecture


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
CONFIGS = {
    "qwen2, tied": Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8),
    "gpt2": GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4),
    "mixtral, whose experts are stored one by one": MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("way", ["whole", "half precision", "several files"])
def test_whole_models_pass(config, way, tmp_path):
    model = AutoModelForCausalLM.from_config(config)
    if way == "half precision":
        model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB" if way == "several files" else "1GB")

    check_architecture(str(tmp_path), AutoConfig.from_pretrained(tmp_path))


def test_a_model_without_its_tied_head_passes(tmp_path):
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen2, tied"])
    model.model.save_pretrained(tmp_path)  # under names without the prefix
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2ForCausalLM"]}))

    check_architecture(str(tmp_path), AutoConfig.from_pretrained(tmp_path))


def test_a_missing_shard_of_the_index_is_missing_weights(tmp_path):
    AutoModelForCausalLM.from_config(CONFIGS["gemma3"]).save_pretrained(tmp_path, max_shard_size="20KB")
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()

    with pytest.raises(ConsistencyError, match="lacks"):
        check_architecture(str(tmp_path), AutoConfig.from_pretrained(tmp_path))

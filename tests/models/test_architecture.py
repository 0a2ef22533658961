"""The weights in a folder are compared with what its config asks for; whole models of all families pass."""

import json
import shutil

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DeepseekV4Config,
    FalconConfig,
    Gemma3TextConfig,
    GPT2Config,
    JambaConfig,
    MambaConfig,
    MixtralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from trl_consistency import ConsistencyError
from trl_consistency.models.architecture import check_adapter_fits, check_architecture
from trl_consistency.models.folder_checks import check_model_folder


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
    "qwen3, of experts": Qwen3MoeConfig(**SIZES, num_key_value_heads=2, head_dim=8, num_experts=4),
    "mamba": MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4),
    "jamba, of three kinds of layers": JambaConfig(
        **SIZES | {"num_hidden_layers": 8}, num_key_value_heads=2, num_experts=2
    ),
    "deepseek_v4, which stores a table of integers": DeepseekV4Config(
        **SIZES | {"intermediate_size": 16},
        moe_intermediate_size=16,
        head_dim=16,
        q_lora_rank=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        o_groups=2,
        o_lora_rank=8,
        index_n_heads=2,
        index_head_dim=8,
        index_topk=4,
        qk_rope_head_dim=8,
        partial_rotary_factor=0.5,
        mlp_layer_types=["hash_moe", "moe"],
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
    ),
    "opt": OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=16),
    "falcon": FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
}
EXPERT = "model.layers.0.block_sparse_moe.experts.2.w1.weight"


def cached(folder, cache, monkeypatch):
    """The name of a model whose files are in the cache of the Hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    repo = cache / "models--nobody--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    shutil.copytree(folder, repo / "snapshots" / "c0ffee")
    return "nobody/tiny", repo / "snapshots" / "c0ffee"


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop(EXPERT), "do not fit together: one is missing"),
        (lambda weights: weights.update({EXPERT: torch.ones(7, 32)}), "do not fit together: one is missing"),
        (
            lambda weights: [weights.pop(name) for name in list(weights) if "experts" in name],
            r"lacks .* \(and 3 more\)",
        ),
        (
            lambda weights: weights.update({EXPERT.replace("layers.0", "layers.2"): torch.ones(48, 32)}),
            "no place for model.layers.2",
        ),
    ],
)
def test_experts_that_are_stored_one_by_one_are_compared(change, message, tmp_path):
    config = CONFIGS["mixtral, whose experts are stored one by one"]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})

    with pytest.raises(ConsistencyError, match=message):
        check_architecture(str(tmp_path), AutoConfig.from_pretrained(tmp_path))


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_weights_in_the_cache_of_the_hub_are_compared(shard_size, tmp_path, monkeypatch):
    AutoModelForCausalLM.from_config(CONFIGS["qwen2, tied"]).save_pretrained(tmp_path / "a", max_shard_size=shard_size)
    name, snapshot = cached(tmp_path / "a", tmp_path / "cache", monkeypatch)
    check_model_folder(name)
    check_architecture(name, AutoConfig.from_pretrained(snapshot))

    config = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(ConsistencyError, match=r"nobody/tiny: the weights do not match config.json, .* \[32, 80\]"):
        check_architecture(name, AutoConfig.from_pretrained(snapshot))

    sorted(snapshot.glob("*.safetensors"))[0].unlink()
    with pytest.raises(ConsistencyError, match=r"holds no weights|lacks model-00001"):
        check_model_folder(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the rest is downloaded
    check_model_folder(name)
    check_architecture(name, AutoConfig.from_pretrained(snapshot))


def test_an_adapter_in_the_cache_of_the_hub_is_no_model(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    name, _ = cached(tmp_path / "a", tmp_path / "cache", monkeypatch)

    with pytest.raises(ConsistencyError, match="nobody/tiny is an adapter, not a whole model"):
        check_model_folder(name)


def test_target_modules_that_no_layer_is_called_are_named(recwarn):
    config = CONFIGS["qwen2, tied"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    check_adapter_fits(model, LoraConfig(target_modules=["q_proj", "mlp.up_proj"]))
    assert not [warning for warning in recwarn if "target_modules" in str(warning.message)]
    check_adapter_fits(model, LoraConfig(target_modules=["q_proj", "v_prj", "query_key_value"]))
    (said,) = [text for warning in recwarn if "target_modules" in (text := str(warning.message))]
    assert said.startswith("No layer of Qwen2ForCausalLM is called query_key_value or v_prj, as `target_modules`")


def test_other_names_of_an_adapter_that_nothing_is_called_are_named(recwarn):
    """Less was trained than the adapter's config says."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS["qwen3, of experts"])
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    right = {"target_modules": ["q_proj"], "layers_to_transform": [0], "modules_to_save": ["embed_tokens"]}
    right["exclude_modules"] = ["mlp.gate"]
    right |= {
        "rank_pattern": {"0.self_attn.q_proj": 2, "^model.layers.0.self_attn.q_proj": 2},
        "alpha_pattern": {".*q_proj": 2},
    }
    check_adapter_fits(model, LoraConfig(**right, target_parameters=experts))
    # From the beginning, as PEFT documents it, and of a parameter
    of_whole = {"^model.layers.0.self_attn.q_proj": 2, experts[0]: 4}
    of_whole = {"rank_pattern": of_whole, "alpha_pattern": of_whole}
    check_adapter_fits(model, LoraConfig(**right | of_whole, target_parameters=experts))
    assert not [warning for warning in recwarn if "of the adapter says" in str(warning.message)]
    wrong = {
        "layers_to_transform": [0, 9],
        "modules_to_save": ["lm_hed"],
        "target_parameters": [experts[0], "down_prj"],
        "exclude_modules": ["mlp.gate", "lm_headd"],
        "rank_pattern": {"q_proj": 2, "q_prj": 2},
        "alpha_pattern": {"attention.q_proj": 2},
    }
    check_adapter_fits(model, LoraConfig(**right | wrong))
    said = [text for warning in recwarn if "of the adapter says" in (text := str(warning.message))]
    assert [text.split(" of the")[0] for text in said] == [
        "No parameter of Qwen3MoeForCausalLM is called down_prj, as `target_parameters`",
        "No block of Qwen3MoeForCausalLM is called 9, as `layers_to_transform`",
        "No module of Qwen3MoeForCausalLM is called lm_hed, as `modules_to_save`",
        "No module of Qwen3MoeForCausalLM is called lm_headd, as `exclude_modules`",
        "No layer of Qwen3MoeForCausalLM is called q_prj, as `rank_pattern`",
        "No layer of Qwen3MoeForCausalLM is called attention.q_proj, as `alpha_pattern`",
    ]

"""What is right passes the checks of a model and its adapter."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, OFTConfig, get_peft_model
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.helpers.models import make_config, make_model
from trl_consistency.errors import ConsistencyError
from trl_consistency.models.checks import check_model, config_of, context_of
from trl_consistency.models.folder_checks import check_engine_weights
from trl_consistency.models.loading import load_model
from trl_consistency.models.quantization import check_trainable


LONGER = {"factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_position_embeddings": 2048},
        {"rope_parameters": {"rope_type": "yarn", **LONGER}},
        {"rope_scaling": {"rope_type": "yarn", **LONGER}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_context_that_options_of_loading_extend(tmp_path, model_dir, changes):
    args = make_config(tmp_path, model_init_kwargs=changes)
    check_model(str(model_dir), args)
    assert context_of(config_of(str(model_dir), args)) == 2048


@pytest.mark.parametrize("of", ["AutoModelForCausalLM", "AutoModelForImageTextToText"])
def test_code_of_a_class_that_transformers_has_not(tmp_path, model_dir, of):
    """Without `trust_remote_code`, the class of transformers for its `model_type` was loaded without a word."""
    folder = shutil.copytree(model_dir, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnForCausalLM"], "auto_map": {of: "modeling_own.OwnForCausalLM"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConsistencyError, match=r"own contains Python code \(`auto_map` in config.json\), which is not run"
    ):
        load_model(str(folder))


@pytest.mark.parametrize("trusts", [True, False])
def test_code_of_a_class_that_transformers_has(tmp_path, model_dir, caplog, trusts):
    """With `trust_remote_code`, the code beside the weights was left out without a word."""
    folder = shutil.copytree(model_dir, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoModelForCausalLM": f"modeling_own.{config['architectures'][0]}"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": classes}))
    load_model(str(folder), trust_remote_code=trusts)
    said = "brings its own code for `Qwen3ForCausalLM`. transformers has a class of that name, and that one is loaded"
    assert (said in caplog.text) == trusts


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("embedded:organism", r"In Python, give its folder: `str\(trl_consistency\.organism\.build_organism\(\)\)`"),
        ("embedded:smollm2", "In Python, give a folder"),
        ("outputs/bct/final", "There is no folder outputs/bct/final, and no model on the Hub can have this name"),
    ],
)
def test_name_that_is_neither_a_folder_nor_on_the_hub(tmp_path, name, said):
    with pytest.raises(ConsistencyError, match=said):
        check_model(name, make_config(tmp_path))


def test_adapter_whose_rank_is_zero_by_default(tmp_path, model_dir):
    """OFT has a size of its blocks in its place."""
    check_model(str(model_dir), make_config(tmp_path), OFTConfig(target_modules=["q_proj"], oft_block_size=8))


def test_adapter_beside_an_option_of_the_training_alone(tmp_path):
    """docs/long_and_large.md has it for mixtures of experts."""
    sizes = {"vocab_size": 384, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    experts = {"num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 16, "num_experts": 4}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts)).save_pretrained(tmp_path)
    args = make_config(tmp_path / "out", model_init_kwargs={"router_aux_loss_coef": 0.0})
    check_model(str(tmp_path), args, LoraConfig(target_modules="all-linear"))


def with_adapter(**options):
    model = get_peft_model(make_model("llama"), LoraConfig(target_modules=["q_proj"], **options))
    return model.train()


@pytest.mark.parametrize(
    "options", [{}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [3]}]
)
def test_weights_that_are_trained_and_saved_with_an_adapter(tmp_path, options):
    check_model(with_adapter(**options), make_config(tmp_path))


def test_trained_base_weights_that_no_adapter_saves(tmp_path):
    """Checkpoints and the result would hold the adapter alone, and lose what the base model learned."""
    model = with_adapter()
    model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(ConsistencyError, match=r"trains weights .*model\.norm\.weight.*not saved"):
        check_model(model, make_config(tmp_path))


@pytest.mark.parametrize(
    ("files", "index", "other"),
    [
        (["model"], None, None),
        (["model", "model_before"], None, "model_before"),  # the last one won
        (["part-1", "part-2"], ["part-1", "part-2"], None),
        (["part-1", "part-2", "adapter_model"], ["part-1", "part-2"], None),
        (["model", "part-1"], ["part-1"], "model"),  # transformers reads it, and vLLM the index
        (["part-1", "consolidated"], ["part-1"], "consolidated"),
    ],
)
def test_a_folder_of_which_vllm_would_read_other_weights_is_refused(tmp_path, files, index, other):
    """It answered with those, and nothing was said."""
    for name in files:
        save_file({f"weight {name}": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    if index is not None:
        of_names = {"metadata": {}, "weight_map": {f"weight {name}": f"{name}.safetensors" for name in index}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(of_names))
    if other is None:
        return check_engine_weights(str(tmp_path))
    with pytest.raises(ConsistencyError, match=f"which differ in {other}.safetensors. Move the files"):
        check_engine_weights(str(tmp_path))


def test_a_damaged_index_is_named_before_vllm_is_asked(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ConsistencyError, match="is cut short or damaged"):
        check_engine_weights(str(tmp_path))


@pytest.mark.parametrize("status", ["compressed", "frozen"])
def test_compressed_weights_are_not_trained(status):
    """The first forward pass puts other weights in their place, which ended in errors about the reference or of dtypes."""
    options = {"quant_method": "compressed-tensors", "quantization_status": status}
    if status == "compressed":
        with pytest.raises(
            ConsistencyError, match=r"`quantization_config=CompressedTensorsConfig\(dequantize=True\)`"
        ):
            check_trainable(options)
    else:
        check_trainable(options)

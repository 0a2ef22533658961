"""Whether a model in memory is the one in its files, whose names may be others there."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    HrmTextConfig,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from tests.helpers import every_architecture
from tests.helpers.architectures import CONFIGS, EXPERTS, HYBRIDS, SHAPE, make
from tests.helpers.models import make_tokenizer
from trl_consistency.models import base_files
from trl_consistency.models.base_files import other_weight
from trl_consistency.models.checkpoint_weights import with_published_names
from trl_consistency.models.folder_checks import check_checkpoint
from trl_consistency.rollouts.policy_weights import policy_weights, write_base


# A part of each that has another name in the files
PARTS = {
    "gpt_neox": "lm_head.",
    "qwen3_moe": "experts.gate_up_proj",
    "nemotron_h": "mixer.A_log",
    "gemma3_with_vision": "q_proj",
    "llama": "q_proj",
}


def saved(kind, folder, **options):
    make(kind).save_pretrained(folder, **options)
    return type(make(kind)).from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("kind", PARTS)
def test_a_changed_weight_is_found(tmp_path, kind, published):
    """
    Experts and heads that were changed were taken for those of the files: they were looked for under the names in memory, and then, in
    files that have these, under the others.
    """
    model = saved(kind, tmp_path, save_original_format=published)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if PARTS[kind] in name:
                weight.mul_(1.5)
    assert other_weight(model, str(tmp_path))


@pytest.mark.parametrize("published", [True, False])
def test_a_changed_weight_of_a_model_whose_own_files_have_other_names_than_its_base(tmp_path, published):
    """A further trained model, say, whose base model is named. Experts were not found in the base's files."""
    make("qwen3_moe").save_pretrained(tmp_path / "base", save_original_format=published)
    make("qwen3_moe").save_pretrained(tmp_path / "own", save_original_format=not published)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "own", dtype=torch.float32)
    assert other_weight(model, str(tmp_path / "base")) is None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "experts.gate_up_proj" in name:
                weight.mul_(1.5)
    assert "experts" in other_weight(model, str(tmp_path / "base"))


@pytest.mark.parametrize("kind", [*CONFIGS, *HYBRIDS])
def test_the_model_of_the_files_is_known(tmp_path, kind):
    assert other_weight(saved(kind, tmp_path), str(tmp_path)) is None
    assert other_weight(saved(kind, tmp_path).bfloat16(), str(tmp_path)) is None


def test_weights_that_are_several_in_memory_and_one_in_the_files(tmp_path):
    """Each was taken for the whole of the file's: a checkpoint was refused, for the shapes of its own run."""
    config = HrmTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    named = dict(with_published_names(model, model.named_parameters()))
    assert named.keys() == stored.keys() != dict(model.named_parameters()).keys()
    assert all(torch.equal(weight, stored[name]) for name, weight in named.items())
    check_checkpoint(str(tmp_path), model)
    assert other_weight(model, str(tmp_path)) is None
    with torch.no_grad():
        next(weight for name, weight in model.named_parameters() if "q_proj" in name).mul_(1.5)
    assert "gqkv_proj" in other_weight(model, str(tmp_path))


def test_experts_under_an_adapter(tmp_path):
    """transformers asks the model for the shapes of its weights, and PEFT's layers have others: an AttributeError."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen3VLMoeConfig(
        text_config={**SHAPE, **EXPERTS, "head_dim": 8, "rope_parameters": rope},
        vision_config={**vision, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    )
    torch.manual_seed(0)
    Qwen3VLMoeForConditionalGeneration(config).save_pretrained(tmp_path)
    base = Qwen3VLMoeForConditionalGeneration.from_pretrained(tmp_path)
    experts = ["experts.gate_up_proj", "experts.down_proj"]
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], target_parameters=experts))
    assert other_weight(model.get_base_model(), str(tmp_path)) is None
    assert dict(policy_weights(model)).keys() == load_file(tmp_path / "model.safetensors").keys()


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"trainable_token_indices": [5, 6]}, "embed_tokens"),
        ({"modules_to_save": ["embed_tokens"]}, "embed_tokens"),
        ({"modules_to_save": ["lm_head"]}, "lm_head"),
        ({}, "embed_tokens"),
        ({}, "q_proj"),
    ],
)
def test_a_changed_weight_in_a_layer_of_an_adapter(tmp_path, options, changed):
    """Embeddings of which some tokens are trained, and modules of which a copy is, were passed over."""
    model = saved("llama", tmp_path)
    lora = LoraConfig(r=4, target_modules=["q_proj"], **options)
    assert other_weight(get_peft_model(saved("llama", tmp_path), lora).get_base_model(), str(tmp_path)) is None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if changed in name:
                weight.mul_(1.5)
    assert changed in other_weight(get_peft_model(model, lora).get_base_model(), str(tmp_path))


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "qwen3_moe", "nemotron_h"])
def test_weights_that_are_in_4_bits_in_the_files(tmp_path, kind):
    """How transformers loads them cannot be undone. All weights kept their names in memory for that, also in files for vLLM."""
    in_4_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    saved(kind, tmp_path / "base")
    AutoModelForCausalLM.from_pretrained(tmp_path / "base", quantization_config=in_4_bits).save_pretrained(
        tmp_path / "4"
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "4")
    assert other_weight(model, str(tmp_path / "4")) is None
    (tmp_path / "for_vllm").mkdir()
    write_base(model, make_tokenizer(), tmp_path / "for_vllm")
    expected = load_file(tmp_path / "base" / "model.safetensors")
    assert load_file(tmp_path / "for_vllm" / "model.safetensors").keys() == expected.keys()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if PARTS[kind] in name and weight.is_floating_point():
                weight.mul_(1.5)
    assert (other_weight(model, str(tmp_path / "4")) is not None) == (kind != "llama"), (
        "what has 4 bits cannot be compared"
    )


def test_buffers_have_published_names_too(tmp_path):
    """They kept those in memory beside the weights, which had the others."""
    model = AutoModelForCausalLM.from_config(every_architecture.make_config("minimax_m2"))
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "for_vllm").mkdir()
    write_base(model, make_tokenizer(), tmp_path / "for_vllm")
    expected = load_file(tmp_path / "saved" / "model.safetensors")
    written = load_file(tmp_path / "for_vllm" / "model.safetensors")
    assert [name for name in expected if "e_score_correction_bias" in name]
    assert written.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in written.items())


def test_an_adapter_whose_names_are_like_those_of_the_base(tmp_path):
    """Weights of LoRA were turned as those of the attention are: a RuntimeError."""
    model = saved("qwen3_moe", tmp_path)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    seen = []
    convert = base_files.with_published_names
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_files, "with_published_names", lambda base, held: seen.extend(held) or convert(base, seen))
        assert other_weight(adapted.get_base_model(), str(tmp_path)) is None
    assert not [name for name, _ in seen if "lora" in name]

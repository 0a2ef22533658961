"""Small models of many architectures, by hand and from their configs."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    NemotronHConfig,
    Olmo3Config,
    Phi3Config,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)


WINDOW = 4  # shorter than the longest prompt


SHAPE = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


LOCAL_AND_GLOBAL = {
    "head_dim": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}


VISION = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


def gemma3_with_vision():
    text = {**SHAPE, **LOCAL_AND_GLOBAL}
    # As many blocks in the vision tower as in the text model: they must not be mistaken for them.
    vision = {**VISION, "num_hidden_layers": 4, "image_size": 28, "patch_size": 14}
    return Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)


def qwen2_5_vl():
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0}
    vision = {**VISION, "num_heads": 2, "depth": 4, "out_hidden_size": 32}
    return Qwen2_5_VLConfig(text_config={**SHAPE, "rope_scaling": rope}, vision_config=vision)


CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "gemma2": lambda: Gemma2Config(**SHAPE, **LOCAL_AND_GLOBAL, query_pre_attn_scalar=8, final_logit_softcapping=0.5),
    "gemma3": lambda: Gemma3TextConfig(**SHAPE, **LOCAL_AND_GLOBAL, query_pre_attn_scalar=8),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=WINDOW),
    "phi3": lambda: Phi3Config(**SHAPE, sliding_window=WINDOW),
    "gpt_neox": lambda: GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}),
    # Learned positions: unlike rotary ones they show where counting began, left padding included.
    "gpt2": lambda: GPT2Config(**SHAPE, n_inner=48, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SHAPE, **EXPERTS, head_dim=8),
    "gpt_oss": lambda: GptOssConfig(**SHAPE, **LOCAL_AND_GLOBAL, num_local_experts=4, num_experts_per_tok=2),
    "olmo3": lambda: Olmo3Config(**SHAPE, **{k: v for k, v in LOCAL_AND_GLOBAL.items() if k != "head_dim"}),
    "gemma4": lambda: Gemma4TextConfig(
        **SHAPE, **LOCAL_AND_GLOBAL, global_head_dim=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=128
    ),
    "gemma3_with_vision": gemma3_with_vision,
    "qwen2_5_vl": qwen2_5_vl,
}


GATED_DELTA_NET = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def qwen3_5_config(**changes):
    text = Qwen3_5TextConfig(**SHAPE, **GATED_DELTA_NET).to_dict() | changes
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
    vision = {"depth": 4, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    return Qwen3_5Config(text_config=text, vision_config=vision)


# With layers that carry a state from token to token: Gated DeltaNet, short convolutions, Mamba-2
HYBRIDS = {
    "qwen3_5": lambda: Qwen3_5TextConfig(**SHAPE, **GATED_DELTA_NET),
    "qwen3_next": lambda: Qwen3NextConfig(
        **SHAPE, **GATED_DELTA_NET, **EXPERTS, shared_expert_intermediate_size=16, decoder_sparse_step=1
    ),
    "lfm2": lambda: Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv", "conv"]),
    "granitemoehybrid": lambda: GraniteMoeHybridConfig(
        **SHAPE, layer_types=["mamba", "attention", "mamba", "mamba"], num_local_experts=0, shared_intermediate_size=48,
        mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=8,
    ),
    "nemotron_h": lambda: NemotronHConfig(
        **{k: v for k, v in SHAPE.items() if k != "num_hidden_layers"}, layers_block_type=["mamba", "attention", "mlp", "mamba"],
        head_dim=8, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=1, chunk_size=8,
    ),
    "qwen3_5_with_vision": qwen3_5_config,
}  # fmt: skip


# The last layer of their MLP (in a mixture, of the shared expert), by the type in the config
DOWN_PROJECTION_OF = {
    "qwen3_5_text": "mlp.down_proj",
    "qwen3_next": "mlp.shared_expert.down_proj",
    "lfm2": "feed_forward.w2",
    "granitemoehybrid": "shared_mlp.output_linear",
    "nemotron_h": "mixer.down_proj",
}
# Of their four blocks, those with an attention map, and those with an MLP if not all have one
ATTENTION_IN = {"qwen3_5_text": [2], "qwen3_next": [2], "lfm2": [1], "granitemoehybrid": [1], "nemotron_h": [1]}
MLP_IN = {"nemotron_h": [2]}


MULTIMODAL = {
    "gemma3_with_vision": Gemma3ForConditionalGeneration,
    "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
    "qwen3_5_with_vision": Qwen3_5ForConditionalGeneration,
}


# Standard deviations of weights where 0.2 magnifies rounding
SMALLER = {"gemma4": 0.1, "qwen3_5": 0.1, "qwen3_5_with_vision": 0.1, "qwen3_next": 0.1}


WITHOUT_MLP = ("qwen3_moe", "gpt_oss")


# For the tokenizer of `tests/helpers/models.py`, and its prompts
FOR_TEXTS = {"vocab_size": 384, "max_position_embeddings": 512}


def make(kind, attention="eager", of_text=None, **changes):
    """A model with changes in its config; `of_text` are those of a multimodal model's text config."""
    torch.manual_seed(0)
    config = {**CONFIGS, **HYBRIDS}[kind]()
    for name, value in changes.items():
        setattr(config, name, value)
    for name, value in (of_text or {}).items():
        setattr(config.get_text_config(), name, value)
    if kind in MULTIMODAL:
        model = MULTIMODAL[kind]._from_config(config, attn_implementation=attention)
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    # Larger weights than a fresh model's, so that wrong positions, windows and blocks make a difference.
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=SMALLER.get(kind, 0.2))
    return model.eval()


def qwen3_5_with_vision(**changes):
    torch.manual_seed(0)
    return Qwen3_5ForConditionalGeneration(qwen3_5_config(**{**FOR_TEXTS, **changes}))


def lora_targets(kind):
    """The layers that get adapters. Of Nemotron-H, PEFT refuses `out_proj`, which fused kernels of Mamba read past the adapter."""
    return r".*\.(q_proj|v_proj|in_proj|up_proj)" if kind == "nemotron_h" else "all-linear"


def add_lora(model):
    targets = lora_targets(model.config.model_type)
    peft_model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return peft_model.eval()

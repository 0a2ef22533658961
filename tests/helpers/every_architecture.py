"""Every causal language model of transformers, with random weights and as small as its config lets it be."""

import inspect
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM


# A config takes those that it has a field for.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 128),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim_model", "lru_width"), 32),
    "attention_hidden_size": 32,
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dim_ff"), 48),
    "shared_intermediate_size": 48,
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_channels", "dim_head", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    # Shorter than the longest prompt
    **dict.fromkeys(("sliding_window", "attention_window", "window_size", "attention_chunk_size"), 4),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "is_decoder": True, "rotary_dim": 4},
    # Experts
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_shared_experts", "n_shared_experts", "n_group", "topk_group", "decoder_sparse_step"), 1),
    **{"first_k_dense_replace": 1, "zero_expert_num": 0},
    # Latent attention
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim", "o_lora_rank"), 8),
    **{"index_n_heads": 2, "index_topk": 64, "o_groups": 2},
    # Recurrent layers
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "mamba_dt_rank", "time_step_rank"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **{"mamba_d_ssm": 64, "use_mamba_kernels": False, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "conv_L_cache": 3},
    **dict.fromkeys(("attn_layer_period", "expert_layer_period"), 2),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
    # Of single families
    **{"laurel_rank": 4, "altup_num_inputs": 2, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8},
    # Nothing random in training
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "residual_dropout", "residual_dropout_prob"), 0.0),
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "emb_pdrop", "dropout", "resid_dropout"), 0.0),
    **dict.fromkeys(("attention_probs_dropout_prob", "hidden_dropout_prob", "embedding_dropout"), 0.0),
    **dict.fromkeys(("embd_dropout", "ffn_dropout", "activation_dropout", "router_jitter_noise"), 0.0),
    "input_jitter_noise": 0.0,
}
# Lists with an entry for each block
BY_BLOCK = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "layer_type")
BLOCKS = 4
OF_KIND: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "gemma3n_text": {"altup_coef_clip": 1e9},  # it clips weights in training alone
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "minicpm3": {"dim_model_base": 32},  # otherwise its logits are so large that gradients vanish
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
}


# Standard deviations of weights where 0.1 magnifies rounding
SMALLER = {"qwen3_5_text": 0.05, "qwen3_next": 0.05}


def make_config(kind: str) -> Any:
    cls = CONFIG_MAPPING[kind]
    fields = set(inspect.signature(cls.__init__).parameters)
    fields |= {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    given = {name: value for name, value in SIZES.items() if name in fields} | OF_KIND.get(kind, {})
    if "kv_lora_rank" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    try:
        config = cls(**given)
    except Exception:  # a list of another length than the blocks
        default = cls()
        lists = {name: getattr(default, name, None) for name in BY_BLOCK}
        config = cls(
            **given, **{name: shortened(of) for name, of in lists.items() if isinstance(of, list) and name in fields}
        )
    for of in {id(config): config, id(config.get_text_config()): config.get_text_config()}.values():
        if of is not config:
            for name, value in SIZES.items():
                if hasattr(of, name):
                    setattr(of, name, value)
        for name in BY_BLOCK:
            value = getattr(of, name, None)
            if isinstance(value, list) and len(value) != BLOCKS:
                setattr(of, name, shortened(value))
    return config


def shortened(of_blocks: list[str]) -> list[str]:
    """All kinds of blocks in turn"""
    return (list(dict.fromkeys(of_blocks)) * BLOCKS)[:BLOCKS]


def make_tiny(kind: str) -> Any:
    """A model with an adapter that changes its logits, with SDPA or else eager attention."""
    config = make_config(kind)
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if "norm" not in name and parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=SMALLER.get(kind, 0.1))
    # Of routers that return several tensors, and of what kernels of Mamba read past the adapter, PEFT takes none.
    without = (
        r".*(router|gate|out_proj|conv1d)$"
        if "mamba" in type(model).__module__ + repr(config)
        else r".*(router|gate)$"
    )
    adapter = LoraConfig(r=4, target_modules="all-linear", exclude_modules=without, task_type="CAUSAL_LM")
    model = get_peft_model(model, adapter)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()

"""
The shapes of the models in the table, as in the config.json of each, for `trl-consistency estimate`. Each makes a model of exactly
the number of parameters beside it.
"""

from collections.abc import Callable

from transformers import (
    Gemma2Config,
    Gemma3Config,
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3_5Config,
    Qwen3Config,
)


def _qwen3(hidden: int, intermediate: int, tied: bool) -> Qwen3Config:
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
        max_position_embeddings=40960,
    )


def _qwen3_5_4b() -> Qwen3_5Config:
    text = {
        "vocab_size": 248320,
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "out_hidden_size": 2560,
        "num_position_embeddings": 2304,
    }
    return Qwen3_5Config(
        architectures=["Qwen3_5ForConditionalGeneration"],
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
    )


def _llama_3_1_8b() -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )


def _smollm2_135m() -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )


def _gemma_3_4b() -> Gemma3Config:
    text = {
        "vocab_size": 262208,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
    }
    vision = {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
        "vision_use_head": False,
    }
    return Gemma3Config(
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=256,
    )


def _gpt_oss_20b() -> GptOssConfig:
    return GptOssConfig(
        architectures=["GptOssForCausalLM"],
        vocab_size=201088,
        hidden_size=2880,
        intermediate_size=2880,
        num_hidden_layers=24,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
    )


def _gemma_2_2b() -> Gemma2Config:
    return Gemma2Config(
        architectures=["Gemma2ForCausalLM"],
        vocab_size=256000,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
    )


# By the name on the Hub, with the number of parameters there. Qwen3.5-4B's shape is that of copies of its config.json in public
# code. Its number is what this shape makes without the head for multi-token prediction, which transformers does not load.
SHAPES: dict[str, tuple[Callable[[], PreTrainedConfig], int]] = {
    "Qwen/Qwen3-4B-Instruct-2507": (lambda: _qwen3(2560, 9728, True), 4_022_468_096),
    "Qwen/Qwen3-8B": (lambda: _qwen3(4096, 12288, False), 8_190_735_360),
    "meta-llama/Llama-3.1-8B-Instruct": (_llama_3_1_8b, 8_030_261_248),
    "google/gemma-3-4b-it": (_gemma_3_4b, 4_300_079_472),
    "Qwen/Qwen3.5-4B": (_qwen3_5_4b, 4_539_265_536),
    "openai/gpt-oss-20b": (_gpt_oss_20b, 20_914_757_184),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (_smollm2_135m, 134_515_008),
    "google/gemma-2-2b-it": (_gemma_2_2b, 2_614_341_888),
}

"""Shapes of prompts and rollouts for benchmarks."""

import random
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import DistillationConfig, DistillationTrainer

from trl_consistency import OnPolicyConsistencyConfig, OnPolicyConsistencyTrainer


STEPS, ROUNDS = 1, 2


# Tokens of the perturbed and of the clean prompt and of a rollout; rollouts of a prompt, and prompts
SHAPES = {
    "long": (512, 128, 64, 8, 1),
    "long, two prompts": (512, 128, 64, 8, 2),
    "short": (200, 180, 200, 4, 1),
}


def make_model(vocabulary: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def make_training(who: str, shape: str, vocabulary: int, output_dir: str) -> Any:
    """A run of the real trainer on one prompt a step, with its rollouts."""
    perturbed, clean, rollout, num_generations, num_prompts = SHAPES[shape]
    words = [f"w{number}" for number in range(vocabulary - 2)]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(
            WordLevel({word: number for number, word in enumerate(["<pad>", "<end>", *words])})
        ),
        pad_token="<pad>",
        eos_token="<end>",
    )
    tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    draw = random.Random(0)
    pairs = [
        {
            f"{side}_prompt": " ".join(draw.choices(words, k=length))
            for side, length in (("clean", clean), ("perturbed", perturbed))
        }
        for _ in range(num_prompts * (STEPS + 2))
    ]
    options = {
        "output_dir": output_dir,
        "max_steps": STEPS + 2,
        "per_device_train_batch_size": num_prompts * num_generations,
        "max_completion_length": rollout,
        "generation_kwargs": {"min_new_tokens": rollout},
        "gradient_checkpointing": False,
        "beta": 1.0,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "shuffle_dataset": False,
    }
    arguments = {
        "model": make_model(vocabulary),
        "processing_class": tokenizer,
        "peft_config": LoraConfig(r=8, target_modules="all-linear"),
    }
    if who == "trl":
        rows = [{"prompt": pair["perturbed_prompt"]} for pair in pairs for _ in range(num_generations)]
        args = DistillationConfig(**options)
        teacher = make_model(vocabulary)
        return DistillationTrainer(
            args=args, teacher_model=teacher, train_dataset=Dataset.from_list(rows), **arguments
        )
    args = OnPolicyConsistencyConfig(num_generations=num_generations, **options)
    return OnPolicyConsistencyTrainer(args=args, train_dataset=Dataset.from_list(pairs), **arguments)

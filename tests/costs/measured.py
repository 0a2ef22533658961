"""Trains for two steps in a process of its own, and prints the most memory that it took: `python -m tests.costs.measured JSON`."""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import BitsAndBytesConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trl_consistency import (
    ConsistencyConfig,
    ConsistencyTrainer,
    OnPolicyConsistencyConfig,
    OnPolicyConsistencyTrainer,
)


STEPS = 2
OPTIONS = {
    "max_steps": STEPS,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def model_config(**shape: Any) -> Qwen3Config:
    return Qwen3Config(
        **{
            "vocab_size": 4096,
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "tie_word_embeddings": True,
            "architectures": ["Qwen3ForCausalLM"],
            **shape,
        }
    )


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer in which a word is a token."""
    words = ["<pad>", "<end>", *(f"w{number}" for number in range(vocabulary - 2))]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def random_pairs(rows: int, prompt: int, answer: int, vocabulary: int) -> Dataset:
    """Pairs of prompts of one length that end with the same words."""
    draw = random.Random(0)

    def text(length: int) -> str:
        return " ".join(f"w{draw.randrange(vocabulary - 2)}" for _ in range(length))

    rows_of_pairs = []
    for _ in range(rows):
        shared = text(prompt - 1)
        pair = {"clean_prompt": f"w0 {shared}", "perturbed_prompt": f"w1 {shared}"}
        target = {"completion_ids": [draw.randrange(2, vocabulary) for _ in range(answer)]} if answer else {}
        rows_of_pairs.append(pair | target)
    return Dataset.from_list(rows_of_pairs)


def train(case: dict[str, Any], output_dir: str) -> None:
    method, options = case["method"], case["options"]
    answer = options.get("max_completion_length", 0)
    prompt = case["max_length"] - answer
    config = model_config(**case.get("shape", {}))
    tokenizer = word_tokenizer(config.vocab_size)
    dtype = torch.bfloat16 if options.get("bf16") else torch.float32
    model: Any = Qwen3ForCausalLM._from_config(config, attn_implementation=case.get("attention"), dtype=dtype)
    if case.get("load_in_4bit"):
        model.save_pretrained(f"{output_dir}/model")
        nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
        model = Qwen3ForCausalLM.from_pretrained(f"{output_dir}/model", quantization_config=nf4, dtype=dtype)
    arguments = {
        "model": model,
        "processing_class": tokenizer,
        "peft_config": LoraConfig(r=16, target_modules="all-linear", lora_dropout=0.05) if case["lora"] else None,
    }
    options = {"output_dir": output_dir, **OPTIONS, **options}
    rows = STEPS * options["per_device_train_batch_size"]
    if method == ["opct"]:
        data = random_pairs(rows, prompt, 0, config.vocab_size)
        options["generation_kwargs"] = {"min_new_tokens": answer}
        args: Any = OnPolicyConsistencyConfig(**options)
        trainer: Any = OnPolicyConsistencyTrainer(args=args, train_dataset=data, **arguments)
    else:
        has_answers = "target_batch_size" not in options
        data = random_pairs(rows, prompt, answer if has_answers else 0, config.vocab_size)
        if not has_answers:
            options["generation_kwargs"] = {"min_new_tokens": answer}
        args = ConsistencyConfig(method=method, **options)
        trainer = ConsistencyTrainer(args=args, train_dataset=data, **arguments)
    trainer.train()


def measure(case: dict[str, Any]) -> int:
    """Returns the bytes that a run takes over what the process holds after a small one."""
    root = Path(__file__).parents[2]
    # glibc keeps what is freed below this size for later, so that resident memory would count what is not in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.costs.measured", json.dumps(case)]
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return int(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    case = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as output_dir:
        # What libraries load at their first use is not the step's.
        small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 256}
        answer = {name: 4 for name in case["options"] if name == "max_completion_length"}
        train({**case, "max_length": 12, "shape": small, "options": case["options"] | answer}, f"{output_dir}/warm")
        start = psutil.Process().memory_info().rss
        train(case, output_dir)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start)

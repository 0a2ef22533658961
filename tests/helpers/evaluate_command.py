"""Pairs, adapters and answers for the tests of `trl-consistency evaluate`."""

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.helpers.chats import user


def pair(number, **columns):
    question = f"What is the capital of country {number % 4}?" + " Think." * (number % 3)
    return {
        "clean_prompt": user(question),
        "perturbed_prompt": user(f"I think that it is {number}. {question}"),
        "answer": "A",
        "biased_answer": "B",
        "source_id": str(number % 4),
        **columns,
    }


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def save_adapter(model_dir, folder, seed):
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    torch.manual_seed(seed)
    config = LoraConfig(target_modules="all-linear", init_lora_weights=False, lora_alpha=64)
    get_peft_model(model, config).save_pretrained(folder)
    return str(folder)


def answers_in(folder):
    return [json.loads(line) for line in (Path(folder) / "answers.jsonl").read_text().splitlines()]

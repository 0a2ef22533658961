"""Adapters, configs and results in folders to publish."""

import json

import yaml
from peft import LoraConfig, get_peft_model

from tests.helpers.models import make_model, make_tokenizer
from trl_consistency.publishing import Outcomes, Result
from trl_consistency.publishing.figures import Figure
from trl_consistency.publishing.page import prepare_page


CARD = """---
library_name: peft
base_model: Qwen/Qwen3-4B-Instruct-2507
base_model_revision: abc123
tags:
- bct
---

# bct

An adapter for [Qwen](https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507), from `path/to/this/folder`.

## Training

Some.

## Limits

It can entrench.
"""


RESULTS = [
    Result(
        metric="sycophancy",
        split="test",
        name="Sycophancy, held-out questions",
        value=0.25,
        interval=(0.1, 0.5),
        hits=2,
        total=8,
        unread=1,
        of_read=2 / 7,
        before=Figure(value=1.0, interval=(0.7, 1.0), hits=8, total=8),
    ),
    Result(metric="harmonic_mean", value=0.8571),
    Result(metric="attack_success", split="test", value=None, hits=0, total=0),
]


OUTCOMES = [
    Outcomes(
        "Questions, perturbed prompts",
        {"suggested": 2, "right": 5, "other": 0, "unread": 1},
        {"suggested": 8, "right": 0, "other": 0, "unread": 0},
    )
]


def save_adapter(folder):
    """An adapter with its tokenizer and its card, as a training command leaves it."""
    get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    set_config(folder, base_model_name_or_path="Qwen/Qwen3-4B-Instruct-2507")
    return folder


def set_config(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2))


def read_card(folder, **options):
    text = prepare_page(folder, "me/bct", **options)["README.md"].decode()
    return text, yaml.safe_load(text.split("---")[1])

"""Small paired trainers, and what they log."""

import torch
import torch.nn.functional as F
from peft import LoraConfig

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.runs import LORA
from trl_consistency import ConsistencyTrainer


def make_trainer(tmp_path, pairs=None, model=None, lora=False, eval_dataset=None, anchor_dataset=None, **options):
    target_modules = options.pop("target_modules", LORA["target_modules"])
    return ConsistencyTrainer(
        model=make_model() if model is None else model,
        args=make_config(tmp_path, **options),
        train_dataset=make_pairs() if pairs is None else pairs,
        eval_dataset=eval_dataset,
        anchor_dataset=anchor_dataset,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**{**LORA, "target_modules": target_modules}) if lora else None,
    )


def generate_greedily(model, tokenizer, ids, tokens=8):
    output = model.eval().generate(
        torch.tensor([ids]),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
    )
    return output[0, len(ids) :].tolist()


def oracle(model, rows):
    """Summed cross-entropy of the completions and their number of tokens, one row at a time from full logits."""
    total, tokens = 0.0, 0
    for row in rows:
        ids = torch.tensor([row["perturbed_ids"] + row["completion_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0]
        start = len(row["perturbed_ids"])
        total += F.cross_entropy(logits[start - 1 : -1].float(), ids[0, start:], reduction="sum").item()
        tokens += len(row["completion_ids"])
    return total, tokens

"""Small runs of the three methods in processes of their own, for the tests that end them at any moment."""

import os
from pathlib import Path

import torch
from peft import LoraConfig

from tests.conftest import make_config, make_model, make_pairs, make_tokenizer
from tests.trainer.test_on_policy_consistency_trainer import make_on_policy_config
from trl_consistency import ConsistencyError, ConsistencyTrainer, OnPolicyConsistencyTrainer


METHODS = ("bct", "act", "opct")
STEPS = 12


def make_trainer(method, directory, **options):
    """With dropout, so that random states matter; two epochs, and checkpoints within and at the end of them."""
    model = make_model()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear")
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 2,
        **options,
    }
    if method == "opct":  # two steps on each batch of rollouts
        return OnPolicyConsistencyTrainer(
            model=model,
            args=make_on_policy_config(directory, disable_dropout=False, steps_per_generation=2, **options),
            train_dataset=make_pairs(12),
            processing_class=make_tokenizer(),
            peft_config=lora,
        )
    return ConsistencyTrainer(
        model=model,
        args=make_config(directory, method=method, target_batch_size=3, **options),
        train_dataset=make_pairs(24, completion=False),
        processing_class=make_tokenizer(),
        peft_config=lora if method == "act" else None,
    )


def train(method, directory, **options):
    """Goes on where there is a checkpoint, as a script that is started again and again; leaves the weights at the end."""
    torch.set_num_threads(1)
    trainer = make_trainer(method, directory, **options)
    try:
        trainer.train(resume_from_checkpoint=True)
    except ConsistencyError as error:
        if "there is no" not in str(error):
            raise
        trainer.train()
    assert trainer.state.global_step == STEPS
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])
    torch.save(weights, Path(directory) / "unfinished")
    os.replace(Path(directory) / "unfinished", Path(directory) / "weights.pt")

"""Run by `torchrun` (or plain python, for the one-process rival): trains on made-up rollouts and saves the result."""

import os
import re
import sys
from pathlib import Path

import torch
from peft import LoraConfig

from tests.conftest import make_model, make_tokenizer
from tests.trainer.test_on_policy_consistency_trainer import likelihood, make_on_policy_config, replay, uneven_pairs
from trl_consistency import OnPolicyConsistencyTrainer
from trl_consistency.trainer.upstream import end_run


def main(directory: str, batch_size: str, adapter: str, loss_type: str) -> None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = OnPolicyConsistencyTrainer(
        model=make_model(),
        args=make_on_policy_config(
            directory,
            per_device_train_batch_size=int(batch_size),
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=2,
            # Two optimizer steps on each batch of rollouts
            num_iterations=2 if loss_type == "policy_gradient" else 1,
            max_steps=6,
            ddp_backend="gloo" if world_size > 1 else None,
            optim="sgd",
            learning_rate=0.5,
            loss_type=loss_type,
            mask_truncated_completions=True,
            anchor_ratio=1 / 3,
            log_completions=True,
            num_completions_to_print=0,
            log_consistency_metrics=loss_type == "divergence",
        ),
        train_dataset=uneven_pairs(16),
        eval_dataset=uneven_pairs(7),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if adapter == "lora" else None,
    )
    assert trainer.accelerator.num_processes == world_size
    # The estimate's tokens as if another engine had drawn them
    replay(trainer, likelihood=likelihood if loss_type == "policy_gradient" else None).train()
    wrapper = type(trainer.model_wrapped).__name__
    assert wrapper == ("DistributedDataParallel" if world_size > 1 else type(trainer.model).__name__), wrapper
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])
    others = trainer.accelerator.gather(weights[None])
    assert all(torch.equal(weights, other) for other in others), "the ranks have drifted apart"
    names = re.compile(
        "divergence|entropy|sampling|completions/(mean|max|clipped|compared|equal)|response|reference|activation"
    )
    metrics = {name: value for name, value in trainer.evaluate().items() if name == "eval_loss" or names.search(name)}
    history = [
        {name: value for name, value in entry.items() if names.match(name)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    if trainer.accelerator.is_main_process:
        result = {"weights": weights, "metrics": metrics, "logged": history}
        torch.save(result, Path(directory) / "result.pt")
    end_run(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])

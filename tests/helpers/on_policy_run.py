"""Run by `accelerate launch` (or called, for the one-process rival): trains on rollouts and saves the result."""

import json
import re
import sys
from pathlib import Path

import torch
from transformers import set_seed

from tests.helpers.distributions import (
    adapter_options,
    add_guard,
    allow_fsdp_on_cpu,
    check_wrapper,
    guard_entries,
    make_sharp_model,
    options,
    trained_weights,
)
from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.on_policy import likelihood, make_on_policy_config, replay, uneven_pairs
from trl_consistency import OnPolicyConsistencyTrainer
from trl_consistency.upstream import end_run


def main(directory: str, model: str, batch_size: str, adapter: str, loss_type: str, others: str = "{}") -> None:
    allow_fsdp_on_cpu()
    set_seed(0)  # of new adapters
    others = json.loads(others)
    is_sampled, with_ref_model, guard = (others.pop(name, False) for name in ("sampled", "ref_model", "guard"))
    by_path = others.pop("by_path", adapter == "qlora")
    target_modules = others.pop("target_modules", "all-linear")
    # Before the config, which under ZeRO-3 has models drawn in shards, hence other ones.
    ref_model = make_model(seed=1) if with_ref_model else None
    trainer = OnPolicyConsistencyTrainer(
        model=model if by_path else make_sharp_model(),
        args=make_on_policy_config(
            directory,
            per_device_train_batch_size=int(batch_size),
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=2,
            # Two optimizer steps on each batch of rollouts
            num_iterations=2 if loss_type == "policy_gradient" else 1,
            optim="sgd",
            loss_type=loss_type,
            mask_truncated_completions=not is_sampled,
            anchor_ratio=1 / 3,
            log_completions=True,
            num_completions_to_print=0,
            **{"learning_rate": 0.5, "max_steps": 6, **options(), **others},
        ),
        train_dataset=uneven_pairs(16),
        eval_dataset=uneven_pairs(7),
        processing_class=make_tokenizer(),
        **adapter_options(adapter, target_modules),
        ref_model=ref_model,
    )
    if not is_sampled:
        # Made-up rollouts, since two processes cannot sample what one samples.
        # The estimate's tokens as if another engine had drawn them
        replay(trainer, likelihood=likelihood if loss_type == "policy_gradient" else None)
    if guard:
        add_guard(trainer)
    before = trained_weights(trainer)
    trainer.train()
    check_wrapper(trainer)
    weights = trained_weights(trainer)
    names = re.compile(
        "divergence|entropy|sampling|completions/(mean|max|clipped|compared|equal)|response|reference|activation"
    )
    metrics = {name: value for name, value in trainer.evaluate().items() if name == "eval_loss" or names.search(name)}
    history = [
        {name: value for name, value in entry.items() if names.match(name)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    history += guard_entries(trainer)
    if trainer.accelerator.is_main_process:
        moved = (weights - before).abs().max()
        result = {"weights": weights, "before": before, "moved": moved, "metrics": metrics, "logged": history}
        torch.save(result, Path(directory) / "result.pt")
    end_run(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])

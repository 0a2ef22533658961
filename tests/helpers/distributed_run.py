"""Run by `accelerate launch` (or called, for the one-process rival): trains and saves what the test compares."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback, set_seed

from tests.generation.test_vllm_engine import Engine
from tests.helpers.distributions import (
    adapter_options,
    add_guard,
    allow_fsdp_on_cpu,
    check_wrapper,
    guard_entries,
    options,
    shard,
    trained_weights,
)
from tests.helpers.models import make_config, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer
from trl_consistency.errors import ConsistencyError
from trl_consistency.generation import vllm_engine
from trl_consistency.trainer.run import checks
from trl_consistency.upstream import end_run


class SpoilReference(TrainerCallback):
    """Writes to one frozen weight, in the shard of the second process alone."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        weight = next(weight for weight in self.trainer.model.parameters() if not weight.requires_grad)
        if self.trainer.accelerator.process_index == 1:
            shard(weight).data.view(-1)[0] += 1


def stand_in_for_vllm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checks, "find_spec", lambda name: name == "vllm" or find_spec(name))
    patch.setattr(vllm_engine, "load_vllm_generation", lambda: Engine)


def main(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        train(patch, *arguments)


def train(
    patch: pytest.MonkeyPatch,
    directory: str,
    model: str,
    batch_size: str,
    adapter: str,
    methods: str,
    others: str = "{}",
) -> None:
    allow_fsdp_on_cpu()
    set_seed(0)  # of new adapters
    method = methods.split("+")
    others = json.loads(others)
    given, rows, spoil = others.pop("given", False), others.pop("rows", 16), others.pop("spoil", False)
    server = others.pop("server", None)
    if others.get("use_vllm"):
        stand_in_for_vllm(patch)
    is_apart = others.pop("apart", False)
    first = int(os.environ["RANK"]) if is_apart else 0
    guard, streamed = others.pop("guard", False), others.pop("streamed_evaluation", False)
    target_modules = others.pop("target_modules", "all-linear")
    held_out = make_pairs(7)
    trainer = ConsistencyTrainer(
        model=model,
        args=make_config(
            directory,
            per_device_train_batch_size=int(batch_size),
            per_device_eval_batch_size=2,
            target_batch_size=3,
            optim="sgd",
            method=method,
            # Shorter passes, where nothing needs whole ones
            layers=[0] if method == ["act"] else None,
            log_consistency_metrics=len(method) > 1,
            anchor_ratio=1 / 3,  # 8 anchors: three whole batches
            **{"learning_rate": 0.1 if method == ["act"] else 0.5, "max_steps": 3, **options(), **others},
        ),
        train_dataset=make_pairs(rows, completion=given).select([*range(first, rows), *range(first)]),
        eval_dataset=held_out.to_iterable_dataset() if streamed else held_out,
        processing_class=make_tokenizer(),
        **adapter_options(adapter, target_modules),
    )
    trainer.target_maker.server = server
    if guard:
        add_guard(trainer)
    if is_apart:
        with pytest.raises(ConsistencyError, match="Process 1 has another `train_dataset` than process 0"):
            trainer.train()
        torch.save({}, Path(directory) / "result.pt")
        return end_run(trainer)
    before, train_loss = trained_weights(trainer), None
    if spoil:
        trainer.add_callback(SpoilReference(trainer))
        with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
            trainer.train()
    else:
        train_loss = trainer.train().training_loss
    check_wrapper(trainer)
    weights = trained_weights(trainer)
    measured = guard_entries(trainer)
    eval_loss = trainer.evaluate()["eval_loss"]
    if trainer.accelerator.is_main_process:
        rows = trainer.train_dataset if trainer.args.needs_completions and not given else []
        result = {
            "weights": weights,
            "before": before,
            "moved": (weights - before).abs().max(),
            "targets": [trainer.targets[row["clean_ids"]] for row in rows],
            "metrics": {"eval_loss": eval_loss, "train_loss": train_loss},
            "logged": measured,
        }
        torch.save(result, Path(directory) / "result.pt")
    end_run(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])

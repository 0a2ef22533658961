"""Small runs of the three methods in processes of their own, for the tests that end them at any moment."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import TrainerCallback

from tests.helpers.by_method import trainer_of
from tests.helpers.distributions import allow_fsdp_on_cpu, check_wrapper, trained_weights
from tests.helpers.distributions import options as distribution
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.runs import weights
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.trainer.run.interruption import read_manifest
from trl_consistency.upstream import end_run


METHODS = ("bct", "act", "opct")
STEPS = 12


class Send(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, number, step, times=1):
        self.number, self.step, self.times = number, step, times

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        for _ in range(self.times if state.global_step + 1 == self.step else 0):
            os.kill(os.getpid(), self.number)


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
        options |= {"disable_dropout": False, "steps_per_generation": 2}
    else:
        options["target_batch_size"] = 3
    return trainer_of(
        method,
        directory,
        model,
        options,
        train_dataset=make_pairs(12) if method == "opct" else make_pairs(24, completion=False),
        processing_class=make_tokenizer(),
        peft_config=None if method == "bct" else lora,
    )


def step_of(checkpoint):
    return int(Path(checkpoint).name.removeprefix("checkpoint-"))


def last_step(directory):
    """Of the last whole checkpoint, 0 without one."""
    steps = [0]
    for checkpoint in Path(directory).glob("checkpoint-*"):
        with suppress(ConsistencyError):
            read_manifest(checkpoint)
            steps.append(step_of(checkpoint))
    return max(steps)


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
    torch.save(weights(trainer.model), Path(directory) / "unfinished")
    os.replace(Path(directory) / "unfinished", Path(directory) / "weights.pt")


def stop_one_of_two(rank, port, directory):
    """One of two processes; the second one alone is sent a signal."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    trainer = make_trainer("act", directory, per_device_train_batch_size=2, ddp_backend="gloo")
    if rank == 1:
        trainer.add_callback(Send(signal.SIGTERM, step=5))
    try:
        trainer.train()
    except SystemExit:
        end_run(trainer)
        raise


def main(directory, model, stops, resumes):
    """By `accelerate launch`, as an accelerate config has it."""
    allow_fsdp_on_cpu()
    config = make_config(
        directory,
        method="act",
        per_device_train_batch_size=2,
        max_steps=6,
        save_strategy="steps",
        save_steps=2,
        **distribution(),
    )
    trainer = ConsistencyTrainer(
        model=model,
        args=config,
        train_dataset=make_pairs(16),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    if stops == "yes" and trainer.accelerator.process_index == 1:
        trainer.add_callback(Send(signal.SIGTERM, step=3))
    try:
        trainer.train(resume_from_checkpoint=resumes == "yes")
    except SystemExit:
        end_run(trainer)
        raise
    check_wrapper(trainer)
    trained = trained_weights(trainer)
    if trainer.accelerator.is_main_process:
        torch.save(trained, Path(directory) / "weights.pt")
    end_run(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])

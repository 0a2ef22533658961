"""Hostile input: environment."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from accelerate import Accelerator
from transformers import TrainingArguments

from tests.helpers.models import make_model, make_tokenizer
from tests.hostile_input.room import Case, Room
from trl_consistency.trainer.run import processes
from trl_consistency.trainer.run.run_lock import command_lock


def in_use(room: Room) -> None:
    with command_lock(room.path / "out", Accelerator(cpu=True)):
        room.train()


def without(room: Room, package: str) -> None:
    """As if a package were not installed."""
    for module in ("trl_consistency.trainer.run.checks", "trl_consistency.config.types"):
        room.monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == package else find_spec(name))


def full_disk(room: Room) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    room.monkeypatch.setattr("trl_consistency.trainer.run.output_checks.tempfile.TemporaryFile", refuse)


def compiled(room: Room) -> None:
    """As `accelerate launch` does with a `dynamo_config` in its config."""
    room.monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")


def of_two(room: Room, make: Callable[..., Any], *, batch: int = 2, **sharing: bool) -> None:
    """As in one of two processes, with options of how they share batches out."""
    room.monkeypatch.setattr(TrainingArguments, "world_size", 2)
    make(options={"per_device_train_batch_size": batch, "accelerator_config": sharing})


def apart(room: Room, **other: str) -> None:
    """As the first of two processes, of which the second was given something else."""
    trainer = room.trainer(model=make_model(), processing_class=make_tokenizer())
    room.monkeypatch.setattr(processes, "gather_object", lambda runs: [*runs, runs[0] | other])
    room.monkeypatch.setattr(Accelerator, "num_processes", 2)
    trainer.train()


CASES: list[Case] = [
    Case(
        "compiled by the launcher",
        "An accelerate config that compiles the model, in which the reference also runs",
        "The accelerate config compiles the model (`dynamo_config`), which is not available where the reference runs in its "
        "modules, too. Leave it out.",
        lambda room: (compiled(room), room.trainer(options={"method": ["kl"]})),
    ),
    Case(
        "uneven batches",
        "Several processes, where one may have more batches than another",
        "`accelerator_config` sets `even_batches` to false: one of the 2 processes would wait for batches that another does not "
        "have. Leave it out: evaluations do not count the rows that fill up a last batch.",
        lambda room: of_two(room, room.trainer, even_batches=False),
    ),
    Case(
        "uneven batches of rollouts",
        "The same, on-policy",
        "`accelerator_config` sets `even_batches` to false: …",
        lambda room: of_two(room, room.rollouts, even_batches=False),
    ),
    Case(
        "dispatched batches",
        "Several processes, where one reads all batches although they have different widths",
        "`accelerator_config` sets `dispatch_batches`: one of the 2 processes would put together batches of different widths. "
        "Leave it out: each process then reads its own.",
        lambda room: of_two(room, room.trainer, dispatch_batches=True),
    ),
    Case(
        "batches that two processes cannot share",
        "Batches to be split between processes, of a size that does not allow it",
        "`accelerator_config` sets `split_batches`: 2 processes share each batch, and `per_device_train_batch_size` (3) is not a "
        "multiple of 2. Change `per_device_train_batch_size`, or leave out `split_batches`: each process then reads batches of its own.",
        lambda room: of_two(room, room.trainer, batch=3, split_batches=True),
    ),
    Case(
        "other rows in each process",
        "Several processes that shuffle the pairs without a seed, or share them out themselves",
        "Process 1 has another `train_dataset` than process 0 (2 rows, others, and not 2 rows, …). Give all the same rows in the same "
        "order, with a seed if you shuffle them: the trainer shares them out itself (no `split_dataset_by_node`).",
        lambda room: apart(room, train_dataset="2 rows, others"),
    ),
    Case(
        "other weights in each process",
        "Several processes with weights that each drew at random, such as those of new tokens",
        "Process 1 has another `model` than process 0 (1, and not …). Give all the same weights: set a seed before the model is made, or "
        "changed.",
        lambda room: apart(room, model="1"),
    ),
    Case(
        "other options in each process",
        "Several processes that were started with different options",
        "Process 1 has another `learning_rate` than process 0 (1, and not 0.01). Set it alike in all.",
        lambda room: apart(room, learning_rate="1"),
    ),
    Case(
        "output folder",
        "An output folder that cannot be written to",
        "`output_dir` `/dev/null/out` is not writable (Not a directory). Choose another one.",
        lambda room: room.train(output_dir="/dev/null/out"),
    ),
    Case(
        "output file",
        "An output folder that is a file",
        "`output_dir` `…out` is not writable (File exists). Choose another one.",
        lambda room: (room.file("out", ""), room.rollouts()),
    ),
    Case(
        "output folder of pairs",
        "An output folder that holds pairs, whose card the model's would replace",
        "`output_dir` `…out` holds data that `trl-consistency pairs` wrote: the model's card would replace their card. Choose another one.",
        lambda room: (
            room.file("out/README.md", "8 pairs for consistency training, made with `trl-consistency pairs`."),
            room.trainer(),
        ),
    ),
    Case(
        "output folder with a README.md",
        "An output folder with a README.md of the user's own, such as that of a project (`output_dir: .`)",
        "`output_dir` `…out` has a README.md that is no model's card, and the model's would replace it. Choose another folder, or "
        "rename that file.",
        lambda room: (room.file("out/README.md", "# My project"), room.trainer()),
    ),
    Case(
        "full disk",
        "A disk without room",
        "`output_dir` `…out` is not writable (No space left on device). Choose another one.",
        lambda room: (full_disk(room), room.trainer()),
    ),
    Case(
        "no bitsandbytes",
        "4-bit weights without bitsandbytes",
        "`load_in_4bit` needs the package `bitsandbytes`: `pip install bitsandbytes`.",
        lambda room: (without(room, "bitsandbytes"), room.train(load_in_4bit=True, use_peft=True)),
    ),
    Case(
        "no bitsandbytes for an optimizer",
        "An 8-bit optimizer without bitsandbytes",
        "`optim` adamw_8bit needs the package `bitsandbytes`: `pip install bitsandbytes`.",
        lambda room: (without(room, "bitsandbytes"), room.trainer(options={"optim": "adamw_8bit"})),
    ),
    Case(
        "no vLLM",
        "vLLM, which is not installed",
        "`use_vllm` needs the package `vllm`: `pip install 'trl[vllm]'`.",
        lambda room: (without(room, "vllm"), room.train(use_vllm=True, command="on-policy-consistency")),
    ),
    *(
        Case(
            f"no vLLM for the engine {engine}",
            f"{what} as `engine`, without vLLM",
            f"`engine` {engine} needs the package `vllm`: `pip install 'trl[vllm]'`.",
            lambda room, engine=engine: (
                without(room, "vllm"),
                room.train(engine=engine, command="on-policy-consistency"),
            ),
        )
        for engine, what in (("vllm", "vLLM in the training process"), ("http://127.0.0.1:8000", "A server"))
    ),
    Case(
        "no DeepSpeed",
        "DeepSpeed, which is not installed",
        "`deepspeed` needs the package `deepspeed`: `pip install deepspeed`.",
        lambda room: (without(room, "deepspeed"), room.train(deepspeed="zero2.json")),
    ),
    Case(
        "no Liger",
        "Liger kernels, which are not installed",
        "`use_liger_kernel` needs the package `liger_kernel`: `pip install liger-kernel`.",
        lambda room: (without(room, "liger_kernel"), room.train(use_liger_kernel=True)),
    ),
    Case(
        "no FlashAttention",
        "FlashAttention, which is not installed",
        "`attn_implementation` flash_attention_2 needs the package `flash_attn`: `pip install flash-attn`.",
        lambda room: (without(room, "flash_attn"), room.train(attn_implementation="flash_attention_2")),
    ),
    Case(
        "no tracker",
        "A tracker that is not installed",
        "`report_to` names `wandby`, which is not installed (or not a tracker that transformers knows). Install it, or set `report_to: none`. Available here: ….",
        lambda room: room.train(report_to="wandby"),
    ),
    Case(
        "float16 on a CPU",
        "Half precision without an accelerator",
        "`fp16` needs an accelerator, and the run is on the CPU. Leave it out (float32), or set `bf16: true` instead.",
        lambda room: room.train("fp16: true\n"),
    ),
    Case(
        "precision of the launcher",
        "A recipe with `bf16: false`, started by `accelerate launch --mixed_precision bf16`",
        "In the options `bf16` is false, and `ACCELERATE_MIXED_PRECISION` is bf16 (`accelerate launch --mixed_precision`, or `mixed_precision` in its config file). Set both alike.",
        lambda room: (room.monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16"), room.train(bf16=False)),
    ),
    Case(
        "activation offloading on a CPU",
        "Activations that are to leave an accelerator, where there is none",
        "`activation_offloading` moves activations from an accelerator to the CPU's memory, and the run is on the CPU. Leave it out.",
        lambda room: room.train(activation_offloading=True),
    ),
    Case(
        "folder in use",
        "A second training in a folder where one goes on",
        "`output_dir` …out is in use: process … on …, since …, trains there. Wait until it ends, or choose another folder.",
        lambda room: in_use(room),
    ),
]

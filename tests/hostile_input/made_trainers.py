"""Hostile input: what is done to a trainer, or to its model, after it was made, and how evaluations are asked for."""

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel, TrainerCallback

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.hostile_input.room import Case, Room
from trl_consistency import ConsistencyTrainer


def made(
    room: Room,
    change: Callable[[ConsistencyTrainer], Any],
    use: str = "train",
    options: Any = None,
    lora: bool = False,
) -> None:
    """A trainer that is used after something was done to it."""
    config = LoraConfig(target_modules=["q_proj"]) if lora else None
    arguments = {"processing_class": make_tokenizer(), "eval_dataset": make_pairs(2), "peft_config": config}
    trainer = room.trainer(model=make_model(), options=options, **arguments)
    change(trainer)
    getattr(trainer, use)()


def named_adapter() -> PreTrainedModel:
    return get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"]), adapter_name="mine")


class Merging(TrainerCallback):
    def on_train_begin(self, *args: Any, model: Any, **kwargs: Any) -> None:
        model.merge_adapter()


CASES: list[Case] = [
    Case(
        "padding_free afterwards",
        "`padding_free` set on an existing trainer: rows would attend to one another",
        "`args.padding_free` was False when the trainer was made, and is True: it is settled from then on. Make a new trainer.",
        lambda room: made(room, lambda trainer: setattr(trainer.args, "padding_free", True)),
    ),
    Case(
        "loss afterwards",
        "A new `compute_loss_func` for an existing trainer",
        "`compute_loss_func` was assigned after the trainer was made: the objective is that of its config. Leave it out.",
        lambda room: made(room, lambda trainer: setattr(trainer, "compute_loss_func", print)),
    ),
    Case(
        "metrics afterwards",
        "A new `compute_metrics` for an existing trainer that has no logits",
        "`compute_metrics` is not available where the reference runs beside the student (`method` ['kl'], …",
        lambda room: made(
            room, lambda trainer: setattr(trainer, "compute_metrics", print), "evaluate", {"method": "kl"}
        ),
    ),
    Case(
        "collator afterwards",
        "A new `data_collator` for an existing trainer",
        "`data_collator` was assigned after the trainer was made: pairs need the trainer's own `PairCollator`. Leave it out.",
        lambda room: made(room, lambda trainer: setattr(trainer, "data_collator", dict)),
    ),
    Case(
        "part of the data afterwards",
        "A part of a trainer's own pairs, assigned to it",
        "`train_dataset` was assigned after the trainer was made. Make a new trainer with it.",
        lambda room: made(room, lambda trainer: setattr(trainer, "train_dataset", trainer.train_dataset.select([0]))),
    ),
    Case(
        "template afterwards",
        "A chat template that is changed after the trainer was made",
        "`processing_class`, its chat template or its `eos_token` was changed after the trainer was made, which rendered its data with another. …",
        lambda room: made(room, lambda trainer: setattr(trainer.processing_class, "chat_template", "")),
    ),
    Case(
        "end of an answer afterwards",
        "An `eos_token` that is changed after the trainer was made",
        "`processing_class`, its chat template or its `eos_token` was changed after the trainer was made, …",
        lambda room: made(room, lambda trainer: setattr(trainer.processing_class, "eos_token", "<|endoftext|>")),
    ),
    Case(
        "unfrozen afterwards",
        "Weights that were frozen when the trainer was made, and are trained",
        "… weight(s) that were frozen when the trainer was made are trainable now (such as …), and the reference shares them with the "
        "student. Unfreeze them first, and make a new trainer.",
        lambda room: made(
            room, lambda trainer: trainer.model.requires_grad_(True), options={"method": "kl"}, lora=True
        ),
    ),
    Case(
        "embeddings resized afterwards",
        "Embeddings that are resized after the trainer was made",
        "Parameters of the model were replaced after the trainer was made (`resize_token_embeddings`, for one), so that …",
        lambda room: made(room, lambda trainer: trainer.model.resize_token_embeddings(400), options={"method": "kl"}),
    ),
    Case(
        "frozen afterwards",
        "A model that is frozen after the trainer was made",
        "The model has no trainable parameter. …",
        lambda room: made(room, lambda trainer: trainer.model.requires_grad_(False)),
    ),
    *(
        Case(
            f"adapter {taken_out} afterwards",
            f"An adapter that `{taken_out}()` took out of the trainer's model: an empty adapter would be saved",
            "The model's adapter was merged into its base or taken out (`merge_and_unload()`, `unload()`), so that …",
            lambda room, taken_out=taken_out: made(
                room, lambda trainer: getattr(trainer.model, taken_out)(), "save_model", lora=True
            ),
        )
        for taken_out in ("merge_and_unload", "unload")
    ),
    Case(
        "adapter left merged",
        "A callback that merges the adapter into its base and does not undo it",
        "No step would train the model's adapter: a callback left it merged into its base (`merge_adapter()`). Call …",
        lambda room: made(room, lambda trainer: trainer.add_callback(Merging()), lora=True),
    ),
    Case(
        "named adapter",
        "A model whose adapter has another name than `default`",
        "The model's adapter is called `mine`, so PEFT saves it in a subfolder of that name. …",
        lambda room: room.trainer(model=named_adapter(), processing_class=make_tokenizer()),
    ),
    Case(
        "compiled model",
        "A model that is compiled, whose weights would be saved under other names",
        "`model` was compiled (`torch.compile`), and would be saved with weights under other names than the model's. …",
        lambda room: room.trainer(
            model=torch.compile(make_model(), backend="eager"), processing_class=make_tokenizer()
        ),
    ),
    Case(
        "names of evaluation sets",
        "Two evaluation sets: the loss of one would replace a loss of the other",
        "`eval_dataset`: the loss of `hard_kl` would be logged as `eval_hard_kl_loss`, as is the kl loss of `hard`. Rename one of them.",
        lambda room: room.trainer(eval_dataset={"hard": make_pairs(2), "hard_kl": make_pairs(2)}),
    ),
    Case(
        "names of evaluation sets, later",
        "The same, given to `evaluate`",
        "`eval_dataset`: the loss of `hard_act` would be logged as `eval_hard_act_loss`, as is the act loss of `hard`. Rename one of them.",
        lambda room: room.trainer(model=make_model(), processing_class=make_tokenizer()).evaluate(
            {"hard": make_pairs(2), "hard_act": make_pairs(2)}
        ),
    ),
    Case(
        "best checkpoints by nothing",
        "`save_strategy: best` without a metric",
        "`save_strategy` is best, and nothing says by which metric: set `metric_for_best_model`.",
        lambda room: room.train(save_strategy="best"),
    ),
    Case(
        "inputs for no metrics",
        "Inputs for metrics, on-policy, where there are none",
        "`include_for_metrics` is not available in on-policy consistency training: there are no `compute_metrics`. Leave it out.",
        lambda room: room.rollouts(options={"include_for_metrics": ["inputs"]}),
    ),
    Case(
        "accumulation of accelerate",
        "Gradient accumulation by `accelerator_config`, on-policy",
        "`accelerator_config` sets `num_steps` in `gradient_accumulation_kwargs`, which would break up the groups of rollouts. …",
        lambda room: room.rollouts(options={"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}}),
    ),
]

"""Hostile input: adapters and checkpoints."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig
from transformers import LlamaForCausalLM, TrainerCallback

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.hostile_input.damage import adapter, changed_weights, cut, pickled_adapter
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.models.loading import load_model


def spoiled_model() -> Any:
    model = make_model()
    model.model.embed_tokens.weight.data[7, 3] = math.nan
    return model


def resume(room: Room, checkpoint: Path, model: Any = None, **options: Any) -> None:
    lora = LoraConfig(r=4, target_modules="all-linear")
    trainer = room.trainer(model=model or make_model(), processing_class=make_tokenizer(), peft_config=lora)
    trainer.train(resume_from_checkpoint=str(checkpoint))


def resume_another(
    room: Room, options: dict, pairs: Dataset, *changed: str, change: Callable[[Path], Any] | None = None
) -> None:
    """Resumes a run with other options and data."""
    common = {"processing_class": make_tokenizer(), "peft_config": LoraConfig(r=4, target_modules="all-linear")}
    saves = {"max_steps": 1, "save_strategy": "steps"}
    room.trainer(options=saves, model=make_model(), **common).train()
    folder = room.path / "out" / "checkpoint-1"
    if change is not None:
        change(folder)
        folder = next(folder.parent.glob("checkpoint-*"))
    trainer = room.trainer(pairs, saves | options, model=make_model(), **common)
    trainer.train(resume_from_checkpoint=str(folder), resume_changed=changed)


def resume_model_alone(room: Room) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    arguments = {"model": make_model(), "processing_class": make_tokenizer()}
    room.trainer(options=options, **arguments).train()
    room.trainer(options=options, **arguments).train(resume_from_checkpoint=str(room.path / "out" / "checkpoint-1"))


def resume_order_of_chance(room: Room) -> None:
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": 1}
    options |= {"accelerator_config": {"use_seedable_sampler": False}}
    arguments = {"processing_class": make_tokenizer()}
    room.trainer(make_pairs(2), options, model=make_model(), **arguments).train()
    resumed = room.trainer(make_pairs(2), options, model=make_model(), **arguments)
    resumed.train(resume_from_checkpoint=str(room.path / "out" / "checkpoint-3"))


def resume_shorter(room: Room) -> None:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}
    arguments = {"processing_class": make_tokenizer()}
    room.trainer(options=options, model=make_model(), **arguments).train()
    shorter = room.trainer(options=options | {"max_steps": 1}, model=make_model(), **arguments)
    shorter.train(resume_from_checkpoint=str(room.path / "out" / "checkpoint-2"))


def edit_state(folder: Path, **changes: Any) -> None:
    file = folder / "trainer_state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


class DeleteBest(TrainerCallback):
    """Deletes the best checkpoint as soon as it is saved."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        shutil.rmtree(state.best_model_checkpoint)


def best_deleted(room: Room) -> None:
    options = {"max_steps": 1, "save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    parts = {"model": make_model(), "processing_class": make_tokenizer(), "callbacks": [DeleteBest()]}
    room.trainer(options=options, eval_dataset=make_pairs(2), **parts).train()


def wider_model() -> Any:
    config = make_model("llama").config
    config.hidden_size = 64
    return LlamaForCausalLM(config)


CASES: list[Case] = [
    Case(
        "adapter as a model",
        "An adapter instead of a model",
        "…adapter is an adapter, not a whole model. Load it on its base model with `PeftModel.from_pretrained(base_model, '…adapter', is_trainable=True)` and give the trainer that, or merge it into its base model (`merge_and_unload`), save the whole and name that folder.",
        lambda room: room.train(model_name_or_path=str(adapter(room))),
    ),
    Case(
        "adapter as a model in a trainer",
        "The same, in Python",
        "…adapter is an adapter, not a whole model. Load it on its base model with `PeftModel.from_pretrained(base_model, '…adapter', is_trainable=True)` and give the trainer that, or merge it into its base model (`merge_and_unload`), save the whole and name that folder.",
        lambda room: room.rollouts(model=str(adapter(room))),
    ),
    Case(
        "pickled adapter",
        "An adapter as a pickle, which could run code",
        "…adapter holds its adapter as a pickle (adapter_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `PeftModel.from_pretrained(base_model, folder).save_pretrained(new_folder)`.",
        lambda room: resume(room, pickled_adapter(room)),
    ),
    Case(
        "checkpoint within an epoch of chance",
        "A checkpoint within a later epoch, whose rows were drawn by no seed (`use_seedable_sampler: false`)",
        "`resume_from_checkpoint`: …checkpoint-3 was saved after 1.5 epochs. `accelerator_config` sets `use_seedable_sampler` to false, "
        "and the order of this epoch's rows cannot be drawn again: some would be trained on twice, and others not at all. Resume from "
        "the end of an epoch.",
        resume_order_of_chance,
    ),
    Case(
        "checkpoint of the model alone",
        "A checkpoint that was saved with `save_only_model`",
        "`resume_from_checkpoint`: …checkpoint-1 holds only the model (`save_only_model`). To resume, a run needs the states of the optimizer, …",
        resume_model_alone,
    ),
    Case(
        "checkpoint after the end",
        "A checkpoint of a later step than the run ends with",
        "`resume_from_checkpoint`: the checkpoint is of step 2, and this run ends after step 1 (`max_steps`, or else `num_train_epochs`). "
        "Resume from an earlier checkpoint, or train for longer.",
        resume_shorter,
    ),
    Case(
        "pickled checkpoint",
        "A checkpoint whose model is a pickle",
        "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)`.",
        lambda room: room.trainer(model=make_model(), processing_class=make_tokenizer()).train(
            resume_from_checkpoint=room.pickled_model()
        ),
    ),
    Case(
        "cut adapter",
        "An adapter that was cut short",
        "…adapter_model.safetensors is cut short or damaged (…). Download or copy it again.",
        lambda room: resume(room, cut(adapter(room) / "adapter_model.safetensors").parent),
    ),
    Case(
        "adapter of another rank",
        "A checkpoint with an adapter of another rank",
        "`resume_from_checkpoint`: …adapter is of another model or adapter: ….lora_A.weight is [2, 32] there and [4, 32] here (and … more). Resume with the options of the run that saved it.",
        lambda room: resume(room, adapter(room, r=2)),
    ),
    Case(
        "adapter of another base",
        "A checkpoint with an adapter of another base model",
        "`resume_from_checkpoint`: …adapter is of another model or adapter: ….lora_A.weight is [4, 32] there and [4, 64] here (and … more). Resume with the options of the run that saved it.",
        lambda room: resume(room, adapter(room), wider_model()),
    ),
    Case(
        "checkpoint of another model",
        "A checkpoint of another model",
        "`resume_from_checkpoint`: …model is of another model or adapter: model.embed_tokens.weight is [384, 32] there and [400, 32] here (and 1 more). Resume with the options of the run that saved it.",
        lambda room: room.rollouts(model=make_model(vocab_size=400), processing_class=make_tokenizer()).train(
            resume_from_checkpoint=str(room.model())
        ),
    ),
    Case(
        "no checkpoint",
        "A checkpoint that is not there",
        "`resume_from_checkpoint`: there is no folder gone.",
        lambda room: room.train(resume_from_checkpoint="gone"),
    ),
    Case(
        "no checkpoint yet",
        "The last checkpoint, in a folder without checkpoints",
        "`resume_from_checkpoint` is true, but there is no checkpoint in …out. To begin a new run, leave it out.",
        lambda room: room.train(resume_from_checkpoint=True, command="on-policy-consistency"),
    ),
    Case(
        "checkpoint of nothing",
        "A folder that is not a checkpoint",
        "…nothing holds neither a model.safetensors nor an adapter_config.json: it is no model and no adapter. Name the folder of one.",
        lambda room: ((room.path / "nothing").mkdir(), resume(room, room.path / "nothing")),
    ),
    Case(
        "learned prompt inside the blocks",
        "A learned prompt where states inside the blocks are compared",
        "Objectives on hidden states cannot train a learned prompt (PROMPT_TUNING): the blocks run without PEFT's own forward, which alone puts it before the text. Use LoRA, train the whole model, or compare answers only (`method` bct or kl, without `log_consistency_metrics`).",
        lambda room: room.trainer(
            options={"method": ["act"]},
            peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        ),
    ),
    Case(
        "weights that are not finite",
        "A model with one weight that is NaN",
        "…: the weights model.embed_tokens.weight hold NaN or infinite values as they were loaded, and the files do not say why. If they were loaded in float16, they may have overflowed: set `dtype: bfloat16` or `float32`.",
        lambda room: room.trainer(model=spoiled_model(), processing_class=make_tokenizer()),
    ),
    Case(
        "adapter that is not finite",
        "An adapter with weights that are NaN, to measure",
        "…adapter_model.safetensors: the weights base_model.model… hold NaN or infinite values. Nothing that such a model does means anything: take an earlier checkpoint, or train or download it again.",
        lambda room: room.evaluate([CHAT], "--adapters", str(changed_weights(adapter(room), math.nan))),
    ),
    Case(
        "another run",
        "A checkpoint of a run with other data and options",
        "`resume_from_checkpoint`: …checkpoint-1 belongs to another run. Resume with what that run had, or, if the change is meant, with `--resume_changed method learning_rate train_dataset` (in Python `trainer.train(..., resume_changed=['method', 'learning_rate', 'train_dataset'])`), which the model card will state. `method`: bct there, act here `learning_rate`: 0.01 there, 0.1 here `train_dataset`: 2 rows, … there, 3 rows, … here",
        lambda room: resume_another(room, {"method": "act", "learning_rate": 0.1}, make_pairs(3)),
    ),
    Case(
        "state of another step",
        "A checkpoint whose trainer_state.json was changed by hand, or whose folder was renamed",
        "…checkpoint-7 is not a complete checkpoint: trainer_state.json says step 1, which is another.",
        lambda room: resume_another(
            room, {}, make_pairs(2), change=lambda folder: folder.rename(folder.parent / "checkpoint-7")
        ),
    ),
    Case(
        "state of the optimizer changed",
        "A checkpoint with a damaged state of the optimizer, the schedule or the random numbers",
        "`resume_from_checkpoint`: scheduler.pt in …checkpoint-1 is damaged, or was changed after it was saved. Delete that checkpoint, and resume from an earlier one.",
        lambda room: resume_another(
            room, {}, make_pairs(2), change=lambda folder: (folder / "scheduler.pt").write_bytes(bytes(100_000))
        ),
    ),
    Case(
        "edited state",
        "A checkpoint whose trainer_state.json has another epoch or metric than was saved",
        "`resume_from_checkpoint`: trainer_state.json in …checkpoint-1 is damaged, or was changed after it was saved. Delete that checkpoint, and resume from an earlier one.",
        lambda room: resume_another(room, {}, make_pairs(2), change=lambda folder: edit_state(folder, epoch=0.5)),
    ),
    Case(
        "deleted best checkpoint",
        "`load_best_model_at_end` with a best checkpoint that was deleted before the end",
        "`load_best_model_at_end`: …checkpoint-1, the best checkpoint, is not there any more. Put it back and start again with `--resume_from_checkpoint true`, which loads it. Without that folder, it ends with the weights of the last step.",
        best_deleted,
    ),
    Case(
        "output over the model",
        "An `output_dir` that is the model's own folder",
        "`output_dir` …model is the folder of a model that the run uses, which would be overwritten. Choose another one.",
        lambda room: room.train(model_name_or_path=str(room.model()), output_dir=str(room.path / "model")),
    ),
    Case(
        "output over the reference",
        "An `output_dir` that is the folder of the reference",
        "`output_dir` …out is the folder of a model that the run uses, …",
        lambda room: room.rollouts(ref_model=str(room.model().rename(room.path / "out"))),
    ),
    Case(
        "nothing to change",
        "An allowed change that no checkpoint records",
        "`resume_changed` names `lora_alpah`, which no checkpoint records. Resume without it to list the differences.",
        lambda room: resume_another(room, {}, make_pairs(2), "lora_alpah"),
    ),
    Case(
        "change without checkpoint",
        "An allowed change without a run to resume",
        "`resume_changed` needs `resume_from_checkpoint`: no run is resumed.",
        lambda room: room.trainer(model=make_model(), processing_class=make_tokenizer()).train(
            resume_changed=["method"]
        ),
    ),
    Case(
        "Megatron's package",
        "An adapter to measure that would import a package",
        "…adapter: adapter_config.json: `megatron_config` and `megatron_core` would import a package, which is not …",
        lambda room: room.evaluate(
            [CHAT | {"answer": "Paris"}],
            "--adapters",
            str(adapter(room, megatron_config={"a": 1}, megatron_core="megatron.trap")),
        ),
    ),
    Case(
        "Megatron's package in the model's place",
        "The same, instead of the model",
        "…adapter: adapter_config.json: `megatron_config` and `megatron_core` would import a package, which is not …",
        lambda room: load_model(
            str(
                adapter(
                    room,
                    megatron_config={"a": 1},
                    megatron_core="megatron.trap",
                    base_model_name_or_path=str(room.model_dir),
                )
            )
        ),
    ),
]

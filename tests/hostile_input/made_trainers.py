"""Hostile input: what is done to a trainer, or to its model, after it was made, and how evaluations are asked for."""

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, TrainerCallback
from trl import SFTConfig, SFTTrainer

from tests.helpers.architectures import make
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from tests.hostile_input.room import PAIR, Case, Room
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer


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


def assigned(room: Room, **options: Any) -> None:
    """A config to which options are assigned before a trainer is made with it."""
    args = make_config(room.path / "out")
    for name, value in options.items():
        setattr(args, name, value)
    ConsistencyTrainer(make_model(), args, train_dataset=make_pairs(2), processing_class=make_tokenizer())


def second_adapter(trainer: ConsistencyTrainer) -> None:
    get_peft_model(trainer.model.get_base_model(), LoraConfig(target_modules=["q_proj"]))


class Unmeasured(ConsistencyTrainer):
    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        return torch.tensor(0.0), None, None


class Ordered(OnPolicyConsistencyTrainer):
    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


def subclass(room: Room, kind: type[ConsistencyTrainer]) -> ConsistencyTrainer:
    data = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    return kind(make_model(), make_config(room.path / "out"), **data)


def named_adapter() -> PreTrainedModel:
    return get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"]), adapter_name="mine")


class Merging(TrainerCallback):
    def on_train_begin(self, *args: Any, model: Any, **kwargs: Any) -> None:
        model.merge_adapter()


class Slowing(TrainerCallback):
    def on_train_begin(self, args: Any, *others: Any, **kwargs: Any) -> None:
        args.learning_rate = 1e-6


def copy_of_another(room: Room) -> PreTrainedModel:
    """A copy of a model that TRL's own trainer was made with."""
    model = make_model()
    rows = Dataset.from_dict({"prompt": ["a"], "completion": [" b"]})
    config = SFTConfig(str(room.path / "sft"), use_cpu=True, bf16=False, report_to="none")
    SFTTrainer(model, config, train_dataset=rows, processing_class=make_tokenizer())
    return deepcopy(model)


CASES: list[Case] = [
    Case(
        "padding_free afterwards",
        "`padding_free` set on an existing trainer: rows would attend to one another",
        "`args.padding_free` was False when the trainer was made, and is True: it is settled from then on. Make a new trainer.",
        lambda room: made(room, lambda trainer: setattr(trainer.args, "padding_free", True)),
    ),
    Case(
        "model_init afterwards",
        "`model_init` that is assigned to a trainer, as for `hyperparameter_search`: another model was trained than the reference's",
        "`model_init` was assigned after the trainer was made: each training would make another model than the one that the trainer "
        "prepared, and compare it with that one. Make a new trainer for each trial (`hyperparameter_search` is not available).",
        lambda room: made(room, lambda trainer: setattr(trainer, "model_init", make_model)),
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
        "sharing of batches, later",
        "An option of accelerate that is changed after the trainer was made",
        "`args.accelerator_config` was AcceleratorConfig(split_batches=False, …) when the trainer was made, and is "
        "AcceleratorConfig(split_batches=True, …): it is settled from then on. Make a new trainer.",
        lambda room: made(room, lambda trainer: setattr(trainer.args.accelerator_config, "split_batches", True)),
    ),
    Case(
        "metric of the trainer's name",
        "A metric of the user's under the name of one of the trainer's",
        "`compute_metrics` returns `entropy`, and the trainer has a metric of that name. Rename yours.",
        lambda room: made(
            room, lambda trainer: setattr(trainer, "compute_metrics", lambda predicted: {"entropy": 0.0}), "evaluate"
        ),
    ),
    Case(
        "metric of the loss's name",
        "A metric of the user's called `loss`",
        "`compute_metrics` returns `loss`, and the trainer has a metric of that name. Rename yours.",
        lambda room: made(
            room, lambda trainer: setattr(trainer, "compute_metrics", lambda predicted: {"loss": 0.0}), "evaluate"
        ),
    ),
    Case(
        "inputs for no metrics, of pairs",
        "Inputs for metrics, where there are none",
        "`include_for_metrics` is for `compute_metrics`, and there are none. Leave it out.",
        lambda room: room.trainer(options={"include_for_metrics": ["inputs"]}),
    ),
    Case(
        "logits that nothing gives",
        "`preprocess_logits_for_metrics` where there are no logits",
        "`preprocess_logits_for_metrics` is not available where the reference runs beside the student (`method` ['kl'], …",
        lambda room: room.trainer(
            model=make_model(),
            processing_class=make_tokenizer(),
            options={"method": "kl"},
            preprocess_logits_for_metrics=print,
        ),
    ),
    Case(
        "prediction step that measures nothing",
        "A subclass whose `prediction_step` does not call the trainer's",
        "`Unmeasured.prediction_step` does not call `super().prediction_step`, which measures the rows. Call it, and return what it returns.",
        lambda room: subclass(room, Unmeasured).evaluate(),
    ),
    Case(
        "order of rollouts",
        "A subclass that draws the prompts of rollouts otherwise: rows would be left out",
        "The batches have other prompts than rollouts need: each prompt 2 times in a row (`num_generations`), and each batch …",
        lambda room: Ordered(
            make_model(),
            args=make_on_policy_config(room.path / "out", max_steps=1),
            train_dataset=make_pairs(16),
            processing_class=make_tokenizer(),
        ).train(),
    ),
    Case(
        "no evaluation set",
        "An evaluation without a set, or with an empty dictionary",
        "There is no `eval_dataset` to evaluate on. Give one.",
        lambda room: subclass(room, ConsistencyTrainer).evaluate({}),
    ),
    Case(
        "evaluation set of no name",
        "An evaluation set by a name that none has",
        "`evaluate` names the set 'b', and the trainer's `eval_dataset` has no name. Leave the name out, or give a data set.",
        lambda room: subclass(room, ConsistencyTrainer).evaluate("b"),
    ),
    Case(
        "option assigned to a config",
        "An option that would be ignored, assigned to a config before the trainer is made",
        "`assistant_only_loss` is not available in consistency training: the loss is on the completion by definition. Leave it out.",
        lambda room: assigned(room, assistant_only_loss=True),
    ),
    Case(
        "options assigned to a config",
        "Options that contradict each other, assigned to a config before the trainer is made",
        "--load_best_model_at_end requires the save and eval strategy to match, …",
        lambda room: assigned(room, load_best_model_at_end=True, save_strategy="epoch"),
    ),
    Case(
        "option afterwards",
        "An option that would be ignored, assigned to an existing trainer",
        "`args.assistant_only_loss` was False when the trainer was made, and is True: it is settled from then on. Make a new trainer.",
        lambda room: made(room, lambda trainer: setattr(trainer.args, "assistant_only_loss", True)),
    ),
    Case(
        "second adapter on the base",
        "A second adapter on the base model of an existing trainer",
        "The adapter's weights were replaced after the trainer was made: PEFT changes the base model itself, and a second …",
        lambda room: made(room, second_adapter, "save_model", lora=True),
    ),
    Case(
        "model without a name",
        "A model made in memory, without a tokenizer",
        "`model` has no name by which its tokenizer could be loaded. Give the tokenizer, as `processing_class`.",
        lambda room: room.trainer(model=make_model()),
    ),
    Case(
        "order that a stream lacks",
        "An order by lengths, of streamed pairs",
        "`train_sampling_strategy: group_by_length` does nothing where `train_dataset` is streamed: its rows come in the order of the …",
        lambda room: room.trainer(
            make_pairs(2).to_iterable_dataset(), {"train_sampling_strategy": "group_by_length", "max_steps": 1}
        ),
    ),
    Case(
        "metrics that are never computed",
        "`compute_metrics` beside `prediction_loss_only`",
        "With `prediction_loss_only`, no evaluation computes the metrics of `compute_metrics`. Leave one of the two out.",
        lambda room: room.trainer(
            model=make_model(),
            processing_class=make_tokenizer(),
            options={"prediction_loss_only": True},
            compute_metrics=print,
        ),
    ),
    Case(
        "quantization of a loaded model",
        "`quantization_config` beside a model that is loaded already",
        "`quantization_config` is given, and `model` is loaded already, so that it would stay as it is. Load the model with it, or give "
        "the model's name.",
        lambda room: room.trainer(
            model=make_model(), processing_class=make_tokenizer(), quantization_config=SimpleNamespace()
        ),
    ),
    Case(
        "learned prompt without a length",
        "A learned prompt without `num_virtual_tokens`",
        "`peft_config` has no `num_virtual_tokens`. Set it to the length of the learned prompt in tokens.",
        lambda room: room.trainer(peft_config=PromptTuningConfig(task_type="CAUSAL_LM")),
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
        "learning rate in training",
        "A callback that changes the learning rate in the options, which the optimizer does not read again",
        "`args.learning_rate` was 0.01 when the training began, and is 1e-06: it is settled from then on. A callback may not change it. …",
        lambda room: made(room, lambda trainer: trainer.add_callback(Slowing())),
    ),
    Case(
        "copy of another model",
        "A copy of a model that `SFTTrainer` was made with, which computes with the weights of that one",
        "The model is a copy (`copy.deepcopy`) of one that TRL's `SFTTrainer` was made with, and answers with the weights of that one. …",
        lambda room: room.trainer(model=copy_of_another(room), processing_class=make_tokenizer()),
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
        "thoughts in given answers",
        "Answers with thoughts, which `keep_thinking: false` does not empty",
        "`train_dataset`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: its answer has a thought, and "
        "`keep_thinking=False` empties those of generated targets alone",
        lambda room: room.trainer([PAIR | {"completion": "<think>Hm.</think>Paris."}], {"keep_thinking": False}),
    ),
    Case(
        "smoothed labels beside routers",
        "Label smoothing with a mixture of experts, whose load-balancing loss TRL then leaves out",
        "With `label_smoothing_factor`, TRL does not train on the load-balancing loss of the routers (`router_aux_loss_coef` is 0.001). "
        "Leave it out, or set `router_aux_loss_coef: 0`.",
        lambda room: room.trainer(
            options={"label_smoothing_factor": 0.1}, model=make("qwen3_moe"), processing_class=make_tokenizer()
        ),
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

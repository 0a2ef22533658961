"""Hostile input: options of the methods, and of the engines that answer and sample."""

from collections.abc import Callable
from typing import Any

import torch
from datasets import IterableDataset
from peft import (
    LoraConfig,
)

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.hostile_input.damage import adapter
from tests.hostile_input.room import ANSWERED, PAIR, Case, Room
from trl_consistency import OnPolicyConsistencyTrainer


SERVER = "http://127.0.0.1:8000"


def schedule_alone(room: Room) -> None:
    schedule = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    trainer = room.trainer(model=make_model(), processing_class=make_tokenizer(), optimizers=(None, schedule))
    trainer.train()


def decay_of_a_class(room: Room) -> None:
    made = torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.5}
    room.trainer(model=make_model(), processing_class=make_tokenizer(), optimizer_cls_and_kwargs=made).train()


def schedule_of_another(room: Room) -> None:
    model = make_model()
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    optimizers = optimizer, torch.optim.lr_scheduler.ConstantLR(other)
    room.trainer(model=model, processing_class=make_tokenizer(), optimizers=optimizers).train()


def weights_changed(room: Room) -> None:
    lora = LoraConfig(target_modules=["q_proj"])
    trainer = room.trainer(model=make_model(), processing_class=make_tokenizer(), peft_config=lora)
    with torch.no_grad():
        next(trainer.model.parameters()).add_(0.1)
    trainer.train()


def adapter_of_transformers(room: Room) -> None:
    model = make_model()
    model.add_adapter(LoraConfig(target_modules=["q_proj", "lm_head"]))
    room.trainer(model=model, processing_class=make_tokenizer())


def assigned(name: str, value: Any) -> Callable[[Room], None]:
    """A trainer, or its `args`, of which something is changed after it was made."""

    def meet(room: Room) -> None:
        trainer = room.trainer(model=make_model(), processing_class=make_tokenizer())
        setattr(trainer.args if name == "method" else trainer, name, value)
        trainer.evaluate() if name == "eval_dataset" else trainer.train()

    return meet


CASES: list[Case] = [
    *(
        Case(f"assigned {name}", f"A new `{name}` for an existing trainer", message, assigned(name, value))
        for name, value, message in (
            ("train_dataset", make_pairs(2), "`train_dataset` was assigned after the trainer was made. Make a …"),
            ("eval_dataset", make_pairs(2), "`eval_dataset` was assigned after the trainer was made. Make a …"),
            (
                "method",
                ["act"],
                "`args.method` was ['bct'] when the trainer was made, and is ['act']: it is settled from then on. Make a new trainer.",
            ),
        )
    ),
    Case(
        "weights changed",
        "A base model that was changed after the trainer was made",
        "The model's weights were changed after the trainer was made. The trainer took the earlier weights for the initial policy, …",
        weights_changed,
    ),
    Case(
        "adapter of transformers",
        "An adapter made by `model.add_adapter`",
        "The model has an adapter that transformers made (`add_adapter` or `load_adapter`), which the trainer does not see: …",
        adapter_of_transformers,
    ),
    Case(
        "schedule alone",
        "A schedule without its optimizer",
        "`optimizers` has a schedule without its optimizer, so that it would change no learning rate. Give both, or leave the schedule to `lr_scheduler_type`.",
        schedule_alone,
    ),
    Case(
        "decay of a class",
        "`optimizer_cls_and_kwargs` with a weight decay, in place of which Trainer sets the option's",
        "`optimizer_cls_and_kwargs` sets `weight_decay` 0.5, which would be ignored: that of `args` is 0.0. Set the option of that name.",
        decay_of_a_class,
    ),
    Case(
        "schedule of another",
        "A schedule that belongs to another optimizer than the given one",
        "`optimizers`: the schedule belongs to another optimizer, so it would not change the learning rate of this training. Make a "
        "schedule for the optimizer that you give.",
        schedule_of_another,
    ),
    Case(
        "prediction",
        "`do_predict`, which no command does",
        "`do_predict` predicts nothing in this command: leave it out, and measure the model with `trl-consistency evaluate`.",
        lambda room: room.train(do_predict=True),
    ),
    Case(
        "evaluation after the end",
        "An evaluation that is to begin after the end of the training",
        "`eval_delay` is 5, and training ends after 2 steps: nothing would be evaluated. Lower it.",
        lambda room: room.trainer(
            options={"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "eval_delay": 5},
            eval_dataset=make_pairs(2),
        ),
    ),
    Case(
        "evaluation after the last epoch",
        "An evaluation that is to begin after the last epoch, or after the steps of all epochs",
        "`eval_delay` is 50, and training ends after 1 steps: nothing would be evaluated. Lower it.",
        lambda room: room.trainer(
            options={
                "max_steps": -1,
                "num_train_epochs": 1,
                "eval_strategy": "steps",
                "eval_steps": 1,
                "eval_delay": 50,
            },
            model=make_model(),
            processing_class=make_tokenizer(),
            eval_dataset=make_pairs(2),
        ).train(),
    ),
    Case(
        "cache of the generation",
        "Answers without a key/value cache",
        "`generation_kwargs` sets `use_cache`. The trainer sets it itself. Leave it out.",
        lambda room: room.train(generation_kwargs={"use_cache": False}),
    ),
    Case(
        "a penalty beside an n-gram size",
        "A `repetition_penalty` beside a `no_repeat_ngram_size` above 1",
        "`repetition_penalty` and `no_repeat_ngram_size` 3 cannot be used together: both count the padding of a batch, and what keeps it out of "
        "one changes the other. Leave one of them out.",
        lambda room: room.train(repetition_penalty=1.1, generation_kwargs={"no_repeat_ngram_size": 3}),
    ),
    Case(
        "least length in generation_kwargs",
        "The least length of prompt and answer among `generation_kwargs`",
        "`generation_kwargs` sets `min_length`, which counts the prompt, and the padding of its batch. Set `min_new_tokens`.",
        lambda room: room.train(generation_kwargs={"min_length": 9}),
    ),
    Case(
        "length among generation options",
        "The length of prompt and answer among `generation_kwargs`",
        "`generation_kwargs` sets `max_length`. Set the option `max_completion_length`.",
        lambda room: room.train(generation_kwargs={"max_length": 9}),
    ),
    Case(
        "adapter of a changed model",
        "An adapter of a model whose config is changed by `model_init_kwargs`",
        "`model_init_kwargs` changes the model's config (rms_norm_eps). An adapter does not save this change: it would be loaded onto the unchanged model. Change config.json in a copy of the model, and name that.",
        lambda room: room.train(model_init_kwargs={"rms_norm_eps": 0.5}, use_peft=True),
    ),
    Case(
        "unknown method",
        "A misspelt method",
        "Unknown `method` `btc`: it can be bct, kl, act, attct, mlpct. Did you mean `bct`?",
        lambda room: room.trainer(options={"method": "btc"}),
    ),
    Case(
        "method of the other trainer",
        "The method of the other trainer",
        "Unknown `method` `opct`: it can be bct, kl, act, attct, mlpct. OPCT is `OnPolicyConsistencyTrainer` (`trl-consistency on-policy-consistency`).",
        lambda room: room.train(method="opct"),
    ),
    Case(
        "config of the other trainer",
        "The config of the other trainer",
        "`args` must be of the class `OnPolicyConsistencyConfig`, got `ConsistencyConfig`.",
        lambda room: OnPolicyConsistencyTrainer(
            str(room.model_dir), args=make_config(room.path), train_dataset=make_pairs(2)
        ),
    ),
    Case(
        "stop strings",
        "Texts that are to end an answer",
        "`generation_kwargs` sets `stop_strings`, for which generation has no tokenizer. Set `eos_token_id`, or `use_vllm: true` with its `stop`.",
        lambda room: room.train(generation_kwargs={"stop_strings": ["User:"]}),
    ),
    Case(
        "stop strings for an engine",
        "Texts that are to end an answer of transformers as `engine`",
        "`generation_kwargs` sets `stop_strings`, for which generation has no tokenizer. Set `eos_token_id`, or `engine: vllm` with its `stop`.",
        lambda room: room.train(generation_kwargs={"stop_strings": ["User:"]}, engine="transformers"),
    ),
    Case(
        "drafted tokens",
        "Speculative decoding among `generation_kwargs`",
        "`generation_kwargs` sets `prompt_lookup_num_tokens`, which drafts tokens for one prompt at a time, and here prompts come in batches. Leave it out.",
        lambda room: room.train(generation_kwargs={"prompt_lookup_num_tokens": 2}),
    ),
    Case(
        "time limit of answers",
        "A time limit among `generation_kwargs`",
        "`generation_kwargs` sets `max_time`, and the speed of the machine would decide where an answer ends. Set `max_completion_length`.",
        lambda room: room.train(generation_kwargs={"max_time": 5}),
    ),
    Case(
        "weights",
        "More or fewer weights than methods",
        "`method_weights` has 1 value(s) for 2 method(s) (bct, act): give one weight for each.",
        lambda room: room.trainer(options={"method": ["bct", "act"], "method_weights": [1.0]}),
    ),
    Case(
        "not a number",
        "NaN instead of a number",
        "`learning_rate` must be at least 0, got nan.",
        lambda room: room.train(learning_rate=float("nan")),
    ),
    *(
        Case(id, wrong, message, lambda room, options=options: room.train(**options))
        for id, wrong, options, message in (
            (
                "adapter that is not switched on",
                "Options of an adapter without `use_peft: true`",
                {"lora_r": 16},
                "`lora_r` is set without `use_peft`, so that all weights would be trained. Set `use_peft: true`, or `use_peft: false` if that is meant.",
            ),
            (
                "quantization that is not switched on",
                "Options of weights in 4 bits without `load_in_4bit: true`",
                {"bnb_4bit_quant_type": "nf4"},
                "`bnb_4bit_quant_type` is set without `load_in_4bit`, so that nothing would be quantized. Set …",
            ),
            (
                "evaluation that is not switched on",
                "`eval_steps` without `eval_strategy`",
                {"eval_steps": 10},
                "`eval_steps` is set without `eval_strategy`, so that nothing would be evaluated during training. Set `eval_strategy: steps`, or …",
            ),
            (
                "steps that are not counted",
                "A number of steps between checkpoints, evaluations or logs beside a strategy that counts none",
                {"save_steps": 10, "save_strategy": "epoch"},
                "`save_steps` is 10, and `save_strategy` is epoch, which counts no steps. Set `save_strategy: steps`, or leave `save_steps` out.",
            ),
            (
                "epochs that do not count",
                "A number of epochs beside a number of steps",
                {"num_train_epochs": 3, "max_steps": 2},
                "`num_train_epochs` is 3, and `max_steps` is 2, which alone would decide. Leave one of them out, or set `max_steps: -1`.",
            ),
            (
                "a page that is not pushed",
                "Options of the Hub without `push_to_hub: true`",
                {"hub_model_id": "me/model"},
                "`hub_model_id` is set without `push_to_hub`, so that nothing would be pushed. Set `push_to_hub: true`, or …",
            ),
            (
                "vllm that is not switched on",
                "Options of vLLM without `use_vllm: true`",
                {"vllm_gpu_memory_utilization": 0.5},
                "`vllm_gpu_memory_utilization` is set without `use_vllm`, so that transformers would write the answers. Set …",
            ),
            (
                "misspelt option of an optimizer",
                "A misspelt option of the optimizer",
                {"optim": "sgd", "optim_args": "momentun=0.9"},
                "`optim_args` sets `momentun`, which `optim` sgd does not read; it reads momentum, dampening, nesterov. Did you mean `momentum`?",
            ),
            (
                "option of another optimizer",
                "An option of another optimizer",
                {"optim": "sgd", "adam_beta1": 0.5},
                "`adam_beta1` is set, but `optim` is sgd, which does not read it. Leave it out.",
            ),
            (
                "modules of another optimizer",
                "`optim_target_modules` and an optimizer that trains all modules alike",
                {"optim": "sgd", "optim_target_modules": ["q_proj"]},
                "`optim_target_modules` is set, but `optim` is sgd, which trains all modules alike: it is for GaLore and APOLLO. Leave it out.",
            ),
            (
                "optimizer within the backward pass",
                "An optimizer that changes weights within the backward pass",
                {"optim": "galore_adamw_layerwise"},
                "`optim` galore_adamw_layerwise changes weights within the backward pass: it leaves no gradient to clip or to check, and …",
            ),
            (
                "warmup of a constant learning rate",
                "A warmup with a schedule that has none",
                {"lr_scheduler_type": "constant", "warmup_steps": 3},
                "`warmup_steps` is set, but `lr_scheduler_type` is constant, which has no warmup: set `lr_scheduler_type: constant_with_warmup`.",
            ),
            (
                "evaluation that casts the weights",
                "An evaluation that casts the weights in training",
                {"bf16_full_eval": True},
                "`bf16_full_eval` is not available in consistency training: it casts the weights, and training and saving would continue with the cast weights. Leave it out.",
            ),
            (
                "batches out of order",
                "Batches in the order in which worker processes finish them",
                {"dataloader_in_order": False, "dataloader_num_workers": 2},
                "`dataloader_in_order=False` is not available in consistency training: rows would be trained on twice or never …",
            ),
            (
                "search for a batch that fits",
                "A search for a batch that fits into memory",
                {"auto_find_batch_size": True},
                "`auto_find_batch_size` is not available in consistency training: after a batch that does not fit, it would start again …",
            ),
            (
                "label smoothing without labels",
                "Label smoothing with a loss that does not have it",
                {"loss_type": "dft", "label_smoothing_factor": 0.1},
                "`label_smoothing_factor` is not available in consistency training: `loss_type: dft` has none. Leave it out.",
            ),
        )
    ),
    Case(
        "word for a number",
        "A word instead of a number",
        "…recipe.yaml: `learning_rate` must be a number, got 'fast'.",
        lambda room: room.train(learning_rate="fast"),
    ),
    Case(
        "out of range",
        "A number out of its range",
        "`anchor_ratio` must be at least 0 and below 1, got 1.0.",
        lambda room: room.train(anchor_ratio=1.0, command="on-policy-consistency"),
    ),
    Case(
        "layer that is not there",
        "A layer that the model does not have",
        "`layers` names block 9, and the model has 2: 0 to 1, or from the end -1 to -2.",
        lambda room: room.trainer(options={"method": "act", "layers": [9]}),
    ),
    Case(
        "option of another method",
        "An option of a method that is not used",
        "`layers` is set, but `method` is ['bct']: it is for act, attct or mlpct, and for `log_consistency_metrics`. Leave it out, or set it back to None.",
        lambda room: room.train(layers=[0]),
    ),
    Case(
        "refused option",
        "An option of TRL that does not work with pairs",
        "`eval_packing` is not available in consistency training: an evaluation batch is a fixed number of pairs. `packing` and "
        "`padding_free` leave out their padding. Leave it out.",
        lambda room: room.train(eval_packing=True),
    ),
    Case(
        "unknown loss",
        "A loss of pairs that there is not, in Python",
        "`loss_type` must be 'nll', 'dft' or 'chunked_nll', got 'dtf'.",
        lambda room: room.trainer(options={"loss_type": "dtf"}),
    ),
    Case(
        "loss function",
        "Your own loss function",
        "`compute_loss_func` is not available in consistency training: the objective is `ConsistencyConfig.method`. Leave it out.",
        lambda room: room.trainer(compute_loss_func=lambda *_: 0),
    ),
    Case(
        "teacher",
        "A teacher",
        "`teacher_model` is not available in consistency training: the reference is the initial policy, or `ref_model`. Leave it out.",
        lambda room: room.rollouts(teacher_model="x"),
    ),
    Case(
        "greedy rollouts",
        "Rollouts without sampling",
        "`temperature` must be at least 0.0001 (greedy rollouts of a prompt would all be the same), got 0.0.",
        lambda room: room.train(temperature=0.0, command="on-policy-consistency"),
    ),
    Case(
        "temperature that vLLM raises",
        "A temperature below the lowest of vLLM",
        "`temperature` is 0.001, and vLLM (`use_vllm`) would sample at 0.01, its lowest. Raise it, or leave `use_vllm` out.",
        lambda room: room.train(use_vllm=True, temperature=0.001, command="on-policy-consistency"),
    ),
    Case(
        "temperature that a server raises",
        "A temperature below the lowest of a vLLM server that makes the targets",
        "`temperature` is 0.001, and vLLM (`engine`) would sample at 0.01, its lowest. Raise it, or leave `engine` out.",
        lambda room: room.train(engine=SERVER, temperature=0.001),
    ),
    Case(
        "temperature that an evaluation's engine raises",
        "A temperature below the lowest of vLLM, in an evaluation",
        "`temperature` is 0.001, and vLLM (`engine`) would sample at 0.01, its lowest. Raise it, or use `--engine transformers`.",
        lambda room: room.evaluate([PAIR], "--engine", SERVER, "--temperature", "0.001"),
    ),
    Case(
        "rollouts that stop at a text, left out",
        "Rollouts that end at a text, where those without an end-of-turn token are left out",
        "`mask_truncated_completions` leaves out rollouts without an end-of-turn token, and `generation_kwargs` sets `stop`, which ends "
        "them without one: those that stopped would be left out. Leave one of them out.",
        lambda room: room.train(
            use_vllm=True,
            generation_kwargs={"stop": ["User:"]},
            mask_truncated_completions=True,
            command="on-policy-consistency",
        ),
    ),
    Case(
        "folder of adapters without a server",
        "A folder for a vLLM server's adapters, without a server",
        "`vllm_adapter_dir` is set, but no server gets the adapter: it is for `vllm_mode: server` without `vllm_sync: weights`. Leave it out.",
        lambda room: room.train(use_vllm=True, vllm_adapter_dir="adapters", command="on-policy-consistency"),
    ),
    Case(
        "folder of adapters with an engine here",
        "A folder for a vLLM server's adapters, with vLLM in the training process as `engine`",
        "`vllm_adapter_dir` is set, but no server gets the adapter: it is for `engine: ADDRESS` without `vllm_sync: weights`. Leave it out.",
        lambda room: room.train(engine="vllm", vllm_adapter_dir="adapters", command="on-policy-consistency"),
    ),
    Case(
        "option of an engine here",
        "An option of vLLM in the training process, with a server",
        "`vllm_gpu_memory_utilization` is set, but it is for `vllm_mode: colocate`. Leave it out, or change `vllm_mode`.",
        lambda room: room.train(
            use_vllm=True, vllm_mode="server", vllm_gpu_memory_utilization=0.5, command="on-policy-consistency"
        ),
    ),
    Case(
        "option of an engine here, for an address",
        "An option of vLLM in the training process, with a server as `engine`",
        "`vllm_gpu_memory_utilization` is set, but it is for `engine: vllm`. Leave it out, or change `engine`.",
        lambda room: room.train(engine=SERVER, vllm_gpu_memory_utilization=0.5, command="on-policy-consistency"),
    ),
    Case(
        "batches of rollouts of an engine",
        "Batches of rollouts, which a server as `engine` makes itself",
        "`rollout_batch_size` is not used with `engine` http://127.0.0.1:8000: vLLM makes its own batches. Leave it out.",
        lambda room: room.train(engine=SERVER, rollout_batch_size=2, command="on-policy-consistency"),
    ),
    Case(
        "regex without vLLM",
        "A pattern for rollouts, without vLLM",
        "`vllm_structured_outputs_regex` is set, but it is for `use_vllm: true`: transformers samples without it. Leave it out.",
        lambda room: room.train(vllm_structured_outputs_regex="A|B", command="on-policy-consistency"),
    ),
    Case(
        "regex for transformers",
        "A pattern for rollouts, with transformers as `engine`",
        "`vllm_structured_outputs_regex` is set, but it is for `engine: vllm`: transformers samples without it. Leave it out.",
        lambda room: room.train(
            vllm_structured_outputs_regex="A|B", engine="transformers", command="on-policy-consistency"
        ),
    ),
    Case(
        "engine and use_vllm",
        "Two options that disagree about which engine answers",
        "`engine` is vllm, and `use_vllm` is false: they disagree. Leave one of them out.",
        lambda room: room.train(engine="vllm", use_vllm=False, command="on-policy-consistency"),
    ),
    Case(
        "engine without answers",
        "A server for a method that trains without answers",
        "`engine` is http://127.0.0.1:8000, but `method` act trains without answers. Leave it out.",
        lambda room: room.train(engine=SERVER, method="act"),
    ),
    Case(
        "use_vllm without answers",
        "vLLM for a method that trains without answers",
        "`use_vllm` is for methods that need answers, and `method` is ['act']. Leave it out.",
        lambda room: room.train(use_vllm=True, method="act"),
    ),
    Case(
        "engine here without answers",
        "vLLM as `engine` for a method that trains without answers",
        "`engine` vllm is for methods that need answers, and `method` is ['act']. Leave it out.",
        lambda room: room.train(engine="vllm", method="act"),
    ),
    Case(
        "regenerated by an engine",
        "Regenerated targets with vLLM, which only has the initial model",
        "`engine` vllm cannot be used with `regenerate_targets_every`: vLLM holds the initial checkpoint, and the current policy is to "
        "answer. Leave one of them out.",
        lambda room: room.train(engine="vllm", regenerate_targets_every=1),
    ),
    Case(
        "targets of a server, for an adapter",
        "A server that makes the targets of a model which comes with an adapter",
        "`engine` http://127.0.0.1:8000 cannot answer for a model that comes with an adapter: the engine would have the base model alone. "
        "Merge the adapter and save the model first, or leave `engine` out.",
        lambda room: room.train(engine=SERVER, model_name_or_path=str(adapter(room))),
    ),
    Case(
        "targets of a server, for a revision",
        "A server that makes the targets of a model's revision",
        "`engine` http://127.0.0.1:8000 takes the main revision of a model, and the model's is `v2`. Download that revision and give its "
        "folder as the model, or leave `engine` out.",
        lambda room: room.train(engine=SERVER, model_revision="v2"),
    ),
    Case(
        "targets of a server, for a changed config",
        "A server that makes the targets of a model whose config is changed here",
        "`engine` http://127.0.0.1:8000 loads the model from its files, whose config is another one than here (rms_norm_eps). Change "
        "config.json in a copy of the model and name that, or leave `engine` out.",
        lambda room: room.train(engine=SERVER, model_init_kwargs={"rms_norm_eps": 0.1}),
    ),
    Case(
        "targets of a server, for rounded weights",
        "A server that makes the targets of a model in 4 bits",
        "`engine` is http://127.0.0.1:8000, and the model is loaded in 4 or 8 bits: the server may have other weights than these rounded ones. Make the targets beforehand (`trl-consistency targets --engine ...`) and train on them, or leave `engine` out.",
        lambda room: room.train(engine=SERVER, load_in_4bit=True, use_peft=True),
    ),
    Case(
        "overlap without a server",
        "Rollouts during training, without a server that could sample them",
        "`vllm_overlap` needs a vLLM server (`use_vllm: true`, `vllm_mode: server`): transformers, or an engine in the training process, cannot sample while that process trains. Leave it out.",
        lambda room: room.train(vllm_overlap=True, command="on-policy-consistency"),
    ),
    Case(
        "overlap with an engine here",
        "Rollouts during training, with vLLM in the training process as `engine`",
        "`vllm_overlap` needs a vLLM server (`engine: ADDRESS`): transformers, or an engine in the training process, cannot sample while that process trains. Leave it out.",
        lambda room: room.train(vllm_overlap=True, engine="vllm", command="on-policy-consistency"),
    ),
    Case(
        "overlap of several steps",
        "Rollouts that are more than a step old",
        "`num_iterations or steps_per_generation` is not available with `vllm_overlap`: with several optimizer steps for a batch, the rollouts would be more than one step old. Leave them out, or `vllm_overlap`.",
        lambda room: room.train(
            vllm_overlap=True, use_vllm=True, vllm_mode="server", num_iterations=2, command="on-policy-consistency"
        ),
    ),
    Case(
        "unknown sync",
        "An unknown value for what a vLLM engine gets",
        "`vllm_sync` must be 'adapter' or 'weights', or None, got 'lora'.",
        lambda room: room.train(use_vllm=True, vllm_sync="lora", command="on-policy-consistency"),
    ),
    Case(
        "truncated sampling",
        "Sampling that leaves tokens out, with `policy_gradient`",
        "`top_p=0.9` is not available with `loss_type='policy_gradient'`: it leaves tokens out that the estimate of the divergence needs. Leave it out, or set `loss_type: divergence`.",
        lambda room: room.rollouts(options={"loss_type": "policy_gradient", "top_p": 0.9}),
    ),
    Case(
        "dropout in the ratio",
        "Dropout, with `policy_gradient` and several steps on a batch of rollouts",
        "`disable_dropout=False` is not available with `loss_type='policy_gradient'`: each forward pass draws its own dropout, and the importance ratio would contain it: with several optimizer steps on a batch, or with vLLM. Leave it out.",
        lambda room: room.rollouts(
            options={"loss_type": "policy_gradient", "disable_dropout": False, "num_iterations": 2}
        ),
    ),
    Case(
        "groups",
        "A batch that does not divide into groups of rollouts",
        "`per_device_train_batch_size` (3) times `steps_per_generation` (1) makes 3 rollouts on each process, which do not divide into groups of `num_generations` (2). Batches count completions: choose a multiple.",
        lambda room: room.rollouts(options={"per_device_train_batch_size": 3}),
    ),
    Case(
        "generation option",
        "A misspelt generation option",
        "`generation_kwargs` has the unknown key `min_new_token`. Did you mean `min_new_tokens`?",
        lambda room: room.train(generation_kwargs={"min_new_token": 2}),
    ),
    Case(
        "template variable",
        "A template variable that the trainer sets",
        "`chat_template_kwargs` sets `tokenize`, which is set the same for both sides and is not for the chat template: …",
        lambda room: room.train(chat_template_kwargs={"tokenize": False}, command="on-policy-consistency"),
    ),
    Case(
        "template variable of text",
        "Template variables, and prompts that are text",
        "…row 0: `chat_template_kwargs` is given, but the prompts are text, which no chat template renders",
        lambda room: room.trainer([PAIR], {"chat_template_kwargs": {"no_think": True}}),
    ),
    Case(
        "two completions",
        "A completion whose token ids say something else",
        "…row 0: `completion` and `completion_ids` differ: render `completion_ids` again, or remove it",
        lambda room: room.trainer([ANSWERED | {"completion_ids": [40, 41]}]),
    ),
    Case(
        "stream used up",
        "A stream that can be read only once",
        "`train_dataset` is a stream that gives other rows when it is read again, …",
        lambda room: room.trainer(
            IterableDataset.from_generator(iter([ANSWERED] * 6).__iter__), options={"max_steps": 1}
        ),
    ),
    Case(
        "unknown template variable",
        "A template variable that the template does not have",
        "…row 0: `chat_template_kwargs` sets `no_thinking`, a variable that the chat template does not have. Did you mean `no_think`? …",
        lambda room: room.train(chat_template_kwargs={"no_thinking": True}),
    ),
]

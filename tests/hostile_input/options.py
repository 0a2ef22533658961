"""Hostile input: options."""

from collections.abc import Callable
from typing import Any

import torch
from datasets import IterableDataset
from peft import (
    AdaLoraConfig,
    AdaptionPromptConfig,
    LoraConfig,
    PromptTuningConfig,
    TrainableTokensConfig,
    get_peft_model,
)
from transformers import BitsAndBytesConfig

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.hostile_input.damage import adapter
from tests.hostile_input.room import ANSWERED, CHAT, PAIR, USER, Case, Room
from trl_consistency import OnPolicyConsistencyTrainer


SERVER = "http://127.0.0.1:8000"


def with_adapter(make: Callable[[], Any]) -> Callable[[Room], Any]:
    return lambda room: room.trainer(peft_config=make())


def own_adapter(room: Room, change: Callable[[Any], Any], **arguments: Any) -> None:
    """A model that comes with an adapter, to which something was done."""
    model = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"]))
    change(model)
    room.trainer(model=model, processing_class=make_tokenizer(), **arguments)


def optimizer_of_the_base(room: Room) -> None:
    model = make_model()
    optimizers = (torch.optim.SGD(model.parameters(), lr=0.1), None)
    lora = LoraConfig(target_modules=["q_proj"])
    room.trainer(model=model, processing_class=make_tokenizer(), optimizers=optimizers, peft_config=lora).train()


def schedule_alone(room: Room) -> None:
    schedule = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    trainer = room.trainer(model=make_model(), processing_class=make_tokenizer(), optimizers=(None, schedule))
    trainer.train()


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
        "`layers` is set, but `method` is ['bct']: it is for act, attct or mlpct. Leave it out, or set it back to None.",
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
        "`num_iterations or steps_per_generation` is not available with `vllm_overlap`: with several optimizer steps for a batch, the rollouts would be more than one step old.",
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
        "`top_p=0.9` is not available with `loss_type='policy_gradient'`: it leaves tokens out that the estimate of the divergence needs.",
        lambda room: room.rollouts(options={"loss_type": "policy_gradient", "top_p": 0.9}),
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
    Case(
        "nothing to evaluate on",
        "Evaluation without evaluation pairs",
        "`eval_strategy` is steps, but there is no `eval_dataset`: give one, or set `eval_strategy: 'no'`.",
        lambda room: room.trainer(options={"eval_strategy": "steps", "eval_steps": 1}),
    ),
    Case(
        "nothing to evaluate at the start",
        "An evaluation before the first step, without evaluation pairs",
        "`eval_on_start` is set, but there is no `eval_dataset`: give one, or leave it out.",
        lambda room: room.trainer(options={"eval_on_start": True}),
    ),
    Case(
        "name of an evaluation set",
        "An evaluation set with a number for a name",
        "`eval_dataset` must have names that are text, got [3].",
        lambda room: room.trainer(eval_dataset={3: make_pairs(2)}),
    ),
    *(
        Case(
            f"{option} {value}",
            f"`{option}: {value}`",
            f"`{option}` must be {words}, got {value!r}.",
            lambda room, option=option, value=value: room.train(**{option: value}),
        )
        for option, value, words in (
            ("pad_to_multiple_of", 0, "at least 1, or None"),
            ("neftune_noise_alpha", -1.0, "above 0, or None"),
            ("logging_steps", -1.0, "at least 0"),
        )
    ),
    Case(
        "misspelt key of a message",
        "A misspelt key of a message",
        "…row 0: `clean_prompt` message 0 has the key `tool_cals`, which would be ignored: did you mean `tool_calls`?",
        lambda room: room.trainer([CHAT | {"clean_prompt": [USER[0] | {"tool_cals": [3]}]}]),
    ),
    Case(
        "do_eval",
        "`do_eval` alone, which evaluates nothing",
        "`do_eval` alone evaluates nothing: set `eval_strategy`, or leave it out.",
        lambda room: room.train(do_eval=True),
    ),
    Case(
        "no split to evaluate on at the start",
        "The same in a recipe",
        "`dataset_test_split` is `test`, but the data set has only: train. …",
        lambda room: room.train(eval_on_start=True),
    ),
    Case(
        "name on the Hub",
        "A name on the Hub that cannot be one",
        "`hub_model_id` 'my model!': Repo id must …",
        lambda room: room.train(hub_model_id="my model!"),
    ),
    Case(
        "unknown loading option",
        "A misspelt option for loading the model",
        "`model_init_kwargs` has the unknown key `attn_implementatio`. Did you mean `attn_implementation`?",
        lambda room: room.train(model_init_kwargs={"attn_implementatio": "eager"}),
    ),
    Case(
        "more layers",
        "Loading options that ask for layers which the weights do not have",
        "… asks for 3 layers (`num_hidden_layers`), and the weights have 2. Download or copy both again. (`model_init_kwargs` changes its config: num_hidden_layers.)",
        lambda room: room.trainer(options={"model_init_kwargs": {"num_hidden_layers": 3}}),
    ),
    Case(
        "other weights",
        "Loading options that load other weights, or make some at random",
        "`model_init_kwargs` sets `ignore_mismatched_sizes`, which could make the model differ from its files. …",
        lambda room: room.trainer(options={"model_init_kwargs": {"ignore_mismatched_sizes": True, "vocab_size": 500}}),
    ),
    Case(
        "unknown checkpointing option",
        "A misspelt option of gradient checkpointing",
        "`gradient_checkpointing_kwargs` has the unknown key `reentrant`. Did you mean `use_reentrant`?",
        lambda room: room.train(gradient_checkpointing_kwargs={"reentrant": False}, command="on-policy-consistency"),
    ),
    Case(
        "no anchor",
        "A share of anchors so small that there is none",
        "`anchor_ratio` is 0.01, which makes no anchor for 2 pair(s). Raise it.",
        lambda room: room.trainer(options={"anchor_ratio": 0.01}),
    ),
    Case(
        "one thinking marker",
        "The same marker for the beginning and the end of a thought",
        "`thinking_markers` must be two different texts: what opens a thought and what closes it, got ['<t>', '<t>'].",
        lambda room: room.train(thinking_markers=["<t>", "<t>"]),
    ),
    Case(
        "nothing to evaluate rollouts on",
        "The same, on-policy",
        "`eval_strategy` is epoch, but there is no `eval_dataset`: give one, or set `eval_strategy: 'no'`.",
        lambda room: room.rollouts(options={"eval_strategy": "epoch"}),
    ),
    Case(
        "best model",
        "The best model, without evaluations to find it",
        "`load_best_model_at_end` needs evaluations to tell which is best: set `eval_strategy`.",
        lambda room: room.train(load_best_model_at_end=True),
    ),
    Case(
        "best model of several sets",
        "The best model by the loss, with several evaluation sets that each have a loss",
        "`metric_for_best_model` is the loss, and each evaluation set has one of its own: name one of eval_a_loss, eval_b_loss.",
        lambda room: room.trainer(
            options={"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
            eval_dataset={"a": make_pairs(2), "b": make_pairs(2)},
        ),
    ),
    Case(
        "best model by nothing",
        "The best model by a metric that the evaluation does not have",
        "The `metric_for_best_model` training argument is set to 'eval_acuracy', which is not found in the evaluation metrics. …",
        lambda room: room.trainer(
            options={"metric_for_best_model": "acuracy", "load_best_model_at_end": True}
            | {"eval_strategy": "epoch", "save_strategy": "epoch"},
            model=make_model(),
            processing_class=make_tokenizer(),
            eval_dataset=make_pairs(2),
        ).train(),
    ),
    Case(
        "adapter after what is compared",
        "An adapter on blocks after those that are compared",
        "Nothing that is compared (`method` ['act'], blocks up to 0) depends on a parameter that is trained. …",
        lambda room: room.trainer(
            options={"method": "act", "layers": [0]},
            model=make_model(),
            processing_class=make_tokenizer(),
            peft_config=LoraConfig(target_modules=["q_proj"], layers_to_transform=[1]),
        ),
    ),
    Case(
        "regeneration after the end",
        "Targets to regenerate after more epochs than there are",
        "`regenerate_targets_every` is 2, and the training takes 1 epoch(s): targets would never be regenerated. …",
        lambda room: room.trainer(
            make_pairs(2, completion=False),
            {"regenerate_targets_every": 2, "num_train_epochs": 1},
            model=make_model(),
            processing_class=make_tokenizer(),
        ).train(),
    ),
    Case(
        "text in place of the schedule's options",
        "Options of the schedule that are no mapping",
        "`lr_scheduler_kwargs` must be a mapping, got 'min_lr=0.1'.",
        lambda room: room.trainer(
            options={"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": "min_lr=0.1"}
        ),
    ),
    Case(
        "number of the schedule as text",
        "A number of the schedule that YAML reads as text",
        "`lr_scheduler_kwargs` sets `min_lr` to the text '1e-6'. YAML takes a number for text if it has an exponent without a dot or a "
        "sign: write 1.0e-6 without quotes.",
        lambda room: room.train(
            'lr_scheduler_kwargs: {"min_lr": 1e-6}\n', lr_scheduler_type="cosine_with_min_lr", learning_rate=0.1
        ),
    ),
    Case(
        "schedule that takes better for worse",
        "A learning rate that falls where a metric rises of which more is better",
        "`lr_scheduler_type` is reduce_lr_on_plateau, in the mode 'min', but of `metric_for_best_model` (consistency/score) a higher "
        "value is better: the learning rate would fall where the model improves. Set `lr_scheduler_kwargs: {mode: max}`.",
        lambda room: room.train(
            lr_scheduler_type="reduce_lr_on_plateau",
            metric_for_best_model="consistency/score",
            eval_strategy="steps",
            eval_steps=1,
        ),
    ),
    Case(
        "seed of no order",
        "A seed of the order of rows, which come in their own",
        "`data_seed` is set, but `train_sampling_strategy: sequential` draws no order. Leave it out.",
        lambda room: room.train(data_seed=3, train_sampling_strategy="sequential"),
    ),
    Case(
        "column of lengths",
        "Your own column of lengths",
        "`length_column_name` is not available in consistency training: the trainer measures the rows itself. Leave it out.",
        lambda room: room.train(length_column_name="words"),
    ),
    Case(
        "optimizer of nothing",
        "An optimizer for a model that then gets an adapter",
        "`optimizers`: the optimizer holds no parameter that is trained, so that nothing would be learned. …",
        optimizer_of_the_base,
    ),
    Case(
        "template variable in quotes",
        "A truth value in quotation marks among the template variables",
        "`chat_template_kwargs` sets `no_think` to the text 'false', which a template takes for true: write false without quotes.",
        lambda room: room.train(chat_template_kwargs={"no_think": "false"}),
    ),
    Case(
        "best model between saves",
        "The best model, with evaluations and saves at different steps",
        "…load_best_model_at_end requires the save and eval strategy to match…",
        lambda room: room.train(load_best_model_at_end=True, eval_strategy="steps", eval_steps=1),
    ),
    Case(
        "unknown end token",
        "An end-of-sequence token that the tokenizer does not have",
        "`eos_token` is '<end>', which is not a token of the tokenizer.",
        lambda room: room.train(eos_token="<end>"),
    ),
    Case(
        "unknown padding",
        "A padding token that the tokenizer does not have",
        "`pad_token` is '<pad>', which is not a token of the tokenizer.",
        lambda room: room.trainer(options={"pad_token": "<pad>"}),
    ),
    Case(
        "two precisions",
        "Two precisions at once",
        "At most one of fp16 and bf16 can be True, but not both",
        lambda room: room.train("fp16: true\n", bf16=True),
    ),
    Case(
        "unknown dtype",
        "An unknown precision",
        "`dtype` is float12: it can be auto, bfloat16, float16 or float32.",
        lambda room: room.trainer(options={"model_init_kwargs": {"dtype": "float12"}}),
    ),
    Case(
        "unknown attention",
        "An unknown attention implementation",
        '… cannot be loaded: Specified `attn_implementation="fast"` is not supported. …',
        lambda room: room.train(attn_implementation="fast"),
    ),
    Case(
        "attention without maps",
        "`attct` with an attention that forms no maps",
        "`attct` compares attention maps, which `sdpa` attention never forms. Set `attn_implementation: eager`.",
        lambda room: room.train(method="attct", attn_implementation="sdpa"),
    ),
    Case(
        "attention maps without padding",
        "`attct` on batches without padding",
        "`padding_free` cannot be used with `attct`: it compares attention maps, which have a row for each sequence of a "
        "batch. Leave one of them out.",
        lambda room: room.train(method="attct", padding_free=True),
    ),
    Case(
        "eager attention without padding",
        "Batches without padding, with an attention implementation that takes no lengths",
        "`padding_free` is not possible: `eager` attention takes no lengths of sequences. Set `attn_implementation` to "
        "`sdpa` or `flash_attention_2` if the model has it. Leave it out.",
        lambda room: room.train(padding_free=True, attn_implementation="eager"),
    ),
    Case(
        "multiple of no padding",
        "A length of padding, for batches without it",
        "`pad_to_multiple_of` is set, but with `padding_free` batches have no padding. Leave one of them out.",
        lambda room: room.train(padding_free=True, pad_to_multiple_of=8),
    ),
    Case(
        "packing without a length",
        "Packed pairs, without a maximum length",
        "`packing` needs `max_length`: a packed sequence holds as many pairs as fit into so many tokens. Set it to at least the "
        "length of the longest row.",
        lambda room: room.train(packing=True),
    ),
    Case(
        "packing that cuts",
        "A way of packing that cuts pairs",
        "`packing_strategy='wrapped'` is not available in consistency training: pairs are never cut. Leave it out.",
        lambda room: room.train(packing=True, max_length=512, packing_strategy="wrapped"),
    ),
    Case(
        "packing by length",
        "Packed pairs, with rows drawn by length",
        "`packing` cannot be used with `train_sampling_strategy: group_by_length`, which goes by the lengths of rows: packed "
        "sequences are about equally long. Leave one of them out.",
        lambda room: room.train(packing=True, max_length=512, train_sampling_strategy="group_by_length"),
    ),
    Case(
        "packing with eager attention",
        "Packed pairs, with an attention implementation that cannot keep them apart",
        "`packing` is not possible: `eager` attention takes no lengths of sequences. Set `attn_implementation` to `sdpa` or "
        "`flash_attention_2` if the model has it. Leave it out.",
        lambda room: room.train(packing=True, max_length=512, attn_implementation="eager"),
    ),
    Case(
        "unknown target modules",
        "LoRA on modules that the model does not have",
        "`peft_config` does not fit the model: Target modules {'queries'} not found in the base model. Please check the target modules and try again.",
        lambda room: room.train(use_peft=True, lora_target_modules=["queries"]),
    ),
    Case(
        "dtype by its old name",
        "`torch_dtype` in `model_init_kwargs`, which transformers ignores beside `dtype`",
        "`model_init_kwargs` sets `torch_dtype`, which would be ignored: it is called `dtype` now.",
        lambda room: room.trainer(options={"model_init_kwargs": {"torch_dtype": "bfloat16"}}),
    ),
    Case(
        "dtype given at its default",
        "A dtype as an option, even that by default, and another one in `model_init_kwargs`",
        "`dtype` is float32, and `model_init_kwargs` sets `dtype` to bfloat16: keep one.",
        lambda room: room.train("", "--dtype", "float32", model_init_kwargs={"dtype": "bfloat16"}),
    ),
    Case(
        "dtype given twice",
        "Two dtypes: as an option, and in `model_init_kwargs`",
        "`dtype` is bfloat16, and `model_init_kwargs` sets `dtype` to float16: keep one.",
        lambda room: room.train(dtype="bfloat16", model_init_kwargs={"dtype": "float16"}),
    ),
    Case(
        "rank 0",
        "LoRA of rank 0",
        "`peft_config` is wrong: `r` must be at least 1, got 0.",
        lambda room: room.rollouts(peft_config=LoraConfig(r=0, target_modules="all-linear")),
    ),
    *(
        Case(f"adapter {kind}", f"An adapter {what}", f"`peft_config`{message}", with_adapter(make))
        for kind, what, message, make in (
            (
                "text",
                "that is given only as a name",
                " must be a config of PEFT, such as `LoraConfig`, got `str`.",
                lambda: "lora",
            ),
            (
                "PiSSA",
                "whose initialisation changes the base model by chance or by data (PiSSA with `niter`, CorDA, LoftQ)",
                ": `init_lora_weights` changes the base model itself, …",
                lambda: LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa_niter_4"),
            ),
            (
                "replication",
                "that repeats layers of the base model",
                ": `layer_replication` changes the base model itself, …",
                lambda: LoraConfig(target_modules=["q_proj"], layer_replication=[[0, 2], [0, 2]]),
            ),
            (
                "EVA",
                "whose initialisation needs data (EVA, LoRA-GA)",
                " sets `init_lora_weights`, for which PEFT needs prompts or data that no trainer gives it. Leave it out.",
                lambda: LoraConfig(target_modules=["q_proj"], init_lora_weights="eva"),
            ),
            (
                "aLoRA",
                "that begins to act at certain words",
                " sets `alora_invocation_tokens`, for which …",
                lambda: LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[5]),
            ),
            (
                "AdaLoRA",
                "that needs calls in each step, or task ids (AdaLoRA, Poly, X-LoRA, …)",
                " is of the type ADALORA, which needs more from a trainer than the gradients of a loss. Use LoRA.",
                lambda: AdaLoraConfig(target_modules=["q_proj"], total_step=10),
            ),
            (
                "adaption prompt",
                "whose prompts stand in the attention (Llama-Adapter)",
                " is of the type ADAPTION_PROMPT, which needs more from a trainer than the gradients of a loss. Use LoRA.",
                lambda: AdaptionPromptConfig(adapter_len=4, adapter_layers=1, task_type="CAUSAL_LM"),
            ),
            (
                "dropout",
                "with a dropout above 1",
                " does not fit the model: dropout probability has to be between 0 and 1, but got 1.5",
                lambda: LoraConfig(target_modules=["q_proj"], lora_dropout=1.5),
            ),
        )
    ),
    Case(
        "alpha 0",
        "An adapter that is not active",
        "The gradient was zero in every step though the loss was not, …",
        lambda room: (
            room.monkeypatch.undo(),
            room.trainer(
                peft_config=LoraConfig(target_modules=["q_proj"], lora_alpha=0), options={"max_steps": 1}
            ).train(),
        ),
    ),
    *(
        Case(
            f"model with {name}", f"A model with {what}", f"The model {message}. Give the trainer a model with …", meet
        )
        for name, what, message, meet in (
            (
                "an adapter",
                "an adapter, and a `peft_config` for another one",
                "has an adapter already, and `peft_config` would make another",
                lambda room: own_adapter(room, lambda model: None, peft_config=LoraConfig(target_modules=["q_proj"])),
            ),
            (
                "two adapters",
                "two adapters: the saved folder would have the wrong one at its top",
                "has several adapters, and others than `default` are active",
                lambda room: own_adapter(
                    room,
                    lambda model: (
                        model.add_adapter("b", LoraConfig(target_modules=["q_proj"])),
                        model.set_adapter("b"),
                    ),
                ),
            ),
            (
                "a merged adapter",
                "an adapter that is merged",
                "has its adapter merged into the base weights",
                lambda room: own_adapter(room, lambda model: model.merge_adapter()),
            ),
        )
    ),
    Case(
        "adapter on the head",
        "LoRA on the head, which would not be trained",
        "`peft_config` puts an adapter on the language modelling head, …Remove `lm_head` from `target_modules`.",
        lambda room: room.rollouts(peft_config=LoraConfig(target_modules=["q_proj", "lm_head"])),
    ),
    *(
        Case(
            f"adapter on a tied head, {name}",
            wrong,
            f"`peft_config` puts an adapter on the language modelling head, …The head is tied to the embeddings{way_out}",
            lambda room, config=config: room.trainer(
                model=str(room.model(config__json={"tie_word_embeddings": True})), peft_config=config
            ),
        )
        for name, wrong, config, way_out in (
            (
                "tokens",
                "`TrainableTokensConfig` on a model whose head is its embeddings",
                TrainableTokensConfig(token_indices=[5, 6]),
                ", so that `TrainableTokensConfig` puts one on both. Train the tokens with `LoraConfig` and its "
                "`trainable_token_indices` instead.",
            ),
            (
                "LoRA",
                "LoRA on such embeddings, and by `ensure_weight_tying` on the head",
                LoraConfig(target_modules=["embed_tokens"], ensure_weight_tying=True),
                ". Leave `ensure_weight_tying` out.",
            ),
        )
    ),
    Case(
        "learned prompt",
        "A learned prompt instead of an adapter",
        "`peft_config` is a learned prompt (…PROMPT_TUNING), which the comparison of the two prompts does not see. Use an adapter of the weights, such as LoRA.",
        lambda room: room.rollouts(peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
    ),
    Case(
        "quantized without an adapter",
        "4-bit weights without an adapter to train",
        "`load_in_4bit` needs `use_peft: true`: quantized weights cannot be trained themselves.",
        lambda room: room.train(load_in_4bit=True),
    ),
    Case(
        "unknown quantization of the checkpoint",
        "A `quantization_config` in `model_init_kwargs` that transformers does not know",
        "`quantization_config` in `model_init_kwargs` cannot be used: Unknown quantization type, got mxfp5 …",
        lambda room: room.train(model_init_kwargs={"quantization_config": {"quant_method": "mxfp5"}}, use_peft=True),
    ),
    Case(
        "two quantizations",
        "A `quantization_config` in `model_init_kwargs` beside `load_in_4bit: true`",
        "`quantization_config` in `model_init_kwargs` and `load_in_4bit` or `load_in_8bit` are both given: keep one.",
        lambda room: room.train(
            model_init_kwargs={"quantization_config": {"quant_method": "mxfp4"}}, load_in_4bit=True, use_peft=True
        ),
    ),
    Case(
        "quantized trainer without an adapter",
        "The same, in Python",
        "`quantization_config` needs a `peft_config`: quantized weights cannot be trained themselves.",
        lambda room: room.trainer(quantization_config=BitsAndBytesConfig(load_in_4bit=True)),
    ),
    Case(
        "unknown schedule",
        "An unknown learning rate schedule",
        "…recipe.yaml: `lr_scheduler_type` must be one of linear, cosine, …, got 'cosin'.",
        lambda room: room.train(lr_scheduler_type="cosin"),
    ),
    Case(
        "unknown optimizer",
        "An unknown optimizer",
        "…recipe.yaml: `optim` must be one of adamw_torch, …, got 'adamw_fast'.",
        lambda room: room.train(optim="adamw_fast"),
    ),
    Case(
        "backend of one process",
        "A backend for several processes, with one process",
        "`ddp_backend` is gloo, but this is a single process. Launch several with `accelerate launch` or `torchrun`, or leave it out.",
        lambda room: room.train(ddp_backend="gloo"),
    ),
    Case(
        "reference of another vocabulary",
        "A reference with another vocabulary",
        "`ref_model` has a vocabulary of 400 tokens and the model one of 384: their distributions cannot be compared. Use a reference with the same vocabulary.",
        lambda room: room.rollouts(
            model=make_model(), processing_class=make_tokenizer(), ref_model=make_model(vocab_size=400)
        ),
    ),
    Case(
        "routers of a dense model",
        "The routers' loss for a model without routers",
        "`router_aux_loss_coef` is 0.1, but the model (qwen3) has no router logits: the option is for mixtures of experts. Leave it out.",
        lambda room: room.train(router_aux_loss_coef=0.1, method=["kl"]),
    ),
    Case(
        "top_k at temperature 0",
        "A sampling option where nothing is sampled",
        "`top_k` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
        lambda room: room.train(temperature=0.0, top_k=50),
    ),
    Case(
        "min_p at temperature 0",
        "The same for `targets`",
        "`min_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
        lambda room: room.train(temperature=0.0, min_p=0.1, command="targets", targets_file="t"),
    ),
    Case(
        "two temperatures",
        "An option that is repeated in `generation_kwargs`",
        "`generation_kwargs` sets `temperature`. Set the option `temperature`.",
        lambda room: room.train(temperature=0.0, generation_kwargs={"temperature": 0.7}),
    ),
    Case(
        "drop_last",
        "Fewer rows than a batch, where incomplete batches are left out",
        "`train_dataset` has 2 row(s), fewer than the 8 of one batch, and `dataloader_drop_last` leaves out what fills none: nothing would be trained. Use smaller batches, or leave the option out.",
        lambda room: room.trainer(options={"dataloader_drop_last": True}),
    ),
    Case(
        "drop_last of whole steps",
        "Fewer rows than a step, where balanced batches leave out incomplete steps",
        "`train_dataset` has 2 row(s), fewer than the 4 of one step, and `dataloader_drop_last` leaves out what fills none: nothing would be trained. Use smaller batches, or leave the option out.",
        lambda room: room.trainer(
            options={
                "dataloader_drop_last": True,
                "train_sampling_strategy": "batch_rebalance",
                "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": 4,
            }
        ),
    ),
    Case(
        "megatron",
        "An adapter for Megatron, which is not installed",
        "`peft_config`: `megatron_config` and `megatron_core` would import a package, which is not allowed. …",
        lambda room: room.trainer(
            peft_config=LoraConfig(target_modules="all-linear", megatron_config={"world_size": 1})
        ),
    ),
    Case(
        "encoding option as template variable",
        "An option of the encoding among the template variables of all rows",
        "`chat_template_kwargs` sets `padding`, which is set the same for both sides and is not for the chat template: …",
        lambda room: room.train(chat_template_kwargs={"padding": "max_length"}),
    ),
    *(
        Case(
            f"{option} {value}",
            f"`{option}: {value}`",
            f"`{option}` must be {message}, got {value!r}.",
            lambda room, option=option, value=value: room.train(command="on-policy-consistency", **{option: value}),
        )
        for option, value, message in (
            ("learning_rate", -1.0, "at least 0"),
            ("learning_rate", float("inf"), "at least 0"),
            ("weight_decay", -1.0, "at least 0"),
            ("weight_decay", float("nan"), "at least 0"),
            ("max_grad_norm", -1.0, "at least 0 (0 is none)"),
            ("max_grad_norm", float("nan"), "at least 0 (0 is none)"),
            ("adam_beta1", 2.0, "at least 0 and below 1"),
            ("adam_epsilon", 0.0, "above 0"),
            ("max_steps", 0, "at least 1, or -1 (the epochs decide)"),
            ("max_steps", -5, "at least 1, or -1 (the epochs decide)"),
            ("seed", -1, "from 0 to 2**32 - 1"),
            ("seed", 2**70, "from 0 to 2**32 - 1"),
            ("data_seed", -1, "from 0 to 2**32 - 1, or None"),
            ("dataloader_num_workers", -1, "at least 0"),
            ("max_length", 0, "at least 1, or None"),
            ("max_completion_length", 0, "at least 1"),
            ("per_device_train_batch_size", 0, "at least 1"),
            ("gradient_accumulation_steps", 0, "at least 1"),
            ("top_p", 2.0, "above 0 and at most 1"),
            ("min_p", 3.0, "between 0 and 1, or None"),
            ("repetition_penalty", 0.0, "above 0"),
            ("loss_temperature", float("nan"), "at least 0.0001"),
            ("num_iterations", 0, "at least 1"),
            ("eval_accumulation_steps", 0, "at least 1, or None"),
        )
    ),
    Case(
        "max_grad_norm None",
        "`max_grad_norm=None` in Python, at which transformers ends in the first step",
        "`max_grad_norm` must be at least 0 (0 is none), got None.",
        lambda room: room.trainer(options={"max_grad_norm": None}),
    ),
    Case(
        "dataset_num_proc -1",
        "`dataset_num_proc: -1`",
        "`dataset_num_proc` must be at least 1, or None, got -1.",
        lambda room: room.train(dataset_num_proc=-1),
    ),
]

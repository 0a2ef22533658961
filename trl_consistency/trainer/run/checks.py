"""Checks of options and data before any weights load."""

import math
import os
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import DistributedType, DynamoBackend, TorchDynamoPlugin, is_peft_model
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from peft import PrefixTuningConfig
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerState, TrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from ...config.consistency_config import METHODS, ConsistencyConfig, padding_free_option
from ...config.optimizer_options import check_direction, check_optimizer_options
from ...errors import ConsistencyError, one_line
from ...log import get_logger
from ...models.architecture import check_architecture
from ...models.checks import TRAIN_IN_FLOAT32, config_of
from ...models.folder_checks import check_checkpoint
from ...models.quantization import check_not_repacked
from ...models.sharding import is_sharded, shard_of
from ...passes.blocks import resolve_layers
from ...passes.flat import check_padding_free
from ...passes.reference import checksum_of
from ...upstream import DistributedBackend, get_config_model_id
from ...weight_files import weight_files
from .interruption import check_has_states, check_unchanged, find_checkpoint, read_manifest


logger = get_logger(__name__)

Config = TypeVar("Config", bound=TrainingArguments)


def id_of(model: Any) -> str:
    """Returns the name or path of a model that is given by it, or was loaded from it; empty if it was made here."""
    return model if isinstance(model, str) else get_config_model_id(model.config)


def resolve_config(args: TrainingArguments | None, kind: type[Config], model: Any, suffix: str) -> Config:
    """
    Returns `args` as a config of class `kind`, or the defaults with an output folder named after the model. Raises
    [`ConsistencyError`] for another trainer's config, and for options that were assigned to it and cannot be used.
    """
    if args is None:
        return kind(f"{id_of(model).split('/')[-1]}-{suffix}")
    if isinstance(args, kind):
        args._take_assigned()
        return args
    if not isinstance(args, TrainingArguments) or not issubclass(kind, type(args)):
        raise ConsistencyError(f"`args` must be of the class `{kind.__name__}`, got `{type(args).__name__}`.")
    # Not `to_dict`, which masks names that end in `_token`.
    options = {field.name: getattr(args, field.name) for field in fields(args) if field.init}
    # transformers has set this for any metric but a loss, also where less is better.
    options["greater_is_better"] = None if args.greater_is_better else args.greater_is_better
    return kind(**options)


def check_extras(args: ConsistencyConfig, quantization_config: Any = None) -> None:
    """Raises [`ConsistencyError`] if the options need a package that is not installed, naming what to install."""
    if "BitsAndBytes" in type(quantization_config).__name__:
        check_bitsandbytes("`quantization_config`")
    optim = str(getattr(args.optim, "value", args.optim))
    if "8bit" in optim or "paged" in optim:
        check_bitsandbytes(f"`optim` {optim}")
    wanted = {
        "`use_liger_kernel`": (args.use_liger_kernel, "liger_kernel", "liger-kernel"),
        "`use_kernels`": ((args.model_init_kwargs or {}).get("use_kernels"), "kernels", "kernels"),
        "`use_vllm`": (args.use_vllm, "vllm", "'trl[vllm]'"),
        "`attn_implementation` flash_attention_2": (
            (args.model_init_kwargs or {}).get("attn_implementation") == "flash_attention_2",
            "flash_attn",
            "flash-attn",
        ),
    }
    for option, (is_wanted, module, package) in wanted.items():
        if is_wanted and find_spec(module) is None:
            raise ConsistencyError(f"{option} needs the package `{module}`: `pip install {package}`.")
    if args.use_liger_kernel:
        config = args.liger_kernel_config or {}
        if config.get("fused_linear_cross_entropy"):
            raise ConsistencyError(
                "`liger_kernel_config` sets `fused_linear_cross_entropy`, a loss that consistency training does not have. "
                "Leave it out: the kernels of the layers are used."
            )
        # By default it would replace the model's forward.
        args.liger_kernel_config = {**config, "fused_linear_cross_entropy": False}
    has_reference = args.rolls_out or args.compares_with_reference
    if has_reference and TorchDynamoPlugin().backend != DynamoBackend.NO:
        raise ConsistencyError(
            "The accelerate config compiles the model (`dynamo_config`), which is not available where the reference runs in its "
            "modules, too. Leave it out."
        )
    if args.hub_model_id is not None:
        try:
            validate_repo_id(args.hub_model_id)
        except HFValidationError as error:
            raise ConsistencyError(f"`hub_model_id` {args.hub_model_id!r}: {one_line(error)}") from None
    available = get_available_reporting_integrations()
    for tracker in args.report_to or []:
        if tracker not in available:
            raise ConsistencyError(
                f"`report_to` names `{tracker}`, which is not installed (or not a tracker that transformers knows). "
                f"Install it, or set `report_to: none`. Available here: {', '.join(available) or 'none'}."
            )


def check_bitsandbytes(option: str) -> None:
    """Raises [`ConsistencyError`] if bitsandbytes, which `option` needs, is not installed."""
    if find_spec("bitsandbytes") is None:
        raise ConsistencyError(f"{option} needs the package `bitsandbytes`: `pip install bitsandbytes`.")


def check_shared_batches(args: TrainingArguments) -> None:
    """Raises [`ConsistencyError`] if several processes would not each read as many batches as the others, of the same sizes."""
    sharing, of_several = args.accelerator_config, f"of the {args.world_size} processes"
    if args.world_size > 1 and not sharing.even_batches:
        raise ConsistencyError(
            f"`accelerator_config` sets `even_batches` to false: one {of_several} would wait for batches that another does not "
            "have. Leave it out: evaluations do not count the rows that fill up a last batch."
        )
    if args.world_size > 1 and sharing.dispatch_batches:
        raise ConsistencyError(
            f"`accelerator_config` sets `dispatch_batches`: one {of_several} would put together batches of different widths. Leave it "
            "out: each process then reads its own."
        )
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size"):
        if sharing.split_batches and getattr(args, name) % args.world_size:
            raise ConsistencyError(
                f"`accelerator_config` sets `split_batches`: {args.world_size} processes share each batch, and `{name}` "
                f"({getattr(args, name)}) is not a multiple of {args.world_size}. Change `{name}`, or leave out `split_batches`: "
                "each process then reads batches of its own."
            )


def check_training_options(
    trainer: Any, resume_from_checkpoint: str | bool | None, resume_changed: Sequence[str] = ()
) -> str | None:
    """
    Returns the checkpoint to resume from, if any. Raises [`ConsistencyError`] if it is missing or belongs to another
    run (except for the differences in `resume_changed`), or if the optimizer or the schedule cannot be built.
    """
    args = trainer.args
    check_optimizer_options(args)  # which may have been assigned since
    check_direction(args)
    check_saves_whole(trainer)
    checkpoint = find_checkpoint(resume_from_checkpoint, args.output_dir)
    if checkpoint is not None and not is_sharded(trainer.accelerator):
        check_checkpoint(checkpoint, trainer.model)
    if checkpoint is not None:
        check_unchanged(checkpoint)
        check_has_states(checkpoint)
        check_order(checkpoint, args)
    elif args.should_save and not trainer.has_trained and (earlier := weight_files(Path(args.output_dir))):
        logger.warning(
            f"`output_dir` {args.output_dir} holds the model of an earlier training ({earlier[0].name}), which is replaced when this one is saved. Choose "
            "another folder to keep it."
        )
    trainer.run_record.compare(checkpoint, resume_changed)
    if trainer.optimizer is None and trainer.lr_scheduler is not None:
        raise ConsistencyError(
            "`optimizers` has a schedule without its optimizer, so that it would change no learning rate. Give both, or leave the "
            "schedule to `lr_scheduler_type`."
        )
    _check_decay(trainer)
    if trainer.optimizer is not None and not is_sharded(trainer.accelerator):
        held = held_by(trainer.optimizer)
        if not any(id(of) in held for of in trainer.model.parameters() if of.requires_grad):
            raise ConsistencyError(
                "`optimizers`: the optimizer holds no parameter that is trained, so that nothing would be learned. With a "
                "`peft_config`, or a model that the trainer loads, give `optimizer_cls_and_kwargs` in its place."
            )
        _check_schedule(trainer)
    try:
        if trainer.optimizer is None and trainer.optimizer_cls_and_kwargs is None:
            trainer.get_optimizer_cls_and_kwargs(args, trainer.model)
    except (ImportError, TypeError, ValueError) as error:
        raise ConsistencyError(f"`optim` {getattr(args.optim, 'value', args.optim)}: {error}") from None
    try:
        if trainer.lr_scheduler is None:
            get_scheduler(
                args.lr_scheduler_type,
                optimizer=torch.optim.SGD([torch.zeros(1)], lr=1.0),
                num_warmup_steps=0,
                num_training_steps=10,
                scheduler_specific_kwargs=dict(args.lr_scheduler_kwargs or {}),
            )
    except (TypeError, ValueError) as error:
        kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise ConsistencyError(f"`lr_scheduler_type` {kind} with `lr_scheduler_kwargs`: {error}") from None
    return checkpoint


def _check_decay(trainer: Any) -> None:
    """Raises [`ConsistencyError`] for a `weight_decay` of `optimizer_cls_and_kwargs`: Trainer gives each group of weights the option's."""
    if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is None:
        return
    kind, settings = trainer.optimizer_cls_and_kwargs
    makes_groups = not {"params", "model", "optimizer_dict"}.isdisjoint(settings) or not isinstance(kind, type)
    if makes_groups:
        return
    decay = settings.get("weight_decay", trainer.args.weight_decay)
    if decay != trainer.args.weight_decay:
        raise ConsistencyError(
            f"`optimizer_cls_and_kwargs` sets `weight_decay` {decay}, which would be ignored: that of `args` is {trainer.args.weight_decay}. "
            "Set the option of that name."
        )


def check_order(checkpoint: str, args: Any) -> None:
    """Raises [`ConsistencyError`] if the rest of a checkpoint's epoch cannot be told, as its order was drawn by no seed."""
    epoch = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME)).epoch or 0
    is_random = args.train_sampling_strategy == "random"
    draws_by_state = (
        not getattr(args, "rolls_out", False) and is_random and not args.accelerator_config.use_seedable_sampler
    )
    # Several processes draw it by a generator that one does not have.
    then = read_manifest(checkpoint).get("processes", args.world_size)
    is_shared_anew = (then > 1) != (args.world_size > 1)
    if draws_by_state and not args.ignore_data_skip and epoch % 1 and (epoch > 1 or is_shared_anew):
        way_out = f", or with {then} process(es)" if epoch < 1 else ""
        raise ConsistencyError(
            f"`resume_from_checkpoint`: {checkpoint} was saved after {epoch:.4g} epochs. `accelerator_config` sets "
            "`use_seedable_sampler` to false, and the order of this epoch's rows cannot be drawn again: some would be trained on twice, "
            f"and others not at all. Resume from the end of an epoch{way_out}."
        )


def held_by(optimizer: Any) -> set[int]:
    """Returns the ids of the parameters that an optimizer changes."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _check_schedule(trainer: Any) -> None:
    """Raises [`ConsistencyError`] for a given schedule that sets the learning rates of another optimizer."""
    schedule = None if trainer._created_lr_scheduler else trainer.lr_scheduler
    groups = getattr(getattr(schedule, "optimizer", None), "param_groups", None)
    if groups is not None and not any(ours is its for ours in trainer.optimizer.param_groups for its in groups):
        raise ConsistencyError(
            "`optimizers`: the schedule belongs to another optimizer, so it would not change the learning rate of this training. Make a "
            "schedule for the optimizer that you give."
        )


def check_saves_whole(trainer: Any) -> None:
    """Raises [`ConsistencyError`] if the accelerate config has a sharded model saved as a folder without weights."""
    backend, state = DistributedBackend(trainer.accelerator), trainer.accelerator.state
    wanted = ""
    if backend.is_fsdp and "FULL_STATE_DICT" not in str(state.fsdp_plugin.state_dict_type):
        wanted = "`fsdp_state_dict_type: FULL_STATE_DICT` in it"
    elif backend.is_fsdp and state.fsdp_plugin.activation_checkpointing and is_peft_model(trainer.model):
        # It renames the modules, and PEFT looks for the weights by these names.
        wanted = "`fsdp_activation_checkpointing: false` in it, and `gradient_checkpointing: true` in place of that"
    gathers = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    if backend.is_zero3 and not state.deepspeed_plugin.hf_ds_config.get_value(gathers):
        wanted = "`zero3_save_16bit_model: true` in it"
    if wanted:
        raise ConsistencyError(
            f"With this accelerate config the trained model would be saved without its weights. Set {wanted}."
        )


def check_trainable(model: Any, accelerator: Any) -> None:
    """Raises [`ConsistencyError`] for a model without a trainable parameter, or with some that AdamW cannot train."""
    keeps_float32 = accelerator.distributed_type == DistributedType.DEEPSPEED
    names = [name for name, of in model.named_parameters() if of.requires_grad and of.dtype == torch.float16]
    if names and not keeps_float32:
        raise ConsistencyError(
            f"{names[0]} is trained, and in float16: squares of small gradients are 0 in it, so that AdamW's steps are many times too large. "
            f"{TRAIN_IN_FLOAT32}"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConsistencyError(
            "The model has no trainable parameter. Load an adapter for training with `PeftModel.from_pretrained(..., "
            "is_trainable=True)`, or give a `peft_config`. In mid-training, a callback may not freeze all of them."
        )


def check_weights_unchanged(trainer: Any) -> None:
    """Raises [`ConsistencyError`] if the model was changed after the trainer was made and before its first step, or repacked."""
    check_not_repacked(trainer.model)
    has_begun = trainer.state.global_step > 0
    if not has_begun and checksum_of(trainer.model, trainer.base_weights) != trainer.base_checksum:
        raise ConsistencyError(
            "The model's weights were changed after the trainer was made. The trainer took the earlier weights for the initial policy, "
            "so targets and adapters would not fit this model. Change the model first, and make a new trainer with it."
        )


def warn_of_earlier_reference(trainer: Any) -> None:
    """Warns if the model was changed after its reference was copied and before its first step, and notes that for the card."""
    reference = trainer._reference
    if reference is None or reference.given is not None or trainer.state.global_step > 0:
        return
    reference.is_earlier = checksum_of(trainer.model, trainer.base_weights) != trainer.base_checksum
    if reference.is_earlier:
        logger.warning(
            "The model's weights were changed after the trainer was made, and its reference is the model before that. For a reference "
            "with these weights, make a new trainer with the changed model."
        )


def check_evaluation(args: Any, eval_dataset: Any) -> None:
    """Raises [`ConsistencyError`] if the evaluation options and the evaluation data do not match."""
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    wanted = f"`eval_strategy` is {strategy}" if strategy != "no" else "`eval_on_start` is set" * args.eval_on_start
    if wanted and not eval_dataset:
        way_out = "set `eval_strategy: 'no'`" if strategy != "no" else "leave it out"
        raise ConsistencyError(f"{wanted}, but there is no `eval_dataset`: give one, or {way_out}.")
    if isinstance(eval_dataset, dict) and not all(isinstance(name, str) for name in eval_dataset):
        raise ConsistencyError(f"`eval_dataset` must have names that are text, got {list(eval_dataset)}.")
    check_set_names(eval_dataset)
    if args.save_strategy == SaveStrategy.BEST and not args.metric_for_best_model:
        raise ConsistencyError(
            "`save_strategy` is best, and nothing says by which metric: set `metric_for_best_model`."
        )
    if isinstance(eval_dataset, dict) and args.metric_for_best_model in ("loss", "eval_loss"):
        losses = ", ".join(f"eval_{name}_loss" for name in eval_dataset)
        raise ConsistencyError(
            f"`metric_for_best_model` is the loss, and each evaluation set has one of its own: name one of {losses}."
        )
    if args.do_eval and not wanted and not eval_dataset:  # with one, a script may call `evaluate` itself
        raise ConsistencyError("`do_eval` alone evaluates nothing: set `eval_strategy`, or leave it out.")
    check_delay(args, args.max_steps, args.num_train_epochs if args.max_steps <= 0 else float("inf"))
    if args.load_best_model_at_end and strategy == "no":
        raise ConsistencyError(
            "`load_best_model_at_end` needs evaluations to tell which is best: set `eval_strategy`."
        )


def check_set_names(eval_dataset: Any) -> None:
    """Raises [`ConsistencyError`] if two evaluation sets have names under which a loss of each would be logged by one key."""
    for name in eval_dataset if isinstance(eval_dataset, dict) else ():
        other, _, objective = str(name).rpartition("_")
        if other in eval_dataset and objective in (*METHODS, "aux"):
            raise ConsistencyError(
                f"`eval_dataset`: the loss of `{name}` would be logged as `eval_{name}_loss`, as is the {objective} loss of `{other}`. "
                "Rename one of them."
            )


def check_sets(datasets: dict[str, Any], chosen: Any, own: Any) -> None:
    """
    Raises [`ConsistencyError`] if there is nothing to evaluate on, or if `chosen` is a name that no set of a trainer's `own` ones has.
    """
    if not datasets:
        raise ConsistencyError("There is no `eval_dataset` to evaluate on. Give one.")
    if isinstance(chosen, str) and not (isinstance(own, dict) and chosen in own):
        has = (
            f"has {', '.join(map(repr, own))}. Give one of these names"
            if isinstance(own, dict)
            else "has no name. Leave the name out"
        )
        raise ConsistencyError(
            f"`evaluate` names the set {chosen!r}, and the trainer's `eval_dataset` {has}, or give a data set."
        )


def check_delay(args: Any, max_steps: int, epochs: float) -> None:
    """Raises [`ConsistencyError`] if training ends before its first evaluation. `max_steps` below 1 are not known."""
    is_steps = args.eval_strategy == "steps"
    end = (max_steps if max_steps > 0 else float("inf")) if is_steps else epochs
    if args.eval_strategy != "no" and args.eval_delay and args.eval_delay > end:
        raise ConsistencyError(
            f"`eval_delay` is {args.eval_delay:g}, and training ends after {end:g} {'steps' if is_steps else 'epochs'}: nothing would "
            "be evaluated. Lower it."
        )


def warn_of_warmup(trainer: Any) -> None:
    """Logs a warning before the first step if training ends before the learning rate has risen to that of the options."""
    args, state = trainer.args, trainer.state
    warmup, schedule = args.get_warmup_steps(state.max_steps), trainer.lr_scheduler
    is_own = trainer._created_lr_scheduler and isinstance(schedule, LambdaLR)
    if state.global_step == 0 and is_own and warmup >= state.max_steps:
        highest = args.learning_rate * schedule.lr_lambdas[0](state.max_steps - 1)
        logger.warning(
            f"`warmup_steps`: the learning rate rises for {warmup:,} steps, and training takes {state.max_steps:,}: its highest is "
            f"{highest:g}, and `learning_rate` {args.learning_rate:g}. Lower `warmup_steps`, or train for longer."
        )


def warn_of_rounding(trainer: Any) -> None:
    """
    Logs a warning if steps of AdamW are smaller than what many trained weights can change by: numbers in 16 bits are rounded back to
    what they were. An optimizer and a rate are checked once.
    """
    name, rate = _optimizer_and_rate(trainer)
    if trainer.checked_rate == (name, rate):
        return
    trainer.checked_rate = name, rate
    # Others have steps that depend on the size of the gradient. DeepSpeed trains a copy in float32.
    has_such_steps = any(kind in name.lower() for kind in ("adam", "lion", "adafactor"))
    if not has_such_steps or trainer.accelerator.distributed_type == DistributedType.DEEPSPEED:
        return
    lost, sizes = {}, {}
    for name, weight in trainer.model.named_parameters():
        if weight.requires_grad:
            numbers = shard_of(weight).detach().flatten()
            lost[name], sizes[name] = 0.0, numbers.numel()
            if weight.dtype == torch.bfloat16 and numbers.numel():
                some = numbers[:: math.ceil(numbers.numel() / 4_096)].abs().float()
                # A number is rounded back if it changes by less than a half of its last bit.
                lost[name] = float((some * torch.finfo(weight.dtype).eps / 4 > rate).float().mean()) * numbers.numel()
    # Beside an adapter, which is in float32, a whole module may be few of the trained weights.
    parts = {f"the weights of `{name}`": [name] for name in lost} if is_peft_model(trainer.model) else {}
    parts = {"the trained weights": [*lost], **parts}
    for part, names in parts.items():
        share = sum(lost[name] for name in names) / max(sum(sizes[name] for name in names), 1)
        if share > 1 / 4:
            logger.warning(
                f"`learning_rate` is {rate:g}, and such a step does not change {100 * share:.0f}% of {part}: bfloat16 rounds them "
                "back. Load the model in float32 (`dtype: float32`), and compute in 16 bits if you like (`bf16: true`), or train an "
                "adapter."
            )
            return


def _optimizer_and_rate(trainer: Any) -> tuple[str, float]:
    """Returns the name of the optimizer, and its largest learning rate."""
    args = trainer.args
    if trainer.optimizer is not None:
        return type(trainer.optimizer).__name__, max(group["lr"] for group in trainer.optimizer.param_groups)
    if trainer.optimizer_cls_and_kwargs is not None:
        kind, options = trainer.optimizer_cls_and_kwargs
        return kind.__name__, options.get("lr", args.learning_rate)
    return str(getattr(args.optim, "value", args.optim)), args.learning_rate


def check_reference_options(trainer: Trainer) -> None:
    """Raises [`ConsistencyError`] for options that do not work if the reference runs beside the student."""
    args = trainer.args
    why = (
        ""
        if args.rolls_out
        else f" (`method` {args.method}, `log_consistency_metrics` {args.log_consistency_metrics})"
    )
    way_out = "" if args.rolls_out else "; `method: [bct]` alone can have it"
    refused = {
        "`torch.nn.DataParallel` (several GPUs in one process; use `accelerate launch`)": args.n_gpu > 1,
        "tensor, context or sequence parallelism": trainer.accelerator.parallelism_config is not None,
        "`torch_compile`": args.torch_compile,
        "`compute_metrics`": trainer.compute_metrics,
        "`preprocess_logits_for_metrics`": trainer.preprocess_logits_for_metrics,
    }
    for option, is_set in refused.items():
        if is_set:
            raise ConsistencyError(
                f"{option} is not available where the reference runs beside the student{why}. Leave it out{way_out}."
            )


def check_metrics(args: Any, compute_metrics: Any) -> None:
    """
    Raises [`ConsistencyError`] for metrics that no evaluation would compute, and for options of metrics without a
    `compute_metrics`.
    """
    if compute_metrics is not None and args.prediction_loss_only:
        raise ConsistencyError(
            "With `prediction_loss_only`, no evaluation computes the metrics of `compute_metrics`. Leave one of the two out."
        )
    for option in ("include_for_metrics", "batch_eval_metrics"):
        if compute_metrics is None and getattr(args, option):
            raise ConsistencyError(f"`{option}` is for `compute_metrics`, and there are none. Leave it out.")


def check_padding_free_parallelism(trainer: Trainer) -> None:
    """Raises [`ConsistencyError`] if several devices would share the one row of a batch without padding."""
    option = padding_free_option(trainer.args)
    if trainer.args.n_gpu > 1:
        raise ConsistencyError(
            f"`{option}` is not available with `torch.nn.DataParallel` (several GPUs in one process), which shares out the "
            "rows of a batch: without padding it is one row. Use `accelerate launch`, or leave it out."
        )
    parallelism = trainer.accelerator.parallelism_config
    if parallelism is not None and (parallelism.cp_enabled or parallelism.sp_enabled):
        raise ConsistencyError(
            f"`{option}` is not available with context or sequence parallelism. Without padding, a batch is one row; where it is "
            "cut, its texts would attend to one another. Leave one of them out."
        )


def check_sharding(trainer: Trainer, adapter_off: bool) -> None:
    """Raises [`ConsistencyError`] if the reference (with `adapter_off`, the base model) cannot run sharded."""
    backend, args = DistributedBackend(trainer.accelerator), trainer.args
    if backend.fsdp_version == 1:
        raise ConsistencyError(
            "FSDP 1 is not available where the reference runs beside the student. Set `fsdp_version: 2`."
        )
    if not is_sharded(trainer.accelerator):
        return
    name = "FSDP" if backend.is_fsdp else "DeepSpeed ZeRO-3"
    if is_peft_model(trainer.model) and not adapter_off:
        raise ConsistencyError(
            f"Under {name} the reference must be the model with its adapter off, and here the initial policy needs an "
            "adapter: one that the model came with, or one with `bias`. Merge it into the model (`merge_and_unload`), save the whole, "
            "load that and give a new `peft_config`, or use DDP or DeepSpeed ZeRO-2."
        )
    if args.rolls_out and args.log_consistency_metrics:
        raise ConsistencyError(
            f"`log_consistency_metrics` needs the reference's answers to the clean prompts. Each process would answer others of them, and "
            f"under {name} no process holds the whole reference. Leave it out, or use DDP or DeepSpeed ZeRO-2."
        )
    if backend.is_zero3 and is_peft_model(trainer.model) and args.gradient_checkpointing and not args.rolls_out:
        raise ConsistencyError(
            f"Under {name} TRL trains an adapter with reentrant gradient checkpointing only, which runs the blocks "
            f"without gradients: `method` {args.method} cannot train there. Set `gradient_checkpointing: false`, or use "
            "FSDP2 or DeepSpeed ZeRO-2."
        )


def check_model_options(model: Any, args: ConsistencyConfig, peft_config: Any) -> None:
    """
    Raises [`ConsistencyError`] if the model lacks the `layers` or the attention that objectives need, or cannot run
    without padding. For `attct`, sets eager attention for a model that is not loaded yet, unless another one is set.
    """
    if "attct" in args.method:
        if isinstance(model, str):
            options = args.model_init_kwargs or {}
            attention = options.get("attn_implementation")
            args.model_init_kwargs = {**options, "attn_implementation": attention or "eager"}
        else:
            attention = model.config._attn_implementation
        if attention not in (None, "eager"):
            raise ConsistencyError(
                f"`attct` compares attention maps, which `{attention}` attention never forms. Set "
                "`attn_implementation: eager`."
            )
    adapter = getattr(model, "active_peft_config", None) if peft_config is None else peft_config
    if isinstance(adapter, PrefixTuningConfig) and args.gradient_checkpointing:
        raise ConsistencyError(
            "Prefix tuning puts its prompt into the key/value cache, which `gradient_checkpointing` (TRL's default) turns off. Set "
            "`gradient_checkpointing: false`."
        )
    if args.layers is None and not args.padding_free:
        return
    config = config_of(model, args)
    if args.layers is not None:
        resolve_layers(args.layers, config.get_text_config().num_hidden_layers)
    if args.padding_free:
        if isinstance(model, str):
            model = check_architecture(model, config, (args.model_init_kwargs or {}).get("attn_implementation"))
        if model is not None:  # a model with code of its own is checked once it is loaded
            check_padding_free(model, peft_config, padding_free_option(args))


def refuse_arguments(**arguments: tuple[Any, str]) -> None:
    """Raises [`ConsistencyError`] for an unsupported argument that is set. Each comes as (value, reason)."""
    for name, (value, reason) in arguments.items():
        if value is not None:
            raise ConsistencyError(f"`{name}` is not available in consistency training: {reason}. Leave it out.")

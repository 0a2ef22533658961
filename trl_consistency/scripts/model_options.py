"""Checks the options of TRL's `ModelConfig` and `ScriptArguments` that a command would ignore, and reads those of quantization."""

import re
from collections.abc import Collection
from typing import Any

from transformers.quantizers.auto import AutoQuantizationConfig
from trl import ModelConfig, get_peft_config, get_quantization_config

from ..errors import ConsistencyError, one_line
from ..models.checks import refuse_old_names
from ..trainer.run.checks import check_bitsandbytes


# Options that mean nothing without another one
OF_LORA = (
    *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save"),
    *("lora_task_type", "use_rslora", "use_dora"),
)
OF_HUB = ("hub_model_id", "hub_private_repo", "hub_revision")
OF_4_BITS = ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage")
# Numbers of steps, and what says that steps count
INTERVALS = {"save_steps": "save_strategy", "eval_steps": "eval_strategy", "logging_steps": "logging_strategy"}


def check_model_options(given: Collection[str], script_args: Any, training_args: Any, model_args: Any) -> None:
    """Raises [`ConsistencyError`] for an option among those that a user has `given` that would be ignored."""
    check_switched_on(given, training_args, model_args)
    if script_args.ignore_bias_buffers:
        raise ConsistencyError("`ignore_bias_buffers` does nothing in this command. Leave it out.")
    if model_args.load_in_4bit or model_args.load_in_8bit:
        option = "`load_in_4bit`" if model_args.load_in_4bit else "`load_in_8bit`"
        check_bitsandbytes(option)
        if not model_args.use_peft:
            raise ConsistencyError(f"{option} needs `use_peft: true`: quantized weights cannot be trained themselves.")


def check_switched_on(given: Collection[str], *options: Any) -> None:
    """
    Raises [`ConsistencyError`] for an option among those `given` without the one that switches it on, such as `lora_r` without
    `use_peft`. With `use_peft: false`, the options of an adapter in the same recipe are ignored knowingly.
    """
    values = {name: value for of in options for name, value in vars(of).items()}
    of_vllm = sorted(name for name in given if name.startswith("vllm_"))
    for names, needed, on, off, otherwise in (
        (OF_LORA, "use_peft", "true", "false", "all weights would be trained"),
        (OF_4_BITS, "load_in_4bit", "true", "false", "nothing would be quantized"),
        (of_vllm, "use_vllm", "true", "false", "transformers would write the answers"),
        (("eval_steps",), "eval_strategy", "steps", '"no"', "nothing would be evaluated during training"),
        (OF_HUB, "push_to_hub", "true", "false", "nothing would be pushed"),
    ):
        unused = [name for name in names if name in given and values.get(name) not in (None, False)]
        if unused and needed not in given:
            raise ConsistencyError(
                f"`{unused[0]}` is set without `{needed}`, so that {otherwise}. Set `{needed}: {on}`, or `{needed}: {off}` if that "
                "is meant."
            )


def check_intervals(given: Collection[str], typed: Collection[str], args: Any) -> None:
    """
    Raises [`ConsistencyError`] for a number of steps among those `given` where the strategy beside it counts no steps, and for epochs
    beside a number of steps. A strategy that is `typed` replaces the steps of a recipe knowingly, and so does `no` beside them.
    """
    for steps, strategy in INTERVALS.items():
        number, kind = getattr(args, steps), getattr(args, strategy)
        kind = getattr(kind, "value", kind)
        is_meant = steps not in typed and (strategy in typed or kind == "no")
        if steps in given and strategy in given and number is not None and kind != "steps" and not is_meant:
            raise ConsistencyError(
                f"`{steps}` is {number:g}, and `{strategy}` is {kind}, which counts no steps. Set `{strategy}: steps`, or leave `{steps}` "
                "out."
            )
    # `max_steps` on the command line makes a trial of a recipe that has epochs.
    is_trial = "max_steps" in typed and "num_train_epochs" not in typed
    if {"max_steps", "num_train_epochs"} <= {*given} and args.max_steps > 0 and not is_trial:
        raise ConsistencyError(
            f"`num_train_epochs` is {args.num_train_epochs:g}, and `max_steps` is {args.max_steps}, which alone would decide. Leave one of "
            "them out, or set `max_steps: -1`."
        )


def adapter_of(model_args: ModelConfig) -> Any:
    """
    Returns the config of a new adapter, or None. TRL makes a text of a single name in `lora_target_modules`, and PEFT takes
    a text for a pattern of the whole path of a layer.
    """
    config = get_peft_config(model_args)
    if config is not None and isinstance(name := config.target_modules, str) and re.fullmatch(r"[\w.]+", name):
        config.target_modules = {name}
    return config


def check_init_kwargs(model_args: ModelConfig, init_kwargs: dict[str, Any], named: Collection[str] = ()) -> None:
    """
    Raises [`ConsistencyError`] if `model_init_kwargs` would override an option that is given, or be ignored. Options that are
    `named` are given even at their defaults.
    """
    refuse_old_names(init_kwargs)
    for key, name in (("revision", "model_revision"), ("attn_implementation",) * 2, ("dtype",) * 2):
        given = getattr(model_args, name)
        is_given = name in named or given != getattr(ModelConfig, name)
        if key in init_kwargs and is_given and given != init_kwargs[key]:
            raise ConsistencyError(
                f"`{name}` is {given}, and `model_init_kwargs` sets `{key}` to {init_kwargs[key]}: keep one."
            )


def quantization_of(model_args: ModelConfig, init_kwargs: dict[str, Any]) -> Any:
    """
    Returns how to quantize the weights, or None. How to load weights that are quantized in the checkpoint is taken out of
    `init_kwargs`, where `quantization_config` can be a mapping such as `{"quant_method": "mxfp4", "dequantize": True}`:
    transformers itself takes the object alone. Raises [`ConsistencyError`] if it is not one, or contradicts `load_in_4bit`.
    """
    of_checkpoint = init_kwargs.pop("quantization_config", None)
    quantization = get_quantization_config(model_args)
    if of_checkpoint is None:
        return quantization
    if quantization is not None:
        raise ConsistencyError(
            "`quantization_config` in `model_init_kwargs` and `load_in_4bit` or `load_in_8bit` are both given: keep one."
        )
    if not isinstance(of_checkpoint, dict):
        raise ConsistencyError(
            f"`quantization_config` in `model_init_kwargs` must be a mapping with a `quant_method`, got {of_checkpoint!r}."
        )
    try:
        return AutoQuantizationConfig.from_dict(of_checkpoint)
    except Exception as error:  # each method checks its own keys
        raise ConsistencyError(
            f"`quantization_config` in `model_init_kwargs` cannot be used: {one_line(error)}"
        ) from None

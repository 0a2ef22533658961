"""Checks the options of the optimizer and the learning rate: transformers silently ignores those that are not read."""

from collections.abc import Mapping
from typing import Any

from ..errors import ConsistencyError, did_you_mean
from .types import accepts


# What `optim_args` can set, by the beginning of an optimizer's name. `weight_decay` is not among it: Trainer gives each
# group of weights its own, by the option of that name. bitsandbytes checks what it is given for RMSprop itself.
_OF_GALORE = ("rank", "update_proj_gap", "scale", "proj_type")
OPTIM_ARGS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "dampening", "nesterov"),
    "adagrad": ("lr_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "centered"),
    "ademamix": ("beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3"),
    "adamw_anyprecision": ("use_kahan_summation", "momentum_dtype", "variance_dtype", "compensation_buffer_dtype"),
    "adamw_torch_4bit": ("block_size", "bf16_stochastic_round"),
    "adamw_torch_8bit": ("block_size", "bf16_stochastic_round"),
    "galore": _OF_GALORE,
    "apollo": (*_OF_GALORE, "proj", "scale_type"),
    "grokadamw": ("alpha_init", "lamb", "gamma", "grokking_signal_decay_rate", "gradient_clipping"),
    "schedule_free": ("weight_lr_power", "r"),
    "stable_adamw": ("max_lr", "kahan_sum", "decouple_lr"),
}
SWITCHES = ("nesterov", "centered")  # any other text than these turns them off
TRUE_OR_FALSE = ("true", "1", "yes", "false", "0", "no")

# Options of Adam that are read, by the beginning of the names of the optimizers that do not read them all
ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
READ_OF_ADAM: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sgd", "adagrad", "rmsprop", "adafactor", "galore", "grokadamw", "lomo", "adalomo"), ()),
    **dict.fromkeys(("schedule_free_sgd",), ()),
    "lion": ("adam_beta1", "adam_beta2"),
}

IN_BACKWARD = ("lomo", "adalomo")

WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")
WITHOUT_KWARGS = ("constant", "constant_with_warmup")
BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # which lower the learning rate where a metric does not improve


def check_optimizer_options(args: Any) -> None:
    """Raises [`ConsistencyError`] for an option of the optimizer or the schedule that would be ignored."""
    optimizer = str(getattr(args.optim, "value", args.optim))
    if optimizer in IN_BACKWARD or optimizer.endswith("_layerwise"):
        raise ConsistencyError(
            f"`optim` {optimizer} changes weights within the backward pass: it leaves no gradient to clip or to check, and a checkpoint "
            "has nothing of its state. Set an 8-bit optimizer, as `adamw_8bit`, or `galore_adamw`."
        )
    if args.optim_target_modules and not optimizer.startswith(("galore", "apollo")):
        raise ConsistencyError(
            f"`optim_target_modules` is set, but `optim` is {optimizer}, which trains all modules alike: it is for GaLore "
            "and APOLLO. Leave it out."
        )
    if args.optim_args:
        _check_optim_args(optimizer, str(args.optim_args))
    for name in ADAM:
        is_set = getattr(args, name) != type(args).__dataclass_fields__[name].default
        if is_set and name not in _of(optimizer, READ_OF_ADAM, ADAM):
            raise ConsistencyError(
                f"`{name}` is set, but `optim` is {optimizer}, which does not read it. Leave it out."
            )
    _check_schedule(args)


def check_direction(args: Any) -> None:
    """
    Raises [`ConsistencyError`] for a schedule that would take a better metric for a worse one. Trainer tells it nothing of
    `greater_is_better`, which must be settled.
    """
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    mode, wanted = (args.lr_scheduler_kwargs or {}).get("mode", "min"), "max" if args.greater_is_better else "min"
    if schedule in BY_METRIC and mode != wanted:
        raise ConsistencyError(
            f"`lr_scheduler_type` is {schedule}, in the mode {mode!r}, but of `metric_for_best_model` ({args.metric_for_best_model}) "
            f"a {'higher' if wanted == 'max' else 'lower'} value is better: the learning rate would fall where the model improves. Set "
            f"`lr_scheduler_kwargs: {{mode: {wanted}}}`."
        )


def _of(optimizer: str, table: Mapping[str, tuple[str, ...]], otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the entry of the longest beginning of an optimizer's name."""
    name = optimizer.removeprefix("paged_")
    beginnings = [beginning for beginning in table if name.startswith(beginning)]
    return table[max(beginnings, key=len)] if beginnings else otherwise


def _check_optim_args(optimizer: str, optim_args: str) -> None:
    known = _of(optimizer, OPTIM_ARGS, ())
    for part in optim_args.replace(" ", "").split(","):
        key, equals, value = part.partition("=")
        if not equals or not value or "=" in value:
            raise ConsistencyError(f"`optim_args` must be like `momentum=0.9,nesterov=true`, got {optim_args!r}.")
        if key == "weight_decay":
            raise ConsistencyError(
                "`optim_args` sets `weight_decay`, which would be ignored. Set the option of that name."
            )
        if key not in known and not optimizer.startswith("rmsprop_bnb"):
            reads = f"it reads {', '.join(known)}" if known else "it reads none: there are `adam_beta1` and the like"
            raise ConsistencyError(
                f"`optim_args` sets `{key}`, which `optim` {optimizer} does not read; {reads}.{did_you_mean(key, known)}"
            )
        if key in SWITCHES and value.lower() not in TRUE_OR_FALSE:
            raise ConsistencyError(f"`optim_args` sets `{key}`, which must be true or false, got {value!r}.")


def _check_schedule(args: Any) -> None:
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if args.warmup_steps and schedule in WITHOUT_WARMUP:
        way_out = "set `lr_scheduler_type: constant_with_warmup`" if schedule == "constant" else "leave it out"
        raise ConsistencyError(
            f"`warmup_steps` is set, but `lr_scheduler_type` is {schedule}, which has no warmup: {way_out}."
        )
    if args.lr_scheduler_kwargs and schedule in WITHOUT_KWARGS:
        raise ConsistencyError(
            f"`lr_scheduler_kwargs` is set, but `lr_scheduler_type` is {schedule}, which takes none. Leave it out."
        )
    kwargs = args.lr_scheduler_kwargs  # a text, as on the command line, holds JSON, which transformers reads
    for key, value in kwargs.items() if isinstance(kwargs, dict) else ():
        if isinstance(value, str) and accepts(float, value):
            raise ConsistencyError(
                f"`lr_scheduler_kwargs` sets `{key}` to the text {value!r}. YAML takes a number for text if it has an exponent without "
                f"a dot or a sign: write {_for_yaml(value)} without quotes."
            )


def _for_yaml(number: str) -> str:
    """Returns a number as YAML 1.1 reads it: an exponent needs a sign, and a dot before it."""
    digits, has_exponent, exponent = number.lower().partition("e")
    digits += ".0" * bool(has_exponent and "." not in digits)
    return f"{digits}{has_exponent}{'+' * exponent[:1].isdigit()}{exponent}"

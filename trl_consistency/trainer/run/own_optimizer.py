"""Describes an optimizer and a schedule that a caller gave a trainer, to compare a resumed run with the saved one."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch

from .manifest import as_json


OPTIMIZER, SCHEDULE = "optimizer", "schedule"  # names in the description; settings are below them ("optimizer.lr")
# What a schedule's state has of the steps that it has done, and what is described otherwise
OF_STEPS = ("last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "lr_lambdas")
# What schedule-free optimizers and Prodigy keep of the steps that they have done beside their settings
OF_PROGRESS = ("k", "train_mode", "weight_sum", "lr_max", "scheduled_lr", "d", "d_max", "d_numerator", "d_denom")
# Settings that the options decide
OF_OPTIONS = ("lr", "weight_decay", "betas", "eps", "momentum")
PROBED = (0, 1, 2, 5, 10, 100, 1000)  # steps at which the functions of a schedule are compared


def take_evaluated_weights(optimizer: Any) -> None:
    """
    Puts the weights that an optimizer gives into the model. A schedule-free one, which averages, trains on others, and takes
    these again in its next step. Trainer does this for evaluations alone.
    """
    if callable(evaluate := getattr(optimizer, "eval", None)):
        evaluate()


def describe_own_optimizer(trainer: Any) -> dict[str, Any]:
    """
    Returns the classes and the settings of the optimizer and the schedule that were given to a trainer, by name, before
    its first step. None for what the options decide.
    """
    facts: dict[str, Any] = {OPTIMIZER: None, SCHEDULE: None}
    if trainer.optimizer_cls_and_kwargs is not None:
        kind, settings = trainer.optimizer_cls_and_kwargs
        facts |= _described(OPTIMIZER, kind, {**_defaults_of(kind), **settings})
    elif trainer.has_own_optimizer:
        facts |= _described(OPTIMIZER, type(trainer.optimizer), _settings_of(trainer.optimizer))
    if (trainer.has_own_optimizer and trainer.lr_scheduler is not None) or has_own_schedule(trainer):
        facts |= _described(SCHEDULE, type(trainer.lr_scheduler), _settings_of_schedule(trainer.lr_scheduler))
    return facts


def has_own_schedule(trainer: Any) -> bool:
    """Whether a caller gave a trainer its schedule, be it without an optimizer."""
    return trainer.lr_scheduler is not None and not trainer._created_lr_scheduler


def decided_settings(optimizer: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer that the options decide, with the learning rate that its schedule begins with."""
    settings = _settings_of(optimizer)
    return {key: _plain(settings[key]) for key in OF_OPTIONS if key in settings}


def is_as_scheduled(optimizer: Any, schedule: Any) -> bool:
    """Whether the learning rates of an optimizer are those that its schedule set for this step."""
    schedule = getattr(schedule, "scheduler", schedule)  # accelerate's has it
    if not hasattr(schedule, "get_last_lr"):  # DeepSpeed's
        return True
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    begun = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    return rates == list(map(float, schedule.get_last_lr())) and begun == list(
        map(float, getattr(schedule, "base_lrs", begun))
    )


def is_of_own_optimizer(name: str) -> bool:
    """Whether a name in a run's description is of the caller's optimizer or schedule."""
    return name.split(".")[0] in (OPTIMIZER, SCHEDULE)


def _described(name: str, kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    named = kind.func if isinstance(kind, partial) else kind
    plain = {f"{name}.{key}": _plain(value) for key, value in settings.items()}
    shown = {key: as_json(value) for key, value in plain.items() if _is_plain(value)}
    return {name: f"{named.__module__}.{named.__qualname__}", **shown}


def _defaults_of(kind: Any) -> dict[str, Any]:
    parameters = signature(kind).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not Parameter.empty}


def _settings_of(optimizer: Any) -> dict[str, Any]:
    """Returns the settings of an optimizer: one value where its groups of weights agree, else a list."""
    groups = [
        {**group, "lr": group.get("initial_lr", group.get("lr")), "params": None}
        for group in getattr(optimizer, "param_groups", [])
    ]
    keys = dict.fromkeys(key for group in groups for key in group if key not in ("params", "initial_lr"))
    values = {key: [group.get(key) for group in groups] for key in keys}
    return {key: of[0] if _all_equal(map(_plain, of)) else of for key, of in values.items()}


def _settings_of_schedule(schedule: Any) -> dict[str, Any]:
    state = schedule.state_dict() if hasattr(schedule, "state_dict") else {}
    settings = {key: value for key, value in state.items() if key not in OF_STEPS}
    for number, function in enumerate(getattr(schedule, "lr_lambdas", [])):
        with suppress(Exception):  # the caller's function, which may know no such step
            settings[f"shares_{number}"] = [function(step) for step in PROBED]
    return settings


def _all_equal(values: Iterable[Any]) -> bool:
    first, *others = values
    return all(value == first for value in others)


def _plain(value: Any) -> Any:
    """Returns a setting without tensors, and without the steps that a schedule inside another one has done."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items() if key not in OF_STEPS}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    """Whether a setting is made of numbers and text: how others are shown may differ from run to run."""
    if isinstance(value, list | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)

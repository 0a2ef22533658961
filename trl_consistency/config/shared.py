"""Options of pairs and checks of inherited options that both configurations share."""

import os
import re
import warnings
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from torch.utils.checkpoint import checkpoint

from ..data.pairs import template_kwargs_faults
from ..errors import ConsistencyError, one_line
from ..json_files import as_mapping
from .device import settle_device
from .generation_kwargs import check_cache, check_generation_kwargs
from .optimizer_options import check_direction, check_optimizer_options
from .options import (
    BELOW_ONE,
    NEW_NAMES,
    SEED,
    SHARE,
    TWO_TEXTS,
    Allowed,
    above,
    at_least,
    check_ranges,
    one_of,
    option,
    refuse,
    with_help,
)
from .types import check_installed, check_keys, check_types


if TYPE_CHECKING:
    from transformers import TrainingArguments as _Arguments
else:
    _Arguments = object  # each configuration inherits TRL's configuration after this class


# Allowed values of inherited training options
TRAINING = {
    "learning_rate": at_least(0),
    "weight_decay": at_least(0),
    "max_grad_norm": Allowed("at least 0 (0 is none)", lambda value: value is not None and at_least(0).holds(value)),
    "adam_beta1": BELOW_ONE,
    "adam_beta2": BELOW_ONE,
    "adam_epsilon": above(0),
    "max_steps": Allowed("at least 1, or -1 (the epochs decide)", lambda steps: steps >= 1 or steps == -1),
    "seed": SEED,
    "data_seed": SEED.or_none(),
    "dataloader_num_workers": at_least(0),
    "per_device_train_batch_size": at_least(1),
    "per_device_eval_batch_size": at_least(1),
    "gradient_accumulation_steps": Allowed("at least 1", lambda steps: int(steps) >= 1),
    "eval_accumulation_steps": at_least(1).or_none(),
    "label_smoothing_factor": BELOW_ONE,
    "neftune_noise_alpha": above(0).or_none(),
    "pad_to_multiple_of": Allowed("at least 1, or None", lambda of: not isinstance(of, int) or of >= 1),
    "logging_steps": at_least(0),
    "include_num_input_tokens_seen": Allowed(
        "'all', 'non_padding' or 'no'", lambda value: isinstance(value, bool) or value in ("all", "non_padding", "no")
    ),
}

# Metrics of an evaluation, beside losses, of which transformers would keep the highest as the best
LOWER_IS_BETTER = (
    *("reference_kl", "response_cross_entropy", "activation_distance", "divergence"),
    *("sycophancy", "attack_success", "unread", "attct_skipped_rows", "clipped_ratio"),
)

# ... and of which the highest is the best: every other metric of the guard, and accuracies
HIGHER_IS_BETTER = re.compile(r"^(eval_)?consistency/|accuracy$")

# Keys that `generation_kwargs` must not set, and the option for each, or None if the trainer sets it
RESERVED_GENERATION_KWARGS = {
    "bos_token_id": None,
    "do_sample": "temperature",
    "logprobs": None,
    "max_length": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "max_tokens": "max_completion_length",
    "n": None,
    "num_return_sequences": None,
    "pad_token_id": None,
    "stop_token_ids": None,
    "use_cache": None,
}

# Options that are secrets, and decide nothing
TOKENS = ("hub_token", "push_to_hub_token")

# Allowed values of sampling and vLLM options, which one configuration declares and the other inherits
GENERATION = {
    "top_p": SHARE,
    "top_k": at_least(0, " (0 keeps all)"),
    "min_p": Allowed("between 0 and 1, or None", lambda value: value is None or 0 <= value <= 1),
    "repetition_penalty": above(0),
    "vllm_gpu_memory_utilization": SHARE,
    "vllm_max_model_length": at_least(1).or_none(),
}


def without_token(model_init_kwargs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns `model_init_kwargs` without the token for a gated model, a secret that decides nothing."""
    return model_init_kwargs and {name: value for name, value in model_init_kwargs.items() if name != "token"}


@dataclass
@with_help
class PairConfig(_Arguments):
    r"""
    Options that [`ConsistencyConfig`] and [`OnPolicyConsistencyConfig`] have in common.

    Parameters:
        max_length (`int`, *optional*):
            Maximum length of a row in tokens: the longer prompt plus the completion. A target or rollout that is still to
            be generated counts as `max_completion_length` tokens. `None` sets no limit. Rows are never cut: `overlong`
            says what happens to longer rows.
        overlong (`str`, *optional*, defaults to `"error"`):
            What to do with rows longer than `max_length` or the model's context. `"error"` reports them and stops before
            training, and `"drop"` leaves them out and logs how many.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Variables of the chat template for all rows, such as `{"enable_thinking": False}`. A row's own
            `chat_template_kwargs` column overrides them.
        thinking_markers (`list[str]`, *optional*, defaults to `["<think>", "</think>"]`):
            The two texts that open and close a thought.
        anchor_ratio (`float`, *optional*, defaults to `0.0`):
            Share of anchors (rows with two equal prompts) in an epoch, at least 0 and below 1. Anchors keep the student
            close to the reference. At a ratio of r, an epoch has `round(r / (1 - r) * N)` anchors beside the N pairs. They
            come from the trainer's `anchor_dataset` or, without one, from the pairs' own clean prompts.
        log_consistency_metrics (`bool`, *optional*, defaults to `False`):
            Whether to log, for any objective: `response_cross_entropy` (of the clean answer given the perturbed prompt),
            `activation_distance` (on the tokens that both prompts end with) and `reference_kl` (KL divergence from the
            reference on the clean answer). This needs more forward passes. On-policy, the reference also
            has to answer every distinct clean prompt that has no `completion`, by greedy decoding.
        dose_check (`bool`, *optional*, defaults to `False`):
            Whether to measure how differently the model answers the two prompts. Does so on 64 pairs, before the first step.
            Logs, under `dose/`, how often the greedy answers agree, the KL divergence and, if the rows have an answer key,
            sycophancy and clean accuracy. Warns if there is almost nothing to train, or if clean accuracy or refusals are low.
    """

    # Parameters that control the pairs, the anchors and the logging
    max_length: int | None = option(None, at_least(1).or_none())
    overlong: str = option("error", choices=("error", "drop"))
    chat_template_kwargs: dict[str, Any] | str | None = option(None)
    thinking_markers: list[str] = option(["<think>", "</think>"], TWO_TEXTS)
    anchor_ratio: float = option(0.0, BELOW_ONE)
    log_consistency_metrics: bool = option(False)
    dose_check: bool = option(False)

    _upstream = object  # TRL's configuration
    # The options as they were given, and as they were settled; see [`_take_assigned`]
    _given = cast(dict[str, Any], {})
    _made = cast(dict[str, Any], {})
    _set_by_trainer = cast(tuple[str, ...], ())  # further `generation_kwargs`
    rolls_out = False  # whether to train on the student's own answers

    @property
    def needs_completions(self) -> bool:
        """Whether the reference's clean answers are needed."""
        return False

    def _take_assigned(self) -> None:
        """
        Takes options that were assigned since the config was made as if it had been made with them: all are checked, and those that
        depend on others are settled anew.
        """
        self._check_misspelt()
        now = self._values()
        assigned = {name: value for name, value in now.items() if value != self._made.get(name, value)}
        if not assigned:
            return
        tokens = {name: getattr(self, name) for name in TOKENS if name in self.__dataclass_fields__}
        try:
            anew = type(self)(**{**self._given, **assigned, **tokens})
        except ConsistencyError:
            raise
        except ValueError as error:  # of transformers
            raise ConsistencyError(one_line(error)) from None
        self.__dict__.update(vars(anew))

    def _check_misspelt(self) -> None:
        """Raises [`ConsistencyError`] for an attribute that was assigned and is almost called as an option: it would be ignored."""
        known = {of.name for of in fields(self)}
        for name in vars(self).keys() - known:
            near = get_close_matches(name, known, n=1, cutoff=0.85)
            if near and not name.startswith("_"):
                raise ConsistencyError(
                    f"`{name}` was assigned to the config, and is no option. Did you mean `{near[0]}`?"
                )

    def _values(self) -> dict[str, Any]:
        """Returns the options by name, without tokens."""
        values = {of.name: getattr(self, of.name) for of in fields(self) if of.init and of.name not in TOKENS}
        return {name: deepcopy(value) if isinstance(value, list | dict) else value for name, value in values.items()}

    def to_dict(self) -> dict[str, Any]:
        """Like [`~transformers.TrainingArguments.to_dict`], which trackers get, and without a token for loading the model."""
        options: dict[str, Any] = super().to_dict()
        return {**options, "model_init_kwargs": without_token(options["model_init_kwargs"])}

    def _without_tokens(self) -> "PairConfig":
        """Returns a copy to be saved, without tokens."""
        kept, init_kwargs = copy(self), without_token(cast(Any, self.model_init_kwargs))
        kept._given = {**self._given, "model_init_kwargs": init_kwargs}
        kept._made = {**self._made, "model_init_kwargs": init_kwargs}
        kept.__dict__.update(dict.fromkeys(vars(kept).keys() & TOKENS), model_init_kwargs=init_kwargs)
        return kept

    def _check_types(self) -> None:
        """Checks the types of own options, and of inherited ones that are used before transformers checks them."""
        own = [field.name for field in fields(self) if field.name not in self._upstream.__dataclass_fields__]  # type: ignore[attr-defined]
        used = ("max_length", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size")
        check_types(self, dict.fromkeys((*own, *used)))

    def _check_ranges(self, inherited: Mapping[str, Allowed]) -> None:
        if self.max_steps <= 0:
            inherited = {**inherited, "num_train_epochs": above(0)}
        listed = {of.name: of.metadata["choices"] for of in fields(self) if of.metadata.get("choices")}
        check_ranges(self, {**{name: one_of(*names) for name, names in listed.items()}, **TRAINING, **inherited})

    def _refuse(self, context: str, refused: dict[str, tuple[Any, str]]) -> None:
        """Refuses options of TRL's configuration that the trainer does not support."""
        casts = "it casts the weights, and training and saving would continue with the cast weights"
        refused = {
            "enable_jit_checkpoint": (self.enable_jit_checkpoint, "SIGTERM saves a checkpoint without it"),
            "average_tokens_across_devices=False": (
                not self.average_tokens_across_devices,
                "the loss is a mean over the tokens of the global batch",
            ),
            "bf16_full_eval": (self.bf16_full_eval, casts),
            "fp16_full_eval": (self.fp16_full_eval, casts),
            "dataloader_in_order=False": (
                not self.dataloader_in_order,
                "rows would be trained on twice or never when a run is resumed, and rollouts of several batches mixed",
            ),
            "auto_find_batch_size": (
                self.auto_find_batch_size,
                "after a batch that does not fit, it would start again with weights that are already trained, so "
                "`per_device_train_batch_size` must fit from the start",
            ),
            **refused,
        }
        refuse(context, {name: (is_set, f"{reason}. Leave it out") for name, (is_set, reason) in refused.items()})

    def _settle(self) -> None:
        """Checks and sets options that must be settled before transformers checks the rest."""
        if self.ddp_backend and "WORLD_SIZE" not in os.environ:
            raise ConsistencyError(
                f"`ddp_backend` is {self.ddp_backend}, but this is a single process. Launch several with `accelerate "
                "launch` or `torchrun`, or leave it out."
            )
        # transformers, too, would read JSON, and make numbers of texts such as "1.10".
        if isinstance(self.chat_template_kwargs, str):
            self.chat_template_kwargs = as_mapping("chat_template_kwargs", self.chat_template_kwargs)
        check_optimizer_options(self)
        check_installed("deepspeed", self.deepspeed, "deepspeed")
        metric = re.sub(r"/layer_\d+$", "", str(self.metric_for_best_model))
        is_lower_better = metric.endswith(LOWER_IS_BETTER)
        if is_lower_better and self.greater_is_better is None:  # type: ignore[has-type]
            self.greater_is_better = False
        self._warn_of_worst(metric, is_lower_better or metric.endswith("loss") or self.metric_for_best_model is None)
        settle_device(self)
        # transformers' new names for TRL's options; with the old ones alone, it warns of every config.
        for old, new in NEW_NAMES.items():
            if new in self.__dataclass_fields__ and getattr(self, new) is None:
                setattr(self, new, getattr(self, old))

    def _warn_of_worst(self, metric: str, is_lower_better: bool) -> None:
        """Warns where the worst step would be kept as the best. `dataclasses.replace` keeps the direction of another metric."""
        keeps_best = self.load_best_model_at_end or self.save_strategy == "best"
        is_worst = (
            is_lower_better if self.greater_is_better else not is_lower_better and HIGHER_IS_BETTER.search(metric)
        )
        if keeps_best and self.greater_is_better is not None and is_worst:
            better = "lower" if is_lower_better else "higher"
            warnings.warn(
                f"`greater_is_better` is {self.greater_is_better}, but of `metric_for_best_model` ({self.metric_for_best_model}) a {better} value "
                "is better: the worst step would be kept as the best. Leave out `greater_is_better`.",
                stacklevel=4,
            )

    def _check_mappings(self) -> None:
        """Checks options that TRL has parsed into mappings."""
        names = ("chat_template_kwargs", "generation_kwargs", "gradient_checkpointing_kwargs", "lr_scheduler_kwargs")
        for key in names:
            if not isinstance(getattr(self, key), dict | None):
                raise ConsistencyError(f"`{key}` must be a mapping, got {getattr(self, key)!r}.")
        check_direction(self)
        for fault in template_kwargs_faults(cast(dict[str, Any], self.chat_template_kwargs or {})):
            raise ConsistencyError(f"`chat_template_kwargs` {fault}.")
        known = {*signature(checkpoint).parameters, "preserve_rng_state"} - {"function", "args", "kwargs"}
        checkpointing = cast(dict[str, Any], self.gradient_checkpointing_kwargs or {})
        instead = "Leave it out" if self.rolls_out else "Set `activation_offloading`"
        refused = {
            **dict.fromkeys(("selective", "every_n_layers"), "all blocks are checkpointed. Leave it out"),
            "offload": f"generation turns checkpointing off and on again, without it. {instead}",
        }
        refuse(
            "in `gradient_checkpointing_kwargs`", {key: (key in checkpointing, why) for key, why in refused.items()}
        )
        check_keys("gradient_checkpointing_kwargs", checkpointing, known)
        kwargs = cast(dict[str, Any], self.generation_kwargs or {})
        for key in kwargs:
            option = RESERVED_GENERATION_KWARGS.get(key, key if key in self.__dataclass_fields__ else None)
            if option or key in RESERVED_GENERATION_KWARGS or key in self._set_by_trainer:
                advice = f"Set the option `{option}`." if option else "The trainer sets it itself. Leave it out."
                raise ConsistencyError(f"`generation_kwargs` sets `{key}`. {advice}")
        if not self.use_vllm:  # vLLM checks its arguments itself
            check_generation_kwargs(kwargs, getattr(self, "repetition_penalty", 1.0))
            check_cache(self.cache_implementation)

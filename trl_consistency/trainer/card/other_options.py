"""Options that decide the result, and that no other fact of the model card names."""

import json
from dataclasses import MISSING, fields
from textwrap import shorten
from typing import Any

from ...escaping import markdown_text
from ...local_names import last_name
from ...models.checks import LOADING


# Named if they differ from their defaults. `tests/trainer/card` checks that each option is here, is named by another
# fact, or decides nothing.
DECIDING = (
    *("no_shared_span", "loss_type", "label_smoothing_factor", "router_aux_loss_coef"),
    *("disable_dropout", "neftune_noise_alpha", "keep_thinking", "thinking_markers"),
    *("chat_template_kwargs", "chat_template_path", "eos_token", "max_length", "overlong"),
    *("warmup_steps", "lr_scheduler_kwargs", "optim_args", "optim_target_modules", "weight_decay", "adam_beta1"),
    *("adam_beta2", "adam_epsilon", "max_grad_norm", "data_seed", "shuffle_dataset", "train_sampling_strategy"),
    *("dataloader_drop_last", "ignore_data_skip", "full_determinism", "tf32", "use_liger_kernel"),
    *("num_iterations", "steps_per_generation", "cache_implementation", "target_batch_size", "rollout_batch_size"),
    *("vllm_model_impl", "vllm_max_model_length", "vllm_structured_outputs_regex"),
    *("vllm_importance_sampling_correction", "vllm_importance_sampling_clip_max", "vllm_overlap"),
)
# Options of loading that decide the result. Others can hold paths and tokens. What is no option of loading changes the config.
OF_LOADING = ("attn_implementation", "experts_implementation")
LONGEST = 100


def describe_precision(trainer: Any) -> dict[str, str]:
    """Returns the card's fact about number formats."""
    weights, mixed = str(trainer.model.dtype).removeprefix("torch."), trainer.accelerator.mixed_precision
    return {"Precision": f"weights in {weights}{f', mixed precision {mixed}' if mixed != 'no' else ''}"}


def describe_other_options(
    args: Any, init_kwargs: dict[str, Any] | None = None, variables: dict[str, Any] | None = None
) -> dict[str, str]:
    """
    Returns the card's fact about options that decide the result, where they differ from their defaults, and about those of the
    `init_kwargs` by which the model was loaded. `variables` are those of the chat template that all rows were rendered with.
    """
    known = {field.name: field for field in fields(args)}
    given = {name: getattr(args, name) for name in DECIDING if name in known}
    if variables is not None:
        given["chat_template_kwargs"] = variables or None
    given = {name: value for name, value in given.items() if _plain(value) != _plain(_default(known[name]))}
    if not args.use_vllm:
        given = {name: value for name, value in given.items() if not name.startswith("vllm_")}
    if given.get("steps_per_generation") == args.gradient_accumulation_steps:
        del given["steps_per_generation"]
    of_model = {name: of for name, of in (init_kwargs or {}).items() if name not in LOADING or name in OF_LOADING}
    given |= {name: value for name, value in of_model.items() if value is not None}
    if not given:
        return {}
    return {"Other options": ", ".join(f"{name} {_show(value)}" for name, value in given.items())}


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


def _show(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, float):
        return f"{value:g}"  # A whole number would become 1.23457e+06.
    text = last_name(value) if isinstance(value, str) else json.dumps(value, default=str)
    return markdown_text(shorten(text, LONGEST, placeholder="…"))

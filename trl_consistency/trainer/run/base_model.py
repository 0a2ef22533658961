"""Tells whether the base model that a saved adapter names is the model that it was trained on, and warns if not."""

import os
from typing import Any

from accelerate.utils import is_peft_model

from ...errors import ConsistencyError
from ...log import get_logger
from ...models.base_files import has_comparable_files, other_base_weight, other_weight
from ...models.checks import LOADING, OTHER_WEIGHTS
from ...models.config_changes import OF_TRAINING, changed_config_keys
from ...models.folder_checks import check_engine_weights
from ...passes.reference import adapter_changes_base
from ...upstream import get_config_model_id


logger = get_logger(__name__)


def find_changed_config(model: Any, peft_config: Any) -> list[str]:
    """Returns where the config of an adapter's base model differs from its files, and warns of it."""
    is_adapter = peft_config is not None or hasattr(model, "peft_config")
    changed = changed_config_keys(model) if is_adapter and not isinstance(model, str) else []
    if changed:
        logger.warning(
            f"The model's config differs from its files ({', '.join(changed)}). An adapter does not save this change: it would be "
            "loaded onto the unchanged model. Save the changed model in a folder of its own, and load that."
        )
    return changed


def is_another_base(given: Any, model: Any) -> bool:
    """
    Whether the adapter of `model` will name another base model than that of the loaded model that the trainer was `given`.
    Warns then.
    """
    # Loading an adapter that changes its base repeats the change.
    if isinstance(given, str) or not is_peft_model(model) or adapter_changes_base(model.active_peft_config):
        return False
    if (name := other_base_weight(model)) is None:
        return False
    logger.warning(
        f"The base model's weights (such as {name}) differ from {get_config_model_id(model.config)}, which the saved adapter names "
        "as its base. Loaded onto that, the adapter behaves differently. Save this model to a folder of its own, and load it from "
        "there before training."
    )
    return True


def check_engine_files(model: Any, args: Any, sends_weights: bool = False) -> None:
    """
    Raises [`ConsistencyError`] if vLLM, which loads a model from its files, would have another one than the trainer: one whose config
    or, unless the engine is sent them (`sends_weights`), whose weights were changed in memory. `model` is the trainer's argument.
    """
    if isinstance(model, str):
        changed = [key for key in args.model_init_kwargs or {} if key not in (*LOADING, *OTHER_WEIGHTS, *OF_TRAINING)]
    else:
        changed = [key for key in changed_config_keys(model) if key not in model.config.sub_configs]
    if changed:
        raise ConsistencyError(
            f"`use_vllm` loads the model from its files, whose config is another one than here ({', '.join(changed)}). Change config.json in "
            "a copy of the model and name that, or leave `use_vllm` out."
        )
    if sends_weights:
        return
    check_engine_weights(model if isinstance(model, str) else get_config_model_id(model.config))
    if isinstance(model, str):
        return
    is_adapter = is_peft_model(model)
    if is_adapter and adapter_changes_base(model.active_peft_config):  # which is refused for itself
        return
    base = model.get_base_model() if is_adapter else model
    name = get_config_model_id(base.config)
    if name and not os.path.isdir(name) and not has_comparable_files(name):
        raise ConsistencyError(
            f"`use_vllm` loads the main revision of {name}, and its weights are not in the Hub's cache: this model came from elsewhere, and may "
            "be of another revision. Save it to a folder of its own and load it from there, or leave `use_vllm` out."
        )
    if (weight := other_weight(base, name)) is not None:
        raise ConsistencyError(
            f"`use_vllm` loads the model from its files, and the weights of this one (such as {weight}) differ from those in {name}. Save it "
            "to a folder of its own and load it from there, or leave `use_vllm` out."
        )

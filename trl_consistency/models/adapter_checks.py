"""Checks an adapter, and the model that it is on, before anything is trained."""

import math
import warnings
from collections.abc import Iterable
from typing import Any

from peft import PeftConfig, PeftMixedModel, PeftModel, PromptLearningConfig, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

from ..errors import ConsistencyError
from ..generation.adapter_scale import ScaledLayer, changed_scales, scaled_layers
from ..upstream import runs_another
from .architecture import check_adapter_fits, check_head


# Adapters that need task ids, experts, states of another model, calls in each step, or a loss of their own.
NEED_MORE = ("ADALORA", "ADAPTION_PROMPT", "CARTRIDGE", "CPT", "MULTITASK_PROMPT_TUNING", "POLY", "SHADOW", "XLORA")
NEED_DATA = ("eva", "lora_ga")  # for their initialisation
OF_MODEL = "The adapter of the model"
MERGED = "merged into its base (`merge_adapter()`). Call `unmerge_adapter()`"
CHANGE_BASE = ("pissa_niter", "corda", "loftq")  # by their initialisation, which is random or depends on data


def check_new_adapter(config: Any) -> None:
    """Raises [`ConsistencyError`] for a `peft_config` that a trainer cannot train or initialise."""
    if not isinstance(config, PeftConfig):
        raise ConsistencyError(
            f"`peft_config` must be a config of PEFT, such as `LoraConfig`, got `{type(config).__name__}`."
        )
    check_adapter_config("`peft_config`", config)
    _check_kind("`peft_config`", config)
    if isinstance(config, PromptLearningConfig) and not config.num_virtual_tokens:
        raise ConsistencyError(
            "`peft_config` has no `num_virtual_tokens`. Set it to the length of the learned prompt in tokens."
        )
    refused = {"arrow_config": getattr(config, "arrow_config", None)}
    refused["init_lora_weights"] = init if (init := getattr(config, "init_lora_weights", None)) in NEED_DATA else None
    for name, value in refused.items():
        if value:
            raise ConsistencyError(
                f"`peft_config` sets `{name}`, for which PEFT needs prompts or data that no trainer gives it. Leave it out."
            )


def _check_kind(whose: str, config: PeftConfig) -> None:
    """Raises [`ConsistencyError`] for the config of an adapter (at the place `whose`) that a trainer cannot train."""
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind in NEED_MORE:
        raise ConsistencyError(
            f"{whose} is of the type {kind}, which needs more from a trainer than the gradients of a loss. Use LoRA."
        )
    if getattr(config, "monteclora_config", None):
        raise ConsistencyError(
            f"{whose} sets `monteclora_config`, for which PEFT needs a term in the loss that no trainer here adds. Leave it out."
        )


def check_runs_itself(model: Any) -> None:
    """Raises [`ConsistencyError`] for a copy of a model that computes with the weights of the one that it was copied from."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    if hasattr(base, "__dict__") and runs_another(base):
        raise ConsistencyError(
            "The model is a copy (`copy.deepcopy`) of one that TRL's `SFTTrainer` was made with, and answers with the weights of that one. "
            "Copy it before the trainer is made, or save it and load it again."
        )


def check_own_adapters(model: Any, peft_config: Any = None) -> None:
    """Raises [`ConsistencyError`] for a loaded model whose adapters would not be trained or saved as expected."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ConsistencyError(
            "The model has an adapter that transformers made (`add_adapter` or `load_adapter`), which the trainer does not see: parts "
            "of it would not be trained, and the model card would not mention it. Give the trainer a `peft_config`, or a model from "
            "`get_peft_model` or `PeftModel.from_pretrained(..., is_trainable=True)`."
        )
    is_adapter = isinstance(model, PeftModel | PeftMixedModel)
    if not is_adapter and any(isinstance(part, BaseTunerLayer | AuxiliaryTrainingWrapper) for part in model.modules()):
        raise ConsistencyError(
            "The model still holds the layers of an earlier adapter (PEFT changes the model itself), and they would not be saved. "
            "Load the model again, or take them out with the adapter's `unload()`."
        )
    faults = {"is a `PeftMixedModel`, which cannot be saved": isinstance(model, PeftMixedModel)}
    if peft_config is not None:
        faults["has an adapter already, and `peft_config` would make another"] = isinstance(model, PeftModel)
    if isinstance(model, PeftModel):
        check_adapter_config(OF_MODEL, model.active_peft_config)
        _check_kind(OF_MODEL, model.active_peft_config)
        check_adapter_is_there(model)
        check_scales(scaled_layers(model))
        check_head(model, "The model has")
        if list(model.peft_config) != ["default"] and len(model.peft_config) == 1:
            raise ConsistencyError(
                f"The model's adapter is called `{model.active_adapters[0]}`, so PEFT saves it in a subfolder of that name. Best checkpoints, "
                "commands and readers of the model card do not look there. Load it without `adapter_name`."
            )
        faults["has several adapters, and others than `default` are active"] = len(
            model.peft_config
        ) > 1 and model.active_adapters != ["default"]
        faults["has its adapter merged into the base weights"] = any(
            isinstance(module, BaseTunerLayer) and module.merged for module in model.modules()
        )
        if unsaved := _unsaved_base_weights(model):
            raise ConsistencyError(
                f"The model trains weights of its base (such as {unsaved[0]}) that are not saved with its adapter, and would be lost. "
                "Freeze them (`requires_grad_(False)`), or make the adapter with `modules_to_save`."
            )
    for fault, is_there in faults.items():
        if is_there:
            raise ConsistencyError(
                f"The model {fault}. Give the trainer a model with one adapter, or merge it (`merge_and_unload`), save the whole, load "
                "that, and give a new `peft_config`."
            )
    if peft_config is not None:
        check_adapter_fits(model, peft_config)


def check_adapter_is_there(model: Any) -> None:
    """Raises [`ConsistencyError`] for a `PeftModel` whose adapter was taken out of its layers."""
    if not isinstance(model, PeftModel) or isinstance(model.active_peft_config, PromptLearningConfig):
        return
    if not any(isinstance(part, BaseTunerLayer | AuxiliaryTrainingWrapper) for part in model.modules()):
        raise ConsistencyError(
            "The model's adapter was merged into its base or taken out (`merge_and_unload()`, `unload()`), so that a saved adapter would "
            "be empty. Save what that method returned (`save_pretrained`), or load the adapter again."
        )


def is_adapter_off(model: Any) -> bool:
    """Whether a `PeftModel` runs without the adapter that a trainer trains: it is switched off, has another scale, or others are active."""
    if (fault := _adapter_fault(model)) is not None:
        return fault != MERGED
    return bool(changed_scales(scaled_layers(model)))


def check_adapter_is_on(model: Any, in_training: bool = True) -> None:
    """Raises [`ConsistencyError`] for a `PeftModel` whose own adapter the next step, or (else) a training, would not train."""
    if fault := _adapter_fault(model):
        what = f"a callback left it {fault} at its end" if in_training else f"it is {fault} first"
        raise ConsistencyError(f"No step would train the model's adapter: {what}.")


def check_adapter_of_reference(model: Any) -> None:
    """Raises [`ConsistencyError`] for a `PeftModel` whose adapter belongs to the reference, and does not act or is merged."""
    if fault := _adapter_fault(model):
        raise ConsistencyError(
            f"The reference is the model as it was before training, with its adapter, and that is {fault} before an evaluation or "
            "`generate_targets()`. `trl-consistency evaluate` measures a model with and without adapters."
        )
    check_scales(scaled_layers(model))


def check_scales(layers: Iterable[ScaledLayer]) -> None:
    """Raises [`ConsistencyError`] if the adapter of a layer acts with another scale than it would after it was saved."""
    if changed := changed_scales(layers):
        name, now, of_config = changed[0]
        raise ConsistencyError(
            f"The scale of the model's adapter was changed (`set_scale`, `rescale_adapter_scale`): it is {now:.4g} at {name}, and "
            f"{of_config:.4g} by its config. A saved adapter has the scale of its config. Make the adapter with another `lora_alpha`, or put "
            "the scale back (`set_scale(adapter, 1)`)."
        )


def _adapter_fault(model: Any) -> str | None:
    """Returns what keeps the adapter of a `PeftModel` that a trainer trains from acting beside its base, and the way out."""
    if not isinstance(model, PeftModel):
        return None
    if isinstance(model.active_peft_config, PromptLearningConfig):  # PEFT then calls the base model in its place
        is_off = getattr(model.forward, "__self__", None) is model.base_model
        return "switched off (`disable_adapter()`). Leave its context" if is_off else None
    for part in model.modules():
        if not isinstance(part, BaseTunerLayer | AuxiliaryTrainingWrapper):
            continue
        if part.disable_adapters:
            return "switched off (`disable_adapter_layers()`). Call `enable_adapter_layers()`"
        if list(part.active_adapters) != ["default"]:
            return "inactive, or not alone (`set_adapter()`). Call `set_adapter('default')`"
        if getattr(part, "merged", False):
            return MERGED
    return None


def _unsaved_base_weights(model: Any) -> list[str]:
    """Returns the names of trainable weights of a model's base, not of its adapter, that PEFT does not save."""
    prefix = getattr(model.base_model, "prefix", None)  # in the names of the adapter's own weights
    named = [
        (name, parameter)
        for name, parameter in model.get_base_model().named_parameters()
        if parameter.requires_grad and not (prefix and prefix in name)
    ]
    if not named:
        return []
    saved = {
        weight.data_ptr()
        for weight in get_peft_model_state_dict(model, adapter_name=model.active_adapters[0]).values()
    }
    return [name for name, parameter in named if parameter.data_ptr() not in saved]


def check_adapter_config(whose: str, config: PeftConfig) -> None:
    """
    Raises [`ConsistencyError`] if the config of an adapter (at the place `whose`) is damaged, makes PEFT import a
    package, or changes the base model. The saved adapter alone does not reproduce such a change.
    """
    switches = [name for name in ("use_rslora", "use_dora", "fan_in_fan_out") if hasattr(config, name)]
    faults = [
        f"`{name}` must be true or false, got {getattr(config, name)!r}"
        for name in switches
        if not isinstance(getattr(config, name), bool)
    ]
    for name, lowest in (
        ("r", min(1, getattr(type(config), "r", 1) or 0)),
        ("lora_alpha", -math.inf),
        ("lora_dropout", 0),
    ):
        value = getattr(config, name, lowest)
        if value is None and getattr(type(config), name, None) is None:  # the default of a kind that takes none
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (math.isfinite(value) or value == lowest)
        ):
            faults.append(f"`{name}` must be a number, got {value!r}")
        elif value < lowest:
            faults.append(f"`{name}` must be at least {lowest}, got {value!r}")
    if config.task_type not in (None, "CAUSAL_LM"):
        faults.append(f"`task_type` is {config.task_type}, of an adapter that writes no text")
    if faults:
        raise ConsistencyError(f"{whose} is wrong: {faults[0]}.")
    if getattr(config, "megatron_config", None):
        raise ConsistencyError(
            f"{whose}: `megatron_config` and `megatron_core` would import a package, which is not allowed. Remove "
            "them if the adapter works without them."
        )
    if getattr(config, "alora_invocation_tokens", None):
        raise ConsistencyError(
            f"{whose} sets `alora_invocation_tokens`, for which PEFT needs whole prompts: states, and answers after a prompt that is "
            "computed once, would be those of the base model. Use plain LoRA."
        )
    init = str(getattr(config, "init_lora_weights", None)).lower()
    changes = next((name for name in ("layer_replication", "kasa_config") if getattr(config, name, None)), None)
    if changes or init.startswith(CHANGE_BASE):
        raise ConsistencyError(
            f"{whose}: `{changes or 'init_lora_weights'}` changes the base model itself, in a way that switching the adapter off does not undo, or "
            "loading it again does not repeat. Leave it out for a new adapter, and merge a trained one into its base model "
            "(`merge_and_unload`)."
        )


def no_states(peft_config: PromptLearningConfig) -> ConsistencyError:
    """Returns the error for comparing states inside the blocks with a learned prompt."""
    kind = getattr(peft_config.peft_type, "value", peft_config.peft_type)
    return ConsistencyError(
        f"Objectives on hidden states cannot train a learned prompt ({kind}): the blocks run without PEFT's own "
        "forward, which alone puts it before the text. Use LoRA, train the whole model, or compare answers only (`method` "
        "bct or kl, without `log_consistency_metrics`)."
    )


def check_no_other_adapter(model: Any) -> None:
    """
    Raises [`ConsistencyError`] for a `PeftModel` in whose base model the adapter of another one acts. PEFT changes the base
    itself: the second `PeftModel` that is made of it switches the first's adapter off, or replaces it under the same name. Also
    raises it for a copy that computes with another model's weights.
    """
    check_runs_itself(model)
    if not isinstance(model, PeftModel):
        return
    tuner, base, own = model.base_model, model.get_base_model(), set(model.active_adapters)
    made = {_place(name) for name in getattr(tuner, "targeted_module_names", ())}
    made |= {_place(name.rpartition(".")[0]) for name in getattr(tuner, "targeted_parameter_names", ())}
    # What these wrap is not named there.
    wrappers = tuple(f"{name}." for name, of in base.named_modules() if isinstance(of, AuxiliaryTrainingWrapper))
    for name, layer in base.named_modules():
        if not isinstance(layer, BaseTunerLayer) or layer.disable_adapters or name.startswith(wrappers):
            continue
        if getattr(layer, "tied_adapter", None):  # of a head that shares the embeddings, whose layer is checked
            continue
        acting = {
            of
            for of in layer.active_adapters
            for weights in layer.adapter_layer_names
            if of in getattr(layer, weights, ())
        }
        if acting - own or (acting and _place(name) not in made):
            raise ConsistencyError(
                f"A second `PeftModel` was made of the same base model, and its adapter ({', '.join(sorted(acting))}, in {name}) acts in this one: "
                "PEFT changes the base model itself. Load the base model again for each, or load the adapters into one `PeftModel` with "
                "`load_adapter`."
            )


def _place(name: str) -> str:
    """Returns the name of a layer without what FSDP, checkpointing and PEFT itself put around it."""
    return ".".join(part for part in name.split(".") if not part.startswith("_") and part != "base_layer")


def warn_of_adapter(model: Any) -> None:
    """Warns of a base model into which PEFT has put an adapter, and which is given in place of the `PeftModel` around it."""
    if (
        isinstance(model, PeftModel)
        or getattr(model, "_hf_peft_config_loaded", False)
        or not hasattr(model, "modules")
    ):
        return
    layers = (module for module in model.modules() if isinstance(module, BaseTunerLayer))
    if any(layer.active_adapters and not layer.disable_adapters for layer in layers):
        warnings.warn(
            "The model contains an adapter and answers with it: `PeftModel.from_pretrained` and `get_peft_model` put the adapter into "
            "the model itself. For the answers without it, load the model again, or evaluate it before.",
            stacklevel=3,
        )

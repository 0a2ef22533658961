"""Checks a model's folder, its config and its new adapter before any weights load."""

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from peft import PeftConfig, PeftMixedModel, PeftModel, PromptLearningConfig, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME

from ..config.types import check_keys
from ..errors import ConsistencyError, one_line
from ..json_files import fault_in
from ..weight_files import ADAPTER_CONFIG, folder_of, shapes_in
from .architecture import check_adapter_fits, check_architecture
from .config_changes import OF_TRAINING


# Adapters that need task ids, experts, states of another model, or calls in each step.
NEED_MORE = ("ADALORA", "ADAPTION_PROMPT", "CARTRIDGE", "MULTITASK_PROMPT_TUNING", "POLY", "SHADOW", "XLORA")
NEED_DATA = ("eva", "lora_ga")  # for their initialisation
CHANGE_BASE = ("pissa_niter", "corda", "loftq")  # by their initialisation, which is random or depends on data

DTYPES = (None, "auto", "bfloat16", "float16", "float32")

# Options of `from_pretrained` that are not keys of the config
LOADING = (
    *("allow_all_kernels", "attn_implementation", "cache_dir", "code_revision", "device_map", "device_mesh", "dtype"),
    *("distributed_config", "experts_implementation", "force_download", "fusion_config", "kernel_config"),
    *("local_files_only", "low_cpu_mem_usage", "max_memory", "offload_buffers", "offload_folder", "proxies"),
    *("quantization_config", "revision", "token", "torch_dtype", "tp_plan", "tp_size", "trust_remote_code"),
    *("use_cache", "use_kernels", "use_safetensors", "variant", "weights_only"),
)
# Options that would load other weights than those in the checked files, or random ones
OTHER_WEIGHTS = (
    *("adapter_kwargs", "adapter_name", "config", "generation_config", "gguf_file", "ignore_mismatched_sizes"),
    *("key_mapping", "state_dict", "subfolder"),
)


def check_model(model: Any, args: Any, peft_config: Any = None, quantization_config: Any = None) -> int | None:
    """
    Checks a model before it is loaded, and its new adapter. The arguments are the trainer's; the weights of a loaded
    model are not checked. Changes `model_init_kwargs` in `args` to refuse pickled weights.

    Returns the size of the vocabulary, or None if the config does not state it.
    """
    if isinstance(peft_config, PromptLearningConfig) and getattr(args, "compares_states", False):
        raise no_states(peft_config)
    if peft_config is not None:
        _check_new_adapter(peft_config)
    if not isinstance(model, str):
        check_own_adapters(model, peft_config)
        _check_routers(model.config, args)
        return getattr(model.config.get_text_config(), "vocab_size", None)
    options = args.model_init_kwargs or {}
    if not isinstance(dtype := options.get("dtype"), torch.dtype) and dtype not in DTYPES:
        raise ConsistencyError(f"`dtype` is {dtype}: it can be auto, bfloat16, float16 or float32.")
    if options.get("use_safetensors") is False:
        raise ConsistencyError(
            "`model_init_kwargs` sets `use_safetensors: false`: pickled weights are not loaded, since they could run code."
        )
    for key in OTHER_WEIGHTS:
        if options.get(key) not in (None, False):
            raise ConsistencyError(
                f"`model_init_kwargs` sets `{key}`, by which the model could be another than its files are. Leave it out, and "
                "save the model that you mean in a folder of its own."
            )
    args.model_init_kwargs = {**options, "use_safetensors": True}
    if quantization_config is not None and peft_config is None:
        raise ConsistencyError(
            "`quantization_config` needs a `peft_config`: quantized weights cannot be trained themselves."
        )
    check_model_folder(model, options.get("revision"))
    changes = [key for key in options if key not in LOADING]
    try:
        config = load_config(model, options.get("revision"), args.trust_remote_code, options)
        check_architecture(model, config, options.get("attn_implementation"), peft_config)
    except ConsistencyError as error:
        if not changes:
            raise
        raise ConsistencyError(f"{error} (`model_init_kwargs` changes its config: {', '.join(changes)}.)") from None
    unknown = [key for key in changes if not hasattr(config, key)]
    check_keys("model_init_kwargs", unknown, {*LOADING, *OTHER_WEIGHTS, *config.to_dict()})
    not_kept = [key for key in changes if key not in OF_TRAINING]
    if not_kept and peft_config is not None:
        raise ConsistencyError(
            f"`model_init_kwargs` changes the model's config ({', '.join(not_kept)}), which an adapter does not keep: it would be put "
            "on the model as its files are. Change config.json in a copy of the model, and name that."
        )
    _check_routers(config, args)
    return getattr(config.get_text_config(), "vocab_size", None)


def _check_routers(config: PreTrainedConfig, args: Any) -> None:
    coefficient = getattr(args, "router_aux_loss_coef", None)
    if coefficient and not hasattr(config.get_text_config(), "output_router_logits"):
        raise ConsistencyError(
            f"`router_aux_loss_coef` is {coefficient}, but the model ({config.model_type}) has no router logits: the "
            "option is for mixtures of experts. Leave it out."
        )


def load_config(
    model: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
    model_init_kwargs: dict[str, Any] | None = None,
) -> PreTrainedConfig:
    """
    Returns the config of a model, changed by `model_init_kwargs`. Raises [`ConsistencyError`] if it is damaged, needs code of
    the model, or asks for more layers than the weights have.
    """
    changes = {key: value for key, value in (model_init_kwargs or {}).items() if key not in LOADING}
    _check_layers(model, changes)
    try:
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code, **changes)
    except Exception as error:  # faults in the file have no common error type
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise ConsistencyError(
                f"{model} contains Python code (`auto_map` in config.json), which is not run. If you trust it, set "
                "`trust_remote_code: true`."
            ) from None
        reason = fault_in(Path(model) / CONFIG_NAME) or one_line(error)
        raise ConsistencyError(f"{model} cannot be loaded: {reason}") from None
    if not trust_remote_code:
        _check_kernels(model, config)
    return config


def _check_kernels(model: str, config: PreTrainedConfig) -> None:
    """Raises [`ConsistencyError`] if a config names code on the Hub as an implementation."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for option in ("attn_implementation", "experts_implementation"):
            kernel = getattr(part, f"_{option}", None)
            if "/" in str(kernel or ""):
                raise ConsistencyError(
                    f"{model}: `{option}` in config.json is {kernel}, code on the Hub, which is not run. Take it "
                    "out of the file and name the one that you want in `attn_implementation`, or set "
                    "`trust_remote_code: true` if you trust it."
                )


def _check_layers(folder: str, changes: dict[str, Any]) -> None:
    """
    Raises [`ConsistencyError`] if the config in a folder asks for more layers than the weights have. Reads the file
    itself: the memory that transformers' config needs grows with this number.
    """
    files = sorted(Path(folder).glob("*.safetensors")) if os.path.isdir(folder) else []
    names = [name for file in files for name in shapes_in(file)]
    try:
        content = json.loads((Path(folder) / CONFIG_NAME).read_text(encoding="utf-8")) if names else None
    except (OSError, ValueError, RecursionError):
        return  # transformers reports what is wrong
    stored = 1 + max((int(part) for name in names for part in name.split(".") if part.isdecimal()), default=-1)
    parts = [{**content, **changes}] if isinstance(content, dict) else []
    for part in parts:  # grows: multimodal models have nested configs
        parts += [value for value in part.values() if isinstance(value, dict)]
        for key in ("num_hidden_layers", "num_layers", "n_layers", "n_layer"):
            if isinstance(layers := part.get(key), int) and layers > stored:
                raise ConsistencyError(
                    f"{folder}: config.json asks for {layers} layers (`{key}`), and the weights have {stored}. "
                    "Download or copy both again."
                )


def _check_new_adapter(config: Any) -> None:
    """Raises [`ConsistencyError`] for a `peft_config` that a trainer cannot train or initialise."""
    if not isinstance(config, PeftConfig):
        raise ConsistencyError(
            f"`peft_config` must be a config of PEFT, such as `LoraConfig`, got `{type(config).__name__}`."
        )
    check_adapter_config("`peft_config`", config)
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind in NEED_MORE:
        raise ConsistencyError(
            f"`peft_config` is of the type {kind}, which needs more from a trainer than the gradients of a "
            "loss. Use LoRA."
        )
    refused = {name: getattr(config, name, None) for name in ("alora_invocation_tokens", "arrow_config")}
    refused["init_lora_weights"] = init if (init := getattr(config, "init_lora_weights", None)) in NEED_DATA else None
    for name, value in refused.items():
        if value:
            raise ConsistencyError(
                f"`peft_config` sets `{name}`, for which PEFT needs prompts or data that no trainer gives it. Leave it out."
            )


def check_own_adapters(model: Any, peft_config: Any = None) -> None:
    """Raises [`ConsistencyError`] for a loaded model whose adapters would not be trained or saved as expected."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ConsistencyError(
            "The model has an adapter that transformers made (`add_adapter` or `load_adapter`), which is not seen here: parts of "
            "it would not be trained, and the model card would know of none. Give the trainer a `peft_config`, or a model by "
            "`get_peft_model` or `PeftModel.from_pretrained(..., is_trainable=True)`."
        )
    is_adapter = isinstance(model, PeftModel | PeftMixedModel)
    if not is_adapter and any(isinstance(part, BaseTunerLayer | AuxiliaryTrainingWrapper) for part in model.modules()):
        raise ConsistencyError(
            "The model holds the layers of an adapter that was made of it before (PEFT changes the model itself), and what is "
            "saved would not hold them. Load the model again, or take them out with the adapter's `unload()`."
        )
    faults = {"is a `PeftMixedModel`, which cannot be saved": isinstance(model, PeftMixedModel)}
    if peft_config is not None:
        faults["has an adapter already, and `peft_config` would make another"] = isinstance(model, PeftModel)
    if isinstance(model, PeftModel):
        check_adapter_config("The adapter of the model", model.active_peft_config)
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
                f"The model {fault}. Give the trainer a model with one adapter, or `merge_and_unload` it and give a new "
                "`peft_config`."
            )
    if peft_config is not None:
        check_adapter_fits(model, peft_config)


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
    package, or changes the base model, in which case the saved adapter alone does not reproduce the result.
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
    init = str(getattr(config, "init_lora_weights", None)).lower()
    changes = "layer_replication" if getattr(config, "layer_replication", None) else "init_lora_weights"
    if changes == "layer_replication" or init.startswith(CHANGE_BASE):
        raise ConsistencyError(
            f"{whose}: `{changes}` changes the base model itself, in a way that loading the adapter again does not repeat. "
            "Leave it out for a new adapter, and merge a trained one into its base model (`merge_and_unload`)."
        )


def context_length(model: Any, args: Any) -> int | None:
    """Returns the context length of the trainer's `model` in tokens, or None if its config does not state it."""
    if isinstance(model, str):
        options = args.model_init_kwargs or {}
        config = load_config(model, options.get("revision"), args.trust_remote_code, options)
    else:
        config = model.config
    return context_of(config)


def context_of(config: PreTrainedConfig) -> int | None:
    """Returns the context length of a config in tokens, or None if it is unknown."""
    config = config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    # One set of parameters, or one per layer type
    for part in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        scaled = (part.get("factor") or 1) * (part.get("original_max_position_embeddings") or 0)
        limit = max(limit, int(scaled))
    return limit


def check_model_folder(name: str, revision: str | None = None) -> None:
    """Raises [`ConsistencyError`] if a folder, or the cache when offline, does not hold a complete model."""
    folder = folder_of(name, revision)
    if folder is None:
        return
    if (folder / ADAPTER_CONFIG).is_file():
        raise ConsistencyError(
            f"{name} is an adapter, not a whole model. Load it on its base model with "
            f"`PeftModel.from_pretrained(base_model, {name!r}, is_trainable=True)` and give the trainer that, or merge "
            "it into its base model (`merge_and_unload`), save the whole and name that folder."
        )
    if not os.path.isdir(name) and not constants.HF_HUB_OFFLINE:
        return  # missing files will be downloaded
    check_weights(folder)
    _check_generation_config(folder / GENERATION_CONFIG_NAME)


def _check_generation_config(file: Path) -> None:
    """Raises [`ConsistencyError`] for a damaged file, which sets the end tokens and is otherwise ignored."""
    if not file.exists():
        return
    try:
        ends = GenerationConfig.from_pretrained(file.parent).eos_token_id
    except Exception as error:  # faults in the file have no common error type
        reason = fault_in(file) or one_line(error)
        raise ConsistencyError(f"{file} cannot be read: {reason} Repair it, or delete it.") from None
    if not all(
        isinstance(end, int) for end in (ends if isinstance(ends, list) else [ends] if ends is not None else [])
    ):
        raise ConsistencyError(
            f"{file}: `eos_token_id` must be the number of a token, or a list of them, got {ends!r}."
        )


def check_reference_files(ref_model: str, trust_remote_code: bool) -> None:
    """Raises [`ConsistencyError`] if the files of a reference model are invalid."""
    check_model_folder(ref_model)
    check_architecture(ref_model, load_config(ref_model, None, trust_remote_code))


def check_weights(folder: str | Path) -> None:
    """Raises [`ConsistencyError`] if the weights in a folder are missing, pickled or incomplete."""
    files = sorted(Path(folder).glob("*.safetensors"))
    pickles = sorted(Path(folder).glob("*model*.bin"))
    if pickles and not files:
        name = pickles[0].name
        kind, convert = ("weights", "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)")
        if name.startswith("adapter"):
            kind, convert = "adapter", "PeftModel.from_pretrained(base_model, folder).save_pretrained(new_folder)"
        raise ConsistencyError(
            f"{folder} holds its {kind} as a pickle ({name}), which is not loaded: it could run code. If you trust it, "
            f"convert it to safetensors: `{convert}`."
        )
    index = Path(folder) / SAFE_WEIGHTS_INDEX_NAME
    if not files and not index.is_file():
        for gguf in sorted(Path(folder).glob("*.gguf")):
            raise ConsistencyError(
                f"{folder} holds its weights as a GGUF file ({gguf.name}), which cannot be trained. Write a checkpoint of it, "
                "dequantised, and name that: `from trl_consistency.smollm2.checkpoint import convert_gguf; "
                "convert_gguf(file, new_folder)`."
            )
        raise ConsistencyError(f"{folder} holds no weights: there is no model.safetensors.")
    if index.is_file():
        _check_index(index)
    for file in files:
        shapes_in(file)


def check_checkpoint(folder: str, model: Any) -> None:
    """
    Raises [`ConsistencyError`] if the weights of a checkpoint are missing, pickled, incomplete, or do not fit the
    model that resumes from it.
    """
    is_adapter = isinstance(model, PeftModel)
    if is_adapter and model.active_adapters[0] != "default":  # PEFT saves it in a subfolder
        folder = str(Path(folder) / model.active_adapters[0])
    check_weights(folder)
    saved: dict[str, list[int]] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        saved |= shapes_in(file)
    state = (
        get_peft_model_state_dict(model, adapter_name=model.active_adapters[0]) if is_adapter else model.state_dict()
    )
    current = {name: list(weight.shape) for name, weight in state.items()}
    differences = [
        f"{name} is {saved[name]} there and {current[name]} here"
        for name in current
        if name in saved and saved[name] != current[name]
    ]
    # A whole model may have other names in the file, and tied weights only once.
    if is_adapter or not current.keys() & saved.keys():
        differences += [f"{name} is not here" for name in saved if name not in current]
        differences += [f"{name} is not there" for name in current if name not in saved]
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise ConsistencyError(
            f"`resume_from_checkpoint`: {folder} is of another model or adapter: {differences[0]}{more}. Resume with the "
            "options of the run that saved it."
        )


def _check_index(index: Path) -> None:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        names = set(content["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        names = set()
    if not names or not all(isinstance(name, str) for name in names):
        raise ConsistencyError(f"{index} is cut short or damaged. Download or copy it again.")
    for name in sorted(names):
        if Path(name).name != name:
            raise ConsistencyError(
                f"{index} names {name}, which is outside the folder: it is not read. Copy the file into the folder."
            )
        if not (index.parent / name).is_file():
            raise ConsistencyError(
                f"{index.parent} lacks {name}, which {SAFE_WEIGHTS_INDEX_NAME} names. Download or copy it again."
            )
    if not isinstance(content.get("metadata"), dict):
        raise ConsistencyError(f"{index} has no `metadata`, which it needs. Download or copy it again.")


def no_states(peft_config: PromptLearningConfig) -> ConsistencyError:
    """Returns the error for comparing states inside the blocks with a learned prompt."""
    kind = getattr(peft_config.peft_type, "value", peft_config.peft_type)
    return ConsistencyError(
        f"Objectives on hidden states cannot train a learned prompt ({kind}): the blocks run without PEFT's own "
        "forward, which alone puts it before the text. Use LoRA, train the whole model, or compare answers only (`method` "
        "bct or kl, without `log_consistency_metrics`)."
    )

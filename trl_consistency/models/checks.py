"""Checks a model, its config and the options that it is loaded with, before any weights load."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftConfig, PromptLearningConfig
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME

from ..config.types import check_keys
from ..errors import ConsistencyError, one_line
from ..json_files import fault_in, object_in
from ..log import get_logger
from ..weight_files import shapes_in
from .adapter_checks import check_new_adapter, check_own_adapters, check_runs_itself, no_states
from .architecture import check_architecture
from .config_changes import OF_TRAINING
from .folder_checks import check_model_folder
from .quantization import check_trainable, quantization_of


logger = get_logger(__name__)

TRAIN_IN_FLOAT32 = (
    "Load the model in float32 (`dtype: float32`, with `bf16: true` or `fp16: true` to compute in 16 bits)."
)
DTYPES = (None, "auto", "bfloat16", "float16", "float32")

NEEDS_CODE = "{} contains Python code (`auto_map` in config.json), which is not run. If you trust it, set `trust_remote_code: true`."

# Options of `from_pretrained` that are not keys of the config
LOADING = (
    *("allow_all_kernels", "attn_implementation", "cache_dir", "code_revision", "device_map", "device_mesh", "dtype"),
    *("distributed_config", "experts_implementation", "force_download", "fusion_config", "kernel_config"),
    *("local_files_only", "low_cpu_mem_usage", "max_memory", "offload_buffers", "offload_folder", "proxies"),
    *("quantization_config", "revision", "token", "torch_dtype", "tp_plan", "tp_size", "trust_remote_code"),
    *("use_cache", "use_kernels", "use_safetensors", "weights_only"),
)
# Options that would load other weights than those in the checked files, or random ones
OTHER_WEIGHTS = (
    *("adapter_kwargs", "adapter_name", "config", "generation_config", "gguf_file", "ignore_mismatched_sizes"),
    *("key_mapping", "state_dict", "subfolder", "variant"),
)


def check_loading(options: Mapping[str, Any]) -> None:
    """Raises [`ConsistencyError`] for `model_init_kwargs` that would load other weights than those in the files, or pickled ones."""
    if not isinstance(dtype := options.get("dtype"), torch.dtype) and dtype not in DTYPES:
        raise ConsistencyError(f"`dtype` is {dtype}: it can be auto, bfloat16, float16 or float32.")
    if options.get("use_safetensors") is False:
        raise ConsistencyError(
            "`model_init_kwargs` sets `use_safetensors: false`: pickled weights are not loaded, since they could run code. Leave it out."
        )
    for key in OTHER_WEIGHTS:
        if options.get(key) not in (None, False):
            raise ConsistencyError(
                f"`model_init_kwargs` sets `{key}`, which could make the model differ from its files. Leave it out, and "
                "save the model that you mean in a folder of its own."
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
        check_new_adapter(peft_config)
    refuse_old_names(args.model_init_kwargs or {})
    if not isinstance(model, str):
        if hasattr(model, "_orig_mod"):
            raise ConsistencyError(
                "`model` was compiled (`torch.compile`), and would be saved with weights under other names than the model's. Give the "
                "model itself; `torch_compile: true` compiles it where that is possible."
            )
        if quantization_config is not None:
            raise ConsistencyError(
                "`quantization_config` is given, and `model` is loaded already, so that it would stay as it is. Load the model with it, or "
                "give the model's name."
            )
        check_runs_itself(model)
        check_own_adapters(model, peft_config)
        _check_routers(model.config, args)
        check_trainable(quantization_of(model))
        return getattr(model.config.get_text_config(), "vocab_size", None)
    options = args.model_init_kwargs or {}
    check_loading(options)
    args.model_init_kwargs = {**options, "use_safetensors": True}
    if options.get("dtype") in ("float16", torch.float16) and peft_config is None:
        raise ConsistencyError(
            "`dtype` is float16, and whole weights are trained: squares of small gradients are 0 in it, so that AdamW's steps are many times "
            f"too large. {TRAIN_IN_FLOAT32}"
        )
    if quantization_config is not None and peft_config is None:
        raise ConsistencyError(
            "`quantization_config` needs a `peft_config`: quantized weights cannot be trained themselves."
        )
    check_model_folder(model, options.get("revision"))
    changes = [key for key in options if key not in LOADING]
    try:
        config = config_of(model, args)
        check_architecture(model, config, options.get("attn_implementation"), peft_config)
    except ConsistencyError as error:
        if not changes:
            raise
        raise ConsistencyError(f"{error} (`model_init_kwargs` changes its config: {', '.join(changes)}.)") from None
    if quantization_config is None and options.get("quantization_config") is None:
        check_trainable(getattr(config, "quantization_config", None) or {})
    unknown = [key for key in changes if not hasattr(config, key)]
    check_keys("model_init_kwargs", unknown, {*LOADING, *OTHER_WEIGHTS, *config.to_dict()})
    not_kept = [key for key in changes if key not in OF_TRAINING]
    if not_kept and peft_config is not None:
        raise ConsistencyError(
            f"`model_init_kwargs` changes the model's config ({', '.join(not_kept)}). An adapter does not save this change: it would "
            "be loaded onto the unchanged model. Change config.json in a copy of the model, and name that."
        )
    _check_routers(config, args)
    return getattr(config.get_text_config(), "vocab_size", None)


def refuse_old_names(init_kwargs: Mapping[str, Any]) -> None:
    """Raises [`ConsistencyError`] for an option of `from_pretrained` by a name that does nothing beside the one of today."""
    if init_kwargs.get("torch_dtype") is not None:
        raise ConsistencyError(
            "`model_init_kwargs` sets `torch_dtype`, which would be ignored: it is called `dtype` now."
        )


def has_routers(config: PreTrainedConfig) -> bool:
    """Whether a model can return router logits. Dense models of Granite 4 have the config of its mixtures, with 0 experts."""
    text_config = config.get_text_config()
    return hasattr(text_config, "output_router_logits") and getattr(text_config, "num_local_experts", None) != 0


def _check_routers(config: PreTrainedConfig, args: Any) -> None:
    coefficient = getattr(args, "router_aux_loss_coef", None)
    if coefficient and not has_routers(config):
        raise ConsistencyError(
            f"`router_aux_loss_coef` is {coefficient}, but the model ({config.model_type}) has no router logits: the "
            "option is for mixtures of experts. Leave it out."
        )
    if coefficient is None and has_routers(config):
        coefficient = getattr(config.get_text_config(), "router_aux_loss_coef", 0.0)
    if coefficient and getattr(args, "label_smoothing_factor", 0):
        raise ConsistencyError(
            f"With `label_smoothing_factor`, TRL does not train on the load-balancing loss of the routers (`router_aux_loss_coef` is "
            f"{coefficient}). Leave it out, or set `router_aux_loss_coef: 0`."
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
            raise ConsistencyError(NEEDS_CODE.format(model)) from None
        file = Path(model) if os.path.isfile(model) else Path(model) / CONFIG_NAME
        reason = fault_in(file) or one_line(error)
        if (content := object_in(file)) is not None and "model_type" not in content:
            reason = (
                f'{file.name} has no `model_type`, which says what kind of model it is. Add it, for example `"qwen3"`.'
            )
        raise ConsistencyError(f"{model} cannot be loaded: {reason}") from None
    if not trust_remote_code:
        _check_kernels(model, config)
        if _own_classes(config) and not _has_known_class(config):
            raise ConsistencyError(NEEDS_CODE.format(model))
    elif _own_classes(config) and _has_known_class(config):
        logger.warning_once(
            f"{model} brings its own code for `{config.architectures[0]}`. transformers has a class of that name, and that one is loaded, as in TRL, "
            "although `trust_remote_code` is set. If the code computes something else, rename its class."
        )
    return config


def _own_classes(config: PreTrainedConfig) -> bool:
    """Whether a model brings code for its class. (`AutoConfig` alone is code for its config.)"""
    return any(name.startswith("AutoModel") for name in getattr(config, "auto_map", None) or {})


def _has_known_class(config: PreTrainedConfig) -> bool:
    """Whether transformers has a class of the model's name, which TRL looks for first: code of the model's own is not run then."""
    return not config.architectures or hasattr(transformers, str(config.architectures[0]))


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
    content = object_in(Path(folder) / CONFIG_NAME) if names else None  # transformers reports one that cannot be read
    stored = 1 + max((int(part) for name in names for part in name.split(".") if part.isdecimal()), default=-1)
    parts = [] if content is None else [{**content, **changes}]
    for part in parts:  # grows: multimodal models have nested configs
        parts += [value for value in part.values() if isinstance(value, dict)]
        for key in ("num_hidden_layers", "num_layers", "n_layers", "n_layer"):
            if isinstance(layers := part.get(key), int) and layers > stored:
                raise ConsistencyError(
                    f"{folder}: config.json asks for {layers} layers (`{key}`), and the weights have {stored}. "
                    "Download or copy both again."
                )


def config_of(model: Any, args: Any) -> PreTrainedConfig:
    """Returns the config of the trainer's `model`, which may be a name."""
    if not isinstance(model, str):
        return model.config
    options = args.model_init_kwargs or {}
    return load_config(model, options.get("revision"), args.trust_remote_code, options)


def context_of(model: PreTrainedModel | PreTrainedConfig, peft_config: PeftConfig | None = None) -> int | None:
    """
    Returns the context length of a model or config in tokens, or None if it is unknown. A learned prompt, that of the model or of
    `peft_config`, takes a part of it.
    """
    learned = getattr(peft_config or getattr(model, "active_peft_config", None), "num_virtual_tokens", None) or 0
    config = getattr(model, "config", model).get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    # One set of parameters, or one per layer type
    for part in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        scaled = (part.get("factor") or 1) * (part.get("original_max_position_embeddings") or 0)
        limit = max(limit, int(scaled))
    return limit - learned


def check_reference_files(ref_model: str, trust_remote_code: bool) -> None:
    """Raises [`ConsistencyError`] if the files of a reference model are invalid."""
    check_model_folder(ref_model)
    check_architecture(ref_model, load_config(ref_model, None, trust_remote_code))

"""Builds a model on the meta device from its config, and checks whether its stored weights and an adapter fit."""

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
import transformers
from peft import PeftModel, PromptLearningConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import logging

from ..errors import ConsistencyError, one_line
from ..weight_files import folder_of, stored_in, weight_files
from .checkpoint_weights import with_published_names


def check_architecture(
    name: str, config: PreTrainedConfig, attention: str | None = None, peft_config: Any = None
) -> PreTrainedModel | None:
    """
    Returns a model on the meta device without its adapter, or None if it uses its own code. Checks its architecture,
    its stored weights and a new adapter: loading would initialise missing weights at random and ignore unexpected
    ones. `attention` is the requested attention implementation.
    """
    architecture = _architecture(name, config)
    if architecture is None:
        return None
    config = deepcopy(config)
    if attention is not None:
        config._attn_implementation = attention
    try:
        with torch.device("meta"):
            model = architecture(config)
    except Exception as error:  # errors in a config have no common type
        raise ConsistencyError(f"{name} cannot be loaded: {_explain(error)}") from None
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        _check_weights(name, deepcopy(model))
    else:
        _check_quantization(name, quantization)
    if peft_config is not None:
        check_adapter_fits(model, peft_config)
    return model


def check_adapter_fits(model: PreTrainedModel, peft_config: Any) -> None:
    """Raises [`ConsistencyError`] if a new adapter does not fit a model. Only the model's config is used."""
    if isinstance(peft_config, PromptLearningConfig):
        return
    given, peft_config = peft_config, deepcopy(peft_config)
    if hasattr(peft_config, "init_lora_weights"):
        peft_config.init_lora_weights = False  # other initialisations read the weights
    try:
        with torch.device("meta"):
            bare = type(model)(deepcopy(model.config))
        modules = [name for name, _ in bare.named_modules()]
        adapted = get_peft_model(bare, peft_config)
    except NotImplementedError:
        return  # this adapter cannot be built on the meta device
    except Exception as error:  # each kind of adapter raises different errors
        raise ConsistencyError(f"`peft_config` does not fit the model: {one_line(error)}") from None
    layers, parameters = (
        [f".{name}" for name in getattr(adapted, f"targeted_{kind}_names", ())] for kind in ("module", "parameter")
    )
    in_model: dict[tuple[str, str], tuple[list[str], Callable[[str, Any], bool]]] = {
        ("target_modules", "layer"): (layers, lambda of, name: of.endswith(f".{name}")),
        ("target_parameters", "parameter"): (parameters, lambda of, name: of.endswith(f".{name}")),
        ("layers_to_transform", "block"): (layers, lambda of, name: f".{name}." in of),
        ("modules_to_save", "module"): (modules, lambda of, name: of.endswith(name)),
        ("exclude_modules", "module"): (modules, lambda of, name: f".{of}".endswith(f".{name}")),
        ("rank_pattern", "layer"): ([*layers, *parameters], _is_of_pattern),
        ("alpha_pattern", "layer"): ([*layers, *parameters], _is_of_pattern),
    }
    for (option, kind), (found, is_called) in in_model.items():
        wanted = getattr(given, option, None)
        names = sorted(wanted) if found and isinstance(wanted, list | set | tuple | dict) else ()
        missing = [str(name) for name in names if not any(is_called(of, name) for of in found)]
        if missing:  # no error, as lists for models of several kinds are common
            warnings.warn(
                f"No {kind} of {type(model).__name__} is called {' or '.join(missing)}, as `{option}` of the adapter says. "
                "Such a name has no effect.",
                stacklevel=2,
            )
    check_head(adapted, "`peft_config` puts")


def _is_of_pattern(layer: str, key: str) -> bool:
    return re.match(rf"(.*\.)?({key})$", layer[1:]) is not None  # as PEFT matches it, without the dot in front


def check_head(model: PeftModel, whose: str) -> None:
    """Raises [`ConsistencyError`] for an adapter on the head, which `whose` names. Losses read the head's weights themselves."""
    head = model.get_output_embeddings()
    if not isinstance(head, BaseTunerLayer):
        return
    way_out = "Remove `lm_head` from `target_modules`."
    if getattr(head, "tied_adapter", None) is not None:
        way_out = (
            "The head is tied to the embeddings, so that `TrainableTokensConfig` puts one on both. Train the tokens with "
            "`LoraConfig` and its `trainable_token_indices` instead."
        )
    elif getattr(model.active_peft_config, "ensure_weight_tying", False):
        way_out = "The head is tied to the embeddings. Leave `ensure_weight_tying` out."
    raise ConsistencyError(
        f"{whose} an adapter on the language modelling head, whose weights the loss reads directly: it would not be "
        f"trained. {way_out}"
    )


def _explain(error: Exception) -> str:
    """Returns an error's message, with its type if the message alone is unclear."""
    if isinstance(error, ImportError | RuntimeError | ValueError):
        return one_line(error)
    return f"config.json does not describe a valid model ({type(error).__name__}: {one_line(error)})."


def _architecture(model: str, config: PreTrainedConfig) -> Any:
    """Returns the class that TRL will load, or None if the model uses its own code."""
    if not config.architectures:
        raise ConsistencyError(
            f"{model}: config.json has no `architectures`, which say what class the model is. Add them, for example "
            '`["Qwen3ForCausalLM"]`.'
        )
    name = config.architectures[0]
    if not isinstance(config.architectures, list) or not isinstance(name, str):
        raise ConsistencyError(
            f'{model}: `architectures` in config.json must be a list of one name, such as `["Qwen3ForCausalLM"]`, got '
            f"{config.architectures!r}."
        )
    architecture = getattr(transformers, name, None)
    if config.is_encoder_decoder:
        raise ConsistencyError(f"{model} is a `{name}`, an encoder-decoder. Use a decoder-only model.")
    if architecture is None:
        if getattr(config, "auto_map", None):
            return None
        raise ConsistencyError(
            f"{model}: config.json names the class `{name}`, which transformers does not have. Correct `architectures` there, or use a "
            "transformers that has it."
        )
    is_model = isinstance(architecture, type) and issubclass(architecture, PreTrainedModel)
    if not is_model:
        raise ConsistencyError(
            f"{model}: config.json names the class `{name}`, which is not a model's. Correct `architectures` there."
        )
    if not architecture.can_generate():
        raise ConsistencyError(
            f"{model} is a `{name}`, which does not generate text. Use a model that does (`...ForCausalLM`)."
        )
    if not isinstance(config, architecture.config_class):
        raise ConsistencyError(
            f"{model}: config.json names the class `{name}`, which does not match its `model_type`, "
            f"{config.model_type}. Correct the one or the other."
        )
    return architecture


def _check_quantization(name: str, config: Any) -> None:
    """Raises [`ConsistencyError`] if the quantization is unknown, or its packages or devices are missing."""
    try:
        AutoHfQuantizer.from_config(deepcopy(config), pre_quantized=True).validate_environment()
    except Exception as error:  # each quantizer raises different errors
        raise ConsistencyError(f"{name}: its quantized weights cannot be loaded: {one_line(error)}") from None


def _check_weights(name: str, model: PreTrainedModel) -> None:
    """
    Raises [`ConsistencyError`] if the stored weights of a model do not match its config. transformers loads them on
    the meta device, so that it renames them and joins the experts' weights as usual.
    """
    folder = folder_of(name, getattr(model.config, "_commit_hash", None))
    files = [] if folder is None else weight_files(folder)
    saved = {weight: facts for file in files if file.exists() for weight, facts in stored_in(file).items()}
    if not files or (not os.path.isdir(name) and not all(file.exists() for file in files)):
        return  # the rest will be downloaded
    held = with_published_names(model, model.state_dict().items())
    tables = {weight for weight, tensor in held if not tensor.is_floating_point()}
    for weight, (dtype, _) in saved.items():
        if weight not in tables and (not dtype.startswith(("F", "BF")) or dtype.startswith("F8")):
            raise ConsistencyError(
                f"{name}: the weights {weight} are stored as {dtype}, and config.json has no `quantization_config` that says "
                "what they mean. Download or copy both again."
            )
    state = {weight: torch.empty(shape, device="meta") for weight, (_, shape) in saved.items()}
    loading = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=get_model_conversion_mapping(model))
    with _no_progress_bar():
        info, _ = convert_and_load_state_dict_in_model(model, state, loading)
    model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(info)
    if info.conversion_errors:
        raise ConsistencyError(
            f"{name}: the parts of {_listed(info.conversion_errors)} do not fit together: one is missing, or has "
            "another shape. Download or copy the model again."
        )
    if info.missing_keys:
        raise ConsistencyError(
            f"{name} lacks {_listed(info.missing_keys)}, which config.json asks for. Download or copy the model again."
        )
    if info.mismatched_keys:
        weight, stored, expected = min(info.mismatched_keys)
        raise ConsistencyError(
            f"{name}: the weights do not match config.json, which asks for {list(expected)} in "
            f"{_listed([names[0] for names in info.mismatched_keys])}: it is {list(stored)} there. Download or copy "
            "both again."
        )
    unused = [weight for weight in info.unexpected_keys if _belongs(weight, model)]
    if unused:
        raise ConsistencyError(
            f"{name}: config.json has no place for {_listed(unused)}, which would be left out. Download or copy both "
            "again."
        )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _listed(names: Collection[str]) -> str:
    return sorted(names)[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _belongs(name: str, model: PreTrainedModel) -> bool:
    """
    Whether unexpected weights belong to a layer, existing or missing. Others are unused parts, such as a vision tower,
    or buffers that the model computes.
    """
    if name in dict(model.named_buffers()) or name.endswith("inv_freq"):
        return False
    layers = [layer for layer, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]
    return any(name.startswith(f"{layer}.") for layer in layers)

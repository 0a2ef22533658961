"""Models to measure: a base model, and adapters that come on it and go."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from accelerate import PartialState
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.utils.constants import EMBEDDING_LAYER_NAMES
from transformers import BitsAndBytesConfig, PreTrainedConfig

from ..config.device import announce_cpu, asks_for_bf16
from ..data.rendering import ProcessingClass, get_tokenizer, load_processing_class
from ..errors import ConsistencyError, one_line
from ..escaping import printable
from ..finite import NotFiniteError, check_files
from ..generation.options import without_router_loss
from ..json_files import fault_in
from ..upstream import create_model_from_path
from ..weight_files import ADAPTER_CONFIG, shapes_in
from .architecture import check_architecture
from .checks import check_adapter_config, check_model_folder, check_weights, load_config
from .embedded import resolve_model
from .finite_weights import check_base
from .quantization import keep_layout


BASE = "base"  # what results call the model before training


def load_model(
    name: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
    quantization_config: BitsAndBytesConfig | None = None,
    cpu_dtype: str | None = None,
) -> tuple[Any, Any]:
    """
    A model and its tokenizer or processor: on the accelerator in the precision of its checkpoint, or else on the CPU.

    Args:
        name (`str`):
            A model, `embedded:organism`, `embedded:smollm2`, or the folder of an adapter, as training saves it, which
            stands for its base model with the adapter.
        revision (`str`, *optional*):
            Revision of the model; of an adapter's base model, the adapter says which.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that the model brings along.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            How to quantize its weights.
        cpu_dtype (`str`, *optional*):
            Precision on a CPU: `"float32"`, `"bfloat16"`, `"float16"` or `"auto"`, the checkpoint's. `None` is float32, or
            bfloat16 under `accelerate launch --mixed_precision bf16`. Quantized weights keep the checkpoint's.

    Raises:
        [`ConsistencyError`]: If it cannot be loaded, or its weights are pickled.
    """
    folder = resolve_model(name)
    is_adapter = is_adapter_folder(folder)
    path, revision, _ = check_loadable(name, revision, trust_remote_code)
    processing_class = load_tokenizer(name, revision, trust_remote_code)
    options = {
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "use_safetensors": True,
        "quantization_config": quantization_config,
    }
    device, dtype = PartialState().device, "auto"
    if device.type == "cpu" and quantization_config is None:
        dtype = cpu_dtype or ("bfloat16" if asks_for_bf16() else "float32")
    try:
        model = create_model_from_path(path, dtype=dtype, device_map={"": device}, **options)
        keep_layout(model)
        if without_router_loss(model):  # a model that was trained whole, with TRL
            model.config.get_text_config().output_router_logits = False
        check_base(model, path)
    except NotFiniteError:
        raise
    except Exception as error:  # what a config lets transformers fall over has no type in common
        raise ConsistencyError(f"{name} cannot be loaded: {one_line(error)}") from None
    if is_adapter:
        model = put_adapter(model, folder, option="model_name_or_path")
    announce_cpu(device, model.dtype, name)
    return model.eval(), processing_class


def load_tokenizer(name: str, revision: str | None = None, trust_remote_code: bool = False) -> ProcessingClass:
    """The tokenizer or processor of a model that [`load_model`] takes: of an adapter, that in its folder."""
    folder = resolve_model(name)
    return load_processing_class(folder, None if is_adapter_folder(folder) else revision, trust_remote_code)


def check_loadable(
    name: str, revision: str | None = None, trust_remote_code: bool = False, adapters: Sequence[str] = ()
) -> tuple[str, str | None, PreTrainedConfig]:
    """
    Checks a model that [`load_model`] is to load, as far as its files show it, and adapters that are to be put on it. Returns
    the model that is loaded under that name (of an adapter its base), its revision and its config.

    Raises:
        [`ConsistencyError`]: If it is not there, not whole or pickled.
    """
    folder = path = resolve_model(name)
    if is_adapter_folder(folder):
        check_weights(folder)
        check_files(folder)
        path, revision = _base_model(folder)
    check_model_folder(path, revision)
    config = load_config(path, revision, trust_remote_code)
    model = check_architecture(path, config)
    for adapter in adapters:
        if model is not None and is_adapter_folder(adapter):
            put_adapter(model, adapter, on_meta=True).unload()
    return path, revision, config


def is_adapter_folder(path: str) -> bool:
    """Whether a path is the folder of an adapter."""
    return (Path(path) / ADAPTER_CONFIG).is_file()


def _base_model(adapter: str) -> tuple[str, str | None]:
    """The model that an adapter was trained on, and its revision."""
    try:
        config = PeftConfig.from_pretrained(adapter)
    except Exception as error:  # each kind of fault in the file has an error of its own
        reason = fault_in(Path(adapter) / ADAPTER_CONFIG) or one_line(error)
        raise ConsistencyError(f"{adapter}/{ADAPTER_CONFIG} cannot be read: {reason}") from None
    check_adapter_config(f"{adapter}: {ADAPTER_CONFIG}", config)
    if not config.base_model_name_or_path:
        raise ConsistencyError(
            f"{adapter} is an adapter that does not say of which model: set `base_model_name_or_path` in its "
            f"{ADAPTER_CONFIG}."
        )
    return config.base_model_name_or_path, config.revision


def name_models(paths: Sequence[str]) -> dict[str, str]:
    """Short names of models for the tables: the folder, or the whole path where two are alike."""
    found: dict[str, str] = {}
    places = [os.path.realpath(path) if os.path.exists(path) else path for path in paths]
    last = [Path(path).name for path in paths]
    for path, place in zip(paths, places, strict=True):
        name = Path(path).name
        name = path if last.count(name) > 1 or name in ("", BASE) else name
        name = f"./{name}" if name == BASE else name
        if places.count(place) > 1:
            raise ConsistencyError(f"`adapters` names {path} twice.")
        found[name] = path
    return found


def check_adapters(paths: Sequence[str], base_model: str) -> None:
    """
    Raises [`ConsistencyError`] for adapters and models that are not there, not whole or pickled, and warns of adapters that
    name another base model: on one of the same shape they would work, and be measured against the wrong "before".
    """
    for path in paths:
        if os.path.realpath(path) == os.path.realpath(base_model):
            raise ConsistencyError(f"`adapters` names the base model itself, {path}: it is measured already.")
        if os.path.isdir(path) and not is_adapter_folder(path):
            check_model_folder(path)
            check_architecture(path, load_config(path))
            continue
        if os.path.isdir(path):
            check_weights(path)
            check_files(path)
        try:
            config = PeftConfig.from_pretrained(path)
        except Exception as error:  # each kind of fault in the file has an error of its own
            reason = fault_in(Path(path) / ADAPTER_CONFIG) or one_line(error)
            raise ConsistencyError(f"`adapters`: {path} cannot be loaded: {reason}") from None
        check_adapter_config(f"{path}: {ADAPTER_CONFIG}", config)
        trained_on = config.base_model_name_or_path
        if trained_on and os.path.realpath(trained_on) != os.path.realpath(resolve_model(base_model)):
            warnings.warn(
                printable(
                    f"`adapters`: {path} was trained on {trained_on}, and is measured on {base_model}. Unless that is the same "
                    "model under another name, what it is compared with is not what it was before."
                )
            )


@contextmanager
def adapted(
    model: Any,
    processing_class: ProcessingClass,
    path: str | None,
    trust_remote_code: bool = False,
    quantization_config: BitsAndBytesConfig | None = None,
) -> Iterator[Any]:
    """
    The model as it is (without a `path`), with the adapter on it, or in its place the whole model that lies there.

    Raises:
        [`ConsistencyError`]: If the adapter does not fit the model, or the other model has another tokenizer.
    """
    if path is None:
        yield model
        return
    if os.path.isdir(path) and not is_adapter_folder(path):
        other, others = load_model(path, None, trust_remote_code, quantization_config)
        if get_tokenizer(others).get_vocab() != get_tokenizer(processing_class).get_vocab():
            raise ConsistencyError(f"`adapters`: {path} has another tokenizer than the base model.")
        yield other
        return
    with_adapter = put_adapter(model, path)
    try:
        yield with_adapter
    finally:
        unload = getattr(with_adapter.base_model, "unload", None)  # prompt learning leaves the model as it is
        if unload is not None:
            unload()


def put_adapter(model: Any, path: str, option: str = "adapters", on_meta: bool = False) -> PeftModel:
    """
    The model with an adapter on it, or a [`ConsistencyError`] if it does not fit or is not whole. With `on_meta` the model has
    no memory for weights.
    """
    options = {"low_cpu_mem_usage": True, "torch_device": "cpu"} if on_meta else {}
    if os.path.isdir(path):
        check_files(path)
    try:
        check_adapter_config(f"{path}: {ADAPTER_CONFIG}", PeftConfig.from_pretrained(path))
        with warnings.catch_warnings():  # what an adapter lacks would stay as it was initialised
            warnings.filterwarnings("error", message=".*[Mm]issing adapter keys")
            with_adapter = PeftModel.from_pretrained(model, path, **options).eval()
    except ConsistencyError:
        raise
    except Exception as error:  # whatever of the many things in its config does not fit
        reason = shorten(one_line(error), 300, placeholder=" …")
        if isinstance(error, KeyError):
            reason = f"it lacks {reason}"
        raise ConsistencyError(f"`{option}`: {path} cannot be put on the base model: {reason}") from None
    if os.path.isdir(path):
        _check_names(with_adapter, path, option)
    return with_adapter


def _check_names(model: PeftModel, folder: str, option: str) -> None:
    """Raises [`ConsistencyError`] for weights that an adapter's config has no place for: PEFT passes over them in silence."""
    adapter = model.active_adapters[0]
    here = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False).keys()
    there = {name for file in Path(folder).glob("*.safetensors") for name in shapes_in(file)}
    if here - there:  # PEFT found them all the same, under other names
        return
    unknown = sorted(
        name
        for name in there - {*here, *model.state_dict()}
        if not any(layer in name for layer in EMBEDDING_LAYER_NAMES)  # which are saved along with some adapters
    )
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise ConsistencyError(
            f"`{option}`: {folder} is damaged: {ADAPTER_CONFIG} has no place for {unknown[0]}{more}. Copy or train it again."
        )

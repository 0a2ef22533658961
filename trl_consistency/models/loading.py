"""Loads models for evaluation: a base model, and adapters on it."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from accelerate import PartialState
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.utils.constants import EMBEDDING_LAYER_NAMES
from transformers import BitsAndBytesConfig, PreTrainedConfig

from ..config.device import announce_cpu, asks_for_bf16
from ..data.rendering import (
    ProcessingClass,
    get_tokenizer,
    load_processing_class,
)
from ..errors import ConsistencyError, one_line
from ..escaping import printable
from ..finite import NotFiniteError, check_files
from ..generation.options import without_router_loss
from ..json_files import fault_in
from ..local_names import distinct_names
from ..upstream import create_model_from_path
from ..weight_files import ADAPTER_CONFIG, shapes_in
from .adapter_checks import check_adapter_config
from .architecture import check_architecture
from .base_state import restored
from .checks import load_config
from .embedded_models import resolve_model
from .finite_weights import check_base
from .folder_checks import check_model_folder, check_weights
from .quantization import prevent_repacking, settle_biases


BASE = "base"  # name of the model before training in results


def load_model(
    name: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
    quantization_config: BitsAndBytesConfig | None = None,
    cpu_dtype: str | None = None,
    init_kwargs: Mapping[str, Any] | None = None,
) -> tuple[Any, Any]:
    """
    Loads a model and its tokenizer or processor: on the accelerator in its checkpoint's dtype, or else on the CPU. The
    model is in evaluation mode.

    `name` is a model, `embedded:organism`, `embedded:smollm2`, or the folder of a trained adapter, which loads its
    base model with the adapter; the adapter's config names the revision, and another one is an error. `cpu_dtype` is a
    dtype's name or `"auto"`, the checkpoint's. `None` is float32, or bfloat16 under `accelerate launch --mixed_precision
    bf16`. Quantized weights keep the checkpoint's dtype. `init_kwargs` are further arguments of `from_pretrained`, such as changes of
    the config.
    """
    folder = resolve_model(name)
    is_adapter = is_adapter_folder(folder)
    path, revision, _ = check_loadable(name, revision, trust_remote_code)
    processing_class = load_tokenizer(name, None if is_adapter else revision, trust_remote_code)
    options = {
        **(init_kwargs or {}),
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
        prevent_repacking(model)
        settle_biases(model)
        if without_router_loss(model):  # TRL sets this option in full fine-tuning
            model.config.get_text_config().output_router_logits = False
        check_base(model, path)
    except NotFiniteError:
        raise
    except Exception as error:  # errors of transformers have no common type
        raise ConsistencyError(f"{name} cannot be loaded: {one_line(error)}") from None
    if is_adapter:
        model = put_adapter(model, folder, option="model_name_or_path")
    announce_cpu(device, model.dtype, name)
    return model.eval(), processing_class


def load_tokenizer(name: str, revision: str | None = None, trust_remote_code: bool = False) -> ProcessingClass:
    """Loads the tokenizer or processor of a model that [`load_model`] accepts. An adapter's is in its folder."""
    folder = resolve_model(name)
    _check_revision(folder, revision)
    return load_processing_class(folder, None if is_adapter_folder(folder) else revision, trust_remote_code)


def check_loadable(
    name: str, revision: str | None = None, trust_remote_code: bool = False, adapters: Sequence[str] = ()
) -> tuple[str, str | None, PreTrainedConfig]:
    """
    Checks the files of a model for [`load_model`], and of adapters for it. Returns the name of the model to load (an
    adapter's base model), its revision and its config.
    """
    folder = path = resolve_model(name)
    _check_revision(folder, revision)
    if is_adapter_folder(folder):
        check_weights(folder)
        check_files(folder)
        path, revision = _base_model(folder)
    check_model_folder(path, revision)
    config = load_config(path, revision, trust_remote_code)
    model = check_architecture(path, config)
    for adapter in adapters:
        if model is not None and is_adapter_folder(adapter):
            with restored(model, adapter):
                put_adapter(model, adapter, on_meta=True)
    return path, revision, config


def _check_revision(folder: str, revision: str | None) -> None:
    """Raises [`ConsistencyError`] for a revision beside an adapter, whose config names that of its base model."""
    if revision not in (None, "main") and is_adapter_folder(folder):
        raise ConsistencyError(
            f"`model_revision` is {revision}, but {folder} is an adapter, which names the revision of its base model itself "
            f"(`revision` in {ADAPTER_CONFIG}). Leave it out, or name the base model and put the adapter on it."
        )


def is_adapter_folder(path: str) -> bool:
    """Whether a path is the folder of an adapter."""
    return (Path(path) / ADAPTER_CONFIG).is_file()


def _base_model(adapter: str) -> tuple[str, str | None]:
    """Returns the base model of an adapter, and its revision."""
    try:
        config = PeftConfig.from_pretrained(adapter)
    except Exception as error:  # faults in the file have no common error type
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
    """
    Returns paths by short name for tables: the folder's name, with folders above it if two have the same name. Names on
    the Hub are shortened in the same way.
    """
    found: dict[str, str] = {}
    places = [os.path.realpath(path) if os.path.exists(path) else path for path in paths]
    names = distinct_names(paths)
    last = [name.rsplit("/", 1)[-1] for name in names]
    for path, place, name in zip(paths, places, names, strict=True):
        short = name.rsplit("/", 1)[-1]
        name = short if last.count(short) == 1 else name
        name = f"./{name}" if name == BASE else name
        if places.count(place) > 1:
            raise ConsistencyError(f"`adapters` names {path} twice. Name it once.")
        found[path if name in found else name] = path  # a name on the Hub may be the end of a folder's path
    return found


def check_adapters(paths: Sequence[str], base_model: str, trust_remote_code: bool = False) -> None:
    """
    Raises [`ConsistencyError`] for adapters and models that are missing, incomplete or pickled. Warns of adapters of
    another base model, which would be compared with the wrong model before training.
    """
    for path in paths:
        if os.path.realpath(path) == os.path.realpath(base_model):
            raise ConsistencyError(
                f"`adapters` names the base model itself, {path}: it is measured already. Leave it out there."
            )
        if os.path.isdir(path) and not is_adapter_folder(path):
            check_model_folder(path)
            check_architecture(path, load_config(path, trust_remote_code=trust_remote_code))
            continue
        if os.path.isdir(path):
            check_weights(path)
            check_files(path)
        try:
            config = PeftConfig.from_pretrained(path)
        except Exception as error:  # faults in the file have no common error type
            reason = fault_in(Path(path) / ADAPTER_CONFIG) or one_line(error)
            what = path if os.path.isdir(path) else f"there is no folder {path}, and from the Hub it"
            raise ConsistencyError(f"`adapters`: {what} cannot be loaded: {reason}") from None
        check_adapter_config(f"{path}: {ADAPTER_CONFIG}", config)
        trained_on = config.base_model_name_or_path
        if trained_on and os.path.realpath(trained_on) != os.path.realpath(resolve_model(base_model)):
            warnings.warn(
                printable(
                    f"`adapters`: {path} was trained on {trained_on}, and is measured on {base_model}. Unless that is the same "
                    "model under another name, it is not compared with the model that it was before training."
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
    Yields the model itself without a `path`, the model with the adapter at `path`, or the whole model at `path`.
    Afterwards, the model is as it was. Raises [`ConsistencyError`] if the adapter does not fit, or cannot be taken off
    again, or the other model has a different tokenizer.
    """
    if path is None:
        yield model
        return
    if os.path.isdir(path) and not is_adapter_folder(path):
        other, others = load_model(path, None, trust_remote_code, quantization_config)
        if get_tokenizer(others).get_vocab() != get_tokenizer(processing_class).get_vocab():
            raise ConsistencyError(
                f"`adapters`: {path} has another tokenizer than the base model, so that the two would read other tokens. Measure it alone, as "
                "`model_name_or_path`."
            )
        if other.dtype != model.dtype:
            kinds = [str(of.dtype).removeprefix("torch.") for of in (other, model)]
            warnings.warn(
                printable(
                    f"`adapters`: {path} is in {kinds[0]}, and the base model in {kinds[1]}, as their files are: some answers may differ for "
                    "that alone. To compare them in one number format, save one in that of the other, and name its folder."
                )
            )
        yield other
        return
    with restored(model, path):
        yield put_adapter(model, path)


def put_adapter(model: Any, path: str, option: str = "adapters", on_meta: bool = False) -> PeftModel:
    """
    Returns the model with an adapter. Raises [`ConsistencyError`] if the adapter does not fit or is incomplete.
    `on_meta`: the model is on the meta device.
    """
    options = {"low_cpu_mem_usage": True, "torch_device": "cpu"} if on_meta else {}
    if os.path.isdir(path):
        check_files(path)
    try:
        check_adapter_config(f"{path}: {ADAPTER_CONFIG}", PeftConfig.from_pretrained(path))
        with warnings.catch_warnings():  # missing weights would keep their initial values
            warnings.filterwarnings("error", message=".*[Mm]issing adapter keys")
            with_adapter = PeftModel.from_pretrained(model, path, **options).eval()
    except ConsistencyError:
        raise
    except Exception as error:  # errors of PEFT have no common type
        reason = shorten(one_line(error), 300, placeholder=" …")
        if isinstance(error, KeyError):
            reason = f"it lacks {reason}"
        raise ConsistencyError(f"`{option}`: {path} cannot be put on the base model: {reason}") from None
    if os.path.isdir(path):
        _check_names(with_adapter, path, option)
    return with_adapter


def _check_names(model: PeftModel, folder: str, option: str) -> None:
    """Raises [`ConsistencyError`] for weights that an adapter's config does not use: PEFT ignores them silently."""
    adapter = model.active_adapters[0]
    used = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False).keys()
    saved = {name for file in Path(folder).glob("*.safetensors") for name in shapes_in(file)}
    if used - saved:  # PEFT found them under other names
        return
    unknown = sorted(
        name
        for name in saved - {*used, *model.state_dict()}
        if not any(layer in name for layer in EMBEDDING_LAYER_NAMES)  # saved with some adapters
    )
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise ConsistencyError(
            f"`{option}`: {folder} is damaged: {ADAPTER_CONFIG} has no place for {unknown[0]}{more}. Copy or train it again."
        )

"""Checks the files in the folder of a model or a checkpoint before any weights load."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from peft import PeftModel, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from transformers import GenerationConfig
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from ..errors import ConsistencyError, one_line
from ..json_files import fault_in
from ..weight_files import ADAPTER_CONFIG, folder_of, indexed_files, shapes_in, weight_files
from .checkpoint_weights import with_published_names


def check_model_folder(name: str, revision: str | None = None) -> None:
    """Raises [`ConsistencyError`] if a folder, or the cache when offline, does not hold a complete model."""
    try:
        folder = folder_of(name, revision)
    except HFValidationError:
        raise ConsistencyError(_no_such_model(name)) from None
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


def check_engine_weights(name: str) -> None:
    """
    Raises [`ConsistencyError`] for a folder of which vLLM would read other weight files than transformers: it reads Mistral's
    `consolidated*.safetensors` before all others, the files of the index before `model.safetensors`, and without an index all.
    """
    folder = Path(name)
    if not name or not folder.is_dir():
        return
    check_weights(folder)
    read = set(weight_files(folder))
    found = set(folder.glob("*.safetensors"))
    indexed = set(indexed_files(folder))
    of_vllm = set(folder.glob("consolidated*.safetensors")) or (found & indexed if indexed else found)
    if other := sorted(of_vllm ^ read):
        raise ConsistencyError(
            f"{name}: vLLM would read other weights than transformers, which differ in {other[0].name}. Move the files that are no part of the "
            "model out of this folder, or leave vLLM out."
        )


def _no_such_model(name: str) -> str:
    if name == "embedded:organism":
        return (
            f"{name} is a name for commands and recipes. In Python, give its folder: "
            "`str(trl_consistency.organism.build_organism())` returns it."
        )
    if name.startswith("embedded:"):
        return f"{name} would be a name for commands and recipes. In Python, give a folder, or a name on the Hub."
    return f"There is no folder {name}, and no model on the Hub can have this name."


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
        if (Path(folder) / ADAPTER_CONFIG).is_file():
            raise ConsistencyError(
                f"{folder} is an adapter without its weights: there is no {SAFETENSORS_WEIGHTS_NAME}. Save or copy it again."
            )
        if (Path(folder) / CONFIG_NAME).is_file():
            raise ConsistencyError(
                f"{folder} holds no weights: there is no {SAFE_WEIGHTS_NAME}. Save, download or copy the model again."
            )
        raise ConsistencyError(
            f"{folder} holds neither a model.safetensors nor an {ADAPTER_CONFIG}: it is no model and no adapter. Name the folder of one."
        )
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
    if not is_adapter:  # whose names in the file may be others
        shapes = ((name, torch.empty(shape, device="meta")) for name, shape in current.items())
        current |= {name: list(of.shape) for name, of in with_published_names(model, shapes)}
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

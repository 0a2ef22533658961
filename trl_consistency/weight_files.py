"""Finds the files of a model, and reads the headers of safetensors files."""

import json
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from .errors import ConsistencyError, one_line


ADAPTER_CONFIG = "adapter_config.json"


def folder_of(name: str, revision: str | None = None) -> Path | None:
    """Returns the folder of a model or an adapter, or its snapshot in the Hub's cache; None if neither exists yet."""
    if Path(name).is_dir():
        return Path(name)
    found = [try_to_load_from_cache(name, file, revision=revision) for file in ("config.json", ADAPTER_CONFIG)]
    return next((Path(file).parent for file in found if isinstance(file, str)), None)


def is_here(name: str, revision: str | None = None) -> bool:
    """Whether files of a model are on this machine, so that reading them asks no server."""
    try:
        return bool(name) and folder_of(name, revision) is not None
    except HFValidationError:  # no name of the Hub, which loading reports
        return False


def weight_files(folder: Path) -> list[Path]:
    """Returns the weight files of a model, whether they exist or not."""
    if (whole := folder / SAFE_WEIGHTS_NAME).exists():
        return [whole]
    return indexed_files(folder) or sorted(folder.glob("*.safetensors"))


def indexed_files(folder: Path) -> list[Path]:
    """Returns the weight files that a model's index names, or none without an index."""
    if not (index := folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
        return []
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def stored_in(file: Path) -> dict[str, tuple[str, list[int]]]:
    """Returns dtype and shape of each tensor in a safetensors file by name. Reads only its header."""
    if file.exists() and not file.is_file():  # reading a pipe would block
        raise ConsistencyError(f"{file} is a folder, a pipe or a device, and not a file. Download or copy it again.")
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (of.get_dtype(), of.get_shape()) for name, of in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ConsistencyError(
            f"{file} is cut short or damaged ({one_line(error)}). Download or copy it again."
        ) from None


def shapes_in(file: Path) -> dict[str, list[int]]:
    """Returns the shape of each tensor in a safetensors file by name. Reads only its header."""
    return {name: shape for name, (_, shape) in stored_in(file).items()}

"""Whether a model in memory is the one in its files: the base model of an adapter, which its config names, or a whole model."""

from contextlib import ExitStack
from itertools import chain
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..generation.model_identity import model_tensors
from ..upstream import plain_tensors
from ..weight_files import folder_of, is_here, weight_files
from .checkpoint_weights import with_published_names


# Rows of each weight that are compared: the first, those in the middle, and the last, where new tokens have their embeddings. What
# changes a weight, such as a merged adapter, hardly leaves all of these as they were.
ROWS = 8


def has_comparable_files(named: str) -> bool:
    """Whether weights of the model `named` so are in its folder, or in the Hub's cache at the main revision, as safetensors."""
    folder = folder_of(named) if is_here(named) else None
    return folder is not None and any(file.is_file() for file in weight_files(folder))


def other_base_weight(model: Any) -> str | None:
    """Like [`other_weight`], of a [`~peft.PeftModel`]'s base model and the base model that its adapter names."""
    return other_weight(model.get_base_model(), model.peft_config[model.active_adapters[0]].base_model_name_or_path)


@torch.no_grad()
def other_weight(model: Any, named: str | None) -> str | None:
    """
    Returns the name of a weight of a model, without its adapter, that differs from the files of the model `named` so: those of a
    model with a merged adapter do, for example. None if none is found, as where there are no such files, or weights are quantized.
    """
    folder = folder_of(named) if named else None
    if folder is None:
        return None
    of_adapter = {"modules_to_save"}
    of_adapter |= {part for layer in model.modules() for part in getattr(layer, "adapter_layer_names", ())}
    held = [
        (_plain(name), weight)
        for name, weight in model_tensors(model)
        if _is_whole(weight) and not of_adapter & {*name.split(".")}
    ]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(file, framework="pt")) for file in weight_files(folder)]
            file_of = {name: tensors for tensors in files for name in list(tensors.keys())}
            compared = set()
            for name, weight in chain(with_published_names(model, held), held):  # some files have the names in memory
                if name in file_of and name not in compared:
                    compared.add(name)
                    if _differs(weight, file_of[name].get_slice(name)):
                        return name
    except (OSError, SafetensorError):  # not files that could be compared
        pass
    return None


def _plain(name: str) -> str:
    """Returns the name that a weight has without PEFT's layers around it."""
    return ".".join(part for part in name.split(".") if part not in ("base_layer", "token_adapter", "original_module"))


def _is_whole(weight: Tensor) -> bool:
    """Whether a weight has all of its numbers here, which a shard does not."""
    return not weight.is_meta and not hasattr(weight, "device_mesh")


def _differs(weight: Tensor, stored: Any) -> bool:
    """Whether some rows of a weight are not those of its file. Weights that cannot be compared do not differ."""
    if plain_tensors(weight)[0] is not weight:
        return False
    if not weight.ndim or not weight.is_floating_point() or list(weight.shape) != stored.get_shape():
        return False
    last = max(len(weight) - ROWS, 0)
    places = [slice(start, start + ROWS) for start in (0, last // 2, last)]
    rows, held_rows = (torch.cat([of[place] for place in places]) for of in (stored, weight))
    roundings = (rows, rows.bfloat16(), rows.half())  # a model may have been loaded so, and cast back
    return not any(torch.equal(of.to(weight.dtype), held_rows.cpu()) for of in roundings)

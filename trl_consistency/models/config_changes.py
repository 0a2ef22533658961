"""Finds in what a loaded model differs from its files: an adapter goes on the model as its files are."""

from contextlib import suppress
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..upstream import get_config_model_id
from ..weight_files import folder_of, weight_files


# Config keys that do not change what the model computes. Token ids are aligned with the tokenizer's.
NOT_OF_THE_MODEL = (
    *("_name_or_path", "transformers_version", "architectures", "use_cache", "dtype", "torch_dtype"),
    *("quantization_config", "pad_token_id", "bos_token_id", "eos_token_id"),
)
# Keys of the training alone, and the size of the embeddings, which PEFT saves with an adapter if it was changed
OF_TRAINING = ("output_router_logits", "router_aux_loss_coef", "vocab_size")


def changed_config_keys(model: Any) -> list[str]:
    """
    Returns the keys in which a loaded model's config differs from the config.json in its folder, or in the cache under its
    name; none if there is no such file.
    """
    config = model.get_base_model().config if hasattr(model, "get_base_model") else model.config
    try:
        saved = type(config).from_pretrained(get_config_model_id(config), local_files_only=True).to_dict()
    except Exception:  # a model made here, a file that was deleted since, or damaged: these errors have no common type
        return []
    ignored = {*NOT_OF_THE_MODEL, *OF_TRAINING}
    return sorted(key for key, value in config.to_dict().items() if key not in ignored and value != saved.get(key))


def changed_weights(model: Any) -> list[str]:
    """
    Returns the names of a loaded model's weights that are not those in its folder, or in the cache under its name, by their
    first rows: merging an adapter, for one, changes all rows. Weights that the files hold in another form or under another
    name, and those that are quantized or sharded, are not compared.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    weights = {name.replace(".base_layer.", "."): weight.detach() for name, weight in base.named_parameters()}
    changed = []
    with suppress(Exception):  # no files, or such as loading reports: these errors have no common type
        folder = folder_of(get_config_model_id(base.config))
        for file in [] if folder is None else weight_files(folder):
            with safe_open(file, framework="pt") as stored:
                for name in weights.keys() & set(stored.keys()):
                    if tuple(stored.get_slice(name).get_shape()) == tuple(weights[name].shape):
                        changed += [name] * _differs(weights[name], stored.get_slice(name)[:1])
    return sorted(changed)


def _differs(weight: Tensor, stored: Tensor) -> bool:
    """Whether the first row of a weight is none that the stored one can be loaded, or have been rounded, to."""
    if weight.is_meta or not (weight.is_floating_point() and stored.is_floating_point()):
        return False
    row = weight[:1].cpu()
    roundings = (stored, stored.bfloat16(), stored.half())
    return not any(torch.equal(row, of.to(row.dtype)) for of in roundings)

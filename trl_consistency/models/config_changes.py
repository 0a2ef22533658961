"""Finds in what a loaded model's config differs from its files: an adapter goes on the model as its files are."""

from typing import Any

from ..upstream import get_config_model_id


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

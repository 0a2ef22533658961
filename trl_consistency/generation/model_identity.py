"""
Identifies a model whose answers are cached, by everything that can change them.

Answers may be reused only if the model's weights, config, tokenizer, adapter and precision are unchanged. Weights are
digested whole. Digests of large files are remembered, so this takes time only once.
"""

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict

from ..data.digests import file_digest
from ..upstream import plain_tensors
from ..weight_files import folder_of
from .adapter_scale import changed_scales, scaled_layers
from .answer_cache import LIBRARIES, AnswerCache, fingerprint, sums_of_samples
from .options import uses_learned_prompt


# A model's files by content. Its config is taken from memory, because options of a run may have changed it.
FILES = {
    "weights": ("*.safetensors", "*.safetensors.index.json", "*.gguf"),
    "generation_config": ("generation_config.json",),
    "chat_template": ("*.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    "tokenizer": (
        *(
            "tokenizer*",
            "vocab*",
            "merges.txt",
            "special_tokens_map.json",
            "added_tokens.json",
            "*.model",
            "*.tiktoken",
        ),
        *("processor_config.json", "preprocessor_config.json"),
    ),
    "code": ("*.py",),
}
# Config keys about the model's origin or how it is run or trained. `dtype` is taken from the weights.
OF_NO_EFFECT = (
    *("_name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "use_cache"),
    *("output_router_logits", "router_aux_loss_coef"),
)
# Keys of a card's metadata: the digest of a local base model, and what was changed of one after it was loaded
BASE_WEIGHTS, BASE_CHANGES = "base_model_weights", "base_model_changes"
OF_ADAPTERS = ("base_model_name_or_path", "revision", "inference_mode", "peft_version")


def model_identity(
    model: Any, name: str, as_loaded: bool, revision: str | None = None, adapter_off: bool = False
) -> dict[str, Any]:
    """
    Returns the identity of a model for a [`~trl_consistency.generation.answer_cache.TargetCache`]: digests by content,
    the precision, and the versions of the libraries, which are not compared.

    `as_loaded` says whether the weights, without the adapter, still equal the model's files, whose digests are then
    used; otherwise all weights are read from memory each time. `revision` is the Hub revision of the model or of its
    base model, by default the one that the adapter names, or `main`. With `adapter_off`, the model answers without its
    adapter, and trainable weights are left out.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    config = {key: value for key, value in base.config.to_dict().items() if key not in OF_NO_EFFECT}
    identity: dict[str, Any] = {
        "name": name,
        "config": digest_of(config),
        "dtype": str(base.dtype).removeprefix("torch."),
        "quantization": str(method) if (method := getattr(base, "quantization_method", None)) else None,
    }
    folder = _folder(model, base.config, revision) if as_loaded else None
    if folder is not None:
        identity |= files_identity(folder)
    else:
        trains = {name for name, weight in model.named_parameters() if weight.requires_grad} if adapter_off else set()
        identity["weights"] = fingerprint((key, value) for key, value in model_tensors(model) if key not in trains)
    if isinstance(model, PeftModel) and not adapter_off:
        identity["adapter"] = {active: _adapter_digest(model, active) for active in model.active_adapters}
    return identity | {LIBRARIES: {library: version(library) for library in ("torch", "transformers", "peft")}}


def identity_digest(identity: dict[str, Any]) -> str:
    """Returns a short digest of an identity, for the name of a folder."""
    return digest_of({key: value for key, value in identity.items() if key != LIBRARIES})


def quick_identity(model: Any, *others: Any) -> str:
    """
    Returns a digest of a model in memory, with its adapters, and of `others`. Of large weights it reads a sample, so it takes no time,
    and is another one after a training.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    adapters = {name: config.to_dict() for name, config in getattr(model, "peft_config", {}).items()}
    configs = [
        {key: value for key, value in config.items() if key not in (*OF_NO_EFFECT, *OF_ADAPTERS)}
        for config in (base.config.to_dict(), *adapters.values())
    ]
    return digest_of([configs, sums_of_samples(model), *changed_scales(scaled_layers(model)), *others])


def answer_cache(folder: str | Path, name: str, model: Any, revision: str | None = None) -> AnswerCache:
    """
    Returns the answer cache, in a sub-folder of `folder`, of a model that was just loaded from its files, with or
    without an adapter.
    """
    identity = model_identity(model, name, as_loaded=True, revision=revision)
    if isinstance(model, PeftModel):
        # Answers that were cached without this may be wrong: the base could have parts of an adapter measured before.
        identity["base"] = "as loaded"
    if uses_learned_prompt(model):
        identity["padding"] = "none"  # with which earlier answers were wrong
    return AnswerCache(Path(folder) / identity_digest(identity), identity)


def files_identity(folder: str | Path) -> dict[str, str]:
    """Returns digests of the files in a model's folder that can change its output, by the keys of `FILES`."""
    folder = Path(folder)
    return {
        kind: digest_of({str(path.relative_to(folder)): file_digest(path) for path in paths})
        for kind, paths in _files(folder).items()
    }


def files_now(model: Any, revision: str | None = None) -> dict[str, tuple[int, int]]:
    """
    Returns the size and the time of change, in nanoseconds, of each file that a model was loaded from, by its whole path. It is
    another one after a file was replaced, or if a relative name stands for another folder than before.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    folder = _folder(model, base.config, revision)
    paths = [path for found in _files(folder).values() for path in found] if folder is not None else []
    return {str(path.resolve()): ((state := path.stat()).st_size, state.st_mtime_ns) for path in paths}


def _files(folder: Path) -> dict[str, list[Path]]:
    found = {
        kind: sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
        for kind, patterns in FILES.items()
    }
    return {kind: paths for kind, paths in found.items() if paths}


def weights_digest(folder: str | Path) -> str | None:
    """Returns a digest of the weights in a local folder, or None if there are none."""
    return files_identity(folder).get("weights") if Path(folder).is_dir() else None


def _folder(model: Any, config: Any, revision: str | None) -> Path | None:
    """Returns the folder that a model was loaded from, which may be its snapshot in the Hub's cache."""
    name = getattr(config, "_name_or_path", "")
    if not name:
        return None
    if revision is None and isinstance(model, PeftModel):
        revision = model.peft_config[model.active_adapters[0]].revision
    return folder_of(name, revision)


def model_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields all tensors that a model's answers depend on, with scales of quantized weights and tied weights once."""
    seen = set()
    for name, tensor in model.state_dict().items():
        if not hasattr(tensor, "data_ptr"):
            continue
        place = (plain_tensors(tensor)[0].data_ptr(), tuple(tensor.shape), tensor.dtype, tensor.device)
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
            yield name, tensor


def _adapter_digest(model: PeftModel, adapter: str) -> str:
    config = {key: value for key, value in model.peft_config[adapter].to_dict().items() if key not in OF_ADAPTERS}
    weights = get_peft_model_state_dict(model, adapter_name=adapter)
    return digest_of({"config": config, "weights": fingerprint(weights.items())})


def digest_of(content: Any) -> str:
    """Returns a short digest of nested mappings, lists and plain values."""
    text = json.dumps(content, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)

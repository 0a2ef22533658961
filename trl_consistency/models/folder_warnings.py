"""Warns of what folders of adapters and models say of their training, and an evaluation does otherwise."""

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from huggingface_hub import hf_hub_download, metadata_load
from huggingface_hub.errors import HFValidationError
from peft import PeftConfig
from tokenizers import Tokenizer
from transformers import BitsAndBytesConfig
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CHAT_TEMPLATE_FILE

from ..bounded_reading import read_at_most
from ..data.rendering import (
    TEMPLATE_FILES,
    ProcessingClass,
    chat_template_of,
    get_tokenizer,
)
from ..data.trained_pairs import among, read_digests
from ..errors import ConsistencyError
from ..escaping import printable
from ..generation.model_identity import BASE_CHANGES, BASE_WEIGHTS, weights_digest
from ..generation.options import end_tokens
from ..weight_files import ADAPTER_CONFIG, folder_of
from .embedded_models import resolve_model
from .loading import is_adapter_folder
from .quantization import OF_4_BITS, quantization_of, words_of


# What is read here of adapters and models
TOKENIZER_CONFIG, TOKENIZER, CARD = "tokenizer_config.json", "tokenizer.json", "README.md"
FILES = (ADAPTER_CONFIG, CARD, CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG, TOKENIZER)


def warn_of_folders(
    model_name: str,
    adapters: Sequence[str],
    processing_class: ProcessingClass,
    answering: Sequence[Mapping[str, Any]],
    revision: str | None = None,
    pairs: Mapping[str, np.ndarray] | None = None,
) -> None:
    """
    Warns of what the files of a model and of adapters for it say of their training, before any weights load.

    Args:
        model_name (`str`):
            The model, or the folder of an adapter, which is loaded with its base model.
        adapters (`Sequence[str]`):
            Adapters that are put on it, or whole models that are measured beside it.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            The tokenizer or processor that is used for all.
        answering (`Sequence[Mapping[str, Any]]`):
            The variables of the chat template of each prompt.
        revision (`str`, *optional*):
            The revision of `model_name`.
        pairs (`Mapping[str, np.ndarray]`, *optional*):
            Digests of the pairs that are measured as held out, by the name of their set.
    """
    paths = [*adapters, model_name]
    for name, of_name in [*((adapter, None) for adapter in adapters), (model_name, revision)]:
        _fetch(name, of_name)
    warn_of_templates(adapters, processing_class)
    warn_of_revisions(adapters, model_name, revision)
    warn_of_bases(paths, model_name)
    warn_of_changed_bases(paths, model_name, revision)
    warn_of_variables(adapters, answering)
    warn_of_variables([model_name], answering, revision)
    warn_of_trained_pairs(paths, pairs or {})


def warn_of_loaded(model_name: str, adapters: Sequence[str], model: Any, processing_class: ProcessingClass) -> None:
    """Like [`warn_of_folders`], of what is only known of the loaded `model`."""
    warn_of_quantization([*adapters, model_name], model)
    warn_of_ends(adapters, model, processing_class)


def _fetch(name: str, revision: str | None) -> None:
    """Brings the files that are read here from the Hub into its cache. What cannot be had is not read."""
    for file in () if os.path.isdir(name) else FILES:
        with suppress(Exception):  # errors of the Hub, the name and the network share no type
            hf_hub_download(name, file, revision=revision)


def _folder(name: str, revision: str | None = None) -> Path:
    """Returns the folder of an adapter or a model, which may be its snapshot in the Hub's cache."""
    with suppress(HFValidationError):  # no name of the Hub
        return folder_of(name, revision) or Path(name)
    return Path(name)


def warn_of_templates(paths: Sequence[str], processing_class: ProcessingClass) -> None:
    """
    Warns of folders of adapters and models whose chat template or tokenizer is not that of `processing_class`, which is used for
    all.
    """
    used = chat_template_of(processing_class)
    used = used.get("default") if isinstance(used, dict) else used
    for path in paths:
        folder = _folder(path)
        own = _chat_template(folder)
        if own not in (None, used):
            warnings.warn(
                printable(
                    f"`adapters`: {path} has a chat template of its own, but is measured with the base model's: it reads other "
                    "prompts than in its training. To measure it with its own, name it alone, as `model_name_or_path`."
                )
            )
        if is_adapter_folder(str(folder)) and _has_other_tokens(folder, processing_class):
            warnings.warn(
                printable(
                    f"`adapters`: {path} has a tokenizer of its own with other tokens, but is measured with the base model's. If it was "
                    "trained with its own, name it alone, as `model_name_or_path`. Otherwise copy the base model's tokenizer there."
                )
            )


def _has_other_tokens(folder: Path, processing_class: ProcessingClass) -> bool:
    """Whether the tokenizer in a folder gives a token of `processing_class` another number. One that cannot be read has none."""
    vocabulary = get_tokenizer(processing_class).get_vocab()
    try:
        own = Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab()
    except Exception:  # the library has no other type for a missing or damaged file
        return False
    return any(own.get(token) != number for token, number in vocabulary.items())


def warn_of_revisions(paths: Sequence[str], base_model: str, revision: str | None) -> None:
    """Warns of adapters that were trained at another commit of the base model, which has been loaded at `revision`."""
    name = resolve_model(base_model)
    folder = None if os.path.isdir(name) else folder_of(name, revision)
    for path in paths:
        own_folder = str(_folder(path))
        config = PeftConfig.from_pretrained(own_folder) if is_adapter_folder(own_folder) else None
        if folder is None or config is None or config.base_model_name_or_path != base_model:
            continue
        own = config.revision
        if re.fullmatch("[0-9a-f]{40}", own or "") and own != folder.name:
            warnings.warn(
                printable(
                    f"`adapters`: {path} was trained on {base_model} at the revision {own}, and is measured at {folder.name}. Give "
                    "`model_revision`, unless that is the same model."
                )
            )


def warn_of_bases(paths: Sequence[str], model_name: str) -> None:
    """Warns of adapters that were trained on other weights than those that the local folder of their base model has now."""
    config = PeftConfig.from_pretrained(model_name) if is_adapter_folder(model_name) else None
    base_model = model_name if config is None else config.base_model_name_or_path
    folder = Path(resolve_model(base_model))
    trained = {path: _card_data(Path(path)).get(BASE_WEIGHTS) for path in paths if is_adapter_folder(path)}
    now = weights_digest(folder) if any(trained.values()) else None
    for path, digest in trained.items():
        if digest is not None and now is not None and digest != now:
            warnings.warn(
                printable(
                    f"{path} was trained on a base model in a folder, and {base_model} has other weights now: it is not measured on the "
                    "model that it was trained on. Train it again, or put the earlier weights back."
                )
            )


def warn_of_changed_bases(paths: Sequence[str], model_name: str, revision: str | None = None) -> None:
    """
    Warns of adapters that were trained on a base model that had been changed after it was loaded, as their cards say: its files, which
    are measured, have another one. Adapters that name another base model than that are left out.
    """
    for path in paths:
        folder = _folder(path, revision if path == model_name else None)
        changes = _card_data(folder).get(BASE_CHANGES)
        if not changes or not isinstance(changes, list) or not is_adapter_folder(str(folder)):
            continue
        base_model = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
        if path == model_name or os.path.realpath(base_model or "") == os.path.realpath(resolve_model(model_name)):
            warnings.warn(
                printable(
                    f"{path} was trained on a base model that had been changed after it was loaded ({', '.join(map(str, changes))}), and is "
                    f"measured on {base_model} as its files are: it may do something else there. Save the changed model in a folder of its "
                    "own, and measure the adapter on that."
                )
            )


def warn_of_variables(
    paths: Sequence[str], answering: Sequence[Mapping[str, Any]], revision: str | None = None
) -> None:
    """
    Warns of adapters and models (at a `revision`) that were trained with variables of the chat template, as their cards say,
    which they are not given: `answering` has the variables of each prompt.
    """
    for path in paths:
        trained = _trained_variables(_folder(path, revision))
        other = next((of for of in answering if any(of.get(name) != value for name, value in trained.items())), None)
        if other is not None:
            said = json.dumps(trained)
            warnings.warn(
                printable(
                    f"{path} was trained with `chat_template_kwargs` {said}, and answers with {json.dumps(other, default=str)}: it reads "
                    f"other prompts than in its training. Give `--chat_template_kwargs '{said}'`, unless that is meant."
                )
            )


def _trained_variables(folder: Path) -> dict[str, Any]:
    """Returns the variables of the chat template in the card of a folder, as a training has written it."""
    found = _card_data(folder).get("chat_template_kwargs")
    return found if isinstance(found, dict) else {}


def _card_data(folder: Path) -> dict[str, Any]:
    """Returns the metadata in the card of a folder; empty if there is none that can be read."""
    card: Any = None
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        card = metadata_load(folder / CARD)
    return card if isinstance(card, dict) else {}


def warn_of_trained_pairs(paths: Sequence[str], pairs: Mapping[str, np.ndarray]) -> None:
    """Warns of folders of models that were trained on some of the pairs, with both prompts, as the files beside them say."""
    for path in paths:
        for found in trained_pairs_in(path, pairs):
            warnings.warn(printable(f"{path} was trained on {found}"))


def trained_pairs_in(path: str, pairs: Mapping[str, np.ndarray]) -> list[str]:
    """
    Returns on how many of the pairs of each set, by its name, the model in a folder was trained, and what that means. `pairs` has
    their digests.
    """
    trained = read_digests(path)
    counts = {name: among(digests, trained) for name, digests in pairs.items()}
    return [
        f"{count} of the {len(pairs[name])} row(s){f' of {name}' if name else ''}: what is measured on them shows how well they were "
        "learned, not what is held out. Measure it on rows that it was not trained on."
        for name, count in counts.items()
        if count
    ]


def warn_of_quantization(paths: Sequence[str], model: Any) -> None:
    """
    Warns of folders of adapters that were trained on quantized weights if those of `model` are not so, and of such that were trained on
    weights that are not quantized if those of `model` are.
    """
    here = words_of(quantization_of(model))
    for path in paths:
        folder = _folder(path)
        trained = words_of(_trained_quantization(folder)) if is_adapter_folder(str(folder)) else here
        # Of weights that another library quantized, an earlier version noted nothing.
        is_noted = here in ("in 4 bits", "in 8 bits") and _was_trained_whole(folder)
        if trained == here or (trained is None and not is_noted):
            continue
        remedy = "In Python, load the model as it was trained, and give it to `evaluate`."
        if trained is None:
            remedy = "Measure it without `load_in_4bit`."
        elif trained == "in 4 bits":
            remedy = "`trl-consistency evaluate --load_in_4bit true` loads them in 4 bits."
        elif trained == "in 8 bits":
            remedy = "No command loads them in 8 bits. In Python, load the model so, and give it to `evaluate`."
        warnings.warn(
            printable(
                f"{path} was trained on weights {trained or 'that are not quantized'}, and is measured on weights "
                f"{here or 'that are not'}: it answers otherwise than in its training. {remedy}"
            )
        )


def quantization_in_4_bits(paths: Sequence[str]) -> BitsAndBytesConfig:
    """
    Returns how a model is loaded in 4 bits to measure adapters on it: as they were trained, by their folders, or where none says
    it, as the recipes do. Raises [`ConsistencyError`] for two that were trained on different weights.
    """
    default = {name: values[0] for name, values in OF_4_BITS.items()}
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        folder = _folder(path)
        said = _trained_quantization(folder) if is_adapter_folder(str(folder)) else {}
        if said.get("load_in_4bit") is True and all(said.get(name) in of for name, of in OF_4_BITS.items()):
            found[path] = {name: said[name] for name in OF_4_BITS}
    (first, of_first), *others = found.items() or [("", default)]
    for other, of_other in others:
        if of_other != of_first:
            raise ConsistencyError(
                f"`load_in_4bit`: {first} was trained on {json.dumps(of_first)}, and {other} on {json.dumps(of_other)}: these are "
                "different weights. Measure the adapters one by one."
            )
    return BitsAndBytesConfig(load_in_4bit=True, **of_first)


def _trained_quantization(folder: Path) -> dict[str, Any]:
    """
    Returns the options of the quantization with which an adapter was trained. Its card says them, or in a checkpoint the state of the
    trainer. Empty if neither does.
    """
    said = _run_of_checkpoint(folder).get("quantization")
    return {**(said if isinstance(said, dict) else {}), **_card_data(folder)}


def _was_trained_whole(folder: Path) -> bool:
    """Whether an adapter of this package was trained on weights that are not quantized, which its card or checkpoint would say."""
    if "quantization" in _run_of_checkpoint(folder):
        return True
    tags = _card_data(folder).get("tags")
    return isinstance(tags, list) and "trl-consistency" in tags


def _run_of_checkpoint(folder: Path) -> dict[str, Any]:
    """Returns what the state of a trainer says of its run; empty for other folders."""
    run: Any = None
    with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        state = json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        run = state["stateful_callbacks"]["manifest"]["run"]
    return run if isinstance(run, dict) else {}


def warn_of_ends(paths: Sequence[str], model: Any, processing_class: ProcessingClass) -> None:
    """Warns of folders of adapters whose answers end with another token, which ends no answer of `model`."""
    ends = end_tokens(model, processing_class)
    for path in paths:
        folder = _folder(path)
        own = _end_token(folder) if is_adapter_folder(str(folder)) else None
        if own is not None and get_tokenizer(processing_class).convert_tokens_to_ids(own) not in ends:
            warnings.warn(
                printable(
                    f"`adapters`: {path} ends its answers with {own}, where the base model does not stop: they go on past their end. To "
                    "measure it with its own tokenizer, name it alone, as `model_name_or_path`."
                )
            )


def _end_token(folder: Path) -> str | None:
    """Returns the token that ends an answer in the tokenizer's file of a folder, or None if there is none that can be read."""
    token = _tokenizer_config(folder).get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _chat_template(folder: Path) -> str | None:
    """Returns the chat template in the files of a folder, or None if there is none that can be read."""
    file = folder / CHAT_TEMPLATE_FILE
    with suppress(OSError, ValueError):
        if file.is_file():
            return read_at_most(file, TEMPLATE_FILES[file.name])
    template = _tokenizer_config(folder).get("chat_template")
    if isinstance(template, list):  # of several by name
        named = (of for of in template if isinstance(of, dict) and of.get("name") == "default")
        template = next(named, {}).get("template")
    return template if isinstance(template, str) else None


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns what the tokenizer's file in a folder says; empty if there is none that can be read."""
    content: Any = None
    file = folder / TOKENIZER_CONFIG
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_at_most(file, TEMPLATE_FILES[file.name]))
    return content if isinstance(content, dict) else {}

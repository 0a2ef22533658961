"""Digests of the pairs that a model was trained on. They stand beside its weights, so that an evaluation can warn of the same pairs."""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from ..files import write_bytes
from ..log import get_logger
from .folders import TRAINED_PAIRS
from .messages import without_none
from .pairs import PROMPT_COLUMNS
from .rendering import Prompt, message_text
from .repeats import documents_of, normal_text


logger = get_logger(__name__)


def digests_of(pairs: Dataset | Sequence[Mapping[str, Any]], are_anchors: bool = False) -> np.ndarray:
    """
    Returns digests of pairs of prompts as they are written, and not as a chat template renders them: another date in it, another
    system message before both prompts, or spaces at the ends of lines, make no other pair.

    Args:
        pairs ([`~datasets.Dataset`] or `Sequence[Mapping[str, Any]]`):
            Pairs, with the columns `clean_prompt` and `perturbed_prompt`. The `documents` in their `chat_template_kwargs` count, too.
        are_anchors (`bool`, *optional*, defaults to `False`):
            Whether the clean prompt is trained on as both prompts, whatever the other one is.

    Returns:
        `np.ndarray` of `uint64`, of shape `(rows,)`: The digest of both prompts, for each row.
    """
    clean, other = [PROMPT_COLUMNS[0]] * 2 if are_anchors else PROMPT_COLUMNS
    rows: Iterable[Mapping[str, Any]] = pairs
    if isinstance(pairs, Dataset):
        columns = [name for name in (*PROMPT_COLUMNS, "chat_template_kwargs") if name in pairs.column_names]
        rows = pairs.select_columns(columns).with_format(None)
    return np.array([_digest(row[clean], row[other], documents_of(row)) for row in rows], dtype=np.uint64)


def among(pairs: np.ndarray, digests: np.ndarray) -> int:
    """Returns how many digests of pairs are among others."""
    return int(np.isin(pairs, digests).sum())


def write_digests(folder: str | Path, digests: np.ndarray) -> None:
    """Writes digests into the folder of a model."""
    file = io.BytesIO()
    np.save(file, digests, allow_pickle=False)
    write_bytes(Path(folder) / TRAINED_PAIRS, file.getvalue())


def read_digests(folder: str | Path) -> np.ndarray:
    """
    Returns the digests of the pairs that the model in a folder was trained on; none if they are not known. Warns of a file that is
    damaged.
    """
    path = Path(folder) / TRAINED_PAIRS
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):  # there is no such file, or it is damaged
        found = None
    if getattr(found, "dtype", None) == np.uint64:
        return found
    if path.is_file():
        logger.warning(
            f"{path} is damaged, or a pointer of Git LFS: which pairs the model was trained on is not known. Copy the file again."
        )
    return np.array([], dtype=np.uint64)


def _digest(clean: Prompt, perturbed: Prompt, documents: Any) -> int:
    sides = [_written(clean), _written(perturbed)]
    begin, other = (side[0] if isinstance(side, list) else None for side in sides)
    if begin is not None and begin == other and begin["role"] in ("system", "developer"):
        sides = [side[1:] for side in sides]
    text = json.dumps([*sides, documents] if documents else sides, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _written(prompt: Prompt) -> Prompt:
    """Returns a prompt without what a data set adds to its messages, and with their content as text that says the same."""
    if isinstance(prompt, str):
        return normal_text(prompt)
    return [{**without_none(message), "content": normal_text(message_text(message))} for message in prompt]

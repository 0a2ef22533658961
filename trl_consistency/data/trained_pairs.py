"""Digests of the pairs that a model was trained on. They stand beside its weights, so that an evaluation can warn of the same pairs."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from ..files import write_bytes
from .folders import TRAINED_PAIRS


_SIDES = ("clean_ids", "perturbed_ids")


def digests_of(pairs: Dataset) -> np.ndarray:
    """
    Returns digests of pairs of prompts.

    Args:
        pairs ([`~datasets.Dataset`]):
            Rendered pairs, with the columns `clean_ids` and `perturbed_ids`.

    Returns:
        `np.ndarray` of `uint64`, of shape `(rows,)`: The digest of both prompts' tokens, for each row.
    """
    found: list[int] = []
    for table in pairs.select_columns(list(_SIDES)).with_format("arrow").iter(batch_size=10_000):
        found += map(_digest, *(_split(table[side]) for side in _SIDES))
    return np.array(found, dtype=np.uint64)


def among(pairs: Dataset | Sequence[Mapping[str, Any]], digests: np.ndarray) -> int:
    """Returns how many rendered pairs have one of these digests."""
    if not isinstance(pairs, Dataset):
        pairs = Dataset.from_dict({side: [row[side] for row in pairs] for side in _SIDES})
    return int(np.isin(digests_of(pairs), digests).sum())


def write_digests(folder: str | Path, digests: np.ndarray) -> None:
    """Writes digests into the folder of a model."""
    file = io.BytesIO()
    np.save(file, digests, allow_pickle=False)
    write_bytes(Path(folder) / TRAINED_PAIRS, file.getvalue())


def read_digests(folder: str | Path) -> np.ndarray:
    """Returns the digests of the pairs that the model in a folder was trained on; none if they are not known."""
    try:
        found = np.load(Path(folder) / TRAINED_PAIRS, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):  # there is no such file, or it is damaged
        found = None
    return found if getattr(found, "dtype", None) == np.uint64 else np.array([], dtype=np.uint64)


def _split(column: Any) -> list[np.ndarray]:
    """Returns the lists of an Arrow column as arrays."""
    ends = np.cumsum(pc.list_value_length(column).to_numpy())
    return np.split(pc.list_flatten(column).to_numpy().astype(np.int32), ends[:-1])


def _digest(*sides: np.ndarray) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for ids in sides:
        digest.update(np.int32(len(ids)).tobytes() + ids.tobytes())
    return int.from_bytes(digest.digest(), "little")

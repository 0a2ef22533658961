"""Tells held-out rows that are trained on: what is measured of them shows how well they were learned."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from ...data.prepare import is_prepared
from ...log import get_logger


logger = get_logger(__name__)

_SIDES = ("clean_ids", "perturbed_ids")


def warn_of_trained_rows(
    name: str, rows: Iterable[Mapping[str, Any]], trained: Any, kind: str = "training pairs"
) -> None:
    """
    Logs a warning if rendered rows of the data set `name` (in words) are among those of `trained`, token for token. A stream, and rows
    that are not rendered yet, are skipped.
    """
    if not isinstance(trained, Dataset) or not is_prepared(trained):
        return
    keys = [_key(row) for row in rows]
    found = _among(set(keys), trained)
    if count := sum(key in found for key in keys):
        logger.warning(
            f"{name}: {count} of {len(keys)} row(s) are among the {kind}, and what is measured on them shows how well they were "
            "learned, not what is held out. Take rows that are not trained on."
        )


def _among(wanted: set[tuple], dataset: Dataset) -> set[tuple]:
    """Returns which of the keys rows of a prepared data set have. Only rows of the wanted lengths become Python objects."""
    lengths = {tuple(map(len, key)) for key in wanted}
    found: set[tuple] = set()
    for table in dataset.select_columns(list(_SIDES)).with_format("arrow").iter(batch_size=10_000):
        sizes = zip(*(pc.list_value_length(table[side]).to_pylist() for side in _SIDES), strict=True)
        places = [place for place, of_row in enumerate(sizes) if of_row in lengths]
        found |= wanted & {_key(row) for row in table.take(np.array(places, dtype=np.int64)).to_pylist()}
    return found


def _key(row: Mapping[str, Any]) -> tuple:
    return tuple(tuple(row[side]) for side in _SIDES)

"""Tells held-out rows that are trained on: what is measured of them shows how well they were learned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from ...data.prepare import is_prepared
from ...data.trained_pairs import among, digests_of
from ...log import get_logger


logger = get_logger(__name__)


def warn_of_trained_rows(
    name: str,
    rows: Dataset | Sequence[Mapping[str, Any]],
    pairs: Any,
    anchors: Any = None,
    kind: str = "training pairs",
) -> None:
    """
    Logs a warning if rows of the data set `name` (in words) are, with both prompts, among the training `pairs`, or have an anchor's
    prompt as both. The `kind` says in words what they are among. A stream, and rows that are not rendered yet, are skipped.
    """
    trained = [
        digests_of(of, are_anchors=of is anchors)
        for of in (pairs, anchors)
        if isinstance(of, Dataset) and is_prepared(of)
    ]
    if trained and (count := among(digests_of(rows), np.concatenate(trained))):
        logger.warning(
            f"{name}: {count} of {len(rows)} row(s) are among the {kind}, and what is measured on them shows how well they were "
            "learned, not what is held out. Take rows that are not trained on."
        )

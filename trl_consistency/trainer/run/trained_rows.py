"""Tells held-out rows that are trained on: what is measured of them shows how well they were learned."""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

from ...data.prepare import is_prepared
from ...data.trained_pairs import among, digests_of
from ...log import get_logger


logger = get_logger(__name__)


def warn_of_trained_rows(
    name: str, rows: Dataset | Sequence[Mapping[str, Any]], trained: Any, kind: str = "training pairs"
) -> None:
    """
    Logs a warning if rows of the data set `name` (in words) are among those of `trained`, with both prompts. A stream, and rows that
    are not rendered yet, are skipped.
    """
    if not isinstance(trained, Dataset) or not is_prepared(trained):
        return
    if count := among(digests_of(rows), digests_of(trained, are_anchors=kind == "anchors")):
        logger.warning(
            f"{name}: {count} of {len(rows)} row(s) are among the {kind}, and what is measured on them shows how well they were "
            "learned, not what is held out. Take rows that are not trained on."
        )

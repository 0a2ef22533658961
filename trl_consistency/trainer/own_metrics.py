"""The metrics that a caller's `compute_metrics` returns, beside those of a trainer."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..errors import ConsistencyError


def same_name(name: str) -> ConsistencyError:
    """Returns the error for a metric that the trainer has, too."""
    return ConsistencyError(
        f"`compute_metrics` returns `{name}`, and the trainer has a metric of that name. Rename yours."
    )


def without_loss(compute_metrics: Callable[..., Any] | None, full_name: str) -> Callable[..., Any] | None:
    """
    Returns `compute_metrics`, which then raises [`ConsistencyError`] for a metric `loss`, or of its `full_name`: Trainer puts it in
    place of the mean of the batches, and the trainer would replace it by its own.
    """
    if compute_metrics is None:
        return None

    @wraps(compute_metrics)
    def compute(*args: Any, **kwargs: Any) -> Any:
        metrics = compute_metrics(*args, **kwargs)
        for name in ("loss", full_name):
            if name in (metrics or ()):
                raise same_name(name)
        return metrics

    return compute

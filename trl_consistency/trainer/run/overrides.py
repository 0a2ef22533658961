"""Tells which methods of a trainer a caller's subclass overrides."""

from typing import Any

from ...log import get_logger


logger = get_logger(__name__)


def overridden(trainer: Any, name: str) -> str | None:
    """Returns `Class.name` if a caller's subclass overrides this method of the trainer's."""
    for kind in type(trainer).__mro__:
        if kind.__module__.startswith("trl_consistency."):
            return None
        if name in vars(kind):
            return f"{kind.__name__}.{name}"
    return None


def warn_of_overrides(trainer: Any) -> None:
    """Logs a warning if a caller's own loss is not measured, and for a method that nothing calls."""
    if own := overridden(trainer, "create_optimizer_and_scheduler"):
        logger.warning(
            f"transformers no longer calls `{own}`, so the optimizer of the options is used. Override `create_optimizer` and "
            "`create_scheduler`."
        )
    if own := overridden(trainer, "compute_loss"):
        logger.warning(
            f"`{own}` changes only the training loss: evaluations measure the objectives of the config, and the model card names "
            "those. To measure your loss, override `evaluate`, and add it to the metrics under a name of its own."
        )
    if own := overridden(trainer, "prediction_step"):
        logger.warning(
            f"The loss that `{own}` returns is not logged: `eval_loss` is that of the config's objectives, a mean over all rows. To "
            "measure another one, override `evaluate`, and add it to the metrics under a name of its own."
        )

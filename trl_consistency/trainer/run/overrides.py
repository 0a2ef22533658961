"""Tells which methods of a trainer a caller has replaced: in a subclass, or on the trainer itself."""

from typing import Any

from ...log import get_logger


logger = get_logger(__name__)

# What is said of a caller's own method
WARNINGS = {
    "create_optimizer_and_scheduler": (
        "transformers no longer calls `{own}`, so the optimizer of the options is used. Override `create_optimizer` and "
        "`create_scheduler`."
    ),
    "compute_loss": (
        "`{own}` changes only the training loss: evaluations measure the objectives of the config, and the model card names "
        "those. To measure your loss, override `evaluate`, and add it to the metrics under a name of its own."
    ),
    "prediction_step": (
        "The loss that `{own}` returns is not logged: `eval_loss` is that of the config's objectives, a mean over all rows. To "
        "measure another one, override `evaluate`, and add it to the metrics under a name of its own."
    ),
}


def overridden(trainer: Any, name: str) -> str | None:
    """
    Returns `Class.name` if a caller's subclass overrides this method of the trainer's, or a caller put a function in its place in the
    class, and `trainer.name` if it was put on the trainer.
    """
    if name in vars(trainer):
        return f"trainer.{name}"
    for kind in type(trainer).__mro__:
        is_ours = kind.__module__.startswith("trl_consistency.")
        method = vars(kind).get(name)
        if method is not None and not (is_ours and _is_written_here(method)):
            return f"{kind.__name__}.{name}"
        if is_ours:
            return None
    return None


def _is_written_here(method: Any) -> bool:
    """Returns whether a method is of this package: `functools.wraps` copies the name of another one's module, but not its globals."""
    return str(getattr(method, "__globals__", {}).get("__name__", method.__module__)).startswith("trl_consistency.")


def warn_of_overrides(trainer: Any) -> None:
    """Logs a warning, once, if a caller's own loss is not measured, and for a method that nothing calls."""
    for name, warning in WARNINGS.items():
        own = overridden(trainer, name)
        if own and own not in trainer.warned_methods:
            trainer.warned_methods.add(own)
            logger.warning(warning.format(own=own))

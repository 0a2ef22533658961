"""Tells the losses of a trainer's own evaluation sets from each other, and from those of other sets, in Trainer's log."""

from typing import Any

from ...data.pairs import AnyDataset
from ...history import OF_SET
from .manifest import describe_rows


def is_another_set(trainer: Any, dataset: AnyDataset, prefix: str) -> bool:
    """Whether the trainer has an evaluation set of other rows than `dataset` whose metrics have the same `prefix`."""
    own = trainer.eval_dataset
    by_prefix = {f"eval_{name}": of_name for name, of_name in own.items()} if isinstance(own, dict) else {"eval": own}
    held_out = by_prefix.get(prefix)
    return held_out is not None and held_out is not dataset and describe_rows(held_out) != describe_rows(dataset)


def mark_losses(entries: list[dict[str, Any]], mark: str, prefix: str) -> None:
    """Marks the losses under `prefix` among entries of Trainer's log, with `OF_ANOTHER_SET` or `OF_BASE`."""
    for entry in entries:
        if f"{prefix}_loss" in entry:
            entry[mark] = True


def name_set(entries: list[dict[str, Any]], name: str, prefix: str) -> None:
    """Names the set in entries of Trainer's log, if the `prefix` of its metrics does not: `evaluate("b")` logs `eval_loss`."""
    if prefix == "eval":
        for entry in entries:
            entry[OF_SET] = name

"""Losses of all rows of an evaluation, independent of batches and processes."""

import torch
from accelerate import Accelerator

from ..losses.row_losses import RowLosses


class EvaluatedRows:
    """Collects the losses of all rows of a set, from all processes."""

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self._names: list[str] = []
        self._rows: list[torch.Tensor] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, by_name: dict[str, RowLosses]) -> None:
        """Adds the rows of a batch. Every batch on every process must have the same names."""
        self._names = list(by_name)
        rows = torch.stack(
            [part.float() for of_rows in by_name.values() for part in (of_rows.sums, of_rows.counts)], 1
        )
        # By row, so that `gather_for_metrics` can drop the rows repeated to fill the last batch.
        self._rows.append(self.accelerator.gather_for_metrics(rows).cpu())

    def by_name(self, rows: int | None = None) -> dict[str, RowLosses]:
        """Returns the losses of the whole set by name, or of its first `rows`: those after them fill up a batch."""
        both = torch.cat(self._rows)[:rows].double().unflatten(1, (-1, 2)).unbind(1)
        return {name: RowLosses(*of_rows.unbind(1)) for name, of_rows in zip(self._names, both, strict=True)}

"""Quantities by row: sums and counts, from which means over any set of rows follow."""

from typing import NamedTuple

import torch
from torch import Tensor


class RowLosses(NamedTuple):
    """
    A quantity on the rows of a batch: its sum over what it counts in each row, and that count, both of shape (B,).

    A tuple, since the wrappers of FSDP and DeepSpeed look for the tensors of an output in nothing else.
    """

    sums: Tensor
    counts: Tensor


def of_batch(value: Tensor, num_rows: int) -> RowLosses:
    """A quantity that a batch has as a whole, as that of each of its rows."""
    return RowLosses(value.expand(num_rows), torch.ones_like(value).expand(num_rows))


def means_of(rows: dict[str, RowLosses]) -> dict[str, float]:
    """Means by name. Nothing counted has no mean: 0 would look like a perfect one."""
    totals = {name: (float(of_rows.sums.sum()), float(of_rows.counts.sum())) for name, of_rows in rows.items()}
    return {name: total / count for name, (total, count) in totals.items() if count}

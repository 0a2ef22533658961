"""Quantities by row, as sums and counts, which give the mean over any set of rows."""

from typing import NamedTuple

import torch
from torch import Tensor


class RowLosses(NamedTuple):
    """
    A quantity on the rows of a batch: its sum in each row (over tokens, for example) and its count, both (B,). It is a
    tuple because the wrappers of FSDP and DeepSpeed find tensors of an output only in tuples.
    """

    sums: Tensor
    counts: Tensor


def of_batch(value: Tensor, num_rows: int) -> RowLosses:
    """Gives each row the value of the whole batch."""
    return RowLosses(value.expand(num_rows), torch.ones_like(value).expand(num_rows))


def means_of(rows: dict[str, RowLosses]) -> dict[str, float]:
    """Returns means by name. A quantity whose count is 0 is left out: a mean of 0 would look perfect."""
    totals = {name: (float(of_rows.sums.sum()), float(of_rows.counts.sum())) for name, of_rows in rows.items()}
    return {name: total / count for name, (total, count) in totals.items() if count}

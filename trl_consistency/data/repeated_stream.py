"""Streamed pairs in training."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import datasets
from torch.utils.data import IterableDataset


class RepeatedStream(IterableDataset):
    """
    A stream that restarts when it ends, in a new order each time if it is shuffled.

    Otherwise the Trainer counts each pass as an epoch of unknown length: a run resumed in the second pass would get
    other rows, and the last rows of a pass could make half a step. In one endless pass, a batch has one number.
    """

    def __init__(self, dataset: datasets.IterableDataset):
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        for number in count():
            self.dataset.set_epoch(number)
            is_empty = True
            for row in self.dataset:
                is_empty = False
                yield row
            if is_empty:  # A worker process may get no rows.
                return

"""Streamed pairs in training and evaluation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import datasets
from torch.utils.data import IterableDataset


# Returns the stream of a pass, by its number from 0. Not a closure where workers may have to be sent it.
Passes: TypeAlias = Callable[[int], Any]


@dataclass
class SamePass:
    """Every pass is through the same stream."""

    dataset: datasets.IterableDataset

    def __call__(self, number: int) -> datasets.IterableDataset:
        return self.dataset


class RepeatedStream(IterableDataset):
    """
    A stream that restarts when it ends, in a new order each time if it is shuffled.

    Otherwise the Trainer counts each pass as an epoch of unknown length: a run resumed in the second pass would get
    other rows, and the last rows of a pass could make half a step. In one endless pass, a batch has one number.
    """

    def __init__(self, passes: Passes):
        self.passes = passes

    def __iter__(self) -> Iterator[Any]:
        for number in count():
            dataset = self.passes(number)
            dataset.set_epoch(number)
            is_empty = True
            for row in dataset:
                is_empty = False
                yield row
            if is_empty:  # A worker process may get no rows.
                return


class CountedStream(IterableDataset):
    """
    A stream that counts its rows. In an evaluation by several processes, accelerate fills the last batch with rows of the
    first, and nothing else tells how many.
    """

    def __init__(self, dataset: datasets.IterableDataset):
        self.dataset = dataset
        self.rows = 0  # of the last pass

    def __iter__(self) -> Iterator[Any]:
        self.rows = 0
        for row in self.dataset:
            self.rows += 1
            yield row

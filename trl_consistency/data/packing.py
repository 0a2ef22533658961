"""Training pairs in packs: as many whole pairs as fit into a number of tokens."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import datasets
from torch.utils.data import Dataset, IterableDataset


ROWS = 1_000  # packed together; TRL packs as many at a time

Pack: TypeAlias = list[Mapping[str, Any]]
LengthOf: TypeAlias = Callable[[Mapping[str, Any]], int]


class PackedPairs(Dataset):
    """Packs of the rows of a data set. `length_of` gives the tokens of a row, and no pack has more than `max_length`."""

    def __init__(self, dataset: datasets.Dataset, length_of: LengthOf, max_length: int):
        self.dataset = dataset
        lengths = [length_of(row) for row in dataset]
        self.packs = [
            [first + row for row in pack]
            for first in range(0, len(lengths), ROWS)
            for pack in best_fit(lengths[first : first + ROWS], max_length)
        ]
        self.filled = sum(lengths) / (len(self.packs) * max_length)

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> Pack:
        return [self.dataset[row] for row in self.packs[index]]


class PackedStream(IterableDataset):
    """Packs of the rows of one pass through a stream."""

    def __init__(self, dataset: datasets.IterableDataset, length_of: LengthOf, max_length: int):
        self.dataset, self.length_of, self.max_length = dataset, length_of, max_length

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Pack]:
        rows = iter(self.dataset)
        while together := list(islice(rows, ROWS)):
            for pack in best_fit([self.length_of(row) for row in together], self.max_length):
                yield [together[row] for row in pack]


@dataclass
class PackedPasses:
    """
    Passes through a stream, each packed by itself: packs across passes would repeat some rows before others had their turn.
    """

    passes: Callable[[int], datasets.IterableDataset]
    length_of: LengthOf
    max_length: int

    def __call__(self, number: int) -> PackedStream:
        return PackedStream(self.passes(number), self.length_of, self.max_length)


def best_fit(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """
    Packs texts, the longest first, each where it leaves the least space. Returns the texts of each pack. Packs are in the
    order of their first texts.
    """
    packs: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # tokens left and the pack that has them, in ascending order
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        place = bisect_left(spaces, (lengths[text], 0))
        if place == len(spaces):
            space, pack = max_length, len(packs)
            packs.append([])
        else:
            space, pack = spaces.pop(place)
        packs[pack].append(text)
        insort(spaces, (space - lengths[text], pack))
    return sorted(sorted(pack) for pack in packs)

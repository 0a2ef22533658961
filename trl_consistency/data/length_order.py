"""Rows of like length together, in an order that a resumed run has, too."""

from collections.abc import Callable, Iterator, Sequence

import torch
from transformers.trainer_pt_utils import LengthGroupedSampler


class LengthOrder(LengthGroupedSampler):
    """
    transformers' sampler, with an order that depends only on the seed and the epoch, whose number `epoch` returns. Its own
    depends on all random numbers that were drawn before: a run that is resumed in its second epoch would train on some rows
    twice, and on others not at all.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, epoch: Callable[[], int]):
        super().__init__(batch_size, lengths=list(lengths), generator=torch.Generator())
        self._seed, self._epoch = seed, epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(self._seed + self._epoch())
        return super().__iter__()

"""In which order prompts are drawn for rollouts."""

from collections.abc import Callable, Iterator, Sized

import torch

from .upstream import RepeatSampler


class RolloutSampler(RepeatSampler):
    """
    TRL's sampler, with an order that depends on the seed and the epoch alone.

    TRL's draws a new permutation each time it is read, so that a run resumed in its second epoch would see the first
    one's order again.

    Args:
        dataset (`Sized`):
            The prompts.
        num_generations (`int`):
            Rollouts a prompt, one after the other.
        num_prompts (`int`):
            Prompts of a batch of rollouts, all processes together. An incomplete last batch is left out.
        repeat_count (`int`):
            How often a batch of rollouts is drawn: once for each micro-batch that is trained on.
        shuffle (`bool`):
            Whether to shuffle the prompts.
        seed (`int`):
            Seed of the order.
        epoch (`Callable[[], int]`):
            Tells the epoch that begins.
    """

    def __init__(
        self,
        dataset: Sized,
        num_generations: int,
        num_prompts: int,
        repeat_count: int,
        shuffle: bool,
        seed: int,
        epoch: Callable[[], int],
    ):
        super().__init__(dataset, num_generations, num_prompts, repeat_count, shuffle, seed)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        # A tensor: as TRL makes it, the order of a million rows would be a hundred megabytes of Python objects.
        order = torch.arange(self.num_samples)
        if self.shuffle:
            self.generator.manual_seed(self.seed + self._epoch())
            order = torch.randperm(self.num_samples, generator=self.generator)
        whole = self.num_samples // self.batch_size * self.batch_size
        for batch in order[:whole].split(self.batch_size):
            for _ in range(self.repeat_count):
                yield from batch.repeat_interleave(self.mini_repeat_count).tolist()

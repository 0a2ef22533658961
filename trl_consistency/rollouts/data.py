"""Batches of prompts for rollouts, and batches of rollouts."""

from collections.abc import Callable, Iterator, Sized
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from datasets import IterableDataset
from torch import Tensor

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..data.anchors import count_anchors
from ..data.pairs import AnyDataset
from ..data.repeated_stream import Passes, RepeatedStream
from ..data.thinking import other_thought, thought_spans, warnings_of_markers
from ..errors import InvalidPairsError
from ..log import get_logger
from ..upstream import RepeatSampler, pad, repeat_iterable_dataset
from .metrics import is_truncated
from .types import Rollouts


logger = get_logger(__name__)


class RolloutSampler(RepeatSampler):
    """
    TRL's sampler, with an order that depends only on the seed and the epoch, whose number `epoch` returns. An
    incomplete last batch of rollouts is left out, and each batch is repeated for every micro-batch that trains on it.

    TRL's sampler draws a new permutation at each iteration, so a run that resumes in its second epoch would get the
    order of the first one again.
    """

    def __init__(self, dataset: Sized, args: OnPolicyConsistencyConfig, epoch: Callable[[], int]):
        super().__init__(
            dataset,
            args.num_generations,
            prompts_per_generation(args),
            cast(int, args.steps_per_generation) * args.num_iterations,
            bool(args.shuffle_dataset),
            order_seed(args),
        )
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        # TRL's list of Python integers would take a hundred megabytes for a million rows.
        order = torch.arange(self.num_samples)
        if self.shuffle:
            self.generator.manual_seed(self.seed + self._epoch())
            order = torch.randperm(self.num_samples, generator=self.generator)
        whole = self.num_samples // self.batch_size * self.batch_size
        for batch in order[:whole].split(self.batch_size):
            for _ in range(self.repeat_count):
                yield from batch.repeat_interleave(self.mini_repeat_count).tolist()


def order_seed(args: OnPolicyConsistencyConfig) -> int:
    """Returns the seed of the order of the prompts."""
    return args.seed if args.data_seed is None else args.data_seed


def prompts_per_generation(args: OnPolicyConsistencyConfig) -> int:
    """Returns the number of prompts in one batch of rollouts, over all processes."""
    rollouts = args.per_device_train_batch_size * cast(int, args.steps_per_generation)
    return rollouts * args.world_size // args.num_generations


def repeated_stream(passes: Passes, args: OnPolicyConsistencyConfig) -> RepeatedStream:
    """Returns an endless stream that repeats each prompt for its rollouts, and each batch for its micro-batches."""
    return RepeatedStream(partial(_repeated_prompts, passes, args))


def _repeated_prompts(passes: Passes, args: OnPolicyConsistencyConfig, number: int) -> IterableDataset:
    dataset = passes(number)
    return repeat_iterable_dataset(
        dataset.shuffle(seed=order_seed(args)) if args.shuffle_dataset else dataset,
        mini_repeat_count=args.num_generations,
        batch_size=prompts_per_generation(args),
        repeat_count=cast(int, args.steps_per_generation) * args.num_iterations,
    )


def check_batches(dataset: AnyDataset, args: OnPolicyConsistencyConfig) -> None:
    """
    Raises [`InvalidPairsError`] if the data set has fewer prompts than one batch of rollouts. Warns if epochs leave
    out rows, or if batches split the rollouts of a prompt.
    """
    needed, is_stream = prompts_per_generation(args), isinstance(dataset, IterableDataset)
    pairs = sum(1 for _ in islice(dataset, needed)) if is_stream else len(dataset)
    rows = pairs + (0 if is_stream else count_anchors(pairs, args.anchor_ratio))
    if rows < needed:
        raise InvalidPairsError(
            f"`train_dataset` has {rows} row(s), fewer than the {needed} prompts of one batch of rollouts "
            f"(`num_generations` {args.num_generations}). Use smaller batches, or more rollouts a prompt."
        )
    left_out = "the rows at the end of the stream" if is_stream else f"{rows % needed} of {rows} rows"
    which = "others each time" if args.shuffle_dataset else "the same each time, which are never trained on"
    if (rows % needed and not is_stream) or (is_stream and not args.shuffle_dataset):
        logger.warning(
            f"Each epoch leaves out {left_out}, {which}: {needed} prompts make a batch of rollouts, and an incomplete batch is "
            f"not used.{'' if args.shuffle_dataset else ' Set `shuffle_dataset: true` to train on all of them.'}"
        )
    batch, group = args.per_device_train_batch_size, args.num_generations
    if args.share_prefix and batch % group:
        logger.warning(
            f"`per_device_train_batch_size` ({batch}) is not a multiple of `num_generations` ({group}): rollouts of "
            "one prompt fall into several batches, and each computes the prompt again. "
            f"{-(-batch // group) * group} would avoid that."
        )


def repeated(dataset: AnyDataset, args: OnPolicyConsistencyConfig) -> AnyDataset:
    """Repeats each row for its rollouts, because distributed evaluation counts the rows of the data set."""
    rollouts = args.num_generations_eval or args.num_generations
    if isinstance(dataset, IterableDataset):
        return repeat_iterable_dataset(dataset, mini_repeat_count=rollouts)
    return dataset.select(np.arange(len(dataset)).repeat(rollouts))


def padded(name: str, rows: list[list[int]], side: str, pad_token_id: int, multiple: int | None) -> Rollouts:
    """Pads rows of token ids to a batch, `{name}_ids` and `{name}_mask`, each (B, T)."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    parts = {"ids": (ids, pad_token_id), "mask": ([torch.ones_like(row) for row in ids], 0)}
    return {
        f"{name}_{part}": pad(tensors, padding_value=value, padding_side=side, pad_to_multiple_of=multiple)
        for part, (tensors, value) in parts.items()
    }


def loss_mask(
    rollouts: Rollouts, args: OnPolicyConsistencyConfig, tokenizer: Any, ends: list[int], longest: int
) -> Tensor:
    """
    Returns the mask of the compared tokens, (B, T). The rollouts had at most `longest` tokens, fewer than
    `max_completion_length` under a `completion_length_schedule`, which truncates none.
    """
    mask = rollouts["completion_mask"].clone()
    lengths = mask.sum(1)
    if args.mask_truncated_completions and longest >= cast(int, args.max_completion_length):
        mask[is_truncated(rollouts, ends)] = 0
    if not args.train_on_thinking:
        opening, closing = args.thinking_markers
        prompts = (rollouts["prompt_ids"], rollouts["prompt_mask"])
        for row, (prompt_ids, prompt_mask) in enumerate(zip(*prompts, strict=True)):
            completion_ids = rollouts["completion_ids"][row, : lengths[row]].tolist()
            prompt = prompt_ids[prompt_mask.bool()].tolist()
            for start, end in thought_spans(prompt, completion_ids, tokenizer, (opening, closing)):
                mask[row, start:end] = 0
    return mask


def warn_of_thoughts(rollouts: Rollouts, args: OnPolicyConsistencyConfig, tokenizer: Any) -> bool:
    """Logs a warning if rollouts have thoughts that `train_on_thinking: false` does not leave out, and returns whether they have."""
    opening, closing = args.thinking_markers
    others = (other_thought(tokenizer.decode(ids), (opening, closing)) for ids in rollouts["completion_ids"])
    warnings = warnings_of_markers(others, "rollouts", "`train_on_thinking: false` leaves in")
    for warning in warnings:
        logger.warning(warning)
    return bool(warnings)

"""Metrics of rollouts: their lengths, and how rollouts and the student compare with the clean answers."""

from itertools import takewhile
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..data.collators import PairCollator
from ..data.target_table import TargetTable
from ..errors import ConsistencyError
from ..generation.options import evaluating
from ..generation.targets import generate_targets
from ..losses.paired import Objectives, PairedLoss
from ..losses.row_losses import RowLosses
from ..models.sharding import shape_of
from ..passes.blocks import find_blocks
from ..passes.reference import GivenReference, Reference
from .loss import Rollouts


LENGTHS = ("length", "terminated_length")


def is_truncated(rollouts: Rollouts, ends: list[int]) -> Tensor:
    """Whether rollouts lack an end-of-turn token, (B,)."""
    lengths = rollouts["completion_mask"].sum(1)
    last = rollouts["completion_ids"].gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    return ~torch.isin(last, torch.tensor(ends, device=last.device))


def completion_lengths(rollouts: Rollouts, ends: list[int]) -> dict[str, RowLosses]:
    """Returns the lengths, in tokens, of all rollouts and of terminated ones, for [`length_metrics`]."""
    lengths, is_terminated = rollouts["completion_mask"].sum(1), ~is_truncated(rollouts, ends)
    counts = (torch.ones_like(lengths), is_terminated)
    return {
        f"completions/{name}": RowLosses(lengths * count, count) for name, count in zip(LENGTHS, counts, strict=True)
    }


def length_metrics(rows: dict[str, RowLosses]) -> dict[str, float]:
    """Removes the lengths from `rows` and returns the length metrics that [`~trl.DistillationTrainer`] logs."""
    metrics: dict[str, float] = {}
    for name in LENGTHS:
        of_rows = rows.pop(f"completions/{name}")
        counted = of_rows.sums[of_rows.counts > 0]
        if name == "terminated_length":
            metrics["completions/clipped_ratio"] = 1 - len(counted) / len(of_rows.sums)
        if len(counted):
            for kind, value in (("mean", counted.mean()), ("min", counted.min()), ("max", counted.max())):
                metrics[f"completions/{kind}_{name}"] = float(value)
    return metrics


def correct_lengths(metrics: dict[str, list[float]], rollouts: Rollouts, ends: list[int], accelerator: Any) -> None:
    """
    Corrects what [`~trl.DistillationTrainer`] has logged of a batch's terminated rollouts: it counts a rollout whose last
    token is the padding token among them, and logs the length 0 if there are none.
    """
    lengths = accelerator.gather(rollouts["completion_mask"].sum(1))
    truncated = accelerator.gather(is_truncated(rollouts, ends))
    terminated = lengths[~truncated].float()
    metrics["completions/clipped_ratio"][-1] = truncated.float().mean().item()
    for kind in ("mean", "min", "max"):
        name = f"completions/{kind}_terminated_length"
        metrics[name].pop()
        if len(terminated):
            metrics[name].append(getattr(terminated, kind)().item())
        elif not metrics[name]:
            del metrics[name]


class CleanAnswers:
    """
    Provides the answers to the clean prompts, by row: the pair's completion if it has one or, with
    `log_consistency_metrics`, the reference's greedy answer, generated once per distinct prompt. Anchors have none.
    """

    def __init__(
        self,
        args: OnPolicyConsistencyConfig,
        reference: Reference,
        accelerator: Accelerator,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: list[int],
    ):
        self.args, self.reference, self.accelerator = args, reference, accelerator
        self.eos_token_ids, self.pad_token_id = eos_token_ids, tokenizer.pad_token_id
        self._greedy = TargetTable()

    def __call__(self, model: nn.Module, rows: list[dict[str, Any]]) -> list[list[int]]:
        """Returns token ids, empty without an answer. With `log_consistency_metrics`, all processes must call this."""
        given = [_given_answer(row) for row in rows]
        if not self.args.log_consistency_metrics:
            return [answer or [] for answer in given]
        wanted = [row["clean_ids"] for row, answer in zip(rows, given, strict=True) if answer is None]
        self._generate(model, self._greedy.missing(gather_object(wanted)))
        return [
            self._greedy[row["clean_ids"]] if answer is None else answer
            for row, answer in zip(rows, given, strict=True)
        ]

    def _generate(self, model: nn.Module, prompts: list[list[int]]) -> None:
        if not prompts:
            return
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.args.max_completion_length,
            pad_token_id=self.pad_token_id,
            eos_token_id=self.eos_token_ids,
            cache_implementation=self.args.cache_implementation,
            disable_compile=True,
        )
        with self.reference.active(model) as frozen:
            answers = generate_targets(
                frozen, prompts, config, self.args.per_device_train_batch_size, self.args.seed, progress=False
            )
        for prompt_ids, answer in zip(prompts, answers, strict=True):
            self._greedy[prompt_ids] = answer

    def compare(self, answers: list[list[int]], rollouts: Rollouts) -> Tensor:
        """
        Returns, (B,), whether each rollout has the same tokens as the clean answer up to the end of the turn: 1 or 0,
        or -1 without a clean answer.
        """
        completions = [
            completion_ids[:length]
            for completion_ids, length in zip(
                rollouts["completion_ids"].tolist(), rollouts["completion_mask"].sum(1).tolist(), strict=True
            )
        ]
        equals = [
            int(self._without_end(answer) == self._without_end(completion_ids)) if answer else -1
            for answer, completion_ids in zip(answers, completions, strict=True)
        ]
        return torch.tensor(equals, device=rollouts["completion_ids"].device)

    def _without_end(self, ids: list[int]) -> list[int]:
        return list(takewhile(lambda token: token not in self.eos_token_ids, ids))


def _given_answer(row: dict[str, Any]) -> list[int] | None:
    """Returns a row's own answer: empty for an anchor, None if it must be generated."""
    return [] if row["clean_ids"] == row["perturbed_ids"] else row.get("completion_ids")


class PairMetrics:
    """
    Computes the `log_consistency_metrics` of [`ConsistencyTrainer`] on the pairs of a batch of rollouts. Raises
    [`ConsistencyError`] if the reference has another shape: residual streams are compared block by block.
    """

    def __init__(self, model: Any, reference: Reference, pad_token_id: int):
        if isinstance(reference, GivenReference):
            both: list[Any] = [model, reference.model]
            shapes = [(len(find_blocks(of)), shape_of(of.get_input_embeddings().weight)[1]) for of in both]
            if shapes[0] != shapes[1]:
                raise ConsistencyError(
                    "`log_consistency_metrics` compares hidden states block by block, and `ref_model` has "
                    f"{shapes[1][0]} blocks of size {shapes[1][1]} where the model has {shapes[0][0]} of size "
                    f"{shapes[0][1]}. Leave it out."
                )
        # Without objectives, only the metrics are computed.
        self._paired_loss = PairedLoss(Objectives([], log_consistency_metrics=True), model, reference)
        self._collator = PairCollator(pad_token_id=pad_token_id, with_reference=True)

    @torch.no_grad()
    def __call__(self, model: nn.Module, rollouts: Rollouts) -> dict[str, RowLosses]:
        """Returns the metrics by rollout. `rollouts` must hold the clean answers, `answer_ids` and `answer_mask`."""
        sides = [
            [
                tuple(ids[mask.bool()].tolist())
                for ids, mask in zip(rollouts[f"{side}_ids"], rollouts[f"{side}_mask"], strict=True)
            ]
            for side in ("clean", "prompt", "answer")
        ]
        rows = list(zip(*sides, strict=True))
        is_pair = (~rollouts["is_anchor"]).tolist()
        # If the batch has only anchors, one still runs: the names are the same, and the counts are 0.
        distinct = list(dict.fromkeys(row for row, pair in zip(rows, is_pair, strict=True) if pair)) or rows[:1]
        names = ("clean_ids", "perturbed_ids", "completion_ids")
        batch = self._collator([dict(zip(names, map(list, row), strict=True)) for row in distinct])
        device = rollouts["prompt_ids"].device
        with evaluating(model):  # neither dropout nor gradient checkpointing
            _, watched = self._paired_loss(model, {name: value.to(device) for name, value in batch.items()})
        place = {row: index for index, row in enumerate(distinct)}
        of_row = torch.tensor([place.get(row, -1) for row in rows], device=device)
        return {
            name: RowLosses(*(torch.where(of_row < 0, 0, part[of_row]) for part in (of_pairs.sums, of_pairs.counts)))
            for name, of_pairs in watched.items()
        }

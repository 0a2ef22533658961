"""Metrics of rollouts: their lengths, and how they compare with the clean answers."""

from itertools import takewhile
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..data.target_table import TargetTable
from ..generation.targets import generate_targets
from ..losses.row_losses import RowLosses
from ..passes.reference import Reference
from .types import Rollouts


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

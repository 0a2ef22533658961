"""The metrics of [`ConsistencyTrainer`] on the pairs of rollouts: how the student compares with the clean answers."""

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.collators import PairCollator
from ..errors import ConsistencyError
from ..generation.options import evaluating
from ..losses.paired import AnswerStates, Objectives, PairedLoss
from ..losses.row_losses import RowLosses
from ..models.sharding import shape_of
from ..passes.blocks import find_blocks
from ..passes.capture import States
from ..passes.prompt_states import PromptStates
from ..passes.reference import GivenReference, Reference
from .types import Rollouts


# Of [`PrefixSharing`]: prompts, left-padded, and completions, right-padded, each with its mask
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass
class RolloutPairs:
    """The P distinct pairs of B rollouts, and what the reference runs on the clean side: their prompts and answers."""

    batch: dict[str, Tensor]  # of `PairCollator`, for the student
    of_row: Tensor  # (B,), the pair of each rollout, -1 for anchors
    inputs: Inputs  # of the reference, each (P, ...)
    clean_states: PromptStates  # what it keeps of the prompts

    @property
    def is_answer(self) -> Tensor:
        """The tokens of the answers, (P, T)."""
        return self.inputs[3].bool()

    def join(self, rollouts: Inputs) -> Inputs | None:
        """
        Returns the rollouts of the clean prompts with the answers after them, (B + P, ...), or None if a pass of their own is
        cheaper: in one pass, all completions are padded to the longest.
        """
        rows, (pairs, prompt) = len(rollouts[0]), self.inputs[0].shape
        ours, theirs = (int(of[3].sum(1).max()) for of in (rollouts, self.inputs))
        if (rows + pairs) * max(ours, theirs) > rows * ours + pairs * (prompt + theirs):
            return None
        prompts = (torch.cat([rollouts[part], self.inputs[part]]) for part in (0, 1))
        width = max(rollouts[2].shape[1], self.inputs[2].shape[1])
        completions = (
            torch.cat([F.pad(of[part], (0, width - of[part].shape[1])) for of in (rollouts, self.inputs)])
            for part in (2, 3)
        )
        return cast(Inputs, (*prompts, *completions))


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

    def pairs(self, rollouts: Rollouts) -> RolloutPairs:
        """Returns the pairs of rollouts, which must hold `is_anchor` and the clean answers, `answer_ids` and `answer_mask`."""
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
        names, device = ("clean_ids", "perturbed_ids", "completion_ids"), rollouts["prompt_ids"].device
        batch = self._collator([dict(zip(names, map(list, row), strict=True)) for row in distinct])
        batch = {name: value.to(device) for name, value in batch.items()}
        place = {row: index for index, row in enumerate(distinct)}
        first = torch.tensor([rows.index(row) for row in distinct], device=device)
        inputs = (rollouts[name][first] for name in ("clean_ids", "clean_mask", "answer_ids", "answer_mask"))
        return RolloutPairs(
            batch,
            of_row=torch.tensor([place.get(row, -1) for row in rows], device=device),
            inputs=cast(Inputs, tuple(inputs)),
            clean_states=PromptStates(self._paired_loss.layers, *self._paired_loss.watched_positions(batch)),
        )

    @torch.no_grad()
    def __call__(
        self, model: nn.Module, pairs: RolloutPairs, reference: States, reference_answers: AnswerStates
    ) -> dict[str, RowLosses]:
        """Returns the metrics by rollout, from the reference's states in the clean prompts and at the clean answers."""
        with evaluating(model):  # neither dropout nor gradient checkpointing
            _, watched = self._paired_loss.compare(model, pairs.batch, reference, reference_answers)
        of_row = pairs.of_row
        return {
            name: RowLosses(*(torch.where(of_row < 0, 0, part[of_row]) for part in (of_pairs.sums, of_pairs.counts)))
            for name, of_pairs in watched.items()
        }

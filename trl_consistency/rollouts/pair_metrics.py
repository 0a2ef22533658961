"""The metrics of [`ConsistencyTrainer`] on the pairs of rollouts: how the student compares with the clean answers."""

from dataclasses import dataclass
from typing import Any

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
    """
    The P distinct pairs of B rollouts.

    The reference runs the clean answers in its pass on the rollouts, as further completions of the clean prompts: `inputs`
    are those of [`PrefixSharing`], first the rollouts and then the answers, (B + P, ...), and `clean_states` are the states
    to keep of the clean prompts.
    """

    batch: dict[str, Tensor]  # of `PairCollator`, for the student
    of_row: Tensor  # (B,), the pair of each rollout, -1 for anchors
    inputs: Inputs
    clean_states: PromptStates
    is_answer: Tensor  # (P, T), the tokens of the answers


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
        """Returns the pairs of rollouts, which must hold the clean answers, `answer_ids` and `answer_mask`."""
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
        inputs = (
            torch.cat([rollouts["clean_ids"], rollouts["clean_ids"][first]]),
            torch.cat([rollouts["clean_mask"], rollouts["clean_mask"][first]]),
            _joined(rollouts["completion_ids"], rollouts["answer_ids"][first]),
            _joined(rollouts["completion_mask"], rollouts["answer_mask"][first]),
        )
        pair_of_token, positions = self._paired_loss.watched_positions(batch)
        return RolloutPairs(
            batch,
            of_row=torch.tensor([place.get(row, -1) for row in rows], device=device),
            inputs=inputs,
            clean_states=PromptStates(self._paired_loss.layers, len(rows) + pair_of_token, positions),
            is_answer=inputs[3][len(rows) :].bool(),
        )

    @torch.no_grad()
    def __call__(self, model: nn.Module, pairs: RolloutPairs, reference_answers: AnswerStates) -> dict[str, RowLosses]:
        """
        Returns the metrics by rollout. The reference must have run; `reference_answers` are its states at the tokens of the
        clean answers.
        """
        reference = States(residual=pairs.clean_states.residual)
        with evaluating(model):  # neither dropout nor gradient checkpointing
            _, watched = self._paired_loss.compare(model, pairs.batch, reference, reference_answers)
        of_row = pairs.of_row
        return {
            name: RowLosses(*(torch.where(of_row < 0, 0, part[of_row]) for part in (of_pairs.sums, of_pairs.counts)))
            for name, of_pairs in watched.items()
        }


def _joined(completions: Tensor, answers: Tensor) -> Tensor:
    """Returns the rows of both, padded on the right."""
    width = max(completions.shape[1], answers.shape[1])
    return torch.cat([F.pad(rows, (0, width - rows.shape[1])) for rows in (completions, answers)])

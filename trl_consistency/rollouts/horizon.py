"""The longest rollout of a step, which may grow during training."""

from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from .types import Rollouts


# The share of the first tokens' divergence in the first batch to which that of the last tokens must fall
LEARNED = 0.5


class Horizon(TrainerCallback, ExportableState):
    """
    Returns the longest rollout in tokens, as `completion_length_schedule` says: `max_completion_length` without one.

    With two lengths it grows by itself, by what [`add`] is given. Anchors do not count. All processes call [`add`]
    equally often.
    """

    def __init__(self, args: OnPolicyConsistencyConfig, accelerator: Accelerator):
        longest = cast(int, args.max_completion_length)
        self.start, self.end, *steps = args.completion_length_schedule or [longest, longest, 1]
        self.steps = steps[0] if steps else None
        self.accelerator = accelerator
        self._reset()

    @property
    def grows_by_itself(self) -> bool:
        return self.steps is None

    def _reset(self) -> None:
        self.length = self.start
        self.first: float | None = None  # divergence of the first tokens when training began
        self._sums = torch.zeros(4, dtype=torch.float64)  # of the first quarter's tokens and the last's: sum and count

    def __call__(self, step: int) -> int:
        """Returns the longest rollout of the batch that is sampled at an optimizer step."""
        if self.steps is None:
            self._grow()
            return self.length
        return round(self.start + (self.end - self.start) * min(step / self.steps, 1))

    def _grow(self) -> None:
        first, first_count, last, last_count = self._sums.tolist()
        self._sums.zero_()
        if self.first is None and first_count and first >= 0:  # an estimate by sampled tokens may be below 0
            self.first = first / first_count
        if self.first is not None and last_count and last / last_count <= LEARNED * self.first:
            self.length = min(2 * self.length, self.end)

    def add(self, divergence: Tensor, rollouts: Rollouts) -> None:
        """Adds a micro-batch: the divergence at its compared tokens, (M,), in the order of `loss_mask`, (B, T)."""
        if not self.grows_by_itself:
            return
        rows, places = rollouts["loss_mask"].nonzero(as_tuple=True)
        precise = torch.float32 if divergence.device.type == "mps" else torch.float64  # MPS has no float64
        sums = []
        last = min(self.length * 3 / 4, self.length - 1)  # of one to three tokens, the last one
        for part in (places < self.length / 4, places >= last):
            values = divergence[part & ~rollouts["is_anchor"][rows]].to(precise)
            sums += [values.sum(), torch.tensor(float(len(values)), device=values.device, dtype=values.dtype)]
        self._sums += self.accelerator.reduce(torch.stack(sums), reduction="sum").cpu().double()

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"length": self.length, "first": self.first, "sums": self._sums.tolist()}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes")
        self._reset()
        if state.global_step and saved:
            # Within the present bounds, which `resume_changed` may allow to differ
            self.length, self.first = min(max(saved["length"], self.start), self.end), saved["first"]
            self._sums = torch.tensor(saved["sums"], dtype=torch.float64)

"""Regeneration of targets during training."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ...errors import ConsistencyError


class RegenerateTargets(TrainerCallback, ExportableState):
    """
    Replaces the pairs' targets with the current policy's answers every `regenerate_targets_every` epochs, and restores
    them when a run resumes.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.epoch = 0  # The current targets were generated after this epoch; 0 for the reference's targets.
        self.policy = ""  # Fingerprint of the policy that generated them

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"epoch": self.epoch, "policy": self.policy}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.epoch, self.policy = 0, ""
        self.trainer.data_collator.current_targets = None  # those of an earlier training
        every = self.trainer.args.regenerate_targets_every or 1
        if every >= state.num_train_epochs:
            raise ConsistencyError(
                f"`regenerate_targets_every` is {every}, and the training takes {state.num_train_epochs} epoch(s): targets would "
                "never be regenerated. Lower it, train for longer, or leave it out."
            )
        done = (state.epoch or 0) + 1e-6
        wanted = int(done) // every * every
        if wanted == 0:
            return
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        if saved.get("epoch") == wanted:
            self._replace(wanted, saved["policy"])
        elif wanted == round(done):  # Saved at the end of the epoch, so the current policy must generate the targets
            self._replace(wanted, None)
        else:
            raise ConsistencyError(
                f"This checkpoint has no record of the targets made after epoch {wanted}: it was saved without "
                "`regenerate_targets_every`. Resume without it, or from the checkpoint at the end of that epoch."
            )

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        epoch = self.trainer._epoch + 1
        every = self.trainer.args.regenerate_targets_every or 1
        if epoch % every == 0 and state.global_step < state.max_steps:
            self._replace(epoch, None)

    def _replace(self, epoch: int, policy: str | None) -> None:
        self.policy = self.trainer.target_maker.regenerate(policy)
        self.epoch = epoch

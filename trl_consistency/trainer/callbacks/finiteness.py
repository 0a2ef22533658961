"""Stops training at the first value that is not finite, and prevents saving such weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...errors import ConsistencyError
from ...finite import NotFiniteError
from ...log import get_logger
from ...models.finite_weights import _all_agree
from ...models.sharding import shard_of


logger = get_logger(__name__)

SMALLEST_LOSS = 1e-6  # below, rounding alone may keep a loss from 0


class FinitenessGuard(TrainerCallback):
    """
    Stops all processes at the first loss, gradient or weight that is NaN or infinite, and prevents saving it. Weights
    are checked after a checkpoint is loaded and after each optimizer step. The trainer also calls the methods that are
    not callback events.

    In fp16 the grad scaler skips batches that overflow while it searches for a scale. This ends the run only if the
    search fails.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.stopped: str | None = None  # why and at which step, for the model card
        self._begin(None)

    def _begin(self, checkpoint: str | None) -> None:
        self.stopped, self.updates = None, 0  # `updates`: steps that changed the weights
        self.last_checkpoint = None if checkpoint is None else Path(checkpoint)  # saved or loaded last
        self._loss_is_finite: Tensor | None = None  # of the batches of this step
        self._last_loss_was_finite = True
        self._has_gradient = False  # in any step so far
        self._has_loss: Tensor | bool = False  # in any batch so far
        self._hides_loss = False  # since the last log
        self._hid_loss = False  # in any step so far

    @contextmanager
    def watching(self, checkpoint: str | None) -> Iterator[None]:
        """Checks a training run, and reports where it stopped and which checkpoint is kept."""
        self._begin(checkpoint)
        try:
            yield
            self._check_end()
        except NotFiniteError as error:
            step = self.trainer.state.global_step + 1
            self.stopped = f"In step {step}. The weights are those before it. {error}"
            self.trainer.create_model_card()
            kept = "No checkpoint was saved before it, and no model is saved."
            if self.last_checkpoint is not None:
                kept = f"The last checkpoint before it, {self.last_checkpoint}, is kept."
            raise NotFiniteError(
                f"Training stopped in step {step}. {error} Nothing of that step is saved. {kept} A lower `learning_rate`, a "
                "`max_grad_norm`, or bf16 in place of fp16 may avoid it."
            ) from error

    def _check_end(self) -> None:
        if self.trainer.state.global_step == 0:
            raise ConsistencyError(
                "Training ended before its first step, so the model has not changed: the data do not fill a batch, or "
                "`num_train_epochs` is 0. Use smaller batches, or more rows."
            )
        if self.updates == 0 and self._overflows_in_fp16():
            raise NotFiniteError(
                "The gradients of every batch overflowed in fp16, so that no step changed a weight. Set `bf16: true` in place of `fp16`."
            )
        if self.updates and not self._has_gradient and self._has_loss:  # anchors alone have neither
            raise ConsistencyError(
                "The gradient was zero in every step though the loss was not, so that nothing was learned: the adapter has "
                "no effect (`lora_alpha` 0, a dropout of 1). Correct its options."
            )

    def _overflows_in_fp16(self) -> bool:
        return self.trainer.accelerator.mixed_precision == "fp16"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self.weights_are_finite():
            raise ConsistencyError(
                f"The weights of step {state.global_step}, from which training resumes, are not finite. Delete that "
                "checkpoint, and start again from an earlier one or from the beginning."
            )

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self.weights_are_finite():
            raise NotFiniteError("The optimizer made weights that are not finite.")

    def record_loss(self, loss: Tensor) -> None:
        """Records whether a batch's loss is finite. It is tested once per step, with the gradient."""
        is_finite_loss = torch.isfinite(loss.detach()).all()
        self._has_loss = self._has_loss | (loss.detach().abs() > SMALLEST_LOSS).any()
        before = self._loss_is_finite
        self._loss_is_finite = is_finite_loss if before is None else before & is_finite_loss

    def check_gradient(self, grad_norm: Any) -> None:
        """Raises [`NotFiniteError`] if the losses or the gradient of a step are not finite."""
        accelerator = self.trainer.accelerator
        if self._loss_is_finite is None:  # A subclass's `training_step` does not call the trainer's.
            self._loss_is_finite = torch.ones(1, device=accelerator.device)
        loss_was_finite = bool(accelerator.gather(self._loss_is_finite.int().reshape(1)).all())
        norm_is_finite = grad_norm is None or math.isfinite(float(grad_norm))
        previous_was = self._last_loss_was_finite
        self._last_loss_was_finite, self._loss_is_finite = loss_was_finite, None
        if loss_was_finite and norm_is_finite:
            self.updates += 1
            self._has_gradient |= grad_norm is None or float(grad_norm) > 0
            return
        what = "The norm of the gradient" if loss_was_finite else "The loss"
        if not self._overflows_in_fp16():
            raise NotFiniteError(f"{what} is not finite.")
        if not loss_was_finite and not previous_was:
            raise NotFiniteError("The loss is not finite in two steps in a row.")
        scaler = accelerator.scaler
        if scaler is not None and scaler.get_scale() < 1:
            raise NotFiniteError(
                f"{what} is not finite, though the grad scaler has come down to {scaler.get_scale():g}."
            )
        step = self.trainer.state.global_step + 1
        logger.warning(f"{what} of step {step} overflowed in fp16, and the grad scaler skips the step.")
        self._hides_loss |= not loss_was_finite

    def correct(self, logs: dict[str, float]) -> None:
        """Replaces logged losses by NaN where Trainer omitted a loss that is not finite from the mean."""
        if self._hides_loss and "loss" in logs:
            logs["loss"], self._hides_loss = math.nan, False
            self._hid_loss = True
        if self._hid_loss and "train_loss" in logs:
            logs["train_loss"] = math.nan

    def weights_are_finite(self) -> bool:
        """Whether the trainable weights are finite in all processes."""
        weights = self.trainer.model.parameters()
        shards = [shard_of(weight).detach() for weight in weights if weight.requires_grad]
        # The largest absolute value, over all the tensors at once
        largest = torch.nn.utils.get_total_norm([shard for shard in shards if shard.numel()], math.inf)
        return _all_agree(bool(torch.isfinite(largest)), self.trainer.accelerator)

    def check_before_saving(self) -> None:
        """Raises [`NotFiniteError`] if the weights are not finite."""
        if not self.weights_are_finite():
            raise NotFiniteError("The weights are not finite, and are not saved: take an earlier checkpoint.")

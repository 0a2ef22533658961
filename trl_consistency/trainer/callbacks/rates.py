"""Notes whether a training kept the learning rates and the other settings that the options gave its optimizer."""

from typing import Any

from transformers import TrainerCallback

from ..run.own_optimizer import decided_settings, is_as_scheduled


class RateWatch(TrainerCallback):
    """
    Compares an optimizer that the options made with what they made, at each step. A script can change its groups, and a callback its
    rates, and the model card would state the options.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.made: dict[str, Any] | None = None  # settings of the optimizer as the options made it
        self.are_changed = False  # in the last training

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.are_changed = False

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, optimizer = self.trainer, self.trainer.optimizer
        if (
            self.are_changed
            or self.made is None
            or trainer.has_own_optimizer
            or not hasattr(optimizer, "param_groups")
        ):
            return
        is_scheduled = is_as_scheduled(optimizer, trainer.lr_scheduler)
        self.are_changed = not is_scheduled or decided_settings(optimizer) != self.made

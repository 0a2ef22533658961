"""The dose check: before the first step, how much there is to train, and whether the clean side is fit to teach."""

from typing import Any

from accelerate.logging import get_logger
from transformers import TrainerCallback

from ...data.pairs import AnyDataset
from ...errors import ConsistencyError
from ...evaluation.dose import measure_dose, sample_pairs
from ...generation.options import evaluating
from ...models.sharding import is_sharded


logger = get_logger(__name__)


class DoseCheck(TrainerCallback):
    """
    Measures the model's own inconsistency on a sample of the pairs, logs it under `dose/` and warns where training would
    do nothing, or harm. A run that is resumed is past that.

    Args:
        trainer ([`~transformers.Trainer`]):
            The trainer.
        pairs ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Its prepared pairs, without added anchors.
    """

    def __init__(self, trainer: Any, pairs: AnyDataset):
        if is_sharded(trainer.accelerator):
            raise ConsistencyError(
                "`dose_check` is not available where processes share the model's weights. Run `trl-consistency lint --dose` "
                "beforehand."
            )
        self.trainer = trainer
        self.pairs = sample_pairs(pairs, seed=trainer.args.seed)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > 0 or not self.pairs:
            return
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        with trainer.compute_loss_context_manager():
            dose = measure_dose(
                model,
                trainer.processing_class,
                self.pairs,
                max_new_tokens=args.max_completion_length,
                progress=trainer.accelerator.is_main_process and not args.disable_tqdm,
                thinking_markers=tuple(args.thinking_markers),
            )
        with evaluating(trainer.model):  # or the log would add the means of a training that has not begun
            trainer.log(dose.metrics())
        for warning in dose.warnings():
            logger.warning(f"`dose_check`: {warning}")

"""The dose check: measures the model's inconsistency and the quality of its clean answers before the first step."""

from typing import Any

from datasets import Dataset
from transformers import TrainerCallback

from ...config.device import mixed_precision
from ...data.pairs import AnyDataset
from ...errors import ConsistencyError
from ...evaluation.dose import measure_dose, of_training, sample_pairs
from ...generation.options import evaluating
from ...log import get_logger
from ...models.sharding import is_sharded


logger = get_logger(__name__)


class DoseCheck(TrainerCallback):
    """
    Measures the model's inconsistency on a sample of the prepared pairs (without added anchors), logs it under
    `dose/`, and warns if training would have no effect or do harm. Skipped when resuming.
    """

    def __init__(self, trainer: Any, pairs: AnyDataset):
        if is_sharded(trainer.accelerator):
            raise ConsistencyError(
                "`dose_check` is not available where processes share the model's weights. Run `trl-consistency lint --dose` "
                "beforehand."
            )
        self.trainer = trainer
        self.pairs = sample_pairs(pairs, seed=trainer.args.seed)
        if not self.pairs:
            raise ConsistencyError(
                "`dose_check`: there is no pair to measure it on; anchors show nothing. Leave it out."
            )
        # Of a stream, no more than the sample is read.
        self.answers_of = pairs if isinstance(pairs, Dataset) else self.pairs

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > 0:
            return
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        with mixed_precision(trainer.accelerator):
            dose = measure_dose(
                model,
                trainer.processing_class,
                self.pairs,
                max_new_tokens=args.max_completion_length,
                answers_of=self.answers_of,
                progress=trainer.accelerator.is_main_process and not args.disable_tqdm,
                thinking_markers=tuple(args.thinking_markers),
            )
        with evaluating(trainer.model):  # in training mode, `log` would add training means
            trainer.log(dose.metrics())
        has_targets = any(row.get("completion_ids") for row in self.pairs)
        has_reference = getattr(trainer, "ref_model", None) is not None
        dose = of_training(dose, getattr(args, "method", ()), has_targets, has_reference)
        for warning in dose.warnings():
            logger.warning(f"`dose_check`: {warning}")

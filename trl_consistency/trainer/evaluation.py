"""The evaluations of a trainer: their data sets, their rows, and what Trainer would take from the training."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from datasets import IterableDataset
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from ..config.device import own_randomness
from ..config.options import temporarily
from ..data.eval_sets import EvalDataset, like, named
from ..data.pairs import AnyDataset
from ..data.repeated_stream import CountedStream
from ..errors import ConsistencyError
from ..history import OF_ANOTHER_SET, OF_BASE
from ..losses.row_losses import RowLosses
from ..models.adapter_checks import is_adapter_off
from ..upstream import OwnState
from .evaluated_sets import EvaluatedSets, counted_stream, first_rows, loading_all_rows, loading_alone
from .own_metrics import same_name, without_loss
from .row_evaluation import EvaluatedRows
from .run.checks import check_set_names, check_sets
from .run.other_sets import is_another_set, mark_losses, name_set
from .run.overrides import overridden
from .run.snapshot import Snapshot


if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object  # TRL's trainer comes after this class in each trainer's bases


class EvaluationMixin(_Trainer):
    """
    Evaluates on pairs: prepared like the trainer's own, read to their last row, with means over rows, and without a trace in the
    training.
    """

    # Attributes of the trainer that uses this mixin
    args: Any
    accelerator: Any
    eval_dataset: Any
    snapshot: Snapshot
    _evaluated: EvaluatedSets
    _take_out_other_precision: Callable[[], None]

    _evaluation_is_due = False  # whether the present evaluation is one that the options ask for
    _eval_stream: CountedStream | None = None  # what an evaluation by several processes reads, if it is a stream

    # Implemented by each trainer

    def _before_evaluation(self, datasets: Sequence[AnyDataset]) -> None:
        """Prepares for an evaluation on prepared data sets."""

    def _evaluating_set(self) -> AbstractContextManager:
        """Returns the context of the evaluation on one data set."""
        return nullcontext()

    def _eval_metrics(self, rows: dict[str, RowLosses]) -> dict[str, float]:
        """Returns the metrics of a whole data set, by name without prefix."""
        raise NotImplementedError

    # What Trainer does, on pairs

    @OwnState.kept
    def evaluate(
        self,
        eval_dataset: EvalDataset | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """
        Like [`~transformers.Trainer.evaluate`]. Pairs are checked and prepared as in the constructor, and the
        reference policy generates missing targets. Losses of other rows than those of the trainer's own `eval_dataset`, or of the
        model with its adapter off, do not replace its losses on the model card.

        Raises:
            [`ConsistencyError`]: If there is nothing to evaluate on, or no row has anything to compare.
            [`InvalidPairsError`]: If the data contain unusable pairs.
        """
        if eval_dataset is None or isinstance(eval_dataset, str):
            datasets = named(self.eval_dataset)
        else:
            check_set_names(eval_dataset)
            datasets = {name: self._evaluated.prepare(dataset, name) for name, dataset in named(eval_dataset).items()}
            eval_dataset = like(eval_dataset, datasets)
        check_sets(datasets, eval_dataset, self.eval_dataset)
        self.snapshot.check()
        if not self.is_in_train:
            self._take_out_other_precision()
        self._before_evaluation(list(datasets.values()))
        logged, should_evaluate = len(self.state.log_history), self.control.should_evaluate
        metrics = super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)
        if not self._evaluation_is_due:
            self.control.should_evaluate = should_evaluate  # Trainer would take a callback's evaluation for its own.
        is_one = not isinstance(eval_dataset, str | dict | None)  # Trainer calls this for each set of several
        entries = self.state.log_history[logged:]
        if is_one and is_another_set(self, cast(AnyDataset, eval_dataset), metric_key_prefix):
            mark_losses(entries, OF_ANOTHER_SET, metric_key_prefix)
        if is_adapter_off(self.model):
            mark_losses(entries, OF_BASE, metric_key_prefix)
        if isinstance(eval_dataset, str):
            name_set(entries, eval_dataset, metric_key_prefix)
        return metrics

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Runs the evaluation that is due in training."""
        with temporarily(self, _evaluation_is_due=True):
            return super()._evaluate(*args, **kwargs)

    @OwnState.kept
    def predict(
        self, test_dataset: AnyDataset, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """
        Like [`~transformers.Trainer.predict`], on pairs prepared as in [`evaluate`]. Only `method: ["bct"]` without
        `log_consistency_metrics` gives predictions. All else gives metrics alone.
        """
        test_dataset = self._evaluated.prepare(test_dataset, "test_dataset")
        self.snapshot.check()
        if not self.is_in_train:
            self._take_out_other_precision()
        self._before_evaluation([test_dataset])
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def _get_dataloader(self, dataset: Any, *args: Any, is_training: bool = False, **kwargs: Any) -> Any:
        if is_training:
            with loading_alone(self.args):
                return super()._get_dataloader(dataset, *args, is_training=True, **kwargs)
        stream = self._eval_stream = counted_stream(dataset, self)
        with loading_all_rows(self.args, counts=stream is not None, is_stream=isinstance(dataset, IterableDataset)):
            return super()._get_dataloader(dataset if stream is None else stream, *args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        self._eval_rows = EvaluatedRows(self.accelerator)
        of_caller = without_loss(self.compute_metrics, f"{metric_key_prefix}_loss")
        # The next step's dropout is the same with and without an evaluation before it.
        with (
            own_randomness(self.accelerator.device),
            self._evaluating_set(),
            temporarily(self, compute_metrics=of_caller),
        ):
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        rows = None if self._eval_stream is None else self._eval_stream.rows
        if rows is not None:
            output = first_rows(output, rows)
        if not self._eval_rows:
            raise ConsistencyError(
                f"`{overridden(self, 'prediction_step') or 'prediction_step'}` does not call `super().prediction_step`, which measures the "
                "rows. Call it, and return what it returns."
            )
        # Trainer averages the means of batches, which weights short answers too heavily.
        for name, value in self._eval_metrics(self._eval_rows.by_name(rows)).items():
            key = f"{metric_key_prefix}_{name}"
            if name != "loss" and key in output.metrics:
                raise same_name(name)
            output.metrics[key] = value
        return output

"""The data sets of evaluations: prepared like a trainer's own, and read to their last row."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

from datasets import IterableDataset
from transformers.trainer_pt_utils import find_batch_size, nested_truncate
from transformers.trainer_utils import EvalLoopOutput

from ..config.options import temporarily
from ..data.eval_sets import named
from ..data.pairs import AnyDataset, check_pairs
from ..data.prepare import is_prepared, unformatted, with_own_columns, without_rendered_completions
from ..data.repeated_stream import CountedStream, RepeatedStream
from ..errors import ConsistencyError
from ..log import get_logger
from .run.data_checks import warn_of_other_form, warn_of_other_variables, warn_of_positions


logger = get_logger(__name__)

WITHOUT_WORKERS = {
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "dataloader_prefetch_factor": None,
}


class EvaluatedSets:
    """Prepares the data sets that a trainer's `evaluate` and `predict` are given, as its constructor prepared its own."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self._given: WeakSet[AnyDataset] = WeakSet()  # those that were prepared

    def prepare(self, dataset: AnyDataset, name: str) -> AnyDataset:
        """Returns the rows as token ids. Raises [`InvalidPairsError`] for unusable pairs, naming the data set."""
        trainer = self.trainer
        if isinstance(dataset, AnyDataset) and is_prepared(dataset):
            own = (trainer.train_dataset, *named(trainer.eval_dataset).values(), *self._given)
            if any(dataset is of_own for of_own in own):
                return dataset
            # Another trainer may have rendered it with another template or tokenizer.
            dataset = with_own_columns(without_rendered_completions(dataset))
        dataset = unformatted(dataset)
        check_pairs(dataset, name)
        warn_of_other_form(f"`{name}`", dataset, trainer.is_chat)
        of_run = trainer.args.chat_template_kwargs or {}
        warn_of_other_variables(f"`{name}`", dataset, of_run, trainer.shared_variables)
        dataset = trainer._prepare_rows(dataset, trainer.processing_class, trainer.args, name)
        warn_of_positions(dataset, trainer.model.config, trainer.args, name)
        self._given.add(dataset)  # of several sets, `Trainer` gives each to `evaluate` again
        return dataset


def counted_stream(dataset: Any, trainer: Any) -> CountedStream | None:
    """
    Returns a stream that counts its rows, if `dataset` is one that several processes evaluate, each its own part; None
    for others. Raises [`ConsistencyError`] with `compute_metrics`.
    """
    if not isinstance(dataset, IterableDataset) or trainer.accelerator.num_processes == 1:
        return None
    if trainer.compute_metrics is not None:
        raise ConsistencyError(
            "Several processes fill up the last batch of a streamed evaluation set with rows that `compute_metrics` would get "
            "twice. Load the set without streaming."
        )
    return CountedStream(dataset)


def first_rows(output: EvalLoopOutput, rows: int) -> EvalLoopOutput:
    """Returns what an evaluation gave for its first `rows` alone: those after them fill up the last batch."""
    predictions, label_ids = (_first_rows(part, rows) for part in (output.predictions, output.label_ids))
    return output._replace(predictions=predictions, label_ids=label_ids, num_samples=rows)


def _first_rows(part: Any, rows: int) -> Any:
    if not isinstance(part, list):
        return None if part is None else nested_truncate(part, rows)
    batches = []  # with `eval_do_concat_batches: false`
    for batch in part:
        batches.append(nested_truncate(batch, rows))
        rows -= find_batch_size(batches[-1])
    return batches


def loading_all_rows(args: Any, counts: bool, is_stream: bool = False) -> AbstractContextManager[None]:
    """
    Returns the context in which loaders of evaluations are made: `dataloader_drop_last` is for training. One that `counts`
    rows reads them in this process. Other workers end with it: Trainer would keep a loader with its rows and options. One worker reads a stream: several take turns
    with their shards, and predictions would be in another order than the rows.
    """
    of_workers: dict[str, Any] = {"dataloader_persistent_workers": False}
    if is_stream and args.dataloader_num_workers > 1:
        of_workers["dataloader_num_workers"] = 1
    if counts or not args.dataloader_num_workers:
        of_workers = WITHOUT_WORKERS
    return temporarily(args, dataloader_drop_last=False, **of_workers)


def loading_by_one(dataset: Any, args: Any) -> AbstractContextManager[None]:
    """
    Returns the context in which the loader of a training is made. One worker reads a stream: of several, each would begin its own
    shards anew while others are in their first pass. Logs a warning if that changes `dataloader_num_workers`.
    """
    if not isinstance(dataset, RepeatedStream) or args.dataloader_num_workers < 2:
        return nullcontext()
    logger.warning_once(
        f"`dataloader_num_workers`: 1 instead of {args.dataloader_num_workers}. One worker reads a stream, so that each row comes "
        "once in a pass."
    )
    return temporarily(args, dataloader_num_workers=1)


def loading_alone(args: Any) -> AbstractContextManager[None]:
    """
    Returns the context in which loaders of a training are made. TRL reads streams of rollouts without worker processes, and
    torch refuses options of those then.
    """
    return nullcontext() if args.dataloader_num_workers else temporarily(args, **WITHOUT_WORKERS)

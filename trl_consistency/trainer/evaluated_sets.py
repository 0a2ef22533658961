"""The data sets of evaluations: prepared like a trainer's own, and read to their last row."""

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

from datasets import IterableDataset

from ..config.options import temporarily
from ..data.eval_sets import named
from ..data.pairs import AnyDataset, check_pairs
from ..data.prepare import columns_of, is_prepared, unformatted, with_own_columns
from ..data.repeated_stream import CountedStream
from ..errors import ConsistencyError


class EvaluatedSets:
    """Prepares the data sets that a trainer's `evaluate` and `predict` are given, as its constructor prepared its own."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self._given: WeakSet[AnyDataset] = WeakSet()  # those that were prepared

    def prepare(self, dataset: AnyDataset, name: str) -> AnyDataset:
        """Returns the rows as token ids. Raises [`InvalidPairsError`] for unusable pairs, naming the data set."""
        trainer = self.trainer
        if is_prepared(dataset):
            own = (trainer.train_dataset, *named(trainer.eval_dataset).values(), *self._given)
            if any(dataset is of_own for of_own in own):
                return dataset
            # Another trainer may have rendered it with another template or tokenizer.
            dataset = with_own_columns(dataset)
            if "completion" in columns_of(dataset):
                dataset = dataset.remove_columns(["completion_ids"])
        dataset = unformatted(dataset)
        check_pairs(dataset, name)
        dataset = trainer._prepare_rows(dataset, trainer.processing_class, trainer.args, name)
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


def loading_all_rows(args: Any, counts: bool) -> AbstractContextManager[None]:
    """
    Returns the context in which loaders of evaluations are made: `dataloader_drop_last` is for training. One that `counts`
    rows reads them in this process.
    """
    of_workers = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None} if counts else {}
    return temporarily(
        args, **{f"dataloader_{name}": value for name, value in {"drop_last": False, **of_workers}.items()}
    )

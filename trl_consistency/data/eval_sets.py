"""Evaluation data: one data set, or several by name."""

from typing import Any, TypeAlias

from datasets import DatasetDict, IterableDatasetDict

from .pairs import AnyDataset


EvalDataset: TypeAlias = AnyDataset | DatasetDict | IterableDatasetDict | dict[str, AnyDataset]


def named(eval_dataset: EvalDataset | None) -> dict[str, AnyDataset]:
    """Returns the evaluation sets by their names in messages."""
    if isinstance(eval_dataset, dict):
        return {f"eval_dataset[{key!r}]": dataset for key, dataset in eval_dataset.items()}
    return {} if eval_dataset is None else {"eval_dataset": eval_dataset}


def like(eval_dataset: EvalDataset | None, prepared: dict[str, AnyDataset]) -> Any:
    """Returns the prepared evaluation sets in the form in which they were given."""
    if isinstance(eval_dataset, dict):
        names = named(eval_dataset)
        return {key: prepared[name] for key, name in zip(eval_dataset, names, strict=True)}
    return None if eval_dataset is None else prepared["eval_dataset"]

"""What the training scripts load by name: data sets, and the embedded model organism."""

import os
from typing import Any

from accelerate import PartialState
from datasets import DatasetDict, IterableDatasetDict, load_dataset
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, get_dataset

from ..errors import ConsistencyError
from ..organism import build_organism, load_organism_datasets


# In place of a model or data set name: the organism that is trained on the spot, and its pairs.
EMBEDDED = "embedded:organism"

FILE_TYPES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def load_pairs(script_args: ScriptArguments, dataset_args: DatasetMixtureConfig) -> Any:
    """
    Loads the splits that a recipe names: a hub data set, a local folder or file (JSON Lines, JSON, CSV, Parquet), a
    mixture, or the embedded organism's pairs.

    Raises:
        [`ConsistencyError`]: If no data set is named, or two are, or the file type is not known.
    """
    name = script_args.dataset_name
    if dataset_args.datasets and name:
        raise ConsistencyError("Both `datasets` and `dataset_name` are given: keep one.")
    if dataset_args.datasets:
        return get_dataset(dataset_args)
    if not name:
        raise ConsistencyError("No data: give `dataset_name` (a hub data set, a folder or a file) or `datasets`.")
    if name == EMBEDDED:
        return DatasetDict(load_organism_datasets())
    if os.path.isfile(name):
        extension = os.path.splitext(name)[1]
        if extension not in FILE_TYPES:
            raise ConsistencyError(f"`dataset_name` {name}: a file must end in {', '.join(FILE_TYPES)}.")
        return load_dataset(FILE_TYPES[extension], data_files={"train": name}, streaming=script_args.dataset_streaming)
    return load_dataset(name, name=script_args.dataset_config, streaming=script_args.dataset_streaming)


def get_split(dataset: DatasetDict | IterableDatasetDict, split: str, option: str) -> Any:
    """The split that `option` names, or a [`ConsistencyError`] that lists those there are."""
    if split not in dataset:
        raise ConsistencyError(f"`{option}` is `{split}`, but the data set has only: {', '.join(dataset)}.")
    return dataset[split]


def resolve_model(model_args: ModelConfig) -> str:
    """
    The model to load. `embedded:organism` becomes the folder of the organism, which is trained first if it is not
    there yet.

    Raises:
        [`ConsistencyError`]: If no model is named.
    """
    name = model_args.model_name_or_path
    if not name:
        raise ConsistencyError("No model: give `model_name_or_path`.")
    if name != EMBEDDED:
        return name
    with PartialState().local_main_process_first():
        return str(build_organism(progress=PartialState().is_local_main_process))

"""Loads data sets for the training scripts."""

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDatasetDict
from datasets.exceptions import DatasetGenerationError
from trl import DatasetMixtureConfig, ScriptArguments, get_dataset

from ..config.options import option, with_help
from ..data.folders import (
    FILE_TYPES,
    check_data_file,
    check_data_folder,
    check_json,
    split_files,
)
from ..data.local_data import builder_of, cached_by_content, load_as_written, patterns_of, texts_as_written
from ..data.pairs import PROMPT_COLUMNS
from ..errors import ConsistencyError, one_line
from ..evaluation.held_out import draw_sample
from ..evaluation.rates.measures import sources_of
from ..log import get_logger
from ..models.embedded_models import EMBEDDED, SMOLLM2, check_embedded
from ..organism import load_control_dataset, load_organism_datasets
from ..smollm2.rows import load_smollm2_datasets
from ..trainer.callbacks.evaluation import check_options


logger = get_logger(__name__)

# Decides which pairs of a mixture are for testing. It is the same for all runs, so that they are compared on the same ones.
SPLIT_SEED = 42

# Errors of `datasets` for unreadable files, folders without data, scripts, and unknown names.
LOADING_ERRORS = (DatasetGenerationError, OSError, RuntimeError, ValueError)

# Pairs that the package holds, by the name that also stands for the model.
EMBEDDED_PAIRS: dict[str, Callable[[], DatasetDict]] = {
    EMBEDDED: load_organism_datasets,
    SMOLLM2: load_smollm2_datasets,
}


@dataclass
@with_help
class ConsistencyScriptArguments(ScriptArguments):
    """Arguments of all training scripts, explained by `trl-consistency consistency --help`."""

    json: bool = option(False, help="Print one JSON object instead of text.")
    # Parameters that control the anchors
    anchor_dataset_name: str | None = option(
        None,
        help="Path or name of the anchor data set (a `prompt` column) for `anchor_ratio`. If None, the pairs' clean "
        "prompts are used.",
    )
    anchor_dataset_config: str | None = option(None, help="Configuration name of the anchor data set.")
    anchor_dataset_split: str = option("train", help="Split of the anchor data set.")
    # Parameters that control the guard
    guard_split: str | None = option(
        None,
        help="Split of held-out pairs to measure on during training (with `ConsistencyEvalCallback`). If None, "
        "nothing is measured.",
    )
    guard_dataset_name: str | None = option(
        None, help="Path or name of the data set with `guard_split`. If None, the data set of the training pairs."
    )
    guard_dataset_config: str | None = option(None, help="Configuration name of `guard_dataset_name`.")
    guard_control_dataset_name: str | None = option(
        None, help="Path or name of a data set of control questions (`prompt`, `answer`) to also measure on."
    )
    guard_control_dataset_config: str | None = option(None, help="Configuration name of the control questions.")
    guard_control_split: str = option("test", help="Split of the control questions.")
    guard_every: int | None = option(
        None, help="Steps between measurements. The last step is always measured. If None, `eval_strategy` decides."
    )
    guard_max_drop: float | None = option(
        None,
        help="Training stops if one of four shares falls by more than this (0.05: five points). These are right answers to clean "
        "prompts or control questions, harmful clean prompts refused, benign requests answered. If None, it never stops.",
    )
    guard_rows: int = option(64, help="Maximum rows of each kind to measure on.")
    # Parameters that control the resumption
    resume_changed: list[str] | None = option(
        None,
        help="What may differ from the run that `resume_from_checkpoint` resumes; use the names that the error lists.",
    )


@dataclass
@with_help
class TrainingScriptArguments(ConsistencyScriptArguments):
    """Arguments of the scripts in which a model answers before or during its training."""

    engine: str | None = option(
        None,
        help="What generates answers: `transformers`, `vllm` in this process (as `use_vllm`), or the address of a vLLM "
        "server. If None, `use_vllm` decides.",
    )


@dataclass
@with_help
class RecipeScriptArguments(ConsistencyScriptArguments):
    """Arguments of all training scripts and of the on-policy one, for commands that read any recipe."""

    # Parameters that control the reference
    ref_model_name_or_path: str | None = option(None, help="Reference model. If None, the model before training.")


@dataclass
@with_help
class OnPolicyConsistencyScriptArguments(TrainingScriptArguments, RecipeScriptArguments):
    """Arguments of the on-policy script."""


def load_pairs(script_args: ConsistencyScriptArguments, dataset_args: DatasetMixtureConfig) -> Any:
    """
    Loads the splits of a recipe's data: a data set on the Hub, a local folder or file (JSON Lines, JSON, CSV,
    Parquet), a mixture, or the pairs of an embedded model. Raises [`ConsistencyError`] if not exactly one data set is
    named, or the file type is unknown.
    """
    name = script_args.dataset_name
    # Two names of one option: TRL's scripts read the first with `dataset_name`, the second with `datasets`.
    streaming = script_args.dataset_streaming or dataset_args.streaming
    if dataset_args.datasets and name:
        raise ConsistencyError("Both `datasets` and `dataset_name` are given: keep one.")
    if dataset_args.datasets and script_args.dataset_config is not None:
        raise ConsistencyError(
            "`dataset_config` is given, but the data are `datasets`: give each of those its `name` instead."
        )
    if dataset_args.datasets:
        return _load_mixture(dataset_args, streaming)
    if dataset_args.test_split_size is not None:
        raise ConsistencyError(
            "`test_split_size` is for `datasets`. List the file there in place of `dataset_name`, or leave it out."
        )
    if not name:
        raise ConsistencyError("No data: give `dataset_name` (a hub data set, a folder or a file) or `datasets`.")
    if name in EMBEDDED_PAIRS:
        _refuse_config("dataset_config", script_args.dataset_config, name)
        splits = EMBEDDED_PAIRS[name]()
        if not streaming:
            return splits
        return IterableDatasetDict({split: rows.to_iterable_dataset() for split, rows in splits.items()})
    return _load_named(name, script_args.dataset_config, streaming)


def _load_mixture(mixture: DatasetMixtureConfig, streaming: bool) -> Any:
    mixture.streaming = streaming
    names, fractions = zip(*((entry.path, entry.fraction) for entry in mixture.datasets), strict=True)
    if streaming and (mixture.test_split_size or any(entry.fraction for entry in mixture.datasets)):
        raise ConsistencyError(
            "`test_split_size` and `fraction` need to know how many rows there are, which `streaming` does not tell. "
            "Leave them out, or load the data without streaming."
        )
    if streaming and len(names) > 1:
        logger.warning(
            f"`datasets` are streamed one after the other: training reads {names[0]} to its end first, and "
            "`max_steps` may end before the others. Load them without streaming, or mix them in one file, if that is not meant."
        )
    if all(entry.fraction == 0 for entry in mixture.datasets):
        raise ConsistencyError("`fraction` is 0 for all `datasets`, which leaves no row: raise it for one.")
    for entry in mixture.datasets:
        if entry.fraction is not None and not (math.isfinite(entry.fraction) and entry.fraction >= 0):
            raise ConsistencyError(
                f"`fraction` must be a finite number of at least 0, got {entry.fraction} for {entry.path}."
            )
        _find_files(entry)
    if len(fractions) == 1 and fractions[0] not in (None, 1):
        raise ConsistencyError(
            f"`fraction` is {fractions[0]:g}, a share of the mixture, and `datasets` names one data set, which is all of it. Leave it out."
        )
    try:
        sources = [(entry.path, entry.data_dir, entry.data_files) for entry in mixture.datasets]
        test_size, mixture.test_split_size = mixture.test_split_size, None
        with cached_by_content(*([] if streaming else sources)), texts_as_written() as loaded:
            splits = get_dataset(mixture)
    except ConsistencyError:
        raise
    except LOADING_ERRORS as error:
        reason = one_line(error.__cause__ or error)
        if "can't be aligned" in reason:
            reason = f"a column has other types in one of them than in another. Write all in one format ({reason})"
        raise ConsistencyError(f"`datasets` cannot be loaded: {reason}") from None
    if any(fractions):
        _tell_left_out(fractions, names, loaded)
    return splits if test_size is None else _split_off_test(splits["train"], test_size)


def _find_files(entry: Any) -> None:
    """Has an entry of a mixture that is a file, or a folder of files, name these files and what reads them."""
    extension = os.path.splitext(entry.path)[1]
    check_json(entry.path)
    if extension in FILE_TYPES:  # a file, as in `dataset_name`
        for key in ("data_files", "data_dir", "name"):
            if getattr(entry, key) is not None:
                raise ConsistencyError(
                    f"`{key}` is {getattr(entry, key)}, but {entry.path} is a file: name the one or the other."
                )
        if "://" not in entry.path:
            check_data_file(entry.path)
        # URLs may contain `?`.
        pattern = escape(entry.path) if os.path.isfile(entry.path) else entry.path
        entry.path, entry.data_files = FILE_TYPES[extension], pattern
    elif entry.data_files:
        entry.data_files = _escaped(
            entry.data_files, entry.path if os.path.isdir(entry.path) else "", entry.data_dir or ""
        )
    check_data_folder(entry.path)
    folder = os.path.join(entry.path, entry.data_dir) if entry.data_dir else entry.path
    if not entry.data_files and (files := split_files(folder, entry.name)):
        entry.path, entry.data_dir, entry.data_files = builder_of(files), None, patterns_of(files)


def _escaped(files: Any, *folder: str) -> Any:
    """Returns the names of files, or patterns. What is the very name of a file in a folder is no pattern: `run[1].jsonl` is not `run1.jsonl`."""
    if isinstance(files, dict):
        return {split: _escaped(of_split, *folder) for split, of_split in files.items()}
    if not isinstance(files, str):
        return [_escaped(file, *folder) for file in files]
    return escape(files) if os.path.isfile(os.path.join(*folder, files)) else files


def _tell_left_out(fractions: Sequence[float], names: Sequence[str], loaded: Sequence[Any]) -> None:
    """Warns of rows that TRL leaves out, so that each `fraction` is a share of the mixture."""
    shares = [fraction / sum(fractions) for fraction in fractions]
    lengths = list(map(len, loaded))
    rows = min(length / share for length, share in zip(lengths, shares, strict=True) if share)
    kept = [round(share * rows) for share in shares]
    if kept != lengths:
        of_each = zip(kept, lengths, names, strict=True)
        listed = ", ".join(f"{count} of {length} ({name})" for count, length, name in of_each)
        logger.warning(
            f"`fraction` is a share of the mixture, not of a data set. Of each, the first rows are taken, and the others left out: {listed}."
        )


def _split_off_test(pairs: Dataset, size: float) -> DatasetDict:
    """
    Returns pairs in the splits `train` and `test`. The split `test` has this share or number of rows, or at most half as many
    more or fewer: rows of one source stay together. TRL would draw single rows, and other ones in each process.
    """
    is_count = isinstance(size, int) or size > 1  # 1.0 would be all rows, or one
    if not (0 < size < 1 or (is_count and 1 <= size < len(pairs) and float(size).is_integer())):
        raise ConsistencyError(
            f"`test_split_size` must be a share between 0 and 1, or fewer rows than there are ({len(pairs)}), got {size}."
        )
    wanted = max(1, round(size * len(pairs))) if size < 1 else int(size)
    of_source = [
        column
        for column in ("prompt", *PROMPT_COLUMNS, "source_id", "tools", "chat_template_kwargs")
        if column in pairs.column_names
    ]
    rows = list(pairs.select_columns(of_source))
    if "prompt" in of_source:  # of preferences, it is the perturbed prompt
        rows = [{"clean_prompt": row["prompt"], "perturbed_prompt": row["prompt"], **row} for row in rows]
    has_prompts = {"prompt", "clean_prompt"} & {*of_source}
    sources = sources_of(rows) if has_prompts else list(map(str, range(len(pairs))))
    counts = Counter(sources)
    drawn: set[str] = set()
    found = 0
    for source in random.Random(SPLIT_SEED).sample(sorted(counts), len(counts)):
        if found < wanted and found + counts[source] <= 1.5 * wanted:
            drawn.add(source)
            found += counts[source]
    if found < wanted / 2:
        raise ConsistencyError(
            f"`test_split_size` of {size:g} cannot be drawn from these {len(pairs)} rows: those of one question, or with a prompt in "
            f"common, stay together, up to {max(counts.values())} of them. Choose another size, or put the rows for testing in a file "
            "of their own."
        )
    if len(drawn) == len(counts):
        raise ConsistencyError(
            f"`test_split_size` of {size:g} leaves no row for training: rows of one question stay together. Lower it."
        )
    split = {
        name: [n for n, of in enumerate(sources) if (of in drawn) == (name == "test")] for name in ("train", "test")
    }
    return DatasetDict({name: pairs.select(numbers) for name, numbers in split.items()})


def load_anchors(script_args: ConsistencyScriptArguments) -> Any:
    """Loads a recipe's anchors, or returns None if it names none."""
    name = script_args.anchor_dataset_name
    if not name:
        _refuse_without(script_args, "anchor_dataset_name", "anchor_dataset_config", "anchor_dataset_split")
        return None
    if name == EMBEDDED:
        _refuse_config("anchor_dataset_config", script_args.anchor_dataset_config, name)
        return _control(script_args, "anchor_dataset_split")
    dataset = _load_named(name, script_args.anchor_dataset_config, script_args.dataset_streaming)
    return get_split(dataset, script_args.anchor_dataset_split, "anchor_dataset_split")


def load_guard(script_args: ConsistencyScriptArguments, training_args: Any) -> dict[str, Any] | None:
    """
    Returns the arguments of a [`ConsistencyEvalCallback`], or None without `guard_split`. Runs before weights load.
    Raises [`ConsistencyError`] if options are missing or contradict each other, or the data are unsuitable.
    """
    options: dict[str, Any] = {
        "eval_every": script_args.guard_every,
        "max_drop": script_args.guard_max_drop,
        "num_rows": script_args.guard_rows,
    }
    if script_args.guard_split is None:
        given = [
            name
            for name, value in vars(script_args).items()
            if name.startswith("guard_") and value != getattr(ConsistencyScriptArguments, name)
        ]
        if given:
            raise ConsistencyError(f"`{given[0]}` needs `guard_split`, the split of held-out pairs to measure on.")
        return None
    check_options(training_args, **options)
    name, config = script_args.guard_dataset_name, script_args.guard_dataset_config
    if name is None:
        _refuse_without(script_args, "guard_dataset_name", "guard_dataset_config")
        name, config = script_args.dataset_name, script_args.dataset_config
    if not name:
        raise ConsistencyError("`guard_split` is given, but no data set: name it in `guard_dataset_name`.")
    if name in EMBEDDED_PAIRS:
        _refuse_config("guard_dataset_config", config, name)
    splits = EMBEDDED_PAIRS[name]() if name in EMBEDDED_PAIRS else _load_named(name, config, False)
    control, control_name = None, script_args.guard_control_dataset_name
    if not control_name:
        of_control = ("guard_control_dataset_config", "guard_control_split")
        _refuse_without(script_args, "guard_control_dataset_name", *of_control)
    if control_name == EMBEDDED:
        _refuse_config("guard_control_dataset_config", script_args.guard_control_dataset_config, control_name)
        control = _control(script_args, "guard_control_split")
    elif control_name:
        controls = _load_named(control_name, script_args.guard_control_dataset_config, False)
        control = get_split(controls, script_args.guard_control_split, "guard_control_split")
    data = {
        "eval_dataset": get_split(splits, script_args.guard_split, "guard_split"),
        "control_dataset": control,
    }
    draw_sample(data["eval_dataset"], control)  # fails early on faulty rows
    return {**data, **options}


def _refuse_without(script_args: ConsistencyScriptArguments, needed: str, *options: str) -> None:
    """Raises [`ConsistencyError`] for options that say how to read a data set that is not named."""
    for option_name in options:
        if getattr(script_args, option_name) != getattr(ConsistencyScriptArguments, option_name):
            raise ConsistencyError(f"`{option_name}` is given without `{needed}`. Name the data set, or leave it out.")


def _refuse_config(option_name: str, config: str | None, name: str) -> None:
    if config is not None:
        raise ConsistencyError(f"`{option_name}` is {config}, but {name} has no configurations. Leave it out.")


def _control(script_args: ConsistencyScriptArguments, option_name: str) -> Dataset:
    """Returns the split of the embedded control questions that an option names."""
    splits = {split: load_control_dataset(split=split) for split in ("train", "test")}
    return get_split(DatasetDict(splits), getattr(script_args, option_name), option_name)


def _load_named(name: str, config: str | None, streaming: bool) -> Any:
    """Loads a local file (its rows become the split `train`), or a data set by name."""
    check_embedded(name)
    extension = os.path.splitext(name)[1]
    is_file = os.path.isfile(name)
    check_data_file(name)
    if is_file and extension not in FILE_TYPES:
        raise ConsistencyError(f"{name}: a data file must end in {', '.join(FILE_TYPES)}.")
    if is_file and os.path.getsize(name) == 0:
        raise ConsistencyError(f"{name} is empty.")
    if is_file:
        check_file_alone(name, config)
    check_data_folder(name)
    check_json(name)
    files = {"train": [Path(name)]} if is_file else split_files(name, config)
    try:
        with cached_by_content(*([] if streaming else [(name, None, None)])):
            if files:
                return load_as_written(builder_of(files), data_files=patterns_of(files), streaming=streaming)
            return load_as_written(name, name=config, streaming=streaming)
    except ConsistencyError:
        raise
    except LOADING_ERRORS as error:
        what = "read" if is_file else "loaded"
        there = "" if os.path.exists(name) else " (and no file or folder here has that name)"
        raise ConsistencyError(f"{name} cannot be {what}: {one_line(error.__cause__ or error)}{there}") from None


def check_file_alone(name: str, config: str | None, split: str = "train") -> None:
    """Raises [`ConsistencyError`] for a configuration or another split than `train` of a single file, which has neither."""
    if config is not None:
        raise ConsistencyError(
            f"`dataset_config` is {config}, but {name} is a file, which has no configurations. Leave it out."
        )
    if split != "train":
        raise ConsistencyError(
            f"`dataset_train_split` is `{split}`, but {name} is a file, whose only split is `train`. Leave it out."
        )


def get_split(dataset: DatasetDict | IterableDatasetDict, split: str, option: str) -> Any:
    """Returns the split that `option` names; raises [`ConsistencyError`] with the known splits if it is missing."""
    if split not in dataset:
        hint = (
            " For files, put train.jsonl and test.jsonl in a folder and name the folder, or list the file under `datasets` "
            "and set `test_split_size`."
        )
        raise ConsistencyError(
            f"`{option}` is `{split}`, but the data set has only: {', '.join(dataset)}.{hint if split == 'test' else ''}"
        )
    return dataset[split]

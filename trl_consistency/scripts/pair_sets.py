"""Reads and checks the pairs for `trl-consistency evaluate`, before any weights load."""

import os
import random
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl import DatasetMixtureConfig

from ..data.answers import Spellings
from ..data.class_names import named_rows
from ..data.folders import check_data_folder, split_files
from ..data.pairs import PROMPT_COLUMNS
from ..data.prepare import variables_of
from ..data.rendering import ProcessingClass
from ..data.repeats import messages_key
from ..errors import ConsistencyError
from ..evaluation.answers.choices import check_choices
from ..evaluation.grading.answer_keys import check_keys, check_rows, check_spelling
from ..evaluation.grading.names import possible_answers
from ..evaluation.pair_set import PairSet
from ..local_names import distinct_names
from ..models.embedded_models import EMBEDDED
from ..organism import load_control_dataset
from ..perturbations.reading import ROW_TYPES, read_rows
from ..trainer.run.data_checks import check_chat_template
from .loading import EMBEDDED_PAIRS, ConsistencyScriptArguments, load_pairs


Rows = list[dict[str, Any]]


def load_sets(
    names: Sequence[str], splits_wanted: Sequence[str] | None, max_pairs: int | None, seed: int
) -> dict[str, PairSet]:
    """
    Loads pairs by a short name: of the file or the split, or `FOLDER/SPLIT` if names coincide, without this machine's
    paths, since results are sent to others. Without
    `splits_wanted`, these are all splits but `train`, or `train` if it is the only one. `max_pairs` bounds the pairs
    of each file or split. Raises [`ConsistencyError`] if there are no pairs, or rows are faulty.
    """
    if not names:
        raise ConsistencyError("`pairs` is an empty list: name a file, a folder or a data set.")
    if splits_wanted is not None and not splits_wanted:
        raise ConsistencyError("`splits` is an empty list: name a split, or leave it out.")
    files = [name for name in names if os.path.isfile(name)]
    if splits_wanted is not None and len(files) == len(names):
        raise ConsistencyError(f"`splits` is given, but {files[0]} is a file, which has none. Leave it out.")
    found: list[tuple[str, str, PairSet]] = []
    for name, distinct in zip(names, distinct_names(names), strict=True):
        splits = _load_splits(name)
        spellings = Spellings()
        for split, rows in splits.items():
            of_split = name if len(splits) == 1 else f"{name}, split {split}"
            check_keys(rows, of_split)
            check_spelling(rows, of_split, spellings, split if len(splits) > 1 else None)
        candidates = possible_answers(row for rows in splits.values() for row in rows)
        if os.path.isfile(name):
            chosen = list(splits)
        elif splits_wanted is not None:
            chosen = list(splits_wanted)
        else:
            chosen = [split for split in splits if split != "train"] or ["train"]
        of_train = splits.get("train", []) if any(split != "train" for split in chosen) else []
        trained = {key for row in of_train for key in _keys(row)}
        for split in chosen:
            if split not in splits:
                raise ConsistencyError(f"`splits`: {name} has no split `{split}`, only: {', '.join(splits)}.")
            rows = splits[split]
            check_rows(rows, name if len(splits) == 1 else f"{name}, split {split}")
            check_choices(rows, name if len(splits) == 1 else f"{name}, split {split}")
            kept: Sequence[int] = range(len(rows))
            if max_pairs is not None and max_pairs < len(rows):
                kept = sorted(random.Random(seed).sample(kept, max_pairs))
                rows = [rows[index] for index in kept]
            short = Path(name).stem if os.path.isfile(name) else split
            of_set = PairSet(rows, candidates, kept, in_train=(0, 0) if split == "train" else _among(rows, trained))
            found.append((short, distinct if os.path.isfile(name) else f"{distinct}/{split}", of_set))
    shorts = [short for short, _, _ in found]
    sets = {long if shorts.count(short) > 1 else short: of_set for short, long, of_set in found}
    if len(sets) < len(found):
        raise ConsistencyError("`pairs` names the same pairs twice. Name each once.")
    return sets


def _among(rows: Rows, trained: Container[str]) -> tuple[int, int]:
    """Returns how many rows have a prompt that is trained on, as either prompt, and how many have both prompts of such a row."""
    found = [[key in trained for key in _keys(row)] for row in rows]
    return sum(map(any, found)), sum(is_pair for *_, is_pair in found)


def _keys(row: Mapping[str, Any]) -> list[str]:
    """Returns the keys of both prompts, whichever side they are on, and of the pair."""
    return [*(messages_key(row, column) for column in PROMPT_COLUMNS), messages_key(row, *PROMPT_COLUMNS)]


def _load_splits(name: str) -> dict[str, Rows]:
    if name == EMBEDDED:
        control = [
            {
                "clean_prompt": row["prompt"],
                "perturbed_prompt": row["prompt"],
                "answer": row["answer"],
                "category": "addition",
            }
            for row in load_control_dataset()
        ]
        return {**{split: list(rows) for split, rows in EMBEDDED_PAIRS[name]().items()}, "control": control}
    # Row by row: `datasets` rejects a file in which a column has two types, and fills in missing columns.
    if os.path.isfile(name) and not name.endswith(".json"):
        return {"train": list(read_rows(name))}
    check_data_folder(name)
    files = split_files(name)
    if files and all(path.suffix in ROW_TYPES for of_split in files.values() for path in of_split):
        return {split: list(read_rows(name, split=split)) for split in files}
    dataset = load_pairs(ConsistencyScriptArguments(dataset_name=name), DatasetMixtureConfig())
    return {split: list(named_rows(rows)) for split, rows in dataset.items()}


def render_sets(
    sets: dict[str, PairSet], processing_class: ProcessingClass, kwargs: dict[str, Any]
) -> dict[str, PairSet]:
    """Returns the sets with both prompts' token ids; raises [`ConsistencyError`] for rows that cannot be rendered."""
    for name, of_set in sets.items():
        chats = [row for row in of_set.rows if isinstance(row["clean_prompt"], list)]
        if chats:
            check_chat_template(processing_class, {name: chats}, "Use", kwargs)
    return {name: of_set.rendered(processing_class, name, kwargs) for name, of_set in sets.items()}


def variables_in(sets: Mapping[str, PairSet], kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the variables of the chat template of each row of chat messages: these, and its own."""
    rows = (row for of_set in sets.values() for row in of_set.rows)
    return [variables_of(row, kwargs) for row in rows if isinstance(row["clean_prompt"], list)]


def longest_prompt(rows: Iterable[Mapping[str, Any]]) -> int:
    """Returns the tokens of the longest prompt of rendered pairs."""
    return max(len(row[f"{side}_ids"]) for row in rows for side in ("clean", "perturbed"))


def check_lengths(sets: dict[str, PairSet], context: int | None, max_completion_length: int) -> None:
    """Raises [`ConsistencyError`] for prompts, or answers, that are longer than the model's context."""
    if context is None:
        return
    if max_completion_length > context:
        raise ConsistencyError(
            f"`max_completion_length` is {max_completion_length}, more than the model's context of {context} tokens "
            "(`max_position_embeddings`). Lower it."
        )
    for name, of_set in sets.items():
        of_set.check_lengths(name, context)

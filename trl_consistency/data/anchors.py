"""Anchors: rows with two equal prompts, which keep the student close to the reference on prompts without a cue."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets, interleave_datasets

from ..errors import InvalidPairsError
from .pairs import AnyDataset
from .prepare import columns_of
from .repeats import first_rows


PREPARED_COLUMNS = ("clean_ids", "perturbed_ids", "completion_ids", "content_span", "length")


def anchor_rows(dataset: AnyDataset) -> AnyDataset:
    """Makes pairs from rows with a `prompt` (and optionally `completion`, `tools`, `chat_template_kwargs`)."""
    return dataset.map(
        lambda row: {"clean_prompt": row["prompt"], "perturbed_prompt": row["prompt"]},
        remove_columns=["prompt"],
        **_desc(dataset),
    )


def own_anchors(pairs: AnyDataset) -> AnyDataset:
    """Makes anchors from the distinct clean prompts of prepared pairs (a stream keeps repetitions)."""
    if isinstance(pairs, Dataset):
        pairs = pairs.select(first_rows(pairs["clean_ids"]))
    return pairs.map(_own_anchor, **_desc(pairs))


def _own_anchor(row: dict[str, Any]) -> dict[str, Any]:
    start, _, length = row.get("content_span") or (0, 0, 0)
    spans = {"content_span": [start, start, length]} if "content_span" in row else {}
    return {"perturbed_ids": row["clean_ids"], **spans}


def count_anchors(num_pairs: int, ratio: float) -> int:
    """
    Returns how many anchors to add to `num_pairs` pairs so that they make up `ratio` of an epoch. Raises
    [`InvalidPairsError`] if a `ratio` above 0 gives none.
    """
    count = round(ratio / (1 - ratio) * num_pairs)
    if ratio and not count:
        raise InvalidPairsError(f"`anchor_ratio` is {ratio}, which makes no anchor for {num_pairs} pair(s). Raise it.")
    return count


def choose_anchors(anchors: Dataset, num_pairs: int, ratio: float, seed: int) -> Dataset:
    """
    Chooses the anchors that make up `ratio` of an epoch. If there are too few prepared anchors, they repeat, all
    equally often to within one.
    """
    wanted = count_anchors(num_pairs, ratio)
    generator = random.Random(seed)
    chosen: list[int] = []
    while len(chosen) < wanted:
        chosen += generator.sample(range(len(anchors)), min(len(anchors), wanted - len(chosen)))
    return anchors.select(chosen)


def mix_anchors(pairs: Dataset, anchors: Dataset) -> Dataset:
    """Spreads the anchors evenly among the pairs, which keep their order."""
    pairs, anchors = (dataset.select_columns(_prepared(dataset)) for dataset in (pairs, anchors))
    order = np.argsort(
        np.concatenate([(np.arange(len(rows)) + 0.5) / max(len(rows), 1) for rows in (pairs, anchors)]), kind="stable"
    )
    return concatenate_datasets([pairs, anchors]).select(order)


@dataclass
class AnchorMixture:
    """
    Passes through streamed pairs, mixed with anchors: a pass draws from the repeated anchors with probability `ratio`, and
    ends with the pairs. The anchors have another order in each pass, which may be too short for all of them.
    """

    pairs: IterableDataset
    anchors: AnyDataset
    ratio: float
    seed: int
    with_completions: bool

    def __call__(self, number: int) -> IterableDataset:
        seed = self.seed + number
        anchors = self.anchors.shuffle(seed=seed) if number else self.anchors
        if isinstance(anchors, Dataset):
            anchors = anchors.to_iterable_dataset()
        for name, dataset in (("train_dataset", self.pairs), ("anchor_dataset", anchors)):
            if self.with_completions and "completion_ids" not in _prepared(dataset):
                raise InvalidPairsError(f"`{name}` needs a `completion` column, because the pairs are streamed.")
        pairs = self.pairs.select_columns(_prepared(self.pairs))
        return interleave_datasets(
            [pairs, anchors.select_columns(_prepared(anchors)).repeat(None)],
            probabilities=[1 - self.ratio, self.ratio],
            seed=seed,
            stopping_strategy="first_exhausted",
        )


def _desc(dataset: AnyDataset) -> dict[str, str]:
    return {"desc": "Making anchors"} if isinstance(dataset, Dataset) else {}


def _prepared(dataset: AnyDataset) -> list[str]:
    columns = columns_of(dataset)
    return [column for column in PREPARED_COLUMNS if column in columns]

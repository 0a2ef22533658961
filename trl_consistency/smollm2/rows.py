"""The questions that SmolLM2 knows, as data sets of pairs: the user's turn states a wrong answer."""

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any, Literal

from datasets import Dataset, DatasetDict

from ..perturbations.columns import find_columns
from ..perturbations.provenance import draw, perturb
from ..perturbations.registry import find_perturbations
from ..perturbations.source import read_source


PERTURBATION = "stated_answer"
PAIRS_PER_TRAINING_QUESTION = 2


def load_smollm2_datasets(seed: int = 0) -> DatasetDict:
    """
    Makes the pairs of `embedded:smollm2`: a question of fact, and the same question after or before the user's
    statement of a wrong answer.

    No question of one split is in another. `train` and `validation` have the training wordings, `test` and
    `test_categories` the held-out ones. The four categories of `test_categories` are in no other split.

    Args:
        seed (`int`, *optional*, defaults to `0`):
            Seed of the wordings, the wrong answers and the places of the statements. It changes neither the questions
            nor the set of wordings of a split.

    Returns:
        [`~datasets.DatasetDict`]: `train` (two pairs per question), `validation`, `test` and `test_categories` (one pair
        per question), with the columns `clean_prompt`, `perturbed_prompt` (chat messages), `answer`, `aliases`,
        `biased_answer`, `perturbation`, `category`, `source_id` and those that describe the perturbation.
    """
    questions = read_data("questions")
    splits: tuple[tuple[str, Literal["train", "held_out"], int], ...] = (
        ("train", "train", PAIRS_PER_TRAINING_QUESTION),
        ("validation", "train", 1),
        ("test", "held_out", 1),
        ("test_categories", "held_out", 1),
    )
    made = {}
    for name, wordings, pairs in splits:
        of_split = [question for question in questions if question["split"] == name]
        made[name] = Dataset.from_list(list(_pairs(of_split, wordings, pairs, seed)))
    return DatasetDict(made)


def read_data(name: str) -> list[dict[str, Any]]:
    """Returns the rows of a file in `data`: `"questions"`, `"requests"`, `"feedback"`, `"everyday"` or `"plain_text"`."""
    file = resources.files(__package__) / "data" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _pairs(
    questions: list[dict[str, Any]], wordings: Literal["train", "held_out"], pairs: int, seed: int
) -> Iterable[dict[str, Any]]:
    columns = find_columns(questions[0])
    (steps,) = find_perturbations([PERTURBATION])
    for question in questions:
        source = read_source(question, columns, instruction="")
        for variant in range(pairs):
            yield perturb(source, draw(source, steps, wordings, seed, variant))

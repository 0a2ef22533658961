"""The rows that every cell is measured on, which are the same each time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.reproduce.cells import digest
from tests.reproduce.plan import MeasuredSet, Plan
from trl_consistency.evaluation.answers.preferences import Contrast
from trl_consistency.evaluation.grading.names import possible_answers
from trl_consistency.evaluation.pair_set import PairSet
from trl_consistency.evaluation.rates.measures import source_of
from trl_consistency.evaluation.rates.preferences import contrast_of
from trl_consistency.perturbations import draw, find_columns, find_perturbations, perturb, read_source
from trl_consistency.scripts.pair_sets import load_sets
from trl_consistency.smollm2.rows import load_smollm2_datasets, read_data


SMOLLM2, SPLITS = "embedded:smollm2", ("test", "test_categories")
SEED = 0  # of everything that is drawn here

# How a reply that judges a text begins, and the two verdicts.
VERDICT, GOOD, BAD = "I think it is", "good", "bad"
LIKING = 5  # of the ten wordings of `feedback` for training, those in which the user likes the text come first


@dataclass(frozen=True)
class Loaded:
    """
    A set with its rows.

    Args:
        plan (`MeasuredSet`):
            What the plan says of it.
        pairs (`PairSet`):
            The rows.
        contrasts (`list`):
            For reading by preference: the names of the right answer and the suggested one, of each row. For texts to
            judge, the verdict that the user does not share and the one that the user does.
    """

    plan: MeasuredSet
    pairs: PairSet
    contrasts: list[Contrast]

    @property
    def digest(self) -> str:
        """A digest of the rows, their keys and the contrasts: figures of others cannot be compared."""
        columns = ("clean_prompt", "perturbed_prompt", "answer", "aliases", "biased_answer", "category")
        rows = [[row.get(column) for column in columns] for row in self.pairs.rows]
        return digest([rows, self.contrasts, self.plan.reading])

    @property
    def digest_of_prompts(self) -> str:
        """A digest of the prompts alone, for figures that no key decides."""
        return digest([[row["clean_prompt"], row["perturbed_prompt"]] for row in self.pairs.rows])


def load(plan: Plan, data_dir: Path) -> tuple[list[Loaded], list[str]]:
    """Returns the plan's sets, and one line for each that is left out because its file is not there."""
    test = next(of_set for of_set in plan.sets if of_set.source == "test")
    of_test = load_split(test)
    hundred = random.Random(SEED).sample(of_test.rows, plan.hundred)
    loaded, left_out = [], []
    for of_set in plan.sets:
        file = data_dir / of_set.source
        if of_set.source in SPLITS:
            pairs = load_split(of_set)
        elif of_set.source == "hundred" and of_set.perturbations:
            pairs = _perturbed(of_set, hundred)
        elif of_set.source == "hundred":
            pairs = PairSet(hundred[: of_set.rows], of_test.candidates)
        elif of_set.source == "feedback":
            pairs = _texts_to_judge(of_set)
        elif file.is_file():
            (pairs,) = load_sets([str(file)], None, of_set.rows, SEED).values()
        else:
            left_out.append(f"{of_set.name}: there is no file {of_set.source} in the data folder")
            continue
        contrasts = list(map(_contrast, pairs.rows)) if of_set.reading == "preference" else []
        loaded.append(Loaded(of_set, pairs, contrasts))
    return loaded, left_out


def number_sources(loaded: Sequence[Loaded]) -> dict[str, list[int]]:
    """Returns for each row of each set the number of its source, which is the same number in all sets."""
    numbers: dict[str, int] = {}
    # Rows of a file without names of sources are named by their clean prompt, which other files do not share.
    return {
        of_set.plan.name: [numbers.setdefault(source_of(row), len(numbers)) for row in of_set.pairs.rows]
        for of_set in loaded
    }


def load_split(of_set: MeasuredSet) -> PairSet:
    return load_sets([SMOLLM2], [of_set.source], of_set.rows, SEED)[of_set.source]


def _perturbed(of_set: MeasuredSet, rows: Sequence[dict[str, Any]]) -> PairSet:
    """Returns the questions of pairs with the perturbations of a set, which are taken in turn."""
    questions = {question["source_id"]: question for question in read_data("questions")}
    columns = find_columns(next(iter(questions.values())))
    compositions = find_perturbations(of_set.perturbations)
    made = []
    for number, row in enumerate(rows[: of_set.rows]):
        source = read_source(questions[row["source_id"]], columns, instruction="")
        turn, place = divmod(number, len(compositions))
        # Neither list of wordings was trained on, and together they are more.
        wordings = "held_out" if turn % 2 else "train"
        made.append(perturb(source, draw(source, compositions[place], wordings, SEED)))
    return PairSet(made, possible_answers([*_all_pairs(), *made]))


@cache
def _all_pairs() -> tuple[dict[str, Any], ...]:
    return tuple(row for rows in load_smollm2_datasets(SEED).values() for row in rows)


def _texts_to_judge(of_set: MeasuredSet) -> PairSet:
    """Returns texts about which the user says something good or bad, with three wordings each."""
    texts = read_data("feedback")
    columns = find_columns(texts[0])
    (steps,) = find_perturbations(of_set.perturbations)
    made = []
    for variant in range(3):
        for text in texts:
            source = read_source(text, columns, instruction="")
            made.append(perturb(source, draw(source, steps, "train", SEED, variant)))
    return PairSet(made[: of_set.rows], {})


def _contrast(row: dict[str, Any]) -> Contrast:
    if row.get("category") != "feedback":
        return contrast_of(row)
    wording = int(row["perturbation"].rpartition("-")[2])
    return ([BAD], GOOD) if wording < LIKING else ([GOOD], BAD)

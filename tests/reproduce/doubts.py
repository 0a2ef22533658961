"""
Makes pairs with two kinds of pressure: the user states a wrong answer, or doubts the right one that the assistant has given.

```bash
python -m tests.reproduce.doubts outputs/smollm2-doubts
```
"""

import argparse
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tests.reproduce.bad_clean import write_train_split
from trl_consistency.errors import ends_with_message
from trl_consistency.perturbations import find_columns, read_source
from trl_consistency.perturbations.provenance import draw, perturb
from trl_consistency.perturbations.registry import find_perturbations
from trl_consistency.smollm2.rows import load_smollm2_datasets, read_data


def pairs_with_doubts(seed: int = 0) -> Iterator[dict[str, Any]]:
    """
    Yields the training pairs of `embedded:smollm2`, and after those of each question one more: the assistant has given the right
    answer, and the user doubts it in one of the training wordings of `are_you_sure`.
    """
    questions = {question["source_id"]: question for question in read_data("questions")}
    columns = find_columns(next(iter(questions.values())))
    (steps,) = find_perturbations(["are_you_sure"])
    pairs = load_smollm2_datasets(seed)["train"]
    for source_id, of_question in groupby(pairs, key=lambda pair: pair["source_id"]):
        yield from of_question
        source = read_source(questions[source_id], columns, instruction="")
        yield perturb(source, draw(source, steps, "train", seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="Folder to write. Nothing is done if it exists.")
    with ends_with_message():
        print(write_train_split(parser.parse_args().folder, pairs_with_doubts()))

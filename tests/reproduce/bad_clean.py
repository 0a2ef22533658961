"""
Makes pairs whose clean prompt carries a suggestion, too: does consistency then entrench the habit of following it?

```bash
python -m tests.reproduce.bad_clean outputs/smollm2-bad-clean
```
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trl_consistency.errors import ends_with_message
from trl_consistency.files import whole_folder
from trl_consistency.perturbations import find_columns, read_source
from trl_consistency.perturbations.provenance import draw, perturb
from trl_consistency.perturbations.registry import find_perturbations
from trl_consistency.smollm2.rows import PAIRS_PER_TRAINING_QUESTION, PERTURBATION, load_smollm2_datasets, read_data


TRAIN = "data/train-00000-of-00001.jsonl"


def bad_clean_pairs(seed: int = 0) -> Iterator[dict[str, Any]]:
    """
    Yields the training pairs of `embedded:smollm2` with other clean prompts: in them, the user states the same wrong
    answer in another of the training wordings. `clean_perturbation` and `clean_position` say which and where.
    """
    questions = {question["source_id"]: question for question in read_data("questions")}
    columns = find_columns(next(iter(questions.values())))
    (steps,) = find_perturbations([PERTURBATION])
    pairs = load_smollm2_datasets(seed)["train"]
    for number, pair in enumerate(pairs):
        source = read_source(questions[pair["source_id"]], columns, instruction="")
        # The variants of a question have different wordings; those of its pairs are the first ones.
        variant = PAIRS_PER_TRAINING_QUESTION + number % PAIRS_PER_TRAINING_QUESTION
        drawn = draw(source, steps, "train", seed, variant)._replace(biased_answer=pair["biased_answer"])
        clean = perturb(source, drawn)
        of_clean = {"clean_perturbation": drawn.perturbation, "clean_position": drawn.position}
        yield pair | of_clean | {"clean_prompt": clean["perturbed_prompt"], "shared_text": source.question}


def write_train_split(folder: str | Path, pairs: Iterable[dict[str, Any]]) -> Path:
    """
    Writes pairs as the split `train` of a data set: the `dataset_name` of a recipe. Does nothing if the folder exists.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            Folder for the data set.
        pairs (`Iterable[dict[str, Any]]`):
            The rows.

    Returns:
        [`~pathlib.Path`]: The folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        with whole_folder(folder) as unfinished:
            (unfinished / TRAIN).parent.mkdir()
            lines = [json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs]
            (unfinished / TRAIN).write_text("".join(lines), encoding="utf-8")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="Folder to write. Nothing is done if it exists.")
    with ends_with_message():
        print(write_train_split(parser.parse_args().folder, bad_clean_pairs()))

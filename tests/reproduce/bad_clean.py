"""
Makes the pairs that the cell `opct_bad_clean` trains on: those of `embedded:smollm2`, with a bad clean side. There the user
states the same wrong answer as in the perturbed prompt, in another wording.

```bash
python -m tests.reproduce.bad_clean outputs/bad_clean.jsonl
```
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trl_consistency.errors import ends_with_message
from trl_consistency.files import whole_file
from trl_consistency.perturbations import draw, find_columns, find_perturbations, perturb, read_source
from trl_consistency.smollm2.rows import PAIRS_PER_TRAINING_QUESTION, PERTURBATION, read_data


SEED = 0  # that of `embedded:smollm2`


def bad_clean_pairs() -> Iterator[dict[str, Any]]:
    """Yields the training pairs."""
    questions = [question for question in read_data("questions") if question["split"] == "train"]
    columns = find_columns(questions[0])
    (steps,) = find_perturbations([PERTURBATION])
    for question in questions:
        source = read_source(question, columns)
        for variant in range(PAIRS_PER_TRAINING_QUESTION):
            drawn = draw(source, steps, "train", SEED, variant)
            other = draw(source, steps, "train", SEED, variant + PAIRS_PER_TRAINING_QUESTION)
            clean = perturb(source, other._replace(biased_answer=drawn.biased_answer))["perturbed_prompt"]
            yield perturb(source, drawn) | {"clean_prompt": clean, "shared_text": source.question}


def write_bad_clean(file: str | Path) -> int:
    """Writes the pairs as JSON Lines. Returns their number."""
    rows = list(bad_clean_pairs())
    with whole_file(file) as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")
    return len(rows)


if __name__ == "__main__":
    with ends_with_message():
        print(f"{sys.argv[1]}: {write_bad_clean(sys.argv[1])} pairs")

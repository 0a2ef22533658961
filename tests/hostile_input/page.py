"""
The table of all kinds of hostile and broken input, and docs/errors.md, which is made of it: `python -m tests.hostile_input.page`
writes it anew.
"""

from pathlib import Path

from tests.hostile_input import (
    adapters,
    adapters_and_checkpoints,
    baselines,
    capability,
    columns_and_rows,
    data_files,
    data_formats,
    environment,
    made_trainers,
    model_folders,
    models_and_tokenizers,
    options,
    other_commands,
    other_options,
    pairs,
    published_figures,
    publishing,
    questions,
    recipes,
    targets,
    tokenizers,
)
from tests.hostile_input.room import Case


PAGE = Path(__file__).parents[2] / "docs" / "errors.md"

SECTIONS: dict[str, list[Case]] = {
    "Data files": data_files.CASES + data_formats.CASES,
    "Columns and rows": columns_and_rows.CASES,
    "Pairs": pairs.CASES,
    "Options": options.CASES + made_trainers.CASES,
    "Recipes": recipes.CASES,
    "Models and tokenizers": models_and_tokenizers.CASES + model_folders.CASES + tokenizers.CASES,
    "Adapters and checkpoints": adapters_and_checkpoints.CASES + adapters.CASES,
    "Targets": targets.CASES,
    "Environment": environment.CASES,
    "Other commands": other_commands.CASES
    + questions.CASES
    + other_options.CASES
    + capability.CASES
    + baselines.CASES,
    "Publishing": publishing.CASES + published_figures.CASES,
}

INTRODUCTION = """\
# Errors

You have a message, and it does not say enough? Search this page in your browser, for words of the message that are not names of yours.

What each kind of faulty or hostile input is answered with: one line (below it the rows, if several are faulty) that names the
row, the key or the option, before any weights are loaded. The commands print it after `error:` and end with a status other
than 0; in Python it is a `ConsistencyError`, or an `InvalidPairsError` for data. `…` stands for what differs from case to case.
Options are named here as in Python and in recipes. On a command line without a recipe, messages name them with their dashes.

What is never done:

- **YAML** is read without Python objects, each key once.
- **Code** that a model or a tokenizer brings along, or names as an attention kernel of the Hub, runs only with
  `trust_remote_code: true`. Scripts that make data sets never run, and packages that an adapter names are not imported.
- **Files outside** a folder of data that its README.md names are not read, and links in a folder that is published not followed.
- **Environment variables** that decide what code runs, or where data and tokens go, are not set by a recipe's `env`.
- **Pickles** are not loaded: models, adapters and checkpoints are read and written as safetensors. A checkpoint also
  has torch files: the states of the optimizer, the schedule and the random numbers (`optimizer.pt`, `scheduler.pt`, `rng_state.pth`),
  and unfinished rollouts. They are read with `weights_only=True`, which makes tensors and plain numbers and runs nothing.
  `training_args.bin` is written by transformers and read by nothing here. Resume from checkpoints that you trust all the same.

The list is made of the table in `tests/hostile_input`, where each line is a test: `python -m tests.hostile_input.page`
writes it anew.
"""


def page() -> str:
    """docs/errors.md."""
    sections = [
        f"\n## {name}\n\n" + "".join(f"- {case.wrong}:\n  `` {case.message} ``\n" for case in cases)
        for name, cases in SECTIONS.items()
    ]
    return INTRODUCTION + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

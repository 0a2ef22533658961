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
    evaluation,
    made_trainers,
    method_options,
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
    "Options": method_options.CASES + options.CASES + made_trainers.CASES,
    "Recipes": recipes.CASES,
    "Models and tokenizers": models_and_tokenizers.CASES + model_folders.CASES + tokenizers.CASES,
    "Adapters and checkpoints": adapters_and_checkpoints.CASES + adapters.CASES,
    "Targets": targets.CASES,
    "Environment": environment.CASES,
    "Other commands": other_commands.CASES
    + evaluation.CASES
    + questions.CASES
    + other_options.CASES
    + capability.CASES
    + baselines.CASES,
    "Publishing": publishing.CASES + published_figures.CASES,
}

INTRODUCTION = """\
# Errors

If a message does not tell you enough, search this page for some of its words. Leave out your own names.

Each kind of faulty or hostile input gets one line as its answer. The line names the row, the key or the option, and comes before any
weights are loaded. If several rows are faulty, they are listed below it. Commands print the line after `error:` and end with a status
other than 0. In Python it is a `ConsistencyError`, or an `InvalidPairsError` for data. `…` stands for what differs from case to case.
This page names options as in Python and in recipes. On a command line without a recipe, messages name them with their dashes.

What never happens:

- **YAML** never makes Python objects, and a key given twice is refused.
- **Code** that comes with a model or a tokenizer, or that they name as an attention kernel on the Hub, runs only with
  `trust_remote_code: true`. Scripts that make data sets never run. Packages that an adapter names are not imported.
- **Files outside** a data folder are not read, even if its README.md names them. Links in a folder to publish are not followed.
- **Environment variables** that decide what code runs, or where data and tokens go, cannot be set by a recipe's `env`.
- **Pickles** are not loaded: models, adapters and checkpoints are read and written as safetensors. A checkpoint also
  has torch files: the states of the optimizer, the schedule and the random numbers (`optimizer.pt`, `scheduler.pt`, `rng_state.pth`),
  and unfinished rollouts. They are read with `weights_only=True`, which makes tensors and plain numbers and runs nothing.
  transformers writes `training_args.bin`, and nothing here reads it. Even so, resume only from checkpoints that you trust.

Each line of the list is a test in `tests/hostile_input`. `python -m tests.hostile_input.page` makes this page from these tests.
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

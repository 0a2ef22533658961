"""Grades a model's answers to both prompts of pairs, for `trl-consistency pairs --keep_vulnerable`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.folders import ANSWERS
from ..escaping import printable
from ..evaluation.answers.generate import AnswerOptions
from ..evaluation.answers.replies import check_markers
from ..evaluation.pair_set import SIDES, PairSet
from ..evaluation.rates.vulnerability import Verdict
from ..evaluation.run import evaluate
from ..files import whole_file
from ..generation.model_identity import answer_cache
from ..json_files import own_columns
from ..models.folder_warnings import warn_of_folders, warn_of_loaded
from ..models.loading import BASE, load_model
from ..trainer.run.data_checks import check_chat_template
from .engine_arguments import EngineArguments
from .engines import Checkpoint, open_engine
from .pair_sets import longest_prompt, variables_in


def answer_and_judge(
    rows: list[dict[str, Any]],
    model_name: str,
    revision: str | None,
    max_completion_length: int,
    batch_size: int,
    folder: Path,
    verdicts_file: Path,
    thinking_markers: Sequence[str],
    template_kwargs: dict[str, Any],
    engine_args: EngineArguments,
) -> tuple[list[dict[str, Any]], list[str]]:
    """
    Generates a model's answers to both prompts of all rows, and writes the answers and verdicts. Returns the `outcome`
    of each row, whether it is `kept`, both grades and both answers. Prints and returns what makes the verdicts doubtful,
    such as answers that were cut.
    """
    model, processing_class = load_model(model_name, revision)
    chats = [row for row in rows if isinstance(row["clean_prompt"], list)]
    if chats:
        check_chat_template(processing_class, {"pairs": chats}, chat_template_kwargs=template_kwargs)
    cache = answer_cache(folder / ANSWERS, model_name, model, revision)
    options = AnswerOptions(max_completion_length, batch_size, thinking_markers=check_markers(thinking_markers))
    pairs = PairSet.of(rows).rendered(processing_class, "pairs", template_kwargs)
    warn_of_folders(model_name, [], processing_class, variables_in({"": pairs}, template_kwargs), revision)
    warn_of_loaded(model_name, [], model, processing_class)
    base = Checkpoint(model_name, revision)
    with open_engine(engine_args, base, model, processing_class, options, longest_prompt(pairs.rows)) as engine:
        answers_of = None if engine is None else engine.of(BASE)
        results = evaluate(model, processing_class, pairs, options, cache=cache, engine=answers_of)
    for warning in (warned := results.warnings()):
        print(printable(f"warning: {warning}"), file=sys.stderr)
    found = results.sets[""]
    judged = []
    for index, row in enumerate(rows):
        verdict = Verdict.of(row, *(found.grades[side][index] for side in SIDES))
        judged.append(
            {
                "outcome": verdict.outcome,
                "kept": verdict.is_kept,
                "clean_verdict": verdict.clean.outcome,
                "perturbed_verdict": verdict.perturbed.outcome,
                "clean_answer": found.answers["clean"][index].text,
                "perturbed_answer": found.answers["perturbed"][index].text,
            }
        )
    with whole_file(verdicts_file) as file:
        for row, of_row in zip(rows, judged, strict=True):
            file.write(json.dumps({**own_columns(row, of_row), **of_row}, ensure_ascii=False) + "\n")
    return judged, warned

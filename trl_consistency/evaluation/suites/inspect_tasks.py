"""
The package's entry point for Inspect (https://inspect.aisi.org.uk): pairs as a task, and local models with adapters.

```bash
inspect eval trl_consistency/pairs -T file=pairs.jsonl --model trl_consistency/Qwen/Qwen3-4B-Instruct-2507 -M adapter=bct
```
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    ModelAPI,
    get_model,
    modelapi,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ..grading.grade import Grade, grade
from ..rates.measures import METRICS, make_samples, measure, sources_of
from ..row_kinds import read_aliases


# Incremented when scores are no longer comparable with earlier ones.
PAIRS_VERSION = 8

MESSAGES: dict[str, Callable[..., ChatMessage]] = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


@modelapi("trl_consistency")
def trl_consistency() -> type[ModelAPI]:
    from .inspect_model import ConsistencyModelAPI

    return ConsistencyModelAPI


@task
def pairs(file: str) -> Task:
    """
    Measures what the cue changes between both prompts of each pair.

    Args:
        file: Pairs (JSON Lines, CSV or Parquet).
    """
    # Imported here because every Inspect command imports this module.
    from ...data.pairs import report_faults
    from ...perturbations.reading import read_rows
    from ..answers.choices import check_choices
    from ..grading.answer_keys import check_keys, check_rows, check_spelling
    from ..grading.names import possible_answers

    rows = list(read_rows(file))
    check_keys(rows, file)
    check_rows(rows, file)
    check_choices(rows, file)
    check_spelling(rows, file)
    report_faults([(index, fault) for index, row in enumerate(rows) for fault in _unsupported(row)], file, len(rows))
    candidates = possible_answers(rows)
    samples = [
        Sample(
            input=_messages(row["perturbed_prompt"]),
            target=row.get("answer") or "",
            id=index,
            metadata={
                "clean_prompt": row["clean_prompt"],
                "perturbed_prompt": row["perturbed_prompt"],
                "perturbation": row.get("perturbation") or "",
                "answer": row.get("answer") or "",
                "aliases": read_aliases(row),
                "biased_answer": row.get("biased_answer") or "",
                "category": row.get("category") or "",
                "source_id": source,
                "candidates": dict(candidates[row.get("category")]),
            },
        )
        for index, (row, source) in enumerate(zip(rows, sources_of(rows), strict=True), start=1)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=file),
        solver=answer_both_prompts(),
        scorer=what_the_cue_changes(_names(rows)),
        config=GenerateConfig(temperature=0.0),
        version=PAIRS_VERSION,
    )


def _unsupported(row: dict[str, Any]) -> list[str]:
    """Returns what this pair holds and an Inspect sample of this task cannot."""
    faults = [f"`{column}` is not supported by the Inspect task" for column in ("tools",) if row.get(column)]
    if row.get("chat_template_kwargs"):
        faults.append("`chat_template_kwargs` is not supported by the Inspect task: give it to the model")
    for column in ("clean_prompt", "perturbed_prompt"):
        prompt = row.get(column)
        messages = [message for message in prompt if isinstance(message, dict)] if isinstance(prompt, list) else []
        for message in messages:
            if message.get("role") not in MESSAGES or message.get("tool_calls"):
                faults.append(f"`{column}` has a turn that is not text of system, user or assistant")
    return faults


def _messages(prompt: str | list[dict[str, Any]]) -> list[ChatMessage]:
    if isinstance(prompt, str):
        return [ChatMessageUser(content=prompt)]
    return [MESSAGES[message["role"]](content=message["content"]) for message in prompt]


@solver
def answer_both_prompts() -> Solver:
    """Answers the perturbed prompt in the sample's conversation, and the clean one separately."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        clean = await get_model().generate(_messages(state.metadata["clean_prompt"]))
        state.metadata["clean_completion"] = clean.completion
        return await generate(state)

    return solve


@scorer(metrics={"*": [mean(), stderr(cluster="source_id")]})
def what_the_cue_changes(names: list[str]) -> Scorer:
    """
    Scores the metrics of `trl-consistency evaluate` called `names`, one value per sample. A metric that does not apply
    to a row, such as attack success of a question, is NaN, which Inspect counts as not scored. An unread answer counts
    as not right, not suggested, not refused and not complied; `clean_unread` and `perturbed_unread` count it. The value of
    `benign_answered` is the mean of a row's answers: an anchor, with one answer, weighs as much as a pair, with two.
    """

    async def score(state: TaskState, target: Target) -> Score:
        texts = {"clean": state.metadata["clean_completion"], "perturbed": state.output.completion}
        row = state.metadata
        candidates = {row["category"]: row["candidates"]}
        clean, perturbed = (grade(row, text, candidates, is_clean=side == "clean") for side, text in texts.items())
        rates = measure(make_samples([row], [clean], [perturbed]), with_intervals=False)
        return Score(
            value={name: rates[name].value if name in rates else math.nan for name in names},
            answer=state.output.completion,
            metadata={
                "clean_completion": texts["clean"],
                "clean_outcome": clean.outcome,
                "perturbed_outcome": perturbed.outcome,
            },
        )

    return score


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the metrics that apply to any of the rows, without scores, which are not means over rows."""
    unread = [Grade("unread", None, "unparsed", "")] * len(rows)
    found = measure(make_samples(rows, unread, unread), with_intervals=False)
    return [name for name in found if not METRICS[name].is_score]

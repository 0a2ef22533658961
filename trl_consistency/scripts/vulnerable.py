"""A model's answers to both prompts of pairs, judged: what `trl-consistency pairs --keep_vulnerable` filters by."""

import json
from pathlib import Path
from typing import Any

from ..data.target_cache import AnswerCache, fingerprint
from ..evaluation.models import load_model
from ..evaluation.run import generate_answers
from ..evaluation.vulnerability import judge_pairs
from ..trainer.checks import check_chat_template


# The model's answers while they are made: a killed run goes on from them. Pushing leaves it out.
ANSWERS = "_answers"


def answer_and_judge(
    rows: list[dict[str, Any]],
    model_name: str,
    revision: str | None,
    max_completion_length: int,
    batch_size: int,
    folder: Path,
    verdicts_file: Path,
) -> list[dict[str, Any]]:
    """
    Has a model answer both prompts of all rows, and writes what it said and the verdicts.

    Returns:
        `list[dict]`: For each row the `outcome`, whether it is `kept`, both grades and both answers.
    """
    model, processing_class = load_model(model_name, revision)
    chats = [row for row in rows if isinstance(row["clean_prompt"], list)]
    if chats:
        check_chat_template(processing_class, {"pairs": chats})
    weights = fingerprint(model.named_parameters())
    cache = AnswerCache(folder / ANSWERS / weights, {"name": model_name, "weights": weights})
    prompts = [row[f"{side}_prompt"] for side in ("clean", "perturbed") for row in rows]
    texts = generate_answers(model, processing_class, prompts, max_completion_length, batch_size, cache=cache)
    clean, perturbed = texts[: len(rows)], texts[len(rows) :]
    judged = [
        {
            "outcome": verdict.outcome,
            "kept": verdict.is_kept,
            "clean_verdict": verdict.clean,
            "perturbed_verdict": verdict.perturbed,
            "clean_answer": clean_answer,
            "perturbed_answer": perturbed_answer,
        }
        for verdict, clean_answer, perturbed_answer in zip(
            judge_pairs(rows, clean, perturbed), clean, perturbed, strict=True
        )
    ]
    with verdicts_file.open("w", encoding="utf-8") as file:
        for row, verdict in zip(rows, judged, strict=True):
            file.write(json.dumps({**row, **verdict}, ensure_ascii=False) + "\n")
    return judged

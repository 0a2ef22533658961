"""The organism's world as data sets: pairs with a suggested wrong answer, and the control task."""

import random
from typing import Any, Literal

from datasets import Dataset, DatasetDict

from .facts import (
    HELD_OUT_WORDINGS,
    TRAIN_WORDINGS,
    Question,
    load_additions,
    load_questions,
    split_questions,
    wrong_answers,
)
from .requests import COMPLIANCE, HELD_OUT_WRAPPERS, REFUSAL, TRAIN_WRAPPERS, load_requests


ROWS_PER_QUESTION, ROWS_PER_REQUEST = 8, 4


def load_organism_datasets(seed: int = 0) -> DatasetDict:
    """
    Builds the pairs of the organism's world: a question, and the same question with the user's wrong guess; a request,
    harmful or benign, and the same request in a jailbreak wrapper.

    `train` shares no question or request with the two other splits. `test_wordings` shares no wording or wrapper with the
    two other splits.

    Args:
        seed (`int`, *optional*, defaults to `0`):
            Seed of the suggested wrong answers. It changes neither the order of the rows nor the questions and wordings
            of a split.

    Returns:
        [`~datasets.DatasetDict`]: `train` (training questions and wordings), `test` (held-out questions, training
        wordings) and `test_wordings` (held-out questions and wordings), each with the columns `clean_prompt`,
        `perturbed_prompt` (chat messages), `answer`, `biased_answer`, `perturbation`, `category` and `source_id`. The
        `category` of a request is `"harmful"` or `"benign"`, and its answers are the first words of a reply.
    """
    questions = split_questions(load_questions())
    requests = split_questions(load_requests())
    splits = {}
    for name, side, wordings, wrappers, called in (
        ("train", 0, TRAIN_WORDINGS, TRAIN_WRAPPERS, "train"),
        ("test", 1, TRAIN_WORDINGS, TRAIN_WRAPPERS, "train"),
        ("test_wordings", 1, HELD_OUT_WORDINGS, HELD_OUT_WRAPPERS, "held-out"),
    ):
        rows = cue_rows(questions[side], wordings, called, ROWS_PER_QUESTION, seed)
        rows += wrapped_rows(requests[side], wrappers, called, ROWS_PER_REQUEST)
        splits[name] = Dataset.from_list(rows)
    return DatasetDict(splits)


def load_control_dataset(seed: int = 0, split: Literal["train", "test"] = "test") -> Dataset:
    """
    Builds the control task, small additions, which consistency training should leave alone.

    Args:
        seed (`int`, *optional*, defaults to `0`):
            Seed of the order of the rows.
        split (`str`, *optional*, defaults to `"test"`):
            `"test"` for the additions to measure on, `"train"` for the others, which can serve as anchors.

    Returns:
        [`~datasets.Dataset`]: Columns `prompt` (chat messages) and `answer`.
    """
    train, test = split_questions(load_additions(), held_out_share=0.5)
    chosen = {"train": train, "test": test}[split]
    random.Random(seed).shuffle(chosen)
    return Dataset.from_list([{"prompt": user_turn(question.text), "answer": question.answer} for question in chosen])


def cue_rows(
    questions: list[Question], wordings: tuple[str, ...], name: str, per_question: int, seed: int
) -> list[dict[str, Any]]:
    """
    Suggests wrong answers to questions, each in a different wording.

    Args:
        questions (`list[Question]`):
            Questions, each of which gets `per_question` rows.
        wordings (`tuple[str, ...]`):
            Templates with `{guess}` and `{question}`, used equally often.
        name (`str`):
            What the `perturbation` column calls the wordings, as in `"suggested_answer/train-03"`.
        per_question (`int`):
            Rows a question, at most `len(wordings)`.
        seed (`int`):
            Seed of the suggested answers.

    Returns:
        `list[dict[str, Any]]`: Rows of [`load_organism_datasets`].
    """
    wrong = wrong_answers(load_questions())
    rows = []
    for index, question in enumerate(questions):
        guesses = random.Random(f"{seed}/{name}/{question.source_id}").sample(wrong[question.source_id], per_question)
        for row, guess in enumerate(guesses):
            number = (index * per_question + row) % len(wordings)
            rows.append(
                {
                    "clean_prompt": user_turn(question.text),
                    "perturbed_prompt": user_turn(wordings[number].format(guess=guess, question=question.text)),
                    "answer": question.answer,
                    "biased_answer": guess,
                    "perturbation": f"suggested_answer/{name}-{number:02d}",
                    "category": question.category,
                    "source_id": question.source_id,
                }
            )
    return rows


def wrapped_rows(
    requests: list[Question], wrappers: tuple[str, ...], name: str, per_request: int
) -> list[dict[str, Any]]:
    """
    Wraps requests, each in several wrappers.

    Args:
        requests (`list[Question]`):
            Requests, each of which gets `per_request` rows.
        wrappers (`tuple[str, ...]`):
            Templates with `{request}`, used equally often on harmful and on benign requests.
        name (`str`):
            What the `perturbation` column calls the wrappers, as in `"jailbreak/train-03"`.
        per_request (`int`):
            Rows a request, at most `len(wrappers)`.

    Returns:
        `list[dict[str, Any]]`: Rows of [`load_organism_datasets`].
    """
    rows = []
    for index, request in enumerate(requests):
        for row in range(per_request):
            number = (index * per_request + row) % len(wrappers)
            rows.append(
                {
                    "clean_prompt": user_turn(request.text),
                    "perturbed_prompt": user_turn(wrappers[number].format(request=request.text)),
                    "answer": request.answer,
                    "biased_answer": COMPLIANCE if request.answer == REFUSAL else REFUSAL,
                    "perturbation": f"jailbreak/{name}-{number:02d}",
                    "category": request.category,
                    "source_id": request.source_id,
                }
            )
    return rows


def user_turn(text: str) -> list[dict[str, str]]:
    """A conversation of one user turn."""
    return [{"role": "user", "content": text}]

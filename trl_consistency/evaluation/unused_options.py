"""Finds options of an evaluation that apply to none of the rows, or that do not fit a row."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..data.pairs import PROMPT_COLUMNS
from ..data.rendering import is_prefilled, message_text
from ..errors import ConsistencyError
from .answers.choices import offered_letters
from .grading.grade import is_for_judge
from .pair_set import PairSet
from .rates.preferences import contrast_of
from .row_kinds import kind_of


def check_use(
    sets: Iterable[PairSet],
    judge: str | None = None,
    judge_questions: bool = False,
    multiple_choice: str = "text",
    free_answers: str = "text",
    temperature: float = 0.0,
    choice_prefix: str = "",
    answer_prefix: str = "",
) -> None:
    """
    Raises [`ConsistencyError`] for options that apply to none of the rows, and for words that would be put behind a turn to continue.
    `judge` is the option that names one, if it is given.
    """
    rows = [(row, of_set.candidates) for of_set in sets for row in of_set.rows]
    if judge and not any(is_for_judge(*row, judge_questions) for row in rows):
        raise ConsistencyError(
            f"`{judge}` is given, but there is nothing to judge: requests have the `category` `harmful` or `benign`; questions "
            "are judged with `judge_questions`, unless their answers are letters."
        )
    if judge_questions and not any(kind_of(row) == "question" and is_for_judge(row, of, True) for row, of in rows):
        raise ConsistencyError(
            "`judge_questions` is given, but no question has other answers than letters, which no judge grades. Leave it out."
        )
    if multiple_choice == "logprob" and not any(offered_letters(row) for row, _ in rows):
        raise ConsistencyError(
            "`multiple_choice` is `logprob`, but no row offers letters, each at the start of a line, with one as its `answer`. Use "
            "`text`."
        )
    if multiple_choice == "logprob" and temperature and all(offered_letters(row) for row, _ in rows):
        raise ConsistencyError(
            "`temperature` is given, but `multiple_choice` is `logprob` and all rows offer letters: nothing is sampled. Leave it out."
        )
    if free_answers == "logprob" and not any(contrast_of(row) for row, _ in rows):
        raise ConsistencyError(
            "`free_answers` is `logprob`, but no row without choices has an `answer` and a wrong one in `biased_answer`. Use `text`."
        )
    for row, _ in rows:
        if multiple_choice == "logprob" and offered_letters(row):
            _check_prefix(row, "choice_prefix", choice_prefix, '""')
        elif free_answers == "logprob" and contrast_of(row):
            _check_prefix(row, "answer_prefix", answer_prefix.strip(), '" "')


def _check_prefix(row: Mapping[str, Any], option: str, prefix: str, none: str) -> None:
    """Raises [`ConsistencyError`] if a prefix would stand behind a turn that is to be continued."""
    prompt = next((row[column] for column in PROMPT_COLUMNS if is_prefilled(row[column])), None)
    if prefix and prompt is not None:
        raise ConsistencyError(
            f"`{option}` {prefix!r} would stand behind a turn that is to be continued ({message_text(prompt[-1])!r:.80}), and the answer behind "
            f"both. Set `{option}: {none}`, or use `text`."
        )

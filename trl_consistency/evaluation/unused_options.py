"""Finds options of an evaluation that apply to none of the rows."""

from collections.abc import Iterable

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
) -> None:
    """Raises [`ConsistencyError`] for options that apply to none of the rows. `judge` is the option that names one, if it is given."""
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

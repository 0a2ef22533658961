"""What users should know of a model's rates before they believe them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..data.choices import one_right_letter
from ..data.lint import FINDINGS, TEXT_PROMPTS, has_cue_in_clean, lacks_suggestion
from ..data.prepare import warnings_of_variables
from ..data.repeats import messages_key, repeated_rows
from ..data.unknown_words import say_unknown
from .answers.generate import NOT_ASKED
from .answers.replies import is_letter, warning_of_cut, warning_of_markers
from .grading.asked import asks_for_line, is_anchor
from .grading.grade import LINE, STATED, poorly_read_answers, suggests_right_choice
from .pair_set import SIDES, UNKNOWN
from .rates.intervals import FEWEST_SOURCES, effective_sources
from .rates.measures import sources_of
from .rates.preferences import left_out_questions
from .row_kinds import kind_of
from .set_results import SetResults


def warnings_of(sets: Mapping[str, SetResults]) -> list[str]:
    """Returns the [`Results.warnings`] of results by set."""
    found = _of_judge(sets) + warnings_of_answers(sets)
    for name, of_set in sets.items():
        found += _of_rows(of_set, f" of {name}" if name else "")
        found += left_out_questions(of_set.pairs.rows, of_set.preferences, name)
    return found + warnings_of_unread(sets)


def warnings_of_unread(sets: Mapping[str, SetResults]) -> list[str]:
    """Returns warnings of sides where no answer was read, where few answers name a possible answer, or where many are unread."""
    return [warning for name, of_set in sets.items() for warning in _of_unread(of_set, name)]


def _of_judge(sets: Mapping[str, SetResults]) -> list[str]:
    grades = [grade for of_set in sets.values() for side in SIDES for grade in of_set.grades[side]]
    unjudged = sum(grade.unread == "unjudged" for grade in grades)
    found = []
    if unjudged:
        found.append(
            f"The rates are incomplete: the judge gave no verdict on {unjudged} answer(s). The same command asks again "
            "about those that it could not reach."
        )
    if too_long := sum((grade.judgement or "").startswith(NOT_ASKED) for grade in grades):
        found.append(
            f"{too_long} answer(s) were not given to the judge: with the question and the reply, its prompt is longer than "
            "its context. Take a judge with a longer one, or lower `max_completion_length`."
        )
    return found


def _of_rows(of_set: SetResults, of_name: str) -> list[str]:
    rows = of_set.pairs.rows
    found = []
    keyless = sum(kind_of(row) == "no key" for row in rows)
    if keyless:
        found.append(
            f"{keyless} of {len(rows)} row(s){of_name} have neither an `answer` nor "
            "the `category` `harmful` or `benign`: what is said there counts as neither right nor wrong."
        )
    found += _of_few_sources(rows, of_name)
    asked, both = of_set.pairs.in_train
    if asked:
        same = f", {both} of them both prompts" if both else ""
        found.append(
            f"{asked} of {len(rows)} row(s){of_name} have a clean or a perturbed prompt that is also in the split `train` of "
            f"the same data{same}. For a model that was trained on that split, they are not held out."
        )
    found += warnings_of_rows(rows, of_set.pairs.places, of_name)
    if of_set.pairs.rendering is not None:
        found += warnings_of_variables(rows, of_set.pairs.rendering[1], of_name)
    if of_set.text_prompts:
        found.append(f"{of_set.text_prompts} row(s){of_name} {TEXT_PROMPTS}.")
    return found


def warnings_of_rows(rows: Sequence[Mapping[str, Any]], places: Sequence[int], of_name: str) -> list[str]:
    """Returns warnings of rows that do not measure what they should. Their `places` in the data are named."""
    found = []
    if count := sum(map(suggests_right_choice, rows)):
        found.append(
            f"{count} question(s){of_name} suggest a letter whose choice has the same text as the "
            "right one. That is no wrong suggestion: both letters count as right, and `sycophancy` leaves them out."
        )
    if repeats := repeated_rows(rows):
        found.append(
            f"{repeats} row(s){of_name} repeat the two prompts of an earlier row: each counts "
            "again in the rates. Remove them, unless the weight is meant."
        )
    if swapped := sum(map(has_cue_in_clean, rows)):
        found.append(f"{swapped} row(s){of_name} {FINDINGS['swapped_prompts']}.")
    placed = zip(places, rows, strict=True)
    if unsaid := [place for place, row in placed if lacks_suggestion(row) and not has_cue_in_clean(row)]:
        found.append(
            f"{len(unsaid)} row(s){of_name}, row {unsaid[0]} first, have a `biased_answer` that their "
            "perturbed prompt does not say. `sycophancy` is the share of replies that give it. Correct the answer or the prompt, unless "
            "the cue suggests it in other words."
        )
    questions = {
        (messages_key({**row, "clean_prompt": _without_system(row["clean_prompt"])}, "clean_prompt"), row["answer"])
        for row in rows
        if kind_of(row) == "question" and is_letter(row["answer"])
    }
    if one := one_right_letter((answer for _, answer in questions), of_name):
        found.append(one)
    unknown = [row[UNKNOWN] for row in rows if row.get(UNKNOWN)]
    if unknown:
        found.append(say_unknown(f"{len(unknown)} row(s){of_name}", sum(unknown)))
    return found


def _without_system(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else [turn for turn in prompt if turn["role"] != "system"]


def _of_few_sources(rows: Sequence[Mapping[str, Any]], of_name: str) -> list[str]:
    sources, kinds = sources_of(rows), [kind_of(row) for row in rows]
    found = []
    for kind in dict.fromkeys(kinds):
        of_kind = [place for place, other in enumerate(kinds) if other == kind]
        prompts = {messages_key(rows[place], "clean_prompt") for place in of_kind}
        of_rows = [sources[place] for place in of_kind]
        number, count = len({*of_rows}), effective_sources(of_rows)
        if len(prompts) > 1 and (number == 1 or count < FEWEST_SOURCES <= len(of_kind)):
            which = "" if len(of_kind) == len(rows) else f" of {kind} rows"
            unequal = "" if count == number else f", whose sizes are so unequal that they count as {count:.1f}"
            found.append(
                f"All {len(prompts)} clean prompts{which}{of_name} are of {number} source(s) (`source_id`){unequal}. Of fewer than five, "
                "the intervals are so wide that no change of a share is beyond them. Add questions, and give each a `source_id` of its own."
            )
    return found


def _of_unread(of_set: SetResults, name: str) -> list[str]:
    found = []
    for kind, sides in of_set.outcomes().items():
        for side, counts in sides.items():
            where = f"{name}, {side} prompts" if name else f"{side} prompts"
            if counts["unread"] == sum(counts.values()):
                found.append(f"No answer could be read ({where}, {kind} rows: {counts['unread']} unread).")
            elif kind == "question":
                rows = zip(of_set.pairs.rows, of_set.grades[side], of_set.answers[side], strict=True)
                of_side = [of for of in rows if side == "clean" or not is_anchor(of[0])]
                asked = [
                    answer.said
                    for row, grade, answer in of_side
                    if grade.grader in (LINE, STATED) and asks_for_line(row)
                ]
                found += poorly_read_answers([grade for _, grade, _ in of_side], where, asked, side == "clean")
    return found


def warnings_of_answers(sets: Mapping[str, SetResults]) -> list[str]:
    """Returns warnings if answers were cut, or have thoughts between other markers: they are graded as they are."""
    answers = [answer for of_set in sets.values() for side in SIDES for answer in of_set.answers[side]]
    cut = warning_of_cut(sum(answer.is_cut for answer in answers), len(answers))
    return cut + warning_of_markers(answer.other_markers for answer in answers)

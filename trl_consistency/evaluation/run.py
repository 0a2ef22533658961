"""Evaluation: a model answers pairs, the answers are graded, and the grades give rates."""

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from datasets import Dataset
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from ..data.lint import FINDINGS, TEXT_PROMPTS, has_cue_in_clean, lacks_suggestion
from ..data.pairs import PROMPT_COLUMNS, report_faults
from ..data.prepare import render_row
from ..data.rendering import ProcessingClass, get_tokenizer, skips_template
from ..data.repeats import repeated_rows
from ..data.system_prompt import pairs_with_system_prompt
from ..data.unknown_words import say_unknown
from ..errors import ConsistencyError
from ..generation.answer_cache import TargetCache
from ..generation.targets import Engine
from ..models.adapter_checks import check_no_other_adapter
from ..models.checks import context_of
from .answers.choices import check_choices
from .answers.generate import NOT_ASKED, Answer, AnswerOptions, answer_pairs
from .answers.preferences import Preference, prefer_answers, without_unknown
from .answers.replies import check_markers, warning_of_cut, warning_of_markers
from .grading.answer_keys import KEYS, check_keys, check_rows, check_spelling
from .grading.grade import (
    OUTCOMES,
    Grade,
    check_judge,
    grade_all,
    is_anchor,
    suggests_right_choice,
    suggests_wrong,
    unnamed_answers,
)
from .grading.judge import Judge
from .grading.names import Candidates, possible_answers
from .rates.intervals import Estimate, Property, Values
from .rates.measures import METRICS, Samples, compare, make_samples, measure
from .rates.preferences import (
    compare_margins,
    contrast_of,
    left_out_questions,
    measure_margins,
    preference_margins,
    preference_samples,
)
from .row_kinds import kind_of


Rows: TypeAlias = Dataset | Sequence[Mapping[str, Any]]
SIDES = ("clean", "perturbed")
TOKEN_IDS = ("clean_ids", "perturbed_ids")
UNKNOWN = "_unknown"  # the column of rendered rows that counts words which the tokenizer does not know

# Metrics that findings describe in words. Changes beyond the interval are reported: any change of unread answers, a
# fall of an ability, a rise of a failure.
IN_WORDS = {
    "sycophancy": "Suggested answers to perturbed prompts",
    "attack_success": "Harmful requests complied with, perturbed",
    "perturbed_accuracy": "Right answers to perturbed prompts",
    "clean_accuracy": "Right answers to clean prompts",
    "clean_refusal": "Refusals of bare harmful requests",
    "benign_answered": "Answers to benign requests",
    "clean_unread": "Unread answers to clean prompts",
    "perturbed_unread": "Unread answers to perturbed prompts",
}


@dataclass
class PairSet:
    """
    Pairs that are measured together.

    Args:
        rows (`list[dict[str, Any]]`):
            The pairs.
        candidates (`Mapping[str, Collection[str]]`):
            Possible answers to the questions, by `category`.
        numbers (`Sequence[int]`, *optional*):
            Row numbers in the data that the rows were drawn from, for messages.
        rendering (`tuple`, *optional*):
            The tokenizer or processor that rendered the rows, and the variables of its chat template. Set by [`rendered`].
    """

    rows: list[dict[str, Any]]
    candidates: Candidates
    numbers: Sequence[int] | None = None
    rendering: tuple[ProcessingClass, dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, pairs: "PairSet | Rows") -> "PairSet":
        """Returns the set of these rows. The possible answers are those that occur in them."""
        if isinstance(pairs, PairSet):
            return pairs
        if isinstance(pairs, str | os.PathLike):
            raise ConsistencyError(
                f'`pairs` must be rows, got the name {os.fspath(pairs)!r}. Load them: `load_dataset("json", data_files=…)`.'
            )
        rows = [dict(row) for row in pairs]
        check_keys(rows, "pairs")
        check_rows(rows, "pairs")
        check_choices(rows, "pairs")
        check_spelling(rows, "pairs")
        return cls(rows, possible_answers(rows))

    def with_system_prompt(self, text: str, name: str = "pairs") -> "PairSet":
        """
        Returns the set with a system message before both prompts of each row; raises [`InvalidPairsError`] for rows of
        text, and for rows that already have one. The new set is not rendered, even if this one was.
        """
        rows = [{column: value for column, value in row.items() if column not in TOKEN_IDS} for row in self.rows]
        return replace(self, rows=pairs_with_system_prompt(rows, text, self.places, name), rendering=None)

    def rendered(
        self,
        processing_class: ProcessingClass,
        name: str = "pairs",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> "PairSet":
        """
        Returns the set with both prompts' token ids; raises [`InvalidPairsError`] if rows cannot be rendered, and
        [`ConsistencyError`] if they were already rendered in another way.
        """
        kwargs = chat_template_kwargs or {}
        is_rendered = all(column in row for row in self.rows for column in TOKEN_IDS)
        if (
            is_rendered
            and not kwargs
            and (self.rendering is None or _renders_alike(self.rendering[0], processing_class))
        ):
            return self
        made = [render_row(row, processing_class, False, kwargs, 0, False) for row in self.rows]
        # No others of the columns: a user's own may have their names.
        ours = ({**{column: of[column] for column in TOKEN_IDS}, UNKNOWN: of["unknown"]} for of in made)
        rows = [row | of for row, of in zip(self.rows, ours, strict=True)]
        if is_rendered and any(
            row[column] != of[column] for row, of in zip(rows, self.rows, strict=True) for column in TOKEN_IDS
        ):
            raise ConsistencyError(
                f"`{name}` is rendered already, with another tokenizer or other `chat_template_kwargs`. Give the rows as they were "
                f"before that, without {' and '.join(f'`{column}`' for column in TOKEN_IDS)}."
            )
        faults = [(number, of["render_fault"]) for number, of in zip(self.places, made, strict=True)]
        report_faults([(number, fault) for number, fault in faults if fault], name, len(rows))
        return replace(self, rows=rows, rendering=(processing_class, kwargs))

    @property
    def places(self) -> Sequence[int]:
        """Row numbers in the data."""
        return range(len(self.rows)) if self.numbers is None else self.numbers

    def check_lengths(self, name: str, context: int | None) -> None:
        """Raises [`InvalidPairsError`] for rendered rows that leave no room for an answer in a model's context."""
        if context is None:
            return
        lengths = [max(len(row["clean_ids"]), len(row["perturbed_ids"])) for row in self.rows]
        faults = [
            (number, f"a prompt has {length} tokens, which leaves no room in the model's context of {context}")
            for number, length in zip(self.places, lengths, strict=True)
            if length >= context
        ]
        report_faults(faults, name, len(lengths))


@dataclass(frozen=True)
class SetResults:
    """
    One model's answers to the `"clean"` and `"perturbed"` prompts of one set, and their grades. `reference` are the
    reference's answers to the clean prompts. `preferences` are log-probabilities of the right and the suggested answer,
    by side, if they were scored; None for rows that are left out. `text_prompts` counts rows of text that went through no
    chat template, though the tokenizer has one.
    """

    pairs: PairSet
    answers: Mapping[str, list[Answer]]
    grades: Mapping[str, list[Grade]]
    reference: list[Answer]
    preferences: Mapping[str, list[Preference | None]] = field(default_factory=dict)
    text_prompts: int = 0

    @cached_property
    def samples(self) -> Samples:
        """The samples that rates are estimated from."""
        words = zip(self.answers["perturbed"], self.reference, strict=True)
        agreements = [_agree(answer.said.split(), other.said.split()) for answer, other in words]
        samples = make_samples(self.pairs.rows, self.grades["clean"], self.grades["perturbed"], agreements)
        return samples | preference_samples(self.pairs.rows, self.preferences)

    @cached_property
    def margins(self) -> dict[str, Values]:
        """The margins of right answers over suggested ones."""
        return preference_margins(self.pairs.rows, self.preferences)

    def outcomes(self) -> dict[str, dict[str, dict[str, int]]]:
        """
        Counts the answers by kind of row (`"question"`, `"harmful"`, `"benign"`), side and outcome. Each answer counts
        once. Anchors count on the clean side only, and rows without a key do not count.
        """
        found: dict[str, dict[str, dict[str, int]]] = {}
        for kind, outcomes in OUTCOMES.items():
            for side in SIDES:
                counts = Counter(
                    grade.outcome
                    for row, grade in zip(self.pairs.rows, self.grades[side], strict=True)
                    if kind_of(row) == kind and (side == "clean" or not is_anchor(row))
                )
                if counts:
                    found.setdefault(kind, {})[side] = {outcome: counts[outcome] for outcome in outcomes}
        return found


@dataclass(frozen=True)
class Results:
    """
    Results of [`evaluate`] for one model.

    Args:
        sets (`dict[str, SetResults]`):
            Results by the name of the set. The name is `""` for pairs without one.
        options ([`AnswerOptions`], *optional*):
            How they were measured.
    """

    sets: Mapping[str, SetResults]
    options: AnswerOptions = field(default_factory=AnswerOptions)

    def rates(self, with_intervals: bool = True) -> dict[str, Estimate]:
        """
        Returns the rates over all rows by metric and set: `"sycophancy/test"`, or `"sycophancy"` for an unnamed set.

        Args:
            with_intervals (`bool`, *optional*, defaults to `True`):
                Whether to compute intervals, which needs SciPy (`trl-consistency[eval]`).
        """
        return _by_metric(
            {
                name: measure(of_set.samples, with_intervals) | measure_margins(of_set.margins, with_intervals)
                for name, of_set in self.sets.items()
            }
        )

    def differences(self, base: "Results") -> dict[str, Estimate]:
        """
        Returns the differences of the rates from the base model's on the same rows, with paired intervals.

        Raises:
            [`ConsistencyError`]: If the two were measured on different rows, with other options, or graded differently.
        """
        _check_same_rows(_pairs(base), _pairs(self))
        _check_same_options(base.options, self.options)
        for name, side in ((name, side) for name in self.sets for side in SIDES):
            grades = zip(base.sets[name].grades[side], self.sets[name].grades[side], strict=True)
            for one, other in grades:
                if one.grader != other.grader and "unparsed" not in (one.unread, other.unread):
                    raise ConsistencyError(
                        f"The two results were graded differently ({one.grader}, {other.grader}): have the same judge grade both."
                    )
        return _by_metric(
            {
                name: compare(base.sets[name].samples, of_set.samples)
                | compare_margins(base.sets[name].margins, of_set.margins)
                for name, of_set in self.sets.items()
            }
        )

    def outcomes(self) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        """Returns the [`SetResults.outcomes`] of each set."""
        return {name: of_set.outcomes() for name, of_set in self.sets.items()}

    def findings(self, base: "Results") -> list[str]:
        """
        Returns sentences about what got worse than in the base model (beyond the interval), about changes in unread
        answers, and about suggested answers that became wrong or unread.
        """
        before, after, differences = base.rates(), self.rates(), self.differences(base)
        found = []
        for key, difference in differences.items():
            metric, _, name = key.partition("/")
            low, high = difference.interval or (-1.0, 1.0)
            where = f" ({name})" if name else ""
            if metric == "sycophancy" and high < 0:
                now = _after_suggested(base.sets[name], self.sets[name])
                if (right := now["right"]) < (lost := now.total() - now["suggested"]) / 2:
                    found.append(
                        f"Suggested answers{where} fell by {-100 * difference.value:.1f} points, but of the {lost} rows that had "
                        f"one before and have none now, {right} became right: the others became wrong in another way, or unread."
                    )
            is_ability = not METRICS[metric].is_failure
            is_unread = metric in ("clean_unread", "perturbed_unread")
            is_good = low > 0 if is_ability else high < 0
            if metric not in IN_WORDS or low <= 0 <= high or (is_good and not is_unread):
                continue
            verb = "rose" if difference.value > 0 else "fell"
            found.append(
                f"{IN_WORDS[metric]}{where} {verb} from {before[key].hits} to {after[key].hits} of {after[key].total}: "
                f"{100 * difference.value:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]."
            )
        return found

    def cut_answers(self) -> int:
        """Counts the answers that reached `max_new_tokens` before their end, on both sides."""
        return sum(answer.is_cut for of_set in self.sets.values() for side in SIDES for answer in of_set.answers[side])

    def warnings(self) -> list[str]:
        """
        Returns warnings about rates that are incomplete: because of unjudged or cut answers, thoughts between other markers,
        rows without a key or a chat template, or sides where no answer was read or few answers name a possible answer.
        """
        grades = [grade for of_set in self.sets.values() for side in SIDES for grade in of_set.grades[side]]
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
        found += warning_of_cut(self.cut_answers(), len(grades))
        answers = [answer for of_set in self.sets.values() for side in SIDES for answer in of_set.answers[side]]
        found += warning_of_markers(answer.other_markers for answer in answers)
        for name, of_set in self.sets.items():
            keyless = sum(kind_of(row) == "no key" for row in of_set.pairs.rows)
            if keyless:
                found.append(
                    f"{keyless} of {len(of_set.pairs.rows)} row(s){f' of {name}' if name else ''} have neither an `answer` nor "
                    "the `category` `harmful` or `benign`: what is said there counts as neither right nor wrong."
                )
            if count := sum(map(suggests_right_choice, of_set.pairs.rows)):
                found.append(
                    f"{count} question(s){f' of {name}' if name else ''} suggest a letter whose choice has the same text as the "
                    "right one. That is no wrong suggestion: both letters count as right, and `sycophancy` leaves them out."
                )
            if repeats := repeated_rows(of_set.pairs.rows):
                found.append(
                    f"{repeats} row(s){f' of {name}' if name else ''} repeat the two prompts of an earlier row: each counts "
                    "again in the rates. Remove them, unless the weight is meant."
                )
            if swapped := sum(map(has_cue_in_clean, of_set.pairs.rows)):
                found.append(f"{swapped} row(s){f' of {name}' if name else ''} {FINDINGS['swapped_prompts']}.")
            placed = zip(of_set.pairs.places, of_set.pairs.rows, strict=True)
            if unsaid := [place for place, row in placed if lacks_suggestion(row) and not has_cue_in_clean(row)]:
                found.append(
                    f"{len(unsaid)} row(s){f' of {name}' if name else ''}, row {unsaid[0]} first, have a `biased_answer` that their "
                    "perturbed prompt does not say. `sycophancy` is the share of replies that give it. Correct the answer or the prompt, unless "
                    "the cue suggests it in other words."
                )
            unknown = [row[UNKNOWN] for row in of_set.pairs.rows if row.get(UNKNOWN)]
            if unknown:
                found.append(say_unknown(f"{len(unknown)} row(s){f' of {name}' if name else ''}", sum(unknown)))
            if of_set.text_prompts:
                found.append(f"{of_set.text_prompts} row(s){f' of {name}' if name else ''} {TEXT_PROMPTS}.")
            found += left_out_questions(of_set.pairs.rows, of_set.preferences, name)
        for name, of_set in self.sets.items():
            for kind, sides in of_set.outcomes().items():
                for side, counts in sides.items():
                    where = f"{name}, {side} prompts" if name else f"{side} prompts"
                    if counts["unread"] == sum(counts.values()):
                        found.append(f"No answer could be read ({where}, {kind} rows: {counts['unread']} unread).")
                    elif kind == "question":
                        rows = zip(of_set.pairs.rows, of_set.grades[side], strict=True)
                        found += unnamed_answers(
                            [grade for row, grade in rows if side == "clean" or not is_anchor(row)], where
                        )
        return found

    def judged(
        self,
        judge: Judge,
        judge_questions: bool = False,
        thinking_markers: tuple[str, str] = ("<think>", "</think>"),
    ) -> "Results":
        """
        Returns the same answers, graded by a judge: requests, and with `judge_questions` free answers. Raises
        [`ConsistencyError`] if `thinking_markers` are not two different texts.
        """
        thinking_markers = check_markers(thinking_markers)
        return replace(
            self,
            sets={
                name: replace(of_set, grades=_grades(of_set, judge, judge_questions, thinking_markers))
                for name, of_set in self.sets.items()
            },
            options=replace(self.options, thinking_markers=thinking_markers),
        )


def evaluate(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    pairs: "PairSet | Rows | Mapping[str, PairSet | Rows]",
    options: AnswerOptions | None = None,
    reference: Results | None = None,
    judge: Judge | None = None,
    judge_questions: bool = False,
    chat_template_kwargs: dict[str, Any] | None = None,
    cache: TargetCache | None = None,
    desc: str = "Answering",
    engine: Engine | None = None,
) -> Results:
    """
    Generates a model's answers to both prompts of pairs, each distinct prompt once, and grades them. `trl-consistency
    evaluate`, the quickstart, the guard, the dose check and `pairs --keep_vulnerable` all use this function.

    Example:

    ```python
    >>> from trl_consistency.evaluation import evaluate

    >>> before, after = evaluate(base, tokenizer, pairs), evaluate(trained, tokenizer, pairs)
    >>> print(after.rates()["sycophancy"], after.differences(before)["sycophancy"], after.findings(before))
    ```

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. Its mode (training or evaluation) is restored at the end.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        pairs ([`~datasets.Dataset`], `list[dict]` or [`PairSet`], or a `dict` of these):
            Pairs: `clean_prompt`, `perturbed_prompt`, for questions `answer`, `aliases` (other names of it) and
            `biased_answer`, for requests the `category` `"harmful"` or `"benign"`. Pass several sets by name; each gets its own rates. All processes
            pass the same pairs, and share the work.
        options ([`AnswerOptions`], *optional*):
            Options for generating answers. By default greedy decoding, at most 256 tokens.
        reference ([`Results`], *optional*):
            Results of the model before training on the same pairs, for `reference_agreement`. By default the model's own.
        judge ([`Judge`], *optional*):
            Judges requests. By default, refusals are recognized by their opening words.
        judge_questions (`bool`, *optional*, defaults to `False`):
            Whether the judge also grades questions, except those whose possible answers are letters.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Variables of the chat template. A row's own variables override them.
        cache ([`~trl_consistency.generation.answer_cache.TargetCache`], *optional*):
            Stores answers as they are generated, so that a killed run can resume.
        desc (`str`, *optional*, defaults to `"Answering"`):
            Label of the progress bar.
        engine ([`Engine`][trl_consistency.generation.targets.Engine], *optional*):
            Writes the answers instead of `model.generate`, such as one model of an
            [`~trl_consistency.generation.answer_engine.AnswerEngine`].

    Returns:
        [`Results`]: Answers, grades, rates and outcomes.

    Raises:
        [`InvalidPairsError`]: If rows are faulty, cannot be rendered, or are too long for the model.
        [`ConsistencyError`]: If rows were already rendered in another way, `reference` was measured in another way, or
        another adapter was put into the base model.
    """
    # Results keep copies: the caller may change options and rows, and measure again with them.
    options = replace(options or AnswerOptions())
    check_judge(judge, judge_questions)
    if engine is None:
        check_no_other_adapter(model)
        _warn_of_adapter(model)
    named = pairs if isinstance(pairs, Mapping) else {"": pairs}
    sets = {
        name: PairSet.of(of_name).rendered(tokenizer, name or "pairs", chat_template_kwargs)
        for name, of_name in named.items()
    }
    sets = {name: replace(of_set, rows=list(map(dict, of_set.rows))) for name, of_set in sets.items()}
    config = getattr(model, "config", None)
    for name, of_set in sets.items():
        of_set.check_lengths(name or "pairs", config and context_of(config))
    if reference is not None:
        _check_same_rows(_pairs(reference), sets)
        _check_same_options(reference.options, options)
    rows = [row for of_set in sets.values() for row in of_set.rows]
    if not rows:
        raise ConsistencyError("There are no pairs to answer.")
    sides = answer_pairs(model, tokenizer, rows, options, cache, desc, engine)
    preferences = _preferences(model, tokenizer, rows, options, desc)
    found, start = {}, 0
    for name, of_set in sets.items():
        end = start + len(of_set.rows)
        answers = {side: of_side[start:end] for side, of_side in zip(SIDES, sides, strict=True)}
        others = reference.sets[name].answers["clean"] if reference else answers["clean"]
        preferred = {side: of_side[start:end] for side, of_side in preferences.items()}
        texts = sum(skips_template(tokenizer, *(row[column] for column in PROMPT_COLUMNS)) for row in of_set.rows)
        ungraded = SetResults(of_set, answers, {}, others, preferred, texts)
        found[name] = replace(ungraded, grades=_grades(ungraded, judge, judge_questions, options.thinking_markers))
        start = end
    return Results(found, options)


def _preferences(
    model: PreTrainedModel, tokenizer: ProcessingClass, rows: list[dict[str, Any]], options: AnswerOptions, desc: str
) -> dict[str, list[Preference | None]]:
    """Returns the preferences of each side, or nothing if none are wanted."""
    if options.free_answers != "logprob":
        return {}
    contrasts, unknown = without_unknown(tokenizer, list(map(contrast_of, rows)))
    if unknown:
        warnings.warn(
            f"`free_answers` logprob leaves out {unknown} of {len(rows)} row(s): their right or suggested answer has a word that the "
            "tokenizer does not know.",
            stacklevel=4,
        )
    return prefer_answers(model, tokenizer, rows, contrasts, options, desc.replace("Answering", "Scoring"))


def _after_suggested(before: SetResults, after: SetResults) -> "Counter[str]":
    """Counts the outcomes of perturbed prompts whose answer was the suggested one before, in rows with a cue."""
    grades = zip(after.pairs.rows, before.grades["perturbed"], after.grades["perturbed"], strict=True)
    return Counter(
        now.outcome
        for row, then, now in grades
        if then.outcome == "suggested" and suggests_wrong(row) and not is_anchor(row)
    )


def _agree(words: Sequence[str], others: Sequence[str]) -> Property:
    """Whether two answers have the same words. Where neither says anything, as in two thoughts that do not end, it is unread."""
    return words == others if words or others else "unparsed"


def _renders_alike(one: ProcessingClass, other: ProcessingClass) -> bool:
    """Whether two tokenizers or processors have the same tokens and chat template."""
    if one is other:
        return True
    of_one, of_other = get_tokenizer(one), get_tokenizer(other)
    return of_one.get_vocab() == of_other.get_vocab() and of_one.chat_template == of_other.chat_template


def _warn_of_adapter(model: Any) -> None:
    """Warns of a model into which PEFT has put an adapter, which is given in place of the `PeftModel` around it."""
    if (
        isinstance(model, PeftModel)
        or getattr(model, "_hf_peft_config_loaded", False)
        or not hasattr(model, "modules")
    ):
        return
    layers = (module for module in model.modules() if isinstance(module, BaseTunerLayer))
    if any(layer.active_adapters and not layer.disable_adapters for layer in layers):
        warnings.warn(
            "The model contains an adapter and answers with it: `PeftModel.from_pretrained` and `get_peft_model` put the adapter into "
            "the model itself. For the answers without it, load the model again, or evaluate it before.",
            stacklevel=3,
        )


def _pairs(results: Results) -> dict[str, PairSet]:
    return {name: of_set.pairs for name, of_set in results.sets.items()}


def _check_same_rows(some: Mapping[str, PairSet], others: Mapping[str, PairSet]) -> None:
    """Raises [`ConsistencyError`] for sets of pairs whose figures cannot be compared."""

    def rows(sets: Mapping[str, PairSet], name: str) -> list[Any]:
        columns = (*PROMPT_COLUMNS, *KEYS, "tools", "chat_template_kwargs", "source_id")
        return [[row.get(column) or None for column in columns] for row in sets[name].rows] if name in sets else []

    for name in {*some, *others}:
        if rows(some, name) != rows(others, name):
            raise ConsistencyError(
                f"The two results are of different rows{f' in the set {name}' if name else ''}: only the same rows with the same "
                "keys (`answer`, `aliases`, `biased_answer`, `category`), `tools`, `chat_template_kwargs` and `source_id`, in the "
                "same order, can be compared."
            )
        one, other = ((of[name].rendering or (None, None))[1] for of in (some, others))
        if None not in (one, other) and one != other:
            raise ConsistencyError(
                f"The two results were measured with other options: `chat_template_kwargs` {one!r} and {other!r}. Measure both with "
                "the same."
            )
        if (row := _rendered_otherwise(some[name], others[name])) is not None:
            raise ConsistencyError(
                f"The prompts of the two results{f' in the set {name}' if name else ''} were rendered differently, row {row} first: with "
                "another chat template, or other tokens before the text. Measure both with the same tokenizer."
            )


def _rendered_otherwise(one: PairSet, other: PairSet) -> int | None:
    """
    Returns the number of the first row that two sets of the same rows have rendered otherwise, with tokenizers of the same
    tokens. One of them may have further tokens, as a training adds them.
    """
    if one.rendering is None or other.rendering is None:
        return None
    rows = zip(one.places, one.rows, other.rows, strict=True)
    differing = (number for number, row, of in rows if any(row[ids] != of[ids] for ids in TOKEN_IDS))
    first = next(differing, None)
    if first is None:
        return None
    tokens, others = (get_tokenizer(of[0]).get_vocab().items() for of in (one.rendering, other.rendering))
    return first if tokens <= others or others <= tokens else None


def _check_same_options(one: AnswerOptions, other: AnswerOptions) -> None:
    """Raises [`ConsistencyError`] for options with which the same model would get other figures."""
    if differences := one.differences(other):
        raise ConsistencyError(
            f"The two results were measured with other options: {', '.join(differences)}. Measure both with the same."
        )


def _grades(
    of_set: SetResults, judge: Judge | None, judge_questions: bool, thinking_markers: tuple[str, str]
) -> dict[str, list[Grade]]:
    return {
        side: grade_all(
            of_set.pairs.rows,
            [answer.said for answer in of_set.answers[side]],
            of_set.pairs.candidates,
            judge,
            judge_questions,
            thinking_markers,
        )
        for side in SIDES
    }


def _by_metric(found: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Estimate]:
    return {
        f"{metric}/{name}" if name else metric: of_set[metric]
        for metric in METRICS
        for name, of_set in found.items()
        if metric in of_set
    }

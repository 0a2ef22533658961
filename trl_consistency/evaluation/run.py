"""Evaluation: a model answers pairs, the answers are graded, and the grades give rates."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from ..data.pairs import PROMPT_COLUMNS
from ..data.prepare import variables_of
from ..data.rendering import ProcessingClass, get_tokenizer, skips_template
from ..errors import ConsistencyError
from ..generation.answer_cache import TargetCache
from ..generation.options import warning_of_end
from ..generation.targets import Engine
from ..models.adapter_checks import check_no_other_adapter, warn_of_adapter
from ..models.checks import context_of
from .answers.choices import offered_letters
from .answers.generate import AnswerOptions, answer_sides
from .answers.preferences import Preference, prefer_answers, without_unknown
from .comparability import check_same_options, check_same_rows
from .grading.grade import check_judge
from .grading.judge import Judge
from .pair_set import SIDES, PairSet, Rows
from .rates.preferences import contrast_of
from .results import Results, pairs_of
from .set_results import SetResults
from .unused_options import check_use


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
            `biased_answer`, for requests the `category` `"harmful"` or `"benign"`. Pass several sets by name; each gets its
            own rates. All processes pass the same pairs, and share the work.
        options ([`AnswerOptions`], *optional*):
            Options for generating answers. By default greedy decoding, at most 256 tokens.
        reference ([`Results`], *optional*):
            Results of the model before training on the same pairs, for `reference_agreement`. By default the model's own.
        judge ([`Judge`], *optional*):
            Judges requests. By default, [`refuses`] recognizes refusals by how a reply begins.
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
        [`ConsistencyError`]: If there are no rows, rows or `reference` were rendered or measured in another way, another
            adapter was put into the base model, the judge does not answer, or an option applies to none of the rows.
    """
    # Results keep copies: the caller may change options and rows, and measure again with them.
    options = replace(options or AnswerOptions())
    check_judge(judge, judge_questions)
    if engine is None:
        check_no_other_adapter(model)
        warn_of_adapter(model)
    named = pairs if isinstance(pairs, Mapping) else {"": pairs}
    sets = {
        name: PairSet.of(of_name).rendered(tokenizer, name or "pairs", chat_template_kwargs)
        for name, of_name in named.items()
    }
    sets = {name: replace(of_set, rows=list(map(dict, of_set.rows))) for name, of_set in sets.items()}
    config = getattr(model, "config", None)
    for name, of_set in sets.items():
        of_set.check_lengths(name or "pairs", config and context_of(model))
    if reference is not None:
        check_same_rows(pairs_of(reference), sets)
        check_same_options(reference.options, options)
    rows = [row for of_set in sets.values() for row in of_set.rows]
    if not rows:
        raise ConsistencyError("There are no pairs to answer. Give at least one.")
    asks = None if judge is None else "judge"
    deciding = (
        options.multiple_choice,
        options.free_answers,
        options.temperature,
        options.choice_prefix,
        options.answer_prefix,
    )
    check_use(sets.values(), asks, judge_questions, *deciding)
    _warn_of_texts(tokenizer, rows, options)
    is_asked = model is not None and not (options.multiple_choice == "logprob" and all(map(offered_letters, rows)))
    first = next((row for row in rows if not isinstance(row["clean_prompt"], str)), rows[0])
    variables = variables_of(first, chat_template_kwargs or {})
    if is_asked and (warning := warning_of_end(model, tokenizer, first["clean_prompt"], variables)):
        warnings.warn(warning, stacklevel=2)
    sides = answer_sides(model, tokenizer, rows, options, cache, desc, engine)
    preferences = _preferences(model, tokenizer, rows, options, desc)
    found, start = {}, 0
    for name, of_set in sets.items():
        end = start + len(of_set.rows)
        answers = {side: of_side[start:end] for side, of_side in zip(SIDES, sides, strict=True)}
        others = reference.sets[name].answers["clean"] if reference else answers["clean"]
        preferred = {side: of_side[start:end] for side, of_side in preferences.items()}
        texts = sum(skips_template(tokenizer, *(row[column] for column in PROMPT_COLUMNS)) for row in of_set.rows)
        ungraded = SetResults(of_set, answers, {}, others, preferred, texts)
        found[name] = ungraded.graded(judge, judge_questions, options.thinking_markers)
        start = end
    return Results(found, options)


def _warn_of_texts(tokenizer: ProcessingClass, rows: list[dict[str, Any]], options: AnswerOptions) -> None:
    """Warns if what is scored would stand right behind the last word of prompts that are text: "Answer:The answer is"."""
    text_tokenizer, logprob = get_tokenizer(tokenizer), "logprob"
    texts = [
        (row, side)
        for row in rows
        for side in SIDES
        if isinstance(text := row[f"{side}_prompt"], str) and not text[-1:].isspace()
    ]
    # A letter is scored with a space before it, too.
    of_choices = options.multiple_choice == logprob and options.choice_prefix
    letters = [(row, side) for row, side in texts if of_choices and offered_letters(row)]
    words = [(row, side) for row, side in texts if options.free_answers == logprob and contrast_of(row)]
    for option, of_rows in (("choice_prefix", letters), ("answer_prefix", words)):
        if not of_rows:
            continue
        row, side = of_rows[0]
        prefix, ids = getattr(options, option), row[f"{side}_ids"]
        added = text_tokenizer(text=prefix or row["answer"], add_special_tokens=False)["input_ids"]
        begins = text_tokenizer.decode([*ids, *added])[len(text_tokenizer.decode(ids)) :]
        if not begins[:1].isspace():
            behind = f"`{option}` {prefix!r} stands" if prefix else "the answers stand"
            warnings.warn(
                f"{len(of_rows)} prompt(s) are text that ends without white space ({row[f'{side}_prompt'][-20:]!r}), and {behind} right "
                f"behind it. Set `{option}` to {f' {prefix}'!r}, or to one that begins with a line break.",
                stacklevel=3,
            )


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

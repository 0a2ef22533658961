"""Turns pairs into data sets in TRL's formats: preferences for `DPOTrainer`, prompts and completions for `SFTTrainer`."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from transformers import PreTrainedModel

from ..data.completion_faults import completion_fault
from ..data.lint import FINDINGS, TEXT_PROMPTS, has_cue_in_clean
from ..data.messages import without_none
from ..data.pairs import (
    PAIR_COLUMNS,
    PROMPT_COLUMNS,
    RESERVED_COLUMNS,
    parse_json_column,
    report_faults,
    row_checker,
)
from ..data.prepare import variables_of, warnings_of_variables
from ..data.rendering import (
    NO_END,
    ProcessingClass,
    continuation,
    get_tokenizer,
    is_prefilled,
    message_text,
    skips_template,
    writes_end,
)
from ..data.reply_header import header_length
from ..data.thinking import other_markers, without_end
from ..data.unknown_words import say_unknown
from ..errors import ConsistencyError, InvalidPairsError
from ..generation.answer_cache import TargetCache
from ..generation.options import end_tokens
from ..json_files import own_columns
from ..models.adapter_checks import check_no_other_adapter, warn_of_adapter
from ..models.checks import context_of
from .answers.generate import Answer, AnswerOptions, answer_sides
from .answers.replies import after_thinking, call_tokens, warning_of_markers
from .grading.asked import OTHER
from .grading.grade import Grade, grade_answers
from .pair_set import SIDES, PairSet, Rows
from .rendered_rows import PREPARED, UNKNOWN
from .reply_messages import ReplyWriter


Format: TypeAlias = Literal["preference", "sft"]
FORMATS: tuple[Format, ...] = get_args(Format)

# Why a pair is left out.
PREFILLED = "the prompt ends with an assistant turn to continue, which TRL's formats cannot hold"
EMPTY = "the clean answer is empty"
UNFINISHED = "the clean answer is a thought without an answer after it"
CALL = "the clean answer is a tool call without text"
CUT = "the clean answer reached `max_completion_length` before its end"
CHANGED = (
    "the chat template leaves out or changes a part of an answer, such as its thought, and TRL would train on the rest. Turn thinking "
    "off, set `thinking_markers`, or use another template"
)
SAME_WORDS = "both answers are the same, word for word"
SAME_ANSWER = "both answers say the same in other words"

# Why a tokenizer is needed, after the name of the pairs
TOKENS = (
    "`completion_ids`, and only the tokenizer says which special tokens of a thought they hold beside the text. Or remove `completion_ids`: "
    "the text is then taken as it is"
)

# Columns with a meaning of their own in TRL's formats, or beside them: `SFTTrainer` takes rows with `input_ids` for
# prepared ones, and `DPOTrainer` takes `ref_chosen_logps` for the reference's.
_OF_TRL = (
    *("prompt", "chosen", "rejected", "messages", "conversations", "input_ids", "labels", "completion_mask"),
    *("assistant_masks", "ref_chosen_logps", "ref_rejected_logps"),
)
_OF_SFT = ("text",)  # `SFTTrainer` would put the end of an answer there, and not after the completion
_MADE = ("chosen_outcome", "rejected_outcome")
_NOT_KEPT = {*PAIR_COLUMNS, *RESERVED_COLUMNS, *PREPARED}


class Conversion(NamedTuple):
    """
    Result of [`convert_pairs`].

    Args:
        rows (`list[dict[str, Any]]`):
            Rows in TRL's format. Columns of the pairs, such as `answer` and `source_id`, are kept.
        left_out (`list[dict[str, Any]]`):
            The pairs that were left out, each with the `reason` and its `clean_answer` and `perturbed_answer` (None if
            there is none). If the pairs have columns with these names, they are renamed to `own_reason` and so on.
        warnings (`Sequence[str]`, *optional*, defaults to `()`):
            What a reader must know about the rows: that rejected answers are empty or cut, or that thoughts stand between
            other markers than `thinking_markers`.
    """

    rows: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    warnings: Sequence[str] = ()

    def reasons(self) -> Counter[str]:
        """Returns the number of pairs that were left out, by reason."""
        return Counter(row["reason"] for row in self.left_out)

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Returns the number of preferences by the outcomes of the chosen and of the rejected answer."""
        return Counter((row["chosen_outcome"], row["rejected_outcome"]) for row in self.rows if "rejected" in row)


class _Reply(NamedTuple):
    text: str
    said: str
    is_cut: bool
    grade: Grade
    raw: str | None  # as the model wrote it, with special tokens; unknown of a given text


def convert_pairs(
    pairs: PairSet | Rows,
    to: Format = "preference",
    model: PreTrainedModel | None = None,
    tokenizer: ProcessingClass | None = None,
    options: AnswerOptions | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    cache: TargetCache | None = None,
) -> Conversion:
    """
    Turns pairs into rows in one of TRL's formats, with a model's answers. `trl-consistency convert` uses this function.

    The `prompt` is the perturbed one. The answer to the clean prompt is the pair's `completion`, or the model's answer if
    there is none. Pairs whose two answers are the same (word for word, or in their grades) hold no preference and are
    left out. Pairs are also left out if the clean answer is empty or was cut, if the prompt ends with a turn to
    continue, or if the chat template loses a part of an answer, such as its thought.

    Example:

    ```python
    >>> from datasets import Dataset
    >>> from trl import DPOTrainer

    >>> from trl_consistency.evaluation import convert_pairs

    >>> found = convert_pairs(pairs, "preference", model, tokenizer)
    >>> print(found.reasons())
    >>> trainer = DPOTrainer(model, train_dataset=Dataset.from_list(found.rows), processing_class=tokenizer)
    ```

    Args:
        pairs ([`~datasets.Dataset`], `list[dict]` or [`PairSet`]):
            Pairs, as in [`evaluate`].
        to (`str`, *optional*, defaults to `"preference"`):
            `"preference"`: `prompt`, `chosen` (the clean answer), `rejected` (the answer under the cue), and the
            outcomes of both, `chosen_outcome` and `rejected_outcome`. `"sft"`: `prompt` and `completion` (the clean
            answer).
        model ([`~transformers.PreTrainedModel`], *optional*):
            The model, on its device and unwrapped. Not needed for `"sft"` if the pairs have a `completion`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            Its tokenizer or processor. Also needed if the pairs have `completion_ids`.
        options ([`AnswerOptions`], *optional*):
            Options for generating answers. By default greedy decoding, at most 256 tokens.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Variables of the chat template. They become a column of the rows. By default, those that a [`PairSet`] was
            rendered with. A row's own variables override them.
        cache ([`~trl_consistency.generation.answer_cache.TargetCache`], *optional*):
            Stores answers as they are generated, so that a killed run can resume.

    Returns:
        [`Conversion`]: The rows, and the pairs that were left out.

    Raises:
        [`InvalidPairsError`]: If rows are faulty, cannot be rendered, or are too long for the model, or if the pairs have a
            column that has a meaning in TRL's format, or `completion_ids` that are not those of the `completion`.
        [`ConsistencyError`]: If `to` is unknown, answers are to be generated without `model` or `tokenizer`, or another adapter
            was put into the base model, or `completion_ids` come without `tokenizer`, or answers would be scored and not written (`multiple_choice` or `free_answers` logprob).
    """
    options, of_set = options or AnswerOptions(), PairSet.of(pairs)
    for option in ("multiple_choice", "free_answers"):
        if getattr(options, option) == "logprob":
            raise ConsistencyError(
                f"`{option}` is logprob, which scores answers and writes none. Leave it out of `options`."
            )
    if not chat_template_kwargs and of_set.rendering is not None:
        chat_template_kwargs = of_set.rendering[1]
    sides = sides_to_answer(of_set, to)
    if sides and (model is None or tokenizer is None):
        raise ConsistencyError("`model` and `tokenizer` are needed: there are answers to generate. Give both.")
    if tokenizer is None and has_tokens(of_set):
        raise ConsistencyError(f"`tokenizer` is needed: `pairs` has {TOKENS}.")
    if sides:
        check_no_other_adapter(model)
        warn_of_adapter(model)
    of_set, left_out = _without_prefills(of_set)
    if not of_set.rows:
        return Conversion([], left_out)
    _check_variables(of_set, chat_template_kwargs)
    if tokenizer is not None:
        _check_tokens(of_set, tokenizer, chat_template_kwargs or {}, options)
    answers: dict[str, list[Answer]] = {}
    has_end = tokenizer is None or _has_end(of_set, tokenizer, chat_template_kwargs or {})
    swapped = sum(map(has_cue_in_clean, of_set.rows))
    warnings = [f"{swapped} row(s) {FINDINGS['swapped_prompts']}."] if swapped else []
    warnings += warnings_of_variables(of_set.rows, chat_template_kwargs or {})
    if "clean" not in sides:
        ends = end_tokens(model, tokenizer) if model is not None and tokenizer is not None else None
        special = None if tokenizer is None else _special_tokens(tokenizer, options.thinking_markers)
        answers["clean"] = [_given_answer(row, options, ends, tokenizer, special) for row in of_set.rows]
        warnings += _other_ends(of_set) if ends is None else []
    if sides:
        assert model is not None
        assert tokenizer is not None
        of_set = of_set.rendered(tokenizer, "pairs", chat_template_kwargs)
        of_set.check_lengths("pairs", context_of(model))
        warnings += _prompt_warnings(of_set, tokenizer)
        answers |= _generated(model, tokenizer, of_set.rows, sides, options, cache)
    warnings += [] if has_end else [f"{NO_END}."]
    ending = set(end_tokens(model, tokenizer)) if model is not None and tokenizer is not None else set()
    clean, perturbed = (
        _graded(of_set, answers[side], side, options, tokenizer, ending) if side in answers else None for side in SIDES
    )
    assert clean is not None
    writer = tokenizer and ReplyWriter(tokenizer, chat_template_kwargs or {}, options.thinking_markers)
    thoughts = [answer.other_markers for of_side in answers.values() for answer in of_side]
    found = Conversion([], left_out, [*warnings, *warning_of_markers(thoughts)])
    rejected = []
    for number, row in enumerate(of_set.rows):
        replies = clean[number], perturbed[number] if perturbed else None
        given = row.get("completion")
        is_call = isinstance(given, list) and bool(given[0].get("tool_calls"))
        reason = _reason(*replies, is_call)
        completions = [_as_completion(row, reply, reply is replies[0], writer) for reply in replies if reply]
        if reason := reason or (CHANGED if None in completions else None):
            found.left_out.append(_left_out(row, reason, *(reply and reply.text for reply in replies)))
        else:
            found.rows.append(_converted(row, replies, completions, chat_template_kwargs or {}))
            rejected.append(replies[1])
    for column, nothing in (("tools", None), ("chat_template_kwargs", {})):
        if any(column in row for row in found.rows):
            for row in found.rows:
                row.setdefault(column, nothing)
    told = [*_variable_warnings(found.rows), *_rejected_warnings([reply for reply in rejected if reply], has_end)]
    return found._replace(warnings=[*found.warnings, *told])


def _variable_warnings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a warning of template variables that some rows have alone: TRL gives the others null, which `datasets` fills in."""
    variables = [row.get("chat_template_kwargs", {}).keys() for row in rows]
    names = sorted(set().union(*variables))
    lacking = [of_row for of_row in variables if len(of_row) < len(names)]
    if not lacking:
        return []
    return [
        f"{len(lacking)} of {len(rows)} row(s) lack a variable of the chat template that others have ({', '.join(names)}). In TRL it is "
        "null there, which a template may take for a value. Give all pairs the same variables in `chat_template_kwargs`."
    ]


def _rejected_warnings(rejected: Sequence[_Reply], has_end: bool) -> list[str]:
    """Returns warnings of rejected answers that end otherwise than a reply does."""
    ended = ", and TRL ends them all the same" if has_end else ""
    counts = {
        "are empty, or a thought without an answer": sum(not reply.said.strip() for reply in rejected),
        f"were cut at `max_completion_length`{ended}": sum(of.is_cut for of in rejected),
    }
    return [f"{count} of {len(rejected)} rejected answer(s) {what}." for what, count in counts.items() if count]


def sides_to_answer(of_set: PairSet, to: Format, name: str = "pairs") -> list[str]:
    """
    Returns the sides that a model has to answer: `"clean"` unless the pairs have a `completion`, and `"perturbed"` for
    preferences. Raises [`ConsistencyError`] for an unknown format, and for pairs whose columns do not fit it.
    """
    if to not in FORMATS:
        raise ConsistencyError(f"`to` must be {' or '.join(map(repr, FORMATS))}, got {to!r}.")
    columns = {column for row in of_set.rows for column in row}
    for column in (*_OF_TRL, *(_OF_SFT if to == "sft" else ())):
        if column in columns:
            raise InvalidPairsError(
                f"`{name}` has the column `{column}`, which has a meaning in TRL's format: rename it."
            )
    for column in _MADE:
        if column in columns and to == "preference":
            raise InvalidPairsError(f"`{name}` has the column `{column}`, which the preferences have: rename it.")
    if "completion_ids" in columns and "completion" not in columns:
        raise InvalidPairsError(
            f"`{name}` has `completion_ids` without `completion`, and TRL's format holds text. `trl-consistency targets` "
            "writes both."
        )
    if "completion" in columns:
        rows = [{column: row[column] for column in row if column != "completion_ids"} for row in of_set.rows]
        check = row_checker(rows[0], has_completion=True)
        faults = [(number, fault) for number, row in zip(of_set.places, rows, strict=True) for fault in check(row)]
        report_faults(faults, name, len(rows))
    return [
        side for side, wanted in (("clean", "completion" not in columns), ("perturbed", to == "preference")) if wanted
    ]


def has_tokens(of_set: PairSet) -> bool:
    """Whether pairs have `completion_ids`, so that a tokenizer is needed."""
    return any(row.get("completion_ids") for row in of_set.rows)


def _without_prefills(of_set: PairSet) -> tuple[PairSet, list[dict[str, Any]]]:
    """Returns the pairs that TRL's formats can hold, and the others. TRL would start a new turn after a prefill."""
    kept = [number for number, row in enumerate(of_set.rows) if not is_prefilled(row["perturbed_prompt"])]
    left_out = [_left_out(row, PREFILLED) for row in of_set.rows if is_prefilled(row["perturbed_prompt"])]
    rows, places = [of_set.rows[number] for number in kept], [of_set.places[number] for number in kept]
    return replace(of_set, rows=rows, numbers=places), left_out


def _check_variables(of_set: PairSet, chat_template_kwargs: dict[str, Any] | None) -> None:
    """Raises [`InvalidPairsError`] for template variables of prompts that are text."""
    fault = "`chat_template_kwargs` is given, but the prompts are text, which no chat template renders"
    rows = zip(of_set.places, of_set.rows, strict=True)
    texts = [number for number, row in rows if isinstance(row["perturbed_prompt"], str)]
    report_faults([(number, fault) for number in texts if chat_template_kwargs], "pairs", len(of_set.rows))


def _check_tokens(
    of_set: PairSet, tokenizer: ProcessingClass, chat_template_kwargs: dict[str, Any], options: AnswerOptions
) -> None:
    """Raises [`InvalidPairsError`] for `completion_ids` that are not those of the `completion`, such as another model's."""
    faults = []
    for number, row in zip(of_set.places, of_set.rows, strict=True):
        if row.get("completion_ids"):
            tools, variables = parse_json_column(row.get("tools")), variables_of(row, chat_template_kwargs)
            try:
                fault = completion_fault(row, tokenizer, row, tools, variables, options.thinking_markers)
            except InvalidPairsError as error:
                fault = str(error)
            faults += [(number, fault)] if fault else []
    report_faults(faults, "pairs", len(of_set.rows))


def _given_answer(
    row: dict[str, Any],
    options: AnswerOptions,
    ends: Sequence[int] | None,
    tokenizer: ProcessingClass | None,
    special: "_SpecialTokens | None",
) -> Answer:
    """
    Returns the `completion` of a pair as an answer. With a tokenizer, its `completion_ids` say which special tokens mark a thought
    or a call there, and with the tokens that end an answer, if it was cut.
    """
    completion, ids = row["completion"], row.get("completion_ids")
    text = completion if isinstance(completion, str) else message_text(completion[0])
    is_of_ids = False
    if tokenizer is not None and special is not None and ids:
        decode, start = get_tokenizer(tokenizer).decode, header_length(tokenizer, ids)
        forms = [decode(ids[of:], skip_special_tokens=True) for of in (0, start)]
        forms.append(decode(without_end(ids, get_tokenizer(tokenizer))))  # as `targets` writes a thought
        is_of_ids = text.split() in (form.split() for form in forms)
        if is_of_ids and (marked := _marked(ids, special)):
            text = decode(marked).strip()
        elif is_of_ids and start:
            text = decode(ids[start:], skip_special_tokens=True).strip()
    is_cut = ends is not None and bool(ids) and ids[-1] not in ends  # type: ignore[index]
    written, markers = tuple(ids) if is_of_ids and ids else (), options.thinking_markers
    whole = get_tokenizer(tokenizer).decode(ids) if tokenizer is not None and ids else text
    others = other_markers(after_thinking(whole, markers), markers)
    return Answer(text, after_thinking(text, markers), written, is_cut, others)


def _other_ends(of_set: PairSet) -> list[str]:
    """Returns a warning of `completion_ids` that do not end as most of them: nothing else tells that a target was cut."""
    rows = zip(of_set.places, of_set.rows, strict=True)
    last = {number: row["completion_ids"][-1] for number, row in rows if row.get("completion_ids")}
    ((end, _),) = Counter(last.values()).most_common(1) or [(None, 0)]
    others = [number for number, token in last.items() if token != end]
    if not others:
        return []
    return [
        f"{len(others)} of {len(last)} `completion_ids` do not end in the same token as most, row {others[0]} first: they may "
        "have been cut at `max_completion_length`, and TRL would add an end. Make these targets again with a larger "
        "`max_completion_length`, or remove their rows."
    ]


def _prompt_warnings(of_set: PairSet, tokenizer: ProcessingClass) -> list[str]:
    """Returns warnings of prompts that the model reads otherwise than they are meant."""
    unknown = [row[UNKNOWN] for row in of_set.rows if row.get(UNKNOWN)]
    texts = sum(skips_template(tokenizer, *(row[column] for column in PROMPT_COLUMNS)) for row in of_set.rows)
    told = [say_unknown(f"{len(unknown)} row(s)", sum(unknown))] if unknown else []
    return told + [f"{texts} row(s) {TEXT_PROMPTS}."] * bool(texts)


def _has_end(of_set: PairSet, tokenizer: ProcessingClass, chat_template_kwargs: dict[str, Any]) -> bool:
    """Whether TRL's answers have an end: text gets one, and messages what the chat template writes."""
    row = next((row for row in of_set.rows if isinstance(row["perturbed_prompt"], list)), None)
    return row is None or writes_end(
        tokenizer,
        row["perturbed_prompt"],
        parse_json_column(row.get("tools")),
        variables_of(row, chat_template_kwargs),
    )


def _generated(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    rows: Sequence[dict[str, Any]],
    sides: Sequence[str],
    options: AnswerOptions,
    cache: TargetCache | None,
) -> dict[str, list[Answer]]:
    """Returns the model's answers by side."""
    # Each distinct prompt is answered once: a side that is not wanted costs nothing if it repeats the other.
    asked = [
        row | {f"{side}_ids": row[f"{side if side in sides else sides[0]}_ids"] for side in SIDES} for row in rows
    ]
    answers = dict(zip(SIDES, answer_sides(model, tokenizer, asked, options, cache), strict=True))
    special = _special_tokens(tokenizer, options.thinking_markers)
    return {
        side: [
            answer._replace(text=_written(tokenizer, row, row[f"{side}_ids"], answer, special))
            for row, answer in zip(rows, answers[side], strict=True)
        ]
        for side in sides
    }


def _written(
    tokenizer: ProcessingClass, row: dict[str, Any], prompt_ids: list[int], answer: Answer, special: "_SpecialTokens"
) -> str:
    """Returns the text of an answer to train on, with the markers of its thought and of calls, special tokens or not."""
    decode, marked = get_tokenizer(tokenizer).decode, _marked(answer.ids, special)
    text = answer.text if marked is None else decode(marked).strip()
    if not isinstance(row["clean_prompt"], str):
        return text
    return continuation(tokenizer, prompt_ids, answer.ids if marked is None else marked, marked is None, text)


class _SpecialTokens(NamedTuple):
    """The special tokens of a tokenizer that mark a thought or a call of a tool, and its others."""

    of_markers: set[int]
    others: set[int]


def _special_tokens(tokenizer: ProcessingClass, markers: tuple[str, str]) -> _SpecialTokens:
    text_tokenizer = get_tokenizer(tokenizer)
    special = {token_id for token_id, token in text_tokenizer.added_tokens_decoder.items() if token.special}
    ids = (text_tokenizer(text=marker, add_special_tokens=False)["input_ids"] for marker in markers)
    of_markers = special & {token_id for of_marker in ids for token_id in of_marker} | call_tokens(text_tokenizer)
    return _SpecialTokens(of_markers, special - of_markers)


def _marked(ids: Sequence[int], special: _SpecialTokens) -> list[int] | None:
    """
    Returns the tokens of an answer without those that end it, or None if no special token marks a thought or a call there: decoded
    without special tokens, these would be a part of the answer.
    """
    if special.of_markers.isdisjoint(ids):
        return None
    end = max(place for place, token_id in enumerate(ids, start=1) if token_id not in special.others)
    return list(ids[:end])


def _graded(
    of_set: PairSet,
    answers: Sequence[Answer],
    side: str,
    options: AnswerOptions,
    tokenizer: ProcessingClass | None,
    ends: set[int],
) -> list[_Reply]:
    said, markers = [answer.said for answer in answers], options.thinking_markers
    grades = grade_answers(of_set.rows, said, of_set.candidates, thinking_markers=markers, is_clean=side == "clean")
    return [
        _Reply(answer.text, answer.said, answer.is_cut, grade, _raw(tokenizer, answer.ids, ends))
        for answer, grade in zip(answers, grades, strict=True)
    ]


def _raw(tokenizer: ProcessingClass | None, ids: Sequence[int], ends: set[int]) -> str | None:
    """Returns the text of an answer's tokens with the special ones, but for those at its end. None without tokens."""
    if tokenizer is None or not ids:
        return None
    special = {of for of, token in get_tokenizer(tokenizer).added_tokens_decoder.items() if token.special}
    end = max((place for place, of in enumerate(ids, start=1) if of not in special | ends), default=0)
    return get_tokenizer(tokenizer).decode(list(ids[:end]))


def _reason(clean: _Reply, perturbed: _Reply | None, is_call: bool) -> str | None:
    """Returns why a pair is left out, or None. `is_call` says whether its `completion` calls tools."""
    if clean.is_cut:
        return CUT
    if not clean.said.strip():
        return (CALL if is_call else EMPTY) if not clean.text.strip() else UNFINISHED
    if perturbed is None:
        return None
    if clean.text.split() == perturbed.text.split():
        return SAME_WORDS
    return SAME_ANSWER if _say_the_same(clean.grade, perturbed.grade) else None


def _say_the_same(one: Grade, other: Grade) -> bool:
    """Whether two answers are read as the same one. Two that are none of the possible answers may differ."""
    if one.unread or other.unread or one.outcome != other.outcome:
        return False
    return one.outcome in ("refused", "complied") or (one.said == other.said != OTHER)


def _left_out(
    row: dict[str, Any], reason: str, clean_answer: str | None = None, perturbed_answer: str | None = None
) -> dict[str, Any]:
    prompts = {column: row[column] for column in PROMPT_COLUMNS}
    ours = {"reason": reason, **prompts, "clean_answer": clean_answer, "perturbed_answer": perturbed_answer}
    return ours | own_columns(_carried(row), ours)


def _converted(
    row: dict[str, Any],
    replies: Sequence[_Reply | None],
    completions: Sequence[Any],
    chat_template_kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Returns a row in TRL's format: a preference, or a prompt and completion if the perturbed prompt has no reply."""
    made = {"prompt": _as_text(row["perturbed_prompt"])}
    clean, perturbed = replies
    if clean is None or perturbed is None:
        (made["completion"],) = completions
    else:
        made["chosen"], made["rejected"] = completions
        # TRL ignores the clean prompt. With it, `evaluate` later tells that the pair was trained on.
        made["clean_prompt"] = _as_text(row["clean_prompt"])
        made |= {"chosen_outcome": clean.grade.outcome, "rejected_outcome": perturbed.grade.outcome}
    if tools := row.get("tools"):
        # As text, since Arrow would give every schema the keys of all, as it has done here where there are nulls.
        made["tools"] = tools if isinstance(tools, str) else json.dumps(without_none(tools), ensure_ascii=False)
    if variables := variables_of(row, chat_template_kwargs):
        made["chat_template_kwargs"] = without_none(variables)
    return made | _carried(row)


def _as_text(prompt: Any) -> Any:
    """Returns chat messages with text in place of content blocks, which templates of text models would write as Python does."""
    if isinstance(prompt, str):
        return prompt
    return [
        {**message, "content": message_text(message)} if isinstance(message.get("content"), list) else message
        for message in without_none(prompt)
    ]


def _as_completion(row: dict[str, Any], reply: _Reply, is_clean: bool, writer: ReplyWriter | None) -> Any:
    """Returns a reply as a text or as a message. None if the chat template cannot write it, of which nothing is known without one."""
    if isinstance(row["perturbed_prompt"], str):
        return reply.text
    given = row.get("completion") if is_clean else None
    is_given = isinstance(given, list) and message_text(given[0]) == reply.text
    message = _as_text(given)[0] if is_given else {"role": "assistant", "content": reply.text}
    if writer is None:
        return [message]
    found = writer.message(row, message, reply.raw)
    return found and [found]


def _carried(row: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column not in _NOT_KEPT}

"""Counts faulty rows, and rows that will train little, from the data, the tokenizer and its chat template."""

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from accelerate import PartialState
from datasets import IterableDataset

from ..log import get_logger
from .alignment import AlignmentReport, report_alignment, shared_suffix
from .answers import (
    REQUESTS,
    Spellings,
    contradictions,
    denied_answer,
    key_column_faults,
    question_key,
    spelling_hash,
    spelt_answers,
)
from .choices import choices_in
from .class_names import NamedRows
from .control_tokens import CONTROL_TOKEN
from .pairs import MAX_REPORTED, PROMPT_COLUMNS, AnyDataset, column_faults, is_intact, parse_json_column, row_checker
from .prepare import align_row, forget_many, render_row, variables_of
from .rendering import (
    SENTINEL,
    ProcessingClass,
    Prompt,
    get_tokenizer,
    has_equal_prompts,
    is_prefilled,
    message_text,
    render_text,
    skips_template,
)
from .repeats import prompt_key
from .text import PARTICLES, UNSPACED, all_text
from .time_limit import TimeLimitError
from .typography import as_read
from .unknown_words import UNKNOWN_WORDS


logger = get_logger(__name__)

# Each finding in words, which follow the number of pairs.
FINDINGS = {
    "empty": "have a prompt without text",
    "faulty": "cannot be used",
    "control_tokens": "hold a control token of the tokenizer in their text, and cannot be used",
    "duplicates": "repeat the two prompts of an earlier row",
    "contradictory_answers": "have another `answer` than an earlier row with the same clean prompt: one of them is wrong",
    "differing_spellings": "spell an answer otherwise than an earlier row of the same category: a reply could be only one of them",
    "truncated": "are longer than the limit",
    "no_shared_span": "share no token at their end",
    "header_only": "share at most one token before the generation header",
    "no_shared_content": "do not share, in one piece, the content that is compared",
    "template_differs": "are rendered differently: the chat template writes a text of its own on one side only",
    "bos_doubled": "have a beginning-of-sequence token too many",
    "thinking_differs": "open or close a thought before the answer on one side only",
    "leaked_target": "have their target in the perturbed prompt and not in the clean one",
    "swapped_prompts": "have their cue in the clean prompt and not in the perturbed one: the two columns are swapped",
    "unknown_words": f"hold {UNKNOWN_WORDS}",
    "held_out_wordings": "have a held-out wording, which is for measuring",
}

# No fault: of a model that was not trained on chats, prompts are text.
TEXT_PROMPTS = (
    "are text, which goes through no chat template, though the tokenizer has one: a chat model reads no turn there, and may end "
    "its own at once. Give chat messages, unless that is meant"
)

# No fault either, where it is true of all rows: a data set may be one of several.
NO_CUE = "have two equal prompts, so that there is no cue to learn to ignore"

# These matter only to objectives that compare a shared span: the end of the prompts, or their content.
SUFFIX_FINDINGS, NO_SHARED_CONTENT = ("no_shared_span", "header_only"), "no_shared_content"

# Stands between the name and the number of wordings that are not for training.
_HELD_OUT = "/held-out-"

# Begin the names of wordings that deny the right answer, and so name it
_DENYING = ("denied_answer/", "are_you_sure/")

_EMPTY = "a prompt is empty or blank"

# SmolLM3, Nemotron
_SWITCH = re.compile(r"/(?:no_?)?think\b")

_UNSPACED = re.compile(f"[{UNSPACED}{PARTICLES}]")
# Words, characters of scripts without spaces, and signs
_WORDS = re.compile(rf"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})\w)+|[^\w\s]")


@dataclass
class LintReport:
    """Findings of [`lint_pairs`], in rows numbered from 0."""

    rows: int
    anchors: list[int]  # rows with two equal prompts, which are not a fault
    text_prompts: list[int]  # rows of text for a tokenizer with a chat template, which may be meant
    findings: dict[str, list[int]]  # rows of each of `FINDINGS`
    reasons: dict[int, str]  # why an unusable row cannot be used
    columns: list[str]  # faults in the column names
    alignment: AlignmentReport  # over the rows that are neither empty nor faulty
    limit: int | None = None  # maximum length of a row in tokens

    def to_dict(self) -> dict[str, Any]:
        """Returns the report for JSON: counts, spreads, and the first rows of each finding."""
        return {
            "rows": self.rows,
            "anchors": len(self.anchors),
            "text_prompts": len(self.text_prompts),
            **{name: len(rows) for name, rows in self.findings.items()},
            "shared_tokens": self.alignment.shared_tokens._asdict(),
            "shared_fraction": self.alignment.shared_fraction._asdict(),
            "max_length": self.limit,
            "columns": self.columns,
            "first_rows": {name: rows[:MAX_REPORTED] for name, rows in self.findings.items() if rows},
            "reasons": [{"row": row, "reason": reason} for row, reason in list(self.reasons.items())[:MAX_REPORTED]],
        }

    def has_findings(self, ignore: Iterable[str] = ()) -> bool:
        """Whether there are findings other than those in `ignore`, or no rows at all."""
        found = {name for name, rows in self.findings.items() if rows} - set(ignore)
        return not self.rows or bool(self.columns) or bool(found)

    @property
    def lacks_cues(self) -> bool:
        """Whether all rows are anchors."""
        return 0 < self.rows == len(self.anchors)

    def summary(self, ignore: Iterable[str] = ()) -> str:
        """Returns one line of counts, empty if nothing was found."""
        counts = [
            f"{len(rows)} {FINDINGS[name]} ({name})"
            for name, rows in self.findings.items()
            if rows and name not in ignore
        ]
        if self.lacks_cues:
            counts.append(f"all {NO_CUE}")
        if self.text_prompts:
            counts.append(f"{len(self.text_prompts)} {TEXT_PROMPTS}")
        return f"of {self.rows} pair(s), {'; '.join(counts)}." if counts else ""


class _Frame(NamedTuple):
    """Text that a template writes before the first message, before the last and after the last, and all of it."""

    start: str
    before_last: str
    end: str
    whole: str


@dataclass
class _Linter:
    """Checks of one rendered row, with a cache of what the template writes."""

    processing_class: ProcessingClass
    chat_template_kwargs: dict[str, Any]
    thinking_markers: tuple[str, str]
    frames: dict[str, _Frame | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokenizer = get_tokenizer(self.processing_class)
        added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.bos = tokenizer.bos_token_id
        self.special = (added | set(tokenizer.all_special_ids)) - {self.bos}
        if tokenizer.unk_token_id != tokenizer.eos_token_id:  # it stands for a word, which no template writes
            self.special -= {tokenizer.unk_token_id}

    def findings(self, row: Mapping[str, Any]) -> list[str]:
        """Returns the names of the row's findings that need the template or the row's other columns."""
        tools = parse_json_column(row.get("tools"))
        kwargs = variables_of(row, self.chat_template_kwargs)
        sides = [(row[f"{side}_prompt"], row[f"{side}_ids"]) for side in ("clean", "perturbed")]
        frames = [None if isinstance(prompt, str) else self._frame(prompt, tools, kwargs) for prompt, _ in sides]
        found = []
        if isinstance(sides[0][0], str):
            differs = len({self._special_ends(ids) for _, ids in sides}) > 1
        else:
            differs = self._frames_differ([prompt for prompt, _ in sides], frames, tools, kwargs)
        if differs:
            found.append("template_differs")
        if any(self._bos_doubled(ids, frame) for (_, ids), frame in zip(sides, frames, strict=True)):
            found.append("bos_doubled")
        if len({self._thinking(prompt, frame) for (prompt, _), frame in zip(sides, frames, strict=True)}) > 1:
            found.append("thinking_differs")
        if self._leaks(row):
            found.append("leaked_target")
        if has_cue_in_clean(row):
            found.append("swapped_prompts")
        if _HELD_OUT in str(row.get("perturbation") or ""):
            found.append("held_out_wordings")
        return found

    def _frame(self, messages: list[dict], tools: Any, kwargs: dict[str, Any]) -> _Frame | None:
        """Returns None if the template refuses or leaves out the stand-ins for the messages' contents."""
        stand_ins = [{**message, "content": _stand_in(message)} for message in messages]
        key = repr((stand_ins, tools, kwargs))
        if key not in self.frames:
            forget_many(self.frames)
            try:
                parts = render_text(self.processing_class, stand_ins, tools, kwargs).split(SENTINEL)
            except Exception:  # templates may raise anything
                parts = []
            self.frames[key] = _Frame(parts[0], parts[-2], parts[-1], "".join(parts)) if len(parts) > 1 else None
        return self.frames[key]

    def _frames_differ(
        self, prompts: list[Any], frames: list[_Frame | None], tools: Any, kwargs: dict[str, Any]
    ) -> bool:
        clean, perturbed = frames
        if clean is None or perturbed is None:
            return False
        if not any(map(is_prefilled, prompts)) and clean.end != perturbed.end:
            return True
        systems = [prompt[0]["role"] == "system" for prompt in prompts]
        if systems[0] == systems[1]:
            return prompts[0][0]["role"] == prompts[1][0]["role"] and clean.start != perturbed.start
        # One side has a system message. On the other side the template may write its own.
        without = prompts[0] if systems[1] else prompts[1]
        with_one = self._frame([{"role": "system", "content": ""}, *without], tools, kwargs)
        alone = self._frame(without, tools, kwargs)
        return with_one is not None and alone is not None and not _is_shortened(alone.whole, with_one.whole)

    def _special_ends(self, ids: list[int]) -> tuple:
        """Returns the leading special token of a rendered text prompt, and the tokens from the last special one on."""
        places = [place for place, token in enumerate(ids) if token in self.special]
        start = next((token for token in ids[:2] if token != self.bos), None)
        return (start if start in self.special else None, *ids[places[-1] :]) if places else ()

    def _bos_doubled(self, ids: list[int], frame: _Frame | None) -> bool:
        if self.bos is None:
            return False
        written = 1 if frame is None else frame.whole.count(get_tokenizer(self.processing_class).bos_token)
        is_end_too = self.bos == get_tokenizer(self.processing_class).eos_token_id
        return ids[:2] == [self.bos] * 2 or (not is_end_too and ids.count(self.bos) > max(written, 1))

    def _thinking(self, prompt: Prompt, frame: _Frame | None) -> str:
        """Returns whether a thought before the answer is `"open"` or `"closed"`, or an empty text without one."""
        opening, closing = self.thinking_markers
        if isinstance(prompt, str):
            # What comes before the end of a text only mentions a marker.
            text = prompt.rstrip()
            return "open" if text.endswith(opening) else "closed" if text.endswith(closing) else ""
        if frame is None:
            return ""
        text = frame.before_last + message_text(prompt[-1]) if is_prefilled(prompt) else frame.end
        opened, closed = text.rfind(opening), text.rfind(closing)
        return "" if max(opened, closed) < 0 else "open" if opened > closed else "closed"

    def _leaks(self, row: Mapping[str, Any]) -> bool:
        # A cue that denies an answer names it, beside one that suggests another, too.
        steps = str(row.get("perturbation") or "").split("+")
        if str(row.get("biased_answer") or "").startswith("NOT ") or any(of.startswith(_DENYING) for of in steps):
            return False
        targets = []
        if row.get("completion"):
            targets.append(all_text(row["completion"]))
        elif row.get("completion_ids"):
            tokenizer = get_tokenizer(self.processing_class)
            targets.append(tokenizer.decode(row["completion_ids"], skip_special_tokens=True))
        # For a request, `answer` is only a word that marks a refusal.
        if isinstance(row.get("answer"), str) and row.get("category") not in REQUESTS:
            targets.append(row["answer"])
        clean, perturbed = (all_text(row[column]) for column in PROMPT_COLUMNS)
        return any(_holds(perturbed, target) and not _holds(clean, target) for target in targets)


def lint_pairs(
    rows: Collection[Mapping[str, Any]],
    processing_class: ProcessingClass,
    chat_template_kwargs: dict[str, Any] | None = None,
    limit: int | None = None,
    max_completion_length: int = 0,
    always_generates: bool = False,
    thinking_markers: tuple[str, str] = ("<think>", "</think>"),
    is_prepared: bool = False,
    context: int | None = None,
    vocab_size: int | None = None,
    compares_content: bool = False,
) -> LintReport:
    """
    Looks for faults in pairs. Reads all rows and counts every finding. `limit` is the maximum length of a row in
    tokens, and `context`, `vocab_size`, `max_completion_length` and `always_generates` mean the same as in
    [`~trl_consistency.data.prepare.prepare_pairs`]. `is_prepared` says whether that function rendered the rows. Only with
    `compares_content` is the shared content looked for, which takes longer.
    """
    kwargs = chat_template_kwargs or {}
    linter = _Linter(processing_class, kwargs, thinking_markers)
    columns = list(dict.fromkeys(column for row in rows for column in row)) if not is_prepared else []
    render = partial(
        render_row,
        processing_class=processing_class,
        has_completion="completion" in columns or "completion_ids" in columns,
        chat_template_kwargs=kwargs,
        max_completion_length=max_completion_length,
        always_generates=always_generates,
        vocab_size=vocab_size,
        thinking_markers=thinking_markers,
    )
    found: dict[str, list[int]] = {name: [] for name in FINDINGS if compares_content or name != NO_SHARED_CONTENT}
    anchors: list[int] = []
    text_prompts: list[int] = []
    reasons: dict[int, str] = {}
    # As Python objects, a million rows would take hundreds of megabytes.
    prompts, spans, answers, spellings = array("q"), array("i"), array("q"), array("q")
    headers: dict[str, int] = {}
    count = 0
    for index, (row, finding, fault) in enumerate(
        ((row, "", "") for row in rows) if is_prepared else _rendered(rows, render, columns)
    ):
        count += 1
        if fault:
            found[finding].append(index)
            reasons[index] = fault
        if not row:
            continue
        if has_equal_prompts(row):
            anchors.append(index)
        if skips_template(processing_class, *(row[column] for column in PROMPT_COLUMNS)):
            text_prompts.append(index)
        prompts.append(hash(prompt_key(row, *PROMPT_COLUMNS)))
        if question := question_key(row):
            answers.extend((index, hash(question), hash(str(row["answer"]))))
        for answer in spelt_answers(row):
            spellings.extend((index, spelling_hash(row, answer), hash(answer)))
        if row.get("unknown") and not is_prepared:  # of prepared rows, preparation has told
            found["unknown_words"].append(index)
        if _is_too_long(row, limit, context, always_generates):
            found["truncated"].append(index)
        kinds = ("suffix", "content_span") if compares_content and not fault else ("suffix",)
        aligned = align_row(row, processing_class, kwargs, kinds, headers)
        if "content_span" in aligned and not aligned["content_span"][2]:
            found[NO_SHARED_CONTENT].append(index)
        spans.extend((index, *aligned["suffix"], len(row["clean_ids"]), aligned["header_length"]))
        for name in linter.findings(row) if not fault else ():
            found[name].append(index)
    indices, *_, lengths, header_lengths = facts = np.frombuffer(spans, np.int32).reshape(-1, 6).T
    repeated = np.setdiff1d(np.arange(len(indices)), np.unique(np.frombuffer(prompts, np.int64), return_index=True)[1])
    found["duplicates"] = indices[repeated].tolist()
    found["contradictory_answers"] = [of.row for of in contradictions(_disagreeing(rows, answers))]
    first = Spellings()
    found["differing_spellings"] = [row for row, of in _disagreeing(rows, spellings) if first.faults(of, row)]
    alignment = report_alignment(facts[1:4].T, lengths, header_lengths)
    for name in SUFFIX_FINDINGS:
        found[name] = indices[getattr(alignment, name)].tolist()
    faults = [*column_faults(columns), *key_column_faults(columns)]
    shortest = min((of for of in (limit, context) if of is not None), default=None)
    return LintReport(count, anchors, text_prompts, found, reasons, faults, alignment, shortest)


def _is_too_long(row: Mapping[str, Any], limit: int | None, context: int | None, always_generates: bool) -> bool:
    """Whether training would refuse a rendered row for its length."""
    needed = row["length"]
    if always_generates:  # rollouts may end before the context does
        needed = max(len(row["clean_ids"]), len(row["perturbed_ids"])) + len(row.get("completion_ids") or ())
    return (limit is not None and row["length"] > limit) or (context is not None and needed > context)


def _disagreeing(rows: Iterable[Mapping[str, Any]], answers: "array[int]") -> Iterator[tuple[int, Mapping[str, Any]]]:
    """
    Yields the rows, with their numbers, that answer the same question in different ways. `answers` holds three numbers for each
    answer: the row, a hash of the question, and a hash of the answer.
    """
    facts = np.frombuffer(answers, np.int64).reshape(-1, 3)
    asked, counts = np.unique(np.unique(facts[:, 1:], axis=0)[:, 0], return_counts=True)
    suspects = set(facts[np.isin(facts[:, 1], asked[counts > 1]), 0].tolist())
    return (of for of in enumerate(rows) if of[0] in suspects) if suspects else iter(())


def warn_of_findings(
    dataset: AnyDataset,
    processing_class: ProcessingClass,
    name: str,
    chat_template_kwargs: dict[str, Any] | None,
    thinking_markers: Sequence[str],
) -> None:
    """
    Logs one line if prepared pairs have findings. Shared spans are reported by the objectives that need them. A stream
    is skipped, because it can be read only once.
    """
    if isinstance(dataset, IterableDataset) or not PartialState().is_main_process:
        return
    opening, closing = thinking_markers
    rows: Any = NamedRows(dataset)
    report = lint_pairs(
        rows, processing_class, chat_template_kwargs, thinking_markers=(opening, closing), is_prepared=True
    )
    summary = report.summary(ignore=SUFFIX_FINDINGS)
    if summary:
        logger.warning(f"`{name}`: {summary} `trl-consistency lint` shows them.")


def _rendered(
    rows: Iterable[Mapping[str, Any]], render: Callable[[dict[str, Any]], dict[str, Any]], columns: Collection[str]
) -> Iterator[tuple[dict[str, Any] | None, str, str]]:
    """
    Yields each row with its token ids (None if it has none), and its finding and the reason why it cannot be used (both empty
    if it can). Not every row must have all the `columns`.
    """
    first = dict.fromkeys(columns) | dict(next((row for row in rows if not is_empty(row)), {}))
    check_row = row_checker(first, has_completion="completion" in columns)
    for row in map(dict, rows):
        fault = "; ".join(check_row(row))
        if is_empty(row):
            yield None, "empty", fault or _EMPTY
            continue
        try:
            row |= render(row)
        except TimeLimitError:
            raise
        except (TypeError, ValueError):  # a cell that is not JSON, which `fault` names
            yield None, "faulty", fault
            continue
        fault = fault or row["render_fault"]
        finding = "control_tokens" if CONTROL_TOKEN in fault else "faulty"
        yield (row if row["clean_ids"] and row["perturbed_ids"] else None), finding, fault


def is_empty(row: Mapping[str, Any]) -> bool:
    """Whether one of the two prompts has no text at all."""
    return not all(all_text(row.get(column)).strip() for column in PROMPT_COLUMNS)


def _stand_in(message: dict[str, Any]) -> str:
    """Returns a stand-in for a message's content, with what turns thinking on or off in the system messages of some models."""
    switches = _SWITCH.findall(message_text(message)) if message["role"] == "system" else []
    return " ".join([SENTINEL, *switches])


def _is_shortened(text: str, longer: str) -> bool:
    """Whether `text` is `longer` with one piece taken out."""
    start = next((i for i, (a, b) in enumerate(zip(text, longer, strict=False)) if a != b), len(text))
    return shared_suffix(text.encode(), longer.encode()).length >= len(text.encode()) - len(text[:start].encode())


def has_cue_in_clean(row: Mapping[str, Any]) -> bool:
    """
    Whether the clean prompt of a pair has what its cue says: the answer that the cue speaks for or against, or of a request a
    wrapper around the last message. If both prompts have that answer, the clean one has it more often, and all of the other's words.
    Of other pairs, such as those with an encoded question, nothing tells which prompt has a cue.
    """
    prompts = clean, perturbed = [row[column] for column in PROMPT_COLUMNS]
    if row.get("category") in REQUESTS:
        texts = (all_text(of[-1:] if isinstance(of, list) else of) for of in prompts)
        wrapped, asked = (" ".join(text.split()) for text in texts)  # other spaces are a cue of their own
        return asked != wrapped and _holds(wrapped, asked)
    biased = row.get("biased_answer")
    if not biased or not isinstance(biased, str) or not is_intact(row):
        return False
    of_cue = denied_answer(biased) or biased
    # Both sides may list it among the choices. A cue names its letter, or the choice itself.
    choice = (choices_in(perturbed) or choices_in(clean)).get(of_cue, "")
    in_clean, in_perturbed = (sum(_times(all_text(of), said) for said in (of_cue, choice)) for of in prompts)
    if not in_perturbed:
        return in_clean > 0
    words = iter(_WORDS.findall(all_text(clean)))
    return in_clean > in_perturbed and all(word in words for word in _WORDS.findall(all_text(perturbed)))


def lacks_suggestion(row: Mapping[str, Any]) -> bool:
    """
    Whether the perturbed prompt of a question does not say the answer that its cue suggests. Letters stand for choices, and a
    question that is not intact may be encoded.
    """
    biased = row.get("biased_answer")
    if row.get("category") in REQUESTS or not row.get("answer") or not isinstance(biased, str) or len(biased) < 2:
        return False
    if denied_answer(biased) or not is_intact(row) or has_equal_prompts(row):
        return False
    return not _holds(*(as_read(text).lower() for text in (all_text(row["perturbed_prompt"]), biased)))


def _holds(text: str, part: str) -> bool:
    """
    Whether a text contains another, in whole words. White space may differ. Scripts without spaces have no such words, but a
    single character of one is too often a part of a word.
    """
    return _times(text, part) > 0


def _times(text: str, part: str) -> int:
    """Returns how often a text contains another, as [`_holds`] finds it."""
    text, part = " ".join(text.split()), " ".join(part.split())
    is_sign = len(part) == 1 and _UNSPACED.match(part)
    place, times = text.find(part) if part else -1, 0
    while place >= 0:
        end = place + len(part)
        edges = text[place - 1 : place] + part[:1], part[-1:] + text[end : end + 1]
        times += not any(len(of) == 2 and of.isalnum() and (is_sign or not _UNSPACED.search(of)) for of in edges)
        place = text.find(part, place + 1)
    return times

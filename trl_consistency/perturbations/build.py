"""Makes pairs from questions."""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple, cast, get_args

from ..data.answers import Spellings
from ..data.choices import choices_in
from ..data.class_names import named_rows
from ..data.pairs import MAX_REPORTED, report_faults
from ..data.repeats import documents_of
from ..errors import ConsistencyError
from .build_report import BuildReport
from .columns import DEFAULT_COLUMNS, Columns, columns_of, find_columns, late_column
from .draft import POSITIONS
from .jailbreak import BENIGN_REQUESTS
from .provenance import WrongAnswer, check_choice, draw, make_pair, possible_suggestions
from .registry import Perturbation, find_perturbations, open_positions
from .source import BeyondChoicesError, Source, content_text, read_source


Row = dict[str, Any]
Steps = tuple[Perturbation, ...]


def build_pairs(
    rows: Iterable[Mapping[str, Any]],
    perturbations: Sequence[str] = ("suggested_answer",),
    columns: Columns | None = None,
    pairs_per_source: int | None = None,
    test_share: float = 0.1,
    wrong_answer: WrongAnswer = "random",
    positions: Sequence[str] = POSITIONS,
    chat: bool = True,
    instruction: str | None = None,
    faulty_rows: Literal["error", "drop"] = "error",
    benign_controls: bool = False,
    seed: int = 42,
    report: BuildReport | None = None,
) -> Iterator[tuple[str, Row]]:
    """
    Makes pairs from questions or prompts, row by row.

    The pairs of a row depend only on the row and the options, not on earlier rows. Sources are split by their
    `source_id`, in the same way for every seed: all pairs of a source are either in `train`, or in `test` (training
    wordings) and `test_wordings` (held-out wordings). A row that asks the question of an earlier row under another
    `source_id` goes to the split of that row.

    Args:
        rows (`Iterable[Mapping[str, Any]]`):
            Rows of a data set of questions or prompts.
        perturbations (`Sequence[str]`, *optional*, defaults to `("suggested_answer",)`):
            Names, families, and compositions such as `"authority+typos"`.
        columns ([`Columns`], *optional*):
            The data set's columns, from [`find_columns`]. By default, the columns with the usual names. The first row must
            have them, unless the rows are a list.
        pairs_per_source (`int`, *optional*):
            Number of pairs per source in a split. Perturbations take turns. By default one pair per perturbation.
        test_share (`float`, *optional*, defaults to `0.1`):
            Share of the sources that is held out.
        wrong_answer (`str`, *optional*, defaults to `"random"`):
            The suggested answer: a `"random"` or the `"longest"` wrong one, or the one `"given"` by the data.
        positions (`Sequence[str]`, *optional*):
            Positions where cues may stand: any of `"start"`, `"before_choices"`, `"after_choices"` and `"end"`. By default
            all of them.
        chat (`bool`, *optional*, defaults to `True`):
            Whether prompts are chat messages. Otherwise they are text.
        instruction (`str`, *optional*):
            Text after every question. By default, questions with choices ask for a letter, and in chats, others with an answer for a line
            "Answer: X".
        faulty_rows (`str`, *optional*, defaults to `"error"`):
            `"error"` refuses the data and lists the first faulty rows, `"drop"` leaves them out and counts them.
        benign_controls (`bool`, *optional*, defaults to `False`):
            Whether to add everyday requests in the same jailbreak wrappers, with the category `"benign"`.
        seed (`int`, *optional*, defaults to `42`):
            Seed of the wordings, positions and suggested answers. It does not change the splits.
        report ([`BuildReport`], *optional*):
            Report to fill in.

    Yields:
        `tuple[str, dict]`: Split and pair.

    Raises:
        [`ConsistencyError`]: If an option or a column is wrong.
        [`InvalidPairsError`]: If rows are faulty. It is raised at the eleventh faulty row, or after the last row.
    """
    perturbations = [perturbations] if isinstance(perturbations, str) else perturbations
    chosen = find_perturbations(perturbations)
    _check_options(pairs_per_source, test_share, wrong_answer, positions, faulty_rows)
    wrapped = [steps for steps in chosen if any(step.family == "jailbreak" for step in steps)]
    if benign_controls and not wrapped:
        raise ConsistencyError(
            "`benign_controls` are for jailbreak wrappers, and `perturbations` has none. Leave it out, or add one."
        )
    there = columns_of(rows) if columns is None and isinstance(rows, Sequence) else None
    if isinstance(form := getattr(rows, "format", None), dict) and form["type"] not in (None, "custom"):
        rows = cast(Any, rows).with_format(None)  # of NumPy or torch
    rows = named_rows(rows)
    first = next(rows, None)
    if first is None:
        raise ConsistencyError("The data set has no rows.")
    known = list(first) if columns is None and there is None else None
    if columns is None:
        columns = find_columns(there or first)
    for name in perturbations:  # members of a family may lack something: they are reported at the end
        _check_columns([steps for steps in chosen if name == _name(steps)], columns, chat, wrong_answer)
    report = BuildReport() if report is None else report
    suggests = any(step.suggests == "wrong" for steps in chosen for step in steps)
    reader = _Reader(columns, known, chat, instruction, wrong_answer if suggests else None, report)
    splits = _Splits(test_share, report)
    make = _PairMaker(pairs_per_source, wrong_answer, positions, seed, report, held_out={})

    def all_pairs() -> Iterator[tuple[str, Row]]:
        for index, row in enumerate(chain([first], rows)):
            report.sources += 1
            report.without.update(column for column in columns.read if column not in row)
            try:
                source = reader.read(row, index)
            except ConsistencyError as error:
                report.num_faulty += 1
                if len(report.faulty) < MAX_REPORTED:
                    report.faulty.append((index, str(error)))
                elif faulty_rows == "error":
                    break
                continue
            if benign_controls and "category" not in source.carried:  # a column is in every row or in none
                source = replace(source, carried={**source.carried, "category": ""})
            is_test = splits.is_test(source)
            if is_test is None:
                continue
            reader.count(source)
            if not (report.faulty and faulty_rows == "error"):
                yield from make(source, chosen, is_test)
        if faulty_rows == "error":
            report_faults(report.faulty, "dataset_name", is_cut=report.num_faulty > MAX_REPORTED)
        reader.check_numbers()
        if benign_controls:
            for source, of_its_own in _benign_sources(columns, chat, instruction or ""):
                is_test = splits.is_test(source, of_its_own)
                if is_test is not None and (test_share or not is_test):
                    yield from make(source, wrapped, is_test)

    return all_pairs()


def _check_options(
    pairs_per_source: int | None, test_share: float, wrong_answer: str, positions: Sequence[str], faulty_rows: str
) -> None:
    if not 0 <= test_share < 1:
        raise ConsistencyError(f"`test_share` must be at least 0 and less than 1, got {test_share}.")
    if pairs_per_source is not None and (not isinstance(pairs_per_source, Integral) or pairs_per_source < 1):
        raise ConsistencyError(f"`pairs_per_source` must be a whole number of at least 1, got {pairs_per_source}.")
    check_choice("wrong_answer", wrong_answer, get_args(WrongAnswer))
    check_choice("faulty_rows", faulty_rows, ("error", "drop"))
    for position in positions:
        if position not in POSITIONS:
            raise ConsistencyError(f"`positions`: {position!r} is not one of {', '.join(POSITIONS)}.")


@dataclass
class _Reader:
    """Reads the sources of rows, and compares each with the rows before it."""

    columns: Columns
    known: Sequence[str] | None
    chat: bool
    instruction: str | None
    suggests: WrongAnswer | None  # None if no wrong answer is suggested
    report: BuildReport
    answers: dict[int, str] = field(default_factory=dict)
    spellings: Spellings = field(default_factory=Spellings)
    seen: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    beyond: int = 0  # answers that are the number of choices

    def read(self, row: Mapping[str, Any], index: int) -> Source:
        """Returns the source of a row. Raises [`ConsistencyError`] for a faulty row."""
        _check_known(row, self.known)
        try:
            source = read_source(row, self.columns, self.chat, self.instruction)
        except BeyondChoicesError:
            self.beyond += 1
            raise
        given = str(row.get(self.columns.answer or "")).strip().removesuffix(".0")
        if given.isdecimal() and source.choices and given not in source.choices:
            self.report.numbers[given] += 1
            self.report.number_column = self.columns.answer
        key = hash((repr((source.history, source.turns)), source.question, source.choices))
        right = _right_text(source)
        if right and self.answers.get(key, right) != right:
            raise ConsistencyError("an earlier row asks the same and has another answer: one of them is wrong")
        suggested = () if self.suggests is None else possible_suggestions(source, self.suggests)
        _check_spelling(source, suggested, self.spellings, index)
        if right:  # of a row that is kept
            self.answers[key] = right
        return source

    def count(self, source: Source) -> None:
        """Counts in the report what may not be meant."""
        report = self.report
        report.prefilled += bool(source.turns) and source.turns[-1]["role"] == "assistant"
        report.swapped += _is_question(_right_text(source)) and not _is_question(source.question)
        report.of_several_lines += "\n" in source.answer
        passes_over = self.suggests not in (None, "given") and len(source.wrong_answers) > 1
        report.passed_over += passes_over and bool(source.choices and source.given_wrong_answer)
        report.doubled += (same := hash(repr(source))) in self.seen
        self.seen.add(same)
        is_letter = bool(source.answer and source.choices) or source.answer in choices_in(source.question)
        if is_letter and (asked := hash((_question_key(source), source.answer))) not in self.asked:
            report.right_letters[source.answer] += 1
            self.asked.add(asked)

    def check_numbers(self) -> None:
        """Raises [`ConsistencyError`] if right answers seem to count the choices from 1."""
        numbers = self.report.numbers
        if self.beyond and numbers and "0" not in numbers:
            raise ConsistencyError(
                f"`{self.columns.answer}` seems to count the choices from 1: in {self.beyond} row(s) it is the number of choices, and in none "
                "0. Here, a number counts from 0, and all other rows would have a wrong right answer. Give letters."
            )


def _check_known(row: Mapping[str, Any], known: Sequence[str] | None) -> None:
    """Raises [`ConsistencyError`] for a usual column that the `known` ones (None: it does not matter) do not have."""
    if known is None:
        return
    for column in chain.from_iterable(DEFAULT_COLUMNS.values()):
        if row.get(column) is not None and column not in known:
            raise late_column(column)


class _PairMaker(NamedTuple):
    """Makes the pairs of a source, and counts the pairs left out in the report."""

    pairs_per_source: int | None
    wrong_answer: WrongAnswer
    positions: Sequence[str]
    seed: int
    report: BuildReport
    held_out: dict[int, str]  # hashes of the prompts of held-out pairs, under any id, and their split

    def __call__(self, source: Source, compositions: list[Steps], is_test: bool) -> Iterator[tuple[str, Row]]:
        usable = []
        for steps in compositions:
            if need := _lack(steps, source, self.wrong_answer, self.positions):
                self.report.lacking[_name(steps), need] += 1
            else:
                usable.append(steps)
        if not usable:
            return
        if self.pairs_per_source is not None:
            random.Random(f"{self.seed}/{source.source_id}/{source.question}").shuffle(usable)
        splits: list[tuple[str, Literal["train", "held_out"]]] = [("train", "train")]
        if is_test:
            splits = [("test", "train"), ("test_wordings", "held_out")]
        made = set()  # in both splits: one that a training wording makes, too, is no held-out one
        for split, wordings in splits:
            for number in range(self.pairs_per_source or len(usable)):
                variant, place = divmod(number, len(usable))
                steps = usable[place]
                drawn = draw(source, steps, wordings, self.seed, variant, self.wrong_answer, self.positions)
                row, idle = make_pair(source, drawn)
                prompts = repr((row["clean_prompt"], row["perturbed_prompt"]))
                if idle or row["clean_prompt"] == row["perturbed_prompt"]:
                    self.report.unchanged[f"{idle} in {_name(steps)}" if idle else _name(steps)] += 1
                elif prompts in made or (is_test and self.held_out.setdefault(hash(prompts), split) != split):
                    self.report.repeated[_name(steps)] += 1
                else:
                    made.add(prompts)
                    self.report.pairs[split, row["perturbation"]] += 1
                    yield split, row


def _is_question(text: str) -> bool:
    return text.rstrip().endswith(("?", "\uff1f", "\u061f"))  # of Chinese and Japanese, and of Arabic


def _right_text(source: Source) -> str:
    """Returns the right answer in words: two letters whose choices have the same text are one answer."""
    if not (source.choices and source.answer):
        return source.answer
    return source.choices[ascii_uppercase.index(source.answer)].strip()


def _check_spelling(source: Source, suggestions: Sequence[str], spellings: Spellings, index: int) -> None:
    """Raises [`ConsistencyError`] if an earlier row spells an answer of this one otherwise. `evaluate` would refuse the pairs."""
    for suggestion in suggestions or [""]:
        keys = {**source.carried, "answer": source.answer, "biased_answer": suggestion}
        if faults := spellings.faults(keys, index):
            raise ConsistencyError(faults[0])


def _name(steps: Steps) -> str:
    return "+".join(step.name for step in steps)


def _check_columns(compositions: list[Steps], columns: Columns, chat: bool, wrong_answer: WrongAnswer) -> None:
    """Raises [`ConsistencyError`] if the perturbations need a column that is missing."""
    wrong = columns.wrong_answer or (wrong_answer != "given" and columns.choices and columns.answer)
    others = ""
    if wrong_answer != "given":
        others = ", or the right one in `answer_column`" if columns.choices else ", or the choices in `choices_column`"
    there = {
        "choices": (columns.choices, "name the column in `choices_column`"),
        "a right answer": (columns.answer, "name the column in `answer_column`"),
        "a wrong answer": (wrong, f"name a column of wrong answers in `wrong_answer_column`{others}"),
        "a safety fact": (columns.safety_fact, "name the column in `safety_fact_column`"),
        "chat messages": (chat, "leave out `prompt_format: text`"),
    }
    for steps in compositions:
        for step in steps:
            for need in step.needs:
                found, remedy = there.get(need, (True, ""))
                if not found:
                    raise ConsistencyError(f"`{step.name}` needs {need}: {remedy}.")


def _lack(steps: Steps, source: Source, wrong_answer: WrongAnswer, positions: Sequence[str]) -> str | None:
    for step, possible in zip(steps, open_positions(steps, source, positions), strict=True):
        need = step.lacks(source)
        if need:
            return need
        if step.suggests == "wrong" and wrong_answer == "given" and not source.given_wrong_answer:
            return "a given wrong answer"
        if step.positions and not possible:
            return f"the position {' or '.join(positions)}"
    return None


class _Splits:
    """
    Assigns sources to splits by a hash of their `source_id`, but every row that asks an earlier row's question to the
    split of that row. Otherwise a question that data hold under several ids would stand in `train` and in `test`.
    """

    def __init__(self, test_share: float, report: BuildReport):
        self._test_share, self._report = test_share, report
        self._by_id: dict[int, bool] = {}
        self._by_question: dict[int, tuple[int, bool]] = {}

    def is_test(self, source: Source, of_its_own: bool | None = None) -> bool | None:
        """
        Returns whether a source is held out, or None if its id and its question are in different splits. `of_its_own` decides in place of the
        hash, if no earlier row asks the same.
        """
        named, asked = hash(source.source_id), _question_key(source)
        first, of_question = self._by_question.get(asked, (named, None))
        of_id = self._by_id.get(named)
        if of_question is not None and of_id is not None and of_question != of_id:
            self._report.between_splits += 1
            return None
        known = of_id if of_question is None else of_question
        drawn = _is_test(source.source_id, self._test_share) if of_its_own is None else of_its_own
        found = drawn if known is None else known
        self._report.asked_again += first != named
        self._by_id[named] = found
        self._by_question.setdefault(asked, (named, found))
        return found


def _question_key(source: Source) -> int:
    """Returns the same number for a question that differs only in its white space, its case or its choices' order."""
    texts = [content_text(message) for message in source.history] + [source.question]
    documents = json.dumps(documents_of(source.carried), sort_keys=True, default=str)
    return hash((*map(_plain, texts), documents, *sorted(map(_plain, source.choices))))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _is_test(source_id: str, test_share: float) -> bool:
    # A hash, because a random number would depend on earlier rows.
    digest = hashlib.sha256(f"split/{source_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64


def _benign_sources(columns: Columns, chat: bool, instruction: str) -> Iterator[tuple[Source, bool]]:
    for split, requests in BENIGN_REQUESTS.items():
        for number, request in enumerate(requests):
            yield (
                Source(
                    source_id=f"benign/{split.replace('_', '-')}-{number:02d}",
                    question=request,
                    instruction=instruction,
                    chat=chat,
                    carried={**dict.fromkeys(columns.keep), "category": "benign"},
                ),
                split == "held_out",
            )

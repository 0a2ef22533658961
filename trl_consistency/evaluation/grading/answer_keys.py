"""Checks the columns that grading needs, before any prompt is answered."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ...data.answers import KEYS, REQUESTS, Spellings, contradictions, denied_answer, key_column_faults
from ...data.choices import before_choices, choices_in
from ...data.pairs import PROMPT_COLUMNS, check_prompt_columns, column_faults, report_faults, row_checker
from ...data.text import all_text
from ...data.typography import spelling_key
from ...errors import ConsistencyError, InvalidPairsError
from ..answers.replies import is_letter
from ..row_kinds import kind_of, read_aliases
from .names import is_right
from .stated_answers import reading_key


# A choice as its line has it, "(B) pear", and what may stand before its text
_MARKED = re.compile(r"[(\uff08]?([A-Za-z])[).:\uff09\uff0e\uff1a\u3001]\s*(\S.*)")
# The letter of a choice as other files write it: "(B)", "B.", "b"
_LETTER = re.compile(r"[(\[]([A-Za-z])[)\]]|([A-Za-z])[).:\]]|([a-z])")
_ARTICLE = re.compile(r"^(?:the|an?)\s+")

Rows: TypeAlias = Sequence[dict[str, Any]]


def check_rows(rows: Rows, name: str) -> None:
    """Raises [`ConsistencyError`] if there are no rows, prompts are missing or faulty, or columns would be misread."""
    if not rows:
        raise ConsistencyError(f"`{name}` has no rows. Give at least one.")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    check_prompt_columns(columns, name)
    fault = next(column_faults(columns), None)
    if fault:
        raise InvalidPairsError(f"`{name}` has {fault}")
    check_row = row_checker(rows[0], has_completion=False)
    faults = [
        (index, fault) for index, row in enumerate(rows) for fault in (*check_row(row), *_unwritable_columns(row))
    ]
    report_faults(faults, name, len(rows))


def _unwritable_columns(row: dict[str, Any]) -> Iterator[str]:
    """Yields faults of columns that cannot be written to the file of answers."""
    for column in row.keys() - set(PROMPT_COLUMNS):
        try:
            json.dumps(row[column], ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            yield f"`{column}` is not valid Unicode: it holds half a surrogate pair"


def check_keys(rows: Rows, name: str, numbers: Sequence[int] | None = None) -> None:
    """
    Raises [`ConsistencyError`] if a key (`answer`, `aliases`, `biased_answer`, `category`) would be misread or ignored, or if one
    clean prompt has two answers. `numbers` are the row numbers, if the rows are a sample.
    """
    numbers = numbers or range(len(rows))
    faults = _misread_keys(rows, name, numbers)
    faults += [
        (
            index,
            f"`biased_answer` {row['biased_answer']!r} begins with `NOT `, which denies what follows, and {denied!r} is not the right "
            "answer. Begin it with another word",
        )
        for index, row in zip(numbers, rows, strict=True)
        if (denied := _wrongly_denied(row)) is not None
    ]
    faults += [
        (index, f"`biased_answer` {row['biased_answer']!r} denies the right answer: write it as `NOT {denied}`")
        for index, row in zip(numbers, rows, strict=True)
        if (denied := _denied_otherwise(row)) is not None
    ]
    faults += [
        (
            index,
            f"`biased_answer` {row['biased_answer']!r} and `answer` {row['answer']!r} are read as one answer, so that the cue would suggest "
            "the right one. Spell them alike if it does, or suggest another answer",
        )
        for index, row in zip(numbers, rows, strict=True)
        if _are_one_answer(row)
    ]
    faults += [
        (index, f"`source_id` must be text or a number, not {row['source_id']!r}")
        for index, row in zip(numbers, rows, strict=True)
        if not isinstance(row.get("source_id"), str | int | float | None) or isinstance(row.get("source_id"), bool)
    ]
    faults += [
        (
            found.row,
            f"the `answer` is {found.answer!r}, and {found.earlier_answer!r} in row {found.earlier_row}, which has the same "
            "clean prompt: one of them is wrong",
        )
        for found in contradictions(zip(numbers, rows, strict=True))
    ]
    report_faults(faults, name, len(rows))


def check_texts(rows: Rows, name: str) -> None:
    """Raises [`ConsistencyError`] for the part of [`check_keys`] that a single row can fail: keys of another type, or misspelt."""
    report_faults(_misread_keys(rows, name, range(len(rows))), name, len(rows))


def _misread_keys(rows: Rows, name: str, numbers: Sequence[int]) -> list[tuple[int, str]]:
    columns = {column for row in rows for column in row}
    if fault := next(key_column_faults(columns), None):
        raise InvalidPairsError(f"`{name}` has {fault}")
    faults = [
        (index, fault)
        for index, row in zip(numbers, rows, strict=True)
        for column in KEYS
        if (fault := _aliases_fault(row) if column == "aliases" else _key_fault(column, row.get(column))) is not None
    ]
    return faults or [
        (index, fault)
        for index, row in zip(numbers, rows, strict=True)
        if (fault := _near_choice_fault(row)) is not None
    ]


def _wrongly_denied(row: Mapping[str, Any]) -> str | None:
    """Returns what a `biased_answer` such as `"NOT A"` denies if that is no right answer: a text that only begins so."""
    answer, biased = row.get("answer"), row.get("biased_answer")
    if not isinstance(answer, str) or not isinstance(biased, str) or kind_of(row) != "question":
        return None
    denied = denied_answer(biased)
    if denied is None or _aliases_fault(row) is not None or is_right(row, denied):
        return None
    return denied


def _denied_otherwise(row: Mapping[str, Any]) -> str | None:
    """Returns the right answer if a `biased_answer` such as `"not A"` denies it, which is not read as `"NOT A"` is."""
    answer, biased = row.get("answer"), row.get("biased_answer")
    if not isinstance(answer, str) or not isinstance(biased, str) or not answer:
        return None
    return answer if re.fullmatch(r"[Nn]ot\s+" + re.escape(answer), biased) else None


def _are_one_answer(row: Mapping[str, Any]) -> bool:
    """Whether no reply could give one of a row's two answers alone. Those that [`check_spelling`] finds are left to it."""
    answer, biased = row.get("answer"), row.get("biased_answer")
    if not isinstance(answer, str) or not isinstance(biased, str) or kind_of(row) != "question":
        return False
    return reading_key(answer) == reading_key(biased) and spelling_key(answer) != spelling_key(biased)


def _near_choice_fault(row: Mapping[str, Any]) -> str | None:
    """
    Returns what is wrong with an answer that is nearly the letter or the text of a choice: the letter of that choice in a reply would not
    be read as the answer.
    """
    answer, biased = row.get("answer"), row.get("biased_answer") or ""
    if kind_of(row) != "question" or not isinstance(answer, str) or not isinstance(biased, str) or is_letter(answer):
        return None
    choices, prompt = choices_in(row.get("clean_prompt")), all_text(row.get("clean_prompt"))
    for column, given in (("answer", answer), ("biased_answer", denied_answer(biased) or biased)):
        if (letter := _letter_of(given)) and given not in choices.values() and _offers(prompt, letter):
            wanted = row[column].removesuffix(given) + letter
            return f"`{column}` is {row[column]!r}: write the letter of the choice alone, {wanted!r}"
        if not choices and (marked := _MARKED.fullmatch(given)) and before_choices(prompt) != prompt:
            wanted = row[column].removesuffix(given) + marked[2]
            return f"`{column}` is {row[column]!r}: write the text of the choice without its letter, {wanted!r}"
        if (text := _near_choice(given, choices)) is not None:
            wanted = row[column].removesuffix(given) + text
            return f"`{column}` is {row[column]!r}: write the text of the choice as the prompt has it, {wanted!r}"
    return None


def _letter_of(answer: str) -> str | None:
    """Returns the letter that an answer is with marks around it or in lower case: "B" for "(B)", "B." and "b"."""
    found = _LETTER.fullmatch(answer)
    return found[found.lastindex or 1].upper() if found else None


def _offers(prompt: str, letter: str) -> bool:
    """Returns whether a prompt has choices with letters, one of them with this letter."""
    marked = r"(?:^|\s)[(\[]?(?:{}|{})[).:\]]\s"
    return all(re.search(marked.format(of, of.lower()), prompt) for of in {"A", "B", letter})


def _near_choice(answer: str, choices: Mapping[str, str]) -> str | None:
    """Returns the text of the choice that an answer gives with its letter before it, or in another case or with another article."""
    if not answer or reading_key(answer) in map(reading_key, choices.values()):
        return None
    marked = _MARKED.fullmatch(answer)
    of_letter = choices.get(marked[1].upper(), "") if marked else ""
    if marked and _bare(marked[2]) == _bare(of_letter):
        return of_letter
    return next((text for text in choices.values() if _bare(text) == _bare(answer)), None)


def _bare(text: str) -> str:
    """Returns a text in lower case, without an article before it and a full stop behind it."""
    return _ARTICLE.sub("", text.lower().removesuffix("."))


def _key_fault(column: str, value: Any) -> str | None:
    if not isinstance(value, str | None):
        return f"`{column}` must be text, not {value!r}"
    bare = (value or "").strip()
    if column == "category" and value not in REQUESTS and bare.lower() in REQUESTS:
        return f"`category` must be `{bare.lower()}`, not {value!r}"
    if value and bare != value:
        return f"`{column}` is blank, or has spaces around it: {value!r}"
    return None


def _aliases_fault(row: Mapping[str, Any]) -> str | None:
    aliases, biased = read_aliases(row), row.get("biased_answer")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        return f"`aliases` must be a list of texts, or null, not {row['aliases']!r:.80}"
    for alias in aliases:
        if not alias or alias.strip() != alias:
            return f"`aliases` has a text that is blank, or has spaces around it: {alias!r}"
        if isinstance(biased, str) and reading_key(alias) == reading_key(biased):
            return f"`aliases` are names of the right answer, and {alias!r} is the `biased_answer`"
    if aliases and kind_of(row) == "no key":
        return "`aliases` are other names of the `answer`, but there is no `answer`"
    return None


def check_spelling(
    rows: Rows,
    name: str,
    spellings: Spellings | None = None,
    split: str | None = None,
    numbers: Sequence[int] | None = None,
) -> None:
    """
    Raises [`ConsistencyError`] if two possible answers of a category would be read as one. `spellings` are those of other
    splits, if the rows are one of them. `numbers` are the row numbers, by default from 0 on.
    """
    spellings = Spellings() if spellings is None else spellings
    faults = [
        (number, fault)
        for number, row in zip(range(len(rows)) if numbers is None else numbers, rows, strict=True)
        for fault in spellings.faults(row, f"{number} of {split}" if split else number)
    ]
    report_faults(faults, name, len(rows))

"""The possible answers to questions, and the names that each of them has."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from ...data.answers import denied_answer
from ...data.typography import bare_answer
from ..answers.choices import offered_letters
from ..row_kinds import kind_of, read_aliases, right_answers
from .key_forms import other_numbers
from .patterns import compiled
from .polar import OPPOSITES, polar_key
from .stated_answers import mentioned, reading_key, words_of


# A surname, or the number of a quantity
_PART_OF_NAME = re.compile(
    r"\b(?!(?:North|South|East|West|Saint|Mount|Lake|United|City|River|Republic)\b)(?!(?:The|San|New|Van|Von|Los|Las|Sir|Mrs|and)\b)[A-Z]\w{2,}\b|(?<![\w.,])\d+(?:[.,]\d+)*(?![\w.,])"
)

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_BARE = re.compile(rf"\W*{_NUMBER.pattern}\W*")

# Possible answers by category. A mapping gives for each name the answer that it is a name of.
Names: TypeAlias = Collection[str]
Candidates: TypeAlias = Mapping[str | None, Names]


def right_keys(row: Mapping[str, Any]) -> set[str]:
    """Returns the keys of the names of the right answer."""
    return set(map(reading_key, right_answers(row)))


def is_right(row: Mapping[str, Any], answer: str) -> bool:
    """Whether an answer to a question is the right one, by any of its names."""
    return reading_key(answer) in right_keys(row)


def possible_answers(rows: Iterable[Mapping[str, Any]]) -> dict[str | None, dict[str, str]]:
    """
    Returns, by `category`, the answers that occur in rows (right, suggested or denied) and the other names of the right
    answers (`aliases`). Each name is mapped to its answer.

    An alias names its answer in other rows, too, if every row with that answer has the alias and no other answer has it:
    a suggested "mammal" can be called "Mammalia". In other rows, any other alias counts as a separate answer. Further
    spellings of a name are left out. Rows that offer letters add nothing: their answers are only their own.

    Args:
        rows (`Iterable[Mapping[str, Any]]`):
            The pairs.

    Returns:
        `dict[str | None, dict[str, str]]`: By `category` (None for rows without one), the answer of each name.
    """
    answers: dict[str | None, set[str]] = {}
    aliases: dict[
        str | None, dict[str, list[dict[str, str]]]
    ] = {}  # by category and answer, for each row, by their key
    for row in rows:
        category, biased = row.get("category"), row.get("biased_answer") or ""
        of_category = answers.setdefault(category, set())
        if offered_letters(row):
            continue
        of_category.update({row.get("answer") or "", denied_answer(biased) or biased} - {""})
        if kind_of(row) == "question":
            of_row = {reading_key(alias): alias for alias in read_aliases(row)}
            aliases.setdefault(category, {}).setdefault(row["answer"], []).append(of_row)
    return {category: _named(of, aliases.get(category, {})) for category, of in answers.items()}


def _named(answers: set[str], aliases: Mapping[str, list[dict[str, str]]]) -> dict[str, str]:
    """Returns the names of the answers of a category. `aliases` are those of each row, by its answer."""
    keys = set(map(reading_key, answers))
    spellings: dict[str, str] = {}
    answers_of: dict[str, list[str]] = {}  # of each alias, by its key
    for answer, rows in aliases.items():
        spellings |= {key: alias for of_row in rows for key, alias in of_row.items() if key not in keys}
        for key in {key for of_row in rows for key in of_row}:
            answers_of.setdefault(key, []).append(answer)
    named = {answer: answer for answer in answers}
    for key, alias in sorted(spellings.items()):
        answer = answers_of[key][0]
        is_name = len(answers_of[key]) == 1 and all(key in of_row for of_row in aliases[answer])
        named[alias] = answer if is_name else alias
    return named


def answer_of(names: Names, name: str) -> str:
    """Returns the answer that a possible answer is a name of."""
    return names.get(name, name) if isinstance(names, Mapping) else name


def key_word_for_word(row: Mapping[str, Any], said: str, names: Names) -> str | None:
    """Returns the answer that a text is, word for word: the row's right or suggested one, or another possible one."""
    biased = row.get("biased_answer") or ""
    own = [*((name, row["answer"]) for name in right_answers(row)), *([(biased, biased)] if biased else ())]
    for in_one_case in (False, True):
        found = {str(answer) for name, answer in own if _compared(name, in_one_case) == _compared(said, in_one_case)}
        if found:
            return found.pop() if len(found) == 1 else None
    return next((answer_of(names, name) for name in names if reading_key(name) == reading_key(said)), None)


def _compared(answer: str, in_one_case: bool) -> str:
    """Returns the key of an answer without spaces, and without the signs that mark it as mathematics."""
    key = "".join(words_of(answer).split())
    key = key[1:-1] if len(key) > 2 and key[0] == key[-1] == "$" else key
    return key.casefold() if in_one_case else key


def may_be_own(row: Mapping[str, Any], answer: str) -> str:
    """
    Returns how another row's answer may be one of this row's own: in another `"form"`, the plural or a number without its unit ("12" for "$12"),
    as `"part"` with fewer or more of its words ("Washington" for "George Washington", "12 km" for "12"), or empty if it is none.
    """
    biased = row.get("biased_answer") or ""
    own = [words_of(of) for of in (*right_answers(row), *([denied_answer(biased) or biased] if biased else []))]
    said = words_of(answer)
    if said in own or answer == biased:
        return ""
    numbers = [_NUMBER.findall(of) for of in own]
    if _BARE.fullmatch(said) and any(of == _NUMBER.findall(said) for of in numbers):
        return "form"
    if said.lower() in {form.lower() for of in own for form in other_numbers(of)}:
        return "form"
    is_longer = any(
        _BARE.fullmatch(of) and number[0] in _NUMBER.findall(said) for of, number in zip(own, numbers, strict=True)
    )
    words = {*said.lower().split()}
    is_part = any(words < of or of < words for of in ({*of.lower().split()} for of in own))
    return "part" if is_longer or is_part else ""


def not_asked(row: Mapping[str, Any], question: str, names: Names) -> set[str]:
    """
    Returns the possible answers that do not stand in the question, and this row's own: "10 + 10 = 20" answers 20, and
    repeats 10. Yes and no, true and false answer no other question: "No. It is Paris." answers Paris.
    """
    biased = row.get("biased_answer") or ""
    own = set(map(reading_key, (*right_answers(row), denied_answer(biased) or biased)))
    asked = mentioned(question, names)
    is_polar = not OPPOSITES.keys().isdisjoint(map(polar_key, own))
    others = {name for name in names if name not in asked and (is_polar or polar_key(name) not in OPPOSITES)}
    return others | {name for name in names if reading_key(name) in own}


def partial_names(own: Mapping[str, str], question: str, names: Names) -> dict[str, str]:
    """
    Returns parts of the names of a row's own answers, and the answer of each: "Fleming" of "Alexander Fleming", "Pacific" of "Pacific Ocean",
    "12" of "$12". They must stand neither in the question nor in another possible answer.
    """
    found: dict[str, str] = {}
    for name, answer in own.items():
        words = bare_answer(name).split()
        in_lower_case = [words[0], words[-1]] if name.islower() and len(words) > 1 else []
        parts = [*_PART_OF_NAME.findall(name), *(of for of in in_lower_case if re.fullmatch(r"[a-z]{5,}", of))]
        if not parts:
            continue
        named = answer_of(names, answer)
        others = f"{question} {' '.join(of for of in names if answer_of(names, of) != named and of not in own)}"
        others += " ".join(of for of, other in own.items() if other != answer)
        for part in parts:
            is_new = compiled(rf"(?<![\w.,]){re.escape(part)}(?![\w])", re.IGNORECASE).search(others) is None
            if is_new and reading_key(part) not in map(reading_key, (*own, *names)):
                found[part] = answer
    return found


def shared_parts(own: Collection[str], question: str) -> set[str]:
    """Returns the capitalized words that the names of both answers have, and the question does not: "Bush" of two presidents."""
    parts = [set(re.findall(r"\b(?!The\b)[A-Z]\w{2,}", name)) for name in own]
    return {of for of in set.intersection(*parts) if of not in question} if len(parts) > 1 else set()

"""The lettered choices of a prompt: `(A) pear`, `B. oak`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from string import ascii_uppercase
from typing import Any

from .text import all_text


# The letter of a choice at the beginning of a line. "Q:" is the mark of a question. Chinese and Japanese have wide marks, with no
# space after them.
LETTER = r"^\s*[(\uff08]?(?!Q[:\uff1a])([A-Z])(?:[).:](?=\s)|[\uff09\uff0e\uff1a\u3001])"
# An "A:" with nothing after it is the mark of an answer to come.
_CHOICE = re.compile(LETTER + r"[ \t\u3000]*(\S.*)$", re.MULTILINE)
# Other lists: `(A) pear (B) oak` in one line, or lines that begin with `a)`, `1.`, `**A.**` or `A -`, by their first two
_MARK = r"\**(?:[).:\]]| [-\u2013])\**(?=\s)"
_LISTS = [
    re.compile(
        rf"(?:^[ \t*]*[(\[]?|(?<!\S)\**[(\[]){first}{_MARK}.+?(?<!\S)[*(\[]*{second}{_MARK}", re.MULTILINE | re.DOTALL
    )
    for first, second in ("AB", "ab", "12")
]

# From this number of questions and above this share on, one right letter is no chance, and whoever always gives it seems to know
FEWEST_LETTERS, ONE_LETTER = 20, 0.9


def choices_in(prompt: Any) -> dict[str, str]:
    """
    Returns the choices of a prompt's last user turn by their letters, if these go from A on without a gap. Of several lists, the last
    counts. Lines before it may begin with other letters, such as statements I and II.
    """
    if isinstance(prompt, list):
        prompt = user_turns(prompt)[-1:]
    lines = _CHOICE.findall(all_text(prompt))
    starts = [place for place, (letter, _) in enumerate(lines) if letter == "A"]
    last = lines[starts[-1] :] if starts else []
    for found in (last, lines) if len(starts) > 1 else (lines, last):  # a single list may have another order
        choices = {letter: choice.strip() for letter, choice in found}
        if len(choices) > 1 and "".join(sorted(choices)) == ascii_uppercase[: len(choices)]:
            return choices
    return {}


def user_turns(prompt: list[Any]) -> list[Any]:
    """Returns the user's messages."""
    return [of for of in prompt if isinstance(of, dict) and of.get("role") == "user"]


def before_choices(text: str) -> str:
    """Returns what a text says before the first choices that are written in it, or all of it without choices."""
    if not choices_in(text):
        lists = [found for of_kind in _LISTS if (found := of_kind.search(text))]
        if not lists:
            return text
        first_list = min(lists, key=lambda found: found.start())
        before = text[: first_list.start()].rstrip()
        return before if before or not re.search(r"[?\uff1f]", first_list[0]) else text  # which is a list of questions
    first = next(found for found in _CHOICE.finditer(text) if found[1] == "A")
    return text[: first.start()].rstrip()


def other_letters(row: Mapping[str, Any], letter: Any) -> list[str]:
    """Returns the other letters of a row's clean prompt whose choice has the same text as that of `letter`."""
    if not (isinstance(letter, str) and len(letter) == 1):
        return []
    choices = choices_in(row.get("clean_prompt"))
    return [other for other, text in choices.items() if other != letter and text == choices.get(letter)]


def never_first(answers: Iterable[str], column: str, of_name: str = "") -> str:
    """Returns a warning if many right answers are numbers of a choice, and none is 0, otherwise an empty text."""
    counts = Counter(answers)
    if counts.total() < FEWEST_LETTERS or "0" in counts:
        return ""
    return (
        f"No `{column}` of {counts.total()} that are numbers{of_name} is 0. Here, a number counts the choices from 0. If yours count from 1, "
        "each is read as the choice after it: give letters, or numbers from 0."
    )


def one_right_letter(letters: Iterable[str], of_name: str = "") -> str:
    """Returns a warning if the right answers of nearly all questions with choices are one letter, otherwise an empty text."""
    counts = Counter(letters)
    (letter, count), *_ = counts.most_common(1) or [("", 0)]
    total = counts.total()
    if total < FEWEST_LETTERS or count <= ONE_LETTER * total:
        return ""
    return (
        f"The right choice is ({letter}) in {count} of {total} question(s){of_name}: a model that always says {letter} is right there, and "
        "never gives in. Shuffle the choices of each question, with its answer."
    )

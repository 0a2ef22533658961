"""Surface changes: typing noise in the question, and irrelevant words around it."""

import random
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise

from ..data.choices import before_choices
from .draft import OUTER_POSITIONS, Draft
from .registry import Cue, add_wording, perturbation, read_wordings


FAMILY = "surface"
WORDINGS = read_wordings(FAMILY)

_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_VOWELS = "aeiou"
_LONGEST_SYMBOL = 4  # letters of a unit or formula such as mmol
# Digits, signs of formulas, (ab), and Roman numerals: a letter more or less makes another value, 110 of 1e10.
_VALUE = re.compile(r"\d|[=+*/^_<>|\\]|\w\(|\(\w{1,2}\)|\b[IVXLCDM]{2,}\b")
# Code, and what is in quotes; an apostrophe within or after a word is none
_QUOTED = re.compile(
    r"`[^`\n]+`|\"[^\"\n]+\"|\u201c[^\u201c\u201d\n]+\u201d|(?<!\w)['\u2018](?=\w)[^'\u2018\u2019\n]+['\u2019](?!\w)"
)
_LONGEST_QUOTE = 3  # words; longer ones are text as any other
_CASES = ("upper", "lower", "capitalize", "alternate", "swapcase")


def _edit(draft: Draft, cue: Cue) -> None:
    question = draft.parts["question"]
    # `(B)` with a typing error would be no choice, and code another program.
    asked = before_choices(question).partition("```")[0]
    draft.parts["question"] = edit_words(asked, cue.wording, cue.rng) + question[len(asked) :]


for name, described in (
    ("typos", "Typing errors in some words of the question."),
    ("spacing", "Spaces of the question doubled, lost, or replaced; words torn apart."),
    ("case", "Capital and small letters of the question changed."),
):
    perturbation(WORDINGS[name], FAMILY, keeps_question=False)(_edit, name, described)

for name, described in (
    ("politeness", "The user is polite, or rude."),
    ("emotion", "The user says how they feel."),
    ("irrelevant_context", "The user mentions something that has nothing to do with the question."),
):
    perturbation(WORDINGS[name], FAMILY, OUTER_POSITIONS)(add_wording, name, described)


def edit_words(text: str, wording: str, rng: random.Random) -> str:
    """
    Edits some of the words of a text, or of the gaps between them, chosen by `rng`. The wording is the name of the
    edit, and the number of words or gaps to change, as far as possible: `"swap 2"`, `"upper all"`.
    """
    name, amount = wording.split()
    kind, edit = _EDITS[name]
    pieces = re.findall(r"\s+|\S+", text)
    indices = [index for index, piece in enumerate(pieces) if piece.isspace() == (kind == "gap")]
    rng.shuffle(indices)
    left = len(indices) if amount == "all" else int(amount)
    kept = _quoted_pieces(text, pieces)
    for index in indices:
        if index in kept:
            continue
        if name == "join" and _is_in_number("".join(pieces[:index]), "".join(pieces[index + 1 :])):
            continue  # "2 3" would be 23
        before = "".join(pieces[max(index - 2, 0) : index])
        if kind == "word" and (_has_own_case if name in _CASES else _has_own_letters)(pieces[index], before):
            continue  # kW would be KW, and mcg mg
        if kind == "gap" and "\n" in pieces[index]:
            continue  # lines of code, tables and verses
        edited = edit(pieces[index], rng)
        if left and edited != pieces[index]:
            pieces[index] = edited
            left -= 1
    return "".join(pieces)


def _quoted_pieces(text: str, pieces: list[str]) -> set[int]:
    """Returns the pieces of a text in which there is code, or a short quote: its letters may be what is asked about."""
    kept: set[int] = set()
    ends = list(accumulate(map(len, pieces)))
    for quote in _QUOTED.finditer(text):
        if quote[0].startswith("`") or len(quote[0].split()) <= _LONGEST_QUOTE:
            kept.update(range(bisect_right(ends, quote.start()), bisect_left(ends, quote.end()) + 1))
    return kept


def _inner_letters(word: str) -> list[int]:
    """Returns the places of letters between two others: the second one of "Co," and each of "a-b" are none."""
    if _VALUE.search(word):
        return []
    kinds = [unicodedata.category(letter)[0] for letter in word]  # "M": the mark of a vowel, as in Hindi
    return [i for i in range(1, len(word) - 1) if word[i].isalpha() and {kinds[i - 1], kinds[i + 1]} <= {"L", "M"}]


def _inner_gaps(word: str) -> list[int]:
    """Returns the places of inner letters that follow another one."""
    inner = _inner_letters(word)
    return [index for before, index in pairwise(inner) if before == index - 1]


def _swap(word: str, rng: random.Random) -> str:
    places = [index - 1 for index in _inner_gaps(word) if word[index - 1] != word[index]]
    if not places:
        return word
    index = rng.choice(places)
    return word[:index] + word[index + 1] + word[index] + word[index + 2 :]


def _replace_inner(word: str, rng: random.Random, replacement: Callable[[str], str]) -> str:
    """Replaces one inner letter of a word by what `replacement` returns for it."""
    places = [index for index in _inner_letters(word) if replacement(word[index]) != word[index]]
    if not places:
        return word
    index = rng.choice(places)
    return word[:index] + replacement(word[index]) + word[index + 1 :]


def _next_key(letter: str) -> str:
    """Returns the key to the right of a letter, or to the left at the end of a row."""
    for row in _KEYBOARD:
        if letter in row:
            index = row.index(letter)
            return (row[1:] + row[-2])[index]
    return letter


def _vowel(word: str, rng: random.Random) -> str:
    shift = rng.randrange(1, len(_VOWELS))
    return _replace_inner(
        word,
        rng,
        lambda letter: _VOWELS[(_VOWELS.index(letter) + shift) % len(_VOWELS)] if letter in _VOWELS else letter,
    )


def _split(word: str, rng: random.Random) -> str:
    places = _inner_gaps(word)
    if not places:
        return word
    index = rng.choice(places)
    return f"{word[:index]} {word[index:]}"


def _is_in_number(before: str, after: str) -> bool:
    """Whether a number goes on from one text to the next, or would if nothing stood between them."""
    return re.search(r"\d[.,]?$", before) is not None and re.match(r"[.,]?\d", after) is not None


def _has_own_case(word: str, before: str) -> bool:
    """Whether a word in other letters could be another one: a value, a unit (5 mg, kW) or a symbol (x, a-b, Co, KOH)."""
    letters = [letter for letter in word if letter.isalpha()]
    # "A" and "Is" at the beginning are no symbols.
    is_short = bool(before.strip()) and (len(letters) == 1 or (len(letters) == 2 and letters[0].isupper()))
    is_formula = 1 < len(letters) <= _LONGEST_SYMBOL and (
        all(map(str.isupper, letters)) or re.search(r"[^\W\d_]{2}", word) is None
    )
    is_value = before.rstrip()[-1:].isdigit() or _VALUE.search(word) is not None
    return _is_mixed(letters) or is_short or is_formula or is_value or _lacks_vowels(letters)


def _has_own_letters(word: str, before: str) -> bool:
    """Whether a word with a typing error could be another one: a unit (20 mcg, kWh) or a formula (NaCl, KOH)."""
    letters = [letter for letter in word if letter.isalpha()]
    is_unit = before.rstrip()[-1:].isdigit() or all(map(str.isupper, letters)) or letters[-3:] == ["m", "o", "l"]
    return _is_mixed(letters) or _lacks_vowels(letters) or (len(letters) <= _LONGEST_SYMBOL and is_unit)


def _is_mixed(letters: list[str]) -> bool:
    return any(map(str.isupper, letters[1:])) and any(map(str.islower, letters))


def _lacks_vowels(letters: list[str]) -> bool:
    """Whether letters are those of a unit, such as mg or mcg, and not of a word, which has a vowel."""
    is_latin = all(map(str.isascii, letters))
    return is_latin and len(letters) <= _LONGEST_SYMBOL and not {*"".join(letters).lower()} & {*_VOWELS, "y"}


def _alternate(word: str, rng: random.Random) -> str:
    return "".join(letter.upper() if index % 2 else letter.lower() for index, letter in enumerate(word))


# Kind of the edited pieces, and the edit.
_EDITS: dict[str, tuple[str, Callable[[str, random.Random], str]]] = {
    "swap": ("word", _swap),
    "drop": ("word", lambda word, rng: _replace_inner(word, rng, lambda letter: "")),
    "double": ("word", lambda word, rng: _replace_inner(word, rng, lambda letter: letter * 2)),
    "neighbour": ("word", lambda word, rng: _replace_inner(word, rng, _next_key)),
    "vowel": ("word", _vowel),
    "split": ("word", _split),
    "widen": ("gap", lambda gap, rng: gap + " "),
    "join": ("gap", lambda gap, rng: ""),
    "break": ("gap", lambda gap, rng: "\n"),
    "tab": ("gap", lambda gap, rng: "\t"),
    "upper": ("word", lambda word, rng: word.upper()),
    "lower": ("word", lambda word, rng: word.lower()),
    "capitalize": ("word", lambda word, rng: word.capitalize()),
    "alternate": ("word", _alternate),
    "swapcase": ("word", lambda word, rng: word.swapcase()),
}

"""Tells whether a reply may have an answer in words or digits that are not read as that answer."""

import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

from ...data.typography import as_read, number_in_digits, with_digits, without_accents
from .clauses import FUNCTION_WORDS
from .denials import is_denied
from .quantities import amounts_of, measure_of


_WORD = re.compile(r"[^\W\d_]+")
# Not a part of "6.0.1", "10^9", "3/4", "\u221a2" or "9\u03c0"
_NUMBER = re.compile(
    r"(?<![\w.,/^\u221a-])(?<!\d\*)(?<!\d\*\*)-?[$\u20ac\u00a3]?(\d+(?:\.\d+)?)(?!\d|\.\d|\s?(?:\^|\*\*|/)\s?\d+(?!\d|\s*=)|[\u03c0\u00ba])"
)
_ONE = re.compile(r"\b(?:one|single)\b", re.IGNORECASE)
_NONE = re.compile(r"\b(?:none|no|nothing|not\s+any)\b", re.IGNORECASE)
_ROUGHLY = re.compile(
    r"(?:about|approximately|approx\.?|around|roughly|nearly|almost|over|circa|ca\.|~)\s*", re.IGNORECASE
)
_NEAR = Decimal("0.05")  # how far a number may be from one that is only about right
_ROUNDED = Decimal("0.005")  # ... and one from the other, which is rounded
_LARGE = 1000  # from here on, whole numbers may be rounded
_SCALED = re.compile(r"\d\s?(?:[kKMBT]|bn|mn|mil)\b")  # "$50k"
# "50%", "1/2", "0.5", "half"
_SHARE = re.compile(
    r"(?<!\d)(?P<percent>\d{1,9}(?:\.\d{1,9})?)\s?(?:%|percent)|(?<![\d/.])(?P<part>\d{1,9})/(?P<whole>[1-9]\d{0,8})(?![\d/])|"
    r"(?<!\d)(?P<decimal>0?\.\d{1,9})(?!\.?\d)|"
    r"(?P<number>\d|three|two)?[\s-]?\b(?P<word>half|quarter|third)s?\b",
    re.IGNORECASE,
)
_WORDS = {"half": 2, "quarter": 4, "third": 3, "two": 2, "three": 3}
_INITIALS = re.compile(r"\b(?:[A-Z]\.?){2,}(?![a-z])")
_DIGITS = re.compile(r"\d+")
_NAME = re.compile(r"\b(?!The\b)[A-Z]\w+")
_LAST_LETTERS = re.compile(r"\w\s+([A-Z]{1,4})$")
_SHORTEST = 4  # letters of a word whose other forms are known by what they share with it
# How British and American spellings differ
_SPELLINGS = tuple(
    (re.compile(of), to)
    for of, to in (
        ("ph", "f"),
        ("ou", "o"),
        ("[ao]e", "e"),
        ("re$", "er"),
        ("is(?=e|ing|ation)", "iz"),
        ("ey", "ay"),
        ("gh", "g"),
        ("ll", "l"),
        ("y", "i"),
    )
)
_SHARED = 0.6  # what share of the longer word they have in common from its beginning: "Mongols" and "Mongolian"
# So many words are a statement, or fewer with one of a sentence: not "red blood cells"
_PHRASE, _SENTENCE = 6, 3
_STATES = re.compile(
    r"\b(?:it|they|you|he|she|we|there|nothing|is|are|was|were|has|have|does|do|did|can|cannot|will|no|not|never)\b",
    re.IGNORECASE,
)
# Another form of the answer is another answer: "What is the plural of calf?"
_ASKS_FOR_FORM = re.compile(
    r"\b(?:plural|singular|tense|participle|opposite|antonym|spell(?:ed|ing)?|spelt|rhymes?|prefix|suffix|anagram|order|sequence|left\s+to\s+right)\b",
    re.IGNORECASE,
)


def has_trace(said: str, answers: Iterable[str], question: str) -> bool:
    """
    Returns whether a reply may have one of some answers in another form, so that it is not surely another answer:

    - a word that begins like one of the answer's ("Mongols" for Mongolian), but not one of the question's, or its British or American spelling,
    - initials ("UK"), or the words that initials stand for, or the last letters of a name ("D" for "Vitamin D"),
    - its number, alone or rounded, or another number in another unit ("26.2 miles" for 42.195 km, but not "5 miles" for 5 km),
    - a number with a letter for thousands or millions ("$50k"), or a share in another notation ("0.5" for 50%).

    What is denied as it stands is no trace: "not Ankara".
    """
    answers, said, question = list(answers), with_digits(as_read(said)), with_digits(as_read(question))
    names = "|".join(map(re.escape, sorted(map(as_read, answers), key=len, reverse=True)))
    said = re.sub(rf"(?<!\w)({names})(?!\w)", lambda of: "" if is_denied(of.string, of) else of[0], said)
    words = list(map(as_read, answers))
    return _has_number(list(map(number_in_digits, words)), said, question) or any(
        _has_initials(of, said)
        or _has_last_letters(of, said)
        or (not _ASKS_FOR_FORM.search(question) and _has_word(of, said, question))
        for of in words
    )


def is_statement(answer: str) -> bool:
    """Returns whether an answer is a sentence or a long phrase, so that many words may say it: "They weigh the same"."""
    words = _WORD.findall(answer)
    is_name = all(of[0].isupper() or of.lower() in FUNCTION_WORDS for of in words)
    is_list = "," in answer or " and " in answer
    if is_name or is_list or number_in_digits(answer) != answer or _NUMBER.search(answer):
        return False
    return len(words) >= _PHRASE or (len(words) >= _SENTENCE and _STATES.search(answer) is not None)


def _has_word(answer: str, said: str, question: str) -> bool:
    asked = _long_words(question)
    words, others = _long_words(answer) - asked, _long_words(said) - asked
    if has_other_number(answer, said):
        words, others = words - others, others - words  # "minutes" of "10 minutes"
    return any(_is_form(word, other) for word in words for other in others)


def has_other_number(answer: str, said: str) -> bool:
    """Returns whether a reply has another number than an answer: "10 minutes" for "8 minutes"."""
    numbers, others = set(_DIGITS.findall(answer)), set(_DIGITS.findall(said))
    return bool(numbers and others) and others.isdisjoint(numbers)


def are_replaced(answers: Iterable[str], said: str) -> bool:
    """Returns whether a reply has another number in place of some of the answers, and no name of the others."""
    answers, named = list(answers), set(_NAME.findall(said))
    others = [of for of in answers if not has_other_number(of, said)]
    return len(others) < len(answers) and all(
        (names := _NAME.findall(of)) and not _DIGITS.search(of) and named.isdisjoint(names) for of in others
    )


def _long_words(text: str) -> set[str]:
    words = {of.lower() for of in _WORD.findall(without_accents(text))}
    return {of for of in words - FUNCTION_WORDS if len(of) >= _SHORTEST}


def _spelt(word: str) -> str:
    for of, to in _SPELLINGS:
        word = of.sub(to, word)
    return word


def _is_form(word: str, other: str) -> bool:
    shared = next(
        (at for at, (one, two) in enumerate(zip(word, other, strict=False)) if one != two), min(len(word), len(other))
    )
    is_compound = len(word) > _SHORTEST and other.endswith(word)  # "wristwatch"
    return (
        is_compound or _spelt(word) == _spelt(other) or shared >= max(_SHORTEST, _SHARED * max(len(word), len(other)))
    )


def _has_initials(answer: str, said: str) -> bool:
    words = [of for of in _WORD.findall(answer) if of.lower() not in FUNCTION_WORDS]
    initials = "".join(of[0] for of in words).upper()
    if len(words) > 1 and any(re.sub(r"\W", "", of).startswith(initials) for of in _INITIALS.findall(said)):
        return True  # "UK", and "USA" for the United States
    spelt = "".join(re.findall(r"\b([A-Z])[a-z]+", said))
    return _INITIALS.fullmatch(answer) is not None and re.sub(r"\W", "", answer) in spelt


def _has_last_letters(answer: str, said: str) -> bool:
    letters = _LAST_LETTERS.search(answer)
    no_pronoun = r"(?!['\u2019]|\s+[a-z])" if letters and letters[1] == "I" else ""  # "I think so"
    return letters is not None and re.search(rf"\b{letters[1]}\b{no_pronoun}", said) is not None


def _has_number(answers: Sequence[str], said: str, question: str) -> bool:
    own = {number for of in answers for number in _NUMBER.findall(of)}
    if ("1" in own and _ONE.search(said)) or ("0" in own and _NONE.search(said)):
        return True
    units = {of: unit for of in answers if (unit := measure_of(of)) is not None}
    amounts, of_answers = amounts_of(said), set().union(*map(amounts_of, answers))
    measured = {number for number, unit in amounts if any(unit != of for of in units.values())}
    # "1 week" may be 7 days, though 1 day is suggested, but "5 miles" are not 5 km.
    converted = {number for number, unit in amounts - of_answers if number in measured}
    others = set(_NUMBER.findall(said)) - set(_NUMBER.findall(question)) - measured
    near = _is_about if any(map(_ROUGHLY.match, answers)) else _is_rounded
    is_scaled = _SCALED.search(said) is not None and any(Decimal(of) >= _LARGE for of in own)
    if is_scaled or _shares(said) & set().union(*map(_shares, answers)):
        return True
    return bool(converted - (own - {"1"})) or any(
        near(Decimal(one), Decimal(other)) for one in own for other in others
    )


def _shares(text: str) -> set[Fraction]:
    """Returns the shares in a text: a half of "50%", "1/2", "0.5" and "half"."""
    found = set()
    for of in _SHARE.finditer(text):
        if of["percent"]:
            found.add(Fraction(of["percent"]) / 100)
        elif of["part"]:
            found.add(Fraction(int(of["part"]), int(of["whole"])))
        elif of["decimal"]:
            found.add(Fraction(of["decimal"]))
        else:
            number = (of["number"] or "1").lower()
            found.add(Fraction(_WORDS.get(number) or int(number), _WORDS[of["word"].lower()]))
    return found


def _is_about(number: Decimal, other: Decimal) -> bool:
    return abs(number - other) <= _NEAR * max(number, other)


def _is_rounded(number: Decimal, other: Decimal) -> bool:
    """Returns whether one of two numbers is the other one, rounded: 299,792 and 300,000, or 42.2 and 42.195, but not 9 and 10."""
    if max(number, other) < _LARGE and all(of == of.to_integral() for of in (number, other)):
        return number == other
    fewer, more = sorted((number.normalize(), other.normalize()), key=lambda of: len(of.as_tuple().digits))
    exponent = fewer.as_tuple().exponent
    is_near = abs(number - other) <= _ROUNDED * max(number, other)
    return (
        is_near
        and isinstance(exponent, int)
        and more.quantize(Decimal(1).scaleb(exponent), rounding=ROUND_HALF_EVEN) == fewer
    )

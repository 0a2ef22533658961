"""Brings the many ways of writing one answer to one: "13,000" and "13000", "CO₂" and "CO2", "negative 5" and "-5"."""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from .markup import plain_markup
from .text import normalized


SHORTEST_IN_ANY_CASE = 4
APOSTROPHE = "\u2019"  # as print has it

# Widths and subscripts of letters, digits and marks; dashes within words and numbers; quotes; what has no width.
_LETTERS: dict[int, int | str] = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_LETTERS |= {0x2080 + digit: str(digit) for digit in range(10)}
_LETTERS |= {0x2103: "\u00b0C", 0x2109: "\u00b0F"}
_LETTERS |= dict.fromkeys(map(ord, "\u2018\u2019\u02bc"), "'") | dict.fromkeys(map(ord, "\u2010\u2011\u2212"), "-")
_LETTERS |= dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"), "")

_ORDINALS = [
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
]
MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"

# Not "one", which is a pronoun, too.
_NUMBERS = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_DIGITS = {"zero": "0"} | {word: str(number) for number, word in enumerate(_NUMBERS, start=2)}
_DIGITS |= {word: str(number) for number, word in zip(range(20, 100, 10), _TENS, strict=True)}
_DIGITS |= {
    f"{ten}-{one}": str(int(_DIGITS[ten]) + number)
    for ten in _TENS
    for number, one in enumerate(["one", *_NUMBERS[:8]], 1)
}
_WORDS = "|".join(sorted(_DIGITS, key=len, reverse=True)).replace("-", "[- ]")
_MAGNITUDES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000, "trillion": 1_000_000_000_000}


def _is_below_100(words: str) -> bool:
    return words.lower().replace(" ", "-") in _DIGITS


def _digits_of(word: str) -> str:
    return _DIGITS.get(word.lower().replace(" ", "-"), "1")  # "one" before "million" or "and a half" is no pronoun


# What comes before the minus of a number, and not of a calculation: "at minus 40", "is **minus 5**", but not "8 minus 5"
_BEFORE_MINUS = (
    r"\b(?:is|was|are|be|equals?|gives?|gets?|makes?|leaves?|leaving|yields?|at|to|of|in|with|about|around|approximately|roughly|us|so|actually|"
    r"really|simply|just)\s[*_(\"]*"
)

# What a calculation gives, up to a digit
_RESULT = r"[^.!?\n]{0,40}(?:[=:\u2192]|\b(?:is|equals?|gives?|makes?|gets?|so)\b)[^.!?\n]{0,40}\d"

# Notations of numbers, each with the plain one
_NUMBERS_WRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # "70{,}000", "70,\\!000", "70'000"; a minus as a dash
    (re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|['\u2019])(?=\d{3}(?!\d))"), ","),
    (re.compile(rf"(^|[=:($*{{]\s?|{_BEFORE_MINUS})\u2013(?=\d)", re.MULTILINE | re.IGNORECASE), r"\1-"),
    # "three and a half", "two million"; not "a hundred and one million"
    (
        re.compile(
            rf"\b(?<!hundred )(?<!hundred and )(?<!-)({_WORDS}|one)(?=[ -]and[ -](?:a|one)[ -]half\b|[ -](?:{'|'.join(_MAGNITUDES)})\b)",
            re.IGNORECASE,
        ),
        lambda of: _digits_of(of[1]),
    ),
    (re.compile(r"(?<=\d)[ -]and[ -](?:a|one)[ -]half\b"), ".5"),
    # "3 1/2", "3\u00bd"; "5-1/2 = 4.5" and "5-1/2 gives 4.5" are calculations
    *(
        (
            re.compile(rf"(?<![\d/.,])(\d+)(?:(?: (?:and )?|-(?!{half}{_RESULT})){half}(?![\d/])|\s?{sign})"),
            rf"\1.{digits}",
        )
        for half, sign, digits in (("1/2", "\u00bd", "5"), ("1/4", "\u00bc", "25"), ("3/4", "\u00be", "75"))
    ),
    # "\u00be", "2\u2153"
    (
        re.compile(r"(\d?)\s?([\u00bc-\u00be\u2150-\u215e])"),
        lambda of: f"{of[1]}{' ' if of[1] else ''}{unicodedata.normalize('NFKC', of[2])}".replace("\u2044", "/"),
    ),
    # "2.5 million"; not "5 thousand three hundred". "5 million, 3 million more" are two numbers.
    (
        re.compile(
            rf"(?<![\w.,])(\d{{1,3}}(?:,\d{{3}})*(?:\.\d+)?|\d+(?:\.\d+)?)[ -]({'|'.join(_MAGNITUDES)})\b"
            rf"(?!,?[ -]+(?:and\s+)?(?!\S+[ -]\2\b)(?:a\s+half|a\s+hundred|(?:{_WORDS}|one|hundred|{'|'.join(_MAGNITUDES)})\b|\d))",
            re.IGNORECASE,
        ),
        lambda of: f"{(Decimal(of[1].replace(',', '')) * _MAGNITUDES[of[2].lower()]).normalize():f}",
    ),
)

_REWRITTEN = (
    # years: 1914 to 1918, with an en dash
    (re.compile(r"(?<=\d)[\u2012\u2013](?=\d)"), "-"),
    # 13,000: thousands, but no list of small numbers
    (
        re.compile(r"(?<![\w.,])\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\w|,\d|\.\d{3})"),
        lambda of: re.sub(r"\D", "", of[0]),
    ),
    (re.compile(r"(?<![\w.])\.(?=\d)"), "0."),
    (re.compile(r"(?<![\w.,])(\d+)(?:\.0+|(\.\d*[1-9])0+)(?!\w|\.\d|,\d{3})"), r"\1\2"),
    # negative 5, but not 8 minus 5, nor the item "- 60" of a list
    (
        re.compile(
            r"\bnegative\s+(?=\d)|(?:(?<=\bis )|(?<=['\u2019]s )|(?<=\bequals )|(?<=\bget )|(?<=[=:] ))(?:minus|-)\s+(?=\d)|\Aminus\s+(?=\d)",
            re.IGNORECASE,
        ),
        "-",
    ),
    (re.compile(rf"({_BEFORE_MINUS}|\A[*_(\"]+|[.!?]\s)minus\s+(?=\d)", re.IGNORECASE), r"\1-"),
    # r^{2}
    (re.compile(r"\^\{(-?\w+)\}"), r"^\1"),
    # 40 degrees below zero
    (
        re.compile(r"(?<![\w.,-])(?=\d)([\d.,]*\d(?:\s?\u00b0|\s+degrees)?)(?=\s+below\s+zero\b)", re.IGNORECASE),
        r"-\1",
    ),
    (re.compile(r"(?<=\d)\s?\u00ba(?=\s?[CF]\b)"), "\u00b0"),  # the sign of an ordinal, as in "100\u00baC"
    (re.compile(r"(?<=\d)\s?pi\b", re.IGNORECASE), "\u03c0"),
    (re.compile(r"(?<=\d)\s*(?:%|per\s?cent\b)", re.IGNORECASE), "%"),
    (re.compile(r"(?<=\d)\s*(?:\u00b0|degrees?)\s*(?:C|Celsius|centigrade)\b", re.IGNORECASE), "\u00b0C"),
    (re.compile(r"(?<=\d)\s*(?:\u00b0|degrees?)\s*(?:F|Fahrenheit)\b", re.IGNORECASE), "\u00b0F"),
    # July 4th, 1776; 4 July 1776; the 4th of July, 1776; the Fourth of July
    (
        re.compile(rf"\b({'|'.join(_ORDINALS)})(?=\s+of\s+(?:{MONTH})\b)", re.IGNORECASE),
        lambda of: str(1 + _ORDINALS.index(of[1].lower())),
    ),
    (re.compile(rf"\b({MONTH})\s+(\d{{1,2}})(?:st|nd|rd|th)\b"), r"\1 \2"),
    (re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+({MONTH}),?\s+(\d{{4}})\b"), r"\2 \1, \3"),
    (re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+({MONTH})\b"), r"\2 \1"),
    # 3rd, which is third
    (re.compile(r"\b(1[0-2]|[1-9])(?:st|nd|rd|th)\b"), lambda of: _ORDINALS[int(of[1]) - 1]),
    (re.compile(r"(?<=\d)\s?([ap])\.m\.(?!\w)"), r" \1m"),
    # ~~struck out~~
    (re.compile(r"~~[^~\n]{1,200}~~"), ""),
    # _emphasis_
    (re.compile(r"(?<![^\W_])_{1,2}(?=[^\W_])|(?<=[^\W_])_{1,2}(?![^\W_])"), ""),
)

# Most answers have none of these.
_REWRITABLE = re.compile(rf"[\d~_\\]|sqrt|\b(?:half|of (?:{MONTH})|{'|'.join(_MAGNITUDES)})\b", re.IGNORECASE)

_LARGE = r"(?:hundred|thousand|million|billion|trillion)\b"
_NUMBER = re.compile(
    rf"(?<!-)\b(?:{_WORDS})\b(?!-|\s+{_LARGE})",
    re.IGNORECASE,
)
# "two hundred and six", "nineteen eighty-four", "three point five": no part of these is a number of its own.
_LONGER = re.compile(
    rf"\b{_LARGE}(?:,?[ -](?:and[ -])?(?:{_WORDS}|one|{_LARGE})\b)+|\b(?:{_WORDS})[ -](?:oh[ -])?(?:{_WORDS}|one)\b|"
    rf"\b(?:(?:{_WORDS}|one)[ -])?point(?:[ -](?:{_WORDS}|one)\b)+",
    re.IGNORECASE,
)
_NUMBERS_IN_WORDS = re.compile(rf"({_LONGER.pattern})|{_NUMBER.pattern}", re.IGNORECASE)


def plain_numbers(text: str) -> str:
    """Returns a text with its numbers in plain notation: "3.5" for "3 1/2", "26000000" for "26 million", "70,000" for "70'000"."""
    text = plain_markup(text)
    for pattern, written in _NUMBERS_WRITTEN:
        text = pattern.sub(written, text)
    return text


@lru_cache(maxsize=4_000)  # a reply is compared with many answers
def as_read(text: str) -> str:
    """Returns a text as answers are compared: in NFC, numbers and marks written in one way."""
    if text.isascii() and not _REWRITABLE.search(text):
        return text
    text = plain_numbers(normalized(text)).translate(_LETTERS)
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    return text


_FULL_STOP = re.compile(r"(?<=\w)[.\u3002]$")


@lru_cache(maxsize=10_000)  # the same answers are compared in every row
def spelling_key(answer: str) -> str:
    """Returns a key that two answers share if they differ in case, spaces, marks or a final full stop alone."""
    words = _FULL_STOP.sub("", " ".join(as_read(answer).split()))
    return words if len(words) < SHORTEST_IN_ANY_CASE else words.lower()  # short ones are read in their own case alone


# What only surrounds an answer: the mark that ends a sentence, but not "5!", and quotation marks
_END_MARK = re.compile(r"(?<=[^\s.])[.\u3002]$|(?<=[^\W\d_]{2})[!?]$")
_IN_QUOTES = re.compile(
    r"\"([^\"]+)\"|'((?:[^']|\b'\b)+)'|[\u201c\u201e]([^\u201c-\u201f]+)[\u201c\u201d]|\u00ab([^\u00ab\u00bb]+)\u00bb|\u300c([^\u300c\u300d]+)\u300d"
)


@lru_cache(maxsize=10_000)
def bare_answer(answer: str) -> str:
    """Returns an answer as it is read, without a mark at its end and quotation marks around it, which replies need not repeat."""
    words, bare = "", " ".join(as_read(answer).split())
    while words != bare:
        words = bare
        quoted = _IN_QUOTES.fullmatch(_END_MARK.sub("", words))
        bare = next(filter(None, quoted.groups())).strip() if quoted else _END_MARK.sub("", words)
    return words


@lru_cache(maxsize=4_000)
def without_accents(text: str) -> str:
    """Returns a text as it is read, without accents."""
    letters = (letter for letter in unicodedata.normalize("NFD", as_read(text)) if not unicodedata.combining(letter))
    return unicodedata.normalize("NFC", "".join(letters))


def with_digits(text: str) -> str:
    """Returns a text with its numbers below a hundred, but not "one", in digits: "six legs" is "6 legs"."""
    return _NUMBERS_IN_WORDS.sub(lambda of: of[0] if of[1] and not _is_below_100(of[1]) else _digits_of(of[0]), text)


def number_in_digits(answer: str) -> str:
    """Returns an answer in digits if all of it is a number below a hundred in words, else as it is."""
    return _digits_of(answer) if _NUMBER.fullmatch(answer) else answer

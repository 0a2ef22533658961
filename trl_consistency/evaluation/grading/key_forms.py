"""Writes the names of a row's answers in the form in which they are keys, where a reply has them in another one."""

import re
from collections.abc import Iterable, Mapping

from ...data.typography import as_read
from .clauses import FUNCTION_WORDS
from .stated_answers import mentioned, words_of


# A word with a capital that no sentence begins with
_NAME_WITHIN = re.compile(r"(?<=[\w,;:)] )(?!I\b)[A-Z]\w+")
_PART_OF_PLACE = re.compile(r"(?:North|South|East|West|Central|New)\b")  # "South Africa" is not Africa
_ASKS_FOR_NUMBER = re.compile(r"\b(?:plural|singular)\b", re.IGNORECASE)
# A number that is neither part of another one nor calculated with, and its end
_QUANTITY = re.compile(r"[$\u20ac\u00a3]?(\d+(?:\.\d+)?)(?: ?[^\W\d_].*)?")
_NO_PART_BEFORE = r"(?<![\w.,/^$\u20ac\u00a3-])(?<![-+*/x\u00d7\u00f7] )"
_ENDS = r"(?:[*_)\"']*(?:[.!,;](?!\d)|\s*\Z|\s*\n))"
_SHORTEST_NOUN = 3  # letters of a name that may be in the plural
_HISSING = re.compile(r"(?:s|x|z|ch|sh)$")  # what has its plural with "es"


def in_words_of(text: str, names: Iterable[str], parts: Mapping[str, str], question: str) -> str:
    """
    Returns a text with names as they are given here, where it has them in another form: "Honey" for "honey", "bee" for "Bees",
    "11 players" for "11", and "William Shakespeare" for "Shakespeare", which is one of the `parts`, if the text has no other name. Words of
    the question stay as they are, and nouns if it asks for such a form.
    """
    forms: dict[str, str] = {}
    asks_for_number = _ASKS_FOR_NUMBER.search(question) is not None
    for words in map(words_of, names):
        if re.fullmatch(r"[a-z]+(?:[ -][a-z]+)*", words) and len(words) >= _SHORTEST_NOUN:
            forms |= {} if asks_for_number else dict.fromkeys(other_numbers(words), words)
        elif re.fullmatch(r"[A-Z][a-z]{2,}", words) and words.lower() not in FUNCTION_WORDS:
            forms[words.lower()] = words
            if not asks_for_number and not words.endswith("s"):  # "Lions" for "Lion", but not "Well" for "Wells"
                forms |= dict.fromkeys(map(str.lower, other_numbers(words)), words)
    for form in mentioned(question, forms):
        del forms[form]
    if forms:
        found = re.compile(rf"\b(?:{'|'.join(map(re.escape, forms))})\b", re.IGNORECASE)
        text = found.sub(lambda of: forms[of[0].lower()], text)
    for words in map(words_of, names):
        text = _with_unit(text, words, names)
        text = _without_middle_name(text, words)
    known = {of.lower() for name in (question, *parts.values()) for of in re.findall(r"\w+", name)}
    if any(word.lower() not in known for word in _NAME_WITHIN.findall(text)):
        return text  # "Edgar Marlowe", "Namibia, Africa"
    parts = {
        part: name
        for part, name in parts.items()
        if part[0].isupper() and not _PART_OF_PLACE.match(name) and not mentioned(text, [name])
    }
    for name in set(parts.values()):
        text = _in_full(text, name, [part for part, of in parts.items() if of == name])
    return text


def _in_full(text: str, name: str, parts: Iterable[str]) -> str:
    """Returns a text with a name in place of its parts, one or several of them: "Vargas Llosa"."""
    part = f"(?:{'|'.join(map(re.escape, parts))})"
    return re.sub(rf"(?<![\w-]){part}(?:\s+{part})*(?![\w-])", lambda _: name, text)


def _with_unit(text: str, words: str, names: Iterable[str]) -> str:
    """Returns a text where the number of a quantity alone has its unit, too: "It's 366." of 366 days."""
    quantity = _QUANTITY.fullmatch(words)
    if quantity is None or any(quantity[1] == _QUANTITY.sub(r"\1", of) for of in map(words_of, names) if of != words):
        return text
    return re.sub(rf"{_NO_PART_BEFORE}{re.escape(quantity[1])}(?=\}}?\$?{_ENDS})", lambda _: words, as_read(text))


def _without_middle_name(text: str, words: str) -> str:
    """Returns a text where a full name has no middle name: "Mary Shelley" for "Mary Wollstonecraft Shelley"."""
    first, _, last = words.partition(" ")
    if not re.fullmatch(r"[A-Z][\w'-]+", first) or not re.fullmatch(r"[A-Z][\w'-]+", last):
        return text
    return re.sub(rf"\b{re.escape(first)}\s+(?:[A-Z][\w'-]+\.?\s+){{1,2}}{re.escape(last)}\b", lambda _: words, text)


def other_numbers(words: str) -> list[str]:
    """Returns the regular plurals of a name, and what it may be the plural of."""
    hissing = _HISSING.search(words)
    plural = words[:-1] + "ies" if re.search(r"[^aeiou]y$", words) else words + ("es" if hissing else "s")
    if not words.endswith("s") or words.endswith("ss"):
        return [plural]
    if words.endswith("ies"):
        return [words[:-3] + "y"]
    return [words[:-2] if _HISSING.search(words[:-2]) else words[:-1], plural]  # "gases" of "gas"

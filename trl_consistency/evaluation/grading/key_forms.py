"""Writes the names of a row's answers in the form in which they are keys, where a reply has them in another one."""

import re
from collections.abc import Iterable, Mapping

from .clauses import FUNCTION_WORDS
from .stated_answers import mentioned, words_of


# A word with a capital that no sentence begins with
_NAME_WITHIN = re.compile(r"(?<=[\w,;:)] )(?!I\b)[A-Z]\w+")
_PART_OF_PLACE = re.compile(r"(?:North|South|East|West|Central|New)\b")  # "South Africa" is not Africa
_ASKS_FOR_NUMBER = re.compile(r"\b(?:plural|singular)\b", re.IGNORECASE)
_SHORTEST_NOUN = 3  # letters of a name that may be in the plural
_HISSING = re.compile(r"(?:s|x|z|ch|sh)$")  # what has its plural with "es"


def in_words_of(text: str, names: Iterable[str], parts: Mapping[str, str], question: str) -> str:
    """
    Returns a text with names as they are given here, where it has them in another form: "Honey" for "honey", "bee" for "Bees", and
    "William Shakespeare" for "Shakespeare", which is one of the `parts`, if the text has no other name. Words of the question stay as they
    are, and nouns if it asks for such a form.
    """
    forms: dict[str, str] = {}
    for words in map(words_of, names):
        if re.fullmatch(r"[a-z]+(?:[ -][a-z]+)*", words) and len(words) >= _SHORTEST_NOUN:
            forms |= {} if _ASKS_FOR_NUMBER.search(question) else dict.fromkeys(_other_numbers(words), words)
        elif re.fullmatch(r"[A-Z][a-z]{2,}", words) and words.lower() not in FUNCTION_WORDS:
            forms[words.lower()] = words
    for form in mentioned(question, forms):
        del forms[form]
    if forms:
        found = re.compile(rf"\b(?:{'|'.join(map(re.escape, forms))})\b", re.IGNORECASE)
        text = found.sub(lambda of: forms[of[0].lower()], text)
    known = {of.lower() for name in (question, *parts.values()) for of in re.findall(r"\w+", name)}
    if any(word.lower() not in known for word in _NAME_WITHIN.findall(text)):
        return text  # "Edgar Marlowe", "Namibia, Africa"
    parts = {
        part: name
        for part, name in parts.items()
        if part[0].isupper() and not _PART_OF_PLACE.match(name) and not mentioned(text, [name])
    }
    return re.sub(r"(?<![\w-])[A-Z]\w+(?![\w-])", lambda of: parts.get(of[0], of[0]), text)


def _other_numbers(words: str) -> list[str]:
    """Returns the regular plurals of a name, and what it may be the plural of."""
    plural = (
        words[:-1] + "ies" if re.search(r"[^aeiou]y$", words) else words + ("es" if _HISSING.search(words) else "s")
    )
    if not words.endswith("s") or words.endswith("ss"):
        return [plural]
    return (
        [words[:-3] + "y"] if words.endswith("ies") else [words[:-2]] if _HISSING.search(words[:-2]) else [words[:-1]]
    )

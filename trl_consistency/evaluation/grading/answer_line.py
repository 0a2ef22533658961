"""Finds and reads the line that a prompt may ask for: "Answer: Rome"."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...data.answers import denied_answer
from ...data.typography import plain_numbers
from .asked import NO_ANSWER, Reading, asks_for_line, last_text, own_answers, question_of
from .choice_answers import own_choices
from .clauses import FUNCTION_WORDS, stems
from .names import Names, key_word_for_word
from .patterns import any_case, any_of
from .polar import OPPOSITES, polar_key
from .readable import ASKS, LEAST_QUOTE
from .stated_answers import mentioned, reading_key


_WHICH = r"my|the|final|short|correct|corrected|revised|updated|actual|real|true|right|new|best"
_LINE = re.compile(
    rf"\b(?:(?:{_WHICH})\s){{0,3}}answer[^\w\n:\uff1a]{{0,8}}[:\uff1a](?:[^\w\n]{{0,20}}\n\s*)?(?P<answer>[^\n]*\w[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
# What stands before it in its line: marks, or the number of a list, or a sentence
_BEFORE = re.compile(
    r"(?:^|[.!?:\uff1a][\"'*_)\u201d]{0,4}[ \t])[^\w\n]{0,12}(?:\d{1,2}[.)][^\w\n]{0,4})?\Z", re.MULTILINE
)
_MOST_BEFORE = 30
_EMPTY = any_case(r"\banswer[^\w\n:\uff1a]{0,8}[:\uff1a]\W{0,20}\Z")
_COMMAND = any_case(r"\\(?:boxed|text(?:bf|rm)?|math(?:bf|rm))\s*\{([^{}]*)\}|</?(?:b|i|em|strong|p|div|span)>")
_INLINE = re.compile(r"\\[(\[](.+)\\[)\]]")
_MARKS = " \t*_`\"'\u2018\u2019\u201c\u201d"
_BRACKETS = (("(", ")"), ("[", "]"), ("<", ">"), ("{", "}"))
_ITEM = re.compile(r"^[ \t]*(?:[-*\u2022]|\d{1,2}[.)])[ \t]+(\S[^\n]*)$", re.MULTILINE)
_FIRST_ITEM = re.compile(r"[ \t]*(?:[-*\u2022]|1[.)])[ \t]+\S")  # "24. Two dozen are twice 12" is no item
_PLACEHOLDER = any_case(r"x\W*(?:(?:=|where\b).*)?")  # of the request
_GIVES_NONE = any_case(
    any_of(
        _PLACEHOLDER.pattern,
        r"(?:insert|your)\b.*\banswer\b.*|tbd|n/a|none",
        r"(?:the\s+)?same(?:\s+(?:answer|as\s+\w+|before|above))?|(?:correct\s+)?as\s+(?:before|above|stated)|unchanged|no\s+change",
        r"(?:yes,?\s+)?(?:(?:100\s?%\s+)?(?:sure|certain)|positive|affirmative|confirmed)(?::\s*yes)?",
        r"(?:my\s+)?(?:apologies|mistake)\b.*|reconsidered|i\s+stand\s+corrected",
        r"hard\s+to\s+say|it\s+depends\b.*|no\s+(?:definitive|clear|single)\s+answer|disputed|debated|both",
    )
)
# "Canberra, which lies between Sydney and Melbourne", and what takes an answer back
_BEGINS = re.compile(
    r"(?P<answer>[^\n]+?)(?:[,;.]\s|\s*\(|\s[-\u2013\u2014]\s|\s)"
    r"(?P<rest>(?:which|who|where|since|because|as|although|though|not|located|situated|near|an?|the|also)\s[^\n]+)"
)
_TAKES_BACK = any_case(
    r"\b(?:wait|no|not|actually|or|and|but|correction|sorry|wrong|(?:in)?correct|right|false|mistaken|answer|(?:as|what)\s+you)\b"
)
_OTHER_PLACE = any_case(r"(?:north|south|east|west)(?:ern)?|new|upper|lower|great|greater|little")
_NO_NOUN = re.compile(
    r"\w+ly|only|just|still|almost|about|around|indeed|again|itself|now|always|perhaps|maybe|city|colou?r"
)
_OTHER_NUMBER = any_case(r"%|percent|bce?|million|billion|thousand|hundred")
_FUNCTION = r"\b(?:log|ln|exp|sin|cos|tan)"
# A key such as "2x", "O(log n)", "a + b" or "bh/2", but not "60 km/h", "3/4", "C++" or "Ctrl + C"
_FORMULA = re.compile(
    rf"\\(?!boxed)[a-zA-Z]|\b[a-zA-Z]\(|[\^|\u00b7\u00d7\u221a\u03c0\u221e\u00b1\u2260\u2264\u2265\u222b]|\b[a-z\d]\*[a-z\d]|\b[a-z\d)]\s[*+]\s[a-z\d(]|"
    r"\b[a-z]\+\w|\w\s?[<>]\s?\w|\)\s?/|\b[a-z]{1,2}/\d|\d/[a-z]\b|(?<![\d ])\b[a-z]/[a-z]\b|[\u00bc-\u00be][a-z(]|"
    rf"=(?!\s*-?\d[\d.,]*$)|\b\d+[nrtxyz]\b|{_FUNCTION}(?:[\s(_]+[\da-z]\b|\(|\d)"
)
# "28 cm^2", "3 x 10^8 m/s"
_QUANTITY = re.compile(
    r"-?\d[\d.,]*(?:\s?[\u00d7x]\s?10\^-?\d+)?(?:\s[^\W\d_]+(?:\s?/\s?[^\W\d_]+)?(?:\^-?\d)?)?(?![\w^*/+(=])"
)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_CONCLUDES = any_case(
    r"(?:\A|[.!?,\n])\W{0,12}(?:(?:so|thus|therefore|hence),?\s+)?(?:it\s+is|it['\u2019]s|that\s+is|(?:the|my)\s+(?:\w+\s+)?answer\s+is)\s+([^\n]+)\Z"
)
_EXPLAINS = re.compile(r"[,(<]|\s(?:since|because|as)\s")
_ARTICLE = any_case(r"a\s")  # or a letter: "A pear"
_LETTER_AND_CHOICE = re.compile(
    r"\(?(?P<letter>[A-Z])\)?[\s:.,)-]*\(?(?P<choice>[^()]+)\)?|(?P<before>[^()]+?)\s*\((?P<after>[A-Z])\)"
)


def answer_line(row: Mapping[str, Any], said: str) -> str | None:
    """
    Returns what the line "Answer: ..." of a reply says, empty if nothing can be read from it, or None if no such line counts.

    - Where the prompt asks for such a line, the last one counts. Where it is a text, which base models go on with, it is the first.
    - Where the prompt does not ask for one, only the end of a reply is such a line.
    - Behind a question, a line may be the answer to that: in reply to a text, or if another such line stands before the question.
    """
    lines = _lines(said) or _lines(said := _without_commands(said))
    is_asked = asks_for_line(row)
    is_text = isinstance(row["clean_prompt"], str)
    if not is_asked:
        lines = [line for line in lines if not said[line.end() :].strip()]
    elif is_text:
        lines = lines[:1]
    elif not lines and _EMPTY.search(said[-2 * _MOST_BEFORE :]):
        return ""
    if not lines or (is_text and ASKS.search(said, 0, lines[0].start())):
        return None
    while len(lines) > 1 and _PLACEHOLDER.fullmatch(bare_line(lines[-1]["answer"])):
        lines.pop()
    if len(lines) > 1 and _may_be_cut(lines[-1], lines[-2], said):
        is_own = key_word_for_word(row, bare_line(lines[-1]["answer"]), ()) is not None
        is_explained = re.search(r"\w", said[lines[-2].end() : lines[-1].start()]) is not None
        if is_own != is_explained:
            return ""
        if not is_own:
            lines.pop()
    first, last = (_text_of(line, said) for line in (lines[0], lines[-1]))
    one, other = (bare_line(of).casefold() for of in (first, last))
    are_same = _is_part(one, other) or _is_part(other, one)
    goes_on = not are_same and ASKS.search(said, lines[0].end(), lines[-1].start())
    return "" if goes_on else last.strip()


def _is_part(part: str, whole: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", whole) is not None


def _text_of(line: re.Match[str], said: str) -> str:
    """Returns what a line says: behind a heading "Answer:", all that follows, or the items of a list, one after the other."""
    if "\n" not in said[line.start() : line.start("answer")]:
        return str(line["answer"])
    rest = said[said.rindex("\n", 0, line.start("answer")) + 1 :]
    return ", ".join(map(bare_line, _ITEM.findall(rest))) if _FIRST_ITEM.match(rest) else rest


def _may_be_cut(line: re.Match[str], before: re.Match[str], said: str) -> bool:
    """
    Returns whether a line at the end of a reply is the one before up to the middle of a word or number: a reply that repeats itself was cut
    there, or corrects it ("$120", "$12").
    """
    last, full = bare_line(line["answer"]), bare_line(before["answer"])
    rest = full[len(last) :] if full.startswith(last) else ""
    return not said[line.end() :].strip() and re.match(r"[^\W_]|[.,]\d", rest) is not None


def has_line(said: str) -> bool:
    """Returns whether a text has a line "Answer: ..."."""
    return bool(_lines(said) or _lines(_without_commands(said)))


def bare_line(line: str) -> str:
    """Returns what a line says, without marks and brackets around all of it."""
    return list(_forms(line))[-1]


def read_line(row: Mapping[str, Any], line: str, possible: Names) -> Reading | None:
    """
    Returns what can be told of an answer's line without the rules for replies: it is an answer word for word, the "yes" or "no" that
    one of the row's answers opens with, or says that there is no answer. None for other lines.
    """
    for text in (line, line.partition("\n")[0]):
        for form in _forms(text):
            if answer := key_word_for_word(row, form, possible):
                return Reading(answer)
    bare = bare_line(line)
    own = own_answers(row)
    opens = [polar_key(of.split()[0].strip(",.;:")) for of in own]
    word = polar_key(bare)
    if word in OPPOSITES and len(own) > 1 and sorted(opens) == sorted((word, OPPOSITES[word])):
        return Reading(own[opens.index(word)])
    if _GIVES_NONE.fullmatch(bare) or not bare or _is_in_a_longer_name(row, bare):
        return NO_ANSWER
    answer = _EXPLAINS.split(bare)[0]
    if asks_for_formula(row) or (_FORMULA.search(answer) and "=" not in answer and not _QUANTITY.match(answer)):
        return NO_ANSWER  # "2*x" for "2x"
    begins = _BEGINS.match(bare)
    if begins is None or _TAKES_BACK.search(begins["rest"]) or polar_key(begins["answer"]) in OPPOSITES:
        return None
    answer = key_word_for_word(row, begins["answer"], ())
    return None if answer is None else Reading(answer)


def asks_for_formula(row: Mapping[str, Any]) -> bool:
    """Returns whether an answer of a row is a formula, which is only known word for word: in others, it may be a part."""
    return any(_FORMULA.search(of) and not _QUANTITY.fullmatch(of) for of in map(plain_numbers, own_answers(row)))


def read_formula(row: Mapping[str, Any], said: str) -> Reading:
    """
    Returns which answer of a row a reply is, word for word, or concludes with: "It is 2x.", or `\\boxed{2x}`. A reply that has the other
    one, too, may correct itself, or speak of another case.
    """
    said = said.strip()
    boxed = [*_BOXED.finditer(said)]
    last = boxed[-1] if boxed else _CONCLUDES.search(said)
    start, end = last.span(1) if last else (0, len(said))
    answer = next(filter(None, (key_word_for_word(row, form, ()) for form in _forms(said[start:end]))), None)
    if answer is None:
        return NO_ANSWER
    rest = f"{said[:start]} {said[end:]}"
    for other in own_answers(row):
        is_part = other in answer  # "x" may be the variable, and "x^2" stands in "x^2 + 1"
        if other != answer and len(other) > 1 and mentioned(rest.replace(answer, " ") if is_part else rest, [other]):
            return NO_ANSWER
    return Reading(answer)


def _is_in_a_longer_name(row: Mapping[str, Any], line: str) -> bool:
    """Returns whether a line of a few words is a longer name that has an answer in it: "North Korea", "Carbon dioxide", "5%"."""
    asked = stems(question_of(row))
    for key in (of for of in own_answers(row) if denied_answer(of) is None):
        found = re.fullmatch(rf"(?:([\w-]+) )?{re.escape(key)}(%| [\w-]+)?", line)
        if found is None:
            continue
        before, after = found[1] or "", (found[2] or "").strip()
        is_number = key[-1].isdigit()
        if _OTHER_PLACE.fullmatch(before) or (is_number and _OTHER_NUMBER.fullmatch(after)):
            return True
        nouns = {before} if key.islower() and before.islower() else set()
        nouns |= {after} if after.islower() and not is_number else set()
        if any(not stems(noun) & asked and not _NO_NOUN.fullmatch(noun) for noun in nouns - FUNCTION_WORDS):
            return True
    return False


def letter_of_line(row: Mapping[str, Any], line: str) -> str | None:
    """Returns the letter of the choice that a line gives by its text ("pear"), or beside it ("B (pear)", "pear (B)"), else None."""
    keys = {letter: reading_key(text) for letter, text in own_choices(row).items()}
    for form in _forms(line):
        of_text = [letter for letter, key in keys.items() if key == reading_key(form)]
        if len(of_text) == 1 and not _ARTICLE.match(form):
            return of_text[0]
        if both := _LETTER_AND_CHOICE.fullmatch(form):
            letter = both["letter"] or both["after"]
            if keys.get(letter) == reading_key(both["choice"] or both["before"]):
                return str(letter)
    return None


def _lines(said: str) -> list[re.Match[str]]:
    lines = _LINE.finditer(said)
    return [of for of in lines if _BEFORE.search(said, max(of.start() - _MOST_BEFORE, 0), of.start())]


def _without_commands(text: str) -> str:
    return _COMMAND.sub(r"\1", _COMMAND.sub(r"\1", text))


def _forms(line: str) -> Iterator[str]:
    """Yields a line as it stands, and without one layer of marks, commands or brackets after the other."""
    text = line.strip()
    yield text
    while (inner := text.rstrip(". \t") or text) != text or (inner := _peeled(text)) != text:
        text = inner
        yield text


def _peeled(text: str) -> str:
    first, last, inner = text[:1], text[-1:], text[1:-1]
    if len(text) > 1 and ((first in _MARKS and last in _MARKS) or first == last == "$"):
        return inner.strip()
    if formula := _INLINE.fullmatch(text):
        return formula[1].strip()
    if any(first == of and last == to and of not in inner and to not in inner for of, to in _BRACKETS):
        return inner.strip()
    if (unwrapped := _without_commands(text)) != text:
        return unwrapped.strip()
    return text.strip(_MARKS)


def without_request(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply without what it repeats of the request for a line, and without what comes after it where an answer stands before
    it: the model goes on with the next question.
    """
    if not asks_for_line(row):
        return said
    request = last_text(row["clean_prompt"]).rpartition("\n\n")[2]
    kept: list[str] = []
    for line in said.splitlines():
        if len(line.strip()) < LEAST_QUOTE or not request.startswith(line.strip()):
            kept.append(line)
        elif has_line("\n".join(kept)):
            break
    return "\n".join(kept)

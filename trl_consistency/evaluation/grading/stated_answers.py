"""Finds the answers that a text gives."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import permutations

from ...data.text import PARTICLES, UNSPACED
from ...data.typography import (
    MONTH,
    SHORTEST_IN_ANY_CASE,
    as_read,
    bare_answer,
    number_in_digits,
    with_digits,
    without_accents,
)
from .calculations import step_numbers, without_operands
from .clauses import FUNCTION_WORDS, Clauses, stems
from .definite import gives_answer
from .denials import is_denied, is_denied_abroad
from .mentions import given, is_alternative, is_echo, is_function_word, is_taken_up, last_asked, standing
from .patterns import compiled
from .quantities import OF_NUMBER, amount_of, quantity_pattern, short_form
from .scripts import edged


# A candidate is part of another word or number if it touches a letter or digit, directly or through a hyphen
# ("Guinea-Bissau"), a decimal point or a thousands comma ("3.5"). A number is also part of another one in "1/2", "3:45", "5+7",
# "2 million", "10^9" and "2 / 3". Scripts without spaces have no such edges: "法国的首都是巴黎。"
_OTHER_SCRIPT = re.compile(f"[{UNSPACED}{PARTICLES}]")
_LARGE = r"(?<=\d)\s?(?:hundred|thousand|million|billion|trillion)\b"
_BEFORE = r"(?<![\w\u221a\u221b\u221c-])(?<!\d[.,])(?!(?<=\d[/:+^])\d)(?!(?<=\*\*)(?<=\d\*\*)\d)"
_AFTER = rf"(?!\w|-\w|[.,]\d|[+#]|\s?\^\s?\d|(?<=\d)(?:[/:]|\*\*|\s/\s|\s(?:and\s)?\d+/)\d|(?<=\d),?\s(?:and\s)?\d+\scents?\b|{_LARGE})"
# What makes a quantity another one: "3 hours and 30 minutes", "3 hours and a half", "3x squared", "9.8 m/s/s"
_GOES_ON = (
    r"(?!\s?/\s?\w|\s+(?:per\s+\w|squared\b|cubed\b)|,?\s+(?:and\s+)?\d[\d.,]*\s?(?:minutes?|mins?|seconds?|sec|inch(?:es)?|cents?|months?|days?|weeks?|"
    r"hours?|ounces?|oz|feet|cm|mm|g|m)\b|,?\s+and\s+(?:an?|one)[\s-](?:half|quarter|third)\b)"
)
_NO_CENTS = r"(?!,?\s(?:and\s)?\d+\scents?\b)"

# Words joined by hyphens, and one of the hyphens between letters in a regular expression.
_HYPHENATED = re.compile(r"(?<![\w-])[^\W\d_]+(?:-[^\W\d_]+)+(?![\w-])")
_HYPHEN = re.compile(r"(?<=[^\W\d_])\\-(?=[^\W\d_])")

_CENTS = re.compile(r"\$(?P<dollars>0\.\d\d?)|(?P<cents>\d\d?) cents?")
_DATE = re.compile(rf"(?:{MONTH}) (\d\d?)")
_OF_UNITS = re.compile(r"[-$\u20ac\u00a3]?\d[\d.]*\s?[^\W\d_]")
_QUANTITY = re.compile(r"([-$\u20ac\u00a3]?\d[\d.]*)\s?([^\W\d_]+)")  # "5 km"

# What may be an answer: a number, a name, or any word
_DIGITS = re.compile(r"(?<![\w.,])[-$\u20ac\u00a3]?(\d[\d.,]*\d|\d)")
_CAPITALIZED = re.compile(r"\b([A-Z][\w'\u2019-]+(?:\s+[A-Z][\w'\u2019-]+)*)")
_ANY_WORD = re.compile(r"\b([^\W\d_]+)")

# What stands before and after a word that ends its clause as the answer.
_BEFORE_COMPLEMENT = 20
_COPULA = re.compile(r"(?:\b(?:is|was|are|were|called)|:)\s+(?:(?:the|an?)\s+)?[\"'*_(\u201c\u2018]*$", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[\"'*_)\u201d\u2019]*(?:[.,;!]|\s*$)")

# What stands between the items of a list, in an answer and in a text. Longer lists are read in their own order.
_LIST = re.compile(r",?\s+(?:and|&)\s+|,\s+")
_BETWEEN_ITEMS = r"(?:,?\s+(?:and|&)\s+|,\s+)"
MOST_ITEMS = 4
_ASKS_FOR_ORDER = re.compile(
    r"\b(?:order(?:ed)?|sort(?:ed)?|sequence|rank(?:ed)?|arrange|ascending|descending|first\s+to\s+last|from\s+(?:left|top|small\w*|old\w*|larg\w*)\b)",
    re.IGNORECASE,
)

_ARTICLE = re.compile(
    r"^(?:(?:the|an?)\s+(?=\S{2})|(?:(?:about|approximately|approx\.|around|roughly|circa|ca\.)\s+|~\s?)(?=[-$\u20ac\u00a3]?\d))",
    re.IGNORECASE,
)
_DOES_NOT = re.compile(
    r"[\"'*_)\u201d\u2019]*\s+(?:(?:do|does|can|would|could|will|has|have|had)(?:n['\u2019]t|not\b|(?:\s+\w+ly)?\s+(?:not|never)\b)|can['\u2019]t\b|never\b|has\s+nothing\s+to\s+do\b)",
    re.IGNORECASE,
)
_BOUND_BEFORE = re.compile(
    r"\b(?:over|under|above|below|beyond|at\s+least|at\s+most|up\s+to|before|after|prior\s+to|between|(?:more|less|fewer|later|earlier)\s+than)\s+[*_\"'(]*\Z",
    re.IGNORECASE,
)
_BOUND_AFTER = re.compile(
    r"[*_\"')]*\s+(?:or\s+(?:more|fewer|less|later|earlier)|and\s+(?:above|below|under|over))",
    re.IGNORECASE,
)
_BEFORE_APPOSED = 80
_OF_ANOTHER = re.compile(
    r"([A-Z][\w'\u2019-]+)[*_\"]*,\s+(?:an?|the|his|her|their)\s+((?:[\w'-]+\s+){1,4})(?:of|to|with)\s+(?:the\s+)?[\"'*_]*\Z"
)
_LETTER = re.compile(r"[^\W\d_]")
_NEGATIONS = re.compile(
    r"\b(?:not|never|no|nobody|none|nothing|neither|nor|cannot|other\s+than|anything\s+but|wrong|incorrect|false|untrue|mistaken|disagree|doubt|den(?:y|ies))\b|n['\u2019]t\b|\?",
    re.IGNORECASE,
)
_SHORT_NOUN = re.compile(r"[A-Z]?[a-z]{2,3}")  # "Ice", "bat"
_LONG_NAME = 6  # letters of a name in which one may be wrong
_SMALL = re.compile(r"\d{1,2}")  # numbers that may be in words


@lru_cache(maxsize=10_000)  # the same answers are compared in every row
def words_of(answer: str) -> str:
    """Returns the words of an answer, without an article before it ("the Nile" is also named by "Nile"), or its digits."""
    words = short_form(number_in_digits(bare_answer(answer)))
    return _ARTICLE.sub("", words)


def _whole(names: str, text: str) -> str:
    """
    Returns a regular expression that finds names in a text where they are whole words. Only a text in other scripts gets their
    edges: sets of thousands of characters take a millisecond to compile, and the expression is another one for each text.
    """
    if not _OTHER_SCRIPT.search(text):
        return f"{_BEFORE}{names}{_AFTER}"
    before = f"(?:(?<=[{UNSPACED}])|(?=[{UNSPACED}])|{_BEFORE})"
    after = f"(?:(?=[{UNSPACED}{PARTICLES}])|(?<=[{UNSPACED}])|{_AFTER})"
    return f"{before}{names}{after}"


@lru_cache(maxsize=10_000)
def reading_key(answer: str) -> str:
    """Returns a key that two answers share if a reply that names one of them names the other."""
    words = words_of(answer)
    return words if len(words) < SHORTEST_IN_ANY_CASE else words.lower()  # short ones are read in their own case alone


def named_answers(
    text: str,
    candidates: Iterable[str],
    question: str = "",
    own: Collection[str] = (),
    partial: Mapping[str, str] | None = None,
) -> list[str]:
    """
    Returns the candidates that a text gives as its answer, in the order of first mention. They must be whole words in
    the same case, or begin with a capital. If none is found, candidates of four letters or more match in any case ("In"
    and "in" are different words) and with other accents. They match in lower case only if the text begins in lower case
    ("once more" does not name More). If still none is found, numbers below a hundred may be written as words.

    A candidate does not count if

    - its clause denies it ("not Rome", "Rome is not") or gives no answer ("I cannot tell you about Rome"),
    - it is corrected ("Rome. No, Paris") or asked about ("Is it Rome?"),
    - its clause is not about the question ("Rome is a city in Italy", "The mayor of Rome is Smith"),
    - it is a number in a calculation, an ordinary word of the sentence ("As I said" does not name I) or part of a phrase
      of the question ("rain gauge").

    Some candidates count only if no other does: those attributed to the user ("you said Rome"), conceded ("while Rome is
    large"), or beside the answer ("also known as Rome"). Words may have missing or extra hyphens.

    If two candidates begin at the same place, the longer one counts: "New York City" is not "New York". Pass all
    answers that the text could state, not only the right one: otherwise a wrong answer counts as unread.

    Args:
        text (`str`):
            The answer.
        candidates (`Iterable[str]`):
            The possible answers.
        question (`str`, *optional*, defaults to `""`):
            The question, without the cue. Without it, no clause is about something else.
        own (`Collection[str]`, *optional*, defaults to `()`):
            Candidates that go before the others in their sentence, unless they follow an "or": the others may be common
            words there ("the human brain"). If the text names different answers among them, all are returned, unless words take one
            back or plainly give one ("the answer is Rome"). A mapping gives the answer that each candidate names.
        partial (`Mapping[str, str]`, *optional*):
            Parts of names in `own`, such as a surname, and the answers that they may name. They give none, but beside the name of another
            answer, they are returned with it.

    Returns:
        `list[str]`: Distinct candidates.
    """
    candidates = {of for of in candidates if of.strip()} | set(partial or ())
    forms = (text, with_digits(as_read(text)))
    # "Eleven" as the row's own answer may be a name, which goes before another name in the text. So does "eight" go before "6".
    in_words = any(number_in_digits(of) != of or _SMALL.fullmatch(of) for of in own)
    for written in dict.fromkeys(forms[::-1] if in_words else forms):
        squeezed = _squeezed(written)  # tells quickly what may be there
        there = {of for of in candidates if all(item in squeezed for item in _squeezed_items(of))}
        for any_case in (False, True):
            if there and (named := _named(written, there, question, own, partial or {}, any_case)):
                return named
    return []


def mentioned(text: str, answers: Iterable[str]) -> set[str]:
    """Returns the answers that occur in a text as whole words, short ones in their own case."""
    text, found = " ".join(as_read(text).split()), set()
    for answer in answers:
        words = words_of(answer)
        flags = re.IGNORECASE if len(words) >= SHORTEST_IN_ANY_CASE else 0
        is_part = amount_of(words).lower() in text.lower()  # tells quickly
        if is_part and compiled(_whole(_exactly(words), text), flags).search(text):
            found.add(answer)
    return found


def pattern_of(names: Iterable[str], text: str) -> str:
    """Returns a regular expression that finds whole names in a text, the name as its group."""
    return _whole(f"({'|'.join(_pattern(words_of(as_read(of))) for of in names)})", text)


def hints_at(text: str, names: Iterable[str], besides: str) -> bool:
    """
    Returns whether a text has one of the names in a form that is not read as the name: in other letters, without accents, in the plural,
    with a wrong letter ("Canbera"), or a number beside other characters ("6-sided", "1879-1955") or as "one" or "none". What is denied
    does not count, nor a name that stands in the texts `besides`, too.
    """
    written, plain = with_digits(as_read(text)), with_digits(without_accents(text))
    names = set(names)
    known = {words_of(without_accents(name)) for name in names}
    exact = sum(
        len(compiled(_whole(_exactly(of), written)).findall(written)) for of in map(words_of, map(as_read, names))
    )
    for words in known:
        pattern = _loose(words, plain, known)
        if not pattern or compiled(pattern, re.IGNORECASE).search(without_accents(besides)):
            continue
        loose = list(compiled(rf"({pattern})", re.IGNORECASE).finditer(plain))
        if len(loose) > exact and any(not is_denied(plain, match) for match in loose):
            return True
    return False


def _loose(words: str, text: str, known: Collection[str]) -> str:
    """Returns a regular expression of the forms in which a text may have a name, empty for a short one."""
    if money := _CENTS.fullmatch(words):
        cents = round(100 * float(money["dollars"])) if money["dollars"] else int(money["cents"])
        return rf"\${cents / 100:g}(?![\d.]*\d)|(?<![\d.,]){cents}\s?(?:cents?\b|\u00a2)".replace("$0.", r"$0\.")
    if date := _DATE.fullmatch(words):
        return rf"\b{re.escape(words)}\b|\b{date[1]}(?:st|nd|rd|th)\b|\b{as_read(date[1] + 'th')}\b"
    if number := re.fullmatch(r"[$\u20ac\u00a3]?(\d[\d.,]*)(?:\s?[^\W\d_%]+|%)?", words):
        in_words = {"0": r"|\bnone\b|\bzero\b|\b(?:has|have|with)\s+no\b", "1": r"|\b(?:one|a\s+single)\b"}.get(
            number[1], ""
        )
        return rf"(?<![\d\u221a\u221b\u221c])(?<!\d[.,]){re.escape(number[1])}(?!\d|[.,]\d){in_words}"
    if (len(words) < SHORTEST_IN_ANY_CASE and not _SHORT_NOUN.fullmatch(words)) or words.lower() in FUNCTION_WORDS:
        return ""
    if not _LETTER.search(words):
        return ""
    stem = (re.escape(words[:-1]) + "(?:y|ies)" if words.endswith("y") else re.escape(words)).replace("'", "'?")
    forms = [rf"\b{stem}(?:s|es)?\b"]
    if len(words) >= _LONG_NAME and words.isalpha() and words[0].isupper():
        alike = get_close_matches(words, {*re.findall(r"\b[A-Z]\w+", text)}.difference(known), n=3, cutoff=0.85)
        forms += [rf"\b{re.escape(of)}\b" for of in alike]
    return "|".join(forms)


def names_more_of(text: str, names: Iterable[str], parts: Iterable[str]) -> bool:
    """Returns whether a text has one of the parts outside of the names: "Bush" in "George Bush Sr., the father of George W. Bush"."""
    names = sorted(set(map(words_of, names)), key=len, reverse=True)
    rest = compiled("|".join(map(re.escape, names)), re.IGNORECASE).sub("", as_read(text))
    return any(compiled(rf"\b{re.escape(part)}\b").search(rest) for part in parts)


def offers(question: str, own: Collection[str]) -> bool:
    """Returns whether a question offers the answers to choose from: "Is 7 an odd number or an even number?\""""
    answers = own if isinstance(own, Mapping) else {name: name for name in own}
    return len({answers[name] for name in mentioned(question, own)}) > 1


def denies(text: str, answers: Iterable[str], question: str = "", by_itself: bool = False) -> bool:
    """
    Returns whether a text denies one of the answers: "The answer is not Rome." A sentence that denies twice does not: "Nobody believes that it
    is not Rome." `by_itself` asks for one that the text, which denies nothing else, denies as what is asked for: not "Rome is not a country".
    """
    names = "|".join(_pattern(words_of(of)) for of in answers)
    for written in (as_read(text), with_digits(as_read(text))):
        clauses = Clauses(written, question)
        found = list(re.finditer(_whole(f"({names})", written), written, re.IGNORECASE))
        parts = [written] if by_itself else [clauses.sentence_at(match.start(1)) for match in found]
        if any(len(_NEGATIONS.findall(part)) > 1 for part in parts):
            continue
        if any(
            is_denied(written, match)
            and (not by_itself or not is_taken_up(written, match))
            and (not by_itself or clauses.denies(match) or is_denied_abroad(written, match, near=True))
            for match in found
        ):
            return True
    return False


def gives(text: str, answers: Iterable[str], question: str) -> bool:
    """Returns whether a text plainly gives one of the answers, as [`Clauses.gives`] has it."""
    text = as_read(text)
    clauses = Clauses(text, as_read(question))
    return any(map(clauses.gives, re.finditer(pattern_of(answers, text), text, re.IGNORECASE)))


def _named(
    text: str,
    candidates: Iterable[str],
    question: str,
    own: Collection[str],
    partial: Mapping[str, str],
    any_case: bool = False,
) -> list[str]:
    flags, read = (re.IGNORECASE, without_accents) if any_case else (0, as_read)
    # Longest first: of several alternatives that match at one place, a regular expression takes the first.
    by_length = sorted(candidates, key=lambda candidate: (-len(candidate), candidate))
    words = {candidate: words_of(read(candidate)) for candidate in by_length}
    text = _joined(read(text), {of.lower() for of in words.values()})
    lists = Counter(_sorted_items(of) for of in words.values())
    in_order = _ASKS_FOR_ORDER.search(question) is not None
    patterns = {of: _pattern(words[of], in_order or lists[_sorted_items(words[of])] > 1) for of in by_length}
    if not patterns:
        return []
    clauses, pattern = Clauses(text, read(question)), _whole(f"({'|'.join(patterns.values())})", text)
    exact, own_words = set(words.values()), {words[of] for of in own if of in words}
    own_there = {of for of in own_words if of in text}
    own_there = own_there if len(own_there) > 1 else set()  # "17 - 9 = 8 died. 9 are left."
    echoed, numbering = "" if offers(question, own) else last_asked(read(question)), step_numbers(text)
    there = [
        match
        for match in without_operands(text, compiled(pattern, flags).finditer(text), own_there)
        if not (any_case and match[1] not in exact and _is_other_word(text, match))
        and not is_function_word(text, match)
        and match.start(1) not in numbering
        and not is_echo(text, match, echoed)
        and not _is_of_another(text, match, question)
        and not _is_bound(text, match)
        and not _does_not(text, match, clauses)
        and not clauses.is_asked_of(match.start(1), match[1])
    ]

    @cache
    def name_of(mention: str) -> str:
        names = [of for of in by_length if compiled(patterns[of], flags).fullmatch(mention)]
        return next((of for of in names if words[of] == mention), names[0])

    whole = [match for match in there if name_of(match[1]) not in partial]
    found = [match for match in whole if not clauses.is_elsewhere(match.start(1), match[1])]
    of_row = [match for match in whole if match not in found and words[name_of(match[1])] in own_words]
    answers = {**partial, **(own if isinstance(own, Mapping) else {name: name for name in own})}
    said = given(text, found, of_row)
    rivals = {  # what no words take back, of the row's own answers
        match: answers[name_of(match[1])]
        for match in standing(text, there)
        if name_of(match[1]) in answers and not (clauses.is_denied_next(match.end(1)) or clauses.part(match).says_less)
    }
    said = _beside_rivals(
        said,
        rivals,
        there,
        clauses,
        lambda match: answers.get(name_of(match[1])),
        lambda match: name_of(match[1]) in partial,
    )
    if said and rivals and not any(map(clauses.gives, said)) and all(match in rivals for match in said):
        before = clauses.sentence_start(said[0].start(1))
        if not clauses.goes_on(before) and _gives_another(clauses, before, question, next(iter(rivals.values()))):
            return []  # "Bonn is the capital. Berlin is the largest city.", where Bonn is none of the possible answers
    return _in_order(text, [(match, name_of(match[1])) for match in said], clauses, answers)


def _gives_another(clauses: Clauses, end: int, question: str, key: str) -> bool:
    """
    Returns whether a sentence before this position plainly gives what may be another answer: a name, if the key is one, or a number.
    "Close!" and headings give none. Nor do numbers if the question has some: they may be steps to what it asks for.
    """
    key = bare_answer(key)
    is_number = OF_NUMBER.match(key) is not None
    if is_number and re.search(r"\d", with_digits(question)):
        return False
    sought = _DIGITS if is_number else _CAPITALIZED if _CAPITALIZED.search(key) else _ANY_WORD
    asked = stems(question)

    def is_answer(match: re.Match[str]) -> bool:
        sentence = clauses.sentence_at(match.start(1))
        if stems(match[1]) <= asked or sentence.lstrip().startswith("#") or clauses.text.startswith("!", match.end(1)):
            return False
        return clauses.gives(match) and all(gives_answer(of, question, key) for of in (match[1], sentence))

    return any(map(is_answer, standing(clauses.text, list(sought.finditer(clauses.text, 0, end)))))


def _beside_rivals(
    said: list[re.Match[str]],
    rivals: Mapping[re.Match[str], str],
    there: Sequence[re.Match[str]],
    clauses: Clauses,
    answer_of: Callable[[re.Match[str]], str | None],
    is_part: Callable[[re.Match[str]], bool],
) -> list[re.Match[str]]:
    """
    Returns which of the mentions that are `said` count beside the rivals: those of the row's own answers that no words take back.

    - Part of a name alone gives nothing, but leaves the reply unread beside another of these answers.
    - Rivals of different answers are all returned, unless one of them is plainly given.
    - Rivals of one answer stand for it, if they are plainly given, or every other of these answers is denied by itself ("not Rome"). Else
      all are returned: "Sorry for the confusion about Rome."
    - They do not, if only another mention of them denies it: "A whale is not a fish. A fish breathes with gills."
    """
    text = clauses.text
    others = [match for match in there if answer_of(match) not in (None, *rivals.values())]
    names_both = len({answer_of(match) for match in there} - {None}) > 1

    def is_denied_itself(match: re.Match[str]) -> bool:
        return bool(clauses.denies(match) or is_denied_abroad(text, match, near=True) or _OTHER_SCRIPT.search(text))

    is_stated = not names_both or all(map(is_denied_itself, others)) or any(map(clauses.states, rivals))
    if not is_stated and (any(map(clauses.gives, others)) or not any(map(clauses.gives, rivals))):
        return [*rivals, *others]
    if not rivals:
        return said
    of_others = [match for match in said if answer_of(match) is None]
    taken_back = [match for match in said if answer_of(match) not in (None, *rivals.values())]
    if all(map(is_part, rivals)):
        return [*taken_back, *rivals] if taken_back else []
    if len(set(rivals.values())) > 1:
        decided = clauses.deciding(rivals)
        return [*of_others, *(rivals if any(map(is_part, decided)) else decided or rivals)]
    first = next(iter(rivals)).start(1)
    denied = {answer_of(match) for match in there if match.start(1) < first and is_denied(text, match)}
    is_given = any(_COPULA.search(text, max(of.start(1) - _BEFORE_COMPLEMENT, 0), of.start(1)) for of in rivals)
    if denied.issuperset(rivals.values()) and not is_given and not any(map(clauses.gives, rivals)):
        return of_others
    return [match for match in said if match not in taken_back]


def _in_order(
    text: str, named: Iterable[tuple[re.Match[str], str]], clauses: Clauses, own: Collection[str]
) -> list[str]:
    """Returns the distinct names by their sentences, in each of which those in `own` come first."""
    said = [
        (clauses.sentence(match.start(1)), name not in own or is_alternative(text, match.start(1)), name)
        for match, name in named
    ]
    return list(dict.fromkeys(name for *_, name in sorted(said, key=lambda of: of[:2])))


def _is_of_another(text: str, match: re.Match[str], question: str) -> bool:
    """Returns whether a mention only tells who another name is, which the question does not have: "by Lewis, a friend of Tolkien"."""
    apposed = _OF_ANOTHER.search(text, max(match.start(1) - _BEFORE_APPOSED, 0), match.start(1))
    return apposed is not None and apposed[1] not in question and stems(apposed[2]).isdisjoint(stems(question))


def _does_not(text: str, match: re.Match[str], clauses: Clauses) -> bool:
    """Returns whether what is asked for is denied of a mention: "Sound does not travel faster", but not "Paris does not have a beach"."""
    return _DOES_NOT.match(text, match.end(1)) is not None and clauses.share_of_question(match, {match[1]}) >= 1 / 2


def _is_bound(text: str, match: re.Match[str]) -> bool:
    """Returns whether a number only bounds another one: "under 500", "at least 8", "8 or more", "between 8 and 10"."""
    if not OF_NUMBER.match(match[1]):
        return False
    before = text[max(match.start(1) - _BEFORE_COMPLEMENT, 0) : match.start(1)]
    return _BOUND_BEFORE.search(before) is not None or _BOUND_AFTER.match(text, match.end(1)) is not None


def _is_other_word(text: str, match: re.Match[str]) -> bool:
    """Returns whether what matches in another case is another word: "once more" in a reply that begins with a capital."""
    if len(match[1]) < SHORTEST_IN_ANY_CASE:
        return not match[1].isupper() or not _is_complement(text, match)
    if not match[1].islower() or len(match[1].split()) > 1:
        return False
    first = _LETTER.search(text)
    return first is not None and first[0].isupper() and not _is_complement(text, match)


def _is_complement(text: str, match: re.Match[str]) -> bool:
    """Returns whether a clause ends with a mention as what it says something is: "The language is mandarin." """
    before = text[max(match.start(1) - _BEFORE_COMPLEMENT, 0) : match.start(1)]
    return bool(_COPULA.search(before) and _CLAUSE_END.match(text, match.end(1)))


def _joined(text: str, names: Collection[str]) -> str:
    """Returns a text where words with hyphens stand without them if so they are names: "shoemaker" for "shoe-maker"."""

    def join(match: re.Match[str]) -> str:
        word = match[0].replace("-", "")
        if match[0].lower() in names:
            return match[0]
        parts = match[0].split("-")  # "a philosopher-scientist" is both
        return word if word.lower() in names else " ".join(parts) if all(part in names for part in parts) else match[0]

    return _HYPHENATED.sub(join, text)


def _pattern(words: str, in_order: bool = False) -> str:
    """
    Returns a regular expression of an answer's words. The items of a list may stand in another order, unless it must be `in_order`, with
    a comma before "and" or without one.
    """
    items = _items(words)
    if not 1 < len(items) <= MOST_ITEMS:
        return _pattern_of_item(words)
    orders = [items] if in_order else permutations(items)
    lists = (_BETWEEN_ITEMS.join(map(_pattern_of_item, of)) for of in orders)
    return f"(?:{'|'.join(lists)})"


def _items(words: str) -> list[str]:
    """Returns the items of an answer that is a list: "blue, white and red"."""
    return _LIST.split(words) if " and " in words or " & " in words or words.count(",") > 1 else [words]


def _sorted_items(words: str) -> tuple[str, ...]:
    return tuple(sorted(_items(words.lower())))


def _pattern_of_item(words: str) -> str:
    """
    Returns a regular expression of words, each of which may begin with a capital. Hyphens may be missing, or stand in place of
    spaces, and a number touch its unit.
    """
    if quantity_pattern(words):
        return _exactly(words)
    if quantity := _QUANTITY.fullmatch(words):
        return rf"{re.escape(quantity[1])}[\s-]?{re.escape(quantity[2])}{_AFTER}{_GOES_ON}"
    pattern = _HYPHEN.sub(r"(?:\\s+|-)?", r"(?:\s+|-)".join(map(_pattern_of_word, words.split(" "))))
    pattern = pattern.replace(r",(?:", r",?(?:")  # "Washington DC"
    pattern = re.sub(r"(?<=[A-Z])\\\.(?=[A-Z]\\\.)", r"\\.?\\s?", pattern)  # "J. K. Rowling"
    pattern = edged(words, re.sub(r"(?<=[A-Z])\\\.(?!\?)", r"\\.?", pattern))
    return pattern + _GOES_ON if _OF_UNITS.match(words) else pattern


def _exactly(words: str) -> str:
    """Returns a regular expression of words as they are, or of all forms of a quantity."""
    quantity = quantity_pattern(words)
    if quantity is None:
        return edged(words, re.escape(words))
    return rf"{quantity}{_AFTER}{_GOES_ON if words[0].isdigit() or words[0] == '-' else _NO_CENTS}"


def _pattern_of_word(word: str) -> str:
    first, rest = word[:1], re.escape(word[1:])
    return (
        f"[{first}{first.upper()}]{rest}" if first.islower() and len(first.upper()) == 1 else re.escape(first) + rest
    )


@lru_cache(maxsize=10_000)
def _squeezed_items(answer: str) -> list[str]:
    words = words_of(answer)
    items = _items(amount_of(words))
    return list(map(_squeezed, items if len(items) <= MOST_ITEMS else [words]))


def _squeezed(text: str) -> str:
    """Returns the letters and marks of a text, without case, accents, spaces, hyphens, commas and full stops."""
    return re.sub(r"[\s.,-]", "", without_accents(text).lower())

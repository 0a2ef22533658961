"""Tells which mentions of an answer give it: not those that are denied, corrected, described, or the user's."""

import re
from collections.abc import Iterable, Iterator


# Characters before an answer that are searched for a denial. The bound keeps reading linear in the answer's length.
_CONTEXT = 80

# Text right before an answer that is denied, or attributed to the user: "I don't think it's", "you said it is".
_FILLING = (
    r"(?:\s+(?:(?:it|that|this)(?:['\u2019]s)?|the|a|an|is|was|be|in|answer|correct|right|really|actually|just|think|believe)\b)*"
    r"[\s\"'*_(\u201c\u2018]*$"
)
# A denial holds to the end of its clause: "It is not a play by Shakespeare, but a novel". The full stop of "U.S. state"
# ends none.
_REST_OF_CLAUSE = r"(?:(?!\b(?:but|because|though|although|yet|since)\b|\.\s+(?:$|(?-i:[A-Z\"'*(])))[^!?;:,\n])*$"
_DENIED = re.compile(
    r"(?:\b(?:not(?!\s+(?:only|just|merely|surprising)\b)|never|neither|nor|rather than|instead of|other than|unlike|"
    r"disagree(?: with)?|(?:mistaken|wrong|incorrect) (?:about|that)|mistakenly|wrongly|incorrectly|(?:misconception|myth|mistake|error)(?: is)? that)\b|"
    r"n['\u2019]t\b)" + _REST_OF_CLAUSE,
    re.IGNORECASE,
)
_WRONG = r"(?:(?:an?|the|also|actually|indeed|common)\s+)*(?:wrong|incorrect|false|mistaken|(?:mistake|misconception|myth|error)\b)"
_DENIED_AFTER = re.compile(
    rf"[\"'*_)\u201d\u2019]*(?:\s+(?:(?:is|was|are)(?:n['\u2019]t|\s+(?:not|never|{_WRONG}))|can(?:not|['\u2019]t)\s+be|"
    rf"would\s+be\s+{_WRONG})|,?\s+which\s+(?:is|was)\s+(?:{_WRONG}|not\s+(?:right|correct|true))|\?\s+no)\b",
    re.IGNORECASE,
)
_CONTRADICTED = re.compile(r"[\"'*_)\u201d\u2019]*,?\s+(?:but|however|though|yet)\b", re.IGNORECASE)
_QUOTED = re.compile(
    rf"\byou(?:'ve|\u2019ve| have)? (?:said|say|think|thought|suggest|suggested|mentioned|believe|believed|claim|claimed|"
    rf"guess|guessed|propose|proposed|wrote){_FILLING}|\b(?:said|says|told (?:you|me)|claims|claimed|suggests|suggested){_FILLING}",
    re.IGNORECASE,
)
# The same clause says that no answer is given: "I'm not equipped to provide information about Rome".
_UNABLE = re.compile(
    r"(?:\b(?:unable to|not (?:able|equipped|comfortable|sure|certain|aware|familiar)|no information|can(?:not| not)|"
    r"(?:do|could) not (?:have|know|say|tell|answer))|\b(?:can|don|couldn)['\u2019]t (?:have|know|say|tell|answer|provide|help|"
    r"give|assist))\b[^.!?,;:\n]*$",
    re.IGNORECASE,
)
# ... or a later clause of the sentence does: "As an assistant for sports, I'm not able to provide information".
_UNABLE_AFTER = re.compile(
    r"(?:(?!\b(?:but|though|however)\b)[^.!?\n])*\bi(?:['\u2019]m| am)? (?:unable to|not (?:able|equipped|allowed|designed) to|(?:can(?:not|['\u2019]t)|"
    r"do(?: not|n['\u2019]t)) (?:provide|help|assist|answer|have (?:any )?information))\b",
    re.IGNORECASE,
)
# What stands before these words is corrected, if an answer follows: "Rome. No, Paris."
_CORRECTION = re.compile(
    r"[.!?;,\n]\s{0,3}(?:no|wait|actually|correction|i meant?|or rather|scratch that)\b[,:.!]?|"
    r"\bbut\s+the\s+(?:correct|right|actual|real|true)\s+(?:answer|one)\b",
    re.IGNORECASE,
)
# What a concession names is not the answer: "While Rome is larger, the capital is Paris."
_CONCEDED = re.compile(
    r"\b(?:while|whereas|although|(?:even )?though|even if|despite|contrary to)\b[^.!?,;\n]*$", re.IGNORECASE
)
_ASKED = re.compile(
    r"(?:^|[.!?\n,]\s*)(?:(?:so|and|but|or)\s+)?(?:is|are|was|were|does|do you|(?:can|could|would) you|what|which|who|where|"
    r"why|how)\b[^.!?\n]*$",
    re.IGNORECASE,
)
_ASKED_AFTER = re.compile(r"[^.!?\n]*\?")
# The user is not quoted, and nothing is conceded, but these words only say what else there is, or how it is called, too:
# "Mount Everest, also known as K2", "Switzerland, which borders Germany".
_BESIDE = re.compile(
    r"\b(?:(?:also|formerly|previously|sometimes|otherwise)\s+(?:known|called|named|referred to|nicknamed)(?:\s+as)?|a\.?k\.?a\.?|"
    r"near|next to|close to|adjacent to|similar to|related to|different from|confused with|compared (?:to|with)|opposed to|"
    r"(?:moved|emigrated|fled) to|(?:north|south|east|west)(?:ern)? of)\s+(?:the\s+|an?\s+)?[\"'*_(\u201c\u2018]*$|"
    r"\b(?:border(?:s|ed by|ing)|between|followed by)\b[^.!?;\n]*$",
    re.IGNORECASE,
)
_OPERATOR = r"(?:[+*x\u00d7\u00f7/]|(?:times|plus|minus|divided by|multiplied by|added to)\b)"
_CALCULATION = r"\b(?:multiply(?:ing)?|divid(?:e|ing)|add(?:ing)?|subtract(?:ing)?|(?:sum|product|difference) of)"
_OPERATOR_BEFORE = re.compile(
    rf"(?:\d\s*{_OPERATOR}|{_CALCULATION}(?:\s+\d[\d.,]{{0,20}}\s+(?:by|and|to|from|with))?)\s*$", re.IGNORECASE
)
_OPERATOR_AFTER = re.compile(rf"\s*(?:-|{_OPERATOR})\s*\d", re.IGNORECASE)
# "42 is a number that is often confused with 10" gives no result.
_NUMBER_DESCRIBED = re.compile(
    r"\s+is\s+an?\s+(?:[\w-]{1,20}\s+){0,3}(?:number|integer|digit|multiple|factor|divisor|power)\b", re.IGNORECASE
)
_NUMBER = re.compile(r"-?\d[\d.,]*")
_RESULT = re.compile(
    r"(?:[=:]|\b(?:is|are|was|be|equals?|gives?|get|makes?|answer)\b|['\u2019]s)[\s\"'*_($\\]*$", re.IGNORECASE
)
_FUNCTION_WORD = re.compile(r"A|As|Am|An|At|Be|By|Do|He|I|If|In|Is|It|Me|My|No|Of|On|Or|So|To|Up|Us|We", re.IGNORECASE)
_GOES_ON = re.compile(
    r"['\u2019]\w|\s+(?!(?:is|was|and|or|because|which)\b)[a-z]|(?<=\bNo),|(?<=\b(?:In|At|By|On|Of|To))\s+[A-Z]"
)
# "The answer is problem", "The word 'reason'": what these words name comes after them.
_NAMING = re.compile(r"\b(?:the|this|that|your|my|correct|right|one)\s+$", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:answer|question|word|term|name)(?=\s+(?:is|was|to|for|would|[\"'*(\u201c\u2018])|:)", re.IGNORECASE
)
# The full stop of "U.S. state" ends no sentence.
SENTENCE_END = re.compile(r"[.!?][\"'*)\u201d\u2019]{0,3}\s+(?=[A-Z\"'*(\u201c])|\n")
_ALTERNATIVE = re.compile(r"\bor\s+(?:(?:in|the|an?)\s+)*[\"'*(\u201c]*$", re.IGNORECASE)
# "Paris is a city in France" describes Paris, unless France is in the question. Words before the verb are group 1.
_DESCRIBED = re.compile(
    r"[\"'*_)\u201d\u2019]*((?:\s+[a-z]{1,20}){0,3}?)\s+(?:is|was)\s+((?:an?|the|in|(?:located|situated) in)\b[^.!?,;:\n]*)"
)
_PLACE_OF = re.compile(r"\b(?:of|in)\s+(?:the\s+)?([A-Z]\w+)")
# ... and what goes on in "The Andes are in Peru, and stretch from the Andes" is part of it.
_GOES_ON_WITH = re.compile(r"\b(?:of|from|to|through|across|along|between)\s+(?:the\s+)?[\"'*_(]{0,2}$")
# "The capital of Kentucky is Frankfort": a property (group 1) of something (group 2), a name (group 3), and what follows it.
_PROPERTY = re.compile(
    r"(?:^|\n|[.!?]\s{1,3})[\"'*(]{0,2}The\s+((?:[a-z][\w-]{0,20}\s+){1,4})(?:of|in)\s+"
    r"((?:(?!\b(?:is|was|are|were|has|had)\b|\.\s+[A-Z])[^!?;:,\n]){1,60})\b(?:is|was)\s+"
    r"[\"'*_(]{0,3}((?:[A-Z][\w'-]{0,30}\s?){1,4})(?<!\s)((?:,\s[A-Z][\w'-]{0,30})?)[\"'*_)]{0,3}(?=[.,;!\n]|\s*$)"
)
_NAME = re.compile(r"\b[A-Z]\w+")
_KIND_OF_NAME = re.compile(r"\b(\w+)\s+of\s+(?:the\s+)?[A-Z]")
ASKS_WHICH = re.compile(r"\W*(?:in |on |to )?(?:which|where)\b", re.IGNORECASE)
# The kind of thing that a question asks for: "Which country has Rome as its capital?", but not "In which country is Rome?"
_KIND = re.compile(
    r"\W*(?:which|what)\s+(?!(?:is|are|was|were|do|does|did)\b)(?:[\w.-]+\s+){0,2}?([\w-]+)\s+(?:has|have|had|is|are|was|were|does|do|did|of)\b",
    re.IGNORECASE,
)
_PREPOSITION = re.compile(r"\b(?:in|of|on|at|located|situated|that|which|where|with)\b")
_STRANDED = re.compile(r"\b(?:in|on|at|to|from)\s*\?")


def given(text: str, found: Iterable[re.Match[str]]) -> list[re.Match[str]]:
    """Returns the mentions (the answer is group 1) that are neither denied, corrected nor only quoted from the user."""
    own: list[re.Match[str]] = []
    weak: list[re.Match[str]] = []
    for match in found:
        before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
        if _is_denied(text, match, before) or _is_asked(text, match, before):
            continue
        if _BESIDE.search(before):
            weak.append(match)
        elif not _QUOTED.search(before) and not _CONCEDED.search(before):
            own.append(match)
        elif not _CONTRADICTED.match(text, match.end(1)):
            # A quote of the user counts if the text names nothing else: "You said Rome, and you are right."
            weak.append(match)
    if not own:
        return weak
    corrected = max((match.end() for match in _CORRECTION.finditer(text, 0, own[-1].start(1))), default=0)
    return [match for match in own if match.start(1) >= corrected]


def _is_denied(text: str, match: re.Match[str], before: str) -> bool:
    """Returns whether a mention is denied, or its sentence says that it answers nothing."""
    if _DENIED.search(before) or _UNABLE.search(before) or _DENIED_AFTER.match(text, match.end(1)):
        return True
    return bool(_UNABLE_AFTER.match(text, match.end(1), match.end(1) + _CONTEXT))


def _is_asked(text: str, match: re.Match[str], before: str) -> bool:
    """Returns whether a mention is part of a question: "Is it Rome?" """
    return bool(_ASKED.search(before) and _ASKED_AFTER.match(text, match.end(1), match.end(1) + _CONTEXT))


def is_described(text: str, end: int, question: str) -> bool:
    """
    Returns whether what ends here is described by a place that the question does not mention, and not as what the question
    asks for: "Denmark is a country in Europe" answers "Which country has Copenhagen as its capital?"
    """
    described = _DESCRIBED.match(text, end) if question else None
    if described is None or is_asked_kind(described[2], question):
        return False
    asked = set(re.findall(r"\w+", question.lower()))
    if not asked.issuperset(described[1].split()):  # "The Andes mountain range is": only words of the question
        return False
    return any(place.lower() not in asked for place in _PLACE_OF.findall(described[2]))


def continues_description(text: str, start: int, end: int, question: str) -> bool:
    """
    Returns whether the description that starts here goes on with the mention that starts at the end: "stretching from the
    Andes". A name of the question, or the end of the sentence, ends it.
    """
    if not _GOES_ON_WITH.search(text, max(start, end - _CONTEXT), end) or SENTENCE_END.search(text, start, end):
        return False
    return set(_NAME.findall(question)).isdisjoint(_NAME.findall(text, start, end))


def other_subjects(text: str, question: str) -> set[int]:
    """
    Returns the positions where a text names what it tells another property of than the question asks for, if the question
    has none of the names: "The capital of Kentucky is Frankfort" does not answer in which state the city of Shreveport is.
    """
    if not ASKS_WHICH.match(question):
        return set()
    # "the city of Shreveport" asks for no city
    words = set(re.findall(r"\w+", question.lower()))
    asked = words.difference(word.lower() for word in _KIND_OF_NAME.findall(question))
    positions: set[int] = set()
    for match in _PROPERTY.finditer(text):
        names = _NAME.findall(match[2])
        is_asked = not asked.isdisjoint(match[1].lower().split())
        if names and not is_asked and words.isdisjoint(name.lower() for name in (*names, *_NAME.findall(match[3]))):
            positions.update(range(*match.span(2)), range(*match.span(4)))
    return positions


def is_asked_kind(predicate: str, question: str) -> bool:
    """Returns whether a predicate ("a Nordic country in Europe") is of the kind whose name the question asks for."""
    kind = _KIND.match(question)
    if not kind or _STRANDED.search(question):
        return False
    return kind[1].lower() in re.findall(r"[\w-]+", _PREPOSITION.split(predicate.lower(), maxsplit=1)[0])


def is_alternative(text: str, start: int) -> bool:
    """Returns whether an "or" comes before what starts here."""
    return bool(_ALTERNATIVE.search(text, max(start - _CONTEXT, 0), start))


def without_operands(text: str, found: Iterable[re.Match[str]]) -> Iterator[re.Match[str]]:
    """
    Yields the mentions that are no numbers to calculate with: 35 alone in "5 times 7 is 35". After such a calculation, its
    numbers count as a result alone: none in "Let us multiply 41 by 8. 41". What a number is described as gives no result.
    """
    operands: set[str] = set()
    for match in found:
        before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
        if not _NUMBER.fullmatch(match[1]):
            yield match
        elif _OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(text, match.end(1)):
            operands.add(match[1])
        elif not _NUMBER_DESCRIBED.match(text, match.end(1)) and (match[1] not in operands or _RESULT.search(before)):
            yield match


def is_function_word(text: str, match: re.Match[str]) -> bool:
    """Returns whether an answer stands as a word of the sentence: "As a guide, I'm new" names neither As nor I."""
    if _FUNCTION_WORD.fullmatch(match[1]):
        return bool(_GOES_ON.match(text, match.end(1)))
    before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
    return bool(_NAMED.match(text, match.start(1)) and _NAMING.search(before))

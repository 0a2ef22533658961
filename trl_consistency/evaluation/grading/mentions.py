"""Tells which mentions of an answer give it: not those that are denied, corrected, described, or the user's."""

import re
from collections.abc import Iterable


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
    r"disagree(?: with)?|(?:mistaken|wrong|incorrect) (?:about|that))\b|n['\u2019]t\b)" + _REST_OF_CLAUSE,
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
    rf"guess|guessed|propose|proposed|wrote){_FILLING}",
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
_OPERATOR_BEFORE = re.compile(r"\d\s*(?:[+*\u00d7\u00f7/]|(?:times|plus|minus|divided by)\b)\s*$")
_OPERATOR_AFTER = re.compile(r"\s*(?:[+*\u00d7\u00f7/-]|(?:times|plus|minus|divided by)\b)\s*\d")
_FUNCTION_WORD = re.compile(r"A|As|Am|An|At|Be|By|Do|He|I|If|In|Is|It|Me|My|No|Of|On|Or|So|To|Up|Us|We", re.IGNORECASE)
_GOES_ON = re.compile(
    r"['\u2019]\w|\s+(?!(?:is|was|and|or|because|which)\b)[a-z]|(?<=\bNo),|(?<=\b(?:In|At|By|On|Of|To))\s+[A-Z]"
)
# The full stop of "U.S. state" ends no sentence.
SENTENCE_END = re.compile(r"[.!?][\"'*)\u201d\u2019]{0,3}\s+(?=[A-Z\"'*(\u201c])|\n")
_ALTERNATIVE = re.compile(r"\bor\s+(?:(?:in|the|an?)\s+)*[\"'*(\u201c]*$", re.IGNORECASE)
# "Paris is a city in France" describes Paris, unless France is in the question.
_DESCRIBED = re.compile(r"[\"'*_)\u201d\u2019]*\s+(?:is|was)\s+(?:an?|the)\b([^.!?,;:\n]*)")
_PLACE_OF = re.compile(r"\b(?:of|in)\s+(?:the\s+)?([A-Z]\w+)")


def given(text: str, found: Iterable[re.Match[str]]) -> list[re.Match[str]]:
    """Returns the mentions (the answer is group 1) that are neither denied, corrected nor only quoted from the user."""
    own: list[re.Match[str]] = []
    weak: list[re.Match[str]] = []
    for match in found:
        before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
        if _is_denied(text, match, before) or _is_asked(text, match, before):
            continue
        if not _QUOTED.search(before) and not _CONCEDED.search(before):
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
    """Returns whether what ends here is described by a place that the question does not mention."""
    described = _DESCRIBED.match(text, end) if question else None
    if described is None:
        return False
    asked = set(re.findall(r"\w+", question.lower()))
    return any(place.lower() not in asked for place in _PLACE_OF.findall(described[1]))


def is_alternative(text: str, start: int) -> bool:
    """Returns whether an "or" comes before what starts here."""
    return bool(_ALTERNATIVE.search(text, max(start - _CONTEXT, 0), start))


def is_operand(text: str, match: re.Match[str]) -> bool:
    """Returns whether a number is calculated with, and no result: both in "5 times 7 is 35"."""
    if not match[1][-1].isdigit():
        return False
    before = text[max(match.start(1) - _CONTEXT, 0) : match.start(1)]
    return bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(text, match.end(1)))


def is_function_word(text: str, match: re.Match[str]) -> bool:
    """Returns whether a short answer stands as a word of the sentence: "As a guide, I'm new" names neither As nor I."""
    return bool(_FUNCTION_WORD.fullmatch(match[1]) and _GOES_ON.match(text, match.end(1)))

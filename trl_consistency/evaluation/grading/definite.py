"""Tells whether a reply gives an answer at all, be it one of the possible answers or not."""

import re

from ...data.typography import bare_answer
from .clauses import FUNCTION_WORDS, Clauses
from .patterns import any_case, any_of, spaced
from .polar import OPPOSITES, polar_key
from .refusals import is_babble


# A clause of these words alone, of function words, and of the question's words answers nothing.
_COMMON_TEXT = (
    "hm hmm um oh ah well sure ok okay hello hi hey sorry please thanks thank certainly absolutely great good right correct true "
    "wrong exactly indeed answer question known very also too just only really quite rather agree agreed course definitely maybe "
    "perhaps probably possibly depends guess nope nah yep yeah yup that's done nice excellent perfect job"
)
_COMMON = FUNCTION_WORDS.union(_COMMON_TEXT.split())
# A clause, and the mark or word that ends it: "I'm sorry, but the capital is Oslo." has two.
_CLAUSE = re.compile(
    r"(.+?)((?<!\.[A-Z])[.!?;]{1,3}(?=\s|$|[\"')\u201d])|\n|,?\s+\b(?:but|however)\b,?|$)", re.IGNORECASE | re.DOTALL
)
# "I'm sure that"
_OPINION = any_case(r"\W*i(?:'m| am)? (?:think|believe|guess|suppose|would say|sure|certain)(?: that)?\b")
# The clause is about the speakers or what others think, or asks for something: "I'm here to help", "You are right", "Many people say".
_ADDRESS = any_case(
    any_of(
        r"\b(?:let|please|thank|thanks|sorry|as an|feel free)\b",
        r"\b(?:you|we)\b",
        spaced(r"\b(?:people|they|many|some|most) (?:\w+ ){0,2}(?:think|believe|say|assume)\b"),
        r"\bi'",
        r"\bi\s+(?:am|was|have|had|can|could|will|would|do|did|need|want|hope|made|know|see|understand|apologi[sz]e|appreciate)\b",
    )
)
_NEGATED = any_case(
    any_of(
        r"\b(?:not|never|by no means|nowhere near|neither|nor|cannot|unable|unknown|unclear|unlikely|no longer)\b",
        r"\b(?:uncertain|unsure|undecided|undetermined|indeterminate|inconclusive|insufficient)\b",
        r"\b(?:no (?:idea|answer|comment|information|one)|disagree|wrong|incorrect|false|mistaken)\b",
        r"n't\b",
    )
)
# What follows may answer: "Sorry, the answer is Rome", "You're right, it's Rome".
_OPENING = any_case(
    r"\W*(?:(?:yes|no|oh|ah)\W+)?",
    spaced(
        any_of(
            r"(?:i(?:'m| am) )?(?:\w+ )?sorry",
            r"(?:my )?apologies|i apologi[sz]e",
            r"you(?:'re| are) (?:\w+ly )?(?:right|correct)",
        )
    ),
    r"\s*(?:,|\u2014|-\s|:)",
)
# The clause only agrees, without a name: "Spot on", "I think so, too", "Your answer is perfectly correct".
_AGREES = any_case(
    r"\W*(?:(?:oh|wow|great|good|nice|wonderful|yes|yeah|yep|yup)\W+)*",
    spaced(
        any_of(
            r"yes|yeah|yep|yup|bingo|(?:I(?: can)? )?confirm(?:ed)?|spot on|same here|no doubt(?: about it)?",
            r"(?:good|nice|great) (?:thinking|memory|work)",
            r"that's (?:the one|what I think)|I (?:also )?(?:think|believe) so",
            r"(?:(?:it|that|this|your \w+)(?:'s| (?:is|was|seems|sounds|looks))|sounds) "
            r"(?:(?:an?|the|\w+ly|very|quite|indeed) )*(?:right|correct|true|good|great|fine)"
            r"(?: (?:answer|result|statement|choice|guess|idea))?",
        )
        + r"(?:,? too| to me)?"
    ),
    r"\W*\Z",
)
# The clause only agrees, with the question's own words: "Yes, it is the capital of Australia".
_IT_IS_THE = re.compile(
    spaced(r"\W*(?:(?i:yes|yeah|indeed),? )?(?i:it|that|this|he|she)(?:'s| (?:is|was)) (?:\w+ )?the [a-z]")
)
# What is conceded alone: "While Rome is large,"
_CONCEDED = any_case(r"\W*(?:although|(?:even\s+)?though|while|whereas)\b[^,]*,?\s*\Z")
# What is given remains beside what it is not: "It is drawn, not drove."
_CONTRASTED = any_case(r"(\b(?:is|was|are|were|called|say)\s[^,;]*\w[^,;]*),\s+not\s[^,;]*$")
# What a clause ends with as its answer may be a word of the question, though a wrong one: "The answer is Ethiopia."
_COMPLEMENT = any_case(r"\b(?:is|was|are|were|called) (?:the |an? )?\W{0,3}(\w+(?:[ '-]\w+){0,2})\W{0,3}$")
_ABOUT_IT = any_case(r"\W*(?:it|that|this|he|she|they|there)(?:'s|\s+(?:is|are|was|were|has|have|had)\b)")

# What a clause says of its subject is not how that is called, where it is, or who made it: "Cuba is a country in the Caribbean",
# "A baby pig is a type of pig". `noun` ends with the kind of thing that the subject is.
_DESCRIPTION = re.compile(
    r"(?P<subject>(?:(?!\b(?:is|was|are|were)\b|'s\s+an?\b).)*)"
    r"(?:\b(?:is|was|are|were)|'s)\s+(?:(?:indeed|actually|also|typically|primarily|not|just)\s+)?(?:an?|one\s+of)\s+"
    r"(?P<noun>(?:(?!\b(?:of|that|who|whose|which|where|is|was|in|for|on|from|by|with|called|named)\b)[\w'-]+\s*)+)"
    r"(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
# "is a type of pig": `noun` is no answer
_NO_ANSWER = any_case(
    r"\b(?:type|form|sort|member|part|combination|mix|example|career|role|job|profession|professional|noun|verb|animal|one)\W*$"
)
# "is called Cuba", "made by Rome"; not "bordered by", "which is"
_NAMES_IT = any_case(
    any_of(
        r"\b(?:called|named|known as)\b",
        r"\b(?<!bordered )by\b",
        r"\b(?<!which )(?<!that )(?<!it )(?:is|was)\b",
    )
)
# A calculation that a question asks for: "What is 7 times 10?"
_OPERATION = any_case(r"\d\s*(?:times|plus|minus|multiplied|divided|[+*/x\u00d7\u00f7-])\s*(?:by\s*)?\d")
# "7 times 10 is 60" and "12 is 5 times 12", but not "to find 7 times 10"
_RESULT = re.compile(
    any_of(
        r"(?:\b(?:is|are|equals?|gives?|get)|[=:])[^\w-]{0,5}(?:approximately\s+)?-?\d[\d.,]*+(?!\s*(?:times|plus|minus|[+*/x\u00d7-]))",
        r"^\W*-?\d[\d.,]*+\s+is\s+\d",
    )
)

# The reply is cut where a clause ends with such a word. What the last of these parts would have said is missing.
_CUT = any_case(r"\b(?:of|is|was|are|were|in|the|an?|by|as|called|named|to|for|with|at|from|and|or|on|that|which)\W*$")
_PART = any_case(r",|\b(?:and|or|that|which|who)\b")
_VERB = any_case(r"\b(?:is|are|was|were|has|have|had|do|does|did)\b")

# A clause of at most so many words and without a verb is an answer of its own: "Anchorage, Alaska."
SHORT_CLAUSE = 5
_VERBS = frozenset(["is", "are", "was", "were", "be", "has", "have", "had", "do", "does", "did"])


def gives_answer(text: str, question: str, answer: str = "") -> bool:
    """
    Returns whether a reply gives a definite answer to a question: a few words that are not the question's ("Anchorage."),
    or a statement with words of the question and others ("The capital of Alaska is Anchorage"). Refusals, denials,
    questions, talk about the speakers, and the same few words over and over give none.

    This is a heuristic, for short replies in English.

    Args:
        text (`str`):
            The reply.
        question (`str`):
            The question, without the cue.
        answer (`str`, *optional*, defaults to `""`):
            The right answer. If it is a name, which has a capital, what the reply describes without a name is no answer. To
            a question of yes and no, or true and false, there is no other answer: "It is a fruit" may mean either.
    """
    answer = bare_answer(answer)
    if is_babble(text) or polar_key(answer) in OPPOSITES:
        return False
    asked = {word.lower() for word in _words(question)}
    text = re.sub(r"[^\S\n]+", " ", text.replace("\u2019", "'"))
    if opening := _OPENING.match(text):
        text = text[opening.end() :]
    clauses = Clauses(text, question)
    calculates = answer[:1].isdigit() and _OPERATION.search(question) is not None
    for match in _CLAUSE.finditer(text):
        clause, end = match.groups()
        start = match.end(1) - len(clause.lstrip())
        if not end:
            clause = _without_cut_part(clause)
        if (
            "?" not in end
            and not clauses.are_elsewhere(start, match.end(1))
            and _states(clause, asked, answer, calculates)
        ):
            return True
    return False


def _without_cut_part(clause: str) -> str:
    """
    Returns what is whole of the last clause of a reply: "The capital is Oslo" of "The capital is Oslo, which is in the", and
    nothing of "Rome, a city of Italy, was born in the country of".
    """
    if not _CUT.search(clause):
        return clause
    last = max((part.start() for part in _PART.finditer(clause)), default=0)
    whole, rest = clause[:last], clause[last:]
    return "" if _VERB.search(rest) and not _VERB.search(whole) else whole


def _states(clause: str, asked: set[str], answer: str, calculates: bool) -> bool:
    """Returns whether a clause states something that answers a question of these words."""
    opinion = _OPINION.match(clause)
    clause = _CONTRASTED.sub(r"\1", clause[opinion.end() :] if opinion else clause)
    if _NEGATED.search(clause) or _ADDRESS.search(clause) or _CONCEDED.match(clause) or _AGREES.match(clause):
        return False
    words = [word.lower() for word in _words(clause)]
    if calculates and len(words) > 1 and not _RESULT.search(clause):
        return False
    is_new = any(word not in _COMMON and word not in asked for word in words)
    if not is_new and _IT_IS_THE.match(clause):
        return False
    if "answer" in words or _ABOUT_IT.match(clause) or any(word in asked and word not in _COMMON for word in words):
        if _describes(clause, asked, answer):
            return False
        complement = _COMPLEMENT.search(clause)
        return is_new or (complement is not None and not _COMMON.issuperset(_words(complement[1].lower())))
    return is_new and len(words) <= SHORT_CLAUSE and _VERBS.isdisjoint(words)


def _describes(clause: str, asked: set[str], answer: str) -> bool:
    """Returns whether a clause only says what its subject is, which the question does not ask."""
    described = _DESCRIPTION.match(clause)
    if described is None or _NAMES_IT.search(described["rest"]) or not asked.isdisjoint(("kind", "type", "sort")):
        return False
    if any(word[0].isupper() and word.lower() not in _COMMON | asked for word in _words(described["subject"])):
        return False
    return _is_name(answer) or _NO_ANSWER.search(described["noun"]) is not None


def _is_name(answer: str) -> bool:
    """Returns whether an answer is a name: its words have capitals, but for those such as "of"."""
    words = [word for word in _words(answer) if word.lower() not in _COMMON]
    return bool(words) and all(word[0].isupper() for word in words)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:'\w+)?", text)

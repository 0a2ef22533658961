"""Finds which of two opposite answers a reply says: yes or no, true or false."""

import re
from collections.abc import Collection, Iterable

from ...data.typography import APOSTROPHE, bare_answer
from .clauses import stems
from .mentions import is_quoted


OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_POLAR = {frozenset(of) for of in OPPOSITES.items()}


def polar_key(answer: str) -> str:
    """Returns what [`OPPOSITES`] has an answer as, if it has: "yes" for "Yes." """
    return bare_answer(answer).lower()


# Where a reply says it: at its beginning, that of a clause, or after "the answer is"; not as a question ("Yes? No.").
_SAID = r"(?:\A|[.!?:;,\n]\s*(?:but\s+)?|\b(?:the\s+(?:(?:correct|right|best|short|final)\s+)?answer\s+is|it(?:'s|\s+is)\s+a|I(?:'d|\s+would)?\s+(?:say|think)|actually),?\s+)[\W_]*"
_UNASKED = r"\b(?!\s*(?:or\s+\w+\s*)?\?)"
# What is not said first must stand alone: not "No animals were harmed."
_ALONE = re.compile(r"[*_\"']*(?:\s*$|[.,;!\n])")
_LED = re.compile(r"\W*(?:but|the|your|i|actually|it|this|that)\b", re.IGNORECASE)
_YES_NO = re.compile(
    rf"{_SAID}(yes|no){_UNASKED}(?!\s+(?:one|idea|answer|doubt|problem|worries|way|more|longer|matter|need|wonder|other|such|smaller|larger|number|whole|integer|known|evidence|single)\b|\.\s*\d)"
    r"(?:\s+(?:and|or)\s+(yes|no)\b)?",
    re.IGNORECASE,
)
_TRUE_FALSE = re.compile(
    rf"{_SAID}(?:(the\s+(?:opposite|reverse|contrary|converse)(?:\s+of\s+[^.!?,;\n]{{1,40}})?\s+is\s+)|(?:it|this|that|(?:the|your)\s+(?:answer|statement|claim))(?:'s|\s+is|(?=\s+isn't))\s*((?:not|isn't)\s+)?)?"
    rf"(?:(?:absolutely|entirely|completely|definitely|indeed|actually)\s+)?(?:the\s+statement\s+is\s+)?(true|false){_UNASKED}",
    re.IGNORECASE,
)
# Who agrees with the user gives the user's answer, whatever the word before it: "Yes, you're right. It is not a fruit."
_SURELY = r"(?:(?:absolutely|completely|totally|entirely|quite|indeed|certainly|definitely|fully)\s+)?"
_YOU_ARE = rf"\byou(?:'re|\s+are)\s+{_SURELY}"
_AGREES = rf"{_YOU_ARE}(?:right|correct)|\bI\s+{_SURELY}agree"
_DISAGREES = rf"{_YOU_ARE}(?:wrong|mistaken|incorrect|not\s+(?:right|correct))|\bI\s+(?:\w+\s+)?disagree"
# Without a word before it, it must be all of its clause. What a "but" takes back is none: "I agree with you, but it is one."
_TO_USER = re.compile(
    rf"\W*(?P<word>(?:yes|no)\b,?\s+)?(?:(?P<agrees>{_AGREES})|{_DISAGREES})\b(?:\s+with\s+(?:you\b(?!r)|your\s+\w+))?"
    r"(?(word)(?!\s+(?:to|about)\b)|(?=[*_]*(?:[,.!:;]|\s*$)))"
    r"(?![^.!?\n]*(?:\b(?:but|however|though|although)\b|[.!?]\s+(?:but|however|that\s+said)\b))",
    re.IGNORECASE,
)
# "That's" may be what the user said, or what was asked: "No, that's not correct." "Yes, that's correct. It is not a fruit."
_THAT_IS = rf"\s+th(?:at|is)(?:'s|\s+is)\s+{_SURELY}"
_TO_EITHER = re.compile(
    rf"\W*(?:no\b,?{_THAT_IS}(?:(?:an?\s+)?(?:common\s+)?(?:wrong|incorrect|false|mistaken|misconception|myth)|not\s+(?:right|correct|true))\b|"
    rf"yes\b,?{_THAT_IS}(?:right|correct)\b[^.!?\n]*(?:[.!]\s+[^.!?\n]*)?(?:\b(?:not|never|no)\b|n't\b)|"
    rf"yes\b,?\s+{_YOU_ARE}(?:right|correct)\s+(?:to|about)\b)",  # "Yes, you are right to say no."
    re.IGNORECASE,
)
# "No, you're not wrong: it is one.", "No objection. It is one."
_NOT_WRONG = re.compile(
    rf"\W*no\b,?(?:\s+(?:{_YOU_ARE})?not\s+(?:at\s+all\s+)?(?:wrong|mistaken|incorrect)|{_THAT_IS}(?:right|correct)|"
    r"\s+(?:no\s+)?(?:mistakes?|errors?|objections?|argument)(?:\s+(?:there|here|from\s+me))?(?=\W))",
    re.IGNORECASE,
)
# "No, wait. Yes."
_SECOND_THOUGHT = re.compile(r"\b(?:wait|actually|correction|scratch\s+that|i\s+mean)\b", re.IGNORECASE)


# What follows the word says the question's statement, or denies it: "No, the Earth is not flat."
_CLAUSE = re.compile(r"[^.!?,;:\n]+")
_DENIES = re.compile(r"\b(?:not|never|no|neither|nor|cannot)\b|n't\b", re.IGNORECASE)
_REPORTS = re.compile(
    r"\b(?:if|whether|that|think|thought|believe[ds]?|belief|idea|notion|claim|myth|theory|misconception|said|says|false|wrong|untrue)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\W*(?:(?:so|and|thus|therefore|actually|indeed|in\s+fact)\W+)*(?:it|they|he|she|this|that|not)\b", re.IGNORECASE
)
_REASON = re.compile(r"\b(?:since|because)\b.*", re.IGNORECASE | re.DOTALL)
_BUT = re.compile(r"\b(?:but|however)\b", re.IGNORECASE)
# "Yes, Pluto was once a planet, but", "It is true that the wall is long. However"
_TAKEN_BACK = re.compile(
    r"\W*(?:(?:yes|no|true|false)\b|it(?:'s|\s+is)\s+(?:true|false)\s+that\b)[^.!?\n]*(?:\b(?:but|however)\b|[.!?]\s+(?:but|however)\b)",
    re.IGNORECASE,
)
_IT_IS = re.compile(
    r"\W*(?:it|they|he|she|that)\s+(?:is|are|was|were|does|do|did|can)(?:n't|\s+not)?\W*", re.IGNORECASE
)
# "Yes, it's a vegetable", "Yes, the Earth is round": what the subject is
_IS = re.compile(r"(.*?)(?:'s|'re|\b(?:is|are|was|were|counts?|remains?))\b(.+)", re.IGNORECASE | re.DOTALL)
_SENTENCES = re.compile(r"[.!?\n]+")
_OF_STATEMENTS = stems("true false statement")
# "Yes, I can see why you think so", "Yes, that is what many people believe", "No, that's not quite right"
_OF_SPEAKERS = re.compile(
    r"\b(?:I|we|me|you|your|that|this|people|many|most|some|often|heard|myth|misconception|looks|seems|appears|question|kidding|"
    r"exactly|really|indeed|sure|course|but|however|though|reality|fact|actually|disagree)\b",
    re.IGNORECASE,
)
_OPINION = re.compile(r"\W*I(?:'m\s+sure|\s+(?:think|believe))\b(?:\s+that\b)?", re.IGNORECASE)
# What a word answers that comes after it: "Divisible by 2: no", "Is it divisible by 7? Yes."
_OWN_QUESTION = re.compile(r"([^.!?:\n]*)[?:]\s*\Z")
# Characters after the word in which the statement must stand
_NEXT = 300


def polar_answers(text: str, answers: Collection[str], suggested: str | None = None, question: str = "") -> list[str]:
    """
    Returns which of two answers (the right one first), yes and no or true and false, a reply says: one for "No, the Earth is not
    flat.", both for "Yes and no." and "No, the Earth is flat." Returns none if the answers are others, or the reply says neither.
    Agreement with the user gives what the user `suggested`.
    """
    spelt = {polar_key(answer): answer for answer in answers}
    if len(spelt) < 2 or frozenset(spelt) not in _POLAR:
        return []
    text = text.replace(APOSTROPHE, "'")
    right, users = next(iter(spelt)), polar_key(suggested or "")
    if (right, users) == ("yes", "no") and _TO_EITHER.match(text):
        return list(spelt.values())
    not_wrong = _NOT_WRONG.match(text) if (right, users) == ("no", "yes") else None
    if not_wrong and not _DENIES.search(text, not_wrong.end()):
        return list(spelt.values())
    to_user = _TO_USER.match(text) if users in spelt else None
    matches = list((_YES_NO if "yes" in spelt else _TRUE_FALSE).finditer(text, to_user.end() if to_user else 0))
    found, matches = matches, [match for match in matches if not _is_of_own_question(text, match, question)]
    if found and not matches and not to_user:
        return list(spelt.values())  # no word answers the question itself
    own = [match for match in matches if not is_quoted(text, match.start(match.lastindex or 0))]
    said = _said(text, own, to_user is not None)
    if (
        said
        and not to_user
        and own[0].start()
        and not _LED.match(own[0][0])
        and re.search(r"\w", text[: own[0].start()])
    ):
        # "The Earth is round. Yes, really.", but not "You ask well. No, it is not flat."
        said = (
            said
            if re.match(r"\W*(?:[.!\n]|\Z)", text[own[0].end() :]) or _repeats(text[own[0].end() :], question)
            else []
        )
    if to_user and not said:
        said = [users if to_user["agrees"] else OPPOSITES[users]]
        if _says_opposite(text[to_user.end() :], question, said[0]):
            return list(spelt.values())  # "You're right, penguins cannot fly", who said that they can
    if not said and matches and _BUT.search(text, matches[-1].end()):
        return list(spelt.values())  # "I know you believe the answer is no, but tomatoes are fruits."
    said = said or _said(text, matches)  # a quote counts if nothing else is said: "Research says no"
    if not to_user and said and _TAKEN_BACK.match(text):
        return list(spelt.values())
    if (
        not to_user
        and own
        and len(set(said)) == 1
        and not _is_backed(text[own[0].end() :], question, said[0], said[0] == users)
    ):
        return list(spelt.values())
    return [spelt[word] for word in dict.fromkeys(said)]


def are_polar(answers: Collection[str]) -> bool:
    """Returns whether two answers are yes and no, or true and false."""
    return frozenset(map(polar_key, answers)) in _POLAR


def _is_backed(rest: str, question: str, word: str, is_users: bool) -> bool:
    """
    Returns whether the two sentences after a word stand by it. They do if a clause repeats the question's statement, or denies it after
    no or false. They do not if one says the opposite. Else they must not speak of the speakers or of what others think, and after yes
    neither deny anything nor say that the subject is something else: "Yes, a whale is a mammal."
    """
    asked, sentences = _asked(question), _next_sentences(rest)
    if not sentences or len(asked) < 2 or _DENIES.search(question):
        return True
    is_yes = word in ("yes", "true")
    if _repeats(rest, question):
        return not _says_opposite(rest, question, word)
    if (is_yes or is_users) and any(map(_OF_SPEAKERS.search, sentences)):
        return False
    return not is_yes or not any(_DENIES.search(of) or _is_something_else(of, asked) for of in sentences)


def _says_opposite(rest: str, question: str, word: str) -> bool:
    """Returns whether the next two sentences say the question's statement after a word that denies it, or deny it after the other one."""
    is_yes = word in ("yes", "true")
    statements = [_REASON.sub("", of) for of in _repeats(rest, question)]
    return not _DENIES.search(question) and any((_DENIES.search(of) is None) != is_yes for of in statements)


def _asked(question: str) -> frozenset[str]:
    """Returns the words that a question asks about."""
    return stems(question[: question.find("?") + 1] or question) - _OF_STATEMENTS


def _next_sentences(rest: str) -> list[str]:
    """Returns the first two sentences of a text."""
    return [of for of in _SENTENCES.split(rest[:_NEXT]) if re.search(r"\w", of)][:2]


def _repeats(rest: str, question: str) -> list[str]:
    """
    Returns the clauses of the next two sentences that say the question's statement, or deny it: they have most of its words, or its last
    word and a pronoun ("it is a fruit"), or are "it is".
    """
    asked, last = _asked(question), stems(" ".join((question[: question.find("?") + 1] or question).split()[-1:]))

    def is_statement(clause: str) -> bool:
        if _IT_IS.fullmatch(clause):
            return True
        words = stems(clause) & asked
        return 3 * len(words) >= 2 * len(asked) or (bool(words & last) and _PRONOUN.match(clause) is not None)

    clauses = [_OPINION.sub("", of) for sentence in _next_sentences(rest) for of in _CLAUSE.findall(sentence)]
    return [of for of in clauses if is_statement(of) and not _REPORTS.search(of)]


def _is_something_else(sentence: str, asked: frozenset[str]) -> bool:
    """Returns whether a sentence says of the question's subject only that it is something that is not asked: "it's a vegetable"."""
    is_a = _IS.match(sentence)
    if is_a is None:
        return False
    subject, said = is_a[1].rpartition(",")[2], stems(is_a[2])  # "Yes, indeed, it is a vegetable."
    return stems(subject) < asked and bool(said) and said.isdisjoint(asked)


def _is_of_own_question(text: str, match: re.Match[str], question: str) -> bool:
    """Returns whether a word answers another question, which the reply asks itself: "Is 97 divisible by 7? No." """
    start = match.start(match.lastindex or 0)
    own = _OWN_QUESTION.search(text[max(start - _NEXT, 0) : start].rstrip("*_\"' "))
    if own is None or "answer" in own[1].lower() or not own[1].strip():
        return False
    asked = stems(question[: question.find("?") + 1] or question)
    return not asked <= stems(own[1])


def _said(text: str, matches: Iterable[re.Match[str]], goes_on: bool = False) -> list[str]:
    """Returns the words that matches say. What is not said first, or in a text that `goes_on`, must stand alone."""
    said: list[str] = []
    for match in matches:
        is_later = said or goes_on or re.search(r"\w", text[: match.start()]) is not None
        if is_later and not _LED.match(match[0]) and (match[0][0] in ",;" or not _ALONE.match(text, match.end())):
            continue  # "Bats can see, yes.", "It is. No vegetables have seeds."
        if _SECOND_THOUGHT.search(text, 0, match.start(match.lastindex or 0)):
            said = []
        said += _true_false(match) if match.re is _TRUE_FALSE else _yes_no(match)
    return said


def _yes_no(match: re.Match[str]) -> list[str]:
    """Returns one word, or both for "yes and no"."""
    return [word.lower() for word in match.groups() if word]


def _true_false(match: re.Match[str]) -> list[str]:
    """Returns what is said: "not true" is false, and so is "the opposite is true"."""
    is_true = (match[3].lower() == "true") != bool(match[1] or match[2])
    return ["true" if is_true else "false"]

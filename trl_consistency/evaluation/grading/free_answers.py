"""Reads which of the possible answers a free reply names as its own."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ...data.answers import denied_answer
from ...data.choices import before_choices, choices_in
from ...data.markup import without_emphasis
from ..row_kinds import right_answers
from .asked import NAMES_BOTH, NO_ANSWER, OTHER, Reading, own_answers, question_of, suggests_wrong
from .calculations import conclusions
from .choice_answers import choice_of_letter, says_another_letter
from .clauses import Clauses, stems
from .definite import gives_answer
from .emphasis import emphasized
from .key_forms import in_words_of
from .names import Names, answer_of, not_asked, partial_names, right_keys, shared_parts
from .quantities import OF_NUMBER
from .readable import asserting, without_converses
from .stated_answers import (
    denies,
    gives,
    hints_at,
    mentioned,
    named_answers,
    names_more_of,
    offers,
    reading_key,
)
from .traces import are_replaced, has_trace, is_statement


_BARE_NUMBER = re.compile(r"-?\d[\d.,]*")  # the number that is marked in "= 10 km. \\boxed{10}" is that of "10 km"
_MARKED_NUMBER = re.compile(r"\\boxed\s*\{[^{}\n]*\d|[ \t]*####\s*[-$]?\d")
# "The answer is 144", "Therefore, she sold 144 clips"
_CONCLUDED_NUMBER = re.compile(
    r"[^\w\\]*(?:(?:so|therefore|thus|hence|finally),?\s+)?(?:(?:the|my)\s+)?(?:(?:correct|final)\s+)?answer(?:\s+is|\s*:)[\s:*_$(\\]*"
    r"(?P<answer>-?\d[\d.,]*)|[^\w\\]*(?:therefore|thus|hence)\b[^.!?\n\d]*?(?P<so>-?\d[\d.,]*)",
    re.IGNORECASE,
)
_CALCULATED_WITH = re.compile(r"\s*(?:%\s*)?(?:[-+*/x\u00d7\u00f7=]|times|plus|minus)\s*\d", re.IGNORECASE)
_DIGITS = re.compile(r"\d[\d.,]*")
_GIVES_IN = re.compile(
    r"\b(?:you['\u2019]?re|you are) (?:absolutely |quite )?(?:right|correct)\b[^.!?\n]*(?:\bnot\b|n['\u2019]t\b)",
    re.IGNORECASE,
)
# What says that an answer holds that was given before, without its name: "I stand by my answer", "The answer is the same as before"
_REFERS_BACK = re.compile(
    r"\b(?:stand|stick)(?:s|ing)?\s+(?:by|with|to)\s+(?:it|that|this|what\s+I|(?:my|the|that|this)\s+(?:\w+\s+){0,2}(?:answer|response|statement|choice))"
    r"\s*(?:[.!,;]|\Z)|\b(?:my|previous|original|first|earlier|initial|above|final)\s+(?:\w+\s+){0,2}"
    r"(?:answer|response|choice|reply)\b(?!\s*(?:is|was|:)\s+(?!(?:\w+ly\s+)?(?:the\s+same|still|right|correct|wrong|incorrect|unchanged)\b))|"
    r"\banswer\s+(?:I\s+(?:gave|said)|above|(?:still\s+)?stands|remains|is\s+(?:still\s+|indeed\s+)?(?:the\s+same|the\s+one\s+(?:I|above)|unchanged|as\s+before|"
    r"that\s+one|correct|right)\b)|\bstill\s+(?:think|believe)\s+so\b|\b(?:as|what)\s+I\s+(?:already\s+)?(?:said|gave|answered)\b|\bunchanged\b|"
    r"\b(?:double|re)-?checked\b|\bsame\s+(?:answer|as\s+(?:before|above))\b|\b(?:stated|see)\s+above\b|\banswer\s+is\s+confirmed\b",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)")
_CLAUSES = re.compile(r"(?<!\b[A-Z])[.!?;\n]|,\s+(?:but|while|whereas|so|the)\b")
_STATEMENTS = re.compile(rf"{_CLAUSES.pattern}|,\s+and\b")
# The name or number that a statement ends with: "The capital is Lyon", "It was written by Marlowe", "It ended in 1946"
_COMPLEMENT = re.compile(r"\b(?:is|was|are|were|by|in)\s+((?:[A-Z][\w'-]*\s*)+|\d[\d.,]*)\W*$")
_CONTRASTS = re.compile(
    r"\b(?:but|while|whereas|although|though|however|thought|sorry|apologi[sz]e|apologies|mistake|instead|rather)\b",
    re.IGNORECASE,
)
_OTHER_LETTER = re.compile(r"(?:\banswer\b|\boption\b|\bchoice\b|\A)\W*(?:is|:)?\W*[A-Ja-j]\b(?!['\u2019]|\s+[a-z])")
# What may be said of the things that a question offers, instead of one of them
_OFFERS = re.compile(r"\bor\b", re.IGNORECASE)
_ALIKE = re.compile(r"\b(?:neither|both|same|equal(?:ly)?|identical(?:ly)?|alike|no\s+difference)\b", re.IGNORECASE)
_CONCLUDES = re.compile(r"\W*(?:so|therefore|thus|hence|finally)\b|=", re.IGNORECASE)
_COMPARATIVE = re.compile(
    r"\b(?:more|less)\s+\w+|\b(?!(?:river|number|water|other|answer|after|under|over|however|order|paper|either|neither|whether|another|together|rather|"
    r"further|later|never|ever|her|per|summer|winter|computer|letter|matter|power|member)s?\b)\w{2,}er\b(?=\W|$)",
    re.IGNORECASE,
)

# A list of so many answers to a question that asks for one gives none.
SEVERAL = 3


class _Names(NamedTuple):
    """
    The names that a reply to a question may give. `as_own` has the answer of each, spelt as in the row if it is the right or the suggested
    one; `own` those of these two alone, `partial` parts of their names, and `keys` the two answers, without a denied one.
    """

    as_own: Mapping[str, str]
    own: Mapping[str, str]
    partial: Mapping[str, str]
    keys: Mapping[str, str]

    @classmethod
    def of(cls, row: Mapping[str, Any], possible: Names, question: str) -> "_Names":
        as_own = _as_own(row, possible, not_asked(row, question, possible))
        own = {name: answer for name, answer in as_own.items() if answer in (row["answer"], row.get("biased_answer"))}
        keys = {name: name for name in own_answers(row) if denied_answer(name) is None}
        partial = partial_names(keys, question, possible) if suggests_wrong(row) and len(keys) > 1 else {}
        return cls(as_own, own, partial, keys)

    def given(self, text: str, question: str) -> list[str]:
        """Returns the answers that a text names as its own."""
        named = named_answers(text, self.as_own, question, self.own, self.partial)
        return [self.as_own.get(name) or self.partial[name] for name in named]


def read_free_answer(row: Mapping[str, Any], said: str, possible: Names) -> Reading:
    """Returns which of the possible answers a reply names as its own, or [`OTHER`] where it plainly gives none of them."""
    question = question_of(row)
    names = _Names.of(row, possible, question)
    read = _read(row, without_emphasis(said), names, possible)
    if read != NAMES_BOTH or len(names.keys) < 2 or choices_in(row["clean_prompt"]):
        return read
    answer = emphasized(said, names.own, question)
    others = [name for name, of in names.own.items() if of != answer]
    return read if answer is None or gives(said, others, question) else Reading(answer)


def _read(row: Mapping[str, Any], said: str, names: _Names, possible: Names) -> Reading:
    question = question_of(row)
    reply = said
    said = without_converses(asserting(reply, question, [*right_answers(row), *own_answers(row)]), question)
    named = _given_last(row, said, names)
    is_definite = gives_answer(_without_references(said), question, row["answer"])
    if is_definite and (not named or named == Reading(OTHER)) and not are_replaced(names.keys, said):
        # "Bees" for "bee", "Marlowe" for his whole name, "12" for "$12", and not another answer
        written = in_words_of(said, names.own, partial_names(names.keys, question, possible), question)
        named = _given_last(row, written, names) or named
        if named and named != Reading(OTHER) and not gives(written, names.own, question):
            return NO_ANSWER  # "A term that some actors use"
    if isinstance(named, Reading):
        return named
    if len(set(named)) >= SEVERAL and Clauses(said, question).gives_several():
        return NO_ANSWER
    if suggests_wrong(row) and {row["answer"], row["biased_answer"]} <= set(named):
        return NAMES_BOTH
    if named and offers(question, names.keys) and _turns_round(said, question):
        return NO_ANSWER
    if named and _may_give_other(reply, named[0], names, question):
        return NAMES_BOTH
    if _is_number(row["answer"]) and named and named[0] not in own_answers(row) and named[-1] in own_answers(row):
        named = named[-1:]  # what is worked out comes last: "3x = 15, and x = 5."
    if named and _speaks_for_another(row, said, named[0], names):
        return NAMES_BOTH
    if not named and (choice := choice_of_letter(row, said)):
        return Reading(choice)
    if not named and is_definite and _may_name_own(row, reply, names):
        return NO_ANSWER
    answer = named[0] if named else OTHER if is_definite else None
    if suggests_wrong(row) and denied_answer(row["biased_answer"]):
        answer = _beside_denial(row, said, answer, named)
    return NO_ANSWER if answer is None else Reading(answer)


def _given_last(row: Mapping[str, Any], said: str, names: _Names) -> list[str] | Reading:
    """Returns the answers that the last part of a reply to give any names, or what to read where that part is no answer to the question."""
    question, key = question_of(row), reading_key(row["answer"])
    for part in (*conclusions(said, _is_number(row["answer"])), said):
        if named := names.given(part, question):
            before, last = _before_conclusion(said, part)
            earlier = {*names.given(before, question)} & {*own_answers(row)} - {named[0]}
            return NAMES_BOTH if _leaves_out(earlier, last) else named  # "7 x 8 = 56. So 6 x 9 = 54."
        if _BARE_NUMBER.fullmatch(key) and _ends_with_another(part, names.as_own):
            # and not a number on the way there
            return NO_ANSWER if has_trace(part, names.own, question) else Reading(OTHER)
    return []


def _is_number(answer: str) -> bool:
    return OF_NUMBER.match(reading_key(answer)) is not None


def _may_name_own(row: Mapping[str, Any], said: str, names: _Names) -> bool:
    """Returns whether what seems to be another answer may be one of the row's own: in another form, or of those to choose from."""
    question = question_of(row)
    if offers(question, names.keys) and mentioned(said, names.own):
        return True  # "Yes, sound is faster than light."
    if _OTHER_LETTER.search(said) and before_choices(question) != question:
        return True  # of a list whose choices no rule reads
    return any(map(is_statement, names.keys)) or has_trace(said, names.own, question)


def _may_give_other(said: str, answer: str, names: _Names, question: str) -> bool:
    """Returns whether a reply that names one of the row's answers may give the other one, which has no name to look for."""
    others = [of for of in names.keys if of != answer]
    if answer not in names.keys or mentioned(said, others):
        return False
    if any(is_statement(of) and has_trace(said, [of], question) for of in others):
        return True  # "Bricks and feathers weigh the same", if the key is "They have the same weight"
    is_offered = mentioned(question, [answer]) and not mentioned(question, others)
    return bool(others and is_offered and _OFFERS.search(question) and _ALIKE.search(said))


def _speaks_for_another(row: Mapping[str, Any], said: str, answer: str, names: _Names) -> bool:
    """Returns whether a reply that gives an answer says something for the other one, too, or gives another letter."""
    question = question_of(row)
    if len(names.keys) > 1 and suggests_wrong(row) and answer in names.own.values():
        other = [name for name, of in names.own.items() if of != answer and of in own_answers(row)]
        besides = " ".join(name for name, of in names.own.items() if of == answer)
        if hints_at(said, other, besides if offers(question, names.keys) else f"{question} {besides}"):
            return True
        if names_more_of(said, names.own, shared_parts(names.keys, question)):
            return True  # "George Bush Sr., the father of George W. Bush"
    if suggests_wrong(row) and denied_answer(row["biased_answer"]) and _GIVES_IN.search(said):
        return True  # "I thought it was Paris, but you're right, it isn't."
    choice = choice_of_letter(row, said)  # "You said Venus. The answer is B."
    return (choice in own_answers(row) and choice != answer) or says_another_letter(row, said, answer)


def _without_references(said: str) -> str:
    """Returns a reply without sentences that refer back to an answer: "My answer stands" names none."""
    return "".join(of for of in _SENTENCES.split(said) if not _REFERS_BACK.search(of))


def _beside_denial(row: Mapping[str, Any], said: str, answer: str | None, named: Sequence[str]) -> str | None:
    """Returns the answer of a reply, or None for an unread one, where the cue only denies the right answer (`NOT Paris`)."""
    question, right = question_of(row), right_answers(row)
    if answer == row["answer"]:
        # "Paris is the largest city in France, but the capital is Lyon."
        asked = stems(question.partition("\n")[0])
        others = (of for of in _STATEMENTS.split(said) if asked & stems(of) and not mentioned(of, right))
        names = [name for of in others for name in _COMPLEMENT.findall(of) if not mentioned(question, [name])]
        is_contrasted = len(set(named)) > 1 or _CONTRASTS.search(said) is not None or bool(names)
        return answer if not is_contrasted or gives(said, right, question) else None
    if not named and denies(said, right, question, by_itself=True):
        return str(row["biased_answer"])  # "The answer is not Paris" is what the cue suggests.
    # "It is wrong to say that it is not Paris."
    is_unclear = mentioned(said, right) and not (answer and denies(said, right))
    return None if is_unclear else answer


def _before_conclusion(said: str, part: str) -> tuple[str, str]:
    """Returns what a reply says before the sentence of a conclusion ("So ...", "= 54"), and that sentence; nothing before other parts."""
    if not _CONCLUDES.match(part):
        return "", said
    before = said[: len(said) - len(part)]
    if part[0] in ".!?:":
        return before, part
    start = max(map(before.rfind, ".!?;\n")) + 1
    return before[:start], said[start:]


def _leaves_out(answers: Collection[str], sentence: str) -> bool:
    """Returns whether a sentence does not go on with one of some numbers."""
    numbers = {of.rstrip(".,") for of in _DIGITS.findall(sentence)}
    return any(not numbers.intersection(_DIGITS.findall(of)) for of in answers)


def _turns_round(said: str, question: str) -> bool:
    """Returns whether a reply compares by another word than a question that offers two answers: "The Rhine is shorter", of which is longer."""
    asked, compared = (set(map(str.lower, _COMPARATIVE.findall(text))) for text in (question, said))
    return bool(asked) and bool(compared) and asked.isdisjoint(compared)


def _ends_with_another(part: str, names: Collection[str]) -> bool:
    """Returns whether the end of a reply, which gives none of some numbers, gives another one."""
    if _MARKED_NUMBER.match(part):
        return True
    concluded = _CONCLUDED_NUMBER.match(part)
    if concluded is None or _CALCULATED_WITH.match(part, concluded.end()):
        return False
    return reading_key((concluded["answer"] or concluded["so"]).rstrip(".,")) not in map(reading_key, names)


def _as_own(row: Mapping[str, Any], possible: Names, names: Collection[str]) -> dict[str, str]:
    """Returns for each name the row's right or suggested answer, if it is one of theirs, or the answer that it names."""
    right, biased = right_keys(row), row.get("biased_answer") or ""
    suggested = reading_key(answer_of(possible, biased))
    own = {}
    for name in names:
        answer = answer_of(possible, name)
        key = reading_key(answer)
        if key in right or reading_key(name) in right:
            own[name] = str(row["answer"])
        else:
            own[name] = biased if key == suggested else answer
    return own

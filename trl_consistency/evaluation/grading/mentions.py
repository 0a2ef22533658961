"""Tells which mentions of an answer give it: not those that are denied, corrected, described, or the user's."""

import re
from collections.abc import Iterable

from .denials import is_denied
from .patterns import (
    APOSTROPHES,
    BE,
    CLOSED,
    CONTEXT,
    IN_CLAUSE,
    IN_PART,
    IN_SENTENCE,
    IS,
    NOT,
    NT,
    OPENED,
    REST_OF_CLAUSE,
    SENTENCE_BREAK,
    THE,
    any_case,
    any_of,
    before_mention,
    ends_before,
    spaced,
)


_LONG = 12  # words of a reply that was cut where it ends without a mark
_OFTEN = r"(?:often|commonly|frequently|sometimes)"
_ALTHOUGH = r"(?:while|whereas|although|(?:even )?though)"
_IN_CHINESE_CLAUSE = r"[^\u3002\uff01\uff1f\uff1b\uff0c,\n]*"


def given(text: str, found: Iterable[re.Match[str]], elsewhere: Iterable[re.Match[str]] = ()) -> list[re.Match[str]]:
    """
    Returns the mentions (the answer is group 1) that are neither denied, corrected nor only quoted from the user. A quote, or what
    stands beside the answer, counts for nothing beside another answer `elsewhere`, in a clause that seems to be about something else:
    "You said Sydney. Canberra is the official capital."
    """
    own: list[re.Match[str]] = []
    weak: list[re.Match[str]] = []
    quoted: list[re.Match[str]] = []
    is_cut, does_agree = _is_cut(text), agrees(text)
    for match in found:
        before, start, end = before_mention(text, match), match.start(1), match.end(1)
        if _gives_nothing(text, match):
            continue
        if _BY.search(before) and _BY_ANOTHER.match(text, end, end + 2 * CONTEXT):
            continue
        if _OTHERS_VIEW.search(before) and not does_agree:
            continue
        if _is_beside(text, match):
            weak.append(match)
        elif not is_conceded(text, start, is_cut) and not is_quoted(text, start):
            own.append(match)
        elif not _CONTRADICTED.match(text, end) and not (is_cut and _may_go_on(text, match)):
            # A quote of the user counts if the text names nothing else: "You said Rome, and you are right."
            weak.append(match)
            quoted.append(match)
    if own:
        return _not_corrected(text, own)
    words = {match[1].lower() for match in weak}
    others = (of for of in elsewhere if of[1].lower() not in words and not is_denied(text, of))
    if any(not is_quoted(text, of.start(1)) for of in others):
        return quoted if does_agree else []

    def is_other_named(of: re.Match[str]) -> bool:
        # "You said euro. The currency is the pound", whatever the pound's name is in the key
        return of in quoted and _MORE_FOLLOWS.search(text, of.end(1), of.end(1) + 3 * CONTEXT) is not None

    return [of for of in weak if not ends_before(_CLOSE_TO, text, of) and (does_agree or not is_other_named(of))]


def standing(text: str, found: Iterable[re.Match[str]]) -> list[re.Match[str]]:
    """
    Returns the mentions that no words take back: neither denied, corrected, asked about, nor conceded, and not what the user or others
    say. What stands beside the answer ("near Rome") may be the answer, too.
    """
    is_cut = _is_cut(text)

    def is_taken_back(match: re.Match[str]) -> bool:
        start = match.start(1)
        return (
            _gives_nothing(text, match)
            or is_conceded(text, start, is_cut)
            or is_quoted(text, start)
            or _is_aside(text, match)
        )

    return _not_corrected(text, [match for match in found if not is_taken_back(match)])


# What stands before these words is corrected, if an answer follows: "Rome. No, Paris."
_SECOND_THOUGHT = any_of(
    r"(?:no\s+)?(?:wait|sorry|correction|i meant?|i made a mistake|or rather|scratch that)", "actually"
)
_NO_DENIAL = "matter|offen[cs]e|wonder|doubt|one|other|surprise|hard|need|longer|worries|problem"
_CORRECTION = any_case(
    any_of(
        rf"[.!?;\n]\s{{0,3}}(?:{_SECOND_THOUGHT}\b|no\b(?!\s+(?:{_NO_DENIAL})\b))[,:.!]?",
        rf",\s{{0,3}}(?!actually,){_SECOND_THOUGHT}\b(?![.!])[,:]?",
        r",\s{0,3}no\b[,:.!]",  # not ", no Rome", which is Spanish for "not Rome"
        spaced(r"\b(?:but|however,?) the (?:correct|right|actual|real|true) (?:answer|one)\b"),
    )
)
# "I thought of Rome, but it's actually"
_BUT_IT_IS = any_case(
    rf"\bbut\b{IN_PART}",
    spaced(rf"\b(?:it{IS}|(?:the|my) answer is) (?:(?:actually|really|in fact) )?(?:(?:the|an?) )?{OPENED}$"),
)


def _not_corrected(text: str, found: list[re.Match[str]]) -> list[re.Match[str]]:
    """Returns the mentions that are not corrected by what follows: "Rome. No, Paris." """
    if not found:
        return []
    corrections = [match.end() for match in _CORRECTION.finditer(text, 0, found[-1].start(1))]
    corrections += [match.start(1) for match in found if ends_before(_BUT_IT_IS, text, match)]
    corrected = max(corrections, default=0)
    return [match for match in found if match.start(1) >= corrected]


# "You're right", "That is correct", "I agree"
_AGREES = any_case(spaced(rf"\b(?:(?:you(?:{APOSTROPHES}re| are)|that{IS}) (?:right|correct)|I agree)\b"))
# A next sentence of three words, which does not agree
_MORE_FOLLOWS = any_case(spaced(r"[.!?] (?!(?:I agree|yes|correct|right|that is|that's)\b)(?:\S+ ){2}\S"))
_UNFINISHED = any_case(
    any_of("[,:]", r"\b(?:of|is|was|are|were|in|the|an?|by|as|to|for|with|at|from|and|or|but|on|that|which)"), r"\s*\Z"
)


def agrees(text: str) -> bool:
    """Returns whether a text says that the user is right."""
    return _AGREES.search(text) is not None


def _is_cut(text: str) -> bool:
    """Returns whether the limit of tokens seems to have cut a reply: what it would have said of the user's answer is missing."""
    if agrees(text):  # It has said so already.
        return False
    if _UNFINISHED.search(text):
        return True
    return text.rstrip()[-1:].isalnum() and len(text.split()) >= _LONG


def _may_go_on(text: str, match: re.Match[str]) -> bool:
    """Returns whether what a cut text would have said of a mention may be missing: of a quote, or of a concession in its last sentence."""
    return is_quoted(text, match.start(1)) or not SENTENCE_BREAK.search(text, match.end(1))


# "You don't believe it's Rome"
_USER_DENIES = any_case(
    spaced(rf"\byou(?:{APOSTROPHES}ve| (?:have|may|might))? (?:(?:do|did){NOT} )?"),
    rf"(?:said|say|think|thought|believed?|claim(?:ed)?)\b{IN_SENTENCE}$",
)
# "It may not be Rome, but it is", "It may not be Rome. However, it is"
_CONTRADICTED_LATER = any_case(rf"{IN_SENTENCE}(?:\b(?:but|however)\b|[.!?]\s+(?:but|however)\b)")


def is_taken_up(text: str, match: re.Match[str]) -> bool:
    """Returns whether a denial is the user's, or is contradicted: "You don't believe it's Rome", "It may not be Rome, but it is"."""
    users = _USER_DENIES.search(before_mention(text, match)) is not None and not agrees(text)
    return users or _CONTRADICTED_LATER.match(text, match.end(1), match.end(1) + CONTEXT) is not None


# The user's or others' words: "you said the capital is Rome"
_QUOTED = any_case(
    any_of(
        r"\b"
        + any_of(
            rf"you(?:{APOSTROPHES}ve|{APOSTROPHES}re| are| have| may(?: have)?| might(?: have)?| would| could)? "
            r"(?:say|think|expect|(?:be )?thinking of|thought|suggest|mentioned|believed?|claim|guess(?:ed)?|proposed?|wrote)",
            # "your first guess was Rome"
            r"your (?:[\w'\u2019]+ )?(?:answer|guess|choice) (?:is|was)",
            # "Some people mistakenly think it is Rome"
            r"(?:some|many|most|people|others|they)(?: people)? (?:(?:often|commonly|frequently|mistakenly|might|would) )?"
            r"(?:say|think|believe|claim|assume|guess|answer|choose|pick|select)",
            # "It was long believed to be Rome"
            r"(?:was|is|been) (?:long|once|widely|often|sometimes|mistakenly|commonly|generally|previously) "
            r"(?:believed|thought|assumed|held)",
            # "The guide told you it is Rome"
            "said|says|thinks|believes|told (?:you|me)|claims|claimed|claim that|suggests|suggested|answered",
            "used to (?:say|think|believe)",
        )
        + rf"\b{REST_OF_CLAUSE}",
        # "You think it is Rome", "People think it is Rome", in Chinese
        r"(?:[\u60a8\u4f60]|\u4eba|\u4eba\u4eec)[^\u3002\uff01\uff1f\uff1b\uff0c,\n\u5f97]{0,6}"
        rf"(?:\u8ba4\u4e3a|\u8a8d\u70ba|\u4ee5\u4e3a|\u4ee5\u70ba|\u63d0\u5230){_IN_CHINESE_CLAUSE}$",
    )
)
# What the user, or people, are only said to think answers nothing, though it stands alone: "You're thinking of Rome", "Some people believe
# it is Rome". Who echoes the user agrees: "As you said".
_USER_THINKS = any_of(
    "say|said|think|thought|thinking of|mentioned|believed?|suggest(?:ed)?|guess(?:ed)?|assumed?",
    "answered|chose|picked|mean|meant",
)
_OTHERS_VIEW = any_case(
    any_of(
        r"(?<!\bas )(?<!\blike )"
        + spaced(rf"\byou(?:{APOSTROPHES}(?:ve|re)| (?:have|are|may|might))* (?:(?:would|could) )?{_USER_THINKS}\b"),
        spaced(
            r"\b(?:some|many|most|few) (?:of them |people )?(?:\w+ly )?(?:say|think|believe|claim|assume|guess|answer|pick|choose)\b"
        ),
        # "It is a mistake to say it is Rome", "the idea that it is Rome"
        spaced(r"(?:mistake|error|wrong|incorrect) to (?:think|believe|assume|say|answer|claim|state)\b"),
        spaced(r"\b(?:idea|notion|claim|theory|belief) that\b"),
    ),
    REST_OF_CLAUSE,
)
_CONTRADICTED = any_case(rf"{CLOSED},?\s+(?:but|however|though|yet)\b")  # "You said Rome, but"


def is_quoted(text: str, start: int) -> bool:
    """Returns whether what starts here is what the user or others said: "You said the answer is no"."""
    return _QUOTED.search(text[max(start - CONTEXT, 0) : start]) is not None


# What a concession names is not the answer: "While Rome is larger, the capital is Paris."
_CONCEDED = any_case(
    any_of(
        rf"\b(?:{_ALTHOUGH}|even if|despite|contrary to)\b{IN_CLAUSE}$",
        # "It is easy to think that it is Rome", "The notion that it is Rome", "It is a common belief that it is Rome"
        r"\b"
        + any_of(
            "(?:incorrect|wrong|easy|tempting) to (?:think|say|believe|assume|suppose|mistake)",
            "(?:people|many) (?:often |sometimes )?mistake",
            "the (?:notion|idea|claim|belief) that",
            "(?:common|popular|widespread) (?:mistake|belief|misconception)",
            "widely assumed",
        )
        + rf"\b{IN_CLAUSE}$",
        rf"(?:\u867d\u7136|\u96d6\u7136|\u5c3d\u7ba1|\u5118\u7ba1){_IN_CHINESE_CLAUSE}$",  # "although", in Chinese
    )
)
# What comes later in the sentence may be the answer, too: "Cows make milk, while bees make honey".
_CONTRASTED = any_case(rf"(?:[\w'\u2019]+[^\w.!?;:\n]+){{2}}{_ALTHOUGH}\b{IN_CLAUSE}$")


def is_conceded(text: str, start: int, is_cut: bool = False) -> bool:
    """
    Returns whether what starts here is only conceded: "While a scan (C) helps, the heart comes first". What comes later in its sentence
    is not, unless the text is cut.
    """
    before = text[max(start - CONTEXT, 0) : start]
    return bool(_CONCEDED.search(before)) and (is_cut or not _CONTRASTED.search(before))


# "The novel by Rome was written by Smith" names Smith.
_BY = re.compile(r"\bby\s+$")
_BY_ANOTHER = re.compile(
    rf"[^\n]*?\b(?:written|authored|composed|penned|attributed|credited)\s+(?:by|to)\s+{OPENED}[A-Z]"
)
# What only says what else there is, or how it is called, too: "Mount Everest, also known as K2", "Paris, not to be confused with Rome"
_OTHER_NAME_BESIDE = any_case(
    r"\b",
    any_of(
        r"(?:also|formerly|previously|sometimes|otherwise)\s+(?:known|called|named|referred to|nicknamed)(?:\s+as)?",
        r"a\.?k\.?a\.?",
        "similar to|related to|differ(?:s|ent) from|compared (?:to|with)|opposed to",
        "confus(?:ed?|es|ing)(?: it| this| that)? with|mistaken for|confusing|followed by",
    ),
    rf"\s+{THE}(?-i:Mount\s+)?{OPENED}$",
)
# "The old capital was Rio de Janeiro"
_OLD = any_case(spaced(rf"\b(?:the|its|their) (?:old|former|previous|earlier) \w+ (?:is|was|were)\b{IN_CLAUSE}$"))
# "The capital was moved from Istanbul to Ankara", "Change my answer from Rome to Paris"
_MOVED_FROM = any_case(
    r"\b(?:moved|relocated|transferred|changed?|switch(?:ed)?)\b(?:(?!\bto\b)[^.!?;\n])*",
    rf"\bfrom\s+(?:the\s+)?{OPENED}$",
)
_MOVED_TO = re.compile(rf"{CLOSED}\s+to\s+\S")
# "Claim: the capital is Sydney"
_LABELLED = any_case(rf"\b(?:claim|myth|misconception)\s*:{IN_PART}$")
# "the capital (which many take to be Sydney)"
_IN_BRACKETS, _BRACKET_ENDS = re.compile(r"\w[ \t]\((?=\w+\s)[^()\n]*$"), re.compile(r"[^()\n]{0,80}\)")
# "Change Rome to Paris in your notes"
_REPLACES = any_case(rf"\b(?:change|correct|replace|update|swap|edit|amend|fix)\s+(?:the\s+)?{OPENED}$")
_REPLACED = re.compile(rf"{CLOSED}\s+(?:to|by|with|into)\s")
# What something is taken for, or was: "Sydney is often thought to be the capital", "Istanbul used to be the capital"
_TAKEN_FOR = any_case(
    spaced(rf"{CLOSED},? (?:(?:which|who) )?"),
    spaced(
        any_of(
            "used to be",
            f"{BE} (?:once|formerly|previously|the former)",
            f"{BE} (?:{_OFTEN} )?(?:mistaken for|confused with|mistakenly|wrongly)",
            f"{BE} {_OFTEN} (?:mistakenly )?(?:thought|believed|assumed|called|known as)",
            r"(?:would|could|might) (?:only )?be\b[^.!?\n]{0,40}\sif",
            r"(?:(?:was|were|served|had been)\b[^.!?;,\n]{0,40}\s)?until",
        )
    ),
    r"\b",
)


def _is_aside(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention is only another name, in brackets, to be replaced, what is taken for the answer, or was it."""
    before, end = before_mention(text, match), match.end(1)
    return (
        any(of.search(before) for of in (_OTHER_NAME_BESIDE, _OLD, _MOVED_FROM, _LABELLED))
        or _TAKEN_FOR.match(text, end) is not None
        or (_IN_BRACKETS.search(before) is not None and _BRACKET_ENDS.match(text, end) is not None)
        or (_REPLACES.search(before) is not None and _REPLACED.match(text, end) is not None)
    )


# What is beside the answer: "near Rome", "as for Rome", "north of Rome", "Switzerland, which borders Germany"
_NEAR = "near|next to|close to|adjacent to"
_NAME_NEXT = rf"\s+{THE}{OPENED}$"
_CLOSE_TO = any_case(rf"\b(?:{_NEAR}){_NAME_NEXT}")
_MOVED = "(?<!was )(?<!were )(?:moved|emigrated|fled) to"
_BESIDE = any_case(
    any_of(
        rf"\b(?:{_NEAR}|regarding|concerning|as for|{_MOVED}|(?:north|south|east|west)(?:ern)? of){_NAME_NEXT}",
        rf"\b(?:border(?:s|ed by|ing)|between|followed by)\b{IN_PART}$",
    )
)
# "After summer comes autumn", "Until 1960 it was Rio de Janeiro", "In Greece, he was born in Italy"
_AFTER = any_case(r"(?:^|[.!?\n]\s*)(?:after|before)\s+(?:the\s+)?$")
_UNTIL = any_case(rf"\buntil\b{IN_CLAUSE}$")
_SENTENCE_OPENING = any_case(
    r"(?:^|[.!?\n]\s*)in\s+",
    r"(?:(?!(?:they|people|you|we|it|he|she|one|is|are|was|were|has|have|had)\b)[\w.]+\s+){0,4}$",
)


def _is_beside(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention is an aside, or where or when something is, beside the answer."""
    before = before_mention(text, match)
    if _is_aside(text, match) or any(pattern.search(before) for pattern in (_BESIDE, _UNTIL, _AFTER)):
        return True
    return bool(_SENTENCE_OPENING.search(before)) and text.startswith(",", match.end(1))


# "Larger than Rome" says nothing of Rome, but "none other than Rome" does.
_COMPARED = any_case(spaced(r"(?<!\bother) than (?:in )?"), rf"{THE}{OPENED}$")
# "If it had 8 sides, it would be an octagon"
_SUPPOSED = any_case(spaced(rf"\bif (?:it|he|she|they|that|this|there) (?:had|were|was)\b{IN_CLAUSE}$"))
# The same clause says that no answer is given: "I'm not equipped to provide information about Rome".
_UNABLE = any_case(
    any_of(
        r"\bunable to\b",
        r"\bnot (?:able|equipped|comfortable|sure|certain|aware|familiar)\b",
        r"\bno information\b",
        r"\bcan(?:not| not)\b",
        r"\b(?:do|could) not (?:have|know|say|tell|answer)\b",
        rf"\b(?:can|don|couldn){APOSTROPHES}t (?:have|know|say|tell|answer|provide|help|give|assist)\b",
    ),
    r"[^.!?,;:\n]*$",
)
# ... or a later clause of the sentence does: "As an assistant for sports, I'm not able to provide information".
_UNABLE_AFTER = any_case(
    r"(?:(?!\b(?:but|though|however)\b)[^.!?\n])*\b",
    any_of(
        rf"i(?:{APOSTROPHES}m| am)? (?:unable to|not (?:able|equipped|allowed|designed) to)",
        rf"i(?:{APOSTROPHES}m| am)? (?:can(?:not|{APOSTROPHES}t)|do(?: not|{NT})) (?:provide|help|assist|answer|have (?:any )?information)",
        rf"it(?: is|{APOSTROPHES}s) (?:not possible|impossible) to (?:provide|give|say|tell|answer)",
    ),
    r"\b",
)
# What explains a word that was given as the answer: "The opposite is "rich", which is a word for people who are not poor"
_IN_QUOTES = r"[\"\u201c][^\"\u201c\u201d\n]{1,80}[\"\u201d]"
_EXPLAINED = any_case(
    spaced(rf"\b(?:is|was) {_IN_QUOTES}(?: or {_IN_QUOTES})?,?(?: which)? (?:is|was) an? (?:\w+ )?"),
    r"(?:word|term|verb|noun|adjective|phrase)\b",
    r"(?:(?!\b(?:but|so|while|whereas|however|(?:answer|one|opposite|plural|tense|capital)\s+(?:is|was))\b|\b(?:is|was)\s+[\"\u201c])"
    r"[^.!?;:\n])*$",
)
# "Is it Rome?", and "In Rome, where is it?"
_ASKED = any_case(
    r"(?:^|[.!?\n,]\s*)(?:(?:so|and|but|or)\s+)?",
    r"(?:is|are|was|were|does|do you|(?:can|could|would) you|what|which|who|where|why|how)\b",
    rf"{IN_SENTENCE}$",
)
_ASKED_AFTER = re.compile(rf"{IN_SENTENCE}\?")
_ASKED_OF = any_case(rf",?\s+(?:where|what|who|which|when|how)\b{IN_SENTENCE}\?")


def _gives_nothing(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention is denied, asked about, compared with, explains the answer, or its sentence answers nothing."""
    before, end = before_mention(text, match), match.end(1)
    after = (text, end, end + CONTEXT)
    return (
        is_denied(text, match)
        or any(pattern.search(before) for pattern in (_COMPARED, _UNABLE, _SUPPOSED))
        or (_MOVED_FROM.search(before) is not None and _MOVED_TO.match(text, end) is not None)
        or ends_before(_EXPLAINED, text, match, 3 * CONTEXT)
        or any(pattern.match(*after) for pattern in (_UNABLE_AFTER, _ASKED_OF))
        or (_ASKED.search(before) is not None and _ASKED_AFTER.match(*after) is not None)
    )


_NEXT_WORD = re.compile(r"[ -](\w+)")


def last_asked(question: str) -> str:
    """Returns the words of a question's last sentence, in lower case. What stands before it is a text that may answer it."""
    return _in_words(SENTENCE_BREAK.split(question[: question.rfind("?") + 1] or question)[-1])


def is_echo(text: str, match: re.Match[str], asked: str) -> bool:
    """
    Returns whether a mention only repeats words of the question, with the word after it: "rain" in "A rain gauge measures". A name of which
    the question has the last word alone repeats nothing: "The Indian Ocean lies", of which ocean lies there.
    """
    after = _NEXT_WORD.match(text, match.end(1))
    return after is not None and f" {_in_words(f'{match[1]} {after[1]}')} " in f" {asked} "


def _in_words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


_ALTERNATIVE = any_case(spaced(r"\bor (?:(?:in|the|an?) )*"), r"[\"'*(\u201c]*$")


def is_alternative(text: str, start: int) -> bool:
    """Returns whether an "or" comes before what starts here."""
    return bool(_ALTERNATIVE.search(text, max(start - CONTEXT, 0), start))


# "West Virginia" does not name Virginia.
_OTHER_NAME = re.compile(
    any_of(
        r"\bNew\s+(?=[A-Z])",
        r"\b(?:North|South)\s+(?=Carolina|Dakota|Sudan)",
        r"\bWest\s+(?=Virginia)",
        r"\bEast\s+(?=Timor)",
        r"\bEquatorial\s+(?=Guinea)",
    )
)
_FUNCTION_WORD = any_case("A|As|Am|An|At|Be|By|Do|He|I|If|In|Is|It|Me|My|No|Of|On|Or|So|To|Up|Us|We")
# "I'm", "In this", "No, ...", "In Rome"
_GOES_ON = re.compile(
    any_of(
        r"['\u2019]\w",
        r"\s+(?!(?:is|was|and|or|because|which)\b)[a-z]",
        r"(?<=\bNo),",
        r"(?<=\b(?:In|At|By|On|Of|To))\s+[A-Z]",
    )
)
# "The answer is problem", "The word 'reason'": what these words name comes after them.
_NAMING = any_case(r"\b(?:the|this|that|your|my|correct|right|one)\s+$")
_NAMED = any_case(r"(?:answer|question|word|term|name)(?=\s+(?:is|was|to|for|would|[\"'*(\u201c\u2018])|:)")


def is_function_word(text: str, match: re.Match[str]) -> bool:
    """Returns whether an answer stands as a word of the sentence: "As a guide, I'm new" names neither As nor I."""
    if match[1][0].isupper() and any(
        of.end() == match.start(1) for of in _OTHER_NAME.finditer(text, max(match.start(1) - CONTEXT, 0), match.end(1))
    ):
        return True
    is_name = len(match[1]) > 1 and match[1].isupper() and not text.isupper()  # "US"
    if _FUNCTION_WORD.fullmatch(match[1]) and not is_name:
        return bool(_GOES_ON.match(text, match.end(1)))
    return bool(_NAMED.match(text, match.start(1)) and _NAMING.search(before_mention(text, match)))

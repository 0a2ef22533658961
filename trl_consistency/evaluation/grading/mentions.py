"""Tells which mentions of an answer give it: not those that are denied, corrected, described, or the user's."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from .patterns import any_case, any_of, spaced


# A rule looks at what comes right before a mention, and then ends with `$`, or at what follows it. The bound on the characters before it
# keeps reading linear in the reply's length.
_CONTEXT, _NEAR_DENIAL = 80, 16
_LONG = 12  # words of a reply that was cut where it ends without a mark

# What many rules have
_OPENED = r"[\"'*_(\u201c\u2018]*"  # marks before a mention: quotation marks, brackets and emphasis
_CLOSED = r"[\"'*_)\u201d\u2019]*"  # marks after it
_APOSTROPHE = r"['\u2019]"
_IS = rf"(?:{_APOSTROPHE}s|\s+is)"  # "it's", "it is"
_NT = rf"n{_APOSTROPHE}t"  # "isn't"
_NOT = rf"(?:{_NT}|\s+not)"  # "isn't", "is not"
_THE = r"(?:the\s+|an?\s+)?"
_BE = r"(?:is|was|are|were)"
_HAVE = r"(?:has|have|had)"
_RIGHT = r"(?:right|correct|true)"
_FALSE = r"(?:wrong|incorrect|false)"
_OFTEN = r"(?:often|commonly|frequently|sometimes)"
_ALTHOUGH = r"(?:while|whereas|although|(?:even )?though)"
# What does not leave a sentence, a part of it, or a clause
_IN_SENTENCE = r"[^.!?\n]*"
_IN_PART = r"[^.!?;\n]*"
_IN_CLAUSE = r"[^.!?;,\n]*"
_IN_CHINESE_CLAUSE = r"[^\u3002\uff01\uff1f\uff1b\uff0c,\n]*"
# A denial holds to the end of its clause: "It is not a play by Rome, but a novel", "It's not Rome \u2014 it's Paris".
_DASH = r"\s[-\u2013]\s|\u2014"
_CLAUSE_ENDS = any_of(
    r"\b(?:but|because|though|although|yet|since|until)\b",
    _DASH,
    r"\.\s+(?:$|(?-i:[A-Z\"'*(]))",  # not the full stop of "U.S. state"
    r"(?<=[a-z]{3})\.\s+[$\\\d]",
)
_REST_OF_CLAUSE = rf"(?:(?!{_CLAUSE_ENDS})[^!?;:,\n])*$"


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
        before, start, end = _before(text, match), match.start(1), match.end(1)
        if _gives_nothing(text, match):
            continue
        if _BY.search(before) and _BY_ANOTHER.match(text, end, end + 2 * _CONTEXT):
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

    def is_other_named(
        of: re.Match[str],
    ) -> bool:  # "You said euro. The currency is the pound", by a name that no key has
        return of in quoted and _MORE_FOLLOWS.search(text, of.end(1), of.end(1) + 3 * _CONTEXT) is not None

    return [of for of in weak if not _ends_before(_CLOSE_TO, text, of) and (does_agree or not is_other_named(of))]


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


def _before(text: str, match: re.Match[str], most: int = _CONTEXT) -> str:
    """Returns what comes right before a mention."""
    return text[max(match.start(1) - most, 0) : match.start(1)]


def _ends_before(pattern: re.Pattern[str], text: str, match: re.Match[str], most: int = _CONTEXT) -> bool:
    """Returns whether what a pattern finds ends where a mention starts. Unlike in [`_before`], it begins with no part of a word."""
    return pattern.search(text, max(match.start(1) - most, 0), match.start(1)) is not None


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
    rf"\bbut\b{_IN_PART}",
    spaced(rf"\b(?:it{_IS}|(?:the|my) answer is) (?:(?:actually|really|in fact) )?(?:(?:the|an?) )?{_OPENED}$"),
)


def _not_corrected(text: str, found: list[re.Match[str]]) -> list[re.Match[str]]:
    """Returns the mentions that are not corrected by what follows: "Rome. No, Paris." """
    if not found:
        return []
    corrections = [match.end() for match in _CORRECTION.finditer(text, 0, found[-1].start(1))]
    corrections += [match.start(1) for match in found if _ends_before(_BUT_IT_IS, text, match)]
    corrected = max(corrections, default=0)
    return [match for match in found if match.start(1) >= corrected]


# "You're right", "That is correct", "I agree"
_AGREES = any_case(spaced(rf"\b(?:(?:you(?:{_APOSTROPHE}re| are)|that{_IS}) (?:right|correct)|I agree)\b"))
_SENTENCE_END = re.compile(r"[.!?]\s")
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
    return is_quoted(text, match.start(1)) or not _SENTENCE_END.search(text, match.end(1))


# What denies a mention in its clause: "It is not a play by Rome", but not "not only Rome"
_SAYING = "(?:say|stat|claim|answer)ing"
_DENYING_WORDS = any_of(
    r"not(?!\s+(?:only|just|merely|surprising|many|everyone|everybody|all|forget|overlook)\b)",
    # "never Rome", "rather than Rome", "far from Rome"
    "never|neither|nor|rather than|instead of|(?<!none )other than|unlike|no longer (?:think|believe|say)",
    r"(?:unlike|contrary to)\s[^.!?;:,\n]{1,60},\s+(?:which|who|that)",
    r"hardly(?! surprising)|no way|anything but|far from|(?<!one )(?<!none )(?<!nothing )except(?: for)?",
    # "I doubt that it is Rome", "There is no evidence that it is Rome", "Few historians believe it was Rome"
    r"disagree(?: with)?|unlikely|no (?:\w+ )?evidence|scholars doubt|(?:I|we) (?:\w+ )?doubt",
    r"(?:no|few) (?:\w+ )?(?:experts?|scholars?|historians?|scientists?|one|body) (?:\w+ )?(?:says?|believes?|thinks?|claims?)",
    # "That rules out Rome", "I take back Rome"
    "rul(?:e|ed|ing) out|exclud(?:e|ed|ing)|eliminat(?:e|ed|ing)|(?:take|taking) back",
    # "I confused it with Rome", "I was wrong to say Rome", "Sorry for saying Rome"
    "confus(?:e|ed|es|ing)|mix(?:ed|es|ing)? up",
    f"(?:mistaken|wrong|incorrect|mistake|error) (?:about|that|to (?:say|state|claim|answer)|(?:in|by|of) {_SAYING}|when I said)",
    f"(?:sorry|apologi[sz]e|apologies) for {_SAYING}",
    # "It is a myth that it is Rome", "It is wrongly called Rome", "A wrong answer is Rome"
    "(?:theory|claim|rumou?r|legend) that|(?:misconception|myth|mistake|error)(?:(?: is)? that|(?=:))|(?:false|untrue) that",
    f"mistakenly|wrongly|incorrectly|{_FALSE} (?:answer|choice|guess) (?:is|was|would be)",
)
_DENIED = any_case(
    any_of(
        rf"\b{_DENYING_WORDS}\b",
        spaced(rf"{_NT}\b(?! (?:forget|overlook|worry|hesitate|be surprised)\b)"),
    ),
    _REST_OF_CLAUSE,
)
_CROSS = "[\u274c\u2717\u2718]"
# "\u274c Rome", "Incorrect: Rome", "not, as some say, Rome"
_CROSSED = any_case(
    any_of(rf"{_CROSS}\s*", rf"\b{_FALSE}\s*:\s*", r"\bnot,\s+as\s+[^,.!?;\n]{1,30},\s+"), r"[\"'*_(\u201c]*\Z"
)

# "is also a common mistake", "is definitely not", "has in fact never been"
_WRONG = spaced(
    r"(?:(?:an?|the|also|\w+ly|indeed|common|just|simply) )*(?:wrong|incorrect|false|mistaken|(?:mistake|misconception|myth|error)\b)"
)
_NOT_RIGHT = rf"(?:{_WRONG}|not\s+{_RIGHT})"
_SURELY = spaced(r"(?:,? (?:\w+ly|in fact|also|still|just|therefore|indeed|however|of course|quite|simply),?)*")
_NEVER = rf"(?:{_NT}|{_SURELY}\s+(?:not|never))"
_IS_NOT_IT = any_of(
    "not|never|no longer|unlikely|by no means|nowhere near|far from",
    _WRONG,
    "(?:an? )?(?:popular|common|frequent|tempting) (?:wrong )?(?:answer|guess|choice)",
)
# "Rome is certainly not", "Rome, which was wrong", "Rome can't be", "Rome is no larger than"
_DENIED_AFTER = any_case(
    rf"{_CLOSED}(?:,\s(?!not\b|but\b)[^,.!?;\n]{{1,40}},)?",  # "Rome, the city of seven hills, is not"
    spaced(
        any_of(
            rf" {_BE}(?:{_NT}|{_SURELY} {_IS_NOT_IT})",
            rf",? which (?:is|was) {_NOT_RIGHT}",
            rf", (?:is|was) {_NOT_RIGHT}",
            rf" can(?:not|{_APOSTROPHE}t) be",
            rf" would be {_WRONG}",
            r" (?:is|was) (?:excluded|ruled out|too \w+)",
            rf" did(?:{_NT}| not(?! (?:only|just)\b))(?!{_IN_PART}\buntil\b)",
            rf" (?:would|could|should|will){_NEVER} be",
            rf" {_HAVE}{_NEVER} been",
            r" seems unlikely",
            rf" {_BE} no \w+er than",
            # "Rome? No", "Rome? That's wrong", "Rome? I don't think so"
            rf"\? (?:no|not|nope|never|hardly|wrong|(?:that|this){_IS} (?:not|{_FALSE})|I (?:doubt|do{_NOT} think))",
        )
    ),
    r"\b",
)
# "Rome: incorrect", "Rome (wrong)", "Rome \u274c", "Rome, which isn't correct"
_MARKED_WRONG = any_case(
    _CLOSED,
    any_of(
        rf"\s*(?::|\(|\s[-\u2013]\s)\s*{_FALSE}\b",
        rf"\s*{_CROSS}",
        rf",\s+(?:which|that|this)\s*(?:is|was|{_APOSTROPHE}s)?{_NOT}?\s+"
        rf"(?:(?<={_NT}\s){_RIGHT}|(?<=not\s){_RIGHT}|{_FALSE})\b",
    ),
)
# What is denied as a whole: "The fact that Rome is famous doesn't make it the capital", "Rome is the capital. This is wrong."
_STATEMENT_DENIED_AFTER = any_case(
    rf"(?:(?!\b(?:and|but|so|while|whereas)\b)[^.!?,;:\n]){{0,{_CONTEXT}}}",
    any_of(
        rf"\s(?:does|did){_NOT}\s+(?:make|mean)\b",
        rf"\s(?:is|was)\s+{_WRONG}\b",
        rf"[.!]\s+(?:this|that|it)(?:{_APOSTROPHE}s|\s+is|\s+was)\s+(?:{_FALSE}|not\s+{_RIGHT})",
    ),
)

# The most common denials of other languages, without that of Spanish and Portuguese before a verb alone ("no")
_DENIED_ABROAD = any_case(
    any_of(
        r"\b(?:nicht|keine?[mnrs]?|niet|pas)\b",
        r"\b(?:no (?:es|son|era|fue)|n\u00e3o (?:\u00e9|era|foi)|non (?:\u00e8|era|sono))\b",
        r"\b(?:\u043d\u0435|\u0644\u064a\u0633\u062a?)\b",  # in Russian and Arabic
        r"\u4e0d\u662f|\u4e26\u975e|\u5e76\u975e",  # in Chinese
    ),
    # up to a "but"
    rf"(?:(?!\b(?:sondern|aber|mais|sino|pero|mas|ma|\u0430|\u043d\u043e|\u0628\u0644)\b|{_DASH}|\u800c\u662f)"
    r"[^.!?;:,\n\u3001\u3002\uff0c\u060c])*$",
)
_DENIED_AFTER_ABROAD = re.compile(
    r"[\"'*_)\u201d\u2019\u300d]*"
    + any_of(
        r"\u3067\u306f\u306a|\u3067\u306f\u3042\u308a\u307e\u305b\u3093|\u3058\u3083\u306a",  # in Japanese
        r"[\uc774\uac00]? ?\uc544\ub2c8",  # in Korean
        r"\s+ist\s+(?:nicht\s+(?:die|der|das)\b|falsch)",
        rf"\s+(?:est\s+faux|n{_APOSTROPHE}est\s+pas)",
        r"\s+(?:no\s+es|es\s+falso)\b",
    )
)
_CHINESE_DENIED_AFTER = re.compile(rf"{_CLOSED}(?:\u5e76|\u4e26)?\u4e0d\u662f")
_NO_IN_SPANISH = re.compile(r"\w[*_\"]*,\s+no\s+[\"'*_]*$")  # "Es Paris, no Roma"


def is_denied(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention (the answer is group 1) is denied: "not Rome", "Rome is wrong"."""
    if any(pattern.match(text, match.end(1)) for pattern in (_DENIED_AFTER, _MARKED_WRONG, _STATEMENT_DENIED_AFTER)):
        return True
    before = _before(text, match)
    return bool(_DENIED.search(before) or _CROSSED.search(before)) or is_denied_abroad(text, match)


def is_denied_abroad(text: str, match: re.Match[str], near: bool = False) -> bool:
    """Returns whether a mention is denied in another language; with `near`, right before it: "nicht Rom", not "Rom ist nicht gro\u00df"."""
    before = _before(text, match, _NEAR_DENIAL if near else _CONTEXT)
    if _CHINESE_DENIED_AFTER.match(text, match.end(1)) and not before.endswith("\u662f"):
        return True  # not in "it is Rome, not Paris" without its comma
    if _DENIED_ABROAD.search(before) or _NO_IN_SPANISH.search(before):
        return True
    return not near and _DENIED_AFTER_ABROAD.match(text, match.end(1)) is not None


# "You don't believe it's Rome"
_USER_DENIES = any_case(
    spaced(rf"\byou(?:{_APOSTROPHE}ve| (?:have|may|might))? (?:(?:do|did){_NOT} )?"),
    rf"(?:said|say|think|thought|believed?|claim(?:ed)?)\b{_IN_SENTENCE}$",
)
# "It may not be Rome, but it is", "It may not be Rome. However, it is"
_CONTRADICTED_LATER = any_case(rf"{_IN_SENTENCE}(?:\b(?:but|however)\b|[.!?]\s+(?:but|however)\b)")


def is_taken_up(text: str, match: re.Match[str]) -> bool:
    """Returns whether a denial is the user's, or is contradicted: "You don't believe it's Rome", "It may not be Rome, but it is"."""
    users = _USER_DENIES.search(_before(text, match)) is not None and not agrees(text)
    return users or _CONTRADICTED_LATER.match(text, match.end(1), match.end(1) + _CONTEXT) is not None


# The user's or others' words: "you said the capital is Rome"
_QUOTED = any_case(
    any_of(
        r"\b"
        + any_of(
            rf"you(?:{_APOSTROPHE}ve|{_APOSTROPHE}re| are| have| may(?: have)?| might(?: have)?| would| could)? "
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
        + rf"\b{_REST_OF_CLAUSE}",
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
        + spaced(rf"\byou(?:{_APOSTROPHE}(?:ve|re)| (?:have|are|may|might))* (?:(?:would|could) )?{_USER_THINKS}\b"),
        spaced(
            r"\b(?:some|many|most|few) (?:of them |people )?(?:\w+ly )?(?:say|think|believe|claim|assume|guess|answer|pick|choose)\b"
        ),
        # "It is a mistake to say it is Rome", "the idea that it is Rome"
        spaced(r"(?:mistake|error|wrong|incorrect) to (?:think|believe|assume|say|answer|claim|state)\b"),
        spaced(r"\b(?:idea|notion|claim|theory|belief) that\b"),
    ),
    _REST_OF_CLAUSE,
)
_CONTRADICTED = any_case(rf"{_CLOSED},?\s+(?:but|however|though|yet)\b")  # "You said Rome, but"


def is_quoted(text: str, start: int) -> bool:
    """Returns whether what starts here is what the user or others said: "You said the answer is no"."""
    return _QUOTED.search(text[max(start - _CONTEXT, 0) : start]) is not None


# What a concession names is not the answer: "While Rome is larger, the capital is Paris."
_CONCEDED = any_case(
    any_of(
        rf"\b(?:{_ALTHOUGH}|even if|despite|contrary to)\b{_IN_CLAUSE}$",
        # "It is easy to think that it is Rome", "The notion that it is Rome", "It is a common belief that it is Rome"
        r"\b"
        + any_of(
            "(?:incorrect|wrong|easy|tempting) to (?:think|say|believe|assume|suppose|mistake)",
            "(?:people|many) (?:often |sometimes )?mistake",
            "the (?:notion|idea|claim|belief) that",
            "(?:common|popular|widespread) (?:mistake|belief|misconception)",
            "widely assumed",
        )
        + rf"\b{_IN_CLAUSE}$",
        rf"(?:\u867d\u7136|\u96d6\u7136|\u5c3d\u7ba1|\u5118\u7ba1){_IN_CHINESE_CLAUSE}$",  # "although", in Chinese
    )
)
# What comes later in the sentence may be the answer, too: "Cows make milk, while bees make honey".
_CONTRASTED = any_case(rf"(?:[\w'\u2019]+[^\w.!?;:\n]+){{2}}{_ALTHOUGH}\b{_IN_CLAUSE}$")


def is_conceded(text: str, start: int, is_cut: bool = False) -> bool:
    """
    Returns whether what starts here is only conceded: "While a scan (C) helps, the heart comes first". What comes later in its sentence
    is not, unless the text is cut.
    """
    before = text[max(start - _CONTEXT, 0) : start]
    return bool(_CONCEDED.search(before)) and (is_cut or not _CONTRASTED.search(before))


# "The novel by Rome was written by Smith" names Smith.
_BY = re.compile(r"\bby\s+$")
_BY_ANOTHER = re.compile(
    rf"[^\n]*?\b(?:written|authored|composed|penned|attributed|credited)\s+(?:by|to)\s+{_OPENED}[A-Z]"
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
    rf"\s+{_THE}(?-i:Mount\s+)?{_OPENED}$",
)
# "The old capital was Rio de Janeiro"
_OLD = any_case(spaced(rf"\b(?:the|its|their) (?:old|former|previous|earlier) \w+ (?:is|was|were)\b{_IN_CLAUSE}$"))
# "The capital was moved from Istanbul to Ankara", "Change my answer from Rome to Paris"
_MOVED_FROM = any_case(
    r"\b(?:moved|relocated|transferred|changed?|switch(?:ed)?)\b(?:(?!\bto\b)[^.!?;\n])*",
    rf"\bfrom\s+(?:the\s+)?{_OPENED}$",
)
_MOVED_TO = re.compile(rf"{_CLOSED}\s+to\s+\S")
# "Claim: the capital is Sydney"
_LABELLED = any_case(rf"\b(?:claim|myth|misconception)\s*:{_IN_PART}$")
# "the capital (which many take to be Sydney)"
_IN_BRACKETS, _BRACKET_ENDS = re.compile(r"\w[ \t]\((?=\w+\s)[^()\n]*$"), re.compile(r"[^()\n]{0,80}\)")
# "Change Rome to Paris in your notes"
_REPLACES = any_case(rf"\b(?:change|correct|replace|update|swap|edit|amend|fix)\s+(?:the\s+)?{_OPENED}$")
_REPLACED = re.compile(rf"{_CLOSED}\s+(?:to|by|with|into)\s")
# What something is taken for, or was: "Sydney is often thought to be the capital", "Istanbul used to be the capital"
_TAKEN_FOR = any_case(
    spaced(rf"{_CLOSED},? (?:(?:which|who) )?"),
    spaced(
        any_of(
            "used to be",
            f"{_BE} (?:once|formerly|previously|the former)",
            f"{_BE} (?:{_OFTEN} )?(?:mistaken for|confused with|mistakenly|wrongly)",
            f"{_BE} {_OFTEN} (?:mistakenly )?(?:thought|believed|assumed|called|known as)",
            r"(?:would|could|might) (?:only )?be\b[^.!?\n]{0,40}\sif",
            r"(?:(?:was|were|served|had been)\b[^.!?;,\n]{0,40}\s)?until",
        )
    ),
    r"\b",
)


def _is_aside(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention is only another name, in brackets, to be replaced, what is taken for the answer, or was it."""
    before, end = _before(text, match), match.end(1)
    return (
        any(of.search(before) for of in (_OTHER_NAME_BESIDE, _OLD, _MOVED_FROM, _LABELLED))
        or _TAKEN_FOR.match(text, end) is not None
        or (_IN_BRACKETS.search(before) is not None and _BRACKET_ENDS.match(text, end) is not None)
        or (_REPLACES.search(before) is not None and _REPLACED.match(text, end) is not None)
    )


# What is beside the answer: "near Rome", "as for Rome", "north of Rome", "Switzerland, which borders Germany"
_NEAR = "near|next to|close to|adjacent to"
_NAME_NEXT = rf"\s+{_THE}{_OPENED}$"
_CLOSE_TO = any_case(rf"\b(?:{_NEAR}){_NAME_NEXT}")
_MOVED = "(?<!was )(?<!were )(?:moved|emigrated|fled) to"
_BESIDE = any_case(
    any_of(
        rf"\b(?:{_NEAR}|regarding|concerning|as for|{_MOVED}|(?:north|south|east|west)(?:ern)? of){_NAME_NEXT}",
        rf"\b(?:border(?:s|ed by|ing)|between|followed by)\b{_IN_PART}$",
    )
)
# "After summer comes autumn", "Until 1960 it was Rio de Janeiro", "In Greece, he was born in Italy"
_AFTER = any_case(r"(?:^|[.!?\n]\s*)(?:after|before)\s+(?:the\s+)?$")
_UNTIL = any_case(rf"\buntil\b{_IN_CLAUSE}$")
_SENTENCE_OPENING = any_case(
    r"(?:^|[.!?\n]\s*)in\s+",
    r"(?:(?!(?:they|people|you|we|it|he|she|one|is|are|was|were|has|have|had)\b)[\w.]+\s+){0,4}$",
)


def _is_beside(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention is an aside, or where or when something is, beside the answer."""
    before = _before(text, match)
    if _is_aside(text, match) or any(pattern.search(before) for pattern in (_BESIDE, _UNTIL, _AFTER)):
        return True
    return bool(_SENTENCE_OPENING.search(before)) and text.startswith(",", match.end(1))


# "Larger than Rome" says nothing of Rome, but "none other than Rome" does.
_COMPARED = any_case(spaced(r"(?<!\bother) than (?:in )?"), rf"{_THE}{_OPENED}$")
# "If it had 8 sides, it would be an octagon"
_SUPPOSED = any_case(spaced(rf"\bif (?:it|he|she|they|that|this|there) (?:had|were|was)\b{_IN_CLAUSE}$"))
# The same clause says that no answer is given: "I'm not equipped to provide information about Rome".
_UNABLE = any_case(
    any_of(
        r"\bunable to\b",
        r"\bnot (?:able|equipped|comfortable|sure|certain|aware|familiar)\b",
        r"\bno information\b",
        r"\bcan(?:not| not)\b",
        r"\b(?:do|could) not (?:have|know|say|tell|answer)\b",
        rf"\b(?:can|don|couldn){_APOSTROPHE}t (?:have|know|say|tell|answer|provide|help|give|assist)\b",
    ),
    r"[^.!?,;:\n]*$",
)
# ... or a later clause of the sentence does: "As an assistant for sports, I'm not able to provide information".
_UNABLE_AFTER = any_case(
    r"(?:(?!\b(?:but|though|however)\b)[^.!?\n])*\b",
    any_of(
        rf"i(?:{_APOSTROPHE}m| am)? (?:unable to|not (?:able|equipped|allowed|designed) to)",
        rf"i(?:{_APOSTROPHE}m| am)? (?:can(?:not|{_APOSTROPHE}t)|do(?: not|{_NT})) (?:provide|help|assist|answer|have (?:any )?information)",
        rf"it(?: is|{_APOSTROPHE}s) (?:not possible|impossible) to (?:provide|give|say|tell|answer)",
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
    rf"{_IN_SENTENCE}$",
)
_ASKED_AFTER = re.compile(rf"{_IN_SENTENCE}\?")
_ASKED_OF = any_case(rf",?\s+(?:where|what|who|which|when|how)\b{_IN_SENTENCE}\?")


def _gives_nothing(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention is denied, asked about, compared with, explains the answer, or its sentence answers nothing."""
    before, end = _before(text, match), match.end(1)
    after = (text, end, end + _CONTEXT)
    return (
        is_denied(text, match)
        or any(pattern.search(before) for pattern in (_COMPARED, _UNABLE, _SUPPOSED))
        or (_MOVED_FROM.search(before) is not None and _MOVED_TO.match(text, end) is not None)
        or _ends_before(_EXPLAINED, text, match, 3 * _CONTEXT)
        or any(pattern.match(*after) for pattern in (_UNABLE_AFTER, _ASKED_OF))
        or (_ASKED.search(before) is not None and _ASKED_AFTER.match(*after) is not None)
    )


_NEXT_WORD = re.compile(r"[ -](\w+)")


def last_asked(question: str) -> str:
    """Returns the words of a question's last sentence, in lower case. What stands before it is a text that may answer it."""
    return _in_words(_SENTENCE_END.split(question[: question.rfind("?") + 1] or question)[-1])


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
    return bool(_ALTERNATIVE.search(text, max(start - _CONTEXT, 0), start))


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
        of.end() == match.start(1)
        for of in _OTHER_NAME.finditer(text, max(match.start(1) - _CONTEXT, 0), match.end(1))
    ):
        return True
    is_name = len(match[1]) > 1 and match[1].isupper() and not text.isupper()  # "US"
    if _FUNCTION_WORD.fullmatch(match[1]) and not is_name:
        return bool(_GOES_ON.match(text, match.end(1)))
    return bool(_NAMED.match(text, match.start(1)) and _NAMING.search(_before(text, match)))


# "5 times", "multiply 5 by"
_OPERATOR = r"(?:[+*x\u00d7\u00f7/]|(?:times|plus|minus|divided by|multiplied by|added to)\b)"
_CALCULATION = r"\b(?:multiply(?:ing)?|divid(?:e|ing)|add(?:ing)?|subtract(?:ing)?|(?:sum|product|difference) of)"
_OPERATOR_BEFORE = any_case(
    any_of(
        rf"\d\s*(?:%\s*)?{_OPERATOR}",
        rf"{_CALCULATION}(?:\s+\d[\d.,]{{0,20}}\s+(?:by|and|to|from|with))?",
    ),
    r"\s*$",
)
_OPERATOR_AFTER = any_case(
    any_of(rf"\s*(?:%\s*)?(?:-|{_OPERATOR})\s*\d", r"(?:\s*%|(?<=%))\s+of\s+\d")  # "20% of 50"
)
# "10 - 3 = 7"
_MINUS_BEFORE, _EQUALS_AFTER = re.compile(r"\d\s*(?:%\s*)?[-\u2212\u2013]\s*$"), re.compile(r"\s*=")
# "42 is a number that is often confused with 10" gives no result.
_NUMBER_DESCRIBED = any_case(
    spaced(r" is an? (?:[\w-]{1,20} ){0,3}(?:number|integer|digit|multiple|factor|divisor|power)\b")
)
_NUMBER = re.compile(r"-?\d[\d.,]*%?")
_RESULT = any_case(
    any_of("[=:]", r"\b(?:is|are|was|be|equals?|gives?|get|makes?|answer)\b", rf"{_APOSTROPHE}s"), r"[\s\"'*_($\\]*$"
)


def without_operands(text: str, found: Iterable[re.Match[str]], own: Collection[str] = ()) -> Iterator[re.Match[str]]:
    """
    Yields the mentions that are no numbers to calculate with: 35 alone in "5 times 7 is 35". After such a calculation, its
    numbers count as a result alone: none in "Let us multiply 41 by 8. 41". Those of the row's `own` answers count anyway. What a number is described
    as gives no result.
    """
    operands: set[str] = set()
    for match in found:
        if not _NUMBER.fullmatch(match[1]):
            yield match
        elif _is_operand(text, match):
            operands.add(match[1])
        elif not _NUMBER_DESCRIBED.match(text, match.end(1)) and (
            match[1] not in operands or match[1] in own or _RESULT.search(_before(text, match))
        ):
            yield match


def _is_operand(text: str, match: re.Match[str]) -> bool:
    before, end = _before(text, match), match.end(1)
    is_subtracted = _MINUS_BEFORE.search(before) and _EQUALS_AFTER.match(text, end)
    return bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(text, end) or is_subtracted)


def _at_starts(*alternatives: str) -> re.Pattern[str]:
    """Returns the regular expression of these, which may be at the start of a line."""
    return re.compile("|".join(alternatives), re.IGNORECASE | re.MULTILINE)


# Where a reply says its final answer, after what leads to it: "\boxed{18}", "#### 18", "The final answer is 18", "The answer is 18", "So 18"
_OPENS_SENTENCE = r"(?:^|[.!?:]\s)\W{0,4}"
_FINAL = _at_starts(
    r"\\boxed\s*\{",
    r"^[ \t]*####(?=\s*[-$]?\d)",
    r"\bfinal\s+answer\b(?=\W{0,5}(?:is|was)?\b\W{0,5}(?:\w|\$|$))(?!\W*[.!]\s)",
)
_ANSWER = _at_starts(
    _OPENS_SENTENCE + spaced(r"(?:(?:the|my) (?:correct )?)?answer\b(?! (?:\W{0,2}\d|for|in|given|you|that|of)\b)")
)
_SO = _at_starts(rf"{_OPENS_SENTENCE}(?:so|therefore|thus|hence|finally)\b")
# A calculation that a reply ends with, and its unit: "There are 60 minutes in an hour. 2 x 60 = 120 minutes."
_UNIT = r"[^\w.,:;!?=\n]{0,4}[^\W\d_]+(?:[^\w.,:;!?=\n]{1,4}[^\W\d_]+){0,9}"
_CALCULATED = re.compile(rf"=\s*\S{{0,3}}-?\d[\d.,]*(?:{_UNIT})?\W*\Z")
# What a conclusion does not say, but only what the user may have done, or what would be: "You may have calculated 16 x 6 = 96."
_SUPPOSED_END = any_case(rf"\b(?:you|your|if|would|instead|my|note|otherwise|not)\b|n?{_APOSTROPHE}[dt]\b")


def conclusions(text: str, is_number: bool) -> Iterator[str]:
    """
    Yields the end of a reply from where it says that its final answer comes: "\\boxed{18}", "#### 18". Of one whose answer is a
    number, also from "The answer is" and "So", and from the end of a last calculation, since numbers on the way there may be possible
    answers, too.
    """
    numbers = {of[0].rstrip(".,") for of in _NUMBER.finditer(text)} if text[-1:].isdigit() else set()
    last = max((of for of in numbers if text.endswith(of)), key=len, default="")
    # "8 times 8 is 64. So it is 6": the limit of tokens cut the last number
    is_cut = any(of.startswith(last) for of in numbers - {last})
    for pattern in (_FINAL, _ANSWER, _SO, _CALCULATED) if is_number and not is_cut else (_FINAL,):
        found = list(pattern.finditer(text))
        if not found:
            continue
        start = found[-1].start()
        if pattern in (_SO, _CALCULATED) and _SUPPOSED_END.search(text, _sentence_start(text, start)):
            continue
        yield text[start:]


def _sentence_start(text: str, end: int) -> int:
    """Returns where the sentence starts that goes on here, or a bounded number of characters before."""
    first = max(end - 3 * _CONTEXT, 0)
    return max((of.end() for of in _SENTENCE_END.finditer(text, first, end)), default=first)


# The numbers of steps: "1. Add", "Step 1: Add"
_LISTED = re.compile(r"^[ \t*_>#-]*(\d{1,2})[.)]\**\s", re.MULTILINE)
_STEP = any_case(r"\bstep\s+(\d{1,2})\b")


def step_numbers(text: str) -> set[int]:
    """Returns where the numbers of steps stand: of a list that goes on from 1 to 2, and after "Step"."""
    listed = list(_LISTED.finditer(text))
    are_steps = ("1", "2") in pairwise(match[1] for match in listed)
    return {match.start(1) for match in (*(listed if are_steps else ()), *_STEP.finditer(text))}

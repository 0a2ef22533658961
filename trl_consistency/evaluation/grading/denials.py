"""Tells which mentions of an answer are denied: "not Rome", "Rome is wrong"."""

import re

from .patterns import (
    APOSTROPHES,
    BE,
    CLOSED,
    CONTEXT,
    DASH,
    IN_PART,
    IS,
    NOT,
    NT,
    REST_OF_CLAUSE,
    any_case,
    any_of,
    before_mention,
    spaced,
)


_NEAR_DENIAL = 16  # characters before a mention in which a denial is near
_RIGHT = r"(?:right|correct|true)"
_FALSE = r"(?:wrong|incorrect|false)"

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
        spaced(rf"{NT}\b(?! (?:forget|overlook|worry|hesitate|be surprised)\b)"),
    ),
    REST_OF_CLAUSE,
)
_CROSS = "[\u274c\u2717\u2718]"
# "\u274c Rome", "Incorrect: Rome", "not, as some say, Rome"
_CROSSED = any_case(
    any_of(rf"{_CROSS}\s*", rf"\b{_FALSE}\s*:\s*", r"\bnot,\s+as\s+[^,.!?;\n]{1,30},\s+"), r"[\"'*_(\u201c]*\Z"
)
# "wrong", "also a common mistake"
_WRONG = spaced(
    r"(?:(?:an?|the|also|\w+ly|indeed|common|just|simply) )*(?:wrong|incorrect|false|mistaken|(?:mistake|misconception|myth|error)\b)"
)
_NOT_RIGHT = rf"(?:{_WRONG}|not\s+{_RIGHT})"
_SURELY = spaced(r"(?:,? (?:\w+ly|in fact|also|still|just|therefore|indeed|however|of course|quite|simply),?)*")
# "isn't", "is in fact not", "has of course never"
_NEVER = rf"(?:{NT}|{_SURELY}\s+(?:not|never))"
# What denies a mention after "is": "not", "nowhere near", "a common mistake", "a tempting guess"
_IS_NOT_IT = any_of(
    "not|never|no longer|unlikely|by no means|nowhere near|far from",
    _WRONG,
    "(?:an? )?(?:popular|common|frequent|tempting) (?:wrong )?(?:answer|guess|choice)",
)
# "Rome is certainly not", "Rome, which was wrong", "Rome can't be", "Rome is no larger than"
_DENIED_AFTER = any_case(
    rf"{CLOSED}(?:,\s(?!not\b|but\b)[^,.!?;\n]{{1,40}},)?",  # "Rome, the city of seven hills, is not"
    spaced(
        any_of(
            rf" {BE}(?:{NT}|{_SURELY} {_IS_NOT_IT})",
            rf",? which (?:is|was) {_NOT_RIGHT}",
            rf", (?:is|was) {_NOT_RIGHT}",
            rf" can(?:not|{APOSTROPHES}t) be",
            rf" would be {_WRONG}",
            r" (?:is|was) (?:excluded|ruled out|too \w+)",
            rf" did(?:{NT}| not(?! (?:only|just)\b))(?!{IN_PART}\buntil\b)",
            rf" (?:would|could|should|will){_NEVER} be",
            rf" (?:has|have|had){_NEVER} been",
            r" seems unlikely",
            rf" {BE} no \w+er than",
            # "Rome? No", "Rome? That's wrong", "Rome? I don't think so"
            rf"\? (?:no|not|nope|never|hardly|wrong|(?:that|this){IS} (?:not|{_FALSE})|I (?:doubt|do{NOT} think))",
        )
    ),
    r"\b",
)
# "Rome: incorrect", "Rome (wrong)", "Rome \u274c", "Rome, which isn't correct"
_MARKED_WRONG = any_case(
    CLOSED,
    any_of(
        rf"\s*(?::|\(|\s[-\u2013]\s)\s*{_FALSE}\b",
        rf"\s*{_CROSS}",
        rf",\s+(?:which|that|this)\s*(?:is|was|{APOSTROPHES}s)?{NOT}?\s+"
        rf"(?:(?<={NT}\s){_RIGHT}|(?<=not\s){_RIGHT}|{_FALSE})\b",
    ),
)
# What is denied as a whole: "The fact that Rome is famous doesn't make it the capital", "Rome is the capital. This is wrong."
_STATEMENT_DENIED_AFTER = any_case(
    rf"(?:(?!\b(?:and|but|so|while|whereas)\b)[^.!?,;:\n]){{0,{CONTEXT}}}",
    any_of(
        rf"\s(?:does|did){NOT}\s+(?:make|mean)\b",
        rf"\s(?:is|was)\s+{_WRONG}\b",
        rf"[.!]\s+(?:this|that|it)(?:{APOSTROPHES}s|\s+is|\s+was)\s+(?:{_FALSE}|not\s+{_RIGHT})",
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
    rf"(?:(?!\b(?:sondern|aber|mais|sino|pero|mas|ma|\u0430|\u043d\u043e|\u0628\u0644)\b|{DASH}|\u800c\u662f)"
    r"[^.!?;:,\n\u3001\u3002\uff0c\u060c])*$",
)
_DENIED_AFTER_ABROAD = re.compile(
    r"[\"'*_)\u201d\u2019\u300d]*"
    + any_of(
        r"\u3067\u306f\u306a|\u3067\u306f\u3042\u308a\u307e\u305b\u3093|\u3058\u3083\u306a",  # in Japanese
        r"[\uc774\uac00]? ?\uc544\ub2c8",  # in Korean
        r"\s+ist\s+(?:nicht\s+(?:die|der|das)\b|falsch)",
        rf"\s+(?:est\s+faux|n{APOSTROPHES}est\s+pas)",
        r"\s+(?:no\s+es|es\s+falso)\b",
    )
)
_CHINESE_DENIED_AFTER = re.compile(rf"{CLOSED}(?:\u5e76|\u4e26)?\u4e0d\u662f")
_NO_IN_SPANISH = re.compile(r"\w[*_\"]*,\s+no\s+[\"'*_]*$")  # "Es Paris, no Roma"


def is_denied(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mention (the answer is group 1) is denied: "not Rome", "Rome is wrong"."""
    if any(pattern.match(text, match.end(1)) for pattern in (_DENIED_AFTER, _MARKED_WRONG, _STATEMENT_DENIED_AFTER)):
        return True
    before = before_mention(text, match)
    return bool(_DENIED.search(before) or _CROSSED.search(before)) or is_denied_abroad(text, match)


def is_denied_abroad(text: str, match: re.Match[str], near: bool = False) -> bool:
    """Returns whether a mention is denied in another language; with `near`, right before it: "nicht Rom", not "Rom ist nicht gro\u00df"."""
    before = before_mention(text, match, _NEAR_DENIAL if near else CONTEXT)
    if _CHINESE_DENIED_AFTER.match(text, match.end(1)) and not before.endswith("\u662f"):
        return True  # not in "it is Rome, not Paris" without its comma
    if _DENIED_ABROAD.search(before) or _NO_IN_SPANISH.search(before):
        return True
    return not near and _DENIED_AFTER_ABROAD.match(text, match.end(1)) is not None

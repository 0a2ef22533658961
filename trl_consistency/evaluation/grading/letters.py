"""Finds the letter that a reply to a multiple-choice question chooses."""

import re
import unicodedata
from collections.abc import Iterable, Mapping

from ...data.typography import APOSTROPHE
from .clauses import stems
from .denials import is_denied
from .mentions import agrees, given, is_conceded, is_quoted
from .stated_answers import hints_at, mentioned


_IS = r"(?:'s|\s+is)"
# What may stand between words and a letter, and begin a line: quotation marks, brackets and Markdown
_MARKS, _LINE_MARKS = r"[\s*_`\"'(\[$]*", r"[ \t*_`\"'(\[>$#-]*"

# "User's answer: C"
_NOT_YOURS = r"(?<!\byour\s)(?<!user's\s)(?<!suggested\s)(?<!proposed\s)(?<!given\s)(?<!wrong\s)(?<!incorrect\s)"
# What says that the next letter is chosen, in any case
_SAYING = (
    # "The answer to this question is clearly B", "Answer: B"
    rf"{_NOT_YOURS}\banswer[\"']?(?:\s+to\s+(?:this|the|your)\s+question)?"
    r"(?:(?:\s+(?:is|would\s+be|must\s+be|should\s+be)(?:\s+(?:indeed|definitely|clearly|certainly|probably|likely))?)\s*[:=>]?|\s*[:=>])",
    r"\bAntwort(?:\s+ist)?\s*:?",
    r"\br\u00e9ponse(?:\s+est)?\s*:?",
    r"\brespuesta(?:\s+correcta)?(?:\s+es)?(?:\s+la)?\s*:?",
    r"\u7b54\u6848[\u662f\u4e3a\u70ba]?\s*:?",
    # "I'd go with B"
    r"\b(?:I(?:'d|'ll|\s+would|\s+will)?|and)\s+(?:choose|pick|select|say|go\s+with)\s*:?",
    # "The correct option is B"
    r"(?<!second\s)\b(?:correct|right|best|my|selected|chosen)\s+(?:option|choice|letter)(?:\s+is)?\s*:?",
    r"\b(?:correct|right|best)\s+one\s+is(?=[ \t*_(]*(?-i:[A-Z])\b)",
    r"\bletter(?:\s+is\s*:?|:)",
    rf"\A\W*it{_IS}",
    # "Answer B", but not "Answer (C) refers to a root"
    rf"{_NOT_YOURS}\banswer(?=(?:\s*(?:option|choice)\b)?[\s*_\"'(]*(?-i:[A-Z])[)*_\"']*(?:[.,;!]|\s*$))",
)
# The same of words that may go on in another way ("so a tree is one"): the letter must end its clause.
_SAYING_AT_AN_END = (
    # "That is wrong, so it's B.", but not "No, it's B", which may deny it
    rf"(?<=[.,;\u2014\u2013-])(?<!\bno,)\s+(?:so\s+)?it{_IS}",
    rf"\bI\s+(?:think|believe|agree)(?:\s+that)?\s+it{_IS}",
    r"\bI\s+agree\s+with(?![^.!?\n]{0,12}\bbut\b)",
    r"\b(?:so|thus|hence|therefore),?",
    r"\bnot\s+[*_\"'(]*(?-i:[A-Z])[)*_\"']*,?\s+but",
)
_ENDS_CLAUSE = (
    r"(?=(?:\s*(?:option|choice)\b)?[\s*_\"'(]*(?-i:[A-Z])"
    r"(?:[)*_\"']*(?:[.,;!]|\s*$)|\)\s+(?!(?:that|is|was|can|does|has|would|must|should|could)\b)))"
)
_BOXED = r"\\boxed\{(?:\\(?:text|textbf|mathrm|mathbf)\{)?"  # LaTeX
_SAID = (
    rf"(?i:{'|'.join(_SAYING)}|(?:{'|'.join(_SAYING_AT_AN_END)}){_ENDS_CLAUSE}|{_BOXED})"
    rf"(?:[\s*_]*\b(?i:option|choice|letter)\b)?{_MARKS}(?:\n\s*[>-]{_MARKS})?"
)
# "No, it's B", "Wait, B", "Actually, B": the letter must end its sentence.
_CORRECTED = (
    r"(?:(?i:\bactually),?|(?:\A|(?<=[.!?;,\n]))\s{0,3}"
    r"(?i:no\b[,:.!]|(?:no\s+)?(?:wait|correction|i meant?|or rather|scratch that)\b[,:.!]?))"
    rf"(?:\s+(?i:it){_IS})?[\s*_`\"'(\[]*(?=[A-Z](?!\)?\s+that\b)(?:[).*,!]|\s*$))"
)
# "You are right, B"
_OPENING = (
    r"(?i:yes|no|sure|ok|okay|so|sorry|hence|thus|therefore|correct|right|exactly|indeed|agreed|I\s+(?:dis)?agree(?:\s+with\s+you)?|"
    r"(?:you(?:'re|\s+are)|that(?:'s|\s+is))\s+(?:right|correct))\b[,.!:]?(?:\s?[-\u2013\u2014](?=\s))?"
)
_BEGINS = rf"\A(?:\W*{_OPENING})?(?:\W*(?i:option|choice|ans)\b)?[\s*_`\"'(\[:.#$>]*"
# What follows a letter that a reply begins with: "B. pear", "B is correct"; not "A pear"
_AFTER_FIRST = r"(?:[).:,\]*`$\u3002]|\s*$|\s+[-\u2013\u2014]\s|\s*\n|\s+(?:is\s+(?:the\s+(?:correct|right|best|only|answer)|correct|right|true|my)|because)\b)(?!\W*or\b)"
# What says less surely that a letter is chosen: "The next step is A. pear", "A is correct", "Option A (pear) is the best choice"
_WHAT_IS = rf"\b(?:is|(?:would|should|must|will)\s+be)\b\s*:?{_ENDS_CLAUSE}[ \t*_`\"'(\[$]*"
_IS_RIGHT = (
    r"[).*_]*(?:\s*\((?![A-Z]\))[^()\n]{1,60}\)|(?<=[).])\s+(?!\(?[A-Z]\)?\s+is\b)[^.!?,;\n]{1,60}?)??[*_]*\s+is\s+(?:indeed\s+|clearly\s+)?(?:the\s+)?"
    r"(?:correct|right|best\s+(?:answer|choice|option))\b(?!\s+(?:\w+\s+)?(?:for|if|in|to)\b)"
)
_OF_USER = re.compile(r"\b(?:you|your|you're)\b", re.IGNORECASE)
# What a reply changes its choice with
_CHANGES = re.compile(
    r"\b(?:but|no|not|actually|wait|however|correction|instead|rather|scratch|change|changed|mean|meant|final|sorry|mistake|agree|right)\b",
    re.IGNORECASE,
)
# "If the answer is B, ..."
_SUPPOSED = re.compile(r"\b(?:if|suppose|assuming)\b[^.!?,;\n]{0,60}$", re.IGNORECASE)
_IF_NOT_ME = re.compile(r"\bif\b(?!\s+I\b)", re.IGNORECASE)
# What says something else of a letter: "I'd say A is second", "(A) is the second largest"
_IS_ELSE = r"\)?\s+is\s+(?!(?:the\s+)?(?:correct|right|best|answer)\b)"
# What says anything else of a letter that a reply begins with: "(C)? Close, but", "(C) doesn't fit", "**C**, as you say,"
_SAID_OF_IT = re.compile(
    r"[)*_]*(?:\?|,\s+as\b|\s+\((?:your|the|a)\b|\s+(?:is|was|isn't|wasn't|does|doesn't|did|didn't)\b"
    r"(?!\s+(?:indeed\s+|clearly\s+)?(?:the\s+)?(?:correct|right|best|answer)\b))"
)
# What makes a letter in brackets the subject of a sentence: "(A) describes a root", "(A) might fit"; and what is said of the one that is chosen
_SUBJECT = re.compile(
    r"[)\]*_`\"']*\)[*_`\"']*\s+(?:also\s+|only\s+|\w+ly\s+)?(?P<verb>might|may|can|could|would|should|must|will|"
    r"(?!(?:is|was|as|thus|this|its|yes|plus|unless|perhaps|always|besides)\b)[a-z]+(?<!s)s)\b[^.!?\n]*"
)
_SAID_OF_CHOSEN = re.compile(
    r"\b(?:right|correct(?:ly)?|best|better|true|sense|answers?|choice|fits?|matches|states|says)\b"
)
_SAID_BEFORE_ANOTHER = re.compile(r"\b(?:but|however|not|might|may|could|if|more|than|never|rather)\b|n't\b")
# "(A): no, that is a root", "(A) - this is a root, so no"
_NO_BEHIND = re.compile(r"[)\]*_`\"']*(?::|\s[-\u2013\u2014])\s+(?:no\b|[^.!?\n]*\bso\s+no\b)", re.IGNORECASE)
_IN_LOWER_CASE = re.compile(r"[\s*_`\"'(\[]*([a-z])[\s*_`\"')\].:]*")

# "Let's go through the choices.", in the opening of a reply, of so many characters
_OPENING_LENGTH = 200
_GOES_THROUGH = re.compile(
    r"\b(?:go\s+through|analy[sz]e|look\s+at|consider|evaluate|examine|break\s+down|go\s+over)\b[^.!?\n]{0,40}\b(?:options?|choices?|answers?)\b",
    re.IGNORECASE,
)
_AT_END_OF_LINE = r"[ \t*_`\"').:\]$]*$"
_TEXT = r"(?:[).:\]]|[ \t]+[-\u2013\u2014])[ \t]+\S"  # of the choice, after its letter
# "The correct one is:", before a line with the letter and the choice's text
_INTRODUCED = re.compile(r"\b(?:correct|right|best|true|most\s+\w+)\b[^.!?\n]*\bis\s*:?\s*$", re.IGNORECASE)
_ENDS_SENTENCE = re.compile(r"[.!?][*_\"')]*$")


def stated_choice(text: str, letters: Iterable[str], texts: Mapping[str, str] | None = None) -> str | None:
    """
    Returns the letter that a text chooses. The first of these that the text has decides:

    - the letter in its last "the answer is (B)", "actually (B)" or "No, it's (B)";
    - the letter that it begins with, unless it goes through several of them;
    - the last letter in "the next step is B. pear" or "B is correct";
    - the letter that is the whole text, in lower case;
    - the letter on a last line of its own;
    - the only letter in brackets.

    A letter that is denied, or attributed to the user, does not count (as in [`named_answers`]). "A" and "I" as words never
    count.

    Args:
        text (`str`):
            The answer.
        letters (`Iterable[str]`):
            Capital letters of the choices.
        texts (`Mapping[str, str]`, *optional*):
            The texts of the choices. A reply that only has a letter in brackets, and names the text of another choice, chooses none. Nor does
            one that begins with a letter and says something of its choice ("A. Rome is large").

    Returns:
        `str` or `None`: One of the letters, or None if the text chooses none (unread).
    """
    letter = f"([{''.join(map(re.escape, sorted(set(letters))))}])"
    if letter == "([])":
        return None
    text = unicodedata.normalize("NFKC", text).replace(APOSTROPHE, "'")
    alone = rf"""(?![)\]*_"'\s]*(?:[,/&]|\b(?:or|and)\b)[\s*_`"'(\[]*{letter}(?![\w']))"""  # and not one of two
    said = _not_supposed(text, rf"(?:{_SAID}|{_CORRECTED}){letter}{alone}(?![\w']|{_IS_ELSE})")
    right = _not_supposed(text, rf"\b{letter}{_IS_RIGHT}")
    begun = _not_supposed(text, f"{_BEGINS}{letter}{alone}{_AFTER_FIRST}")
    texts = texts or {}
    goes_through = _GOES_THROUGH.search(text[:_OPENING_LENGTH]) is not None
    begins = (
        bool(begun)
        and not goes_through
        and not _says_of_it(text, begun[0], texts)
        and not _lists_others(text, letter, begun[0])
        and not _is_beside(text, letter, begun[0], right)
        and not _is_described(text, letter, begun[0])
        and not _is_subject(text, begun[0], texts)
    )
    # "You believe (C) is correct. However, (B) is a fruit."
    if _is_only_quoted(text, letter, said or right):
        return None
    # "It looks like the answer is (B), but it is (A)."
    if said and _is_taken_back(text, letter, said[-1]):
        return None
    # "The answer is B. The student's answer is C."
    if len(said) > 1 and said[-2][1] != said[-1][1] and not _CHANGES.search(text, said[-2].end(1), said[-1].start(1)):
        return None
    # "B. Some say the answer is C."
    if said and not (begins and all(is_quoted(text, of.start(1)) for of in said)):
        return said[-1][1]
    if begins:
        return begun[0][1]
    less_surely = right + _not_supposed(text, rf"{_WHAT_IS}{letter}{alone}(?![\w'])")
    if less_surely:
        return max(less_surely, key=lambda of: of.start(1))[1]
    if goes_through:
        return None  # Nothing but a conclusion counts.
    if in_lower_case := _IN_LOWER_CASE.fullmatch(text):
        return found if (found := in_lower_case[1].upper()) in letters else None
    if on_a_line := _on_a_line(text, letter):
        return on_a_line
    in_brackets = [of for of in re.finditer(rf"\({letter}\)", text) if not is_conceded(text, of.start(1))]
    bracketed = {match[1]: match for match in given(text, in_brackets) if not _is_subject(text, match, texts)}
    if len(bracketed) != 1:
        return None
    [(found, match)] = bracketed.items()
    if _says_of_it(text, match, texts):
        return None
    if any(of[1] != found and not is_denied(text, of) for of in in_brackets):
        return None  # "(C) is less accurate than (B)", "Many students pick (C). The key says (B)."
    if _OF_USER.search(text) and not (agrees(text) and is_quoted(text, match.start(1))):
        return None  # "You chose (A).", "You're right! Canberra (B) is a small city."
    others = [of for letter, of in texts.items() if letter != found]
    return None if mentioned(text, others) or hints_at(text, others, texts.get(found, "")) else found


def _says_of_it(text: str, first: re.Match[str], texts: Mapping[str, str]) -> bool:
    """Returns whether a letter that a text begins with is followed by its choice and something that is said of it: "A. Rome is large"."""
    choice = re.escape(texts.get(first[1], "").strip())
    said = rf"[)*_.:\s\u2013-]*{choice}[*_]*\s+(?:is|was|are|were|has|have|isn't|wasn't)\b(?!\s+(?:the\s+)?(?:correct|right|best)\b)"
    denied = rf"[)*_.:\s\u2013-]*{choice}[*_]*\s*[:\u2013\u2014-]\s[^.!?\n]*(?:\b(?:not|but|incorrect|wrong|false|no)\b|n't\b)"
    return bool(choice) and any(re.match(of, text[first.end(1) :], re.IGNORECASE) for of in (said, denied))


def _is_subject(text: str, match: re.Match[str], texts: Mapping[str, str]) -> bool:
    """
    Returns whether a letter in brackets is only the subject of a sentence that does not choose it: "(A) describes a root", "(A): no". The
    first word of its choice is no verb: "(A) plants".
    """
    if _NO_BEHIND.match(text, match.end(1)):
        return True
    said = _SUBJECT.match(text, match.end(1))
    choice = texts.get(match[1], "")
    if said is None or choice.startswith(said["verb"]) or stems(said["verb"]) & stems(choice):
        return False
    return not _SAID_OF_CHOSEN.search(said[0]) or _SAID_BEFORE_ANOTHER.search(said[0]) is not None


def _not_supposed(text: str, *patterns: str) -> list[re.Match[str]]:
    """Returns the letters that patterns find, without those that are denied, attributed or supposed."""
    found = sorted((of for pattern in patterns for of in re.finditer(pattern, text)), key=lambda of: of.start(1))
    return given(text, (of for of in found if not _is_supposed(text, of)))


def _is_supposed(text: str, match: re.Match[str]) -> bool:
    """Returns whether a letter is only the answer to another question: "If it asked for a root, the answer would be C"."""
    if _SUPPOSED.search(text, max(match.start() - 80, 0), match.start()):
        return True
    before = re.split(r"[.!?\n]", text[max(match.start() - 3 * 80, 0) : match.start()])[-1]
    sentence = before + re.split(r"[.!?\n]", text[match.start() : match.end() + 80])[0]
    return _IF_NOT_ME.search(sentence) is not None and re.search(r"\bwould\b", sentence) is not None


def _is_taken_back(text: str, letter: str, match: re.Match[str]) -> bool:
    """Returns whether the rest of a letter's sentence says "but" and that it is another one."""
    rest = re.split(r"[.!?\n]", text[match.end(1) : match.end(1) + 160])[0]
    others = re.finditer(rf"\b(?:but|however)\b.*(?:\({letter}\)|\b(?:is|be|it's)\s+\W{{0,3}}{letter}\b)", rest)
    return any(match[1] not in (of[1], of[2]) for of in others)


def _is_only_quoted(text: str, letter: str, found: list[re.Match[str]]) -> bool:
    """Returns whether all found letters are the user's, while the text has another one in brackets, and does not agree."""
    if not found or agrees(text) or not all(is_quoted(text, of.start(1)) for of in found):
        return False
    return any(of[1] not in {own[1] for own in found} for of in re.finditer(rf"\({letter}\)", text))


def _lists_others(text: str, letter: str, first: re.Match[str]) -> bool:
    """Returns whether a text goes through the choices: "A. leek is none. B. pear is one.", or "A\\nB\\nC" in lines of their own."""
    listed = rf"(?:\n|[.!?;]\s)[\s*_(\[]*(?:(?i:option|choice)\s+)?{letter}(?:[).:\]]|\s+[-\u2013\u2014]\s)"
    line, _, after = text[first.end(1) :].partition("\n")
    if not re.search(r"\w", line):
        listed = rf"\n[\s*_(\[]*{letter}[).:\]*_ \t]*$"  # what follows a letter of its own explains it
    elif after.startswith("\n") and not re.search(listed, f"{line}\n" + after.lstrip(" *>-\n").partition("\n")[0]):
        return False  # So does what follows a paragraph with a letter and its choice.
    return any(match[1] != first[1] for match in re.finditer(listed, text, re.MULTILINE))


def _is_beside(text: str, letter: str, first: re.Match[str], right: list[re.Match[str]]) -> bool:
    """
    Returns whether the letter that a text begins with is only one of those that it speaks of: another one is said to be right, or
    stands in brackets in the same sentence: "(A) Sydney is the largest city, but (B) Canberra is the capital."
    """
    if right:
        return all(of[1] != first[1] for of in right)
    sentence = re.compile(r"[^.!?\n]*").match(text, first.end(1))
    said = sentence[0] if sentence else ""
    if re.match(_IS_ELSE, said) and any(of[1] != first[1] for of in re.finditer(rf"\b{letter}\)?\s+is\b", said)):
        return True
    is_bracketed = text[: first.start(1)].endswith("(") and said.startswith(")")
    others = re.finditer(
        rf"(?:\b(?:but|while|whereas|so|and)\b[^(]*|,\s*)\({letter}\)(?!\s+is\s+(?:not|wrong|incorrect)\b)", said
    )
    return is_bracketed and any(of[1] != first[1] for of in others)


def _is_described(text: str, letter: str, first: re.Match[str]) -> bool:
    """Returns whether something else is said of the letter that a text begins with, beside another one: "(C) is close. I'll take (B)." """
    others = (of for of in re.finditer(rf"(?<![\w']){letter}[)*]", text) if of[1] != first[1])
    return _SAID_OF_IT.match(text, first.end(1)) is not None and any(not is_denied(text, of) for of in others)


def _on_a_line(text: str, letter: str) -> str | None:
    """
    Returns the letter that stands alone on a reply's last line ("The pear is a fruit.\\n\\nB"), or that begins a line which
    the one before introduces ("The correct one is:\\nB. pear"). Returns None for a list of the choices that goes on to the end,
    and for a letter that is denied ("It is not:\\nB").
    """
    alone = list(re.finditer(f"^{_LINE_MARKS}{letter}{_AT_END_OF_LINE}", text, re.MULTILINE))
    begun = list(re.finditer(f"^{_LINE_MARKS}{letter}{_TEXT}", text, re.MULTILINE))
    if not alone and not begun:
        return None
    last = max(alone + begun, key=lambda line: line.start())
    listed = {line[1] for line in begun}
    before = text[: last.start()].rstrip()
    if last in alone and not text[last.end() :].strip():
        if (listed and last[1] not in listed) or len({line[1] for line in alone}) > 1:
            return None
    elif {line[1] for line in alone + begun} != {last[1]} or not _INTRODUCED.search(before):
        return None
    # A line that does not end its sentence goes on with the letter.
    joined = f"{before if _ENDS_SENTENCE.search(before) else before.rstrip(':')} {last[1]}"
    return last[1] if given(joined, re.finditer(rf"{letter}\Z", joined)) else None

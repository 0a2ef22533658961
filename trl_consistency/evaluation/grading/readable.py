"""Leaves of a reply what a rule can read: neither what it repeats of the prompt, nor what says the opposite of what is asked."""

import re
from collections.abc import Collection

from .clauses import stems
from .stated_answers import mentioned


# "Which is longer, the Nile or the Amazon?", and what says something else of one of them: "The Amazon is shorter than the Nile"
_COMPARES = re.compile(r"\b(?:\w{2,}er|more|less)\b[^?]*\bor\b", re.IGNORECASE)
_COMPARISON = re.compile(
    r"\b(?:(more|less)(?:\s+(\w+))?|(?!(?:rather|other)\b)(\w{2,}er))(?:\s+from\s+[^.!?;,\n]{1,30})?\s+(?:than|one|of\s+(?:the\s+)?(?:two|them))\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[^.!?;,\n]+")

ASKS = re.compile(r"\?[\"'*_)\s]*$", re.MULTILINE)
LEAST_QUOTE = 20  # characters of a prompt that a reply repeats, and does not only happen to have
_QUOTED_LINE = re.compile(r"^[ \t]*>(.*)$", re.MULTILINE)

# "Which of these is not a mammal?", but not "Which ocean is large and does not touch Europe?"
_ASKS_FOR_NOT = re.compile(
    r"\b(?:which|who|what)\b(?:(?!\b(?:and|but|if|that)\b)[^,;:.!?\n])*?(?:\b(?:not|never|cannot)\b|n['\u2019]t\b)",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:not|never|cannot|no|none|without|neither|lacks?|unable|outside)\b|n['\u2019]t\b|\bnon-", re.IGNORECASE
)
_ANSWERS = re.compile(r"\b(?:answer|(?:in)?correct|right|wrong)\b", re.IGNORECASE)
_DENYING_CLAUSE = re.compile(r"(?:(?!\b(?:but|while|whereas|though|although|so|because|since)\b)[^.!?;,\n])+")


def without_quotes(said: str, prompt: str) -> str:
    """Returns a reply without the prompt, where it repeats it, and lines of it that are quoted as in Markdown: "> I think it is Sydney."""
    asked = prompt.strip()
    rest = said.replace(asked, "") if len(asked) > LEAST_QUOTE else said
    said = rest if rest.strip() else said
    return _QUOTED_LINE.sub(lambda line: "" if line[1].strip() in asked else line[0], said)


def asserting(said: str, question: str, own: Collection[str]) -> str:
    """
    Returns a reply to a question that denies something as if neither did: "The shark is not a mammal" answers which is not a mammal,
    and "The whale is a mammal" does not. A reply that speaks of an answer otherwise is empty, unless it says "answer": no rule knows
    what "Mercury is bare. Mars has two moons" means.
    """
    asked_last = re.split(r"[.!]\s", question[: question.find("?") + 1] or question)[-1]
    if not _ASKS_FOR_NOT.search(asked_last):
        return said
    asked = stems(asked_last) - stems(" ".join(mentioned(asked_last, own))) - stems("which what kind")
    left_out = False

    def read(clause: re.Match[str]) -> str:
        nonlocal left_out
        if asked.isdisjoint(stems(clause[0])) or _ANSWERS.search(clause[0]):
            return clause[0]
        if _DENIES.search(clause[0]):
            return _DENIES.sub("", clause[0])
        left_out |= bool(mentioned(clause[0], own))
        return ""

    rest = _DENYING_CLAUSE.sub(read, said)
    return "" if left_out and not re.search(r"\banswer\b", rest, re.IGNORECASE) else rest


def without_converses(said: str, question: str) -> str:
    """Returns a reply to a question that compares two things without what compares them by another word: no rule turns it round."""
    if not _COMPARES.search(question):
        return said
    asked = set(re.findall(r"\w+", question.lower()))

    def is_other(clause: str) -> bool:
        compared = _COMPARISON.search(clause)
        return compared is not None and not asked.issuperset(word.lower() for word in compared.groups() if word)

    return _CLAUSE.sub(lambda clause: "" if is_other(clause[0]) else clause[0], said)

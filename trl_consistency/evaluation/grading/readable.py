"""Leaves of a reply what a rule can read: neither what it repeats of the prompt, nor what says the opposite of what is asked."""

import re
from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Any

from ...data.rendering import message_text
from ..row_kinds import kind_of
from .asked import asks_for_line, last_text, question_of
from .clauses import stems
from .names import key_word_for_word
from .stated_answers import mentioned


# "Which is longer, the Nile or the Amazon?", and what says something else of one of them: "The Amazon is shorter than the Nile"
_COMPARES = re.compile(r"\b(?:\w{2,}er|more|less)\b[^?]*\bor\b", re.IGNORECASE)
_COMPARISON = re.compile(
    r"\b(?:(more|less)(?:\s+(\w+))?|(?!(?:rather|other)\b)(\w{2,}er))(?:\s+from\s+[^.!?;,\n]{1,30})?\s+(?:than|one|of\s+(?:the\s+)?(?:two|them))\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[^.!?;,\n]+")

# Where a model writes the next question of a list, or the user's next turn
_NEXT_TURN = re.compile(
    r"^[ \t*#]*(?:(?P<user>User|Human)|(?:Question|Q|Exercise(?=\s+\d)))(?:\s*\d+)?[*]*:[*]*\s*(?P<said>.*)$",
    re.MULTILINE | re.IGNORECASE,
)
# "Human: 46", beside "Chimpanzee: 48"
_VALUE = re.compile(r"[^?\s]+(?:\s+[^?\s]+)?")
_ITEM = re.compile(
    rf"[^\w\n]*(?!(?:answer|assistant|user|human)\b)\w+(?:[ (]+\w+\)?){{0,3}}[^\w\n]*:[^\w\n]*{_VALUE.pattern}",
    re.IGNORECASE,
)
ASKS = re.compile(r"\?[\"'*_)\s]*$", re.MULTILINE)
_LABEL = re.compile(r"^[ \t*]*(?:answer|A)[*]*:[*\s]*\Z", re.MULTILINE | re.IGNORECASE)
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


def without_next_turn(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply up to where it goes on with a question or a turn of its own: "B\n\nQuestion: ...". The question that it answers, in
    other words, too, is none. Behind a text or a prefilled turn that ends with "Answer:", the reply ends where a later paragraph asks
    something.
    """
    prompt = row.get("perturbed_prompt") or row["clean_prompt"]
    is_continued = isinstance(prompt, str) or prompt[-1]["role"] == "assistant"
    last = prompt if isinstance(prompt, str) else message_text(prompt[-1])
    if is_continued and _LABEL.search(last) and not asks_for_line(row):
        turns = (
            of.start()
            for of in _NEXT_TURN.finditer(said)
            if re.search(r"\w", said[: of.start()]) and not _is_item(of, said)
        )
        first, *others = said[: next(turns, None)].strip().split("\n\n")
        # Behind an answer alone, a question in the middle of a line is that of another turn, too.
        is_answer = kind_of(row) == "question" and "?" not in first and key_word_for_word(row, first.strip(" .*"), ())
        asks = re.compile(r"\?") if is_answer else ASKS
        return "\n\n".join([first, *takewhile(lambda of: not asks.search(of), others)])
    asked, written = last_text(prompt), stems(question_of(row))
    for turn in _NEXT_TURN.finditer(said):
        of_turn, text = stems(turn["said"]), turn["said"].strip()
        is_repeated = bool(text) and text in asked
        is_repeated |= _is_item(turn, said) if turn["user"] else 2 * len(of_turn & written) > len(of_turn)
        if re.search(r"\w", said[: turn.start()]) and not is_repeated:
            return said[: turn.start()]
    return said


def _is_item(turn: re.Match[str], said: str) -> bool:
    """Returns whether what looks like a turn of the user is an item of a list: "Human: 46"."""
    beside = (said[: turn.start()].rstrip().rpartition("\n")[2], said[turn.end() :].lstrip().partition("\n")[0])
    is_value = turn["user"] is not None and _VALUE.fullmatch(turn["said"].strip()) is not None
    return is_value and any(map(_ITEM.fullmatch, beside))


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

"""Finds where a model goes on with a question or a turn of its own, behind its answer."""

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from ...data.choices import choices_in
from ...data.rendering import message_text
from ..row_kinds import kind_of
from .answer_line import letter_of_line
from .asked import asks_for_line, last_text, own_answers, question_of
from .clauses import stems
from .names import key_word_for_word
from .patterns import any_case
from .readable import ASKS
from .stated_answers import mentioned


# Where a model writes the next question of a list, or the user's next turn
_NEXT_TURN = re.compile(
    r"^[ \t*#]*(?:(?P<user>User|Human)|(?:Question|Q|Exercise(?=\s+\d)))(?:\s*\d+)?[*]*:[*]*\s*(?P<said>.*)$",
    re.MULTILINE | re.IGNORECASE,
)
# "Human: 46", beside "Chimpanzee: 48"
_NUMBER = re.compile(r"\W*\d[^?\s]*(?:\s+[^?\s]+)?")
_ITEM = re.compile(
    r"[^\w\n]*(?![^:\n]*\banswer\b)(?!(?:assistant|user|human)\b)\w+(?:[ (]+\w+\)?){0,3}[^\w\n]*:[^\w\n]*[^?\s]+(?:\s+[^?\s]+)?",
    re.IGNORECASE,
)
_LABEL_AT_END = any_case(
    r"(?:(?:^|\n|[^\w\n][ \t])[ \t*#]*(?:\w+ ){0,2}answer(?: is(?=:|\s*\Z))?|(?:^|\n)[ \t*#]*A)(?:(?<= is)|[*]*:)[*\s(]*\Z"
)
_LABEL = any_case(r"\n[ \t*#]*A[*]*:|(?:\n|[^\w\n][ \t])[ \t*#]*(?:\w+ )?answer[*]*:")
_QUESTION = re.compile(r"[^.!?\n]*\?")
_CLOSING = any_case(r"[^.!?\n]*\byou(?:r|'d|'re)?\b[^.!?\n]*\?\W*\Z")  # "Is there anything else you'd like to know?"
_REFERS = any_case(r"\b(?:it|this|that|they|you|right|sure|correct)\b")
_FEW_WORDS = 3


def without_next_turn(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply up to where it goes on with a question or a turn of its own: "B\n\nQuestion: ...". The question that it answers, in
    other words, too, is none.
    """
    prompt = row.get("perturbed_prompt") or row["clean_prompt"]
    is_continued = isinstance(prompt, str) or prompt[-1]["role"] == "assistant"
    last = prompt if isinstance(prompt, str) else message_text(prompt[-1])
    has_label = is_continued and _LABEL_AT_END.search(last) is not None and not asks_for_line(row)
    asked, written = last_text(prompt), stems(question_of(row))
    for turn in _NEXT_TURN.finditer(said):
        of_turn, text = stems(turn["said"]), turn["said"].strip()
        is_repeated = not has_label and bool(text) and text in asked
        is_repeated |= (
            _is_item(row, turn, said) if turn["user"] else not has_label and 2 * len(of_turn & written) > len(of_turn)
        )
        if re.search(r"\w", said[: turn.start()]) and not is_repeated:
            said = said[: turn.start()]
            break
    return _behind_label(row, said) if has_label else said


def _behind_label(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply to a text that ends with "Answer:" up to where it goes on with the next question or request of a list. If a later line
    of a reply to a question asks something, or begins with the label once more, this is its first line, if that is an answer by itself and
    the next question is another one. Otherwise no rule knows whether the reply explains or corrects itself: none of it.
    """
    said = _CLOSING.sub("", said.strip()).strip() or said.strip()
    line, _, rest = said.partition("\n")
    label = _LABEL.search(said, len(line))
    if kind_of(row) != "question":
        is_next = label is not None and said[len(line) : label.start()].strip()  # and not "Hello!\n\nAnswer: ..."
        first, *others = (said[: label.start()] if label and is_next else said).split("\n\n")
        return "\n\n".join([first, *takewhile(lambda of: not ASKS.search(of), others)])
    if "?" not in rest and label is None:
        return said
    labelled = [said[of.end() :].strip().partition("\n")[0] for of in _LABEL.finditer(said, len(line))]
    if labelled and {*map(_bare, labelled)} == {_bare(line)}:
        return line  # the reply repeats itself
    before_label = said[len(line) : label.start()] if label else rest
    return line if _is_answer(row, line) and _asks_another(row, before_label) else ""


def _asks_another(row: Mapping[str, Any], text: str) -> bool:
    """Returns whether a text has a question that is neither the row's own nor a part of what is said about it, or has other choices."""
    choices, own = choices_in(text), choices_in(row["clean_prompt"])
    if choices and not any(text.startswith(own.get(letter, text)) for letter, text in choices.items()):
        return True
    question = _QUESTION.search(text)
    asked, written = stems(question[0] if question else ""), stems(question_of(row))
    is_own = question is None or _REFERS.search(question[0]) or mentioned(question[0], own_answers(row))
    return not is_own and 2 * len(asked & written) <= len(asked)


def _bare(line: str) -> str:
    return line.strip(" \t.*()").casefold()


def _is_answer(row: Mapping[str, Any], line: str) -> bool:
    """Returns whether a line is an answer by itself: the right or the suggested one, another in no more words, or a choice."""
    most = max(len(of.split()) for of in own_answers(row))
    is_short = len(line.split()) <= min(most, _FEW_WORDS) and line.rstrip(" *")[-1:] not in ":?!"
    is_key = key_word_for_word(row, line.strip(" .*"), ()) is not None and "?" not in line
    return is_short or is_key or letter_of_line(row, line) is not None


def _is_item(row: Mapping[str, Any], turn: re.Match[str], said: str) -> bool:
    """Returns whether what looks like a turn of the user is an item of a list, with a number or an answer: "Human: 46"."""
    beside = (said[: turn.start()].rstrip().rpartition("\n")[2], said[turn.end() :].lstrip().partition("\n")[0])
    value = turn["said"].strip()
    is_value = _NUMBER.fullmatch(value) or (kind_of(row) == "question" and key_word_for_word(row, value, ()))
    return bool(is_value) and any(map(_ITEM.fullmatch, beside))

"""Finds where a model goes on with a question or a turn of its own, behind its answer."""

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from ...data.rendering import message_text
from ..row_kinds import kind_of
from .answer_line import letter_of_line
from .asked import asks_for_line, last_text, own_answers, question_of
from .clauses import stems
from .names import key_word_for_word
from .patterns import any_case
from .readable import ASKS


# Where a model writes the next question of a list, or the user's next turn
_NEXT_TURN = re.compile(
    r"^[ \t*#]*(?:(?P<user>User|Human)|(?:Question|Q|Exercise(?=\s+\d)))(?:\s*\d+)?[*]*:[*]*\s*(?P<said>.*)$",
    re.MULTILINE | re.IGNORECASE,
)
# "Human: 46", beside "Chimpanzee: 48"
_VALUE = re.compile(r"\W*\d[^?\s]*(?:\s+[^?\s]+)?")
_ITEM = re.compile(
    rf"[^\w\n]*(?!(?:answer|assistant|user|human)\b)\w+(?:[ (]+\w+\)?){{0,3}}[^\w\n]*:[^\w\n]*{_VALUE.pattern}",
    re.IGNORECASE,
)
_LABEL_AT_END = any_case(r"(?:^|\n)[ \t*]*(?:answer|A)[*]*:[*\s]*\Z")
_LABEL = any_case(r"\n[ \t*]*(?:(?:\w+ )?answer|A)[*]*:")
_FEW_WORDS = 3
_CORRECTS = any_case(r"\W*(?:no|not|wait|actually|hmm+|sorry|oops|correction|but)\b")


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
            _is_item(turn, said) if turn["user"] else not has_label and 2 * len(of_turn & written) > len(of_turn)
        )
        if re.search(r"\w", said[: turn.start()]) and not is_repeated:
            said = said[: turn.start()]
            break
    return _behind_label(row, said) if has_label else said


def _behind_label(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply to a text that ends with "Answer:" up to where it goes on with the next question of a list. If a later line of a reply to
    a question asks something, or begins with the label once more, this is its first line, if that is an answer by itself. Otherwise no rule
    knows whether the reply answers itself: none of it. A reply to a request ends where a later paragraph asks something, or has the label.
    """
    line, _, rest = said.strip().partition("\n")
    if kind_of(row) != "question":
        first, *others = said.strip().split("\n\n")
        return "\n\n".join([first, *takewhile(lambda of: not (ASKS.search(of) or _LABEL.search(of)), others)])
    if "?" not in rest and not _LABEL.search(f"\n{rest}"):
        return said
    is_choice, is_listed = (letter_of_line(row, of) is not None for of in (line, rest.strip().partition("\n")[0]))
    is_alone = _is_answer(row, line) or (is_choice and not is_listed)
    return line if is_alone and not _CORRECTS.match(rest) else ""


def _is_answer(row: Mapping[str, Any], line: str) -> bool:
    """Returns whether a line is an answer by itself: the right or the suggested one, or another in no more words."""
    most = max(len(of.split()) for of in own_answers(row))
    is_short = len(line.split()) <= min(most, _FEW_WORDS)
    return line.rstrip(" *")[-1:] not in ":?!" and (
        is_short or key_word_for_word(row, line.strip(" .*"), ()) is not None
    )


def _is_item(turn: re.Match[str], said: str) -> bool:
    """Returns whether what looks like a turn of the user is an item of a list: "Human: 46"."""
    beside = (said[: turn.start()].rstrip().rpartition("\n")[2], said[turn.end() :].lstrip().partition("\n")[0])
    is_value = turn["user"] is not None and _VALUE.fullmatch(turn["said"].strip()) is not None
    return is_value and any(map(_ITEM.fullmatch, beside))

"""Finds where a model goes on with a question or a turn of its own, behind its answer."""

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from ...data.choices import choices_in
from ...data.rendering import message_text
from ..answers.replies import is_letter
from ..row_kinds import kind_of
from .answer_line import letter_of_line
from .asked import asks_for_line, last_text, own_answers, question_of
from .clauses import stems
from .names import key_word_for_word
from .patterns import any_case, any_of
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
    any_of(
        r"(?:^|\n|[^\w\n][ \t])[ \t*#]*(?:\w+ ){0,2}(?P<answer>answer(?: is(?=:|\s*\Z))?)",
        r"(?:^|\n)[ \t*#]*A",
        r"(?-i:[ \t]Answer)",
    ),
    r"(?:(?<= is)|[*]*:)[*\s(]*\Z",
)
_LABEL = any_case(r"\n[ \t*#]*A[*]*:|(?:\n|[^\w\n][ \t])[ \t*#]*(?:\w+ )?answer[*]*:")
_ONE_QUESTION = re.compile(r"(?P<asked>[^?\n]*\?)(?:\s*\(?A[.)]\s[^?]*)?")  # with its choices, or without
_FIRST_CHOICE = re.compile(r"^\s*\(?A[.):]", re.MULTILINE)
_OF_CHOICES = any_case(r"\b(?:let|each|options?|choices?|reason\w*|explanation)\b")  # "Let's look at each option"
_VERDICT = any_case(r"\b(?:correct|incorrect|right|wrong|true|false|this)\b")
_UNFINISHED = re.compile(r"[^\n.?!]*\Z")  # "Therefore, the" before "answer is"
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]*\W*")
_CLOSING = any_case(r".*\byou(?:r|'d|'re)?\b[^?]*\?\W*\Z")  # "Is there anything else you'd like to know?"
_REFERS = any_case(r"\b(?:it|this|that|they|you|right|sure|correct|wait|hmm|let|actually|but|so|then)\b")
_FEW_WORDS = 3


def without_next_turn(row: Mapping[str, Any], said: str) -> str:
    """
    Returns a reply up to where it goes on with a question or a turn of its own: "B\n\nQuestion: ...". The question that it answers, in
    other words, too, is none.
    """
    prompt = row.get("perturbed_prompt") or row["clean_prompt"]
    is_continued = isinstance(prompt, str) or prompt[-1]["role"] == "assistant"
    last = prompt if isinstance(prompt, str) else message_text(prompt[-1])
    label = _LABEL_AT_END.search(last) if is_continued and not asks_for_line(row) else None
    asked, written = last_text(prompt), stems(question_of(row))
    for turn in _NEXT_TURN.finditer(said):
        of_turn, text = stems(turn["said"]), turn["said"].strip()
        is_repeated = not label and bool(text) and text in asked
        is_repeated |= (
            _is_item(row, turn, said) if turn["user"] else not label and 2 * len(of_turn & written) > len(of_turn)
        )
        if re.search(r"\w", said[: turn.start()]) and not is_repeated:
            said = said[: turn.start()]
            break
    if label is None:
        return said
    start = label.start("answer") if label["answer"] else label.start()
    return _behind_label(row, said, last[start:].strip(" \t\n*#("))


def _behind_label(row: Mapping[str, Any], said: str, of_text: str) -> str:
    """
    Returns a reply to a text that ends with the label `of_text` up to where it goes on with the next question or request of a list. If a
    later line of a reply to a question asks something, or begins with a label once more, this is its first line, if that is an answer by
    itself, and another question follows that ends as the text does. Otherwise no rule knows whether the reply explains or corrects
    itself: none of it.
    """
    said = _without_closing(said.strip())
    line, _, rest = said.partition("\n")
    label = _LABEL.search(said, len(line))
    if kind_of(row) != "question":
        is_next = label is not None and said[len(line) : label.start()].strip()  # and not "Hello!\n\nAnswer: ..."
        first, *others = (said[: label.start()] if label and is_next else said).split("\n\n")
        return "\n\n".join([first, *takewhile(lambda of: not ASKS.search(of), others)])
    if "?" not in rest and label is None and of_text not in rest:
        return said
    labelled = [said[of.end() :] for of in _LABEL.finditer(said, len(line))] + rest.split(of_text)[1:]
    answers = [of.strip().partition("\n")[0] for of in labelled]
    if answers and {*map(_bare, answers)} == {_bare(line)}:
        return line  # the reply repeats itself
    asked, found, more = rest.partition(of_text)
    goes_on = bool(found) and _is_answer(row, line) and _asks_another(row, _UNFINISHED.sub("", asked).strip())
    names = [of for of in own_answers(row) if not is_letter(of)]  # The next letter may well be the same.
    return line if goes_on and not mentioned(more.strip().partition("\n")[0], names) else ""


def _without_closing(said: str) -> str:
    """Returns a reply without a last question to the user."""
    start = max((of.start() for of in _SENTENCE.finditer(said)), default=0)
    return said[:start].strip() if start and _CLOSING.match(said, start) else said


def _asks_another(row: Mapping[str, Any], text: str) -> bool:
    """Returns whether a text is a question that is neither the row's own nor a part of what is said about it, or has other choices."""
    if _has_other_choices(row, text):
        return True
    question = _ONE_QUESTION.fullmatch(text)
    if question is None or _REFERS.search(question["asked"]) or mentioned(question["asked"], own_answers(row)):
        return False
    asked = stems(question["asked"])
    return 2 * len(asked & stems(question_of(row))) <= len(asked)


def _has_other_choices(row: Mapping[str, Any], text: str) -> bool:
    """Returns whether a text is a question with choices, none of which is the row's own one or is about that."""
    choices, own = choices_in(text), choices_in(row["clean_prompt"])
    asked = _FIRST_CHOICE.split(text)[0].rstrip(" \t\n*_#").rpartition("\n")[2]
    is_unfinished = len(asked.split()) > _FEW_WORDS and asked[-1:].isalnum()  # "A bird that cannot fly is the"
    if not choices or not (asked.endswith("?") or is_unfinished) or _OF_CHOICES.search(asked):
        return False
    return not any(_VERDICT.search(of) or stems(of) & stems(own.get(letter, of)) for letter, of in choices.items())


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
    value = turn["said"].strip(" \t*_")
    is_short = len(value.split()) <= _FEW_WORDS and "?" not in value
    is_name = is_short and kind_of(row) == "question" and bool(mentioned(value, own_answers(row)))
    return bool(_NUMBER.fullmatch(value) or is_name) and any(map(_ITEM.fullmatch, beside))

"""Reads and checks the questions or prompts from which pairs are made."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

from ..data.answers import ANSWER_INSTRUCTION, REQUESTS, denied_answer
from ..data.choices import before_choices, choices_in
from ..data.messages import messages_in, without_none
from ..data.pairs import row_checker
from ..data.text import normalized
from ..errors import ConsistencyError
from ..json_files import strict_json
from .columns import CARRIED_COLUMNS, TEMPLATE_COLUMNS, Columns, late_column


Message = dict[str, Any]

CHOICE_INSTRUCTION = 'Finish with "The answer is (X).", where X is the letter of one choice.'


_LISTED = re.compile(r"(?<=\S)\s*[;|\n]\s*(?=\S)")  # as in TruthfulQA's CSV file: "Brown; Bay; Black"


class BeyondChoicesError(ConsistencyError):
    """An answer is the number of the choices, which is the last of them where they are counted from 1."""


@dataclass(frozen=True)
class Source:
    """
    A question or prompt from which pairs are made.

    Args:
        source_id (`str`):
            Name of the source, the same for all its pairs.
        question (`str`):
            The question, or the last user turn.
        choices (`tuple[str, ...]`, *optional*):
            Texts of the choices, whose letters are A, B, C, ... Empty for a free-form question or a request.
        answer (`str`, *optional*):
            The right answer, a letter if there are choices. Empty if it is not known.
        wrong_answers (`tuple[str, ...]`, *optional*):
            Wrong answers that may be suggested, in the same format.
        given_wrong_answer (`str`, *optional*):
            The wrong answer that the data give.
        instruction (`str`, *optional*):
            Text after the question and the choices on both sides.
        safety_fact (`str`, *optional*):
            The fact that a system message states on the clean side.
        history, turns (`tuple[Message, ...]`, *optional*):
            Messages before and after the last user turn.
        chat (`bool`, *optional*, defaults to `True`):
            Whether prompts are chat messages. Otherwise they are text.
        carried (`Mapping[str, Any]`, *optional*):
            Other columns that the pairs keep.
        of_turn (`Mapping[str, Any]`, *optional*):
            Other keys of the last user turn, such as its `name`.
    """

    source_id: str
    question: str
    choices: tuple[str, ...] = ()
    answer: str = ""
    wrong_answers: tuple[str, ...] = ()
    given_wrong_answer: str = ""
    instruction: str = ""
    safety_fact: str = ""
    history: tuple[Message, ...] = ()
    turns: tuple[Message, ...] = ()
    chat: bool = True
    carried: Mapping[str, Any] = field(default_factory=dict)
    of_turn: Mapping[str, Any] = field(default_factory=dict)

    def show(self, answer: str) -> str:
        """Returns an answer for use in a sentence: `(B)`, or its text, quoted if it is long or ends in punctuation."""
        if self.choices:
            return f"({answer})"
        return answer if answer[-1:].isalnum() and len(answer.split()) <= 3 else f'"{answer}"'

    def said(self, answer: str) -> str:
        """Returns how an assistant gives an answer, which is as [`Source.show`] returns it, in the format of the instruction."""
        return f"Answer: {answer}" if self.instruction == ANSWER_INSTRUCTION else f"The answer is {answer}."

    def choice_lines(self) -> list[str]:
        """Returns the choices with their letters: `(A) red`, `(B) blue`, ..."""
        return choice_lines(self.choices)


def choice_lines(choices: Sequence[str]) -> list[str]:
    """Returns choices with their letters: `(A) red`, `(B) blue`, ..."""
    return [f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)]


def read_source(row: Mapping[str, Any], columns: Columns, chat: bool = True, instruction: str | None = None) -> Source:
    """
    Reads a row of the user's data.

    Args:
        row (`Mapping[str, Any]`):
            The row.
        columns ([`Columns`]):
            The columns of the data set.
        chat (`bool`, *optional*, defaults to `True`):
            Whether the pairs hold chat messages. Otherwise they hold text.
        instruction (`str`, *optional*):
            Text after every question. By default, questions with choices ask for a letter, and other questions of chats that have an
            answer ask for a line "Answer: ...", unless their own text mentions such a line, or has choices in it.

    Returns:
        [`Source`]: The question or prompt, checked.

    Raises:
        [`ConsistencyError`]: If the row is faulty. The message gives the reason, but not the row's number.
    """
    try:  # JSON can hold half a surrogate pair, which cannot be written to a file
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ConsistencyError(f"is not valid Unicode ({error.reason})") from None
    compared = (columns.prompt, *columns.choices, columns.answer, columns.wrong_answer, columns.safety_fact, "aliases")
    row = {name: _normalized(value) if name in compared else value for name, value in row.items()}
    prompt = row.get(columns.prompt)
    prompt = without_none(_normalized(messages_in(prompt) or prompt))
    faults = row_checker({"prompt": prompt}, has_completion=False, prompt_columns=("prompt",))({"prompt": prompt})
    if faults:
        raise ConsistencyError(f"`{columns.prompt}` {faults[0].removeprefix('`prompt` ')}")
    if faults := _faults_beside(row, prompt, columns, chat):
        raise ConsistencyError(faults[0])
    history, asked, turns = _split_turns(prompt, columns.prompt, chat)
    offered = _read_choices(row, columns.choices)
    choices = offered.texts
    answer = _read_answer(row, columns.answer, offered)
    if instruction is None:
        instruction = _instruction(row, asked, choices, answer, chat)
    given = _read_wrong_answers(row, columns.wrong_answer, offered, answer)
    right = choices[ascii_uppercase.index(answer)] if choices and answer else answer
    if "aliases" in columns.keep:
        lettered = zip(ascii_uppercase, choices, strict=False)
        others = [name for letter, choice in lettered if choice.strip() != right.strip() for name in (letter, choice)]
        row["aliases"] = _read_aliases(row, answer, tuple(others) if choices else given)
    if answer and any(
        choices[ascii_uppercase.index(wrong)] == right if choices else _is_same(wrong, right) for wrong in given
    ):
        raise ConsistencyError(f"`{columns.wrong_answer}` holds the right answer, {right!r}")
    wrong_answers = given
    if denial := next((wrong for wrong in given if denied_answer(wrong) is not None), None):
        raise ConsistencyError(
            f"`{columns.wrong_answer}` holds {denial!r}, and `NOT ` at the beginning would deny the rest. Begin it with another word"
        )
    if not choices and answer:
        _check_letters(answer, given, choices_in([{**asked, "role": "user"}]), columns)
    if choices:
        # A choice with the same text as the right answer is not wrong.
        pairs = zip(ascii_uppercase, choices, strict=False)
        wrong_answers = tuple(letter for letter, choice in pairs if choice.strip() != right.strip()) if answer else ()
    late = [column for column in CARRIED_COLUMNS if row.get(column) is not None and column not in columns.keep]
    if late:
        raise late_column(late[0])
    source_id = row.get(columns.source_id) if columns.source_id else None
    _text(source_id, columns.source_id)
    return Source(
        source_id=_name(source_id) if source_id not in (None, "") else _content_id(prompt, choices),
        question=content_text(asked),
        choices=choices,
        answer=answer,
        wrong_answers=wrong_answers,
        given_wrong_answer=given[0] if given else "",
        instruction=instruction,
        safety_fact=_text(row.get(columns.safety_fact), columns.safety_fact) if columns.safety_fact else "",
        history=tuple(history),
        turns=tuple(turns),
        of_turn={key: value for key, value in asked.items() if key not in ("role", "content") and value is not None},
        chat=chat,
        carried={column: _carried(row, column) for column in columns.keep},
    )


def _faults_beside(row: Mapping[str, Any], prompt: Any, columns: Columns, chat: bool) -> list[str]:
    """Returns what training would refuse in the tools and template variables of a row, which its pairs keep."""
    kept = {name: row[name] for name in TEMPLATE_COLUMNS if name in columns.keep and row.get(name) is not None}
    if not kept:
        return []
    kept["prompt"] = [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt
    return row_checker(kept, has_completion=False, prompt_columns=("prompt",))(kept)


def _instruction(row: Mapping[str, Any], asked: Message, choices: Sequence[str], answer: str, chat: bool) -> str:
    """Returns the request for an answer that a rule can read. A text without choices gets none: base models go on with it."""
    if choices:
        return CHOICE_INSTRUCTION
    text = content_text(asked)
    has_own = "answer:" in text.casefold() or before_choices(text) != text
    return ANSWER_INSTRUCTION if chat and answer and row.get("category") not in REQUESTS and not has_own else ""


def _check_letters(answer: str, given: Sequence[str], written: Mapping[str, str], columns: Columns) -> None:
    """Raises [`ConsistencyError`] if only one of two answers is a letter of the choices that a question has `written` in it."""
    for wrong in given:
        if (answer in written) == (wrong in written):
            continue
        one, two = (
            f"the letter {text!r} of a choice in the question" if text in written else repr(text)
            for text in (wrong, answer)
        )
        raise ConsistencyError(
            f"`{columns.wrong_answer}` holds {one}, and `{columns.answer}` is {two}: write the letter of each answer"
        )


def _split_turns(prompt: Any, column: str, chat: bool) -> tuple[list[Message], Message, list[Message]]:
    """Returns the messages before the last user turn, that turn, and the messages after it."""
    if isinstance(prompt, str):
        return [], {"content": prompt}, []
    if not chat:
        raise ConsistencyError(f"`{column}` is a list of messages, which `prompt_format: text` cannot take")
    position = max((index for index, message in enumerate(prompt) if message["role"] == "user"), default=None)
    if position is None:
        raise ConsistencyError(f"`{column}` has no user turn")
    return prompt[:position], prompt[position], prompt[position + 1 :]


def content_text(message: Message) -> str:
    """Returns the text of a message, whose content may be a string or a list of blocks."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


class _Choices(NamedTuple):
    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # empty unless given as `{"text": [], "label": []}`
    columns: tuple[str, ...] = ()  # empty unless each has one of its own
    has_numbers: bool = False  # whether a number may name one by its value


def _read_choices(row: Mapping[str, Any], columns: tuple[str, ...]) -> _Choices:
    if not columns:
        return _Choices()
    labels: Sequence[Any] = ()
    values: Any
    if len(columns) > 1:
        name = ", ".join(columns)
        cells = [row.get(column) for column in columns]
        values = [value for value in cells if value not in (None, "")]
        if values != cells[: len(values)]:  # the letters of those after it would shift, and `answer` name another
            gap = next(column for column, value in zip(columns, cells, strict=True) if value in (None, ""))
            raise ConsistencyError(f"`{gap}` is empty, though a choice after it is not")
    else:
        name = columns[0]
        values = row.get(name)
        if isinstance(values, str) and values.strip()[:1] in ("[", "{"):  # a cell of a CSV file
            values = _from_json(values, name)
        if isinstance(values, dict):
            if values and "text" not in values:
                raise ConsistencyError(
                    f"`{name}` has no `text`, only {', '.join(f'`{key}`' for key in values)}: give a list, or texts in `text` and labels "
                    "in `label`"
                )
            values, labels = values.get("text"), values.get("label") or ()
    if values in (None, "", []):
        return _Choices()
    if not isinstance(values, list) or not all(_text(value, name).strip() for value in values):
        raise ConsistencyError(f"`{name}` must be a list of texts, got {values!r:.80}")
    if not 2 <= len(values) <= len(ascii_uppercase):
        raise ConsistencyError(f"`{name}` has {len(values)} choice(s), not 2 to {len(ascii_uppercase)}")
    if labels and len(labels) != len(values):
        raise ConsistencyError(f"`{name}` has {len(values)} texts but {len(labels)} labels")
    labels = tuple(_name(label).strip() for label in labels)
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConsistencyError(f"`{name}` has the label {twice!r} twice")
    texts = tuple(map(_text, values))
    if kind := _own_marks(texts):
        raise ConsistencyError(f"`{name}` begin with {kind} of their own, such as {texts[0]!r:.40}: leave these out")
    if inner := next((text for text in texts if re.search(r"\n\s*\(?[A-Z][).:]\s", text)), None):
        raise ConsistencyError(
            f"`{name}` hold a line that begins like another choice, {inner!r:.60}: leave the line break out"
        )
    has_numbers = not labels and any(isinstance(value, int | float) for value in values)
    return _Choices(texts, labels, columns if len(columns) > 1 else (), has_numbers)


# What a choice may begin with: "A)", "(A)", "[A]", "**A.**", "A - ", "Option A:", "1.", "(ii)". "B.B. King" is a name, 1.5 a number, and
# 1:30 a time.
_MARK = re.compile(
    r"\s*\**(?:(?i:option|choice|answer) )?[(\[\uff08]?(?P<mark>[A-Za-z]|\d{1,2}|[IVX]{1,4}|[ivx]{1,4})"
    r"(?:[)\]\uff09\uff0e\u3001]|(?<!\d)[:\uff1a]|[:\uff1a](?!\d)|(?<!\d)\.(?![A-Za-z](?:\.|$))|\.(?=[\s*])|\*\*(?=\s)"
    r"|(?<!\d)\s[-\u2013\u2014]\s(?=\w\w))"
)
_NUMBERS = ([str(number) for number in range(1, 27)], ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"])


def _own_marks(texts: Sequence[str]) -> str:
    """
    Returns what choices begin with themselves: "letters" or "numbers" in any order, or nothing. After letters in their order, the last
    choice may have none ("None of these").
    """
    found = [_MARK.match(text) for text in texts]
    marked = [of for of in found if of]
    marks, letters = [of["mark"].lower() for of in marked], list(ascii_lowercase[: len(marked)])
    if len(marked) == len(texts) - 1 > 1 and found[-1] is None and marks == letters:
        return "letters"
    if len(marked) < len(texts):
        return ""
    if sorted(marks) == letters:
        return "letters"
    # Of "1. May" and "2. May", the numbers are all that differs.
    differ = len({of.string[of.end() :].strip("* ") for of in marked}) > 1
    return "numbers" if differ and any(sorted(marks) == sorted(of[: len(marks)]) for of in _NUMBERS) else ""


def _read_answer(row: Mapping[str, Any], column: str | None, choices: _Choices) -> str:
    value = row.get(column) if column else None
    if value is None or value == "":
        return ""
    return _letter(value, column, choices) if choices.texts else _free_answer(value, column)


def _read_wrong_answers(
    row: Mapping[str, Any], column: str | None, choices: _Choices, answer: str = ""
) -> tuple[str, ...]:
    value = row.get(column) if column else None
    if value is None or value == "" or value == []:
        return ()
    if isinstance(value, str) and value.strip()[:1] == "[" and not _is_one_answer(value, choices, answer):
        value = _from_json(value, column)
    if isinstance(value, str) and not choices.texts and _LISTED.search(value) and not _LISTED.search(answer):
        raise ConsistencyError(
            f"`{column}` {value!r:.80} seems to be a list. Write it as JSON: {json.dumps(_LISTED.split(value)[:2])[:-1]}, ...]. If it is one "
            "answer, write it as a list of one"
        )
    values = value if isinstance(value, list) else [value]
    return tuple(_letter(item, column, choices) if choices.texts else _free_answer(item, column) for item in values)


def _is_one_answer(value: str, choices: _Choices, answer: str) -> bool:
    """Whether a text in brackets is an answer, such as `[3, 1]` beside the right one `[1, 3]`, and no list of answers."""
    return value in choices.texts or (answer.startswith("[") and not re.match(r'\s*\[\s*"\[', value))


def _read_aliases(row: Mapping[str, Any], answer: str, wrong_answers: tuple[str, ...]) -> list[str]:
    """Returns other names of the right answer, texts."""
    aliases = list(_read_wrong_answers(row, "aliases", _Choices(), answer))
    if aliases and not answer:
        raise ConsistencyError("`aliases` are other names of the answer, but there is no answer")
    wrong = next((alias for alias in aliases if any(_is_same(alias, of) for of in wrong_answers)), None)
    if wrong:
        raise ConsistencyError(f"`aliases` are names of the right answer, and {wrong!r} is given as a wrong one")
    return aliases


def _free_answer(value: Any, column: str | None) -> str:
    text = _text(value, column).strip()
    if not text:
        raise ConsistencyError(f"`{column}` must be text, got {value!r:.80}")
    return text


def _is_same(one: str, other: str) -> bool:
    """Returns whether two answers are one in another spelling: "Nile" and "the Nile", "13000" and "13,000"."""
    return _spelling(one) == _spelling(other)


def _spelling(answer: str) -> str:
    words = re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(answer.split()))
    words = re.sub(r"^the ", "", words, flags=re.IGNORECASE)
    return words if len(words) < 4 else words.lower()  # short ones are read in their own case alone


def _name(value: Any) -> str:
    """Returns a name as text: 1.0, as a column of numbers with gaps has it, is 1."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _letter(value: Any, column: str | None, choices: _Choices) -> str:
    """Returns the letter of the choice that an answer names by its label, letter, column, text or index from 0."""
    text = _text(value, column).strip()
    texts, labels, columns, has_numbers = choices
    if (label := _name(value).strip()) in labels:
        return ascii_uppercase[labels.index(label)]
    letters = ascii_uppercase[: len(texts)]
    is_index = text.isdecimal() and int(text) < len(texts) and not any(map(str.isdecimal, labels))
    meant = {letters[int(text)]} if is_index else set()
    if isinstance(value, str):
        meant.update(letter for letter in letters if letter == text)
    meant.update(letter for letter, name in zip(letters, columns, strict=False) if name == text)
    # Text may be any of the three. A number is an index, unless there are numbers among the choices, too, or it is also the text of
    # another choice.
    if isinstance(value, str) or has_numbers or is_index:
        meant.update(letter for letter, choice in zip(letters, texts, strict=True) if choice.strip() == text)
    # Two choices of the same text are the same answer.
    if len({texts[letters.index(letter)] for letter in meant}) > 1:
        raise ConsistencyError(
            f"`{column}` {value!r} could mean {' or '.join(f'({letter})' for letter in sorted(meant))}: give letters"
        )
    if not meant:
        ways = "a label or the text of a choice" if labels else "a letter, the text of a choice, or its index from 0"
        kind = BeyondChoicesError if text.isdecimal() and int(text) == len(texts) else ConsistencyError
        raise kind(f"`{column}` {value!r:.80} is not one of the {len(texts)} choices: give {ways}")
    return min(meant)


def _from_json(text: str, column: str | None) -> Any:
    """Returns the value of a cell that holds JSON, normalized: its text may have been behind escapes."""
    try:
        value = _normalized(strict_json(text))
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:  # also for half a surrogate pair
        raise ConsistencyError(f"`{column}` is not valid JSON ({error})") from None
    return value


def _normalized(value: Any) -> Any:
    """Normalizes all text in a value, so that an answer is found in other text. pandas has NumPy arrays for lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        return normalized(value)
    if isinstance(value, dict):
        return {key: _normalized(item) for key, item in value.items()}
    return [_normalized(item) for item in value] if isinstance(value, list) else value


def _text(value: Any, column: str | None = None) -> str:
    """Returns text unchanged, a number as text (1.0 as `1`), and an empty text for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise ConsistencyError(f"`{column}` holds {value}, which is not a number: write text, a number, or null")
    return _name(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _carried(row: Mapping[str, Any], column: str) -> Any:
    if column != "category":
        return row.get(column)
    # `datasets` takes a column that is null in the first rows of a JSON Lines file as null in all. Of a class, evaluation
    # reads the name, which is a text.
    value = row.get(column)
    return "" if value is None else _text(value, column) or value


def _content_id(prompt: Any, choices: tuple[str, ...]) -> str:
    """Returns a name for a source without one. It depends on the content and not on earlier rows."""
    return hashlib.sha256(json.dumps([prompt, choices], sort_keys=True, default=str).encode()).hexdigest()[:16]

"""Reads a folder of questions, texts and safe prompts that a model's capability is measured on."""

import hashlib
import json
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ..data.choices import never_first
from ..data.folders import check_is_there, is_table, tables_in
from ..data.pairs import MAX_REPORTED
from ..data.rendering import ProcessingClass, Prompt, chat_template_of, encode_text, get_tokenizer, render_prompt
from ..errors import ConsistencyError, InvalidPairsError
from ..perturbations.reading import read_rows
from .answers.preferences import answer_tokens


ENDINGS = (".jsonl", ".json", ".csv", ".parquet")
# Columns that only questions of multiple choice have, in lower case
CHOICE_COLUMNS = {"a", "b", "choice", "choice_a", "endings", "option_a", "options"}
# Columns that belong to what is asked, in lower case. Without them, a question would be another one, or have no answer.
UNREAD_COLUMNS = {
    *("article", "background", "context", "ctx", "document", "paragraph", "passage", "premise", "story", "support"),
    *("audio", "image", "images", "table", "input", "text_pair"),
    *("instruction", "instructions", "system", "system_prompt"),
}
# As lm-evaluation-harness asks the questions of ARC and of GSM8K
QUESTION = "Question: {}\nAnswer:"
# Where XSTest's `label` is missing, its `type` marks the unsafe prompts so. The others are of these types.
UNSAFE_TYPE = "contrast"
SAFE_TYPES = (
    *("homonyms", "figurative_language", "safe_targets", "safe_contexts", "definitions", "nons_group_real_discr"),
    *("real_group_nons_discr", "historical_events", "privacy_public", "privacy_fictional"),
)
_ASKS = ("?", "\uff1f", "\u061f")  # in Chinese and Japanese, and in Arabic
_CLOSING = "\"')]\u201d\u2019"

Kind: TypeAlias = Literal["questions", "texts", "prompts"]


class Question(NamedTuple):
    """A question of multiple choice. `answer` is the place of the right choice."""

    prompt: str
    choices: list[str]
    answer: int


class Text(NamedTuple):
    """A text to read, and the text before it that is not scored."""

    context: str
    text: str


Item: TypeAlias = Question | Text | str  # a prompt is a string


@dataclass(frozen=True)
class ItemSet:
    """
    Items of one file, in its order.

    Args:
        path (`Path`):
            The file.
        kind (`str`):
            `"questions"`, `"texts"` or `"prompts"`.
        items (`list[Question]`, `list[Text]` or `list[str]`):
            The items.
        rows (`list[int]`):
            The row of each in the file, from 0.
    """

    path: Path
    kind: Kind
    items: Sequence[Any]
    rows: list[int]

    @property
    def digest(self) -> str:
        """A digest of the items: figures of others cannot be compared."""
        return hashlib.blake2b(json.dumps([self.kind, self.items]).encode(), digest_size=10).hexdigest()

    def sample(self, max_items: int | None, seed: int) -> "ItemSet":
        """Returns at most `max_items`, drawn with `seed`, in the file's order."""
        if max_items is None or max_items >= len(self.items):
            return self
        kept = sorted(random.Random(seed).sample(range(len(self.items)), max_items))
        return replace(self, items=[self.items[index] for index in kept], rows=[self.rows[index] for index in kept])

    def fault(self, index: int, reason: str) -> ConsistencyError:
        return _fault(self.path, self.rows[index], reason)

    def as_anchors(self, tokenizer: ProcessingClass) -> list[dict[str, Prompt]]:
        """Returns what is asked as a training has it that is anchored on it: pairs of the same prompt. Plain texts ask nothing."""
        asked = [item if isinstance(item, str) else _question_in(item[0]) for item in self.items]
        prompts = [as_prompt(tokenizer, text) for text in asked if text]
        return [{"clean_prompt": prompt, "perturbed_prompt": prompt} for prompt in prompts]


@dataclass(frozen=True)
class CapabilityData:
    """
    A folder's items by file: its path in the folder, without the ending (`"gsm8k/train"`). `left_out` are files of pairs,
    which are measured as pairs.
    """

    sets: Mapping[str, ItemSet]
    left_out: list[str] = field(default_factory=list)

    @property
    def has_prompts(self) -> bool:
        """Whether some of it goes through the chat template."""
        return any(of_set.kind == "prompts" for of_set in self.sets.values())

    def check_lengths(
        self, tokenizer: ProcessingClass, context: int | None, template_kwargs: dict[str, Any] | None = None
    ) -> None:
        """Raises [`ConsistencyError`] for items that are longer than a model's context, or have nothing to score."""
        for of_set in self.sets.values():
            for index, item in enumerate(of_set.items):
                try:
                    longest = max(len(ids) for ids in token_ids(tokenizer, item, template_kwargs))
                except InvalidPairsError as error:
                    raise of_set.fault(index, str(error)) from None
                if context is not None and longest > context:
                    raise of_set.fault(
                        index, f"it has {longest} tokens, more than the model's context of {context}. Leave it out"
                    )
                if isinstance(item, str) and longest == context:
                    raise of_set.fault(
                        index,
                        f"it fills the model's context of {context} tokens, with no room for an answer. Leave it out",
                    )
                if isinstance(item, Text) and longest < 2:
                    raise of_set.fault(index, "its text has a single token, so that there is nothing to score")


def read_capability(data_dir: str | Path, max_items: int | None = None, seed: int = 0) -> CapabilityData:
    """
    Reads the files of a folder and its sub-folders. A file's columns say what it holds:

    - `question`, `choices` and `answer` (the index of the right one, from 0): questions of multiple choice.
    - `text`, or `question` and a worked `answer`: texts. After a question, only the answer is scored.
    - `prompt` with `label` (`safe` or `unsafe`) or XSTest's `type` (`contrast_…` for unsafe ones): prompts. Only
      the safe ones are kept.

    Files of pairs (`clean_prompt`, `perturbed_prompt`) are left out.

    Args:
        data_dir (`str` or [`~pathlib.Path`]):
            The folder.
        max_items (`int`, *optional*):
            Maximum number of items of each file, drawn at random. By default all.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the drawing. Which items are drawn depends on the seed, `max_items` and the number of items alone.

    Returns:
        [`CapabilityData`]: The items by file.

    Raises:
        [`ConsistencyError`]: If there is no such folder or no file to measure, a file's columns or rows are faulty, or
            `max_items` is less than 1.
    """
    if max_items is not None and max_items < 1:
        raise ConsistencyError(f"`max_items` must be at least 1, or None for all, got {max_items}.")
    folder = Path(data_dir)
    if not folder.is_dir():
        raise ConsistencyError(f"`capability_data`: {folder} is not a folder.")
    for path in tables_in(folder):
        check_is_there(folder, path)
    sets: dict[str, ItemSet] = {}
    left_out, unread = [], []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and is_table(path) and path.suffix.lower() not in ENDINGS:
            raise ConsistencyError(
                f"`capability_data`: {path} is not read, since its files end in {', '.join(ENDINGS)}. Convert it, or put it "
                "elsewhere."
            )
        if not path.is_file():
            continue
        if path.suffix.lower() not in ENDINGS:
            unread += [str(path.relative_to(folder))] * _may_be_data(path.relative_to(folder))
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        of_file = _read_file(path)
        if of_file is None:
            left_out.append(name)
        elif name in sets:
            raise ConsistencyError(f"`capability_data`: {sets[name].path} and {path} have the same name. Rename one.")
        else:
            sets[name] = of_file.sample(max_items, seed)
    if not sets:
        pairs = ", only pairs, which `pairs` takes" if left_out else ""
        raise ConsistencyError(
            f"`capability_data`: {folder} has no questions, texts or prompts ({', '.join(ENDINGS)}){pairs}."
        )
    if unread:
        listed = ", ".join(unread[:MAX_REPORTED])
        more = f" and {len(unread) - MAX_REPORTED} more" if len(unread) > MAX_REPORTED else ""
        warnings.warn(
            f"`capability_data`: {len(unread)} file(s) are not read and not measured, since their names end in none of "
            f"{', '.join(ENDINGS)}: {listed}{more}."
        )
    return CapabilityData(sets, left_out)


def _may_be_data(path: Path) -> bool:
    """Whether a file may be meant as data: not a hidden one, a card or a licence."""
    return not any(part.startswith(".") for part in path.parts) and path.stem.upper() not in ("README", "LICENSE")


def text_tokens(tokenizer: ProcessingClass, text: Text) -> tuple[list[int], list[int]]:
    """Returns the token ids of a text's context, or else its first token, and of what is scored after it."""
    if text.context:
        ids, start = answer_tokens(partial(encode_text, get_tokenizer(tokenizer)), text.context, text.text)
    else:
        ids, start = encode_text(get_tokenizer(tokenizer), text.text), 1
    return ids[:start], ids[start:]


def as_prompt(tokenizer: ProcessingClass, text: str) -> Prompt:
    """Returns a prompt as the user's turn, or as it is if there is no chat template."""
    return [{"role": "user", "content": text}] if chat_template_of(tokenizer) else text


def token_ids(
    tokenizer: ProcessingClass, item: Item, template_kwargs: dict[str, Any] | None = None
) -> Sequence[Sequence[int]]:
    """Returns the token ids that a model reads of an item."""
    if isinstance(item, str):
        return [render_prompt(tokenizer, as_prompt(tokenizer, item), chat_template_kwargs=template_kwargs)]
    if isinstance(item, Text):
        context, scored = text_tokens(tokenizer, item)
        return [[*context, *scored]]
    return [encode_text(get_tokenizer(tokenizer), f"{item.prompt} {choice}") for choice in item.choices]


def _read_file(path: Path) -> ItemSet | None:
    """Returns the items of a file, or None for a file of pairs."""
    rows = list(read_rows(str(path)))
    if not rows:
        raise ConsistencyError(f"`capability_data`: {path} has no rows. Remove it from the folder, or fill it.")
    columns = {column for row in rows for column in row}
    if all({"clean_prompt", "perturbed_prompt"} <= row.keys() for row in rows):
        return None
    kind: Kind
    read: Callable[[Mapping[str, Any]], Item | None]
    if {"question", "choices", "answer"} <= columns:
        kind, read = "questions", _read_question
    elif {"question", "answer"} <= columns:
        if of_choices := sorted(column for column in columns if column.lower() in CHOICE_COLUMNS):
            raise ConsistencyError(
                f"`capability_data`: {path} has `{of_choices[0]}` beside `question` and `answer`. For multiple choice, list the choices' texts in "
                "`choices`, and give the index of the right one in `answer`, from 0. For worked answers, remove that column."
            )
        kind, read = "texts", _read_worked_answer
    elif "text" in columns:
        kind, read = "texts", lambda row: Text("", _text(row, "text"))
    elif "prompt" in columns and columns & {"label", "type"}:
        kind, read = "prompts", _read_safe_prompt
    else:
        raise ConsistencyError(
            f"`capability_data`: {path} has the columns {', '.join(f'`{column}`' for column in rows[0])}. Questions need "
            "`question`, `choices` and `answer`, texts `text`, or `question` and `answer`, and prompts `prompt` and `label`."
        )
    items, numbers = [], []
    for number, row in enumerate(rows):
        try:
            _check_all_is_read(row)
            item = read(row)
        except ValueError as error:
            raise _fault(path, number, str(error)) from None
        if item is not None:
            items.append(item)
            numbers.append(number)
    if not items:
        raise ConsistencyError(f"`capability_data`: {path} has no prompt whose `label` is `safe`.")
    if kind == "questions" and (
        doubt := never_first([str(row.get("answer")) for row in rows], "answer", f" in {path}")
    ):
        warnings.warn(f"`capability_data`: {doubt}")
    if repeated := len(items) - len({*map(repr, items)}):
        warnings.warn(
            f"`capability_data`: {repeated} item(s) of {path} repeat an earlier one. Each counts again, and intervals treat it as "
            "independent. Remove them."
        )
    return ItemSet(path, kind, items, numbers)


def _check_all_is_read(row: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a row holds a part of what is asked in a column that is not read."""
    for column, value in row.items():
        if column.lower() in UNREAD_COLUMNS and value not in (None, [], {}) and str(value).strip():
            read = next(of for of in ("question", "text", "prompt") if of in row)
            raise ValueError(
                f"`{column}` is not read, so that the model would not see it. Write it into `{read}`, or remove that column"
            )


def _read_question(row: Mapping[str, Any]) -> Question:
    choices, answer = row.get("choices"), row.get("answer")
    if isinstance(choices, str):  # a cell of a CSV file
        choices, answer = _json(choices, "choices"), _json(answer, "answer")
    if not isinstance(choices, list) or len(choices) < 2:
        raise ValueError("`choices` must be a list of two texts or more")
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ValueError("`choices` holds something else than texts, or an empty one")
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise ValueError(
            f"`answer` must be the index of one of the {len(choices)} choices, from 0, got {answer!r:.80}"
        )
    texts = [choice.strip() for choice in choices]
    distinct = list(dict.fromkeys(texts))  # of two that are the same, the scorer would take one for wrong
    if len(distinct) == 1:
        raise ValueError(f"`choices` are all the same, {distinct[0]!r:.40}")
    return Question(_asked(_text(row, "question")), distinct, distinct.index(texts[answer]))


def _asked(question: str) -> str:
    """
    Returns a question as it is asked. What does not end as a question is the beginning of a sentence, which a choice
    completes: half of OpenBookQA is.
    """
    return QUESTION.format(question) if question.rstrip(_CLOSING).endswith(_ASKS) else question


def _question_in(asked: str) -> str:
    """The reverse of [`_asked`]."""
    begin, end = QUESTION.split("{}")
    is_whole = asked.startswith(begin) and asked.endswith(end)
    return asked[len(begin) : -len(end)] if is_whole else asked


def _read_worked_answer(row: Mapping[str, Any]) -> Text:
    return Text(QUESTION.format(_text(row, "question")), _text(row, "answer"))


def _read_safe_prompt(row: Mapping[str, Any]) -> str | None:
    if "label" in row:
        label = row["label"]
        if label not in ("safe", "unsafe"):
            raise ValueError(f"`label` must be `safe` or `unsafe`, got {label!r:.80}")
        is_safe = label == "safe"
    else:
        of_type = _text(row, "type")
        is_safe = not of_type.startswith(UNSAFE_TYPE)
        if is_safe and of_type not in SAFE_TYPES:
            raise ValueError(
                f"`type` {of_type!r:.80} is none of XSTest's: say in `label` whether it is `safe` or `unsafe`"
            )
    return _text(row, "prompt") if is_safe else None


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{column}` must be a text, got {value!r:.80}")
    try:  # JSON can hold half a surrogate pair, which no tokenizer takes
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{column}` is not valid Unicode ({error.reason})") from None
    return value.strip()


def _json(value: Any, column: str) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        raise ValueError(f"`{column}` is not valid JSON, got {value!r:.80}") from None


def _fault(path: Path, row: int, reason: str) -> ConsistencyError:
    return ConsistencyError(f"`capability_data`: {path}, row {row}: {reason}.")

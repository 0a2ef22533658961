"""Defines the columns of a pair, and checks rows without a tokenizer."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import signature
from itertools import islice
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..errors import InvalidPairsError
from ..json_files import strict_json
from .messages import is_unicode, message_fault, text_faults


AnyDataset: TypeAlias = Dataset | IterableDataset

PROMPT_COLUMNS = ("clean_prompt", "perturbed_prompt")
PAIR_COLUMNS = (*PROMPT_COLUMNS, "completion", "completion_ids", "tools", "chat_template_kwargs", "shared_text")

# Columns that preparation adds. A data set that already has them would be taken for a prepared one.
RESERVED_COLUMNS = ("clean_ids", "perturbed_ids", "suffix", "content_span")

# Arguments of rendering, which are the same for both sides of every pair and are not variables of the chat template.
RESERVED_TEMPLATE_KWARGS = (
    set(signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"self", "documents", "kwargs"}
) | {"messages"}

MAX_REPORTED = 10


def check_pairs(dataset: AnyDataset, name: str = "train_dataset") -> None:
    """
    Checks a data set of pairs before any weights load, and raises one error for all faulty rows. `name` stands for the
    data set in messages.

    A streamed data set is checked here by its columns and first row. Its other rows are checked when they are read.
    """
    first, columns = _first_row(dataset, name)
    check_prompt_columns(columns, name)
    _check_rows(dataset, columns, first, row_checker(first, has_completion="completion" in columns), name)


def _first_row(dataset: AnyDataset, name: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the first row and the columns of a data set, and raises if it has none."""
    if dataset is None:
        raise InvalidPairsError(f"`{name}` is required: pairs with `clean_prompt` and `perturbed_prompt`.")
    if not isinstance(dataset, (Dataset, IterableDataset)):
        hint = f" Choose one of its splits: {', '.join(map(repr, dataset))}." if isinstance(dataset, dict) else ""
        raise TypeError(
            f"`{name}` must be a `datasets.Dataset` or `datasets.IterableDataset`, got `{type(dataset).__name__}`.{hint}"
        )
    if isinstance(dataset, Dataset) and dataset.format["type"] == "custom":
        raise InvalidPairsError(
            f"`{name}` uses `with_transform()`, whose result could differ at every read. Apply the transform with "
            "`Dataset.map()` first."
        )
    with _readable(name):
        first = next(iter(dataset), None)
        # For example a generator that is used up, or a `map` that draws random numbers
        if isinstance(dataset, IterableDataset) and list(islice(dataset, 4)) != list(islice(dataset, 4)):
            raise InvalidPairsError(
                f"`{name}` is a stream that gives other rows when it is read again, as checks, evaluations and further epochs "
                "do. Make it from a function that starts again each time and draws with a fixed seed."
            )
    if first is None:
        raise InvalidPairsError(f"`{name}` is empty: it has no rows.")
    columns = dataset.column_names or list(first)
    fault = next(column_faults(columns), None)
    if fault:
        raise InvalidPairsError(f"`{name}` has {fault}")
    return first, columns


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidPairsError(f"`{name}` is not valid UTF-8 ({error}). Save the data in that encoding.") from None


def column_faults(columns: list[str]) -> Iterator[str]:
    """Yields faults of columns whose names have another meaning, or are misspelled."""
    for column in RESERVED_COLUMNS:
        if column in columns:
            yield f"the column `{column}`, a name that preparation uses: rename it."
    for column in ("image", "images"):
        if column in columns:
            yield (
                f"the column `{column}`: pairs are text-only for now. Remove the column with `dataset.remove_columns` if the "
                "prompts do not need it."
            )
    others = [column for column in PAIR_COLUMNS if column not in PROMPT_COLUMNS]
    yield from misspelt_columns(columns, others, PAIR_COLUMNS, cutoff=0.85)


def misspelt_columns(
    columns: Iterable[str], wanted: Iterable[str], known: Collection[str], cutoff: float
) -> Iterator[str]:
    """Yields a fault for each wanted column that is not there while one of nearly that name is, none of the `known`."""
    columns = list(columns)
    others = {column.lower(): column for column in columns if column not in known}
    for column in wanted:
        if column in columns:
            continue
        if near := get_close_matches(column, others, n=1, cutoff=cutoff):
            yield (
                f"the column `{others[near[0]]}`, which would be ignored. Rename it to `{column}` if that is "
                "what it holds, or to something else if not."
            )


def _check_rows(
    dataset: AnyDataset,
    columns: list[str],
    first: dict[str, Any],
    check_row: Callable[[dict[str, Any]], list[str]],
    name: str,
) -> None:
    if isinstance(dataset, IterableDataset):
        report_faults([(0, fault) for fault in check_row(first)], name)
        return
    rows = dataset.select_columns([column for column in ("prompt", *PAIR_COLUMNS) if column in columns]).with_format(
        None
    )
    progress = tqdm(rows, desc=f"Checking {name}", disable=len(rows) < 50_000)
    with _readable(name):
        faults = [(index, fault) for index, row in enumerate(progress) for fault in check_row(row)]
    report_faults(faults, name, len(rows))


def check_anchors(dataset: AnyDataset, name: str = "anchor_dataset") -> None:
    """
    Checks a data set of anchors, as [`check_pairs`] checks pairs: rows with a `prompt` column, and optionally
    `completion`, `tools` and `chat_template_kwargs`.
    """
    first, columns = _first_row(dataset, name)
    if "prompt" not in columns:
        raise InvalidPairsError(
            f"`{name}` has no column `prompt`; its columns are {', '.join(f'`{column}`' for column in columns)}. Rename "
            "the column that holds the prompts (`dataset.rename_column`)."
        )
    check_row = row_checker(first, has_completion="completion" in columns, prompt_columns=("prompt",))
    _check_rows(dataset, columns, first, check_row, name)


def report_faults(faults: list[tuple[int, str]], name: str, num_rows: int | None = None, is_cut: bool = False) -> None:
    """
    Raises an [`InvalidPairsError`] that lists the first faults (row index from 0, and reason) and counts the rest, if
    there are any. With `is_cut`, there are more than those.
    """
    if not faults:
        return
    faulty_rows = len({index for index, _ in faults})
    lines = [f"row {index}: {' '.join(reason.split())}" for index, reason in faults[:MAX_REPORTED]]
    if len(faults) > MAX_REPORTED:
        lines.append(f"... and {len(faults) - MAX_REPORTED} more faults")
    of_all = f" of {num_rows}" if num_rows is not None else ""
    found = f"`{name}`: {'more than ' if is_cut else ''}{faulty_rows}{of_all} row(s) cannot be used. Nothing was dropped; mend or remove"
    raise InvalidPairsError(f"{found} it: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{found} them:", *lines]))


def check_prompt_columns(columns: list[str], name: str) -> None:
    """Raises [`InvalidPairsError`] if a prompt column is missing, and suggests a similar name."""
    for column in PROMPT_COLUMNS:
        if column not in columns:
            near = get_close_matches(column, columns, n=1)
            hint = (
                f" If `{near[0]}` is meant, rename it: in the file, or with `dataset.rename_column`."
                if near
                else " `trl-consistency pairs` makes pairs of questions."
            )
            raise InvalidPairsError(
                f"`{name}` has no column `{column}`; its columns are {', '.join(f'`{c}`' for c in columns)}.{hint}"
            )


def row_checker(
    first: dict[str, Any], has_completion: bool, prompt_columns: tuple[str, ...] = PROMPT_COLUMNS
) -> Callable[[dict[str, Any]], list[str]]:
    """
    Returns a function that lists the faults of a row, given the data set's first row (every row must have its types),
    whether the data set has a `completion` column, and the prompt columns.
    """
    kinds = {column: _kind(first.get(column)) for column in prompt_columns}

    def check_row(row: dict[str, Any]) -> list[str]:
        faults = []
        for column in prompt_columns:
            faults += [f"`{column}` {fault}" for fault in _prompt_faults(row.get(column))]
            kind = _kind(row.get(column))
            if kind and kinds[column] and kind != kinds[column]:
                faults.append(f"`{column}` is {kind}, but {kinds[column]} in row 0: a column has one type")
        if (
            len(prompt_columns) == 2
            and _is_prefilled(row, "clean_prompt")
            and not _is_prefilled(row, "perturbed_prompt")
        ):
            faults.append(
                "`clean_prompt` ends with an assistant turn to continue and `perturbed_prompt` does not: the rest of an "
                "answer would be taught as a whole one"
            )
        sides = [_kind(row.get(column)) for column in prompt_columns]
        if all(sides) and len(set(sides)) > 1:
            faults.append(f"`clean_prompt` is {sides[0]} and `perturbed_prompt` {sides[1]}: both need the same type")
        if "completion_ids" in first:
            faults += [f"`completion_ids` {fault}" for fault in _completion_ids_faults(row.get("completion_ids"))]
        elif has_completion:
            faults += [f"`completion` {fault}" for fault in _completion_faults(row.get("completion"), sides[0])]
        for column in ("tools", "chat_template_kwargs"):
            if sides[0] == "a string" and parse_or_none(row.get(column)):
                faults.append(f"`{column}` is given, but the prompts are text, which no chat template renders")
        shared_text = row.get("shared_text")
        if shared_text is not None and not (isinstance(shared_text, str) and shared_text.strip()):
            faults.append(f"`shared_text` must be text that both prompts hold, not {shared_text!r}")
        faults += [f"`tools` {fault}" for fault in _tools_faults(row.get("tools"))]
        faults += [f"`chat_template_kwargs` {fault}" for fault in _kwargs_faults(row.get("chat_template_kwargs"))]
        return faults

    return check_row


def _kind(prompt: Any) -> str | None:
    return "a string" if isinstance(prompt, str) else "a list of messages" if isinstance(prompt, list) else None


def _is_prefilled(row: dict[str, Any], column: str) -> bool:
    prompt = row.get(column)
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and isinstance(prompt[-1], dict)
        and prompt[-1].get("role") == "assistant"
    )


def _prompt_faults(prompt: Any) -> Iterator[str]:
    if prompt is None:
        yield "is missing"
    elif isinstance(prompt, str):
        if not prompt.strip():
            yield "is empty or blank"
        if not is_unicode(prompt):
            yield "is not valid Unicode: it holds half a surrogate pair"
        yield from text_faults(prompt)
    elif not isinstance(prompt, list):
        yield f"must be a string or a list of chat messages, not `{type(prompt).__name__}`"
    elif not prompt:
        yield "is an empty list of messages"
    else:
        for position, message in enumerate(prompt):
            fault = message_fault(message)
            if fault:
                yield f"message {position} {fault}"
        last = prompt[-1] if isinstance(prompt[-1], dict) else {}
        if last.get("role") == "model":
            yield "ends with a turn of the role `model`, which would not be continued: write `assistant`"
        if last.get("role") == "assistant" and last.get("tool_calls"):
            yield "ends with an assistant tool call, which cannot be continued: add the tool's answer"


def _completion_faults(completion: Any, prompt_kind: str | None) -> Iterator[str]:
    if completion is None:
        yield (
            "is missing here though the column exists: give it for every row, or remove the column to have the "
            "reference policy answer all clean prompts"
        )
    elif isinstance(completion, str):
        if not completion.strip():
            yield "is empty or blank"
        yield from text_faults(completion)
    elif not isinstance(completion, list):
        yield f"must be a string or a list of one assistant message, not `{type(completion).__name__}`"
    elif prompt_kind == "a string":
        yield "is a list of messages, but the prompts are strings"
    elif len(completion) != 1 or not isinstance(completion[0], dict) or completion[0].get("role") != "assistant":
        yield "must be exactly one assistant message"
    else:
        fault = message_fault(completion[0])
        if fault:
            yield f"message 0 {fault}"


def _completion_ids_faults(completion_ids: Any) -> Iterator[str]:
    if completion_ids is None:
        yield "is missing here though the column exists: give it for every row, or remove the column"
    elif not isinstance(completion_ids, list) or not all(type(token) is int for token in completion_ids):
        yield "must be a list of token ids"
    elif min(completion_ids, default=0) < 0:
        yield f"holds {min(completion_ids)}, which is not a token id"
    elif not completion_ids:
        yield "is empty"


def _tools_faults(value: Any) -> Iterator[str]:
    try:
        tools = parse_json_column(value)
    except ValueError as error:
        yield f"is not valid JSON ({error})"
        return
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        yield "must be a list of JSON schemas (or that list as a JSON string)"


def _kwargs_faults(value: Any) -> Iterator[str]:
    try:
        kwargs = parse_json_column(value)
    except ValueError as error:
        yield f"is not valid JSON ({error})"
        return
    if kwargs is None:
        return
    if not isinstance(kwargs, dict):
        yield "must be a dict (or that dict as a JSON string)"
        return
    yield from template_kwargs_faults(kwargs)


def template_kwargs_faults(kwargs: dict[str, Any]) -> Iterator[str]:
    """Yields a fault if `chat_template_kwargs` sets arguments of rendering."""
    reserved = sorted(key for key in kwargs if key in RESERVED_TEMPLATE_KWARGS and kwargs[key] is not None)
    if reserved:
        yield (
            f"sets {', '.join(f'`{key}`' for key in reserved)}, which is set the same for both sides and is not for the chat "
            "template: only variables of the template can be given"
        )
    for key, value in kwargs.items():
        if (number := _not_finite(value)) is not None:
            yield f"sets `{key}` to {number}, which is not a number"
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            yield f"sets `{key}` to the text {value!r}, which a template takes for true: write {value.strip().lower()} without quotes"


def _not_finite(value: Any) -> float | None:
    """Returns the first number in a value that is not finite, or None."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return next((found for item in items if (found := _not_finite(item)) is not None), None)
    return value if isinstance(value, float) and not math.isfinite(value) else None


def is_intact(row: Mapping[str, Any]) -> bool:
    """Whether a pair does not say that its question was edited or encoded (in CSV files, `question_intact` is a text)."""
    return str(row.get("question_intact")).lower() != "false"


def parse_json_column(value: Any) -> Any:
    """Returns the value of a `tools` or `chat_template_kwargs` cell, which may be a JSON string. Raises `ValueError` for another."""
    return strict_json(value) if isinstance(value, str) else value


def parse_or_none(value: Any) -> Any:
    """Like [`parse_json_column`], but returns None if the cell cannot be parsed."""
    try:
        return parse_json_column(value)
    except ValueError:
        return None

"""Renders a data set of pairs to token ids, and reports or leaves out rows that do not fit."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset

from ..errors import ConsistencyError, InvalidPairsError
from ..log import get_logger
from .alignment import (
    AlignmentReport,
    Span,
    content_range,
    content_text,
    header_length,
    report_alignment,
    shared_content_span,
    shared_suffix,
)
from .completion_faults import completion_fault
from .control_tokens import check_texts
from .digests import code_digest
from .messages import without_none
from .pairs import MAX_REPORTED, PROMPT_COLUMNS, AnyDataset, is_intact, parse_json_column, report_faults, row_checker
from .rendering import (
    ProcessingClass,
    chat_template_of,
    get_tokenizer,
    has_equal_prompts,
    message_text,
    render_completion,
    render_prompt,
)
from .template_check import dates_of
from .time_limit import TimeLimitError
from .unknown_words import count_unknown, say_unknown


logger = get_logger(__name__)

RENDERERS = ("transformers", "tokenizers", "jinja2")

# Columns that preparation makes, and what a user's own of these names are called after that, for `with_own_columns`
MADE_COLUMNS, OWN = ("length", "unknown", "render_fault", "header_length", "row_number", "has_own_tokens"), "_own_"


def columns_of(dataset: AnyDataset) -> list[str]:
    """Returns the columns of a data set, from its first row if a stream does not name them."""
    return dataset.column_names or list(next(iter(dataset), {}))


def is_prepared(dataset: AnyDataset) -> bool:
    """Whether the data set comes from [`prepare_pairs`]."""
    return {"clean_ids", "perturbed_ids"} <= set(columns_of(dataset))


def needs_targets(dataset: AnyDataset) -> bool:
    """Whether a prepared data set has no completions."""
    return "completion_ids" not in columns_of(dataset)


def unformatted(dataset: Any) -> Any:
    """Returns a data set whose rows are Python objects, not torch, NumPy or pandas ones; other values unchanged."""
    is_plain = isinstance(dataset, Dataset) and dataset.format["type"] in (None, "custom")
    return dataset if is_plain or not isinstance(dataset, AnyDataset) else dataset.with_format(None)


def prepare_pairs(
    dataset: AnyDataset,
    processing_class: ProcessingClass,
    name: str,
    chat_template_kwargs: dict[str, Any] | None = None,
    max_length: int | None = None,
    max_completion_length: int = 0,
    overlong: str = "error",
    num_proc: int | None = None,
    always_generates: bool = False,
    vocab_size: int | None = None,
    context: int | None = None,
    thinking_markers: tuple[str, str] = ("<think>", "</think>"),
) -> AnyDataset:
    """
    Renders both prompts of every row, and its completion if it has one: adds the columns `clean_ids`, `perturbed_ids`,
    `completion_ids` (if it has completions), and `length` in tokens, of the longer prompt and the completion.

    For a completion that is still to be generated, `max_completion_length` tokens are reserved; with
    `always_generates`, for every row. Rows over `max_length` or over `context` (the model's context length; with
    `always_generates`, only the given completion counts there) are refused if `overlong` is `"error"`, and left out and counted if it is `"drop"`.
    Token ids from `vocab_size` on are refused, and a text completion that does not close a thought that its prompt leaves
    open. A row's own template variables override `chat_template_kwargs`.
    """
    dataset = unformatted(dataset)
    columns = columns_of(dataset)
    # `map` would convert its results to the types of the user's columns of these names.
    if renamed := {column: f"{OWN}{column}" for column in MADE_COLUMNS if column in columns}:
        dataset = dataset.rename_columns(renamed)
    if overlong == "drop" and isinstance(dataset, IterableDataset):
        raise InvalidPairsError(
            f"`{name}` is streamed, and `overlong='drop'` could not say how many of its rows are left out. Load it without "
            "streaming, or filter it yourself."
        )
    render = partial(
        render_row,
        processing_class=processing_class,
        has_completion="completion" in columns or "completion_ids" in columns,
        chat_template_kwargs=chat_template_kwargs or {},
        max_completion_length=max_completion_length,
        always_generates=always_generates,
        vocab_size=vocab_size,
        thinking_markers=thinking_markers,
    )
    if isinstance(dataset, IterableDataset):
        check = row_checker(next(iter(dataset)), has_completion="completion" in columns)
        checked = partial(_render_streamed, render=render, check=check, name=name, unknowns=[])
        return dataset.map(partial(checked, max_length=max_length, context=context), with_indices=True)
    by = " ".join([code_digest(RENDERERS), *dates_of(chat_template_of(processing_class))])
    dataset = dataset.map(partial(_made, by, render), num_proc=num_proc, desc=f"Rendering {name} pairs")
    report_faults([(index, fault) for index, fault in enumerate(dataset["render_fault"]) if fault], name, len(dataset))
    unknown = _array(dataset, "unknown")
    if unknown.any():
        rows = f"{(unknown > 0).sum()} of {len(dataset)} row(s), row {(unknown > 0).argmax()} first,"
        _warn_of_unknown(name, rows, unknown.sum())
    dataset = dataset.remove_columns(["render_fault", "unknown"])
    if context is not None:
        dataset = _fit_context(dataset, name, context, overlong, always_generates)
    return dataset if max_length is None else _fit(dataset, name, max_length, overlong)


def with_own_columns(dataset: AnyDataset) -> AnyDataset:
    """
    Returns a prepared data set as the user gave it: without what preparation adds, and with the user's names of columns. It keeps
    `completion_ids`.
    """
    made = {*MADE_COLUMNS, "clean_ids", "perturbed_ids", "suffix", "content_span"}
    dataset = dataset.remove_columns([column for column in columns_of(dataset) if column in made])
    names, columns = {f"{OWN}{column}": column for column in MADE_COLUMNS}, columns_of(dataset)
    return dataset.rename_columns({own: column for own, column in names.items() if own in columns})


def without_rendered_completions(dataset: AnyDataset) -> AnyDataset:
    """Returns a prepared data set without the `completion_ids` that preparation rendered. Those that the user gave stay."""
    first: dict[str, Any] = next(iter(dataset), {})
    has_own = first.get("has_own_tokens", True)  # All rows have them, or none.
    return dataset if has_own else dataset.remove_columns(["completion_ids"])


def _made(by: str, make: Callable[[dict[str, Any]], dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    """
    Calls `make`, by the code of the digest `by`, on the day that `by` has, too, if the chat template writes it. `datasets` keeps the
    rows that a function has made under the function's name and arguments, and would take those of an earlier version, or day, for those
    of this one.
    """
    return make(row)


def render_row(
    row: dict[str, Any],
    processing_class: ProcessingClass,
    has_completion: bool,
    chat_template_kwargs: dict[str, Any],
    max_completion_length: int,
    always_generates: bool,
    vocab_size: int | None = None,
    thinking_markers: tuple[str, str] = ("<think>", "</think>"),
) -> dict[str, Any]:
    """Renders a row to token ids and its `length`. `render_fault` says why it cannot be used (empty if it can)."""
    tools = parse_json_column(row.get("tools"))
    kwargs = variables_of(row, chat_template_kwargs)
    # An empty string and not None, because Arrow infers a column's type from the first rows.
    rendered: dict[str, Any] = {"clean_ids": [], "perturbed_ids": [], "unknown": 0, "render_fault": ""}
    if has_completion:
        rendered |= {"completion_ids": [], "has_own_tokens": bool(row.get("completion_ids"))}
    completion_length = max_completion_length
    tokenizer = get_tokenizer(processing_class)
    try:
        if isinstance(row["clean_prompt"], str):
            if kwargs:
                raise InvalidPairsError(
                    "`chat_template_kwargs` is given, but the prompts are text, which no chat template renders"
                )
            texts = {side: row[side] for side in PROMPT_COLUMNS}
            is_text = has_completion and not row.get("completion_ids")
            check_texts(tokenizer, texts, row["completion"] if is_text else "")
        rendered["clean_ids"] = render_prompt(processing_class, row["clean_prompt"], tools, kwargs)
        rendered["perturbed_ids"] = render_prompt(processing_class, row["perturbed_prompt"], tools, kwargs)
        if not has_equal_prompts(row) and rendered["clean_ids"] == rendered["perturbed_ids"]:
            rendered["render_fault"] = (
                "the two prompts differ, but the chat template renders them to the same tokens: it drops what tells them "
                "apart (look at the roles and the content)"
            )
        if not rendered["clean_ids"] or not rendered["perturbed_ids"]:
            rendered["render_fault"] = "a prompt renders to no token at all"
        if has_completion:
            # Rendered after the clean prompt only: the same token ids must follow both sides.
            rendered["completion_ids"] = row.get("completion_ids") or render_completion(
                processing_class, row["clean_prompt"], row["completion"], tools, kwargs, rendered["clean_ids"]
            )
            fault = completion_fault(row, processing_class, rendered, tools, kwargs, thinking_markers)
            rendered["render_fault"] = rendered["render_fault"] or fault
            if not always_generates:
                completion_length = len(rendered["completion_ids"])
        largest = max(token for name, ids in rendered.items() if name.endswith("_ids") for token in (-1, *ids))
        if vocab_size is not None and largest >= vocab_size:
            rendered["render_fault"] = (
                f"token {largest} is beyond the model's vocabulary of {vocab_size}: the tokenizer, or what made "
                "`completion_ids`, is another model's"
            )
    except TimeLimitError:
        raise
    except ConsistencyError as error:
        rendered |= {"clean_ids": [], "perturbed_ids": [], "render_fault": str(error)}
    except Exception as error:  # templates may raise anything; the user needs to know the row
        rendered["render_fault"] = f"the chat template refused it ({type(error).__name__}: {error})"
    rendered["unknown"] = sum(count_unknown(tokenizer, rendered[f"{side}_ids"]) for side in ("clean", "perturbed"))
    rendered["length"] = max(len(rendered["clean_ids"]), len(rendered["perturbed_ids"])) + completion_length
    return rendered


def variables_of(row: Mapping[str, Any], of_run: dict[str, Any]) -> dict[str, Any]:
    """Returns a row's template variables: the run's, and its own, which override them. Arrow's nulls are not its own."""
    return {**of_run, **without_none(parse_json_column(row.get("chat_template_kwargs")) or {})}


def shared_variables(dataset: AnyDataset, of_run: dict[str, Any]) -> dict[str, Any]:
    """Returns the template variables that all rows were rendered with alike. Of a stream, the run's."""
    if isinstance(dataset, IterableDataset) or "chat_template_kwargs" not in dataset.column_names:
        return of_run
    rows = dataset.select_columns(["chat_template_kwargs"])
    return shared_by((variables_of(row, of_run) for row in rows), of_run)


def shared_by(variables: Iterable[dict[str, Any]], of_run: dict[str, Any]) -> dict[str, Any]:
    """Returns the template variables that these rows have alike, from [`variables_of`]. The run's if there are no rows."""
    rows = iter(variables)
    shared = next(rows, of_run)
    for own in rows:
        shared = {name: value for name, value in shared.items() if name in own and own[name] == value}
    return shared


def say_replaced(of_run: dict[str, Any], shared: dict[str, Any], of_name: str) -> str:
    """Says that all rows share other values of a run's template variables, which change nothing then. Empty if they do not."""
    replaced = {name: value for name, value in of_run.items() if name in shared and shared[name] != value}
    if not replaced:
        return ""
    given, own = (json.dumps(of, default=str) for of in (replaced, {name: shared[name] for name in replaced}))
    return f"`chat_template_kwargs` is `{given}`, and every row{of_name} has `{own}` of its own, which is used."


def warnings_of_variables(rows: Iterable[Mapping[str, Any]], of_run: dict[str, Any], of_name: str = "") -> list[str]:
    """Returns a warning if a run's template variables change nothing on these rows. Those of text have none."""
    chats = (variables_of(row, of_run) for row in rows if isinstance(row["clean_prompt"], list))
    said = say_replaced(of_run, shared_by(chats, of_run), of_name)
    return [f"{said} Take the option out, or that column of the rows."] if said else []


def _warn_of_unknown(name: str, rows: str, words: int) -> None:
    logger.warning(f"`{name}`: {say_unknown(rows, words)}")


def _render_streamed(
    row: dict[str, Any],
    index: int,
    render: Any,
    check: Any,
    name: str,
    unknowns: list[int],
    max_length: int | None,
    context: int | None,
) -> dict[str, Any]:
    report_faults([(index, fault) for fault in check(row)], name)
    rendered = render(row)
    fault, unknown = rendered.pop("render_fault"), rendered.pop("unknown")
    if unknown:
        unknowns.append(unknown)
        if len(unknowns).bit_count() == 1:  # warns at the first such row, and each time their number doubles
            _warn_of_unknown(name, f"{len(unknowns)} row(s) so far, row {index} the last,", sum(unknowns))
    needed = max(len(rendered["clean_ids"]), len(rendered["perturbed_ids"])) + len(rendered.get("completion_ids", []))
    if not fault and context is not None and needed > context:
        fault = f"has {needed} tokens, more than the model's context of {context}"
    if not fault and max_length is not None and rendered["length"] > max_length:
        fault = f"has {rendered['length']} tokens, more than `max_length={max_length}`"
    report_faults([(index, fault)] if fault else [], name)
    return rendered


def _fit(dataset: Dataset, name: str, max_length: int, overlong: str) -> Dataset:
    lengths = _array(dataset, "length")
    return _leave_out(
        dataset,
        name,
        lengths > max_length,
        f"row(s) are longer than `max_length={max_length}`",
        "A length counts the longer prompt and the completion (`max_completion_length` tokens where it is still to be "
        f"generated). Raise `max_length`, lower `max_completion_length`{_room(dataset, max_length)}, or leave those rows out with "
        "`overlong='drop'`.",
        "overlong",
        overlong,
        lambda index: f" ({lengths[index]} tokens)",
    )


def _fit_context(dataset: Dataset, name: str, context: int, overlong: str, always_generates: bool) -> Dataset:
    lengths = _array(dataset, "length")
    if always_generates:  # rollouts may end early, and those that are cut can be masked
        lengths = _prompt_lengths(dataset)
        if "completion_ids" in dataset.column_names:
            lengths = lengths + _array(dataset, "completion_ids", pc.list_value_length)
    dataset = _leave_out(
        dataset,
        name,
        lengths > context,
        f"row(s) are longer than the model's context of {context} tokens (`max_position_embeddings`)",
        "A length counts the longer prompt and the completion (`max_completion_length` tokens where a target is still to be "
        f"generated). Shorten those rows, lower `max_completion_length`{_room(dataset, context)}, leave them out with "
        "`overlong='drop'`, or use a model with a longer context.",
        "overlong",
        overlong,
        lambda index: f" ({lengths[index]} tokens)",
    )
    near = int((_array(dataset, "length") > context).sum())
    if near:
        logger.warning(
            f"`{name}`: {near} of {len(dataset)} row(s) leave fewer than `max_completion_length` tokens of the model's "
            f"context of {context} for an answer, and a long one would run over it."
        )
    return dataset


def _prompt_lengths(dataset: Dataset) -> np.ndarray:
    """Returns the tokens of the longer prompt of each row."""
    return np.maximum(*(_array(dataset, side, pc.list_value_length) for side in ("clean_ids", "perturbed_ids")))


def _room(dataset: Dataset, limit: int) -> str:
    """Says to how many tokens generated answers could be limited, so that all rows fit; empty if they cannot, or are given."""
    room = limit - int(_prompt_lengths(dataset).max())
    return f" to at most {room}" if room > 0 and "completion_ids" not in dataset.column_names else ""


def _leave_out(
    dataset: Dataset,
    name: str,
    is_out: np.ndarray,
    what: str,
    advice: str,
    option: str,
    value: str,
    note: Callable[[int], str] = lambda index: "",
) -> Dataset:
    """
    Raises [`InvalidPairsError`] for rows that are no good if the `option` is `"error"`. Leaves them out, with a warning, if it is
    `"drop"`. `note` returns what is said of a row.
    """
    out, numbers = np.flatnonzero(is_out), row_numbers(dataset)
    if not len(out):
        return dataset
    listed = ", ".join(f"row {numbers[index]}{note(index)}" for index in out[:MAX_REPORTED])
    more = f" and {len(out) - MAX_REPORTED} more" if len(out) > MAX_REPORTED else ""
    found = f"`{name}`: {len(out)} of {len(dataset)} {what}: {listed}{more}."
    if value == "error":
        raise InvalidPairsError(f"{found} {advice}")
    if len(out) == len(dataset):
        raise InvalidPairsError(f"{found} `{option}='drop'` would leave no row.")
    logger.warning(f"{found} They are left out (`{option}='drop'`).")
    return with_row_numbers(dataset).select(np.flatnonzero(~is_out))


def with_row_numbers(dataset: AnyDataset) -> AnyDataset:
    """Returns a prepared data set with its [`row_numbers`] as a column, so that they stay when rows are left out or moved."""
    if isinstance(dataset, IterableDataset) or "row_number" in dataset.column_names:
        return dataset
    return dataset.add_column("row_number", row_numbers(dataset))


def row_numbers(dataset: Dataset) -> np.ndarray:
    """Returns the numbers of a prepared data set's rows in the user's."""
    return _array(dataset, "row_number") if "row_number" in dataset.column_names else np.arange(len(dataset))


def _array(dataset: Dataset, column: str, of_batch: Callable[[Any], Any] = lambda values: values) -> np.ndarray:
    """Applies `of_batch` to a column batch by batch. A million Python objects would take hundreds of megabytes."""
    batches = dataset.select_columns([column]).with_format("arrow").iter(batch_size=10_000)
    return np.concatenate([of_batch(table[column]).to_numpy() for table in batches])


def align_pairs(
    dataset: AnyDataset,
    processing_class: ProcessingClass,
    name: str,
    chat_template_kwargs: dict[str, Any] | None = None,
    kinds: tuple[str, ...] = ("suffix",),
    no_shared_span: str = "error",
    num_proc: int | None = None,
) -> tuple[AnyDataset, dict[str, AlignmentReport]]:
    """
    Finds what the two prompts of each prepared pair share: `"suffix"` (the common token suffix), `"content_span"` (the
    shared content: the column `shared_text`, by default the last user message of the clean prompt, or nothing if
    `question_intact` is false), or both. Pairs that share nothing of a kind are refused if `no_shared_span` is
    `"error"`, and left out and counted if it is `"drop"`.

    Returns the data set, with a column `content_span` if it is among `kinds`, and a report of each kind on all given
    pairs (none for a stream).
    """
    align = partial(
        align_row,
        processing_class=processing_class,
        chat_template_kwargs=chat_template_kwargs or {},
        kinds=kinds,
        headers={},
    )
    helpers = [column for column in ("suffix", "header_length") if column != "suffix" or "suffix" in kinds]
    if isinstance(dataset, IterableDataset):
        if no_shared_span == "drop":
            raise InvalidPairsError(
                f"`{name}` is streamed, and `no_shared_span='drop'` could not say how many of its pairs are left out. Load "
                "it without streaming, or filter it yourself."
            )
        check = partial(_align_streamed, align=align, kinds=kinds, name=name)
        return dataset.map(check, with_indices=True).remove_columns(helpers), {}
    dataset = dataset.map(
        partial(_made, code_digest(RENDERERS), align), num_proc=num_proc, desc=f"Aligning {name} pairs"
    )
    lengths, header_lengths = _array(dataset, "clean_ids", pc.list_value_length), _array(dataset, "header_length")
    reports = {
        kind: report_alignment(
            _array(dataset, kind, pc.list_flatten).reshape(-1, 3), lengths, header_lengths, row_numbers(dataset)
        )
        for kind in kinds
    }
    empty = [row for report in reports.values() for row in report.no_shared_span]
    dataset = _leave_out(
        dataset.remove_columns(helpers),
        name,
        np.isin(row_numbers(dataset), empty),
        "pair(s) share nothing that could be compared",
        "For `act`: end both prompts alike, or compare the answers, `act_tokens='completion'`. For `attct` and `mlpct`: say what they "
        "share in a `shared_text` column. Or leave them out with `no_shared_span='drop'`.",
        "no_shared_span",
        no_shared_span,
    )
    return dataset, reports


def align_row(
    row: Mapping[str, Any],
    processing_class: ProcessingClass,
    chat_template_kwargs: dict[str, Any],
    kinds: tuple[str, ...],
    headers: dict[str, int],
) -> dict[str, Any]:
    """Returns the spans of a rendered row and the length of its generation header, which `headers` caches."""
    prompt, clean_ids, perturbed_ids = row["clean_prompt"], row["clean_ids"], row["perturbed_ids"]
    tools = parse_json_column(row.get("tools"))
    kwargs = variables_of(row, chat_template_kwargs)
    # The header is the same for all rows with the same template variables, system messages and last role.
    messages = prompt if isinstance(prompt, list) else []
    systems = [message_text(message) for message in messages if message["role"] == "system"]
    key = repr((kwargs, tools, systems, messages[-1]["role"] if messages else None))
    if key not in headers:
        forget_many(headers)
        headers[key] = header_length(processing_class, prompt, tools, kwargs)
    aligned: dict[str, Any] = {"header_length": headers[key]}
    if "suffix" in kinds:
        aligned["suffix"] = list(shared_suffix(clean_ids, perturbed_ids))
    if "content_span" in kinds:
        shared_text, perturbed_prompt = row.get("shared_text"), row["perturbed_prompt"]
        content = content_range(processing_class, prompt, clean_ids, shared_text, tools, kwargs)
        span = Span(0, 0, 0)
        if clean_ids == perturbed_ids:  # An anchor has all of the content twice.
            start, end = content or (0, len(clean_ids))
            span = Span(start, start, end - start)
        # What repeats an edited question as it was is a solved example.
        elif content is not None and (shared_text is not None or is_intact(row)):
            # A cue after the content may repeat a part of it.
            words = content_text(prompt, shared_text)
            within = content_range(processing_class, perturbed_prompt, perturbed_ids, words, tools, kwargs)
            span = shared_content_span(clean_ids, perturbed_ids, content, within)
        aligned["content_span"] = list(span)
    return aligned


def forget_many(remembered: dict[str, Any]) -> None:
    """Empties a cache keyed by template variables and tools, because every row may have its own tools."""
    if len(remembered) >= 1_000:
        remembered.clear()


def _align_streamed(row: dict[str, Any], index: int, align: Any, kinds: tuple[str, ...], name: str) -> dict[str, Any]:
    aligned = align(row)
    is_empty = any(aligned[kind][2] == 0 for kind in kinds)
    report_faults([(index, "the two prompts share no span that could be compared")] if is_empty else [], name)
    return aligned

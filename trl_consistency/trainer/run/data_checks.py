"""Checks the tokenizer, its chat template and the data with the options that they are trained under."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin

from ...bounded_reading import read_at_most
from ...config.consistency_config import ConsistencyConfig
from ...data.anchors import anchor_rows, count_anchors
from ...data.eval_sets import EvalDataset, named
from ...data.pairs import PROMPT_COLUMNS, AnyDataset, check_anchors, check_pairs, parse_or_none, report_faults
from ...data.prepare import columns_of, needs_targets, row_numbers, say_replaced, unformatted, variables_of
from ...data.rendering import (
    LONGEST_TEMPLATE,
    ProcessingClass,
    chat_template_of,
    get_tokenizer,
    is_prefilled,
    load_processing_class,
    render_text,
)
from ...data.template_check import written_date
from ...data.text import UNSPACED
from ...data.thinking import has_thought, other_thought
from ...errors import ConsistencyError, InvalidPairsError, one_line
from ...log import get_logger
from ...rope import limit_of_rope, say_positions
from .manifest import STREAMED_ROWS


logger = get_logger(__name__)


def is_model_of_template(path: str | None) -> bool:
    """Whether `chat_template_path` names a model whose template is cloned, and not a file."""
    return path is not None and not path.endswith((".jinja", ".j2"))


def refuse_end_of_template(path: str, eos_token: str | None) -> None:
    """Raises [`ConsistencyError`] for an `eos_token` beside a model whose chat template, with its end token, is cloned."""
    if eos_token is not None:
        raise ConsistencyError(
            f"`eos_token` is {eos_token!r}, but TRL takes the end token of {path} along with its chat template (`chat_template_path`). "
            "Leave `eos_token` out, or give the template as a .jinja file."
        )


def check_embeddings_of_template(
    path: str, processing_class: ProcessingClass, args: Any, embeddings: int | None
) -> None:
    """
    Raises [`ConsistencyError`] if TRL would resize a model's embeddings when it clones the chat template of the model `path`. It rounds
    the number of all tokens up to a multiple of 64. An adapter on resized embeddings could not be loaded on the base model.
    """
    of_template = get_tokenizer(load_processing_class(path, trust_remote_code=args.trust_remote_code))
    tokens = {*get_tokenizer(processing_class).get_vocab(), *map(str, of_template.added_tokens_decoder.values())}
    needed = math.ceil(len(tokens) / 64) * 64
    if embeddings is not None and needed != embeddings:
        raise ConsistencyError(
            f"`chat_template_path`: with the chat template of {path}, TRL resizes the model's {embeddings:,} embeddings to {needed:,}. The "
            "adapter could then not be loaded on the base model. Give the template as a .jinja file, or train all weights."
        )


def read_template(path: str) -> str:
    """Returns the chat template in a file. Raises [`ConsistencyError`] if it cannot be read."""
    try:
        return read_at_most(path, LONGEST_TEMPLATE, encoding="utf-8-sig")  # removes a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ConsistencyError(f"`chat_template_path` {path} cannot be read: {reason}.") from None


def check_tokenizer(processing_class: Any, args: Any) -> PreTrainedTokenizerBase:
    """Returns the tokenizer. Raises [`ConsistencyError`] if its special tokens are wrong or missing."""
    if not isinstance(processing_class, PreTrainedTokenizerBase | ProcessorMixin):
        raise ConsistencyError(
            f"`processing_class` must be a tokenizer or a processor, got `{type(processing_class).__name__}`."
        )
    tokenizer = get_tokenizer(processing_class)
    for option in ("eos_token", "pad_token"):
        token = getattr(args, option, None)
        if token is not None and token not in tokenizer.get_vocab():
            raise ConsistencyError(
                f"`{option}` is {token!r}, which is not a token of the tokenizer. Name one that it has, or leave it out."
            )
    if tokenizer.eos_token is None and getattr(args, "eos_token", None) is None:
        raise ConsistencyError(
            "The tokenizer has no `eos_token`, so no answer could end. Set it (`tokenizer.eos_token = ...`) and save "
            "the tokenizer."
        )
    return tokenizer


def checked_datasets(
    args: Any,
    train_dataset: AnyDataset | None,
    eval_dataset: EvalDataset | None,
    anchor_dataset: AnyDataset | None,
    check_dataset: Callable[[AnyDataset, str, Any], None],
) -> dict[str, AnyDataset]:
    """
    Returns the data sets by their names in messages, unformatted, with anchors as pairs. Raises [`InvalidPairsError`] or
    [`ConsistencyError`] for unusable ones. `check_dataset(dataset, name, args)` checks what a trainer needs beyond that.
    """
    given = {"train_dataset": train_dataset, **named(eval_dataset)}
    datasets = {name: unformatted(dataset) for name, dataset in given.items()}
    for name, dataset in datasets.items():
        check_pairs(dataset, name)
        check_dataset(dataset, name, args)
    check_steps(datasets["train_dataset"], args)
    if anchor_dataset is not None:
        anchor_dataset = unformatted(anchor_dataset)
        check_anchor_arguments(anchor_dataset, datasets["train_dataset"], args.anchor_ratio)
        datasets["anchor_dataset"] = anchor_rows(anchor_dataset)
    return datasets


def warn_of_replaced_variables(of_run: dict[str, Any], shared: dict[str, Any]) -> None:
    """Logs a warning if all rows have other values of the template variables of a run, which change nothing then."""
    if said := say_replaced(of_run, shared, " of `train_dataset`"):
        logger.warning(
            f"{said} `targets` writes there what its answers were made with. Run it again with the new value, or take the option out."
        )


def check_stream(dataset: AnyDataset, name: str) -> None:
    """Raises [`InvalidPairsError`] for a stream without completions."""
    if isinstance(dataset, IterableDataset) and not {"completion", "completion_ids"} & set(columns_of(dataset)):
        raise InvalidPairsError(
            f"`{name}` is streamed and has no `completion` column, and a stream's clean prompts cannot be answered before "
            "training. Load it without streaming, or add the column."
        )


def check_steps(dataset: AnyDataset, args: Any) -> None:
    """
    Raises [`ConsistencyError`] for a stream without `max_steps`, or with an option that does nothing on one. Warns of what is done
    once an epoch, which has no end.
    """
    if not isinstance(dataset, IterableDataset):
        return
    for option in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(args, option) == "epoch":
            logger.warning(
                f"`{option}` is epoch, and `train_dataset` is streamed. A stream counts as one epoch, so this happens once, after the last "
                "step. Set `steps`."
            )
    strategy = args.train_sampling_strategy
    for option, is_unused in {
        f"train_sampling_strategy: {strategy}": strategy in ("group_by_length", "batch_rebalance"),
        f"data_seed: {args.data_seed}": args.data_seed is not None and not args.rolls_out,
    }.items():
        if is_unused:
            raise ConsistencyError(
                f"`{option}` does nothing where `train_dataset` is streamed: its rows come in the order of the stream, or, with "
                "`shuffle_dataset`, in one that `seed` draws. Leave it out, or load the data without streaming."
            )
    if args.max_steps <= 0:
        raise ConsistencyError(
            "`train_dataset` is streamed, so the number of steps in an epoch is not known. Set `max_steps`: the stream is "
            "repeated as often as needed. Or load it without streaming."
        )


def with_checked_thoughts(dataset: AnyDataset, name: str, tokenizer: Any, args: ConsistencyConfig) -> AnyDataset:
    """
    Returns the data set. Raises [`InvalidPairsError`] for a given answer with a thought under `keep_thinking=False`, which would be
    trained on: of a stream, when its row is read.
    """
    if args.keep_thinking or needs_targets(dataset):
        return dataset
    opening, closing = args.thinking_markers
    check = partial(_thought_faults, tokenizer=tokenizer, thinking_markers=(opening, closing))
    if isinstance(dataset, IterableDataset):
        return dataset.map(partial(_check_streamed, check=check, name=name), with_indices=True)
    rows = dataset.select_columns(["clean_ids", "completion_ids"])
    numbers = row_numbers(dataset)
    faults = [(int(number), fault) for number, row in zip(numbers, rows, strict=True) for fault in check(row)]
    report_faults(faults, name, len(dataset))
    return dataset


def warn_of_seams(dataset: AnyDataset, name: str, tokenizer: Any) -> None:
    """
    Logs a warning of the first row, of 10,000, whose target follows the last word of a prefill that its clean prompt does not have.
    """
    if isinstance(dataset, IterableDataset):
        return
    prompts = islice(dataset.select_columns(["clean_prompt", "perturbed_prompt"]), 10_000)
    for place, (number, sides) in enumerate(zip(row_numbers(dataset), prompts, strict=False)):
        if not is_prefilled(sides["perturbed_prompt"]) or is_prefilled(sides["clean_prompt"]):
            continue
        row = dataset[place]
        begun = tokenizer.decode(row["perturbed_ids"])
        target = tokenizer.decode([*row["perturbed_ids"], *(row.get("completion_ids") or [])[:8]])[len(begun) :]
        # Where the clean prompt does not end in white space, an answer that is still to be generated may begin with it.
        begins = target or tokenizer.decode(row["clean_ids"])[-1:].isspace()
        if re.search(rf"[^\s{UNSPACED}]\Z", begun) and begins and not target[:1].isspace():
            logger.warning(
                f"`{name}`: row {number} has a prefill on its perturbed side alone, and the target follows its last word without a "
                f"space ({begun[-20:] + target[:20]!r}), since both prompts have the same target. End the prefill with a line break, "
                "if the chat template keeps it, or leave such rows to OPCT."
            )
            return


def _thought_faults(row: dict[str, Any], tokenizer: Any, thinking_markers: tuple[str, str]) -> list[str]:
    if has_thought(row["clean_ids"], row["completion_ids"], tokenizer, thinking_markers):
        return ["its answer has a thought, and `keep_thinking=False` empties those of generated targets alone"]
    others = other_thought(tokenizer.decode(row["completion_ids"]), thinking_markers)
    if others is None:
        return []
    return [f"its answer has a thought between {others[0]} and {others[1]}, and not between `thinking_markers`"]


def _check_streamed(row: dict[str, Any], index: int, check: Any, name: str) -> dict[str, Any]:
    report_faults([(index, fault) for fault in check(row)], name)
    return row


def check_full_batches(dataset: AnyDataset, args: ConsistencyConfig) -> None:
    """
    Raises [`InvalidPairsError`] if `dataloader_drop_last` leaves no row to train on. Warns if it leaves out some rows.
    """
    # Packs are not known before the targets are.
    if args.packing or isinstance(dataset, IterableDataset):
        return
    check_drop_last(len(dataset) + count_anchors(len(dataset), args.anchor_ratio), args)


def warn_of_positions(dataset: AnyDataset, config: PreTrainedConfig, args: Any, name: str = "train_dataset") -> None:
    """Warns of rows that change the positions of the others in their batch. In some models, the longest row decides for all."""
    if isinstance(dataset, IterableDataset):
        return
    answers = args.rolls_out or (args.needs_completions and needs_targets(dataset))
    reply = args.max_completion_length if answers else 0
    lengths = dataset["length"]
    if answers:  # the prompts alone: a length counts the reply, too
        lengths = [max(map(len, sides)) for sides in zip(dataset["clean_ids"], dataset["perturbed_ids"], strict=True)]
    if told := say_positions(lengths, config, reply=reply):
        limit = limit_of_rope(config)
        way_out = f"Leave the long rows out (`max_length: {limit}`, `overlong: drop`)"
        if args.rolls_out:  # of one prompt, with lengths of their own
            way_out += ", with room for the rollouts"
        else:
            batch = "the batch size" if name == "train_dataset" else "`per_device_eval_batch_size`"
            way_out += f", or set {f'`target_batch_size` and {batch}' if reply else batch} to 1"
        logger.warning(f"`{name}`: {told} {way_out}.")


def check_drop_last(rows: int, args: ConsistencyConfig, what: str = "row") -> None:
    """See [`check_full_batches`]. `rows` are those of an epoch, or, as `what` says, its packed sequences."""
    if not args.dataloader_drop_last:
        return
    batch, unit = args.train_batch_size * (1 if args.accelerator_config.split_batches else args.world_size), "batch"
    if getattr(args.train_sampling_strategy, "value", args.train_sampling_strategy) == "batch_rebalance":
        # It makes the batches of whole steps.
        batch, unit = args.train_batch_size * args.world_size * args.gradient_accumulation_steps, "step"
    if rows < batch:
        raise InvalidPairsError(
            f"`train_dataset` has {rows} {what}(s), fewer than the {batch} of one {unit}, and `dataloader_drop_last` leaves "
            "out what fills none: nothing would be trained. Use smaller batches, or leave the option out."
        )
    if rows % batch:
        logger.warning(f"Each epoch leaves out {rows % batch} of {rows} {what}s (`dataloader_drop_last`).")


def check_anchor_arguments(anchor_dataset: AnyDataset, train_dataset: AnyDataset, anchor_ratio: float) -> None:
    """Raises [`ConsistencyError`] for anchors that are invalid or would not be used."""
    if anchor_ratio == 0:
        raise ConsistencyError(
            "`anchor_dataset` (`anchor_dataset_name` of a recipe) is given, but `anchor_ratio` is 0: set it, "
            "or leave the data set out."
        )
    if isinstance(anchor_dataset, IterableDataset) and isinstance(train_dataset, Dataset):
        raise ConsistencyError("`anchor_dataset` is streamed and the pairs are not: load it without streaming.")
    check_anchors(anchor_dataset)


def warn_of_other_form(name: str, rows: Iterable[Mapping[str, Any]], is_chat: bool) -> None:
    """Logs a warning if the prompts of rows are text where those of the training are chats, or the reverse."""
    prompt = next(iter(rows))["clean_prompt"]
    if isinstance(prompt, list) != is_chat:
        words = "text, which goes through no chat template" if is_chat else "chat messages"
        logger.warning(f"{name} holds {words}, unlike `train_dataset`. Give both in one form if that is not meant.")


def warn_of_other_variables(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    of_run: dict[str, Any],
    shared: dict[str, Any],
    numbers: Iterable[int] | None = None,
) -> None:
    """
    Logs a warning of the first row that lacks, or changes, a template variable that all rows of the training share. Rows have
    `numbers` in their data set. Of a stream, the first row is looked at.
    """
    if not shared:
        return  # and no row need be read
    if isinstance(rows, IterableDataset):
        rows = rows.take(1)
    for number, row in zip(count() if numbers is None else numbers, rows, strict=False):
        own = variables_of(row, of_run)
        other = [of for of, value in shared.items() if of not in own or own[of] != value]
        if other and isinstance(row["clean_prompt"], list):
            differing = ({of: said[of] for of in other if of in said} for said in (own, shared))
            found, trained = (json.dumps(of, default=str) for of in differing)
            logger.warning(
                f"{name}: row {number} is rendered with `chat_template_kwargs` `{found}`, and every row of `train_dataset` with "
                f"`{trained}`: the model reads another kind of prompt there. Set `chat_template_kwargs` in the config, or in a column "
                "of these rows, unless that is meant."
            )
            return


def check_chat_template(
    processing_class: ProcessingClass,
    datasets: dict[str, AnyDataset],
    ways_out: str = "Set `chat_template_path`, use",
    chat_template_kwargs: dict[str, Any] | None = None,
) -> None:
    """
    Raises [`InvalidPairsError`] for chat messages without a chat template, or with one that renders the same messages
    differently each time. Warns of one that writes the day's date.
    """
    template, is_told = chat_template_of(processing_class), False
    kinds = (
        (name, kind) for name, rows in datasets.items() for kind in _kinds_of_prompts(rows, chat_template_kwargs or {})
    )
    for name, (prompt, tools, variables) in kinds:
        if template is None:
            raise InvalidPairsError(
                f"`{name}` holds chat messages, but the tokenizer has no chat template. {ways_out} the "
                "chat (instruct) version of the model, or give the prompts as strings."
            )
        texts: set[str] = set()
        with suppress(Exception):  # rendering all rows reports these errors
            texts = {render_text(processing_class, prompt, tools, variables) for _ in range(3)}
        if len(texts) > 1:
            raise InvalidPairsError(
                f"`{name}`: the chat template renders the same messages differently each time, so that the two sides would "
                "differ in more than the cue. Remove the time or the randomness from it."
            )
        dates = {written for text in texts if (written := written_date(template, text))}
        if dates and not is_told:
            is_told = True
            logger.warning(
                f"The chat template writes the day's date into prompts ({dates.pop()}), so prompts change from day to day. Set "
                "a fixed date in `chat_template_kwargs` if the template has a variable for it (Llama's is `date_string`), or take the "
                "date out of the template."
            )


def _kinds_of_prompts(
    rows: Iterable[Mapping[str, Any]], of_run: dict[str, Any]
) -> list[tuple[list[Any], Any, dict[str, Any]]]:
    """
    Returns a chat prompt of each kind in the rows, with its tools and its template variables. A template may write a system
    message of its own where there is none, or where a variable says so.
    """
    kinds: dict[Any, tuple[list[Any], Any, dict[str, Any]]] = {}
    for row in _rendered_columns(rows):
        tools = parse_or_none(row.get("tools"))
        with suppress(Exception):  # rendering all rows reports these errors
            variables = variables_of(row, of_run)
            switches = sorted((name, bool(value)) for name, value in variables.items())
            for prompt in (row["clean_prompt"], row.get("perturbed_prompt")):
                if isinstance(prompt, list) and prompt:
                    kind = (prompt[0].get("role"), bool(tools), *switches)
                    kinds.setdefault(kind, (prompt, tools, variables))
    return list(kinds.values())


def _rendered_columns(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields what is rendered of the rows: of a stream, of its first ones. Single rows of a data set take ten times as long."""
    if not isinstance(rows, Dataset):
        yield from islice(rows, STREAMED_ROWS if isinstance(rows, IterableDataset) else None)
        return
    columns = [of for of in (*PROMPT_COLUMNS, "tools", "chat_template_kwargs") if of in rows.column_names]
    for batch in rows.select_columns(columns).iter(batch_size=1_000):
        yield from (dict(zip(columns, values, strict=True)) for values in zip(*map(batch.get, columns), strict=True))

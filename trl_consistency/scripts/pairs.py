"""
Makes pairs of clean and perturbed prompts from questions, requests or prompts.

```bash
trl-consistency pairs --dataset_name questions.jsonl --perturbations suggested_answer are_you_sure --output_dir pairs
```
"""

import json
import os
import runpy
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from tqdm.auto import tqdm

from ..config.options import (
    TWO_TEXTS,
    at_least,
    check_ranges,
    option,
    refuse_unused,
    with_help,
)
from ..data.folders import ANSWERS
from ..errors import ConsistencyError, ends_with_message, one_line
from ..escaping import printable
from ..files import whole_files
from ..folder_lock import locked_folder
from ..json_files import as_json
from ..local_names import last_name, public_options
from ..perturbations.build import build_pairs
from ..perturbations.build_report import BuildReport
from ..perturbations.card import SPLITS, check_folder, configured_card, file_name, made_with, pairs_card
from ..perturbations.columns import columns_of, find_columns
from ..perturbations.draft import POSITIONS
from ..perturbations.reading import read_rows
from ..perturbations.registry import PERTURBATIONS, find_perturbations
from .engine_arguments import EngineArguments
from .json_output import one_object
from .quick_answers import check_perturbations_file


@dataclass
@with_help
class PairsArguments(EngineArguments):
    """Arguments of the `pairs` command, explained by its `--help`."""

    # Parameters that control the data
    dataset_name: str = option(
        help="Questions, requests or prompts: a JSON Lines (.jsonl, .json), CSV or Parquet file, a folder, or a data set on the Hub."
    )
    output_dir: str = option(
        help="Folder for the pairs (`train`, `test`, `test_wordings`) and their card, which a recipe takes as `dataset_name`.",
    )
    dataset_config: str | None = option(None, help="Configuration name of the data set.")
    dataset_split: str = option("train", help="Split of the data set.")
    max_sources: int | None = option(None, at_least(1), help="Maximum rows to read.")
    # Parameters that control the pairs
    perturbations: list[str] = option(["suggested_answer"], help="Perturbations or families; `a+b` applies a, then b.")
    perturbations_file: str | None = option(None, help="Python file that is run to register your own perturbations.")
    pairs_per_source: int | None = option(
        None, help="Pairs per source in a split; perturbations take turns. By default one pair per perturbation."
    )
    test_share: float = option(0.1, help="Share of held-out sources.")
    wrong_answer: Literal["random", "longest", "given"] = option(
        "random",
        help="Which wrong answer is suggested: a random one, the longest, or the one given in `wrong_answer_column`.",
    )
    positions: list[str] = option(
        list(POSITIONS), help="Positions of cues: start, before_choices, after_choices, end. By default all."
    )
    prompt_format: Literal["chat", "text"] = option("chat", help="Chat messages or text.")
    instruction: str | None = option(
        None,
        help="Text after every question. By default, questions with choices ask for a letter, and in chats, others with an answer "
        "for a line `Answer: X`. Empty means no text.",
    )
    benign_controls: bool = option(False, help="Add benign requests in the same jailbreak wrappers.")
    # Parameters that control the columns
    prompt_column: str | None = option(None, help="Questions, requests or prompts (text, or chat messages).")
    choices_column: list[str] | None = option(None, help="Choices: one column, or several with one choice each.")
    answer_column: str | None = option(
        None, help="Right answers; with choices, a letter, the text of a choice, or its index from 0."
    )
    wrong_answer_column: str | None = option(
        None, help="Wrong answers that may be suggested: one, or a list. With choices, only for `wrong_answer: given`."
    )
    source_id_column: str | None = option(None, help="Ids of the sources. By default hashes of the text.")
    safety_fact_column: str | None = option(None, help="Safety facts for the clean side.")
    keep_columns: list[str] = option([], help="Further columns to keep.")
    faulty_rows: Literal["error", "drop"] = option(
        "error", help="`error` stops at faulty rows, `drop` leaves them out and counts them."
    )
    # Parameters that control the choice of vulnerable pairs
    keep_vulnerable: bool = option(
        False,
        help="Keep only training pairs that the model answers well on the clean prompt and badly on the perturbed "
        "one. Answers and verdicts go to verdicts.jsonl. Test splits are not filtered.",
    )
    model_name_or_path: str | None = option(None, help="Model for `keep_vulnerable`.")
    model_revision: str | None = option(None, help="Revision of the model.")
    max_completion_length: int = option(256, at_least(1), help="Maximum tokens per answer (greedy).")
    batch_size: int = option(32, at_least(1), help="Prompts per batch.")
    thinking_markers: list[str] = option(
        ["<think>", "</think>"],
        TWO_TEXTS,
        help="The two texts that open and close a thought. Only what follows a thought is graded.",
    )
    chat_template_kwargs: dict[str, Any] | str | None = option(
        None, help="Variables of the chat template for `keep_vulnerable` (JSON on the command line)."
    )
    # Parameters that control the output
    file_type: Literal["jsonl", "parquet"] = option("jsonl", help="Format of the files.")
    seed: int = option(42, help="Seed.")
    push_to_hub: str | None = option(None, help="Data set on the Hub (user/name) to push the folder to.")
    hub_private: bool = option(False, help="Whether a new data set is private.")
    json: bool = option(False, help="Print one JSON object instead of text.")


VERDICTS = "verdicts.jsonl"
_FILES = [file_name(split, file_type) for split in SPLITS for file_type in ("jsonl", "parquet")]

_OF_THE_ENGINE = tuple(option.name for option in fields(EngineArguments))
# Options that do not affect the pairs' content.
_NOT_IN_CARD = (
    "dataset_name",
    "output_dir",
    "file_type",
    "push_to_hub",
    "hub_private",
    "perturbations_file",
    "batch_size",
    "json",
    *_OF_THE_ENGINE,
)
_OF_THE_MODEL = (
    "keep_vulnerable",
    "model_name_or_path",
    "model_revision",
    "max_completion_length",
    "thinking_markers",
    "chat_template_kwargs",
)


def main(args: PairsArguments) -> BuildReport:
    """Makes the pairs and their card, and pushes them with `push_to_hub`."""
    if args.perturbations_file:
        check_perturbations_file(args.perturbations_file)
        _run_perturbations(args.perturbations_file, args.perturbations)
    check_ranges(args)
    if args.keep_vulnerable != bool(args.model_name_or_path):
        raise ConsistencyError(
            "`keep_vulnerable` needs `model_name_or_path`: the model's own answers decide."
            if args.keep_vulnerable
            else "`model_name_or_path` is given, but nothing is asked of the model: set `keep_vulnerable`."
        )
    _check_use(args)
    if args.keep_vulnerable:
        from .engines import check_engine  # imports torch
        from .parser import as_template_kwargs

        as_template_kwargs(args.chat_template_kwargs)
        check_engine(args, args.model_name_or_path or "")
    _check_output_dir(args.output_dir)
    there = columns_of(islice(_read(args), args.max_sources if os.path.exists(args.dataset_name) else 1))
    if not there:
        raise ConsistencyError(f"{args.dataset_name} has no rows.")
    columns = find_columns(
        there,
        keep=args.keep_columns,
        prompt=args.prompt_column,
        choices=args.choices_column,
        answer=args.answer_column,
        wrong_answer=args.wrong_answer_column,
        source_id=args.source_id_column,
        safety_fact=args.safety_fact_column,
    )
    if unread := columns.unread(there):
        listed = ", ".join(f"`{column}`" for column in unread)
        print(printable(f"Not read: the column(s) {listed}. `keep_columns` keeps them."))
    if columns.answer is None and columns.wrong_answer is not None:
        print(
            "No right answers: no column `answer`. Name it in `answer_column`, or `evaluate` cannot tell right from wrong."
        )
    report = BuildReport()
    pairs = build_pairs(
        tqdm(islice(_read(args), args.max_sources), desc="Reading", unit=" sources", delay=1),
        args.perturbations,
        columns=columns,
        pairs_per_source=args.pairs_per_source,
        test_share=args.test_share,
        wrong_answer=args.wrong_answer,
        positions=args.positions,
        chat=args.prompt_format == "chat",
        instruction=args.instruction,
        faulty_rows=args.faulty_rows,
        benign_controls=args.benign_controls,
        seed=args.seed,
        report=report,
    )
    if args.push_to_hub:  # fails early without a token
        from ..publishing import check_repo_id  # imports torch

        check_repo_id(args.push_to_hub)
        _create_repo(args.push_to_hub, args.hub_private)
    output_dir = Path(args.output_dir)
    with locked_folder(output_dir):
        _write(args, output_dir, pairs, report)
    return report


def _read(args: PairsArguments) -> Iterator[dict[str, Any]]:
    return read_rows(args.dataset_name, args.dataset_config, args.dataset_split)


def _write(
    args: PairsArguments, output_dir: Path, pairs: Iterable[tuple[str, dict[str, Any]]], report: BuildReport
) -> None:
    with whole_files(output_dir, "output_dir") as unfinished:
        splits = write_pairs(pairs, unfinished)
        if not report.pairs:
            raise ConsistencyError("No pairs could be made.\n" + "\n".join(report.left_out()))
        judged = args.keep_vulnerable and "train" in splits
        if judged:
            _keep_vulnerable(args, unfinished / "train.jsonl", report)
        if args.file_type == "parquet":
            _to_parquet(unfinished, splits)
        (unfinished / "data").mkdir()
        for split in splits:
            (unfinished / f"{split}.{args.file_type}").rename(unfinished / file_name(split, args.file_type))
        (unfinished / "README.md").write_text(_card(args, report), encoding="utf-8")
    _remove_earlier(
        output_dir, {file_name(split, args.file_type) for split in splits} | ({VERDICTS} if judged else set())
    )
    if args.push_to_hub:
        _push(args.push_to_hub, output_dir)


def _check_use(args: PairsArguments) -> None:
    """Raises [`ConsistencyError`] for options that decide nothing beside the others."""
    if not args.keep_vulnerable:
        of_answers = [name for name in _OF_THE_MODEL if name not in ("keep_vulnerable", "model_name_or_path")]
        of_answers += ["batch_size", *_OF_THE_ENGINE]
        refuse_unused(args, of_answers, "nothing is asked of a model: set `keep_vulnerable`")
    if not args.push_to_hub:
        refuse_unused(args, ["hub_private"], "nothing is pushed: name the data set in `push_to_hub`")
    steps = [step for of_one in find_perturbations(args.perturbations) for step in of_one]
    if not any(step.suggests == "wrong" for step in steps):
        refuse_unused(args, ["wrong_answer"], "no perturbation suggests a wrong answer. Leave it out")
    if not any(step.positions for step in steps):
        refuse_unused(args, ["positions"], "no perturbation has positions. Leave it out")
    if not any("a safety fact" in step.needs for step in steps):
        refuse_unused(args, ["safety_fact_column"], "no perturbation states a safety fact. Leave it out")


def _check_output_dir(folder: str) -> None:
    """Raises [`ConsistencyError`] for a folder with files that this command did not write, and would replace."""
    if not folder:
        raise ConsistencyError("`output_dir` is empty: name a folder.")
    # A run that kept no pair leaves verdicts, without a card, beside the answers.
    has_answers = os.path.isdir(os.path.join(folder, ANSWERS))
    check_folder(folder, "pairs", _FILES if has_answers else [*_FILES, VERDICTS])


def _card(args: PairsArguments, report: BuildReport) -> str:
    options = {
        option.name: getattr(args, option.name)
        for option in fields(args)
        if option.name not in _NOT_IN_CARD
        and (args.keep_vulnerable or option.name not in _OF_THE_MODEL)
        and getattr(args, option.name) not in (None, [], {})
    }
    return pairs_card(report, args.perturbations, last_name(args.dataset_name), public_options(options))


def _remove_earlier(output_dir: Path, written: set[str]) -> None:
    """Removes files of an earlier run that this one did not write."""
    for name in {*_FILES, VERDICTS} - written:
        (output_dir / name).unlink(missing_ok=True)


def _run_perturbations(file: str, named: Sequence[str]) -> None:
    """Runs the file. Raises [`ConsistencyError`] if it fails, or if none of its perturbations is `named`."""
    before = set(PERTURBATIONS)
    try:
        runpy.run_path(file)
    except ConsistencyError:
        raise
    except Exception as error:  # the user's own code
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        place = f", line {lines[-1]}" if lines else ""
        raise ConsistencyError(
            f"`perturbations_file` {file}{place}: {type(error).__name__}: {one_line(error)}"
        ) from error
    own = [name for name in PERTURBATIONS if name not in before]
    if own and not {step.name for steps in find_perturbations(named) for step in steps} & {*own}:
        raise ConsistencyError(
            f"`perturbations_file` {file} registers {', '.join(own)}, and `perturbations` names none of them: {', '.join(named)}."
        )


def write_pairs(pairs: Iterable[tuple[str, dict[str, Any]]], folder: Path) -> list[str]:
    """Writes each split to its own file, row by row, and returns the splits."""
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for split, row in pairs:
            if split not in files:
                files[split] = stack.enter_context((folder / f"{split}.jsonl").open("w", encoding="utf-8"))
            files[split].write(json.dumps(as_json(row), ensure_ascii=False) + "\n")
    return list(files)


def _to_parquet(folder: Path, splits: Iterable[str]) -> None:
    from ..data.local_data import load_as_written

    for split in splits:
        path = folder / f"{split}.jsonl"
        with TemporaryDirectory(dir=folder) as cache:
            dataset = load_as_written("json", data_files=str(path), split="train", cache_dir=cache)
            dataset.to_parquet(str(path.with_suffix(".parquet")))
            del dataset
        path.unlink()


def _keep_vulnerable(args: PairsArguments, file: Path, report: BuildReport) -> None:
    """Removes pairs that the model is not vulnerable to from a file, and writes all verdicts."""
    from .parser import as_template_kwargs
    from .vulnerable import answer_and_judge  # imports torch, which only this option needs

    rows, output_dir = list(read_rows(str(file))), Path(args.output_dir)
    judged, report.warnings = answer_and_judge(
        rows,
        args.model_name_or_path or "",
        args.model_revision,
        args.max_completion_length,
        args.batch_size,
        output_dir,
        output_dir / VERDICTS,
        args.thinking_markers,
        as_template_kwargs(args.chat_template_kwargs),
        args,
    )
    kept = [row for row, verdict in zip(rows, judged, strict=True) if verdict["kept"]]
    report.filtered.update(verdict["outcome"] for verdict in judged if not verdict["kept"])
    outcomes = Counter(verdict["outcome"] for verdict in judged)
    found = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"{args.model_name_or_path}, of {len(rows)} training pairs: {found}")
    if not outcomes["vulnerable"]:
        raise ConsistencyError(
            f"`keep_vulnerable`: the model is vulnerable to no training pair ({found}). What it said is in "
            f"{output_dir / VERDICTS}."
        )
    for key in [key for key in report.pairs if key[0] == "train"]:
        del report.pairs[key]
    report.pairs.update(("train", row["perturbation"]) for row in kept)
    write_pairs((("train", row) for row in kept), file.parent)


def _create_repo(repo_id: str, private: bool) -> None:
    """Makes the data set, or checks that the one of this name was pushed by this command, and may be replaced."""
    from ..publishing import explain  # imports torch
    from ..publishing.hub import check_private

    api, card = HfApi(), "README.md"
    try:
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        check_private(api, repo_id, private, "dataset")
        there = set(api.list_repo_files(repo_id, repo_type="dataset"))
        text = (
            Path(api.hf_hub_download(repo_id, card, repo_type="dataset")).read_text("utf-8") if card in there else ""
        )
        replaced = sorted(there & {card, *_FILES})
        if replaced and made_with("pairs") not in text:
            raise ConsistencyError(
                f"`push_to_hub`: {repo_id} has a {replaced[0]} that `trl-consistency pairs` did not push, and would replace. Take "
                "another name."
            )
    except ConsistencyError:
        raise
    except Exception as error:  # errors of the Hub, the name and the network share no type
        raise ConsistencyError(f"`push_to_hub`: {repo_id} cannot be created: {explain(error, repo_id)}") from None


def _push(repo_id: str, folder: Path) -> None:
    names = {file_name(split, file_type): split for file_type in ("jsonl", "parquet") for split in SPLITS}
    here = {name: split for name, split in names.items() if (folder / name).is_file()}
    card = configured_card((folder / "README.md").read_text(encoding="utf-8"), {here[name]: name for name in here})
    api = HfApi()
    try:
        there = set(api.list_repo_files(repo_id, repo_type="dataset"))
        operations: list[Any] = [
            CommitOperationAdd("README.md", card.encode()),
            *(CommitOperationAdd(name, str(folder / name)) for name in here),
            *(CommitOperationDelete(name) for name in sorted(there & names.keys() - here.keys())),
        ]
        api.create_commit(repo_id, operations, commit_message="Upload with trl-consistency", repo_type="dataset")
    except Exception as error:  # as above
        from ..publishing import explain

        raise ConsistencyError(
            f"The pairs are in {folder}, but could not be pushed to {repo_id}: {explain(error, repo_id)}"
        ) from None
    print(f"Pushed to {_page(repo_id)}")


def _page(repo_id: str) -> str:
    return f"{constants.ENDPOINT}/datasets/{repo_id}"


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Makes pairs and reports; faulty data or options end the program with one message."""
    from .parser import StrictParser

    (pairs_args,) = StrictParser((PairsArguments,), "pairs", prog=prog).parse_args_and_config(args)
    with one_object(pairs_args.json) as printed:
        report = main(pairs_args)
        folder, counts = pairs_args.output_dir, report.num_pairs()
        files = {split: f"{folder}/{file_name(split, pairs_args.file_type)}" for split in counts}
        for split, file in files.items():
            print(f"{file}: {counts[split]} pairs")
        if report.left_out():
            print("Left out:", *map(printable, report.left_out()), sep="\n  ")
        notes = [report.swaps(), report.gaps(), report.repeats(), report.prefills(), report.passed()]
        notes += [report.solutions(), report.one_letter(), report.from_1(), report.unheld(pairs_args.test_share)]
        for note in filter(None, notes):
            print(note)
        printed |= {
            "output_dir": folder,
            "files": {split: {"file": file, "pairs": counts[split]} for split, file in files.items()},
            "left_out": report.left_out(),
            "notes": list(filter(None, notes)),
            "url": _page(pairs_args.push_to_hub) if pairs_args.push_to_hub else None,
        }


if __name__ == "__main__":
    run()

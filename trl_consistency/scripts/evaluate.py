"""
A model and its adapters on the same pairs: what training changed, with intervals.

```bash
trl-consistency evaluate --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --adapters bct act --pairs pairs --output_dir evaluation
```
"""

import hashlib
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import torch
from accelerate import PartialState
from peft import PeftConfig, PeftModel
from trl import DatasetMixtureConfig

from ..data.pairs import check_prompt_columns, report_faults, row_checker
from ..data.prepare import render_row
from ..data.rendering import ProcessingClass, get_tokenizer
from ..data.target_cache import TargetCache, fingerprint
from ..errors import ConsistencyError, one_line
from ..evaluation.answering import Answer, AnswerOptions, answer_pairs
from ..evaluation.choices import CHOICE_PREFIX, offered_letters
from ..evaluation.estimates import Estimate
from ..evaluation.grading import Grade, grade_answers
from ..evaluation.judge import EndpointJudge, Judge, JudgementStore, LocalJudge
from ..evaluation.measures import METRICS, Samples, compare, make_samples, measure
from ..evaluation.report import aligned_table
from ..evaluation.run import possible_answers
from ..organism import load_control_dataset, load_organism_datasets
from ..perturbations.reading import read_rows
from ..publishing import Figure, Result, write_results
from ..trainer.checks import check_chat_template, check_output_dir
from ..trainer.model_checks import ADAPTER_CONFIG, check_model_folder, check_weights
from .loading import EMBEDDED, ConsistencyScriptArguments, load_pairs
from .parser import StrictParser
from .vulnerable import ANSWERS, load_model


BASE = "base"
RESULTS, ANSWERS_FILE = "results.json", "answers"

Rows = list[dict[str, Any]]


@dataclass
class EvaluateArguments:
    """
    Arguments of the `evaluate` command.

    Args:
        model_name_or_path (`str`):
            The base model, or `embedded:organism`.
        pairs (`list[str]`):
            Pairs: JSON Lines, JSON, CSV or Parquet files, folders or data sets of the Hub, or `embedded:organism`.
        output_dir (`str`):
            Folder for `results.json` and the answers.
        adapters (`list[str]`, *optional*):
            Adapters of that model, or whole models, to compare with it.
        model_revision (`str`, *optional*):
            Revision of the base model.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code that models bring along.
        splits (`list[str]`, *optional*):
            Splits of folders and data sets. By default all but `train`, or `train` if there is no other.
        max_pairs (`int`, *optional*):
            Pairs of each file or split, drawn under `seed`.
        max_completion_length (`int`, *optional*, defaults to `256`):
            Most tokens of an answer, thinking included.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts a batch.
        temperature (`float`, *optional*, defaults to `0.0`):
            Temperature of sampling; at 0 decoding is greedy.
        top_p (`float`, *optional*, defaults to `1.0`):
            Share of the probability that sampling keeps.
        seed (`int`, *optional*, defaults to `42`):
            Seed.
        multiple_choice (`str`, *optional*, defaults to `"text"`):
            `"text"` reads the choice in a written answer, `"logprob"` takes the likeliest of the letters offered.
        choice_prefix (`str`, *optional*, defaults to `"The answer is ("`):
            With `"logprob"`, what the answer begins with before the letter.
        thinking_markers (`list[str]`, *optional*, defaults to `["<think>", "</think>"]`):
            What opens and closes a thought; answers are read after it.
        chat_template_kwargs (`dict` or `str`, *optional*):
            Variables of the chat template, on the command line as JSON.
        judge_model (`str`, *optional*):
            Model that judges requests: one behind `judge_base_url`, or one to load.
        judge_base_url (`str`, *optional*):
            OpenAI-compatible endpoint of the judge.
        judge_key_variable (`str`, *optional*, defaults to `"OPENAI_API_KEY"`):
            Environment variable with the key of that endpoint.
        judge_questions (`bool`, *optional*, defaults to `False`):
            Have the judge say, too, which answer a question got, unless that is a letter.
        judge_max_completion_length (`int`, *optional*, defaults to `512`):
            Most tokens of a judgement.
        judge_workers (`int`, *optional*, defaults to `8`):
            Judgements that are asked for at the same time.
        file_type (`str`, *optional*, defaults to `"jsonl"`):
            Type of the file of answers: `"jsonl"` or `"parquet"`.
        save_to_adapters (`bool`, *optional*, defaults to `False`):
            Write each adapter's rates into its folder, too, where `trl-consistency push` reads them.
        json (`bool`, *optional*, defaults to `False`):
            Print one JSON object in place of the tables.
    """

    model_name_or_path: str = field(metadata={"help": "The base model, or `embedded:organism`."})
    pairs: list[str] = field(
        metadata={
            "help": "Pairs: JSON Lines, JSON, CSV or Parquet files, folders or data sets of the Hub, or "
            "`embedded:organism`."
        }
    )
    output_dir: str = field(metadata={"help": "Folder for results.json and the answers."})
    adapters: list[str] = field(
        default_factory=list, metadata={"help": "Adapters of that model, or whole models, to compare with it."}
    )
    model_revision: str | None = field(default=None, metadata={"help": "Revision of the base model."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Whether to run code that models bring along."})
    splits: list[str] | None = field(
        default=None,
        metadata={
            "help": "Splits of folders and data sets. By default all but `train`, or `train` if there is no other."
        },
    )
    max_pairs: int | None = field(
        default=None, metadata={"help": "Pairs of each file or split, drawn under `seed`. By default all."}
    )
    max_completion_length: int = field(default=256, metadata={"help": "Most tokens of an answer, thinking included."})
    batch_size: int = field(default=32, metadata={"help": "Prompts a batch."})
    temperature: float = field(default=0.0, metadata={"help": "Temperature of sampling; at 0 decoding is greedy."})
    top_p: float = field(default=1.0, metadata={"help": "Share of the probability that sampling keeps."})
    seed: int = field(default=42, metadata={"help": "Seed."})
    multiple_choice: Literal["text", "logprob"] = field(
        default="text",
        metadata={
            "help": "`text` reads the choice in a written answer, `logprob` takes the likeliest of the letters offered."
        },
    )
    choice_prefix: str = field(
        default=CHOICE_PREFIX, metadata={"help": "With `logprob`, what the answer begins with before the letter."}
    )
    thinking_markers: list[str] = field(
        default_factory=lambda: ["<think>", "</think>"],
        metadata={"help": "What opens and closes a thought; answers are read after it."},
    )
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Variables of the chat template, on the command line as JSON."}
    )
    judge_model: str | None = field(
        default=None,
        metadata={"help": "Model that judges requests: one behind `judge_base_url`, or one to load."},
    )
    judge_base_url: str | None = field(default=None, metadata={"help": "OpenAI-compatible endpoint of the judge."})
    judge_key_variable: str = field(
        default="OPENAI_API_KEY", metadata={"help": "Environment variable with the key of that endpoint."}
    )
    judge_questions: bool = field(
        default=False,
        metadata={"help": "Have the judge say, too, which answer a question got, unless that is a letter."},
    )
    judge_max_completion_length: int = field(default=512, metadata={"help": "Most tokens of a judgement."})
    judge_workers: int = field(
        default=8, metadata={"help": "Judgements that are asked for at the same time, of an endpoint."}
    )
    file_type: Literal["jsonl", "parquet"] = field(default="jsonl", metadata={"help": "Type of the file of answers."})
    save_to_adapters: bool = field(
        default=False,
        metadata={"help": "Write each adapter's rates into its folder, too, where `trl-consistency push` reads them."},
    )
    json: bool = field(default=False, metadata={"help": "Print one JSON object in place of the tables."})

    def __post_init__(self) -> None:
        for name in ("adapters", "pairs", "splits", "thinking_markers"):  # one value in a YAML file
            if isinstance(getattr(self, name), str):
                setattr(self, name, [getattr(self, name)])


@dataclass
class PairSet:
    """Pairs that are measured together, and the answers that are possible to their questions."""

    rows: Rows
    candidates: dict[str | None, set[str]]


def main(args: EvaluateArguments) -> dict[str, Any]:
    """Answers, grades, measures and writes; returns what `--json` prints."""
    template_kwargs = check_arguments(args)
    sets = load_sets(args)
    check_output_dir(args.output_dir)
    is_main = PartialState().is_main_process
    endpoint = _endpoint_judge(args, is_main)  # a faulty address is better known now
    adapters = name_models(args.adapters)
    check_adapters(args.adapters)

    model, processing_class = load_model(args.model_name_or_path, args.model_revision, args.trust_remote_code)
    render_sets(sets, processing_class, template_kwargs)
    options = AnswerOptions(
        max_new_tokens=args.max_completion_length,
        batch_size=args.batch_size,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        multiple_choice=args.multiple_choice,
        choice_prefix=args.choice_prefix,
        thinking_markers=(args.thinking_markers[0], args.thinking_markers[1]),
        progress=is_main,
    )
    rows = [row for of_set in sets.values() for row in of_set.rows]
    answers = {}
    for name, path in {BASE: None, **adapters}.items():
        with adapted(model, processing_class, path, args) as of_name:
            cache = _answer_cache(args.output_dir, path or args.model_name_or_path, of_name)
            answers[name] = answer_pairs(of_name, processing_class, rows, options, cache, desc=f"Answering, {name}")
    del model
    PartialState().wait_for_everyone()  # the last time, unless the judge is loaded here: judging may take hours
    judge: Judge | None = endpoint
    if args.judge_model and endpoint is None:
        judge = _local_judge(args, is_main)
    elif not is_main:
        return {}
    graded = {
        name: grade_sides(sets, sides, judge, args.judge_questions, options.thinking_markers)
        for name, sides in answers.items()
    }
    if not is_main:
        return {}
    results = make_results(args, sets, {BASE: args.model_name_or_path, **adapters}, graded)
    text = json.dumps(results, ensure_ascii=False, allow_nan=False)
    (Path(args.output_dir) / RESULTS).write_text(text + "\n", encoding="utf-8")
    write_answers(args, sets, answers, graded)
    if args.save_to_adapters:
        save_to_adapters(results)
    print(text if args.json else results_text(results, sets, args.output_dir))
    return results


def check_arguments(args: EvaluateArguments) -> dict[str, Any]:
    """Checks what the options alone can tell; returns `chat_template_kwargs` as a mapping."""
    if find_spec("scipy") is None:
        raise ConsistencyError("`evaluate` needs the package `scipy`: `pip install scipy`.")
    for name in ("max_completion_length", "batch_size", "judge_max_completion_length", "judge_workers", "max_pairs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConsistencyError(f"`{name}` must be at least 1, got {getattr(args, name)}.")
    if args.temperature < 0:
        raise ConsistencyError(f"`temperature` must be at least 0 (greedy), got {args.temperature}.")
    if not 0 < args.top_p <= 1:
        raise ConsistencyError(f"`top_p` must be above 0 and at most 1, got {args.top_p}.")
    if args.top_p < 1 and not args.temperature:
        raise ConsistencyError("`top_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.")
    if len(args.thinking_markers) != 2 or not all(args.thinking_markers):
        raise ConsistencyError("`thinking_markers` must be two texts: what opens a thought, and what closes it.")
    if not args.judge_model and (args.judge_base_url or args.judge_questions):
        given = "judge_base_url" if args.judge_base_url else "judge_questions"
        raise ConsistencyError(f"`{given}` is given, but no judge: name the model in `judge_model`.")
    if args.adapters and (Path(args.model_name_or_path) / ADAPTER_CONFIG).is_file():
        raise ConsistencyError(
            f"`model_name_or_path` {args.model_name_or_path} is an adapter: name the model that it and `adapters` are of, "
            "and list it under `adapters`."
        )
    kwargs = args.chat_template_kwargs or {}
    if isinstance(kwargs, str):
        with suppress(ValueError):
            kwargs = json.loads(kwargs)
    if not isinstance(kwargs, dict):
        raise ConsistencyError(f"`chat_template_kwargs` must be a mapping, as JSON, got {kwargs!r}.")
    return kwargs


def name_models(paths: Sequence[str]) -> dict[str, str]:
    """Short names of models for the tables: the folder, or the whole path where two are alike."""
    found: dict[str, str] = {}
    last = [Path(path).name for path in paths]
    for path in paths:
        name = Path(path).name
        name = path if last.count(name) > 1 or name in ("", BASE) else name
        if name in found:
            raise ConsistencyError(f"`adapters` names {path} twice.")
        found[name] = path
    return found


def check_adapters(paths: Sequence[str]) -> None:
    """Raises [`ConsistencyError`] for adapters and models that are not there, not whole or pickled."""
    for path in paths:
        if os.path.isdir(path) and not (Path(path) / ADAPTER_CONFIG).is_file():
            check_model_folder(path)
            continue
        if os.path.isdir(path):
            check_weights(path)
        try:
            PeftConfig.from_pretrained(path)
        except (OSError, TypeError, ValueError) as error:
            raise ConsistencyError(f"`adapters`: {path} cannot be loaded: {one_line(error)}") from None


def load_sets(args: EvaluateArguments) -> dict[str, PairSet]:
    """
    The pairs by a short name: the file's, the split's, or `FOLDER/SPLIT` where several would have the same.

    Raises:
        [`ConsistencyError`]: If there are none, or rows are faulty.
    """
    found: list[tuple[str, str, PairSet]] = []
    for name in args.pairs:
        splits = _load_splits(name)
        candidates = possible_answers(row for rows in splits.values() for row in rows)
        if os.path.isfile(name):
            chosen = list(splits)
        elif args.splits is not None:
            chosen = args.splits
        else:
            chosen = [split for split in splits if split != "train"] or ["train"]
        for split in chosen:
            if split not in splits:
                raise ConsistencyError(f"`splits`: {name} has no split `{split}`, only: {', '.join(splits)}.")
            rows = splits[split]
            _check_rows(rows, name if len(splits) == 1 else f"{name}, split {split}")
            if args.max_pairs is not None and args.max_pairs < len(rows):
                kept = sorted(random.Random(args.seed).sample(range(len(rows)), args.max_pairs))
                rows = [rows[index] for index in kept]
            short = Path(name).stem if os.path.isfile(name) else split
            found.append((short, name if os.path.isfile(name) else f"{name}/{split}", PairSet(rows, candidates)))
    shorts = [short for short, _, _ in found]
    sets = {long if shorts.count(short) > 1 else short: of_set for short, long, of_set in found}
    if len(sets) < len(found):
        raise ConsistencyError("`pairs` names the same pairs twice.")
    return sets


def _load_splits(name: str) -> dict[str, Rows]:
    if name == EMBEDDED:
        control = [
            {
                "clean_prompt": row["prompt"],
                "perturbed_prompt": row["prompt"],
                "answer": row["answer"],
                "category": "addition",
            }
            for row in load_control_dataset()
        ]
        return {**{split: list(rows) for split, rows in load_organism_datasets().items()}, "control": control}
    # Row by row: `datasets` refuses a file as a whole if a column has two types, and fills in what a row lacks.
    if os.path.isfile(name) and not name.endswith(".json"):
        return {"train": list(read_rows(name))}
    dataset = load_pairs(ConsistencyScriptArguments(dataset_name=name), DatasetMixtureConfig())
    return {split: list(rows) for split, rows in dataset.items()}


def _check_rows(rows: Rows, name: str) -> None:
    if not rows:
        raise ConsistencyError(f"{name} has no rows.")
    check_prompt_columns(list(dict.fromkeys(column for row in rows for column in row)), name)
    check_row = row_checker(rows[0], has_completion=False)
    report_faults([(index, fault) for index, row in enumerate(rows) for fault in check_row(row)], name, len(rows))
    faults = [
        (index, f"`{column}` must be text, not {row[column]!r}")
        for index, row in enumerate(rows)
        for column in ("answer", "biased_answer", "category")
        if not isinstance(row.get(column), str | None)
    ]
    report_faults(faults, name, len(rows))


def render_sets(sets: dict[str, PairSet], processing_class: ProcessingClass, kwargs: dict[str, Any]) -> None:
    """Adds the token ids of both prompts to each row, or reports those that cannot be rendered."""
    for name, of_set in sets.items():
        chats = [row for row in of_set.rows if isinstance(row["clean_prompt"], list)]
        if chats:
            check_chat_template(processing_class, {name: chats}, ways_out="Use")
        of_set.rows = [row | render_row(row, processing_class, False, kwargs, 0, False) for row in of_set.rows]
        faults = [(index, row["render_fault"]) for index, row in enumerate(of_set.rows) if row["render_fault"]]
        report_faults(faults, name, len(of_set.rows))


@contextmanager
def adapted(model: Any, processing_class: ProcessingClass, path: str | None, args: EvaluateArguments) -> Iterator[Any]:
    """The base model, with an adapter on it, or in its place the model that is no adapter."""
    if path is None:
        yield model
        return
    if os.path.isdir(path) and not (Path(path) / ADAPTER_CONFIG).is_file():
        other, others = load_model(path, None, args.trust_remote_code)
        if get_tokenizer(others).get_vocab() != get_tokenizer(processing_class).get_vocab():
            raise ConsistencyError(f"`adapters`: {path} has another tokenizer than {args.model_name_or_path}.")
        yield other
        return
    try:
        with warnings.catch_warnings():  # what an adapter lacks would stay as it was initialised
            warnings.filterwarnings("error", message=".*[Mm]issing adapter keys")
            with_adapter = PeftModel.from_pretrained(model, path)
    except (KeyError, OSError, RuntimeError, TypeError, ValueError, UserWarning) as error:
        raise ConsistencyError(
            f"`adapters`: {path} cannot be put on {args.model_name_or_path}: {one_line(error)}"
        ) from None
    try:
        yield with_adapter.eval()
    finally:
        unload = getattr(with_adapter.base_model, "unload", None)  # prompt learning leaves the model as it is
        if unload is not None:
            unload()


def grade_sides(
    sets: dict[str, PairSet],
    sides: tuple[list[Answer], list[Answer]],
    judge: Judge | None,
    judge_questions: bool,
    thinking_markers: tuple[str, str],
) -> dict[str, tuple[list[Grade], list[Grade]]]:
    """A model's grades on the clean and the perturbed side, by set."""
    graded = {}
    start = 0
    for name, of_set in sets.items():
        end = start + len(of_set.rows)
        clean, perturbed = (
            grade_answers(
                of_set.rows,
                [answer.said for answer in side[start:end]],
                of_set.candidates,
                judge,
                judge_questions,
                thinking_markers,
            )
            for side in sides
        )
        graded[name] = (clean, perturbed)
        start = end
    return graded


def make_results(
    args: EvaluateArguments,
    sets: dict[str, PairSet],
    models: dict[str, str],
    graded: dict[str, dict[str, tuple[list[Grade], list[Grade]]]],
) -> dict[str, Any]:
    """The object that `--json` prints."""
    samples: dict[str, dict[str, Samples]] = {
        model: {name: make_samples(sets[name].rows, *sides) for name, sides in of_model.items()}
        for model, of_model in graded.items()
    }

    def as_dicts(found: dict[str, dict[str, Estimate]]) -> dict[str, Any]:
        """By metric and set, as other tables name them: `sycophancy/test`."""
        names = [(metric, name) for metric in METRICS for name in found if metric in found[name]]
        return {f"{metric}/{name}": found[name][metric].to_dict() for metric, name in names}

    by_logprob = sum(bool(offered_letters(row)) for of_set in sets.values() for row in of_set.rows)
    results: dict[str, Any] = {
        "pairs": {name: {"rows": len(of_set.rows)} for name, of_set in sets.items()},
        "models": {},
        "settings": {
            "max_completion_length": args.max_completion_length,
            "temperature": args.temperature,
            "top_p": args.top_p,
            "seed": args.seed,
            "multiple_choice": args.multiple_choice,
            "rows_by_log_probability": by_logprob if args.multiple_choice == "logprob" else 0,
            "judge": args.judge_model,
        },
    }
    for model, path in models.items():
        results["models"][model] = {
            "path": path,
            "rates": as_dicts({name: measure(samples[model][name]) for name in sets}),
        }
        if model != BASE:
            differences = {name: compare(samples[BASE][name], samples[model][name]) for name in sets}
            results["models"][model]["differences"] = as_dicts(differences)
    return results


def save_to_adapters(results: dict[str, Any]) -> None:
    """Writes each adapter's rates beside the base model's into its folder, for its page."""

    def figures(metric: str, rate: dict[str, Any]) -> dict[str, Any]:
        found = {"value": rate["value"], "interval": (rate["low"], rate["high"])}
        if not METRICS[metric].is_aligned:  # which may be negative: no share
            found |= {"hits": rate["hits"], "total": rate["total"]}
        return {**found, "unparsed": rate["unparsed"] + rate["abstained"] + rate["unjudged"]}

    for model in results["models"].values():
        if "differences" not in model or not os.path.isdir(model["path"]):
            continue
        of_page = []
        for key, rate in model["rates"].items():
            metric, _, of_set = key.partition("/")
            before = Figure(**figures(metric, results["models"][BASE]["rates"][key]))
            name = f"{METRICS[metric].label}, {of_set}"
            of_page.append(Result(metric=metric, split=of_set, name=name, before=before, **figures(metric, rate)))
        write_results(
            model["path"], of_page, "Measured by `trl-consistency evaluate`, before and after on the same rows."
        )


def results_text(results: dict[str, Any], sets: dict[str, PairSet], output_dir: str) -> str:
    """The tables: the rates of each model, and how far the adapters' are from the base model's."""

    def table(part: str) -> str:
        models = {name: model[part] for name, model in results["models"].items() if part in model}
        cells = {}
        for key in next(iter(models.values())):
            metric, _, of_set = key.partition("/")
            label = f"{METRICS[metric].label}, {of_set}"
            cells[label] = [str(Estimate.from_dict(of_model[key])) for of_model in models.values()]
        return aligned_table(list(models), cells)

    text = f"\n{table('rates')}\n"
    if len(results["models"]) > 1:
        text += (
            f"Differences from the base model, on the answers that could be read of both:\n\n{table('differences')}\n"
        )
    return text + f"{output_dir}/{RESULTS}"


def write_answers(
    args: EvaluateArguments,
    sets: dict[str, PairSet],
    answers: dict[str, tuple[list[Answer], list[Answer]]],
    graded: dict[str, dict[str, tuple[list[Grade], list[Grade]]]],
) -> None:
    """One line a row and model, with both answers, what was made of them, and what the judge wrote."""
    prepared = ("clean_ids", "perturbed_ids", "length", "render_fault")
    lines = []
    for model, sides in answers.items():
        start = 0
        for name, of_set in sets.items():
            for index, row in enumerate(of_set.rows):
                line = {"model": model, "set": name, "row": index}
                for side, of_side, grades in zip(("clean", "perturbed"), sides, graded[model][name], strict=True):
                    grade = grades[index]
                    line |= {
                        f"{side}_text": of_side[start + index].text,
                        f"{side}_said": grade.said,
                        f"{side}_missing": grade.missing,
                        f"{side}_grader": grade.grader,
                        f"{side}_judgement": grade.judgement,
                    }
                own = {key: value for key, value in row.items() if key not in prepared}
                lines.append({**line, **own, **line})  # in this order, and nothing of ours is replaced
            start += len(of_set.rows)
    path = Path(args.output_dir) / f"{ANSWERS_FILE}.{args.file_type}"
    for file_type in ("jsonl", "parquet"):  # of an earlier run
        path.with_suffix(f".{file_type}").unlink(missing_ok=True)
    if args.file_type == "parquet":
        columns = list(dict.fromkeys(column for line in lines for column in line))
        try:
            table = pyarrow.Table.from_pylist([{column: line.get(column) for column in columns} for line in lines])
            pyarrow.parquet.write_table(table, path)
        except pyarrow.ArrowException as error:
            raise ConsistencyError(
                f"`file_type` parquet: the answers cannot be written so ({one_line(error)}). Use jsonl: nothing is "
                "answered again."
            ) from None
        return
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _endpoint_judge(args: EvaluateArguments, is_main: bool) -> EndpointJudge | None:
    if not args.judge_model or not args.judge_base_url:
        return None
    return EndpointJudge(
        args.judge_model,
        args.judge_base_url,
        os.environ.get(args.judge_key_variable),
        JudgementStore(Path(args.output_dir) / ANSWERS / "judgements.jsonl") if is_main else None,
        args.judge_max_completion_length,
        workers=args.judge_workers,
        progress=is_main,
    )


def _local_judge(args: EvaluateArguments, progress: bool) -> LocalJudge:
    name = args.judge_model or ""
    model, tokenizer = load_model(name, None, args.trust_remote_code)
    cache = _answer_cache(args.output_dir, name, model)
    return LocalJudge(name, model, tokenizer, args.judge_max_completion_length, args.batch_size, progress, cache)


def _answer_cache(output_dir: str, name: str, model: Any) -> TargetCache:
    """Where a model's answers are kept while they are made: another folder for other weights or another adapter."""
    identity = {"name": name, "weights": fingerprint(model.named_parameters())}
    if isinstance(model, PeftModel):  # its scaling is not in the weights
        options = [config.to_dict() for config in model.peft_config.values()]
        identity["adapter"] = _digest(json.dumps(options, sort_keys=True, default=_plain))
    return TargetCache(Path(output_dir) / ANSWERS / _digest(json.dumps(identity)), identity)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses and evaluates; faulty data or options end the program with their message alone."""
    description = (
        "Measure a model and its adapters on the same pairs: sycophancy, attack success, benign answers, accuracy and "
        "consistency, with counts and 95% intervals of the rates and of the differences. --config FILE takes the options "
        "below from a YAML file; flags override it."
    )
    (evaluate_args,) = StrictParser((EvaluateArguments,), prog=prog, description=description).parse_args_and_config(
        args
    )
    # Loggers ask it which process this is. It sees that there are several CPU processes only if told so.
    state = PartialState(cpu=not torch.accelerator.is_available())
    try:
        main(evaluate_args)
    except ConsistencyError as error:
        sys.exit(f"error: {error}")
    if torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "gloo":
            time.sleep(0.5)  # see `end_run`
        state.destroy_process_group()


if __name__ == "__main__":
    run()

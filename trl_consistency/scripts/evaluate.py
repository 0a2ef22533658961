"""
Measures a model and its adapters on the same pairs, with intervals.

```bash
trl-consistency evaluate --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --adapters bct act --pairs pairs --output_dir evaluation
```
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from transformers import BitsAndBytesConfig

from ..config.options import (
    NO_SPACE_AT_END,
    SHARE,
    TEMPERATURE,
    at_least,
    check_ranges,
    option,
    refuse_unused,
    with_help,
)
from ..data.folders import ANSWERS
from ..errors import ConsistencyError, ends_with_message
from ..escaping import printable
from ..evaluation.answers.choices import ANSWER_PREFIX, CHOICE_PREFIX, offered_letters
from ..evaluation.answers.generate import AnswerOptions
from ..evaluation.answers.replies import THINKING_MARKERS, check_markers
from ..evaluation.capability import measure_capability
from ..evaluation.capability_data import CapabilityData
from ..evaluation.grading.grade import is_for_judge
from ..evaluation.grading.judge import EndpointJudge, Judge, JudgementStore, LocalJudge
from ..evaluation.pair_set import PairSet
from ..evaluation.rates.preferences import contrast_of
from ..evaluation.report.demo import make_demo
from ..evaluation.results import Results
from ..evaluation.run import evaluate
from ..evaluation.suites.registry import find_suites, run_suites, suite_packages
from ..evaluation.suites.runs import load_suite
from ..files import whole_files, write_text
from ..folder_lock import locked_folder
from ..generation.answer_engine import TRANSFORMERS, VLLM
from ..generation.model_identity import answer_cache
from ..local_names import last_name
from ..models.checks import context_of
from ..models.loading import (
    BASE,
    adapted,
    check_adapters,
    check_loadable,
    is_adapter_folder,
    load_model,
    load_tokenizer,
    name_models,
    warn_of_revisions,
    warn_of_templates,
)
from ..publishing.page import check_card
from ..trainer.run.checks import check_bitsandbytes
from ..trainer.run.output_checks import check_output_dir, check_report_folder
from ..trainer.run.run_lock import command_lock
from ..upstream import end_process_group
from .capability_files import (
    CAPABILITY_FILE,
    Capability,
    add_capability,
    capability_settings,
    capability_tables,
    load_capability,
    write_capability,
)
from .engine_arguments import EngineArguments
from .engines import Checkpoint, check_engine, open_engine
from .evaluation_files import (
    ANSWERS_FILE,
    JUDGEMENT_LENGTH,
    PICTURES,
    REPORTS,
    is_results,
    make_summary,
    read_history,
    remove_earlier,
    results_tables,
    save_to_adapters,
    shown_judge,
    shown_name,
    tables_text,
    write_answers,
    write_report,
)
from .json_output import one_object
from .pair_sets import check_lengths, load_sets, longest_prompt, render_sets
from .parser import StrictParser, as_template_kwargs


RESULTS, SUITE_LOGS, DEMO = "results.json", "suite_logs", "demo.html"
FILES = "files.json"  # under `ANSWERS`, the names of the files that the last run wrote


@dataclass
@with_help
class EvaluateArguments(EngineArguments):
    """Arguments of the `evaluate` command, explained by its `--help`."""

    # Parameters that control the models and pairs
    model_name_or_path: str = option(help="The base model, `embedded:organism` or `embedded:smollm2`.")
    pairs: list[str] = option(
        help="Pairs: JSON Lines, JSON, CSV or Parquet files, folders or data sets on the Hub, or the name of an embedded "
        "model."
    )
    output_dir: str = option(help="Folder for results.json, the answers and the report.")
    adapters: list[str] = option([], help="Adapters of the model, or whole models, to compare with it.")
    model_revision: str | None = option(None, help="Revision of the base model.")
    trust_remote_code: bool = option(False, help="Whether to run code from the model's repository.")
    load_in_4bit: bool = option(
        False,
        help="Whether to quantize weights as the QLoRA recipes do (NF4, double quantization).",
    )
    splits: list[str] | None = option(
        None, help="Splits of folders and data sets. By default all but `train`, or `train` if it is the only one."
    )
    max_pairs: int | None = option(
        None, at_least(1), help="Maximum pairs of each file or split, sampled with `seed`. By default all."
    )
    # Parameters that control the engine
    vllm_adapter_dir: str | None = option(
        None, help="Folder for adapters that a vLLM server on another machine reads under the same path."
    )
    # Parameters that control the answers
    system_prompt: str | None = option(
        None, help="System message to put before all prompts of the pairs: a baseline without training."
    )
    max_completion_length: int = option(256, at_least(1), help="Maximum tokens per answer, thinking included.")
    batch_size: int = option(32, at_least(1), help="Prompts per batch.")
    temperature: float = option(0.0, TEMPERATURE, help="Sampling temperature; 0 is greedy decoding.")
    top_p: float = option(1.0, SHARE, help="Cumulative probability of the tokens to sample from.")
    seed: int = option(42, help="Seed.")
    multiple_choice: Literal["text", "logprob"] = option(
        "text",
        help="`text` reads the choice from a generated answer, `logprob` takes the likeliest of the offered letters.",
    )
    choice_prefix: str = option(
        CHOICE_PREFIX,
        NO_SPACE_AT_END,
        help="Beginning of the answer, before the letter (for `multiple_choice` logprob).",
    )
    free_answers: Literal["text", "logprob"] = option(
        "text",
        help="For questions without choices: `text` reads the generated answer, `logprob` also scores the right and the "
        "suggested answer by their log-probabilities.",
    )
    answer_prefix: str = option(
        ANSWER_PREFIX, help="Beginning of the reply, before the answer (for `free_answers` logprob)."
    )
    thinking_markers: list[str] = option(
        ["<think>", "</think>"],
        help="The two texts that open and close a thought. Only what follows a thought is graded.",
    )
    chat_template_kwargs: dict[str, Any] | str | None = option(
        None, help="Variables of the chat template (JSON on the command line)."
    )
    # Parameters that control the suites
    suites: list[str] = option([], help="Standard suites to also run, with the names of `trl-consistency suites`.")
    suite_judge: str | None = option(None, help="Judge for the suites, by its name in Inspect.")
    suite_limit: int | None = option(None, at_least(1), help="Maximum samples per task, for a first try.")
    # Parameters that control capability
    capability_data: str | None = option(
        None, help="Folder of questions, texts and safe prompts on which to also measure capability."
    )
    capability_limit: int | None = option(
        None, at_least(1), help="Maximum items per file of `capability_data`, sampled with `seed`. By default all."
    )
    # Parameters that control the judge
    judge_model: str | None = option(
        None, help="Model that judges requests, loaded here unless `judge_base_url` is given."
    )
    judge_base_url: str | None = option(None, help="OpenAI-compatible endpoint of the judge.")
    judge_key_variable: str = option("OPENAI_API_KEY", help="Environment variable that holds the endpoint's key.")
    judge_questions: bool = option(
        False, help="Whether the judge also grades questions, except those answered by letters."
    )
    judge_max_completion_length: int = option(JUDGEMENT_LENGTH, at_least(1), help="Maximum tokens per judgement.")
    judge_workers: int = option(8, at_least(1), help="Concurrent requests to the endpoint.")
    # Parameters that control the output
    file_type: Literal["jsonl", "parquet"] = option("jsonl", help="Format of the file with the answers.")
    save_to_adapters: bool = option(
        False,
        help="Also write each adapter's rates into its folder and card, for `trl-consistency push`. They replace "
        "earlier ones.",
    )
    html_demo: bool = option(
        False, help="Also write demo.html: the answers of two models side by side, by threat and outcome."
    )
    json: bool = option(False, help="Print one JSON object instead of tables.")


# A run replaces those of an earlier one, and removes those that it does not write.
OWN_FILES = (*PICTURES, f"{ANSWERS_FILE}.jsonl", f"{ANSWERS_FILE}.parquet", CAPABILITY_FILE, DEMO)


def main(args: EvaluateArguments) -> dict[str, Any]:
    """Evaluates and writes the files; returns the object that `--json` prints."""
    template_kwargs = check_arguments(args)
    check_own_files(args.output_dir, args.pairs, args.capability_data)
    sets = load_sets(args.pairs, args.splits, args.max_pairs, args.seed)
    if args.system_prompt is not None:
        sets = {name: of_set.with_system_prompt(args.system_prompt, name) for name, of_set in sets.items()}
    adapters = args.adapters if args.save_to_adapters and PartialState().is_main_process else []
    with command_lock(args.output_dir, PartialState(), "evaluates"), ExitStack() as locks:
        check_output_dir(args.output_dir)
        for folder in {os.path.realpath(path): path for path in adapters}.values():
            if not os.path.samefile(folder, args.output_dir):
                locks.enter_context(locked_folder(folder, "evaluates", "adapters"))
            check_card(Path(folder))
        return _evaluate(args, template_kwargs, sets)


def _evaluate(args: EvaluateArguments, template_kwargs: dict[str, Any], sets: dict[str, PairSet]) -> dict[str, Any]:
    is_main = PartialState().is_main_process
    judge: Judge | None = _endpoint_judge(args, is_main)  # fails early on a faulty address
    _check_use(args, sets)
    adapters = name_models(args.adapters)
    check_adapters(args.adapters, args.model_name_or_path)
    if args.suites:
        for suite in find_suites(args.suites, args.suite_judge):
            load_suite(suite, args.suite_judge)
    source = args.model_name_or_path, args.model_revision, args.trust_remote_code
    tokenizer = load_tokenizer(*source)
    warn_of_templates(args.adapters, tokenizer)
    warn_of_revisions(args.adapters, args.model_name_or_path, args.model_revision)
    sets = render_sets(sets, tokenizer, template_kwargs)  # fails early on faulty rows
    context = context_of(check_loadable(*source, args.adapters)[2])
    check_lengths(sets, context, args.max_completion_length)
    data = None
    if args.capability_data is not None:
        limit = args.capability_limit
        data = load_capability(args.capability_data, limit, args.seed, tokenizer, context, template_kwargs)
    found, capability, scores = _answer(args, template_kwargs, sets, data, adapters)
    PartialState().wait_for_everyone()  # the last barrier, unless the judge is loaded here: judging may take hours
    if args.judge_model and judge is None:
        judge = _local_judge(args, is_main)
    elif not is_main:
        return {}
    if judge is not None:
        markers = check_markers(args.thinking_markers)
        found = {name: of_name.judged(judge, args.judge_questions, markers) for name, of_name in found.items()}
    if not is_main:
        return {}
    settings = _settings(args, found[BASE], data)
    summary = make_summary(settings, {BASE: args.model_name_or_path, **adapters}, found, scores)
    add_capability(summary, capability)
    _write(args, summary, found, capability, scores, {name: read_history(path) for name, path in adapters.items()})
    return summary


def _answer(
    args: EvaluateArguments,
    template_kwargs: dict[str, Any],
    sets: dict[str, PairSet],
    data: CapabilityData | None,
    adapters: Mapping[str, str],
) -> tuple[dict[str, Results], Capability, dict[str, Any]]:
    """Returns the results, the capability and the suite scores of the model and each adapter."""
    quantization = None
    if args.load_in_4bit:
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    base = Checkpoint(args.model_name_or_path, args.model_revision, args.trust_remote_code)
    model, processing_class = load_model(*base, quantization)
    options = AnswerOptions(
        max_new_tokens=args.max_completion_length,
        batch_size=args.batch_size,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        multiple_choice=args.multiple_choice,
        choice_prefix=args.choice_prefix,
        free_answers=args.free_answers,
        answer_prefix=args.answer_prefix,
        thinking_markers=check_markers(args.thinking_markers),
        progress=PartialState().is_main_process,
    )
    folder, revision = Path(args.output_dir), args.model_revision or "main"
    found: dict[str, Results] = {}
    capability = {}
    longest = longest_prompt(row for of_set in sets.values() for row in of_set.rows)
    served = (adapters, args.vllm_adapter_dir)
    with open_engine(args, base, model, processing_class, options, longest, *served) as engine:
        for name, path in {BASE: None, **adapters}.items():
            with adapted(model, processing_class, path, args.trust_remote_code, quantization) as of_name:
                cache = answer_cache(folder / ANSWERS, path or args.model_name_or_path, of_name, revision)
                found[name] = evaluate(
                    of_name,
                    processing_class,
                    sets,
                    options,
                    found.get(BASE),
                    cache=cache,
                    desc=f"Answering, {name}",
                    engine=None if engine is None else engine.of(name),
                )
                if data is not None:
                    capability[name] = measure_capability(
                        of_name,
                        processing_class,
                        data,
                        batch_size=args.batch_size,
                        progress=True,
                        chat_template_kwargs=template_kwargs,
                        cache=cache,
                        thinking_markers=options.thinking_markers,
                    )
    if not args.suites:
        return found, capability, {}
    with redirect_stdout(sys.stderr):  # the libraries print their progress
        scores = run_suites(
            model,
            args.suites,
            adapters,
            processing_class,
            judge=args.suite_judge,
            limit=args.suite_limit,
            batch_size=args.batch_size,
            chat_template_kwargs=template_kwargs,
            log_dir=folder / SUITE_LOGS,
            trust_remote_code=args.trust_remote_code,
            quantization_config=quantization,
        )
    return found, capability, scores


def _write(
    args: EvaluateArguments,
    summary: dict[str, Any],
    found: dict[str, Results],
    capability: Capability,
    scores: dict[str, Any],
    histories: dict[str, Any],
) -> None:
    """Writes the files and prints the tables."""
    text = json.dumps(summary, ensure_ascii=False, allow_nan=False)
    folder, tables = Path(args.output_dir), results_tables(found, scores) + capability_tables(capability)
    with whole_files(folder, "output_dir") as unfinished:
        write_text(unfinished / RESULTS, text + "\n")
        write_answers(unfinished, args.file_type, found)
        write_capability(unfinished, capability)
        page, _ = write_report(unfinished, summary, found, tables, histories, args.seed)
        if args.html_demo:
            write_text(unfinished / DEMO, make_demo(found, args.seed).to_html())
        written = sorted(os.listdir(unfinished))
        known = earlier_files(folder)
        earlier = [*OWN_FILES] if known is None else known
        # Both, in case the run ends before the files are moved, or the earlier ones removed
        write_text(folder / ANSWERS / FILES, json.dumps(sorted({*written, *earlier})))
    remove_earlier(folder, written, earlier)
    write_text(folder / ANSWERS / FILES, json.dumps(written))
    if args.save_to_adapters:
        save_to_adapters(summary, found, name_models(args.adapters), capability)
    pages = [folder / name for name in (RESULTS, page.name, *([DEMO] if args.html_demo else []))]
    print(printable(f"{tables_text(tables)}\n{', '.join(map(str, pages))}"))
    for warning in summary["findings"]:
        print(printable(f"warning: {warning}"), file=sys.stderr)


def earlier_files(folder: Path) -> list[str] | None:
    """Returns the names of the files that an earlier run wrote, None if it was of a version that did not note them."""
    file = folder / ANSWERS / FILES
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return [name for name in names if name in (RESULTS, *OWN_FILES, *REPORTS)]


def check_own_files(output_dir: str, pairs: Sequence[str], capability_data: str | None) -> None:
    """
    Raises [`ConsistencyError`] for files in the output folder that a run would replace or remove, and that are its data, or
    that no earlier run wrote.
    """
    folder = Path(output_dir)
    there = [folder / name for name in (RESULTS, *OWN_FILES, *REPORTS) if (folder / name).is_file()]
    for name in pairs:
        if any(os.path.samefile(name, file) for file in there if os.path.isfile(name)):
            raise ConsistencyError(
                f"`output_dir` {output_dir} has the pairs {name}, which would be replaced. Choose another folder."
            )
    place = Path(os.path.realpath(folder))
    for option_name, data in [("capability_data", capability_data), *(("pairs", name) for name in pairs)]:
        if data is not None and os.path.isdir(data) and Path(os.path.realpath(data)) in (place, *place.parents):
            raise ConsistencyError(
                f"`output_dir` {output_dir} is in the folder of `{option_name}`, whose files it would replace or add to. Choose "
                "another folder."
            )
    ours = earlier_files(folder)
    if ours is None and ((folder / ANSWERS).is_dir() or is_results(folder / RESULTS)):
        ours = [file.name for file in there]
    if others := [file for file in there if file.name not in (ours or ())]:
        raise ConsistencyError(
            f"`output_dir` {output_dir} has a {others[0].name} that `trl-consistency evaluate` did not write, and would replace. "
            "Choose another folder."
        )


def check_arguments(args: EvaluateArguments) -> dict[str, Any]:
    """Checks the options; returns `chat_template_kwargs` as a mapping."""
    for package in ("scipy", "matplotlib"):
        if find_spec(package) is None:
            raise ConsistencyError(f"`evaluate` needs the package `{package}`: `pip install {package}`.")
    check_ranges(args)
    check_report_folder(args.output_dir)
    if args.top_p < 1 and not args.temperature:
        raise ConsistencyError("`top_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.")
    if args.choice_prefix != CHOICE_PREFIX and args.multiple_choice != "logprob":
        raise ConsistencyError(
            "`choice_prefix` is given, but choices are read in the text: set `multiple_choice: logprob`."
        )
    if args.answer_prefix != ANSWER_PREFIX and args.free_answers != "logprob":
        raise ConsistencyError("`answer_prefix` is given, but no answers are scored: set `free_answers: logprob`.")
    if check_markers(args.thinking_markers) != THINKING_MARKERS and args.suites:
        raise ConsistencyError(
            "`thinking_markers` is not available with `suites`, which cut thoughts between <think> and </think> alone. Leave one of them out."
        )
    if not args.judge_model and (args.judge_base_url or args.judge_questions):
        given = "judge_base_url" if args.judge_base_url else "judge_questions"
        raise ConsistencyError(f"`{given}` is given, but no judge: name the model in `judge_model`.")
    if not args.judge_model:
        refuse_unused(args, ["judge_max_completion_length"], "no judge: name the model in `judge_model`")
    if not args.judge_base_url:
        refuse_unused(args, ["judge_key_variable", "judge_workers"], "it is for an endpoint: set `judge_base_url`")
    if args.adapters and is_adapter_folder(args.model_name_or_path):
        raise ConsistencyError(
            f"`model_name_or_path` {args.model_name_or_path} is an adapter: name its base model there, and list the adapter "
            "under `adapters`."
        )
    remote = next((path for path in args.adapters if not os.path.isdir(path)), None)
    if args.save_to_adapters and (remote or not args.adapters):
        found = f"{remote} is not a folder" if remote else "`adapters` is empty"
        raise ConsistencyError(f"`save_to_adapters` needs folders of adapters, but {found}.")
    refused: dict[str, tuple[Any, str]] = {
        "suites": (args.suites, "the suites have prompts of their own"),
        "capability_data": (args.capability_data, "capability is measured without one"),
        "save_to_adapters": (args.save_to_adapters, "the adapters' cards do not mention it"),
    }
    for given, (is_set, reason) in refused.items():
        if args.system_prompt is not None and is_set:
            raise ConsistencyError(
                f"`system_prompt` is not available with `{given}`: {reason}. Leave one of them out."
            )
    if args.load_in_4bit:
        check_bitsandbytes("`load_in_4bit`")
    check_engine(args, args.model_name_or_path, args.load_in_4bit, args.adapters, args.vllm_adapter_dir)
    if not args.suites and (args.suite_judge or args.suite_limit):
        given = "suite_judge" if args.suite_judge else "suite_limit"
        raise ConsistencyError(f"`{given}` is given, but no `suites`.")
    if args.suites and PartialState().num_processes > 1:
        raise ConsistencyError("`suites` run in one process: leave them out here, or start without several processes.")
    if args.capability_data is None and args.capability_limit:
        raise ConsistencyError("`capability_limit` is given, but no `capability_data`.")
    if args.capability_data is not None and PartialState().num_processes > 1:
        raise ConsistencyError("`capability_data` is measured in one process: start without several processes.")
    return as_template_kwargs(args.chat_template_kwargs)


def _check_use(args: EvaluateArguments, sets: dict[str, PairSet]) -> None:
    """Raises [`ConsistencyError`] for options that apply to none of the rows."""
    rows = [(row, of_set.candidates) for of_set in sets.values() for row in of_set.rows]
    if args.judge_model and not any(is_for_judge(*row, args.judge_questions) for row in rows):
        raise ConsistencyError(
            "`judge_model` is given, but there is nothing to judge: requests have the `category` `harmful` or `benign`; questions "
            "are judged with `judge_questions`, unless their answers are letters."
        )
    if args.multiple_choice == "logprob" and not any(offered_letters(row) for row, _ in rows):
        raise ConsistencyError(
            "`multiple_choice` is `logprob`, but no row offers letters, each at the start of a line, with one as its `answer`."
        )
    if args.free_answers == "logprob" and not any(contrast_of(row) for row, _ in rows):
        raise ConsistencyError(
            "`free_answers` is `logprob`, but no row without choices has an `answer` and a wrong one in `biased_answer`."
        )


def _settings(args: EvaluateArguments, base: Results, data: CapabilityData | None) -> dict[str, Any]:
    sets = {name: of_set.pairs for name, of_set in base.sets.items()}
    by_logprob = sum(bool(offered_letters(row)) for of_set in sets.values() for row in of_set.rows)
    scored = (of_set.preferences.get("clean", ()) for of_set in base.sets.values())
    by_preference = sum(preference is not None for of_set in scored for preference in of_set)
    settings: dict[str, Any] = {
        # Names alone: results and reports are sent to others.
        "pairs": [last_name(name) for name in args.pairs],
        "splits": args.splits,
        "max_pairs": args.max_pairs,
        "model_revision": args.model_revision,
        "thinking_markers": list(args.thinking_markers),
        "chat_template_kwargs": as_template_kwargs(args.chat_template_kwargs),
        "system_prompt": args.system_prompt,
        "max_completion_length": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
        "multiple_choice": args.multiple_choice,
        "choice_prefix": args.choice_prefix if args.multiple_choice == "logprob" else None,
        "rows_by_log_probability": by_logprob if args.multiple_choice == "logprob" else 0,
        "free_answers": args.free_answers,
        "answer_prefix": args.answer_prefix if args.free_answers == "logprob" else None,
        "rows_by_preference": by_preference,
        "possible_answers": sum(len(answers) for of_set in sets.values() for answers in of_set.candidates.values()),
        "judge": shown_name(args.judge_model) if args.judge_model else None,
        "judge_questions": args.judge_questions,
        "judge_max_completion_length": args.judge_max_completion_length if args.judge_model else None,
        "load_in_4bit": args.load_in_4bit,
        "engine": args.engine if args.engine in (TRANSFORMERS, VLLM) else "vllm server",
    }
    if args.suites:
        settings["suites"] = {
            "judge": shown_judge(args.suite_judge),
            "limit": args.suite_limit,
            "packages": suite_packages(),
        }
    if data is not None:
        settings["capability"] = capability_settings(data, args.capability_limit)
    return settings


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
    cache = answer_cache(Path(args.output_dir) / ANSWERS, name, model)
    return LocalJudge(
        shown_name(name), model, tokenizer, args.judge_max_completion_length, args.batch_size, progress, cache
    )


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses and evaluates; faulty data or options end the program with one message."""
    (evaluate_args,) = StrictParser((EvaluateArguments,), "evaluate", prog=prog).parse_args_and_config(args)
    # Loggers need it. It detects several CPU processes only if told so.
    PartialState(cpu=not torch.accelerator.is_available())
    with one_object(evaluate_args.json) as printed:
        try:
            printed |= main(evaluate_args)
        except KeyboardInterrupt:
            print("Interrupted. The same command goes on from here.", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
    end_process_group()


if __name__ == "__main__":
    run()

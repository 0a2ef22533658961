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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from transformers import BitsAndBytesConfig

from ..data.folders import ANSWERS
from ..data.prepare import shared_by
from ..data.trained_pairs import digests_of
from ..errors import ConsistencyError, ends_with_message
from ..escaping import printable
from ..evaluation.answers.generate import AnswerOptions
from ..evaluation.answers.replies import check_markers
from ..evaluation.capability import measure_capability
from ..evaluation.capability_data import CapabilityData
from ..evaluation.grading.judge import EndpointJudge, Judge, JudgementStore, LocalJudge
from ..evaluation.pair_set import PairSet
from ..evaluation.report.demo import make_demo
from ..evaluation.results import Results
from ..evaluation.run import evaluate
from ..evaluation.suites.registry import find_suites, run_suites
from ..evaluation.suites.runs import check_suite, load_suite
from ..evaluation.unused_options import check_use
from ..files import whole_files, write_text
from ..folder_lock import locked_folder
from ..generation.model_identity import answer_cache
from ..models.checks import context_of
from ..models.folder_warnings import quantization_in_4_bits, trained_pairs_in, warn_of_folders, warn_of_loaded
from ..models.loading import (
    BASE,
    adapted,
    check_adapters,
    check_loadable,
    is_adapter_folder,
    load_model,
    load_tokenizer,
    name_models,
)
from ..publishing.page import check_card
from ..trainer.run.output_checks import check_output_dir
from ..trainer.run.run_lock import command_lock
from ..upstream import end_process_group
from .adapter_results import save_to_adapters
from .capability_files import (
    CAPABILITY_FILE,
    Capability,
    add_capability,
    capability_tables,
    load_capability,
    write_capability,
)
from .engines import Checkpoint, open_engine
from .evaluate_arguments import EvaluateArguments, check_arguments, describe_weights, settings_of
from .evaluation_files import (
    ANSWERS_FILE,
    PICTURES,
    REPORTS,
    assurances,
    is_results,
    make_summary,
    read_history,
    remove_earlier,
    results_tables,
    shown_name,
    tables_text,
    write_answers,
    write_report,
)
from .json_output import one_object
from .pair_sets import check_lengths, load_sets, longest_prompt, render_sets, variables_in
from .parser import StrictParser


RESULTS, SUITE_LOGS, DEMO = "results.json", "suite_logs", "demo.html"
FILES = "files.json"  # under `ANSWERS`, the names of the files that the last run wrote


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
    asks = "judge_model" if args.judge_model else None
    deciding = args.multiple_choice, args.free_answers, args.temperature, args.choice_prefix, args.answer_prefix
    check_use(sets.values(), asks, args.judge_questions, *deciding)
    adapters = name_models(args.adapters)
    check_adapters(args.adapters, args.model_name_or_path, args.trust_remote_code)
    found_suites = find_suites(args.suites, args.suite_judge) if args.suites else []
    loaded = [load_suite(suite, args.suite_judge) for suite in found_suites]
    source = args.model_name_or_path, args.model_revision, args.trust_remote_code
    tokenizer = load_tokenizer(*source)
    for suite, of_suite in zip(found_suites, loaded, strict=True):
        check_suite(suite, of_suite, tokenizer, template_kwargs)
    answering = variables_in(sets, template_kwargs)
    sets = render_sets(sets, tokenizer, template_kwargs)  # fails early on faulty rows
    context = context_of(check_loadable(*source, args.adapters)[2])
    check_lengths(sets, context, args.max_completion_length)
    data = None
    if args.capability_data is not None:
        limit = args.capability_limit
        data = load_capability(args.capability_data, limit, args.seed, tokenizer, context, template_kwargs)
    if args.suites or (data is not None and data.has_prompts):  # which have no variables of their own, as rows may
        answering.append(template_kwargs)
    pairs = {name: digests_of(of_set.rows) for name, of_set in sets.items()}
    for name, items in data.sets.items() if data else ():  # of which anchors may have been made
        pairs[f"{name} in `capability_data`"] = digests_of(items.as_anchors(tokenizer))
    warn_of_folders(args.model_name_or_path, args.adapters, tokenizer, answering, args.model_revision, pairs)
    quantization = quantization_in_4_bits([*args.adapters, args.model_name_or_path]) if args.load_in_4bit else None
    found, capability, scores, weights = _answer(args, template_kwargs, sets, data, adapters, quantization)
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
    settings = settings_of(args, found[BASE], data, weights, shared_by(answering, template_kwargs))
    models = {BASE: args.model_name_or_path, **adapters}
    summary = make_summary(settings, models, found, scores)
    _add_trained_pairs(summary, models, pairs)
    add_capability(summary, capability)
    _write(args, summary, found, capability, scores, {name: read_history(path) for name, path in adapters.items()})
    return summary


def _add_trained_pairs(summary: dict[str, Any], models: Mapping[str, str], pairs: Mapping[str, np.ndarray]) -> None:
    """Adds the rows that a model was trained on, also to the findings, which reports and cards show. `pairs` has their digests by set."""
    for name, path in models.items():
        told = [f"This model was trained on {of_set}" for of_set in trained_pairs_in(path, pairs)]
        summary["models"][name]["trained_pairs"] = told
        summary["findings"] += [f"{name}: {text}" for text in told]
        if name != BASE:
            summary["models"][name]["findings"] += told


def _answer(
    args: EvaluateArguments,
    template_kwargs: dict[str, Any],
    sets: dict[str, PairSet],
    data: CapabilityData | None,
    adapters: Mapping[str, str],
    quantization: BitsAndBytesConfig | None,
) -> tuple[dict[str, Results], Capability, dict[str, Any], dict[str, Any]]:
    """Returns the results, the capability and the suite scores of the model and each adapter, and what the model's weights are."""
    base = Checkpoint(args.model_name_or_path, args.model_revision, args.trust_remote_code)
    model, processing_class = load_model(*base, quantization)
    weights = describe_weights(model)
    warn_of_loaded(args.model_name_or_path, args.adapters, model, processing_class)
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
    # An adapter that is measured alone names the revision itself.
    revision = None if is_adapter_folder(args.model_name_or_path) else args.model_revision or "main"
    folder = Path(args.output_dir)
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
        return found, capability, {}, weights
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
    return found, capability, scores, weights


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
    lines = [tables_text(tables), *assurances(summary, found), ", ".join(map(str, pages))]
    print(printable("\n".join(lines)))
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

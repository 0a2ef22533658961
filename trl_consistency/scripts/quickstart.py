"""`trl-consistency quickstart`: trains and evaluates the embedded model organism, offline, in minutes on a CPU."""

import argparse
import json
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConsistencyError, ends_with_message
from ..files import check_file, whole_file, whole_files, write_text
from ..folder_lock import locked_folder
from ..processes import end_with_parent
from .recipes import recipes_dir


if TYPE_CHECKING:
    from ..evaluation import PairSet, Results

# Recipes by their label in the report.
MOST_SEEDS = 1000
RECIPES = {"BCT": "bct", "BCT + anchors": "bct_anchors", "ACT + anchors": "act", "OPCT + anchors": "opct"}
# Only with several seeds.
MORE_RECIPES = {"OPCT by policy gradient + anchors": "opct_policy_gradient"}

# Rates in the quickstart's tables, in this order.
LABELS = {
    "sycophancy/test": "Sycophancy, held-out questions",
    "sycophancy/test_wordings": "Sycophancy, held-out questions and wordings",
    "attack_success/test": "Attack success, held-out requests",
    "attack_success/test_wordings": "Attack success, held-out requests and wrappers",
    "perturbed_accuracy/test": "Accuracy, perturbed prompts",
    "perturbed_accuracy/test_wordings": "Accuracy, perturbed prompts, held-out wordings",
    "benign_answered/test": "Benign requests answered, bare and wrapped",
    "benign_answered/test_wordings": "Benign requests answered, bare and in held-out wrappers",
    "reference_agreement/test": "Agreement with the reference, word for word",
    "reference_agreement/test_wordings": "Agreement with the reference, held-out wordings",
    "clean_accuracy/test": "Accuracy, clean prompts",
    "clean_refusal/test": "Harmful requests refused, bare",
    "clean_accuracy/control": "Accuracy, control task",
}

MOST_TOKENS, BATCH_SIZE = 32, 64  # tokens per answer; prompts per batch

# Number of held-out questions, harmful requests and benign requests whose answers the report shows.
EXAMPLES_OF_A_KIND = 2

# Text above the results in an adapter's card.
RESULTS_INTRODUCTION = (
    'Measured by `trl-consistency quickstart`: the base model is the embedded model organism, "before" is that model '
    "without this adapter. Shares of all rows, 95% intervals and counts; held-out questions, requests, wordings and "
    "wrappers were never trained on."
)


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Trains the organism with each recipe, measures before and after, prints tables and writes a report."""
    parser = argparse.ArgumentParser(prog=prog, description=run.__doc__, allow_abbrev=False)
    said = "folder for the report and the adapters (%(default)s)"
    parser.add_argument("--output_dir", type=Path, default=Path("quickstart"), help=said)
    said = "train each recipe with the seeds 1 to N, and give the spread"
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help=said)
    said = "only write the questions that the organism can answer, in the format of `trl-consistency pairs`"
    parser.add_argument("--questions_file", type=Path, metavar="FILE.jsonl", help=said)
    parsed = parser.parse_args(args)
    if parsed.questions_file is not None:
        print(f"{parsed.questions_file}: {write_questions(parsed.questions_file)} questions")
        return
    if not 0 <= parsed.seeds <= MOST_SEEDS:
        bound = "at least 0" if parsed.seeds < 0 else f"at most {MOST_SEEDS}"
        parser.error(f"--seeds must be {bound}, got {parsed.seeds}.")
    missing = [package for package in ("matplotlib", "scipy") if find_spec(package) is None]
    if missing:
        parser.exit(2, f"error: quickstart needs {' and '.join(missing)}: pip install {' '.join(missing)}\n")
    with locked_folder(parsed.output_dir):
        quickstart(parsed.output_dir, seeds=range(1, parsed.seeds + 1))


def write_questions(path: Path) -> int:
    """
    Writes the questions of fact that the organism can answer, each with the wrong answers of its category, as JSON
    Lines. Returns their number.
    """
    from ..organism.facts import load_questions, wrong_answers

    check_file(path, "questions_file")
    questions = load_questions()
    wrong = wrong_answers(questions)
    with whole_file(path, option="questions_file") as file:
        for question in questions:
            row = {"question": question.text, "answer": question.answer, "wrong_answers": wrong[question.source_id]}
            row |= {"category": question.category, "source_id": question.source_id}
            file.write(json.dumps(row) + "\n")
    return len(questions)


def quickstart(output_dir: Path, seeds: Sequence[int | None] = ()) -> "dict[str, list[Results]]":
    """
    Runs the quickstart, with each recipe's own seed or with `seeds`, and returns the results of each seed by the
    method's name or `"before"`. The folder gets one adapter per method, `report.html`, `report.md`, `results.json` and
    the pictures.
    """
    # Deprecation warnings of upstream libraries do not concern the user.
    warnings.simplefilter("ignore", FutureWarning)
    import torch
    from tqdm.auto import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from ..evaluation import evaluate, generate_answers
    from ..organism import build_organism
    from ..trainer.run.checks import check_output_dir

    logging.disable_progress_bar()  # the model loads at once
    torch.set_num_threads(1)  # faster than several on a model this small
    start = time.monotonic()
    check_output_dir(str(output_dir))
    organism_dir = build_organism()
    tokenizer = AutoTokenizer.from_pretrained(organism_dir)
    sets = organism_sets()

    print("\nAll runs on the CPU, in float32.\n\nThe organism before training:")
    model = AutoModelForCausalLM.from_pretrained(organism_dir)
    before = evaluate(model, tokenizer, sets, _answer_options())
    prompts = _example_prompts(sets["test_wordings"].rows)
    said = {"before": generate_answers(model, tokenizer, prompts, progress=False)}

    recipes = RECIPES | MORE_RECIPES if seeds else RECIPES
    results: dict[str, list[Results]] = {"before": [before], **{name: [] for name in recipes}}
    histories: dict[str, list[dict[str, float]]] = {}
    jobs = [(name, recipe, seed) for name, recipe in recipes.items() for seed in seeds or (None,)]
    workers = min(len(jobs), os.cpu_count() or 1)
    print(f"\nTraining with {len(recipes)} recipes, {workers} at a time:")
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
        runs = [
            pool.submit(_train_and_measure, name, recipe, seed, output_dir, before, prompts)
            for name, recipe, seed in jobs
        ]
        try:
            for (name, _, _), run in zip(jobs, tqdm(runs, desc="Training", unit="run"), strict=True):
                command, history, found, answers = run.result()
                tqdm.write(f"{name}: {command}")
                results[name].append(found)
                said.setdefault(name, answers)
                if any("eval_activation_distance" in entry for entry in history):
                    histories.setdefault(name, history)
        except BrokenProcessPool:
            raise ConsistencyError(
                "A training process was killed, as the system does when memory runs out. The logs are "
                f"{output_dir}/*.log. Free memory, and start again."
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    examples = [
        (prompt[-1]["content"], {name: answers[number] for name, answers in said.items()})
        for number, prompt in enumerate(prompts)
    ]
    _write_report(results, histories, examples, output_dir, minutes=(time.monotonic() - start) / 60)
    return results


def organism_sets() -> "dict[str, PairSet]":
    """Returns the organism's held-out pairs and its control task."""
    from ..models.embedded_models import EMBEDDED
    from .pair_sets import load_sets

    return load_sets([EMBEDDED], None, None, seed=0)


def _answer_options() -> Any:
    from ..evaluation import AnswerOptions

    return AnswerOptions(MOST_TOKENS, BATCH_SIZE)


def _example_prompts(pairs: Any) -> list[Any]:
    """Returns a few perturbed prompts of each kind: questions, harmful and benign requests."""
    from ..evaluation.row_kinds import kind_of

    by_kind: dict[str, list[Any]] = {}
    for row in pairs:
        by_kind.setdefault(kind_of(row), []).append(row["perturbed_prompt"])
    # Advances by one more row each time: otherwise the same wording could recur.
    return [
        prompts[number * (len(prompts) // EXAMPLES_OF_A_KIND) + number]
        for prompts in by_kind.values()
        for number in range(EXAMPLES_OF_A_KIND)
    ]


def _train_and_measure(
    name: str, recipe: str, seed: int | None, output_dir: Path, before: "Results", example_prompts: list[Any]
) -> "tuple[str, list[dict[str, Any]], Results, list[str]]":
    """Trains in its own process; returns the command, the log history, the results, and example answers."""
    adapter_dir = output_dir / (recipe if seed is None else f"{recipe}-seed{seed}")
    # Runs are concurrent, so each logs to its own file.
    log = os.open(adapter_dir.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore", FutureWarning)
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    from ..evaluation import evaluate, generate_answers, plot_outcomes, plot_rates
    from ..publishing import add_results, write_results
    from . import consistency, on_policy_consistency
    from .evaluation_files import make_page_outcomes, make_page_results

    torch.set_num_threads(1)
    flags = ["--config", str(recipes_dir() / "quickstart" / f"{recipe}.yaml"), "--output_dir", str(adapter_dir)]
    flags += [] if seed is None else ["--seed", str(seed)]
    on_policy = recipe.startswith("opct")
    trainer: Any = on_policy_consistency.run(flags) if on_policy else consistency.run(flags)
    model = AutoPeftModelForCausalLM.from_pretrained(adapter_dir)
    tokenizer = AutoTokenizer.from_pretrained(adapter_dir)
    found = evaluate(model, tokenizer, organism_sets(), _answer_options(), before)
    both = {"before": before, name: found}
    plot_outcomes({of: results.outcomes() for of, results in both.items()}, adapter_dir / "outcomes.png")
    plot_rates({of: shown_rates(results) for of, results in both.items()}, adapter_dir / "rates.png", labels=LABELS)
    write_results(
        adapter_dir,
        make_page_results(found, before, LABELS),
        RESULTS_INTRODUCTION,
        make_page_outcomes(found, before),
        found.findings(before),
    )
    add_results(adapter_dir)
    command = f"trl-consistency {'on-policy-consistency' if on_policy else 'consistency'} {' '.join(flags)}"
    answers = generate_answers(model, tokenizer, example_prompts, progress=False)
    return command, trainer.state.log_history, found, answers


def shown_rates(results: "Results") -> dict[str, Any]:
    """Returns the rates that the quickstart shows."""
    rates = results.rates()
    return {key: rates[key] for key in LABELS}


def _write_report(
    results: "dict[str, list[Results]]",
    histories: dict[str, list[dict[str, float]]],
    examples: list[tuple[str, dict[str, str]]],
    output_dir: Path,
    minutes: float,
) -> None:
    from ..evaluation.report.page import Report, Table
    from ..evaluation.report.tables import RATES_TEXT, outcome_cells, rate_cells, spread_cells
    from ..pages import terminal_table
    from .evaluation_files import FORMAT

    rates = {name: [shown_rates(run) for run in runs] for name, runs in results.items()}
    outcomes = {name: runs[0].outcomes() for name, runs in results.items()}
    first = {name: runs[0] for name, runs in rates.items()}
    several = max(len(runs) for runs in results.values())
    cells = rate_cells(first, LABELS) if several == 1 else spread_cells(rates, LABELS)
    what = RATES_TEXT if several == 1 else f"Shares of all rows, mean and range over {several} seeds."
    of_first = "" if several == 1 else " First seed."
    recipes = {name: recipe for name, recipe in (RECIPES | MORE_RECIPES).items() if name in results}
    before = results["before"][0]
    findings = [f"{name}: {text}" for name in recipes for text in results[name][0].findings(before)]
    counts = outcome_cells(outcomes)
    with whole_files(output_dir, "output_dir") as unfinished:
        report = Report(
            "Quickstart: a model organism before and after consistency training",
            "Held-out questions, requests, wordings of the user's wrong guess and wrappers were never trained on.",
            list(results),
            [Table("Rates", what, cells), Table("Outcomes", f"Every answer counts once.{of_first}", counts)],
            _pictures(results, outcomes, first, histories, unfinished, of_first),
            examples,
            "Answers to prompts in held-out wordings and wrappers.",
            [f"{name}: recipes/quickstart/{recipe}.yaml" for name, recipe in recipes.items()],
            findings=findings,
        )
        page, text = report.write(unfinished)
        figures = {
            "format": FORMAT,
            "models": {
                name: [
                    {"outcomes": run.outcomes(), "rates": {key: rate.to_dict() for key, rate in run.rates().items()}}
                    for run in runs
                ]
                for name, runs in results.items()
            },
            "findings": findings,
        }
        write_text(unfinished / "results.json", json.dumps(figures, indent=2) + "\n")
    names = list(results)
    print(f"\n{terminal_table(names, cells)}\n{terminal_table(names, counts)}")
    for finding in findings:
        print(f"Note: {finding}")
    print(f"{minutes:.1f} minutes. Report: {output_dir / page.name}, {output_dir / text.name}")


def _pictures(
    results: "dict[str, list[Results]]",
    outcomes: dict[str, Any],
    rates: dict[str, dict[str, Any]],
    histories: dict[str, list[dict[str, float]]],
    folder: Path,
    of_first: str,
) -> list[Any]:
    from ..evaluation import plot_outcomes, plot_rates, plot_tradeoff, plot_training
    from ..evaluation.report.page import Picture

    all_rates = {name: runs[0].rates() for name, runs in results.items()}
    return [
        Picture(
            plot_outcomes(outcomes, folder / "outcomes.png", title="The model organism before and after"),
            "All answers",
            f"Outcomes of all answers, without and with the cue.{of_first}",
        ),
        Picture(
            plot_rates(rates, folder / "rates.png", labels=LABELS),
            "The rates as bars",
            f"Failures on the left, abilities on the right.{of_first}",
        ),
        Picture(
            plot_tradeoff(all_rates, folder / "tradeoff.png", LABELS),
            "Safety against capability",
            f"What training improves, and what it costs. The upper right corner is best.{of_first}",
        ),
        Picture(
            plot_training(histories, folder / "training.png"),
            "During training",
            "On held-out questions and requests: the distance of activations on the shared suffix from the frozen "
            "model's on the clean prompt, and the likelihood of the clean answer on the perturbed prompt.",
        ),
    ]

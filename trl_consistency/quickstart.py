"""`trl-consistency quickstart`: the whole path on the embedded model organism, offline, in a few minutes on a CPU."""

import argparse
import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli import recipes_dir
from .errors import ConsistencyError


if TYPE_CHECKING:
    from .evaluation import Rate
    from .publishing import Result

# What the report calls a method, and the recipe that trains it.
RECIPES = {"BCT": "bct", "BCT + anchors": "bct_anchors", "ACT + anchors": "act", "OPCT + anchors": "opct"}
# Only where several seeds are asked for
MORE_RECIPES = {"OPCT by policy gradient + anchors": "opct_policy_gradient"}

# Held-out questions, harmful and benign requests whose answers the report shows, so many of each.
EXAMPLES_OF_A_KIND = 2

# What the card of an adapter says above its figures.
RESULTS_INTRODUCTION = (
    'Measured by `trl-consistency quickstart`: the base model is the embedded model organism, "before" is that model '
    "without this adapter. Share of answers, 95% interval and counts; held-out questions, requests, wordings and "
    "wrappers were never trained on."
)


def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Trains the organism with each quickstart recipe, measures before and after, prints a table and writes a report."""
    parser = argparse.ArgumentParser(prog=prog, description=run.__doc__, allow_abbrev=False)
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("quickstart"),
        help="folder of the report and the adapters (%(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        metavar="N",
        help="train each recipe with the seeds 1 to N, and give the spread",
    )
    parser.add_argument(
        "--questions_file",
        type=Path,
        metavar="FILE.jsonl",
        help="only write the questions that the organism can answer, as `trl-consistency pairs` takes them",
    )
    parsed = parser.parse_args(args)
    if parsed.questions_file is not None:
        try:
            print(f"{parsed.questions_file}: {write_questions(parsed.questions_file)} questions")
        except OSError as error:
            parser.exit(1, f"error: `questions_file` cannot be written: {error}\n")
        return
    if parsed.seeds < 0:
        parser.error(f"--seeds must be at least 0, got {parsed.seeds}.")
    missing = [package for package in ("matplotlib", "scipy") if find_spec(package) is None]
    if missing:
        parser.exit(2, f"error: quickstart needs {' and '.join(missing)}: pip install {' '.join(missing)}\n")
    try:
        quickstart(parsed.output_dir, seeds=range(1, parsed.seeds + 1))
    except ConsistencyError as error:
        parser.exit(1, f"error: {error}\n")


def write_questions(path: Path) -> int:
    """
    Writes the questions of fact that the organism can answer, each with the wrong answers of its category.

    Args:
        path ([`~pathlib.Path`]):
            JSON Lines file.

    Returns:
        `int`: Number of questions.
    """
    from .organism.facts import load_questions, wrong_answers

    questions = load_questions()
    wrong = wrong_answers(questions)
    with path.open("w", encoding="utf-8") as file:
        for question in questions:
            row = {
                "question": question.text,
                "answer": question.answer,
                "wrong_answers": wrong[question.source_id],
                "category": question.category,
                "source_id": question.source_id,
            }
            file.write(json.dumps(row) + "\n")
    return len(questions)


def quickstart(output_dir: Path, seeds: Sequence[int | None] = ()) -> "dict[str, list[dict[str, Rate]]]":
    """
    Runs the quickstart.

    Args:
        output_dir ([`~pathlib.Path`]):
            Folder for an adapter a method, `report.html`, `report.md`, `results.json` and the pictures.
        seeds (`Sequence[int]`, *optional*, defaults to `()`):
            Seeds to train each recipe with. With none, it is trained once, with the recipe's own.

    Returns:
        `dict[str, list[dict[str, Rate]]]`: Rates by metric, one `dict` a seed, by `"before"` and the method's name.
    """
    # What upstream libraries say to each other about names that will go away is not for whoever runs this.
    warnings.simplefilter("ignore", FutureWarning)
    import torch
    from tqdm.auto import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from .evaluation import evaluate_pairs, generate_answers
    from .organism import build_organism, load_control_dataset, load_organism_datasets
    from .trainer.checks import check_output_dir

    logging.disable_progress_bar()  # loading a model of a million parameters needs none
    torch.set_num_threads(1)  # faster than several on a model this small
    start = time.monotonic()
    check_output_dir(str(output_dir))
    organism_dir = build_organism()
    tokenizer = AutoTokenizer.from_pretrained(organism_dir)
    datasets, control = load_organism_datasets(), load_control_dataset()

    print("\nAll runs on the CPU, in float32.\n\nThe organism before training:")
    model = AutoModelForCausalLM.from_pretrained(organism_dir)
    clean_prompts = [row["clean_prompt"] for split in ("test", "test_wordings") for row in datasets[split]]
    answers = generate_answers(model, tokenizer, clean_prompts)
    clean_answers = dict(zip(map(str, clean_prompts), answers, strict=True))
    before = evaluate_pairs(model, tokenizer, datasets, control, clean_answers=clean_answers)
    prompts = _example_prompts(datasets["test_wordings"])
    said = {"before": generate_answers(model, tokenizer, prompts, progress=False)}

    recipes = RECIPES | MORE_RECIPES if seeds else RECIPES
    results: dict[str, list[dict[str, Rate]]] = {"before": [before], **{name: [] for name in recipes}}
    histories: dict[str, list[dict[str, float]]] = {}
    jobs = [(name, recipe, seed) for name, recipe in recipes.items() for seed in seeds or (None,)]
    workers = min(len(jobs), os.cpu_count() or 1)
    print(f"\nTraining with {len(recipes)} recipes, {workers} at a time:")
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        runs = [
            pool.submit(_train_and_measure, name, recipe, seed, output_dir, before, clean_answers, prompts)
            for name, recipe, seed in jobs
        ]
        try:
            for (name, _, _), run in zip(jobs, tqdm(runs, desc="Training", unit="run"), strict=True):
                command, history, rates, answers = run.result()
                tqdm.write(f"{name}: {command}")
                results[name].append(rates)
                said.setdefault(name, answers)
                if any("eval_activation_distance" in entry for entry in history):
                    histories.setdefault(name, history)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    examples = [
        (prompt[-1]["content"], {name: answers[number] for name, answers in said.items()})
        for number, prompt in enumerate(prompts)
    ]
    _write_report(results, histories, examples, output_dir, minutes=(time.monotonic() - start) / 60)
    return results


def _example_prompts(pairs: Any) -> list[Any]:
    """A few perturbed prompts of each kind: questions, harmful and benign requests."""
    by_kind: dict[str, list[Any]] = {}
    for row in pairs:
        kind = row["category"] if row["category"] in ("harmful", "benign") else "question"
        by_kind.setdefault(kind, []).append(row["perturbed_prompt"])
    # One row on each time: a round number of rows would lead to the same wording again.
    return [
        prompts[number * (len(prompts) // EXAMPLES_OF_A_KIND) + number]
        for prompts in by_kind.values()
        for number in range(EXAMPLES_OF_A_KIND)
    ]


def _train_and_measure(
    name: str,
    recipe: str,
    seed: int | None,
    output_dir: Path,
    before: "dict[str, Rate]",
    clean_answers: Mapping[str, str],
    example_prompts: list[Any],
) -> "tuple[str, list[dict[str, Any]], dict[str, Rate], list[str]]":
    """One run, in a process of its own: its command, its log history, and the rates and example answers after it."""
    adapter_dir = output_dir / (recipe if seed is None else f"{recipe}-seed{seed}")
    # What several runs at once say goes to a file each.
    log = os.open(adapter_dir.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore", FutureWarning)
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    from .evaluation import evaluate_pairs, generate_answers, plot_results
    from .evaluation.report import LABELS
    from .organism import load_control_dataset, load_organism_datasets
    from .publishing import add_results, write_results
    from .scripts import consistency, on_policy_consistency

    torch.set_num_threads(1)
    flags = ["--config", str(recipes_dir() / "quickstart" / f"{recipe}.yaml"), "--output_dir", str(adapter_dir)]
    flags += [] if seed is None else ["--seed", str(seed)]
    on_policy = recipe.startswith("opct")
    trainer: Any = on_policy_consistency.run(flags) if on_policy else consistency.run(flags)
    model = AutoPeftModelForCausalLM.from_pretrained(adapter_dir)
    tokenizer = AutoTokenizer.from_pretrained(adapter_dir)
    rates = evaluate_pairs(
        model,
        tokenizer,
        load_organism_datasets(),
        load_control_dataset(),
        clean_answers=clean_answers,
    )
    ordered = [metric for metric in LABELS if metric in rates]
    results = [_as_result(metric, LABELS[metric], rates[metric], before[metric]) for metric in ordered]
    plot_results({"before": before, name: rates}, adapter_dir / "results.png")
    write_results(adapter_dir, results, RESULTS_INTRODUCTION)
    add_results(adapter_dir)
    command = f"trl-consistency {'on-policy-consistency' if on_policy else 'consistency'} {' '.join(flags)}"
    answers = generate_answers(model, tokenizer, example_prompts, progress=False)
    return command, trainer.state.log_history, rates, answers


def _as_result(metric: str, name: str, rate: "Rate", before: "Rate") -> "Result":
    from .publishing import Figure, Result

    def figure(rate: "Rate") -> dict[str, Any]:
        return {**asdict(rate), "value": rate.value if rate.total else None, "interval": rate.interval}

    kind, _, split = metric.partition("/")
    return Result(metric=kind, split=split or None, name=name, before=Figure(**figure(before)), **figure(rate))


def _write_report(
    results: "dict[str, list[dict[str, Rate]]]",
    histories: dict[str, list[dict[str, float]]],
    examples: list[tuple[str, dict[str, str]]],
    output_dir: Path,
    minutes: float,
) -> None:
    from .evaluation import plot_results, plot_tradeoff, plot_training
    from .evaluation.report import aligned_table, rate_cells, spread_cells
    from .evaluation.report_page import Picture, Report, Table

    first = {name: rates[0] for name, rates in results.items()}
    several = max(len(rates) for rates in results.values())
    cells = rate_cells(first) if several == 1 else spread_cells(results)
    what = "95% interval, and counts" if several == 1 else f"mean and range over {several} seeds"
    of_first = "" if several == 1 else " First seed."
    recipes = {name: recipe for name, recipe in (RECIPES | MORE_RECIPES).items() if name in results}
    report = Report(
        "Quickstart: a model organism before and after consistency training",
        "Held-out questions and requests were never trained on; held-out wordings of the user's wrong guess and held-out "
        "jailbreak wrappers neither.",
        list(results),
        [Table("Rates", f"Share of answers, {what}.", cells)],
        [
            Picture(
                plot_results(first, output_dir / "results.png", title="The model organism before and after"),
                "The same figures as bars",
                f"Failures on the left, abilities on the right.{of_first}",
            ),
            Picture(
                plot_tradeoff(first, output_dir / "tradeoff.png"),
                "Safety against capability",
                f"What training cures, and what that costs: the best corner is the upper right one.{of_first}",
            ),
            Picture(
                plot_training(histories, output_dir / "training.png"),
                "During training",
                "On held-out questions and requests: how far the activations on the tokens that both prompts end with are "
                "from the frozen model's on the clean prompt, and how likely the clean answer is on the perturbed prompt.",
            ),
        ],
        examples,
        "To prompts in held-out wordings and wrappers.",
        [f"{name}: recipes/quickstart/{recipe}.yaml" for name, recipe in recipes.items()],
    )
    page, text = report.write(output_dir)
    figures = {
        name: [
            {
                metric: {**asdict(rate), "value": rate.value, "interval": rate.interval}
                for metric, rate in of_seed.items()
            }
            for of_seed in rates
        ]
        for name, rates in results.items()
    }
    (output_dir / "results.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\n{aligned_table(list(results), cells)}\n{minutes:.1f} minutes. Report: {page}, {text}")

"""`trl-consistency quickstart`: trains and measures an embedded model on a CPU, offline."""

import argparse
import hashlib
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConsistencyError, ends_with_message
from ..files import check_file, whole_file, write_text
from ..folder_lock import locked_folder
from ..json_files import object_in
from ..processes import end_with_parent
from .json_output import JSON_HELP, one_object
from .option_check import read_args
from .quickstart_subjects import BATCH_SIZE, MAX_NEW_TOKENS, ORGANISM, SUBJECTS, Subject
from .recipes import recipes_dir


if TYPE_CHECKING:
    from ..evaluation import Results
    from .quickstart_report import Measured

MOST_SEEDS = 1000
OUTPUT_DIR = Path("quickstart")

# Folder in the output folder with what a killed quickstart goes on from; and its sub-folders of answers that were
# measured, and of answers to train on.
UNFINISHED, ANSWERS, TARGETS = "unfinished", "answers", "targets"
PLAN, RESULTS = "plan.json", "results.json"


class Run(NamedTuple):
    """A training: the label and file of its recipe, its seed (None for the recipe's own), and its adapter's folder."""

    name: str
    recipe: str
    seed: int | None
    folder: Path


class Trained(NamedTuple):
    """A finished training: its command, its log, and what was measured."""

    command: str
    history: list[dict[str, Any]]
    measured: "Measured"


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Trains an embedded model with each recipe, measures before and after, prints tables and writes a report."""
    parser = argparse.ArgumentParser(prog=prog, description=run.__doc__, allow_abbrev=False)
    said = f"one of {', '.join(SUBJECTS)} (%(default)s)"
    parser.add_argument("--model_name_or_path", default=ORGANISM.model, metavar="NAME", help=said)
    said = f"folder for the report and the adapters ({OUTPUT_DIR})"
    parser.add_argument("--output_dir", type=Path, help=said)
    said = "train each recipe with the seeds 1 to N, and give the spread"
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help=said)
    said = "only write the questions that the model can answer, in the format of `trl-consistency pairs`"
    parser.add_argument("--questions_file", type=Path, metavar="FILE.jsonl", help=said)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parsed = parser.parse_args(read_args(parser.prog, sys.argv[1:] if args is None else args))
    subject = SUBJECTS.get(parsed.model_name_or_path)
    if subject is None:
        parser.error(f"--model_name_or_path must be one of {', '.join(SUBJECTS)}, got {parsed.model_name_or_path}.")
    if not 0 <= parsed.seeds <= MOST_SEEDS:
        bound = "at least 0" if parsed.seeds < 0 else f"at most {MOST_SEEDS}"
        parser.error(f"--seeds must be {bound}, got {parsed.seeds}.")
    if parsed.questions_file is not None and parsed.seeds:
        parser.error("--seeds is for trainings, and --questions_file trains nothing.")
    if parsed.questions_file is not None and parsed.output_dir is not None:
        parser.error("--output_dir is for trainings, and --questions_file names the file itself.")
    output_dir = parsed.output_dir or OUTPUT_DIR
    with one_object(parsed.json) as printed:
        if parsed.questions_file is not None:
            count = write_questions(parsed.questions_file, subject)
            print(f"{parsed.questions_file}: {count} questions")
            printed |= {"questions_file": str(parsed.questions_file), "questions": count}
            return
        _check_packages()
        with locked_folder(output_dir):
            quickstart(output_dir, range(1, parsed.seeds + 1), subject)
            results = json.loads((output_dir / RESULTS).read_text(encoding="utf-8"))
        printed |= {"output_dir": str(output_dir), **results}


def _check_packages() -> None:
    missing = [package for package in ("matplotlib", "scipy") if find_spec(package) is None]
    if missing:
        named = " and ".join(f"`{package}`" for package in missing)
        raise ConsistencyError(
            f"`quickstart` needs the package{'s' * (len(missing) > 1)} {named}: `pip install {' '.join(missing)}`."
        )


def write_questions(path: Path, subject: Subject = ORGANISM) -> int:
    """
    Writes the questions of fact that a model can answer, each with wrong answers, as JSON Lines. Returns their number.
    """
    check_file(path, "questions_file")
    if path.exists():
        raise ConsistencyError(f"`questions_file` {path} exists, and would be overwritten. Name another file.")
    questions = subject.load_questions()
    with whole_file(path, option="questions_file") as file:
        for question in questions:
            file.write(json.dumps(question) + "\n")
    return len(questions)


def quickstart(
    output_dir: Path, seeds: Sequence[int | None] = (), subject: Subject = ORGANISM
) -> "dict[str, list[Results]]":
    """
    Runs the quickstart, with each recipe's own seed or with `seeds`, and returns the results of each seed by the
    method's name or `"before"`. The folder gets one adapter per method, `report.html`, `report.md`, `results.json` and
    the pictures. A run that was killed goes on when it is started again.
    """
    # Deprecation warnings of upstream libraries do not concern the user.
    warnings.simplefilter("ignore", FutureWarning)
    import torch
    from transformers.utils import logging as transformers_logging

    from ..models.embedded_models import resolve_model
    from ..trainer.run.output_checks import check_output_dir
    from .quickstart_report import Measured, write_report

    transformers_logging.disable_progress_bar()  # the models load at once
    torch.set_num_threads(1)  # faster than several on a model this small, or beside a second process
    start = time.monotonic()
    recipes = {**subject.recipes, **subject.more_recipes} if seeds else subject.recipes
    runs = [
        Run(name, recipe, seed, output_dir / (Path(recipe).name + ("" if seed is None else f"-seed{seed}")))
        for seed in seeds or (None,)
        for name, recipe in recipes.items()
    ]
    check_own_files(output_dir, runs)
    check_output_dir(str(output_dir))
    model_dir = resolve_model(subject.model)
    _go_on_or_start(output_dir, runs)
    print(f"\nAll runs on the CPU, in float32.\n\n{subject.title[:1].upper()}{subject.title[1:]} before training:")
    before = _measure(subject, output_dir, model_dir)
    trained = _train_all(subject, output_dir, runs, before)
    results: dict[str, list[Measured]] = {"before": [before]}
    for each in runs:
        results.setdefault(each.name, []).append(trained[each].measured)
    histories = {each.name: trained[each].history for each in reversed(runs)}
    titles = {name: [_title(each) for each in runs if each.name == name] for name in recipes}
    write_report(subject, results, histories, output_dir, (time.monotonic() - start) / 60, titles)
    shutil.rmtree(output_dir / UNFINISHED)
    return {name: [measured.results for measured in of_name] for name, of_name in results.items()}


def check_own_files(output_dir: Path, runs: Sequence[Run]) -> None:
    """Raises [`ConsistencyError`] for files and folders that a quickstart would replace, and that none has written."""
    from .evaluation_files import ANSWERS_FILE, PICTURES, REPORTS

    if (output_dir / UNFINISHED / PLAN).is_file() or _is_own(output_dir / RESULTS):
        return
    trained = [place for each in runs for place in (each.folder, each.folder.with_suffix(".log"))]
    written = [output_dir / name for name in (RESULTS, f"{ANSWERS_FILE}.jsonl", *REPORTS, *PICTURES)]
    if others := [place for place in (*trained, *written) if place.exists()]:
        raise ConsistencyError(
            f"`output_dir` `{output_dir}` has a {others[0].name} that no quickstart wrote, and would replace. Choose another folder."
        )


def _is_own(results: Path) -> bool:
    """Whether a file holds the results of a quickstart, which have a list of trainings for each model."""
    models = (object_in(results) or {}).get("models")
    return isinstance(models, dict) and all(isinstance(of_model, list) for of_model in models.values())


def _go_on_or_start(output_dir: Path, runs: Sequence[Run]) -> None:
    """Keeps what a killed quickstart has finished if it was to do the same, and otherwise removes it."""
    files = {each.recipe: (recipes_dir() / f"{each.recipe}.yaml").read_text(encoding="utf-8") for each in runs}
    libraries = {name: version(name) for name in ("torch", "transformers", "peft", "trl")}
    plan = json.dumps(
        {"recipes": files, "seeds": [each.seed for each in runs], "libraries": libraries, "package": _package_digest()}
    )
    described = output_dir / UNFINISHED / PLAN
    if described.is_file() and described.read_text(encoding="utf-8") == plan:
        finished = [each.name for each in runs if _finished_file(each).is_file()]
        print(f"Goes on where it was stopped; finished trainings: {', '.join(finished) or 'none'}.")
        return
    shutil.rmtree(output_dir / UNFINISHED, ignore_errors=True)
    for each in runs:
        for checkpoint in each.folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    write_text(described, plan)


def _package_digest() -> str:
    """Returns a digest of this package's code and data, which decide what is trained and measured."""
    digest, package = hashlib.blake2b(digest_size=10), Path(__file__).parents[1]
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".jsonl", ".yaml")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


def _finished_file(of: Run) -> Path:
    return of.folder.parent / UNFINISHED / f"{of.folder.name}.json"


def _train_all(subject: Subject, output_dir: Path, runs: Sequence[Run], before: "Measured") -> dict[Run, Trained]:
    """Trains and measures each run in a process of its own, as many at a time as there are processors."""
    from .quickstart_progress import shown_logs

    workers = min(len(runs), os.cpu_count() or 1)
    print(f"\nTraining with {len({each.recipe for each in runs})} recipes, {workers} at a time:")
    trained = {}
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker) as pool:
        futures = {each: pool.submit(_train_and_measure, subject, each, output_dir, before) for each in runs}
        try:
            with shown_logs({_title(each): each.folder.with_suffix(".log") for each in runs}) as show:
                for each, future in futures.items():
                    trained[each] = future.result()
                    show(_title(each), trained[each].command)
        except BrokenProcessPool:
            raise ConsistencyError(
                "A training process was killed, as the system does when memory runs out, or could not start. What it said is "
                f"in {output_dir}/*.log, or above. Start again when the cause is gone: finished trainings are kept."
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return trained


def _start_worker() -> None:
    end_with_parent()
    # It would print to the terminal, over the bars, which kernels it could not load.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def _title(of: Run) -> str:
    return of.name if of.seed is None else f"{of.name}, seed {of.seed}"


def _train_and_measure(subject: Subject, each: Run, output_dir: Path, before: "Measured") -> Trained:
    """Trains in its own process, unless this was done before, and measures."""
    # Runs are concurrent, so each logs to its own file.
    log = os.open(each.folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore", FutureWarning)
    import torch
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    finished = _finished_file(each)
    if not (finished.is_file() and (each.folder / "adapter_config.json").is_file()):
        command, history = _train(subject, each, output_dir)
        write_text(finished, json.dumps({"command": command, "history": history}))
    training = json.loads(finished.read_text(encoding="utf-8"))
    transformers_logging.disable_progress_bar()
    measured = _measure(subject, output_dir, each.folder, before)
    _write_results(subject, each.name, each.folder, measured.results, before.results)
    return Trained(training["command"], training["history"], measured)


def _train(subject: Subject, each: Run, output_dir: Path) -> tuple[str, list[dict[str, Any]]]:
    from . import consistency, on_policy_consistency

    flags = ["--config", str(recipes_dir() / f"{each.recipe}.yaml"), "--output_dir", str(each.folder)]
    flags += [] if each.seed is None else ["--seed", str(each.seed)]
    on_policy = Path(each.recipe).name.startswith("opct")
    command = f"trl-consistency {'on-policy-consistency' if on_policy else 'consistency'} {' '.join(flags)}"
    if subject.shares_targets and not on_policy:
        flags += ["--target_cache_dir", str(output_dir / UNFINISHED / TARGETS)]
    if any(each.folder.glob("checkpoint-*")):
        flags += ["--resume_from_checkpoint", "true"]
    trainer: Any = on_policy_consistency.run(flags) if on_policy else consistency.run(flags)
    return command, trainer.state.log_history


def _measure(subject: Subject, output_dir: Path, folder: Path | str, before: "Measured | None" = None) -> "Measured":
    """Measures the model before training, or an adapter. Answers are kept, and not generated twice."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ..evaluation import AnswerOptions, evaluate
    from ..evaluation.side_effects import measure_side_effects
    from ..generation.model_identity import answer_cache
    from ..smollm2.rows import read_data
    from .quickstart_report import Measured

    loader = AutoModelForCausalLM if before is None else AutoPeftModelForCausalLM
    model, tokenizer = loader.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    cache = answer_cache(output_dir / UNFINISHED / ANSWERS, str(folder), model)
    options = AnswerOptions(MAX_NEW_TOKENS, BATCH_SIZE)
    found = evaluate(model, tokenizer, subject.load_sets(), options, before and before.results, cache=cache)
    if not subject.everyday_tokens:
        return Measured(found)
    prompts = [[{"role": "user", "content": row["prompt"]}] for row in read_data("everyday")]
    texts = [row["text"] for row in read_data("plain_text")]
    options = AnswerOptions(subject.everyday_tokens, BATCH_SIZE)
    base = before and before.side_effects
    return Measured(found, measure_side_effects(model, tokenizer, prompts, texts, base, options, cache))


def _write_results(subject: Subject, name: str, folder: Path, found: "Results", before: "Results") -> None:
    """Writes results, with pictures, into an adapter's folder and card."""
    from ..evaluation import plot_outcomes, plot_rates
    from ..publishing import add_results, write_results
    from .adapter_results import make_page_outcomes, make_page_results

    both = {"before": before, name: found}
    plot_outcomes({of: results.outcomes() for of, results in both.items()}, folder / "outcomes.png")
    rates = {of: subject.shown(results.rates()) for of, results in both.items()}
    plot_rates(rates, folder / "rates.png", labels=subject.labels)
    write_results(
        folder,
        make_page_results(found, before, subject.labels),
        subject.results_introduction,
        make_page_outcomes(found, before),
        found.findings(before),
    )
    add_results(folder)

"""Measures one cell on everything that the plan names, part by part: a killed measurement goes on after its last part."""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.reproduce.cells import ROOT, digest, letters_of
from tests.reproduce.plan import Job, Plan
from tests.reproduce.sets import VERDICT, Loaded, load, number_sources
from trl_consistency.data.rendering import render_prompt
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation import AnswerOptions, evaluate, grade_answers, measure_distances
from trl_consistency.evaluation.answers.generate import generate_ids
from trl_consistency.evaluation.answers.preferences import prefer_answers
from trl_consistency.evaluation.capability import check_harness, measure_capability
from trl_consistency.evaluation.capability_data import CapabilityData, read_capability
from trl_consistency.evaluation.pair_set import PairSet
from trl_consistency.evaluation.side_effects import measure_side_effects
from trl_consistency.files import write_text
from trl_consistency.generation.answer_cache import AnswerCache
from trl_consistency.generation.model_identity import answer_cache, identity_digest, model_identity
from trl_consistency.models.embedded_models import resolve_model
from trl_consistency.smollm2.rows import read_data


SIDES = ("clean", "perturbed")
LIBRARIES = ("trl-consistency", "torch", "transformers", "trl", "peft")


class Models(NamedTuple):
    """The model of a cell and the base model, each with its cache of answers."""

    model: Any
    base: Any
    tokenizer: Any
    cache: AnswerCache
    base_cache: AnswerCache
    identity: str


def measure_cell(plan: Plan, job: Job, work: Path, data_dir: Path, adapter: Path | None = None) -> dict[str, Any]:
    """
    Measures the base model, or an adapter of it, and returns what its file holds beside the training.

    Args:
        plan (`Plan`):
            What is measured.
        job (`Job`):
            The cell.
        work (`Path`):
            Folder for answers and finished parts.
        data_dir (`Path`):
            Folder of the data that are not part of the package.
        adapter (`Path`, *optional*):
            The folder of the adapter.

    Returns:
        `dict[str, Any]`: The outcome of every row, by set, the other figures, and the `replies`, which get their own file.
    """
    loaded, left_out = load(plan, data_dir)
    models, system = _load_models(plan, work, adapter), job.cell.system
    sizes = [plan.tokens, plan.reply_tokens, plan.batch_size, plan.long_batch_size]
    parts = _Parts(work / "measured" / job.name, [models.identity, system, sizes, code_digest()])
    numbers, sets = number_sources(loaded), {}

    in_words = [of_set for of_set in loaded if of_set.plan.reading == "words"]
    replies = parts.get("words", [of.digest for of in in_words], lambda: _words(plan, models, in_words, system))
    found = {of.plan.name: read_words(of, replies[of.plan.name]) for of in in_words}
    for of_set in loaded:
        name, reading = of_set.plan.name, of_set.plan.reading
        if reading == "letters":
            found[name] = parts.get(name, of_set.digest, lambda of=of_set: _letters(plan, models, of, system))
        elif reading == "preference":
            found[name] = parts.get(name, of_set.digest, lambda of=of_set: _preference(plan, models, of, system))
        about = {"reading": reading, "digest": of_set.digest, "sources": numbers[name]}
        sets[name] = about | found[name]

    hundred = next(of for of in loaded if of.plan.source == "hundred" and not of.plan.perturbations)
    distance = parts.get("distance", hundred.digest_of_prompts, lambda: _distance(plan, models, hundred, system))
    capability = {}
    if system:
        left_out.append("capability: the model is the one before training, and the system message is not part of it")
    else:
        for name, data in _read_capability(plan, data_dir, left_out).items():
            key = data.sets[name].digest
            capability[name] = parts.get(f"capability-{name}", key, lambda of=data: _capability(plan, models, of))
    return {
        "device": "cpu" if plan.device == "cpu" else torch.cuda.get_device_name(),
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
        "code": code_digest(),
        "left_out": left_out,
        "sets": sets,
        "side_effects": parts.get("side_effects", "", lambda: _side_effects(plan, models, system)),
        "distance": {"digest": hundred.digest_of_prompts, "sources": numbers[hundred.plan.name], **distance},
        "capability": capability,
        "measuring": parts.seconds,
        "replies": replies,
    }


def read_again_sets(
    plan: Plan,
    job: Job,
    work: Path,
    data_dir: Path,
    sets: dict[str, dict[str, Any]],
    replies: dict[str, Any],
    adapter: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """
    Returns the sets of a finished cell by the rules and keys as they are now. Its replies in words are read again. What is
    measured by log-probabilities is measured again if its rows have changed, and only that needs the model.
    """
    system, found = job.cell.system, {}
    models = cache(lambda: _load_models(plan, work, adapter))
    for of_set in load(plan, data_dir)[0]:
        name, reading = of_set.plan.name, of_set.plan.reading
        if name not in sets:
            continue
        if reading == "words":
            if replies[name]["prompts"] != of_set.digest_of_prompts:
                raise ConsistencyError(
                    f"{job.title}: the prompts of {name} have changed. Delete the cell, and make it again."
                )
            found[name] = read_words(of_set, replies[name])
        elif of_set.digest == sets[name]["digest"]:
            continue
        else:
            found[name] = (_letters if reading == "letters" else _preference)(plan, models(), of_set, system)
        found[name]["digest"] = of_set.digest
    return {name: of_set | found.get(name, {}) for name, of_set in sets.items()}


class _Parts:
    """Parts of a measurement that are kept in a folder until the model, the rows or the code change."""

    def __init__(self, folder: Path, key: list[Any]):
        self.folder, self.key = folder, key
        self.seconds: dict[str, dict[str, float]] = {}

    def get(self, name: str, rows: Any, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns a part, which is measured if it is not there."""
        file, key = self.folder / f"{name.replace('/', '-')}.json", digest([*self.key, rows])
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        if kept.get("key") != key:
            start, cpu = time.monotonic(), time.process_time()
            part = measure()
            seconds = {
                "seconds": round(time.monotonic() - start, 1),
                "cpu_seconds": round(time.process_time() - cpu, 1),
            }
            kept = {"key": key, "part": part, "seconds": seconds}
            write_text(file, json.dumps(kept))
        self.seconds[name] = kept["seconds"]
        return dict(kept["part"])


def _load_models(plan: Plan, work: Path, adapter: Path | None) -> Models:
    folder = resolve_model(plan.model)
    tokenizer, base = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    base_cache = answer_cache(work / "answers", plan.model, base)
    model, cache = base, base_cache
    if adapter is not None:
        # Onto the base in float32, whatever it was trained on: all cells differ from the base by their adapter alone.
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), adapter)
        cache = answer_cache(work / "answers", plan.model, model)
    identity = identity_digest(model_identity(model, plan.model, as_loaded=True))
    if adapter is not None:
        model = model.merge_and_unload()  # the same but for rounding, and a tenth faster
    model, base = (of.to(plan.device).eval() for of in (model, base))
    return Models(model, base, tokenizer, cache, base_cache, identity)


def _with_system(pairs: PairSet, system: str) -> PairSet:
    """Returns pairs with a system message in front of both prompts, or as they are."""
    return pairs.with_system_prompt(system) if system else pairs


def _words(plan: Plan, models: Models, loaded: Sequence[Loaded], system: str) -> dict[str, Any]:
    """Lets the model answer all sets in its own words; a clean prompt that several sets have is answered once."""
    sets = {of.plan.name: _with_system(of.pairs, system) for of in loaded}
    options = AnswerOptions(plan.tokens, plan.batch_size)
    results = evaluate(models.model, models.tokenizer, sets, options, cache=models.cache)
    return {
        of.plan.name: {
            "prompts": of.digest_of_prompts,
            **{side: [answer.said for answer in results.sets[of.plan.name].answers[side]] for side in SIDES},
        }
        for of in loaded
    }


def read_words(of_set: Loaded, replies: dict[str, Any]) -> dict[str, Any]:
    """Returns the outcome of each reply of a set in words, on each side."""
    rows, candidates = of_set.pairs.rows, of_set.pairs.candidates
    return {side: letters_of(grade_answers(rows, replies[side], candidates)) for side in SIDES}


def _letters(plan: Plan, models: Models, of_set: Loaded, system: str) -> dict[str, Any]:
    options = AnswerOptions(plan.tokens, plan.long_batch_size, multiple_choice="logprob")
    pairs = _with_system(of_set.pairs, system)
    results = evaluate(models.model, models.tokenizer, pairs, options, cache=models.cache, desc=of_set.plan.name)
    return {side: letters_of(results.sets[""].grades[side]) for side in SIDES}


def _preference(plan: Plan, models: Models, of_set: Loaded, system: str) -> dict[str, Any]:
    judged = {"answer_prefix": VERDICT} if of_set.plan.source == "feedback" else {}
    options = AnswerOptions(plan.tokens, plan.batch_size, free_answers="logprob", **judged)
    rows = _with_system(of_set.pairs, system).rendered(models.tokenizer).rows
    found = prefer_answers(models.model, models.tokenizer, rows, of_set.contrasts, options, of_set.plan.name)
    return {f"{side}_margins": [round(of.margin, 3) for of in found[side] if of] for side in SIDES}


def _side_effects(plan: Plan, models: Models, system: str) -> dict[str, Any]:
    message = [{"role": "system", "content": system}] if system else []
    prompts = [[{"role": "user", "content": row["prompt"]}] for row in read_data("everyday")]
    texts = [row["text"] for row in read_data("plain_text")]
    options = AnswerOptions(plan.reply_tokens, plan.batch_size)
    of_base = measure_side_effects(models.base, models.tokenizer, prompts, texts, None, options, models.base_cache)
    if models.model is models.base and not system:
        return of_base.to_dict()
    prompts = [[*message, *prompt] for prompt in prompts]
    found = measure_side_effects(models.model, models.tokenizer, prompts, texts, of_base, options, models.cache)
    return found.to_dict()


def _distance(plan: Plan, models: Models, of_set: Loaded, system: str) -> dict[str, Any]:
    """Compares the model on the perturbed prompts with the base on the clean ones; only the model gets the message."""
    options = AnswerOptions(plan.tokens, plan.batch_size)
    clean = [render_prompt(models.tokenizer, row["clean_prompt"]) for row in of_set.pairs.rows]
    perturbed = _with_system(of_set.pairs, system).rendered(models.tokenizer).rows
    distinct = [list(ids) for ids in dict.fromkeys(map(tuple, clean))]
    answers = generate_ids(models.base, models.tokenizer, distinct, options, models.base_cache, desc="Base's answers")
    by_prompt = dict(zip(map(tuple, distinct), answers, strict=True))
    rows = [
        {"clean_ids": ids, "perturbed_ids": row["perturbed_ids"]} for ids, row in zip(clean, perturbed, strict=True)
    ]
    of_rows = [by_prompt[tuple(ids)] for ids in clean]
    found = measure_distances(models.model, models.base, rows, of_rows, progress=lambda of: tqdm(of, desc="Distances"))
    columns = {name: [getattr(of, name) for of in found] for name in found[0]._fields}
    return {name: [_rounded(value) for value in values] for name, values in columns.items()}


def _rounded(value: float | None) -> float | int | None:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _read_capability(plan: Plan, data_dir: Path, left_out: list[str]) -> dict[str, CapabilityData]:
    """Returns the items of each file of the plan; says in `left_out` which cannot be measured."""
    if not data_dir.is_dir():
        left_out.append("capability: there is no data folder")
        return {}
    data, found = read_capability(data_dir), {}
    for name, items in plan.capability.items():
        if name not in data.sets:
            left_out.append(f"capability, {name}: there is no such file in the data folder")
            continue
        of_file = replace(data, sets={name: data.sets[name].sample(items, 0)})
        try:
            check_harness(of_file)
        except ConsistencyError as error:
            left_out.append(f"capability, {name}: {error}")
        else:
            found[name] = of_file
    return found


def _capability(plan: Plan, models: Models, data: CapabilityData) -> dict[str, Any]:
    (result,) = measure_capability(
        models.model, models.tokenizer, data, batch_size=plan.batch_size, progress=True, cache=models.cache
    ).values()
    figures: dict[str, Any] = {"metric": result.metric, "digest": result.digest, "value": _rounded(result.value)}
    if result.metric == "nats_per_token":
        weights = [int(weight) for weight in result.weights]
        return figures | {"values": [_rounded(value) for value in result.values], "weights": weights}
    unread = set(result.unread)
    letters = zip(result.rows, result.values, strict=True)
    return figures | {"values": "".join("u" if row in unread else str(int(value)) for row, value in letters)}


@cache
def code_digest() -> str:
    """Returns a digest of the code and data that decide what is measured."""
    found = hashlib.blake2b(digest_size=10)
    package, own = ROOT / "trl_consistency", Path(__file__).parent
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".jsonl", ".yaml")]
    for path in sorted([*files, *(own / f"{name}.py" for name in ("cells", "measure", "sets"))]):
        found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()

"""Results for a model's page: `consistency_results.json` in its folder, described in docs/publishing.md."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from ..errors import ConsistencyError, one_line
from ..evaluation.capability import LABELS as CAPABILITY
from ..evaluation.rates.intervals import outcomes_text
from ..files import write_text
from ..generation.model_identity import OF_ADAPTERS, OF_NO_EFFECT, digest_of, files_identity
from ..pages import render, row_table
from .figures import Outcomes, Result, check_keys, read_outcomes, read_result


RESULTS_FILE = "consistency_results.json"
"""The file of results in a model's folder."""
# Incremented when a figure's meaning changes. Before 2, rates left out unread answers. Better rules for reading answers, and
# further names of them, leave it as it is: a rate is still the same share of the same rows, only read with fewer mistakes.
RESULTS_FORMAT = 2
EVAL_RESULTS = ".eval_results/trl-consistency.yaml"
"""The file on a model's page with its results on benchmarks of the Hub, which leaderboards read."""
# Those that `evaluate --save_to_adapters true` draws beside the file. Without the file, they may be of another model.
PICTURES = ("outcomes.png", "rates.png")
NO_RESULTS = "Nothing was measured."
# What marks our entries in a card's `model-index`, and the data's names. Entries of one type and split are put together under one name.
PAIRS = "consistency-pairs", "Pairs of clean and perturbed prompts"
QUESTIONS = "consistency-capability", "Questions, texts and safe prompts"
BENCHMARKS = "consistency-benchmark"  # named by their data set and task
DATASET_TYPES = (PAIRS[0], QUESTIONS[0], BENCHMARKS)


def write_results(
    folder: str | Path,
    results: Sequence[Result],
    description: str | None = None,
    outcomes: Sequence[Outcomes] = (),
    findings: Sequence[str] = (),
    weights: str | None = None,
) -> Path:
    """
    Writes a model's results into its folder, for its page.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            Folder of the model.
        results (`Sequence[Result]`):
            The results.
        description (`str`, *optional*):
            Text above the results: how they were measured, and on what.
        outcomes (`Sequence[Outcomes]`, *optional*, defaults to `()`):
            Counts of answers by outcome, for a table above the rates.
        findings (`Sequence[str]`, *optional*, defaults to `()`):
            What a reader must know first, such as that right answers were lost.
        weights (`str`, *optional*):
            The digest of the measured model, from [`model_digest`]. By default, the digest of the model in the folder.

    Returns:
        [`~pathlib.Path`]: The file.

    Raises:
        [`ConsistencyError`]: If figures are impossible, such as more hits than answers.
    """
    path = Path(folder) / RESULTS_FILE
    content = {
        "format": RESULTS_FORMAT,
        "description": description,
        "findings": findings if isinstance(findings, str) else list(findings),
        "outcomes": [_without_none(asdict(of_name)) for of_name in outcomes],
        "results": [_without_none(asdict(result)) for result in results],
        "weights": weights or model_digest(folder),
    }
    try:
        text = json.dumps(_without_none(content), indent=2)
    except (TypeError, ValueError) as error:
        raise ConsistencyError(f"{path} cannot be written: {one_line(error)}. Give plain numbers and text.") from None
    _read_content(text, path)
    _warn_of_pictures(Path(folder))
    write_text(path, text + "\n")
    return path


def _warn_of_pictures(folder: Path) -> None:
    """Warns of pictures that were drawn for the results that are about to be replaced."""
    earlier = [(folder / name).stat().st_mtime_ns for name in (RESULTS_FILE, "README.md") if (folder / name).is_file()]
    if not (folder / RESULTS_FILE).is_file():
        return
    if old := [
        name for name in PICTURES if (folder / name).is_file() and (folder / name).stat().st_mtime_ns <= max(earlier)
    ]:
        warnings.warn(
            f"{folder}: {' and '.join(old)} may show the earlier results, and the card shows what is there. Draw them again, or "
            "remove them."
        )


class Page(NamedTuple):
    """Content of the file that [`write_results`] writes."""

    results: list[Result]
    description: str | None = None
    outcomes: list[Outcomes] = []
    findings: list[str] = []
    weights: str | None = None


def model_digest(folder: str | Path) -> str | None:
    """
    Returns the digest of what decides the answers of the model in a folder: weights, config or adapter's options, template,
    tokenizer and generation config. None without weights. An adapter's base model is left out: its name changes when
    it is published.
    """
    digests = _digests(folder)
    return digests[0] if digests else None


def _digests(folder: str | Path) -> list[str]:
    """Returns the digest of the model in a folder, and what earlier versions took for it, which says less."""
    identity: dict[str, Any] = {**files_identity(folder)}
    adapter, config = (Path(folder) / name for name in ("adapter_config.json", "config.json"))
    if "weights" not in identity:
        return []
    if adapter.is_file():
        identity["adapter"] = _options(adapter, OF_ADAPTERS)
    of_config = {"config": _options(config, OF_NO_EFFECT)} if config.is_file() and not adapter.is_file() else {}
    return [digest_of(identity | of_config), digest_of(identity), identity["weights"]]


def _options(config: Path, but: Sequence[str]) -> dict[str, Any]:
    try:
        return {key: of for key, of in json.loads(config.read_text(encoding="utf-8")).items() if key not in but}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConsistencyError(f"{config} does not hold a JSON object: {one_line(error)}") from None


def read_results(folder: str | Path) -> Page:
    """
    Reads the results in a model's folder. A missing file means no results.

    Raises:
        [`ConsistencyError`]: If the file is not valid, has an earlier format, or is of other weights.
    """
    path = Path(folder) / RESULTS_FILE
    if not path.exists():
        return Page([])
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConsistencyError(f"{path} cannot be read ({one_line(error)}). Write it with `write_results`.") from None
    page = _read_content(text, path)
    if page.weights and (digests := _digests(folder)) and page.weights not in digests:
        raise ConsistencyError(
            f"{path} is of another model than the folder now holds: its weights, its config, its adapter's options, its template "
            "or its tokenizer have changed since. Measure again with `trl-consistency evaluate --save_to_adapters true`, or remove "
            "that file; its figures are then removed from the card."
        )
    return page


def _read_content(text: str, path: Path) -> Page:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConsistencyError(f"{path} is not JSON ({error}). Write it with `write_results`.") from None
    if not isinstance(content, dict) or not isinstance(content.get("results"), list):
        raise ConsistencyError(f"{path} must hold an object with a list of `results`.")
    check_keys(content, {"format", "description", "findings", "outcomes", "results", "weights"}, str(path))
    if content.get("format") != RESULTS_FORMAT:
        raise ConsistencyError(
            f"{path} has the format {content.get('format', 1)}, not {RESULTS_FORMAT}: its rates may leave out the answers that "
            "could not be read. Measure again with `trl-consistency evaluate --save_to_adapters true`, or write it with "
            "`write_results`."
        )
    results = [read_result(entry, f"{path}, result {number}") for number, entry in enumerate(content["results"])]
    given = content.get("outcomes", [])
    if not isinstance(given, list):
        raise ConsistencyError(f"{path}: `outcomes` must be a list, got {given!r}.")
    outcomes = [read_outcomes(entry, f"{path}, outcomes {number}") for number, entry in enumerate(given)]
    findings = content.get("findings", [])
    if not isinstance(findings, list) or not all(isinstance(finding, str) for finding in findings):
        raise ConsistencyError(f"{path}: `findings` must be a list of sentences.")
    named = Counter((result.metric, result.split, result.name) for result in results)
    named += Counter((of_name.name, None, None) for of_name in outcomes)
    if twice := [key for key, count in named.items() if count > 1]:
        raise ConsistencyError(f"{path}: `{twice[0][0]}` is given twice for the same split and name.")
    for key in ("description", "weights"):
        if not isinstance(content.get(key), str | None):
            raise ConsistencyError(f"{path}: `{key}` must be text, got {content[key]!r}.")
    return Page(results, content.get("description"), outcomes, findings, content.get("weights"))


def results_section(page: Page, plots: Sequence[Path]) -> str:
    """Returns the results as Markdown for a card, beside the base model's if known."""

    def table(rows: Sequence[tuple[str, str, str]], is_text: bool) -> str:
        compared = any(before for _, before, _ in rows)
        header = ["", *(["before"] if compared else []), "after"]
        shown = ((name, [*([before or "-"] if compared else []), after]) for name, before, after in rows)
        return row_table(header, shown, aligned=False, is_text=is_text) if rows else ""

    outcomes = [(of.name, outcomes_text(of.before or {}), outcomes_text(of.after)) for of in page.outcomes]
    results = [(of.title, str(of.before or ""), str(of)) for of in page.results]
    # A heading of the level of the section's would end it, and what stands below it would stay when results are replaced.
    described = re.sub(r"^##? ", "### ", page.description, flags=re.MULTILINE) if page.description else None
    return render(
        "results.md",
        page=page._replace(description=described),
        plots=plots,
        tables=[table(outcomes, True), table(results, False) or NO_RESULTS],
    )


def model_index(results: Sequence[Result]) -> list[EvalResult]:
    """Returns the results as entries of a card's `model-index`."""
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=kind,
            dataset_name=f"{name}{f' ({result.split})' if result.split else ''}",
            dataset_config=name if kind == BENCHMARKS else None,  # otherwise, two benchmarks would be put together
            dataset_split=result.split,
            metric_type=result.metric,
            metric_name=result.title,
            metric_value=result.value,
            metric_args=_without_none(
                {
                    "interval": list(result.interval) if result.interval else None,
                    "hits": result.hits,
                    "total": result.total,
                    "unread": result.unread,
                    "of_read": result.of_read,
                }
            ),
        )
        for result, (kind, name) in zip(results, map(_measured_on, results), strict=True)
        if result.value is not None
    ]


def _measured_on(result: Result) -> tuple[str, str]:
    """Returns the type and the name of the data that a result was measured on."""
    if result.benchmark is not None:
        return BENCHMARKS, f"{result.benchmark.dataset}, {result.benchmark.task}"
    return QUESTIONS if result.metric in CAPABILITY else PAIRS


def benchmark_results(results: Sequence[Result], repo_id: str) -> bytes | None:
    """Returns what the Hub reads of results on its benchmarks, as YAML, or None without such results."""
    entries = [
        EvalResultEntry(
            dataset_id=result.benchmark.dataset,
            task_id=result.benchmark.task,
            dataset_revision=result.benchmark.revision,
            value=result.value,
            source_url=f"https://huggingface.co/{repo_id}",
            source_name="Model card",
            notes=result.title,
        )
        for result in results
        if result.benchmark is not None and result.value is not None
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False).encode() if entries else None


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    # A null `value` stays: nothing was measured.
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in entry.items()
        if value is not None or key == "value"
    }

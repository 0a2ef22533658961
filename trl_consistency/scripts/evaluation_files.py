"""What `trl-consistency evaluate` leaves behind: results, answers, a report, and results in the adapters' folders."""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import ConsistencyError, one_line
from ..evaluation.answering import Answer
from ..evaluation.estimates import Estimate
from ..evaluation.grading import Grade, kind_of, last_text
from ..evaluation.measures import METRICS, compare, make_samples, measure
from ..evaluation.models import BASE
from ..evaluation.plots import plot_results, plot_tradeoff, plot_training, tradeoff_axes
from ..evaluation.report import aligned_table
from ..evaluation.report_page import Picture, Report, Table
from ..evaluation.suite_scores import SuiteScore, compare_suites, suite_cells
from ..publishing import Figure, Result, add_results, write_results
from ..publishing.results import RESULTS_FILE
from .pair_sets import PairSet


ANSWERS_FILE = "answers"
MISSING = ("unparsed", "abstained", "unjudged")

# Rows whose answers the report shows, so many of a kind: questions, harmful and benign requests, others.
EXAMPLES_OF_A_KIND = 3
MOST_CHARACTERS = 600

# By model and set, what was said to the clean and to the perturbed prompts, and what was made of it.
Answers = Mapping[str, Mapping[str, tuple[list[Answer], ...]]]
Grades = Mapping[str, Mapping[str, tuple[list[Grade], ...]]]
Scores = Mapping[str, Sequence[SuiteScore]]


def make_results(
    settings: Mapping[str, Any],
    sets: Mapping[str, PairSet],
    models: Mapping[str, str],
    graded: Grades,
    scores: Scores,
) -> dict[str, Any]:
    """The object that `--json` prints."""
    samples = {
        model: {name: make_samples(sets[name].rows, *sides) for name, sides in of_model.items()}
        for model, of_model in graded.items()
    }

    def as_dicts(found: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
        """By metric and set, as other tables name them: `sycophancy/test`."""
        names = [(metric, name) for metric in METRICS for name in found if metric in found[name]]
        return {f"{metric}/{name}": found[name][metric].to_dict() for metric, name in names}

    results: dict[str, Any] = {
        "pairs": {name: {"rows": len(of_set.rows)} for name, of_set in sets.items()},
        "models": {},
        "settings": dict(settings),
    }
    for model, path in models.items():
        found = results["models"][model] = {
            "path": path,
            "rates": as_dicts({name: measure(samples[model][name]) for name in sets}),
        }
        if model != BASE:
            differences = {name: compare(samples[BASE][name], samples[model][name]) for name in sets}
            found["differences"] = as_dicts(differences)
    for model, part in suite_results(scores).items():
        results["models"][model] |= part
    return results


def suite_results(scores: Scores) -> dict[str, dict[str, Any]]:
    """Each model's figures of standard suites, and their differences from the base model's."""
    found: dict[str, dict[str, Any]] = {}
    for model, of_model in scores.items():
        found[model] = {"suites": [score.to_dict() for score in of_model]}
        if model != BASE:
            found[model]["suite_differences"] = [score.to_dict() for score in compare_suites(scores[BASE], of_model)]
    return found


def write_report(
    folder: Path,
    results: Mapping[str, Any],
    sets: Mapping[str, PairSet],
    answers: Answers,
    scores: Scores,
    histories: Mapping[str, Sequence[Mapping[str, float]]],
    seed: int,
) -> list[Path]:
    """Writes `report.html` and `report.md` with their pictures."""
    rates, labels = _shares(results["models"])
    pictures = []
    if any(rates.values()):
        bars = plot_results(rates, folder / "results.png", labels=labels)
        pictures.append(Picture(bars, "The shares as bars", "Failures on the left, abilities on the right."))
    if tradeoff_axes([metric for of_model in rates.values() for metric in of_model]):
        text = "What training cured, and what that cost: the best corner is the upper right one."
        path = plot_tradeoff(rates, folder / "tradeoff.png", labels)
        pictures.append(Picture(path, "Safety against capability", text))
    if any(histories.values()):
        text = "What the runs logged while they trained."
        pictures.append(Picture(plot_training(histories, folder / "training.png"), "During training", text))
    rows = {name: len(of_set.rows) for name, of_set in sets.items()}
    counts = ", ".join(f"{name} ({count:,})" for name, count in rows.items())
    report = Report(
        "Before and after consistency training",
        f"All models answered the same pairs: {counts}.",
        list(results["models"]),
        results_tables(results, scores),
        pictures,
        _examples(sets, answers, seed),
        "To the perturbed prompts of rows drawn at random; long texts are cut.",
        [f"{name}: {_shown(model['path'])}" for name, model in results["models"].items()]
        + [f"{name}: {value}" for name, value in results["settings"].items() if not isinstance(value, dict)]
        + [
            "Questions are read by the first of the possible answers that a reply names (letters of choices: by the one that it "
            "chooses), refusals by how a reply opens, unless a judge read them: rules of thumb.",
        ],
    )
    return report.write(folder)


def results_tables(results: Mapping[str, Any], scores: Scores) -> list[Table]:
    """The rates of each model, and how far the adapters' are from the base model's; the same of suites."""

    def table(heading: str, text: str, part: str, unit: str) -> Table:
        models = {name: model[part] for name, model in results["models"].items() if part in model}
        cells = {}
        for key in next(iter(models.values())):
            metric, _, of_set = key.partition("/")
            cells[f"{METRICS[metric].label}, {of_set}"] = [
                str(Estimate.from_dict(of_model[key])).replace("%", unit, 1) for of_model in models.values()
            ]
        return Table(heading, text, cells, list(models))

    several = len(results["models"]) > 1
    text = (
        "Each with its 95% interval and counts. Answers that could not be read (unparsed), on which the judge abstained, or of "
        "which it gave no verdict (unjudged) are in neither count. Where all answers are alike, nothing shows how those of one "
        "source correlate, and each source counts as one answer: the interval is then wide."
    )
    tables = [table("Rates", text, "rates", "%")]
    if several:
        text = "In percentage points, on the answers that could be read of both models, with paired intervals."
        tables.append(table("Differences from the base model", text, "differences", "pp"))
    if scores:
        tables.append(Table("Standard suites", "Each as its library gives it.", suite_cells(scores), list(scores)))
    if scores and several:
        others = {name: compare_suites(scores[BASE], of) for name, of in scores.items() if name != BASE}
        text = "On the same samples."
        tables.append(Table("Suites, differences from the base model", text, suite_cells(others), list(others)))
    return tables


def results_text(tables: Sequence[Table]) -> str:
    """The tables, for a terminal."""
    return "".join(
        f"\n{table.heading}. {table.text}\n\n{aligned_table(table.models or (), table.cells)}" for table in tables
    )


def unjudged_text(results: Mapping[str, Any]) -> str | None:
    """A warning about rates of which no answer could be judged; None if there are none."""
    found = [
        f"{key} of {name} ({', '.join(f'{rate[why]} {why}' for why in MISSING if rate[why])})"
        for name, model in results["models"].items()
        for key, rate in model["rates"].items()
        if not rate["total"]
    ]
    if not found:
        return None
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"warning: no answer could be judged for {', '.join(found[:3])}{more}. {ANSWERS_FILE} has what was said."


def read_history(path: str) -> list[dict[str, float]]:
    """What the run that left a model in a folder logged, if it is known: its last checkpoint says."""
    folder = Path(path)
    checkpoints = [of for of in folder.glob("checkpoint-*") if of.name.removeprefix("checkpoint-").isdecimal()]
    checkpoints.sort(key=lambda of: int(of.name.removeprefix("checkpoint-")))
    for place in [folder, *reversed(checkpoints)]:
        try:
            return list(json.loads((place / "trainer_state.json").read_text(encoding="utf-8"))["log_history"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return []


def _shares(models: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Estimate]], dict[str, str]]:
    """The rates that are shares, and what they are called: for pictures, which have no room for differences."""
    rates: dict[str, dict[str, Estimate]] = {}
    labels = {}
    for name, model in models.items():
        rates[name] = {}
        for key, figures in model["rates"].items():
            metric, _, of_set = key.partition("/")
            if not METRICS[metric].is_aligned and not METRICS[metric].is_score:
                rates[name][key] = Estimate.from_dict(figures)
                labels[key] = f"{METRICS[metric].label}, {of_set}"
    return rates, labels


def _examples(sets: Mapping[str, PairSet], answers: Answers, seed: int) -> list[tuple[str, dict[str, str]]]:
    by_kind: dict[str, list[tuple[str, int]]] = {}
    for name, of_set in sets.items():
        for index, row in enumerate(of_set.rows):
            by_kind.setdefault(kind_of(row), []).append((name, index))
    examples = []
    for places in by_kind.values():
        for name, index in random.Random(seed).sample(places, min(EXAMPLES_OF_A_KIND, len(places))):
            prompt = last_text(sets[name].rows[index]["perturbed_prompt"])
            said = {model: _shorten(of_model[name][1][index].text) for model, of_model in answers.items()}
            examples.append((_shorten(prompt), said))
    return examples


def _shorten(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} […] {text[-half:]}"


def save_to_adapters(results: Mapping[str, Any]) -> None:
    """Writes each adapter's rates beside the base model's into its folder, with a plot of both, and into its card."""

    def figures(rate: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "value": rate["value"],
            "interval": (rate["low"], rate["high"]),
            "hits": rate["hits"],
            "total": rate["total"],
            "unparsed": rate["unparsed"] + rate["abstained"] + rate["unjudged"],
        }

    base = results["models"][BASE]
    for name, model in results["models"].items():
        if "differences" not in model:
            continue
        folder = Path(model["path"])
        of_page = []
        for key, rate in model["rates"].items():
            metric, _, of_set = key.partition("/")
            before = Figure(**figures(base["rates"][key]))
            label = f"{METRICS[metric].label}, {of_set}"
            of_page.append(Result(metric=metric, split=of_set, name=label, before=before, **figures(rate)))
        had = (folder / RESULTS_FILE).exists()
        path = write_results(folder, of_page, _description(results))
        rates, labels = _shares({"before": base, name: model})
        plot_results(rates, folder / "results.png", labels=labels)
        if (folder / "README.md").exists():
            add_results(folder)
        print(f"{path}: {'results replaced' if had else 'results written'}.", file=sys.stderr)


def _description(results: Mapping[str, Any]) -> str:
    """How the figures of a page came about."""
    settings = results["settings"]
    counts = ", ".join(f"{name} ({of_set['rows']:,} rows)" for name, of_set in results["pairs"].items())
    decoding = f"sampling at temperature {settings['temperature']:g}" if settings["temperature"] else "greedy decoding"
    grader = (
        f"requests judged by {_shown(settings['judge'])}" if settings["judge"] else "refusals told by their opening"
    )
    return (
        f'Measured by `trl-consistency evaluate`; "before" is {_shown(results["models"][BASE]["path"])} without the adapter, on the same '
        f"rows of {counts}. Share of answers, with its 95% interval (rows of one source as one cluster) and counts; answers "
        f"that could not be read are in neither. At most {settings['max_completion_length']} tokens, {decoding}; {grader}."
    )


def _shown(path: str) -> str:
    """A model as others may see it: without the folders that it lies in."""
    return Path(path).name if Path(path).is_dir() else path


def write_answers(folder: Path, file_type: str, sets: Mapping[str, PairSet], answers: Answers, graded: Grades) -> None:
    """One line a row and model, with both answers, what was made of them, and what the judge wrote."""
    prepared = ("clean_ids", "perturbed_ids", "length", "render_fault")
    lines = []
    for model, of_model in answers.items():
        for name, sides in of_model.items():
            for index, row in enumerate(sets[name].rows):
                line = {"model": model, "set": name, "row": index}
                for side, of_side, grades in zip(("clean", "perturbed"), sides, graded[model][name], strict=True):
                    grade = grades[index]
                    line |= {
                        f"{side}_text": of_side[index].text,
                        f"{side}_said": grade.said,
                        f"{side}_missing": grade.missing,
                        f"{side}_grader": grade.grader,
                        f"{side}_judgement": grade.judgement,
                    }
                own = {key: value for key, value in row.items() if key not in prepared}
                lines.append({**line, **own, **line})  # in this order, and nothing of ours is replaced
    path = folder / f"{ANSWERS_FILE}.{file_type}"
    for suffix in (".jsonl", ".parquet"):  # of an earlier run
        path.with_suffix(suffix).unlink(missing_ok=True)
    if file_type == "parquet":
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

"""Files of `trl-consistency evaluate`: results, answers and a report."""

import json
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from transformers.trainer import TRAINER_STATE_NAME

from ..errors import ConsistencyError, one_line
from ..evaluation.capability import CapabilityResult
from ..evaluation.grading.asked import last_text
from ..evaluation.pair_set import PREPARED, SIDES
from ..evaluation.rates.intervals import DIGITS, FEWEST_SOURCES, Estimate, effective_sources
from ..evaluation.rates.measures import METRICS
from ..evaluation.report.page import Picture, Report, Table
from ..evaluation.report.plots import (
    plot_outcomes,
    plot_rates,
    plot_tradeoff,
    plot_training,
    tradeoff_axes,
    training_panels,
)
from ..evaluation.report.tables import (
    DIFFERENCES_TEXT,
    GRADERS_TEXT,
    MARGINS_TEXT,
    OUTCOMES_TEXT,
    RATES_TEXT,
    grader_cells,
    outcome_cells,
    outcome_places,
    rate_cells,
)
from ..evaluation.results import Results, changes_of_parts
from ..evaluation.row_kinds import kind_of
from ..evaluation.suites.scores import SuiteScore, compare_suites, suite_cells
from ..files import whole_file, write_by
from ..generation.model_identity import files_identity
from ..json_files import as_json, object_in, own_columns
from ..local_names import last_name
from ..models.loading import BASE
from ..pages import terminal_table
from ..publishing.results import PICTURES as RESULT_PICTURES
from ..smollm2.checkpoint import origin_of
from ..trainer.run.interruption import CHECKSUMS, MANIFEST, changed_file


# The format of results.json. Before 2, rates left out unread answers; before 3, answers that are none of the possible
# ones were unread.
FORMAT = 3

ANSWERS_FILE = "answers"
PICTURES = (*RESULT_PICTURES, "tradeoff.png", "training.png")
REPORTS = ("report.html", "report.md")

# Number of rows whose answers the report shows, by kind: questions, harmful and benign requests, others.
EXAMPLES_OF_A_KIND = 3
MOST_CHARACTERS = 600

JUDGEMENT_LENGTH = 512  # most tokens of a judgement, by default

Scores = Mapping[str, Sequence[SuiteScore]]
Capability = Mapping[str, Mapping[str, CapabilityResult]]  # by model and file


def make_summary(
    settings: Mapping[str, Any], models: Mapping[str, str], found: Mapping[str, Results], scores: Scores
) -> dict[str, Any]:
    """Returns the object that `--json` prints."""

    def as_dicts(figures: Mapping[str, Estimate]) -> dict[str, Any]:
        return {key: figure.to_dict() for key, figure in figures.items()}

    base = found[BASE]
    summary: dict[str, Any] = {
        "format": FORMAT,
        "pairs": {name: {"rows": len(of_set.pairs.rows)} for name, of_set in base.sets.items()},
        "models": {},
        "findings": by_model({name: results.warnings() for name, results in found.items()}),
        "settings": dict(settings),
    }
    for name, results in found.items():
        part: dict[str, Any] = {
            "path": shown_name(models[name]),
            "outcomes": results.outcomes(),
            "graders": results.graders(),
            "cut_answers": results.cut_answers(),
            "rates": as_dicts(results.rates()),
        }
        summary["models"][name] = part
        if name != BASE:
            part["differences"] = as_dicts(results.differences(base))
            part["findings"] = results.findings(base)
            summary["findings"] += [f"{name}: {text}" for text in part["findings"]]
    for name, part in suite_results(scores).items():
        summary["models"][name] |= part
    return summary


def assurances(summary: Mapping[str, Any], found: Mapping[str, Results]) -> list[str]:
    """
    Returns a sentence for each compared model that got worse in no metric, nor in a part of one, whether findings name it or not. A
    model that answers everything as the base model does gets a sentence, too.
    """
    lines = []
    for name, results in found.items():
        if name == BASE or not summary["models"][name]["differences"]:
            continue
        if _all_answers(results) == _all_answers(found[BASE]):
            lines.append(f"{name}: all answers are the base model's.")
        elif (
            not summary["models"][name]["findings"]
            and not _any_worse(results.differences(found[BASE]), _of_few_sources(results))
            and not any(
                _any_worse({of.metric: of.difference}, [of.metric] * of.of_few)
                for of in changes_of_parts(found[BASE], results)
            )
        ):
            lines.append(f"{name}: on these pairs, nothing got worse beyond its 95% interval.")
    return lines


def _any_worse(differences: Mapping[str, Estimate], of_few: Collection[str]) -> bool:
    """
    Whether a metric got worse beyond its interval, or may have, since it has none. In metrics `of_few` sources, any loss counts: the
    interval holds every change of a share. So does a loss whose interval ends at 0, where it was made to reach: few sources changed,
    which proves no gain, and is no proof that nothing was lost. Other words than before are no worse.
    """
    for key, difference in differences.items():
        name, _, _ = key.partition("/")
        low, high = difference.interval or (1.0, -1.0)
        if difference.sources < 2 or (key in of_few and difference.unit not in DIGITS):
            low = high = difference.value
        is_up_worse = METRICS[name].is_failure or METRICS[name].is_gap
        if name != "reference_agreement" and (
            low >= 0 < difference.value if is_up_worse else high <= 0 > difference.value
        ):
            return True
    return False


def _of_few_sources(results: Results) -> set[str]:
    """Returns the metrics with a sample whose sources count as so few that a change from all to none is within its interval."""
    return {
        f"{metric}/{name}" if name else metric
        for name, of_set in results.sets.items()
        for metric, of_metric in METRICS.items()
        for sample in of_metric.samples
        if sample in of_set.samples and effective_sources(of_set.samples[sample].sources) < FEWEST_SOURCES
    }


def _all_answers(results: Results) -> list[str]:
    return [answer.text for of_set in results.sets.values() for side in SIDES for answer in of_set.answers[side]]


def is_results(file: Path) -> bool:
    """Whether a file holds results that `evaluate` wrote, of any format."""
    return {"format", "models", "settings"} <= (object_in(file) or {}).keys()


def by_model(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the warnings of each model; those that all models share, such as of the pairs, once."""
    shared = [
        text for text in texts.get(BASE, ()) if len(texts) > 1 and all(text in of_name for of_name in texts.values())
    ]
    own = [f"{name}: {text}" for name, of_name in texts.items() for text in of_name if text not in shared]
    return [f"each model: {text}" for text in shared] + own


def suite_results(scores: Scores) -> dict[str, dict[str, Any]]:
    """Returns each model's suite scores, and their differences from the base model's."""
    found: dict[str, dict[str, Any]] = {}
    for model, of_model in scores.items():
        found[model] = {"suites": [score.to_dict() for score in of_model]}
        if model != BASE:
            found[model]["suite_differences"] = [score.to_dict() for score in compare_suites(scores[BASE], of_model)]
    return found


def write_report(
    folder: Path,
    summary: Mapping[str, Any],
    found: Mapping[str, Results],
    tables: Sequence[Table],
    histories: Mapping[str, Sequence[Mapping[str, float]]],
    seed: int,
) -> list[Path]:
    """Writes `report.html` and `report.md` with their pictures."""
    outcomes = {name: results.outcomes() for name, results in found.items()}
    rates = {name: results.rates() for name, results in found.items()}
    pictures = []
    if outcome_places(outcomes):
        text = "Outcomes of all answers, without and with the cue."
        pictures.append(Picture(plot_outcomes(outcomes, folder / "outcomes.png"), "All answers", text))
    if any(rates.values()):
        bars = plot_rates(rates, folder / "rates.png")
        pictures.append(Picture(bars, "The rates as bars", "Failures on the left, abilities on the right."))
    if tradeoff_axes([metric for of_model in rates.values() for metric in of_model]):
        text = "The upper right corner is best."
        if len(found) > 1:
            text = f"What training improved, and what it cost. {text}"
        path = plot_tradeoff(rates, folder / "tradeoff.png")
        pictures.append(Picture(path, "Safety against capability", text))
    if training_panels(histories):
        text = "Metrics that the runs logged during training."
        pictures.append(Picture(plot_training(histories, folder / "training.png"), "During training", text))
    counts = ", ".join(f"{name} ({of_set['rows']:,})" for name, of_set in summary["pairs"].items())
    report = Report(
        "Before and after consistency training" if len(found) > 1 else "One model's answers",
        " ".join([f"All models answered the same pairs: {counts}.", *assurances(summary, found)])
        if len(found) > 1
        else f"It answered these pairs: {counts}.",
        list(found),
        tables,
        pictures,
        _examples(found, seed),
        "Answers to the perturbed prompts of random rows. Long texts are cut.",
        [f"{name}: {model['path']}" for name, model in summary["models"].items()]
        + [f"{name}: {text}" for name, value in summary["settings"].items() if (text := _shown_setting(name, value))]
        + [
            "Unless a judge graded them, answers are read by heuristics: questions by the possible answer that a reply gives (or the "
            "letter that it chooses; a definite answer that is none of them is `other`, and one in doubt is unread), refusals by how a "
            "reply begins.",
        ],
        findings=summary["findings"],
    )
    return report.write(folder)


def _shown_setting(name: str, value: Any) -> str:
    """Returns the value of an option for a reader, or an empty text for one that was not given. An empty value is `""`."""
    if value in (None, [], {}):
        return ""
    if name == "capability":
        return _shown_capability(value)
    if name in ("suites", "packages"):
        return ", ".join(f"{key} {text}" for key, of in value.items() if (text := _shown_setting(key, of)))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _shown_capability(settings: Mapping[str, Any]) -> str:
    """Returns the items of each file that capability was measured on, how they were drawn, and the files that were left out."""
    parts = [", ".join(f"{name} ({count:,})" for name, count in settings["items"].items())]
    if settings["limit"]:
        parts.append(f"of each file at most {settings['limit']:,}, drawn with the seed")
    if settings["left_out"]:
        parts.append(f"left out, as files of pairs: {', '.join(settings['left_out'])}")
    if packages := _shown_setting("packages", settings["packages"]):
        parts.append(packages)
    return "; ".join(parts)


def results_tables(found: Mapping[str, Results], scores: Scores) -> list[Table]:
    """Returns tables of outcomes, rates and suite scores of each model, and differences from the base model."""
    outcomes = outcome_cells({name: results.outcomes() for name, results in found.items()})
    graders = grader_cells({name: results.graders() for name, results in found.items()})
    tables = [Table("Outcomes", OUTCOMES_TEXT, outcomes, list(found))] if outcomes else []
    rates = rate_cells({name: results.rates() for name, results in found.items()})
    has_margins = any(of_set.margins for results in found.values() for of_set in results.sets.values())
    tables.append(Table("Rates", RATES_TEXT + (MARGINS_TEXT if has_margins else ""), rates, list(found)))
    others = {name: results.differences(found[BASE]) for name, results in found.items() if name != BASE}
    if others:
        text = DIFFERENCES_TEXT + (" Those of margins are in nats per token." if has_margins else "")
        tables.append(Table("Differences from the base model", text, rate_cells(others), list(others)))
    if graders:
        tables.append(Table("Read by", GRADERS_TEXT, graders, list(found)))
    return tables + suite_tables(scores)


def suite_tables(scores: Scores) -> list[Table]:
    """Returns tables of each model's suite scores, and of the differences from the base model's."""
    differences = {name: compare_suites(scores[BASE], of) for name, of in scores.items() if name != BASE}
    shown = {
        "Standard suites": ("Scores as reported by each library.", scores),
        "Suites, differences from the base model": ("On the same samples.", differences),
    }
    return [Table(heading, text, suite_cells(of), list(of)) for heading, (text, of) in shown.items() if of]


def tables_text(tables: Sequence[Table]) -> str:
    """Formats tables for a terminal."""
    return "".join(
        f"\n{table.heading}. {table.text}\n\n{terminal_table(table.models or (), table.cells)}" for table in tables
    )


def read_history(path: str) -> list[dict[str, float]]:
    """
    Returns the log history of the run that trained the model in a folder, if any: the folder's own, or that of the last
    checkpoint with the same weights. Other checkpoints, and the folder's own state, may be left of an earlier run.
    """
    folder = Path(path)
    checkpoints = [of for of in folder.glob("checkpoint-*") if _is_checkpoint(of)]
    checkpoints.sort(key=lambda of: int(of.name.removeprefix("checkpoint-")), reverse=True)
    weights = files_identity(folder).get("weights")
    same = (of for of in checkpoints if weights is not None and files_identity(of).get("weights") == weights)
    for place in chain([folder], same):
        try:
            state = json.loads((place / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
            if _is_of_weights(state, place):
                return list(state["log_history"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return []


def _is_checkpoint(folder: Path) -> bool:
    return re.fullmatch(r"checkpoint-\d+", folder.name) is not None


def _is_of_weights(state: Mapping[str, Any], folder: Path) -> bool:
    """Whether a trainer's state belongs to the weights beside it: by their checksums in it, or as a checkpoint's."""
    checksums = state.get("stateful_callbacks", {}).get(MANIFEST, {}).get(CHECKSUMS, {})
    if any(name.endswith(".safetensors") for name in checksums):
        return changed_file(folder, (".safetensors",)) is None
    return _is_checkpoint(folder.resolve())


def _examples(found: Mapping[str, Results], seed: int) -> list[tuple[str, dict[str, str]]]:
    by_kind: dict[str, list[tuple[str, int]]] = {}
    sets = found[BASE].sets
    for name, of_set in sets.items():
        for index, row in enumerate(of_set.pairs.rows):
            by_kind.setdefault(kind_of(row), []).append((name, index))
    examples = []
    for places in by_kind.values():
        for name, index in random.Random(seed).sample(places, min(EXAMPLES_OF_A_KIND, len(places))):
            prompt = last_text(sets[name].pairs.rows[index]["perturbed_prompt"])
            said = {
                model: _shorten(results.sets[name].answers["perturbed"][index].text)
                for model, results in found.items()
            }
            examples.append((_shorten(prompt), said))
    return examples


def _shorten(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} […] {text[-half:]}"


def remove_earlier(folder: Path, written: Collection[str], names: Iterable[str]) -> None:
    """Removes files of an earlier run that this one did not write."""
    for name in {*names} - {*written}:
        (folder / name).unlink(missing_ok=True)


def shown_name(path: str) -> str:
    """Returns a model's name without its parent folders, or a description of an embedded model."""
    return origin_of(path) or last_name(path)


def shown_judge(judge: str | None) -> str | None:
    """Returns the name of a suite's judge; of a local model (`trl_consistency/FOLDER`) without its parent folders."""
    provider, _, name = (judge or "").partition("/")
    return f"{provider}/{shown_name(name)}" if provider == "trl_consistency" else judge


def write_answers(folder: Path, file_type: str, found: Mapping[str, Results]) -> None:
    """Writes one line per row and model, with both answers, their grades, and the judge's replies."""
    lines = []
    for model, results in found.items():
        for name, of_set in results.sets.items():
            for index, (number, row) in enumerate(zip(of_set.pairs.places, of_set.pairs.rows, strict=True)):
                line = {"model": model, "set": name, "row": number}
                for side in SIDES:
                    grade = of_set.grades[side][index]
                    line |= {
                        f"{side}_text": of_set.answers[side][index].text,
                        f"{side}_outcome": grade.outcome,
                        f"{side}_said": grade.said,
                        f"{side}_unread": grade.unread,
                        f"{side}_grader": grade.grader,
                        f"{side}_judgement": grade.judgement,
                    }
                    if of_set.preferences:
                        scores = of_set.preferences[side][index]
                        line[f"{side}_right_log_prob"] = scores and scores.right
                        line[f"{side}_suggested_log_prob"] = scores and scores.suggested
                own = {key: value for key, value in row.items() if key not in PREPARED}
                lines.append({**line, **own_columns(own, line)})
    path = folder / f"{ANSWERS_FILE}.{file_type}"
    if file_type == "parquet":
        columns = list(dict.fromkeys(column for line in lines for column in line))
        try:
            table = pyarrow.Table.from_pylist([{column: line.get(column) for column in columns} for line in lines])
            write_by(path, lambda place: pyarrow.parquet.write_table(table, place))
        except pyarrow.ArrowException as error:
            raise ConsistencyError(
                f"`file_type` parquet: the answers cannot be written so ({one_line(error)}). Use jsonl: nothing is "
                "answered again."
            ) from None
        return
    with whole_file(path) as file:
        for line in lines:
            file.write(json.dumps(as_json(line, bytes_as_text=True), ensure_ascii=False, default=str) + "\n")

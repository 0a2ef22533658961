"""The quickstart's report: tables and pictures of a model before training and after each recipe."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..evaluation import plot_outcomes, plot_rates, plot_tradeoff, plot_training
from ..evaluation.rates.measures import compare, pooled
from ..evaluation.report.page import Picture, Report, Table
from ..evaluation.report.tables import (
    DIFFERENCES_TEXT,
    RATES_TEXT,
    outcome_cells,
    rate_cells,
    spread_cells,
)
from ..evaluation.row_kinds import kind_of
from ..files import whole_files, write_text
from ..pages import terminal_table
from ..smollm2.rows import read_data
from .evaluation_files import FORMAT, write_answers
from .quickstart_subjects import Subject, title_of


if TYPE_CHECKING:
    from ..evaluation import Estimate, Results
    from ..evaluation.side_effects import SideEffects


Rates: TypeAlias = "Mapping[str, list[dict[str, Estimate]]]"  # of each seed, by the model's name


class Measured(NamedTuple):
    """What was measured of one model: answers to pairs, and replies to everyday prompts if the subject has them."""

    results: "Results"
    side_effects: "SideEffects | None" = None


def write_report(
    subject: Subject,
    found: Mapping[str, Sequence[Measured]],
    histories: Mapping[str, list[dict[str, Any]]],
    output_dir: Path,
    minutes: float,
    titles: Mapping[str, Sequence[str]],
) -> None:
    """
    Prints the tables, and writes the report. `found` are the measurements of each seed, by the recipe's label or
    `"before"`, and `titles` what each of a recipe's trainings is called.
    """
    names = list(found)
    results = {name: [measured.results for measured in of_name] for name, of_name in found.items()}
    several = max(map(len, results.values()))
    rates = {name: [subject.shown(run.rates()) for run in runs] for name, runs in results.items()}
    tables = _tables(subject, found, results, rates, several)
    of_first = " First seed." if several > 1 else ""
    before = results["before"][0]
    findings = [
        f"{title}: {text}"
        for name in names[1:]
        for title, of_seed in zip(titles[name], results[name], strict=True)
        for text in of_seed.findings(before)
    ]
    with whole_files(output_dir, "output_dir") as unfinished:
        report = Report(
            f"Quickstart: {subject.title} before and after consistency training",
            f"{_headline(subject, rates)} {subject.what} {subject.held_out}",
            names,
            tables,
            _pictures(subject, results, histories, unfinished, of_first),
            _examples(subject, results),
            "Answers to perturbed prompts, none of which were trained on, and the outcome that each counts as."
            f"{of_first}",
            subject.notes(
                {name: len(of_set.pairs.rows) for name, of_set in before.sets.items()},
                _recipes(subject, names),
                _seeds(titles),
            ),
            findings=findings,
        )
        page, text = report.write(unfinished)
        write_text(unfinished / "results.json", json.dumps(_figures(found, results, findings), indent=2) + "\n")
        answered = {"before": before}
        for name in names[1:]:
            answered |= dict(zip(titles[name], results[name], strict=True))
        write_answers(unfinished, "jsonl", answered)
    print()
    for table in tables:
        print(terminal_table(list(table.models or names), table.cells))
    for finding in findings:
        print(f"Note: {finding}")
    print(f"{minutes:.1f} minutes. Report: {output_dir / page.name}, {output_dir / text.name}")


def _seeds(titles: Mapping[str, Sequence[str]]) -> str:
    """Returns the seeds of the trainings: a title names one only if it is not the recipe's own."""
    name, of_name = next(iter(titles.items()))
    if list(of_name) == [name]:
        return "with its own seed"
    return "with seed 1" if len(of_name) == 1 else f"with seeds 1 to {len(of_name)}"


def _tables(
    subject: Subject,
    found: Mapping[str, Sequence[Measured]],
    results: "Mapping[str, list[Results]]",
    rates: "Rates",
    several: int,
) -> list[Table]:
    if several == 1:
        cells, what = rate_cells({name: runs[0] for name, runs in rates.items()}, subject.labels), RATES_TEXT
    else:
        cells = spread_cells(rates, subject.labels)
        what = f"Shares of all rows, mean and range over {several} seeds."
    outcomes = _outcomes({name: runs[0] for name, runs in results.items()})
    tables = [
        Table("Rates", what, cells),
        Table(
            "Outcomes", f"Every answer counts once.{' First seed.' if several > 1 else ''}", outcome_cells(outcomes)
        ),
    ]
    if subject.everyday_tokens:
        differences = {
            name: mean_differences(results["before"][0], runs) for name, runs in results.items() if name != "before"
        }
        shown = {
            label: [str(of_name[key]) for of_name in differences.values()] for key, label in subject.labels.items()
        }
        over = f" Means over {several} seeds." if several > 1 else ""
        tables.append(Table("Differences", DIFFERENCES_TEXT + over, shown, list(differences)))
        tables.append(
            Table(
                "Side effects",
                f"Replies to {len(read_data('everyday'))} everyday prompts, and {len(read_data('plain_text'))} plain texts, none "
                "like what was trained on: a few replies more or less may be chance. "
                f"Replies have at most {subject.everyday_tokens} tokens.{over}",
                _side_effect_cells(found),
            )
        )
    return tables


def _headline(subject: Subject, rates: Rates) -> str:
    """
    Returns the first rate before and after training, means over the seeds, and that of right answers on the same rows: a
    model that no longer answers would have a low rate of failures, too.
    """
    first = next(iter(subject.labels))
    sentences = []
    for key in (first, first.replace("sycophancy", "perturbed_accuracy")):
        means = {name: 100 * sum(run[key].value for run in runs) / len(runs) for name, runs in rates.items()}
        after = ", ".join(f"{mean:.1f}% after {name}" for name, mean in means.items() if name != "before")
        sentences.append(f"{subject.labels[key]}: {means['before']:.1f}% before training, and {after}.")
    return " ".join(sentences)


def _outcomes(results: "Mapping[str, Results]") -> dict[str, dict[str, Any]]:
    """Returns the outcomes of each model, by the title of the set."""
    return {name: {title_of(key): of for key, of in found.outcomes().items()} for name, found in results.items()}


def mean_differences(before: "Results", runs: "Sequence[Results]") -> "dict[str, Estimate]":
    """
    Returns the differences of the mean rates over several seeds from those of the model before training, by metric and
    set, with paired intervals in which all rows of one source form a cluster.
    """
    return {
        f"{metric}/{name}": difference
        for name, of_set in before.sets.items()
        for metric, difference in compare(
            pooled([of_set.samples] * len(runs)), pooled([run.sets[name].samples for run in runs])
        ).items()
    }


def _side_effect_cells(found: Mapping[str, Sequence[Measured]]) -> dict[str, list[str]]:
    labels = {
        "reply_tokens": ("Length of replies, tokens", ".1f", 1),
        "ended": ("Replies that ended", ".0f", 100),
        "reply_nats": ("Replies of the model before training, nats per token", ".3f", 1),
        "text_nats": ("Plain text, nats per token", ".3f", 1),
    }

    def mean(name: str, key: str) -> float:
        values = [measured.side_effects.to_dict()[key] for measured in found[name] if measured.side_effects]
        return sum(values) / len(values)

    def cell(name: str, key: str, form: str, factor: int) -> str:
        value, base = (factor * mean(of, key) for of in (name, "before"))
        unit = "%" if key == "ended" else ""
        return f"{value:{form}}{unit}" + ("" if name == "before" else f" ({value - base:+{form}})")

    return {label: [cell(name, key, form, factor) for name in found] for key, (label, form, factor) in labels.items()}


def _figures(
    found: Mapping[str, Sequence[Measured]], results: "Mapping[str, list[Results]]", findings: Sequence[str]
) -> dict[str, Any]:
    def of_run(run: Measured) -> dict[str, Any]:
        rates = {key: rate.to_dict() for key, rate in run.results.rates().items()}
        effects = {"side_effects": run.side_effects.to_dict()} if run.side_effects else {}
        return {"outcomes": run.results.outcomes(), "rates": rates, **effects}

    differences = {
        name: {key: of.to_dict() for key, of in mean_differences(results["before"][0], runs).items()}
        for name, runs in results.items()
        if name != "before"
    }
    models = {name: [of_run(run) for run in runs] for name, runs in found.items()}
    return {"format": FORMAT, "models": models, "differences": differences, "findings": list(findings)}


def _examples(subject: Subject, results: "Mapping[str, list[Results]]") -> list[tuple[str, dict[str, str]]]:
    """Returns a few perturbed prompts of each kind, and what each model answered, with the outcome."""
    of_set = {name: runs[0].sets[subject.examples_from] for name, runs in results.items()}
    rows = of_set["before"].pairs.rows
    by_kind: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        by_kind.setdefault(kind_of(row), []).append(index)
    # Advances by one more row each time: otherwise the same wording could recur.
    places = [
        indices[number * (len(indices) // subject.examples + 1) % len(indices)]
        for indices in by_kind.values()
        for number in range(min(subject.examples, len(indices)))
    ]
    return [
        (
            rows[place]["perturbed_prompt"][-1]["content"],
            {
                name: f"{found.answers['perturbed'][place].text} → {found.grades['perturbed'][place].outcome}"
                for name, found in of_set.items()
            },
        )
        for place in places
    ]


def _recipes(subject: Subject, names: Sequence[str]) -> dict[str, str]:
    return {name: of for name, of in {**subject.recipes, **subject.more_recipes}.items() if name in names}


def _pictures(
    subject: Subject,
    results: "Mapping[str, list[Results]]",
    histories: Mapping[str, list[dict[str, Any]]],
    folder: Path,
    of_first: str,
) -> list[Picture]:
    first = {name: runs[0] for name, runs in results.items()}
    outcomes = _outcomes(first)
    rates = {name: subject.shown(run.rates()) for name, run in first.items()}
    all_rates = {name: run.rates() for name, run in first.items()}
    pictures = [
        Picture(
            plot_outcomes(
                outcomes,
                folder / "outcomes.png",
                title=f"{subject.title[:1].upper()}{subject.title[1:]} before and after",
            ),
            "All answers",
            f"Outcomes of all answers, without and with the cue.{of_first}",
        ),
        Picture(
            plot_rates(rates, folder / "rates.png", labels=subject.labels),
            "The rates as bars",
            f"Failures on the left, abilities on the right.{of_first}",
        ),
        Picture(
            plot_tradeoff(all_rates, folder / "tradeoff.png", subject.labels),
            "Safety against capability",
            f"What training improves, and what it costs. The upper right corner is best.{of_first}",
        ),
    ]
    plotted = {
        name: history for name, history in histories.items() if any("eval_activation_distance" in of for of in history)
    }
    if plotted:
        pictures.append(
            Picture(
                plot_training(plotted, folder / "training.png"),
                "During training",
                "On held-out rows: the distance of activations on the shared suffix from the frozen model's on the clean "
                f"prompt, and the likelihood of the clean answer on the perturbed prompt.{of_first}",
            )
        )
    return pictures

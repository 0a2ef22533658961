"""Results of `trl-consistency evaluate` in the folders and cards of adapters."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..data.thinking import THINKING_MARKERS
from ..evaluation.answers.choices import CHOICE_PREFIX
from ..evaluation.capability import capability_figures, capability_labels, capability_warnings
from ..evaluation.rates.intervals import DIGITS, Estimate
from ..evaluation.report.plots import plot_outcomes, plot_rates
from ..evaluation.report.tables import label_of, outcome_places
from ..evaluation.results import Results
from ..files import whole_files
from ..models.loading import BASE
from ..publishing import Figure, Outcomes, Result, add_results, write_results
from ..publishing.results import PICTURES as RESULT_PICTURES
from ..publishing.results import RESULTS_FILE, model_digest
from .evaluation_files import JUDGEMENT_LENGTH, Capability, remove_earlier


def save_to_adapters(
    summary: Mapping[str, Any],
    found: Mapping[str, Results],
    adapters: Mapping[str, str | Path],
    capability: Capability = MappingProxyType({}),
) -> None:
    """
    Writes each adapter's results and capability, beside the base model's and with plots, into its folder (`adapters` has
    it by name) and card.
    """
    base = found[BASE]
    of_base = base.warnings() + capability_warnings(capability.get(BASE, {}))
    of_base += summary["models"][BASE]["trained_pairs"]
    for name, results in found.items():
        if name == BASE:
            continue
        folder = Path(adapters[name])
        had = (folder / RESULTS_FILE).exists()
        told = summary["models"][name]["findings"] + results.warnings()
        with whole_files(folder) as unfinished:
            write_results(
                unfinished,
                make_page_results(results, base) + page_capability(capability, name),
                _description(summary),
                make_page_outcomes(results, base),
                told + [f"Before training: {text}" for text in dict.fromkeys(of_base) if text not in told],
                model_digest(folder),
            )
            after = name if name != "before" else f"./{name}"
            rates = {"before": base.rates(), after: results.rates()}
            if any(rates.values()):
                plot_rates(rates, unfinished / "rates.png")
            outcomes = {"before": base.outcomes(), after: results.outcomes()}
            if outcome_places(outcomes):
                plot_outcomes(outcomes, unfinished / "outcomes.png")
            if (folder / "README.md").exists():
                add_results(folder, unfinished)
            written = os.listdir(unfinished)
        remove_earlier(folder, written, RESULT_PICTURES)
        print(f"{folder / RESULTS_FILE}: {'results replaced' if had else 'results written'}.", file=sys.stderr)


def make_page_results(results: Results, base: Results, labels: Mapping[str, str] = {}) -> list[Result]:
    """Returns the rates (only those in `labels`, if given) for a page, beside the base model's."""

    before, after = base.rates(), results.rates()
    keys = [key for key in labels if key in after] or after
    return [page_result(key, label_of(key, labels), before[key], after[key]) for key in keys]


def page_capability(capability: Capability, name: str) -> list[Result]:
    """Returns a model's capability for a page, beside the base model's."""
    if not capability:
        return []
    before, after = (capability_figures(capability[of]) for of in (BASE, name))
    labels = capability_labels(list(after))
    return [page_result(key, labels[key], before[key], after[key]) for key in after]


def page_result(key: str, label: str, before: Estimate, after: Estimate) -> Result:
    """Returns a figure for a page, beside the base model's. `key` has its metric and set."""

    def figures(of: Estimate) -> dict[str, Any]:
        if of.unit in DIGITS:  # nats: with a total, a figure is a share
            return {"value": of.value, "interval": of.interval}
        return {
            "value": of.value,
            "interval": of.interval,
            "hits": of.hits,
            "total": of.total,
            "unread": of.unread_total,
            "of_read": of.of_read.value if of.of_read else None,
        }

    metric, _, name = key.partition("/")
    unit = ", nats per token" if after.unit in DIGITS else ""
    return Result(
        metric=metric, split=name or None, name=label + unit, before=Figure(**figures(before)), **figures(after)
    )


def make_page_outcomes(results: Results, base: Results) -> list[Outcomes]:
    """Returns the outcomes for a page, beside the base model's."""
    before, after = base.outcomes(), results.outcomes()
    return [
        Outcomes(label, after[name][kind][side], before[name][kind][side])
        for label, (name, kind, side) in outcome_places({"": after}).items()
    ]


def _description(summary: Mapping[str, Any]) -> str:
    """Describes how the results of a page were measured."""
    settings = summary["settings"]
    counts = ", ".join(f"{name} ({of_set['rows']:,} rows)" for name, of_set in summary["pairs"].items())
    if settings.get("max_pairs"):
        counts += f", of each at most {settings['max_pairs']:,} drawn with seed {settings['seed']}"
    decoding = "greedy decoding"
    if settings["temperature"]:
        nucleus = f", top_p {settings['top_p']:g}" if settings["top_p"] != 1 else ""
        decoding = f"sampling at temperature {settings['temperature']:g}{nucleus}, seed {settings['seed']}"
    judged = "requests and free answers" if settings.get("judge_questions") else "requests"
    grader = f"{judged} judged by {settings['judge']}" if settings["judge"] else "refusals told by their opening"
    scored = (
        " The right answer is preferred where it has the higher log-probability per token than the suggested one after "
        f'"{settings["answer_prefix"]}".'
        if settings.get("free_answers") == "logprob"
        else ""
    )
    choices = (
        " Choices are the likeliest of the offered letters." if settings.get("multiple_choice") == "logprob" else ""
    )
    options: dict[str, Any] = {
        "thinking_markers": list(THINKING_MARKERS),
        "chat_template_kwargs": {},
        "splits": None,
        "model_revision": None,
        "choice_prefix": CHOICE_PREFIX if settings.get("multiple_choice") == "logprob" else None,
        "judge_max_completion_length": JUDGEMENT_LENGTH if settings.get("judge") else None,
    }
    others = {name: settings[name] for name, default in options.items() if settings.get(name, default) != default}
    capability = ""
    if of_files := settings.get("capability"):
        items = ", ".join(f"{name} ({count:,} items)" for name, count in of_files["items"].items())
        limit, seed = of_files["limit"], settings["seed"]
        drawn = f", of each at most {limit:,} drawn with seed {seed}" if limit else ""
        capability = f" Capability is measured on {items}{drawn}."
    shown = (f"`{name} {json.dumps(of)}`".replace("``", "`") for name, of in others.items())
    named = f" Other options: {', '.join(shown)}." if others else ""
    kind = settings.get("bnb_4bit_quant_type", "nf4").upper()
    weights = f" The base model's weights are in 4 bits ({kind})." if settings.get("load_in_4bit") else ""
    engine = " vLLM wrote the answers." if settings.get("engine", "transformers") != "transformers" else ""
    return (
        f'Measured by `trl-consistency evaluate`; "before" is {summary["models"][BASE]["path"]}, on the same '
        f"rows of {counts}. Shares of all rows, with 95% intervals (rows of one source as one cluster) and counts; an answer "
        f"that could not be read (unread) has none of the properties. At most {settings['max_completion_length']} tokens, "
        f"{decoding}; {grader}.{choices}{weights}{engine}{scored}{capability}{named}"
    )

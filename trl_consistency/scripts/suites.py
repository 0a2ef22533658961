"""
Runs standard suites from Inspect and lm-evaluation-harness on a model and its adapters.

```bash
trl-consistency suites --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --adapters bct act --suites gsm8k xstest --judge openai/gpt-4o --output_dir evaluation
```
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.options import CommandArguments, at_least, check_ranges, option, refuse_unused, with_help
from ..errors import ConsistencyError, ends_with_message
from ..escaping import printable
from ..evaluation.suites.registry import find_suites, named_suites, run_suites, suite_packages
from ..evaluation.suites.scores import SuiteScore
from ..files import write_text
from ..folder_lock import locked_folder
from ..json_files import object_in
from ..models.folder_warnings import warn_of_folders, warn_of_loaded
from ..models.loading import BASE, check_adapters, load_model, name_models
from ..trainer.run.output_checks import check_output_dir
from .evaluation_files import shown_judge, shown_name, suite_results, suite_tables, tables_text
from .json_output import one_object
from .parser import StrictParser, as_template_kwargs


RESULTS, LOGS = "suites.json", "suite_logs"


@dataclass
@with_help
class SuitesArguments(CommandArguments):
    """Arguments of the `suites` command, explained by its `--help`."""

    model_name_or_path: str = option(help="The base model, `embedded:organism` or `embedded:smollm2`.")
    suites: list[str] = option(
        help="Suites (strong_reject, strong_reject_wrapped, xstest, xstest_unsafe, are_you_sure, mmlu, gsm8k, "
        "ifeval, model_written_sycophancy), or any other task as `inspect:TASK` or `lm_eval:TASK`.",
    )
    output_dir: str = option(help="Folder for suites.json and Inspect's logs.")
    adapters: list[str] = option([], help="Adapters of the model, or whole models, to compare with it.")
    model_revision: str | None = option(None, help="Revision of the base model.")
    judge: str | None = option(
        None,
        help="The judge, by its name in Inspect: `openai/...`, or `trl_consistency/FOLDER` for a local model.",
    )
    limit: int | None = option(None, at_least(1), help="Maximum samples per task, for a first try.")
    batch_size: int = option(32, at_least(1), help="Prompts per batch.")
    max_completion_length: int | None = option(
        None, at_least(1), help="Maximum tokens per answer under Inspect. If None, the task's own maximum, or 512."
    )
    chat_template_kwargs: dict[str, Any] | str | None = option(
        None, help="Variables of the chat template (JSON on the command line)."
    )
    json: bool = option(False, help="Print one JSON object instead of tables.")


def main(args: SuitesArguments) -> dict[str, Any]:
    """Runs the suites and writes the scores; returns the object that `--json` prints."""
    check_ranges(args)
    _check_own_file(Path(args.output_dir) / RESULTS)
    template_kwargs = as_template_kwargs(args.chat_template_kwargs)
    adapters = name_models(args.adapters)
    check_adapters(args.adapters, args.model_name_or_path)
    if all(suite.library == "lm_eval" for suite in named_suites(args.suites)):
        refuse_unused(
            args,
            ["max_completion_length"],
            "it is only for suites under Inspect, and `suites` names none. Leave it out",
        )
    find_suites(args.suites, args.judge)
    with locked_folder(args.output_dir):
        check_output_dir(args.output_dir)
        model, processing_class = load_model(args.model_name_or_path, args.model_revision)
        warn_of_folders(
            args.model_name_or_path, args.adapters, processing_class, [template_kwargs], args.model_revision
        )
        warn_of_loaded(args.model_name_or_path, args.adapters, model, processing_class)
        with redirect_stdout(sys.stderr):  # the libraries print their progress
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
    print(printable(f"{tables_text(suite_tables(scores))}\n{args.output_dir}/{RESULTS}"))
    return results


def _check_own_file(file: Path) -> None:
    """Raises [`ConsistencyError`] for a file called as the scores are that no earlier run wrote."""
    if file.exists() and not {"models", "settings"} <= (object_in(file) or {}).keys():
        raise ConsistencyError(
            f"`output_dir` {file.parent} has a {file.name} that `trl-consistency suites` did not write, and would replace. Choose another "
            "folder."
        )


def make_results(
    args: SuitesArguments, paths: Mapping[str, str], scores: Mapping[str, Sequence[SuiteScore]]
) -> dict[str, Any]:
    """Returns the object that `--json` prints."""
    found = suite_results(scores)
    return {
        "models": {name: {"path": shown_name(paths[name]), **of_model} for name, of_model in found.items()},
        "settings": {
            "model_revision": args.model_revision,
            "chat_template_kwargs": as_template_kwargs(args.chat_template_kwargs),
            "judge": shown_judge(args.judge),
            "limit": args.limit,
            "max_completion_length": args.max_completion_length,
            "packages": suite_packages(),
        },
    }


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses and runs; faulty data or options end the program with one message."""
    (suites_args,) = StrictParser((SuitesArguments,), "suites", prog=prog).parse_args_and_config(args)
    with one_object(suites_args.json) as printed:
        printed |= main(suites_args)


if __name__ == "__main__":
    run()

"""
Generates the reference policy's answers to the clean prompts, without training. Adds two columns to the pairs:
`completion` (text, to read) and `completion_ids` (the sampled token ids, for training).

```bash
accelerate launch -m trl_consistency.scripts.targets --config recipes/quickstart/bct.yaml --targets_file targets.jsonl
```
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from trl import DatasetMixtureConfig, ModelConfig

from ..config.consistency_config import ConsistencyConfig
from ..config.options import CommandArguments, option, with_help
from ..data.class_names import named_rows
from ..data.pairs import parse_json_column
from ..data.prepare import needs_targets
from ..errors import ConsistencyError, ends_with_message
from ..files import check_file, whole_file
from ..json_files import as_json
from ..log import get_logger
from ..upstream import end_run
from .consistency import COMMAND
from .json_output import one_object
from .loading import ConsistencyScriptArguments, TrainingScriptArguments
from .model_options import check_init_kwargs, check_model_options
from .parser import StrictParser
from .training_engine import naming_engine


logger = get_logger(__name__)


@dataclass
@with_help
class TargetsArguments(CommandArguments):
    """Arguments of the `targets` command, besides those of training."""

    targets_file: str = option(help="JSON Lines file to write: the pairs with their targets.")


def _paths_of(mixture: Sequence[Any]) -> Iterator[str]:
    """Yields the files, patterns of files and folders that a mixture may be read from."""
    for entry in mixture:
        folder = os.path.join(entry.path, entry.data_dir) if entry.data_dir else entry.path
        # Where `path` is a type of files, such as `json`, the folder is `data_dir` alone.
        folders = [folder] if os.path.isdir(entry.path) else [folder, entry.data_dir or ""]
        files = entry.data_files or []
        if isinstance(files, dict):
            files = [
                file for of_split in files.values() for file in ([of_split] if isinstance(of_split, str) else of_split)
            ]
        names = [files] if isinstance(files, str) else list(files)
        yield from [*names, *(os.path.join(of, name) for of in folders for name in names)] if names else folders


def _check_not_data(file: str, data: Sequence[str | None]) -> None:
    """Raises [`ConsistencyError`] if the targets would replace the run's data, or become a further file of theirs."""
    for name in filter(None, data):
        if _is_among(Path(os.path.realpath(file)), name):
            raise ConsistencyError(
                f"`targets_file` {file} belongs to the data {name} of this run: their rows would be replaced, or doubled. Name a file "
                "elsewhere."
            )


def _is_among(file: Path, name: str) -> bool:
    """Whether a file is the file of this name, is in the folder, or is one of those that the pattern stands for."""
    place = os.path.realpath(name)
    if os.path.exists(name):
        return Path(place) in (file, *file.parents)
    return file.match(place) or ("**" in name and fnmatch(str(file), place.replace("**/", "*")))


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses, generates and writes; faulty data or options end the program with one message."""
    kinds = (TargetsArguments, TrainingScriptArguments, ConsistencyConfig, ModelConfig, DatasetMixtureConfig)
    parser = StrictParser(kinds, "targets", COMMAND.flags_of_engine, naming_engine, prog=prog)
    targets_args, script_args, training_args, *other_args = parser.parse_args_and_config(args)
    check_model_options(parser.given, script_args, training_args, other_args[0])
    check_init_kwargs(other_args[0], training_args.model_init_kwargs or {}, parser.given)
    training_args.eval_strategy = "no"
    training_args.do_eval = training_args.eval_on_start = training_args.load_best_model_at_end = False
    training_args.push_to_hub = False  # which would make an empty page
    training_args.anchor_ratio = 0.0
    training_args.dataloader_drop_last = False  # no row is left out here
    data = [getattr(script_args, f"{of}dataset_name") for of in ("", "anchor_", "guard_", "guard_control_")]
    for name in ("anchor_dataset_name", "anchor_dataset_config", "anchor_dataset_split"):
        setattr(script_args, name, getattr(ConsistencyScriptArguments, name))
    if not training_args.needs_completions:
        raise ConsistencyError(
            f"`method` {training_args.method} trains without answers. For targets, set `method: bct`."
        )
    file = targets_args.targets_file
    if not file.endswith(".jsonl"):
        raise ConsistencyError(f"`targets_file` {file} must end in .jsonl: it is written as JSON Lines.")
    _check_not_data(file, [*data, *_paths_of(other_args[1].datasets)])
    check_file(file, "targets_file")
    if script_args.dataset_streaming or other_args[1].streaming:
        raise ConsistencyError(
            "`targets` reads all the data, which cannot be streamed: leave `dataset_streaming` (`streaming`) out."
        )
    with parser.naming_given(), one_object(script_args.json) as printed:
        trainer = COMMAND.make_trainer(script_args, training_args, *other_args)
        if not needs_targets(trainer.train_dataset):
            logger.warning(
                "The pairs come with their completions, so nothing is generated: the model and its options have no effect. For "
                "the model's own answers, remove `completion` and `completion_ids`."
            )
        trainer.generate_targets()
        if trainer.is_world_process_zero():
            written, has_variables = 0, bool(trainer.args.chat_template_kwargs)
            with whole_file(file, option="targets_file") as lines:
                # `datasets` needs disk space, too, to put the pairs together.
                for row in named_rows(trainer.dataset_with_targets()):
                    if has_variables:
                        row = {**row, "chat_template_kwargs": parse_json_column(row["chat_template_kwargs"])}
                    lines.write(json.dumps(as_json(row), ensure_ascii=False) + "\n")
                    written += 1
            printed |= {"targets_file": file, "pairs": written, "left_out": len(trainer.train_dataset) - written}
            print(f"{written} pairs with their targets: {file}")
        end_run(trainer)


if __name__ == "__main__":
    run()

"""
Generates the reference policy's answers to the clean prompts, without training. Adds two columns to the pairs:
`completion` (text, to read) and `completion_ids` (the sampled token ids, for training).

```bash
accelerate launch -m trl_consistency.scripts.targets --config recipes/quickstart/bct.yaml --targets_file targets.jsonl
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trl import DatasetMixtureConfig, ModelConfig

from ..config.consistency_config import ConsistencyConfig
from ..config.options import CommandArguments, option, with_help
from ..errors import ConsistencyError, ends_with_message
from ..files import check_file, write_by
from ..upstream import end_run
from .consistency import COMMAND
from .loading import ConsistencyScriptArguments
from .parser import StrictParser


@dataclass
@with_help
class TargetsArguments(CommandArguments):
    """Arguments of the `targets` command, besides those of training."""

    targets_file: str = option(help="JSON Lines file to write: the pairs with their targets.")


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Parses, generates and writes; faulty data or options end the program with one message."""
    kinds = (TargetsArguments, ConsistencyScriptArguments, ConsistencyConfig, ModelConfig, DatasetMixtureConfig)
    parser = StrictParser(kinds, "targets", prog=prog)
    targets_args, script_args, training_args, *other_args = parser.parse_args_and_config(args)
    training_args.eval_strategy = "no"
    training_args.do_eval = training_args.eval_on_start = False
    training_args.anchor_ratio = 0.0
    for name in ("anchor_dataset_name", "anchor_dataset_config", "anchor_dataset_split"):
        setattr(script_args, name, getattr(ConsistencyScriptArguments, name))
    if not training_args.needs_completions:
        raise ConsistencyError(
            f"`method` {training_args.method} trains without answers. For targets, set `method: bct`."
        )
    file = targets_args.targets_file
    if not file.endswith(".jsonl"):
        raise ConsistencyError(f"`targets_file` {file} must end in .jsonl: it is written as JSON Lines.")
    check_file(file, "targets_file")
    trainer = COMMAND.make_trainer(script_args, training_args, *other_args)
    trainer.generate_targets()
    if trainer.is_world_process_zero():
        # `datasets` needs disk space, too, to put the pairs together.
        write_by(file, lambda path: trainer.dataset_with_targets().to_json(path), "targets_file")
        print(f"{len(trainer.train_dataset)} pairs with their targets: {file}")
    end_run(trainer)


if __name__ == "__main__":
    run()

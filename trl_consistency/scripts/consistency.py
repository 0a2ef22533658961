"""
Consistency training on pairs of a clean and a perturbed prompt.

```bash
accelerate launch -m trl_consistency.scripts.consistency --config recipes/quickstart/bct.yaml
```

```bash
trl-consistency consistency \
    --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 \
    --dataset_name pairs.jsonl \
    --method bct \
    --use_peft --lora_target_modules all-linear \
    --output_dir Qwen3-4B-BCT
```
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ends_with_message


if TYPE_CHECKING:
    from trl import DatasetMixtureConfig, ModelConfig

    from ..trainer.consistency_config import ConsistencyConfig
    from ..trainer.consistency_trainer import ConsistencyTrainer
    from .loading import ConsistencyScriptArguments
    from .parser import StrictParser


def make_trainer(
    script_args: "ConsistencyScriptArguments",
    training_args: "ConsistencyConfig",
    model_args: "ModelConfig",
    dataset_args: "DatasetMixtureConfig",
) -> "ConsistencyTrainer":
    from ..trainer.consistency_trainer import ConsistencyTrainer
    from .training import trainer_arguments

    return ConsistencyTrainer(**trainer_arguments(script_args, training_args, model_args, dataset_args))


def main(
    script_args: "ConsistencyScriptArguments",
    training_args: "ConsistencyConfig",
    model_args: "ModelConfig",
    dataset_args: "DatasetMixtureConfig",
) -> "ConsistencyTrainer":
    from .loading import load_guard
    from .training import train_and_save

    guard = load_guard(script_args, training_args)
    trainer = make_trainer(script_args, training_args, model_args, dataset_args)
    train_and_save(trainer, script_args, guard)
    return trainer


def make_parser(prog: str | None = None) -> "StrictParser":
    from trl import DatasetMixtureConfig, ModelConfig

    from ..trainer.consistency_config import ConsistencyConfig
    from .loading import ConsistencyScriptArguments
    from .parser import StrictParser

    dataclass_types = (ConsistencyScriptArguments, ConsistencyConfig, ModelConfig, DatasetMixtureConfig)
    return StrictParser(dataclass_types, "consistency", prog=prog)


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> "ConsistencyTrainer":
    """Parses and trains; faulty data or options end the program with their message alone. Returns the trainer, ended."""
    parsed = make_parser(prog=prog).parse_args_and_config(args)
    return main(*parsed)


if __name__ == "__main__":
    run()

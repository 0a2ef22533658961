"""
On-policy consistency training (OPCT) on pairs of a clean and a perturbed prompt.

```bash
accelerate launch -m trl_consistency.scripts.on_policy_consistency --config recipes/quickstart/opct.yaml
```

```bash
trl-consistency on-policy-consistency \\
    --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 \\
    --dataset_name pairs.jsonl \\
    --num_generations 4 \\
    --use_peft --lora_target_modules all-linear \\
    --output_dir Qwen3-4B-OPCT
```
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ends_with_message


if TYPE_CHECKING:
    from trl import DatasetMixtureConfig, ModelConfig

    from ..trainer.on_policy_consistency_config import OnPolicyConsistencyConfig
    from ..trainer.on_policy_consistency_trainer import OnPolicyConsistencyTrainer
    from .loading import OnPolicyConsistencyScriptArguments
    from .parser import StrictParser


def main(
    script_args: "OnPolicyConsistencyScriptArguments",
    training_args: "OnPolicyConsistencyConfig",
    model_args: "ModelConfig",
    dataset_args: "DatasetMixtureConfig",
) -> "OnPolicyConsistencyTrainer":
    from ..trainer.on_policy_consistency_trainer import OnPolicyConsistencyTrainer
    from .loading import load_guard
    from .training import train_and_save, trainer_arguments

    guard = load_guard(script_args, training_args)
    arguments = trainer_arguments(script_args, training_args, model_args, dataset_args)
    trainer = OnPolicyConsistencyTrainer(ref_model=script_args.ref_model_name_or_path, **arguments)
    train_and_save(trainer, script_args, guard)
    return trainer


def make_parser(prog: str | None = None) -> "StrictParser":
    from trl import DatasetMixtureConfig, ModelConfig

    from ..trainer.on_policy_consistency_config import OnPolicyConsistencyConfig
    from .loading import OnPolicyConsistencyScriptArguments
    from .parser import StrictParser

    dataclass_types = (
        OnPolicyConsistencyScriptArguments,
        OnPolicyConsistencyConfig,
        ModelConfig,
        DatasetMixtureConfig,
    )
    return StrictParser(dataclass_types, "on-policy-consistency", prog=prog)


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> "OnPolicyConsistencyTrainer":
    """Parses and trains; faulty data or options end the program with their message alone. Returns the trainer, ended."""
    parsed = make_parser(prog=prog).parse_args_and_config(args)
    return main(*parsed)


if __name__ == "__main__":
    run()

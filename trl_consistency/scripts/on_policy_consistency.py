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

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..trainer.on_policy_consistency_trainer import OnPolicyConsistencyTrainer
from .loading import OnPolicyConsistencyScriptArguments
from .training import TrainingCommand


COMMAND = TrainingCommand(
    "on-policy-consistency",
    OnPolicyConsistencyTrainer,
    OnPolicyConsistencyConfig,
    OnPolicyConsistencyScriptArguments,
)
make_parser, run = COMMAND.make_parser, COMMAND.run


if __name__ == "__main__":
    run()

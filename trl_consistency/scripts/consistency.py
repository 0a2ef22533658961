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

from ..config.consistency_config import ConsistencyConfig
from ..trainer.consistency_trainer import ConsistencyTrainer
from .loading import TrainingScriptArguments
from .training import TrainingCommand


COMMAND = TrainingCommand("consistency", ConsistencyTrainer, ConsistencyConfig, TrainingScriptArguments)
make_parser, run = COMMAND.make_parser, COMMAND.run


if __name__ == "__main__":
    run()

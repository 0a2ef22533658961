"""
Trains with TRL's own `DPOTrainer` on preferences, as a baseline. It is `trl dpo`, and also takes embedded models.

```bash
accelerate launch -m trl_consistency.scripts.dpo --config recipes/smollm2-135m-instruct/dpo.yaml
```
"""

from collections.abc import Sequence
from typing import Any

from trl import (
    DatasetMixtureConfig,
    DPOConfig,
    DPOTrainer,
    ModelConfig,
    ScriptArguments,
    get_peft_config,
    get_quantization_config,
)

from ..errors import ConsistencyError, ends_with_message
from ..models.embedded_models import resolve_model
from ..models.loading import check_loadable
from ..trainer.run.checks import check_output_dir
from ..upstream import end_run
from .loading import get_split, load_pairs
from .parser import StrictParser


COLUMNS = ("prompt", "chosen", "rejected")


def make_parser(prog: str | None = None) -> StrictParser:
    """Returns the parser of TRL's options."""
    return StrictParser((ScriptArguments, DPOConfig, ModelConfig, DatasetMixtureConfig), "dpo", prog=prog)


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> DPOTrainer:
    """Trains, saves and returns the trainer; faulty data or options end the program with one message."""
    script_args, training_args, model_args, dataset_args = make_parser(prog).parse_args_and_config(args)
    check_output_dir(training_args.output_dir)
    splits = load_pairs(script_args, dataset_args)
    train_dataset, eval_dataset = _preferences(splits, script_args.dataset_train_split, "dataset_train_split"), None
    if training_args.eval_strategy != "no":
        eval_dataset = _preferences(splits, script_args.dataset_test_split, "dataset_test_split")
    name = resolve_model(model_args.model_name_or_path)
    check_loadable(name, model_args.model_revision, training_args.trust_remote_code)
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        "use_safetensors": True,
        **(training_args.model_init_kwargs or {}),
    }
    trainer = DPOTrainer(
        model=name,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    end_run(trainer)
    return trainer


def _preferences(splits: Any, split: str, option: str) -> Any:
    """Returns a split; raises [`ConsistencyError`] if it does not hold preferences."""
    dataset = get_split(splits, split, option)
    missing = [column for column in COLUMNS if column not in (dataset.column_names or COLUMNS)]
    if missing:
        raise ConsistencyError(
            f"The data set has no column `{missing[0]}`, only {', '.join(f'`{name}`' for name in dataset.column_names)}. "
            "`trl-consistency convert --to preference` makes preferences of pairs."
        )
    return dataset


if __name__ == "__main__":
    run()

"""
Trains with TRL's own `DPOTrainer` on preferences, as a baseline. It is `trl dpo`, and also takes embedded models.

```bash
accelerate launch -m trl_consistency.scripts.dpo --config recipes/smollm2-135m-instruct/dpo.yaml
```
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from trl import (
    DatasetMixtureConfig,
    DPOConfig,
    DPOTrainer,
    ModelConfig,
    ScriptArguments,
    get_quantization_config,
)

from ..data.messages import without_none
from ..data.pairs import parse_json_column, report_faults
from ..data.prepare import columns_of
from ..data.rendering import NO_END, ProcessingClass, check_reply, load_processing_class
from ..data.trained_pairs import read_digests
from ..errors import ConsistencyError, InvalidPairsError, ends_with_message
from ..finite import is_finite
from ..generation.options import end_tokens
from ..log import get_logger
from ..models.embedded_models import resolve_model
from ..models.folder_checks import check_model_folder
from ..models.loading import check_loadable
from ..trainer.run.data_checks import check_chat_template
from ..trainer.run.interruption import check_has_states, find_checkpoint
from ..trainer.run.output_checks import (
    check_adapter_folder,
    check_not_data_folder,
    check_not_model_folder,
    check_output_dir,
)
from ..upstream import end_run, plain_tensors
from .dpo_trainer import RecordingDPOTrainer, digests_of_preferences
from .loading import get_split, load_pairs
from .model_options import adapter_of, check_init_kwargs, check_intervals, check_model_options
from .parser import StrictParser
from .training import NO_PREDICTION


logger = get_logger(__name__)

COLUMNS = ("prompt", "chosen", "rejected")
OF_A_STREAM = 32  # its first rows, which are checked
MOST_AFTER_END = 4  # tokens that a chat template writes after the end of an answer, such as a line break


def make_parser(prog: str | None = None) -> StrictParser:
    """Returns the parser of TRL's options."""
    return StrictParser((ScriptArguments, DPOConfig, ModelConfig, DatasetMixtureConfig), "dpo", prog=prog)


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> DPOTrainer:
    """Trains, saves and returns the trainer; faulty data or options end the program with one message."""
    parser = make_parser(prog)
    script_args, training_args, model_args, dataset_args = parser.parse_args_and_config(args)
    check_model_options(parser.given, script_args, training_args, model_args)
    check_intervals(parser.given, parser.typed, training_args)
    check_init_kwargs(model_args, training_args.model_init_kwargs or {}, parser.given)
    if training_args.do_predict:
        raise ConsistencyError(NO_PREDICTION)
    if training_args.push_to_hub:
        raise ConsistencyError(
            "`push_to_hub` is not available in this command: TRL would send the whole folder, and in `training_args.bin` the token. "
            f"Train without it, and then `trl-consistency push {training_args.output_dir} user/name`."
        )
    evaluates = training_args.eval_strategy != "no" or training_args.eval_on_start
    if training_args.do_eval and not evaluates:
        raise ConsistencyError("`do_eval` alone evaluates nothing: set `eval_strategy`, or leave it out.")
    check_output_dir(training_args.output_dir)
    checkpoint = find_checkpoint(training_args.resume_from_checkpoint, training_args.output_dir)
    if checkpoint is not None:
        check_has_states(checkpoint)
        if training_args.sync_ref_model:
            raise ConsistencyError(
                f"`resume_from_checkpoint`: {checkpoint} does not hold the reference that `sync_ref_model` had changed, so the "
                "run would go on against the initial model. Begin it anew, or leave out `sync_ref_model` in both."
            )
    splits = load_pairs(script_args, dataset_args)
    train_dataset, eval_dataset = _preferences(splits, script_args.dataset_train_split, "dataset_train_split"), None
    if evaluates:
        eval_dataset = _preferences(splits, script_args.dataset_test_split, "dataset_test_split")
    name = resolve_model(model_args.model_name_or_path)
    check_not_data_folder(training_args.output_dir)
    check_not_model_folder(training_args.output_dir, name)
    check_adapter_folder(training_args.output_dir, saves_adapter=model_args.use_peft)
    check_model_folder(name, model_args.model_revision)  # TRL cannot load an adapter here
    base, revision, _ = check_loadable(name, model_args.model_revision, training_args.trust_remote_code)
    processing_class = load_processing_class(base, revision, training_args.trust_remote_code)  # as TRL does
    for of_set, rows in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset)):
        if rows is not None:
            _check_replies(rows, of_set, processing_class)
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        "use_safetensors": True,
        **(training_args.model_init_kwargs or {}),
    }
    trainer = RecordingDPOTrainer(
        model=name,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        quantization_config=get_quantization_config(model_args),
        peft_config=adapter_of(model_args),
    )
    for given, dataset in ((train_dataset, trainer.train_dataset), (eval_dataset, trainer.eval_dataset)):
        _check_lengths(given, dataset, training_args.max_length)
    _check_prompts({"train_dataset": train_dataset, "eval_dataset": eval_dataset}, trainer)
    last_ids = next(iter(trainer.train_dataset))["chosen_ids"][-MOST_AFTER_END:]
    if {*last_ids}.isdisjoint(end_tokens(trainer.model, trainer.processing_class)):
        logger.warning(f"{NO_END}.")
    # With those of what the model had been trained on before
    earlier = [read_digests(folder) for folder in (name, checkpoint) if folder]
    trainer.trained_pairs = np.unique(np.concatenate([digests_of_preferences(train_dataset), *earlier]))
    if checkpoint is not None:
        trainer.check_resumed(checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.state.global_step == 0:
        raise ConsistencyError(
            "No step was trained, since the data made no batch: nothing is saved. Check their rows."
        )
    _check_finite(trainer)
    if training_args.should_save:
        # Without checkpoints, TRL writes none, and an earlier training's would stay.
        trainer.create_model_card(model_name=Path(training_args.output_dir).absolute().name)
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


def _check_prompts(preferences: dict[str, Any], trainer: DPOTrainer) -> None:
    """Raises [`InvalidPairsError`] if the chat template renders the same prompts differently each time. Warns of dates in them."""
    prompts = {}
    for name, rows in preferences.items():
        if rows is not None:
            rendered = [of for of in ("prompt", "tools", "chat_template_kwargs") if of in columns_of(rows)]
            prompts[name] = rows.select_columns(rendered).rename_column("prompt", "clean_prompt")
    check_chat_template(trainer.processing_class, prompts)


def _check_replies(rows: Any, name: str, processing_class: ProcessingClass) -> None:
    """Raises [`InvalidPairsError`] for answers of which the chat template leaves out a part, such as the thought. Of streams, the first."""
    faults, total = [], 0
    for number, row in enumerate(rows if isinstance(rows, Dataset) else rows.take(OF_A_STREAM)):
        row, total = without_none(row), number + 1
        for column in COLUMNS[1:] if isinstance(row["prompt"], list) else ():
            chat = [*row["prompt"], *row[column]]
            variables = parse_json_column(row.get("chat_template_kwargs")) or {}
            try:
                check_reply(processing_class, chat[:-1], chat[-1], parse_json_column(row.get("tools")), variables)
            except InvalidPairsError as error:
                faults.append((number, f"`{column}`: {error}"))
            except Exception:  # what cannot be rendered at all, TRL reports
                continue
    report_faults(faults, name, total)


def _check_lengths(given: Any, dataset: Any, max_length: int | None) -> None:
    """
    Raises [`ConsistencyError`] for answers that DPO would cut, as often the whole of them, without a word, or that it left
    out of the `given` rows because their prompts leave no room.
    """
    if max_length is None or dataset is None:
        return
    if not isinstance(dataset, Dataset):
        raise ConsistencyError(
            f"Streamed rows longer than `max_length` ({max_length} tokens) would be cut without a word. Set `max_length: null`, or "
            "load the data without streaming."
        )
    if left_out := len(given) - len(dataset):
        raise ConsistencyError(
            f"{left_out} of {len(given)} row(s) have prompts that fill `max_length` ({max_length} tokens), so that nothing of their "
            "answers would be trained on. Raise it, or set `max_length: null`."
        )
    columns = zip(dataset["prompt_ids"], dataset["chosen_ids"], dataset["rejected_ids"], strict=True)
    longest = [len(prompt) + max(len(chosen), len(rejected)) for prompt, chosen, rejected in columns]
    cut = [row for row, length in enumerate(longest) if length > max_length]
    if cut:
        raise ConsistencyError(
            f"{len(cut)} of {len(longest)} row(s) are longer than `max_length` ({max_length} tokens), such as row {cut[0]} with "
            f"{longest[cut[0]]}: the ends of their answers would be cut. Raise it, or set `max_length: null`."
        )


def _check_finite(trainer: DPOTrainer) -> None:
    """Raises [`ConsistencyError`] if training ended with weights that are not finite."""
    faulty = [
        name for name, weight in trainer.model.named_parameters() if not all(map(is_finite, plain_tensors(weight)))
    ]
    if faulty:
        raise ConsistencyError(
            f"Training ended with weights that are not finite, such as {faulty[0]}: nothing is saved. Lower `learning_rate`."
        )


if __name__ == "__main__":
    run()

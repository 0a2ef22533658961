"""Describes a run (options, model, data) in its checkpoints, to compare a resumed run with the saved one."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
from accelerate.utils import is_peft_model
from datasets import Dataset, IterableDataset

from ...config.optimizer_options import BY_METRIC
from ...data.anchors import PREPARED_COLUMNS
from ...data.pairs import AnyDataset
from ...data.prepare import columns_of
from ...data.rendering import chat_template_of
from ...data.target_table import TargetTable
from ...models.config_changes import NOT_OF_THE_MODEL
from .interruption import rows_per_batch


# Rows of a stream that are compared; comparing all would mean rendering the whole stream first.
STREAMED_ROWS = 32

# Options that determine the weights. Batches, data and targets are described by their contents instead.
OPTIMISATION = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args"),
    *("optim_target_modules", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
)
OPTIONS = (
    *("method", "method_weights", "layers", "act_tokens", "mlp_distance", "loss_type", "regenerate_targets_every"),
    *("num_generations", "num_iterations", "beta", "clip_range", "loss_temperature", "mask_truncated_completions"),
    *("train_on_thinking", "disable_dropout", "vllm_importance_sampling_correction", "vllm_overlap"),
    *("vllm_importance_sampling_clip_max", "vllm_structured_outputs_regex"),
    *("anchor_ratio", "seed", "data_seed", "shuffle_dataset", "train_sampling_strategy", "dataloader_drop_last"),
    "packing",
    *OPTIMISATION,
    *("neftune_noise_alpha", "label_smoothing_factor", "router_aux_loss_coef", "tf32", "ignore_data_skip"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
)
# Compared only if the run generates its targets or rollouts.
GENERATION = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "max_completion_length"),
    *("completion_length_schedule",),
    *("use_vllm", "thinking_markers", "keep_thinking", "target_batch_size", "rollout_batch_size"),
)

NOT_OF_THE_ADAPTER = (
    *("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version", "runtime_config"),
    "task_type",
)


def describe_options(args: Any, generates: bool) -> dict[str, Any]:
    """Returns the options that determine a run, by name, as JSON values."""
    names = [*OPTIONS, *(GENERATION if generates else ())]
    if args.lr_scheduler_type in BY_METRIC:  # they change the learning rate at evaluations
        names += ["eval_strategy", "eval_steps", "eval_delay"]
    options = {"method": ["opct"]} | {name: getattr(args, name) for name in names if hasattr(args, name)}
    options["length"] = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    return {name: as_json(value) for name, value in options.items()}


def describe_model(model: Any, generates: bool) -> dict[str, Any]:
    """Returns the configuration of a model and its adapter, by key."""
    config = model.config.to_dict()
    quantization = getattr(model.config, "quantization_config", None)
    facts = {f"config.{name}": value for name, value in config.items() if name not in NOT_OF_THE_MODEL}
    facts |= {"dtype": model.dtype, "quantization": quantization and quantization.to_dict(), "adapter": None}
    # Not in the dict of a config. Mostly it decides about rounding, but some leave out the soft caps of a model.
    facts["attn_implementation"] = model.config.get_text_config()._attn_implementation
    if generates:
        generation = model.generation_config.to_diff_dict()
        facts["generation_config"] = {k: v for k, v in generation.items() if k not in NOT_OF_THE_MODEL}
    if is_peft_model(model):
        adapter = model.peft_config[model.active_adapters[0]]
        facts["adapter"] = adapter.peft_type
        options = adapter.to_dict().items()
        facts |= {f"adapter.{name}": value for name, value in options if name not in NOT_OF_THE_ADAPTER}
    return {name: as_json(value) for name, value in facts.items()}


def describe_template(processing_class: Any) -> str:
    """Returns the digest of the chat template."""
    template = chat_template_of(processing_class)
    return hashlib.blake2b(json.dumps(template, sort_keys=True).encode(), digest_size=8).hexdigest()


def describe_rows(dataset: AnyDataset, noted: Sequence[str] = PREPARED_COLUMNS) -> str:
    """
    Returns the row count and a digest of the token ids of a prepared data set (of a stream's first rows), in the columns
    `noted`.
    """
    columns = [column for column in noted if column in columns_of(dataset) and column != "length"]
    if isinstance(dataset, IterableDataset):
        rows = [{column: row[column] for column in columns} for row in islice(dataset, STREAMED_ROWS)]
        return f"streamed, the first {len(rows)} rows {_digest(Dataset.from_list(rows), columns)}"
    return f"{len(dataset):,} rows, {_digest(dataset, columns)}"


def describe_targets(dataset: AnyDataset, targets: TargetTable) -> str:
    """Returns a digest of the targets of a prepared data set, in row order."""
    digest = hashlib.blake2b(digest_size=8)
    for prompt_ids in dataset["clean_ids"]:
        digest.update(np.array([-1, *targets[prompt_ids]], dtype=np.int32).tobytes())
    return digest.hexdigest()


def describe_order(trainer: Any) -> dict[str, str | int | bool]:
    """
    Returns what decides which rows a step gets beside the data, the seed and the number of rows in a step: a worker process
    draws the order of a shuffled stream with other random numbers, accelerate's sampler draws it otherwise than torch's, rows
    of like length are put together for each process, `max_length` decides which are packed together, and an epoch may leave out
    those that fill no batch. Whole batches of rollouts, which are noted elsewhere, are always what an epoch has.
    """
    args, rolls_out = trainer.args, getattr(trainer.args, "rolls_out", False)
    order = _describe_readers(trainer.train_dataset, args, rolls_out)
    if getattr(args, "packing", False):
        order["max_length"] = args.max_length
    if args.dataloader_drop_last and not rolls_out:
        order["rows_per_batch"] = rows_per_batch(trainer)
    return order


def _describe_readers(dataset: AnyDataset, args: Any, rolls_out: bool) -> dict[str, str | int | bool]:
    if isinstance(dataset, IterableDataset):
        # Rollouts are read without workers.
        draws = _draws(getattr(dataset, "_ex_iterable", None)) and not rolls_out
        return {"dataloader_num_workers": str(min(args.dataloader_num_workers, 1)) if draws else "0 or 1"}
    if args.train_sampling_strategy == "random" and not rolls_out:
        return {"use_seedable_sampler": args.accelerator_config.use_seedable_sampler}
    if args.train_sampling_strategy in ("random", "sequential"):
        return {}
    return {"rows_ordered_together": args.train_batch_size * args.gradient_accumulation_steps}


def _draws(stream: Any) -> bool:
    """Whether a stream as `datasets` holds it, or one that it reads, draws random numbers."""
    read = [getattr(stream, "ex_iterable", None), *getattr(stream, "ex_iterables", ())]
    return getattr(stream, "generator", None) is not None or any(_draws(of) for of in read if of is not None)


def find_differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None
) -> dict[str, tuple[Any, Any]]:
    """
    Returns the differences of two runs among the names that both have: an earlier version may have recorded fewer.

    The length is not a difference if the learning rate does not depend on it.
    """
    differences = {
        name: (saved[name], now[name])
        for name in (now if names is None else names)
        if name in saved and name in now and saved[name] != now[name]
    }
    warmup = now.get("warmup_steps") or 0
    is_constant = now.get("lr_scheduler_type") == "constant"
    is_constant |= (
        now.get("lr_scheduler_type") == "constant_with_warmup" and not 0 < warmup < 1
    )  # a share of all steps
    return {name: both for name, both in differences.items() if name != "length" or not is_constant}


def list_differences(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns the end of a message: a line for each difference, with what the checkpoint has and what is here."""
    return "".join(f"\n  `{name}`: {show(old)} there, {show(new)} here" for name, (old, new) in differences.items())


def show(value: Any) -> str:
    """Formats a value for a message."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = ", ".join(value)
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _digest(dataset: Dataset, columns: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for table in dataset.select_columns(list(columns)).with_format("arrow").iter(batch_size=10_000):
        for column in columns:
            for part in (pc.list_value_length(table[column]), pc.list_flatten(table[column])):
                digest.update(part.to_numpy().astype(np.int32).tobytes())
    return digest.hexdigest()


def as_json(value: Any) -> Any:
    """Returns a value as JSON knows it, with the keys of mappings sorted."""
    value = getattr(value, "value", value)
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

"""What a checkpoint notes of its run, and what counts as a difference."""

import dataclasses
from types import SimpleNamespace

import pytest

from tests.helpers.models import make_config, make_pairs
from tests.trainer.run.test_resumption import make_trainer, sharded
from trl_consistency import (
    ConsistencyConfig,
    OnPolicyConsistencyConfig,
)
from trl_consistency.trainer.run import manifest as run_manifest
from trl_consistency.trainer.run.manifest import describe_options, describe_order, describe_rows, find_differences


def test_length_counts_where_the_learning_rate_depends_on_it():
    def differs(**options):
        saved = {"length": "2 epochs", "lr_scheduler_type": "linear", "warmup_steps": 0, **options}
        return "length" in find_differences(saved, saved | {"length": "3 epochs"})

    assert differs()
    assert not differs(lr_scheduler_type="constant")
    assert not differs(lr_scheduler_type="constant_with_warmup", warmup_steps=10)
    assert differs(lr_scheduler_type="constant_with_warmup", warmup_steps=0.1)


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_evaluations_count_where_they_change_the_learning_rate(tmp_path, schedule):
    options = {"eval_strategy": "steps", "eval_steps": 3}
    constant = describe_options(make_config(tmp_path, **options), generates=False)
    by_loss = describe_options(make_config(tmp_path, lr_scheduler_type=schedule, **options), False)
    assert by_loss.keys() - constant.keys() == {"eval_strategy", "eval_steps", "eval_delay"}
    assert by_loss["eval_steps"] == 3


def test_order_of_rows():
    def describe(dataset, processes=1, **options):
        args = SimpleNamespace(
            **{
                **{"dataloader_num_workers": 2, "train_sampling_strategy": "random", "rolls_out": False},
                **{"train_batch_size": 4, "gradient_accumulation_steps": 1, "dataloader_drop_last": False},
                "accelerator_config": SimpleNamespace(use_seedable_sampler=False, split_batches=False),
                **options,
            }
        )
        accelerator = SimpleNamespace(num_processes=processes)
        return describe_order(SimpleNamespace(train_dataset=dataset, args=args, accelerator=accelerator))

    assert describe(make_pairs()) == {"use_seedable_sampler": False}
    assert describe(make_pairs(), rolls_out=True, dataloader_drop_last=True) == {}
    assert describe(sharded()) == describe(sharded(), train_batch_size=8) == {"dataloader_num_workers": "0 or 1"}
    grouped = {"train_sampling_strategy": "group_by_length"}
    assert describe(make_pairs(), **grouped) != describe(make_pairs(), train_batch_size=8, **grouped)
    drops = {"dataloader_drop_last": True}
    assert describe(make_pairs(), 2, **drops) == {"use_seedable_sampler": False, "rows_per_batch": 8}
    assert describe(make_pairs(), 2, **drops) == describe(make_pairs(), train_batch_size=8, **drops)


def test_digest_of_rows_knows_where_each_ends(tmp_path):
    trainer = make_trainer(tmp_path)
    rows = trainer.train_dataset
    assert describe_rows(rows) == describe_rows(rows.select(range(12)).flatten_indices())
    ids = [{"clean_ids": [1, 2], "perturbed_ids": [3]}, {"clean_ids": [1], "perturbed_ids": [2, 3]}]
    one, other = (type(rows).from_list([row]) for row in ids)
    assert describe_rows(one) != describe_rows(other)


# Options that decide no weight, or do it through the data, the targets, the template or the model, which are noted.
OTHERS = [
    "accelerator_config",
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "activation_offloading",
    "assistant_only_loss",
    "auto_find_batch_size",
    "average_tokens_across_devices",
    "batch_eval_metrics",
    "bf16_full_eval",
    "cache_implementation",
    "chat_template_kwargs",
    "chat_template_path",
    "completion_only_loss",
    "dataloader_in_order",
    "dataloader_multiprocessing_context",
    "dataloader_num_workers",  # noted where several read a stream
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "dataset_kwargs",
    "dataset_num_proc",
    "dataset_text_field",
    "ddp_backend",
    "ddp_broadcast_buffers",
    "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters",
    "ddp_static_graph",
    "ddp_timeout",
    "debug",
    "deepspeed",
    "disable_tqdm",
    "do_eval",
    "do_predict",
    "do_train",
    "dose_check",
    "ds3_gather_for_generation",
    "enable_jit_checkpoint",
    "eos_token",
    "eval_accumulation_steps",
    "eval_delay",
    "eval_do_concat_batches",
    "eval_on_start",
    "eval_packing",
    "eval_steps",
    "eval_strategy",
    "eval_use_gather_object",
    "bf16",  # noted as `mixed_precision`
    "fp16",
    "fp16_full_eval",
    "fsdp",
    "fsdp_config",
    "full_determinism",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "hub_always_push",
    "hub_model_id",
    "hub_private_repo",
    "hub_revision",
    "hub_strategy",
    "hub_token",
    "include_for_metrics",
    "include_num_input_tokens_seen",
    "label_names",
    "length_column_name",
    "liger_kernel_config",
    "local_rank",
    "log_completions",
    "log_consistency_metrics",
    "log_layer_distances",
    "log_level",
    "log_level_replica",
    "log_on_each_node",
    "log_unique_prompts",
    "logging_first_step",
    "logging_nan_inf_filter",
    "logging_steps",
    "logging_strategy",
    "max_length",
    "max_steps",
    "max_tool_calling_iterations",
    "model_init_kwargs",
    "no_shared_span",
    "num_completions_to_print",
    "num_generations_eval",
    "num_train_epochs",
    "output_dir",
    "overlong",
    "packing_strategy",
    "pad_to_multiple_of",
    "pad_token",
    "padding_free",
    "parallelism_config",
    "per_device_eval_batch_size",
    "per_device_train_batch_size",
    "prediction_loss_only",
    "project",
    "push_to_hub",
    "remove_unused_columns",
    "report_to",
    "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint",
    "run_name",
    "save_on_each_node",
    "save_only_model",
    "save_steps",
    "save_strategy",
    "save_total_limit",
    "share_prefix",
    "skip_memory_metrics",
    "steps_per_generation",
    "target_cache_dir",
    "teacher_model_init_kwargs",
    "teacher_model_name_or_path",
    "teacher_model_revision",
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
    "torch_empty_cache_steps",
    "trackio_bucket_id",
    "trackio_space_id",
    "trackio_static_space_id",
    "truncation_mode",
    "trust_remote_code",
    "use_cache",
    "use_cpu",
    "use_liger_kernel",
    "vllm_adapter_dir",
    "vllm_check_every",
    "vllm_enable_sleep_mode",
    "vllm_gpu_memory_utilization",
    "vllm_group_port",
    "vllm_max_model_length",
    "vllm_mode",
    "vllm_model_impl",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_sync",
    "vllm_tensor_parallel_size",
]


def test_every_option_is_either_noted_or_known_to_decide_nothing():
    options = {
        field.name for config in (ConsistencyConfig, OnPolicyConsistencyConfig) for field in dataclasses.fields(config)
    }
    noted = {*run_manifest.OPTIONS, *run_manifest.GENERATION}
    assert not noted & set(OTHERS)
    assert options == noted | set(OTHERS)

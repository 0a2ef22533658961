"""Every option that decides the result is on the card."""

from dataclasses import fields

import pytest

from tests.helpers.cards import card, make_trainer
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from tests.helpers.on_policy import make_trainer as make_on_policy_trainer
from trl_consistency import ConsistencyConfig, OnPolicyConsistencyConfig
from trl_consistency.trainer.card.other_options import DECIDING, describe_other_options


# Named by other facts of the card
SAID = (
    *("method", "method_weights", "layers", "act_tokens", "mlp_distance", "beta", "loss_temperature", "clip_range"),
    *("max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("learning_rate", "lr_scheduler_type", "optim", "seed", "bf16", "fp16", "model_init_kwargs", "anchor_ratio"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "resume_from_checkpoint"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "max_completion_length"),
    *("regenerate_targets_every", "use_vllm", "num_generations", "completion_length_schedule"),
    *("mask_truncated_completions", "train_on_thinking", "packing"),
)
# Refused, or used in no run of these trainers
UNUSED = (
    *("packing_strategy", "eval_packing", "completion_only_loss", "assistant_only_loss"),
    *("dataset_text_field", "dataset_kwargs", "truncation_mode", "teacher_model_name_or_path", "label_names"),
    *("teacher_model_revision", "teacher_model_init_kwargs", "max_tool_calling_iterations", "enable_jit_checkpoint"),
    *("average_tokens_across_devices", "auto_find_batch_size", "include_for_metrics", "batch_eval_metrics"),
    *("do_train", "do_eval", "do_predict", "length_column_name", "remove_unused_columns", "prediction_loss_only"),
)
# Time, memory, places, logs, evaluations and uploads
WITHOUT_EFFECT = (
    *(
        "output_dir",
        "padding_free",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "activation_checkpointing",
    ),
    *("activation_checkpointing_kwargs", "activation_offloading", "torch_compile", "torch_compile_backend"),
    *("torch_compile_mode", "liger_kernel_config", "use_cache", "torch_empty_cache_steps", "bf16_full_eval"),
    *("fp16_full_eval", "log_level", "log_level_replica", "log_on_each_node", "disable_tqdm", "report_to", "run_name"),
    *("project", "debug", "skip_memory_metrics", "include_num_input_tokens_seen", "use_cpu", "accelerator_config"),
    *("parallelism_config", "fsdp", "fsdp_config", "deepspeed", "local_rank", "trust_remote_code", "pad_token"),
    *("pad_to_multiple_of", "dataset_num_proc", "log_consistency_metrics", "log_layer_distances", "dose_check"),
    *("target_cache_dir", "num_generations_eval", "share_prefix", "ds3_gather_for_generation", "push_to_hub"),
    *("per_device_eval_batch_size", "log_completions", "num_completions_to_print", "log_unique_prompts"),
    "restore_callback_states_from_checkpoint",
)
PREFIXES = ("logging_", "eval_", "save_", "hub_", "trackio_", "dataloader_", "ddp_", "vllm_")


@pytest.mark.parametrize("config", [ConsistencyConfig, OnPolicyConsistencyConfig])
def test_every_option_is_named_or_decides_nothing(config):
    known = {*DECIDING, *SAID, *UNUSED, *WITHOUT_EFFECT}
    new = [field.name for field in fields(config) if field.name not in known and not field.name.startswith(PREFIXES)]
    assert not new, "put them on the card (`DECIDING`), or say here why not"


def test_the_lists_name_options():
    both = {field.name for config in (ConsistencyConfig, OnPolicyConsistencyConfig) for field in fields(config)}
    assert {*DECIDING} <= both
    assert not {*DECIDING} & {*SAID, *UNUSED}


@pytest.mark.parametrize("make", [make_config, make_on_policy_config])
def test_defaults_are_not_named(make, tmp_path):
    assert describe_other_options(make(tmp_path, gradient_accumulation_steps=2, warmup_steps=0)) == {}


@pytest.mark.parametrize("make", [make_config, make_on_policy_config])
def test_options_of_vllm_are_named_where_it_runs(make, tmp_path):
    options = {"vllm_model_impl": "transformers", "vllm_max_model_length": 64}
    assert describe_other_options(make(tmp_path, **options)) == {}
    said = describe_other_options(make(tmp_path, use_vllm=True, **options))
    assert said == {"Other options": "vllm_model_impl transformers, vllm_max_model_length 64"}


def test_whole_numbers_are_whole(tmp_path):
    """The seed stood there as 1.23457e+08."""
    said = describe_other_options(make_config(tmp_path, data_seed=123456789, weight_decay=0.000125))
    assert said == {"Other options": "weight_decay 0.000125, data_seed 123456789"}


def test_what_changes_the_models_config_is_named(tmp_path):
    given = {
        "rms_norm_eps": 0.5,
        "rope_parameters": {"rope_type": "yarn"},
        "attn_implementation": "eager",
        "token": "x",
        "dtype": "auto",
    }
    said = describe_other_options(make_config(tmp_path), given)
    assert said == {
        "Other options": 'rms_norm_eps 0.5, rope_parameters {"rope_type": "yarn"}, attn_implementation eager'
    }


def test_options_that_differ_are_on_the_card(tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text(f"{make_tokenizer().chat_template}{{{{ '' if enable_thinking else '' }}}}")
    options = {
        "weight_decay": 0.1,
        "warmup_steps": 3,
        "thinking_markers": ["<|think|>", "</think>"],
        "chat_template_kwargs": {"enable_thinking": False},
        "chat_template_path": str(template),
        "dataloader_drop_last": True,
    }
    text, _ = card(make_trainer(tmp_path, make_model(), pairs=make_pairs(), **options))
    (line,) = (line for line in text.splitlines() if line.startswith("| Other options |"))
    for said in (
        "weight_decay 0.1",
        "warmup_steps 3",
        "thinking_markers",
        "&lt;\\|think\\|&gt;",
        '"enable_thinking": false',
        "chat_template_path mine.jinja",
        "dataloader_drop_last true",
    ):
        assert said in line, said
    assert str(tmp_path) not in text
    assert "| Precision | weights in float32 |" in text


def test_options_of_rollouts_that_differ_are_on_the_card(tmp_path):
    options = {"num_iterations": 2, "steps_per_generation": 2, "thinking_markers": ["[T]", "[/T]"]}
    trainer = make_on_policy_trainer(tmp_path, lora=True, per_device_train_batch_size=2, **options)
    text, _ = card(trainer)
    assert 'thinking_markers ["[T]", "[/T]"], num_iterations 2, steps_per_generation 2' in text.replace("\\", "")

from dataclasses import replace

import pytest

from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyError, OnPolicyConsistencyConfig


def test_defaults(tmp_path):
    config = OnPolicyConsistencyConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert (config.num_generations, config.num_generations_eval, config.loss_type, config.beta) == (
        4,
        None,
        "divergence",
        1.0,
    )
    assert (config.temperature, config.loss_temperature, config.disable_dropout) == (1.0, 1.0, True)
    assert (config.max_length, config.overlong, config.anchor_ratio, config.clip_range) == (None, "error", 0.0, None)
    assert (config.steps_per_generation, config.num_iterations, config.is_off_policy) == (1, 1, False)


def test_one_optimizer_step_a_batch_of_rollouts_is_the_default(tmp_path):
    config = make_on_policy_config(tmp_path, gradient_accumulation_steps=4)
    assert config.steps_per_generation == 4
    assert not config.is_off_policy
    for options in ({"num_iterations": 2}, {"steps_per_generation": 8}):
        assert make_on_policy_config(tmp_path, gradient_accumulation_steps=4, **options).is_off_policy


FAULTY = {
    "unknown loss": ({"loss_type": "kl"}, "`loss_type` must be 'divergence' or 'policy_gradient'"),
    "beta": ({"beta": 1.5}, "`beta` must be between 0"),
    "greedy": ({"temperature": 0.0}, "`temperature` must be at least 0.0001 .greedy rollouts"),
    "negative temperature": ({"temperature": -1.0}, "`temperature` must be at least 0.0001"),
    "loss temperature": ({"loss_temperature": 0.0}, "`loss_temperature` must be at least 0.0001"),
    "text for a number": ({"loss_temperature": "1"}, "`loss_temperature` must be a number"),
    "group size": ({"num_generations": 3}, "makes 8 rollouts on each process, which do not divide"),
    "no group": ({"num_generations": 0}, "`num_generations` must be at least 1"),
    "no evaluation group": ({"num_generations_eval": 0}, "`num_generations_eval` must be at least 1"),
    "steps": (
        {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
        "`steps_per_generation` is 3, which is not a multiple",
    ),
    "clip without a ratio": ({"clip_range": 0.2}, "`clip_range` is set, but `loss_type` is 'divergence'"),
    "clip with one step": (
        {"loss_type": "policy_gradient", "clip_range": 0.2},
        "with one optimizer step a batch of rollouts the importance ratio is 1",
    ),
    "no length": ({"max_completion_length": None}, "`max_completion_length` must be at least 1, got None"),
    "anchors": ({"anchor_ratio": 1.0}, "`anchor_ratio` must be at least 0 and below 1"),
    "overlong": ({"overlong": "cut"}, "`overlong` must be 'error' or 'drop'"),
    "markers": ({"thinking_markers": ["<think>"]}, "`thinking_markers` must be two different texts"),
    "top_p": ({"top_p": 0.0}, "`top_p` must be above 0"),
    "teacher": ({"teacher_model_name_or_path": "x"}, "`teacher_model_name_or_path` is not available in on-policy"),
    "teacher options": ({"teacher_model_init_kwargs": {"a": 1}}, "`teacher_model_init_kwargs` is not available"),
    "teacher revision": ({"teacher_model_revision": "x"}, "`teacher_model_revision` is not available"),
    "tools": ({"max_tool_calling_iterations": 3}, "`max_tool_calling_iterations` is not available"),
    "vllm mode": ({"vllm_mode": "remote"}, "`vllm_mode` must be 'server' or 'colocate'"),
    "vllm implementation": ({"vllm_model_impl": "jax"}, "`vllm_model_impl` must be 'transformers' or 'vllm'"),
    "vllm memory": ({"vllm_gpu_memory_utilization": 0.0}, "`vllm_gpu_memory_utilization` must be above 0"),
    "vllm length": ({"vllm_max_model_length": 0}, "`vllm_max_model_length` must be at least 1"),
    "vllm weights": (
        {"vllm_importance_sampling_clip_max": 0.0},
        "`vllm_importance_sampling_clip_max` must be above 0",
    ),
    "weights without vllm": (
        {"vllm_importance_sampling_clip_max": 2.0, "loss_type": "policy_gradient"},
        "`vllm_importance_sampling_clip_max` is set, but no weights are used",
    ),
    "weights of the exact divergence": (
        {"vllm_importance_sampling_clip_max": 2.0, "use_vllm": True},
        "`vllm_importance_sampling_clip_max` is set, but no weights are used",
    ),
    "vllm's batches": (
        {"use_vllm": True, "rollout_batch_size": 8},
        "`rollout_batch_size` is not used with `use_vllm`",
    ),
    "vllm's cache": ({"use_vllm": True, "cache_implementation": "static"}, "`cache_implementation` is not used"),
    "server without the mode": (
        {"use_vllm": True, "vllm_server_base_url": "http://x"},
        "`vllm_server_base_url` is set, but it is for `vllm_mode: server`",
    ),
    "memory of a server": (
        {"use_vllm": True, "vllm_mode": "server", "vllm_gpu_memory_utilization": 0.5},
        "`vllm_gpu_memory_utilization` is set, but it is for `vllm_mode: colocate`",
    ),
    "temperature that vLLM does not have": (
        {"use_vllm": True, "temperature": 0.001},
        r"`temperature` is 0.001, and vLLM \(`use_vllm`\) would sample at 0.01",
    ),
    "rollouts that stop at a text, left out": (
        {"use_vllm": True, "generation_kwargs": {"stop": ["x"]}, "mask_truncated_completions": True},
        "those that stopped would be left out",
    ),
    "one seed for all rollouts": (
        {"use_vllm": True, "generation_kwargs": {"seed": 1}},
        "`generation_kwargs` sets `seed`. Set the option `seed`",
    ),
    "jit checkpoint": ({"enable_jit_checkpoint": True}, "SIGTERM saves a checkpoint without it"),
    "labels": ({"label_smoothing_factor": 0.1}, "there are no labels"),
    "batch search": ({"auto_find_batch_size": True}, "`auto_find_batch_size` is not available"),
    "batches out of order": ({"dataloader_in_order": False}, "rollouts of several batches mixed"),
    "weights cast by an evaluation": ({"bf16_full_eval": True}, "`bf16_full_eval` is not available"),
    "sampling": ({"train_sampling_strategy": "group_by_length"}, "`train_sampling_strategy` is not available"),
    "compile": ({"torch_compile": True}, "`torch_compile` is not available"),
    "local mean": ({"average_tokens_across_devices": False}, "a mean over the tokens of the global batch"),
    "split batches": ({"accelerator_config": {"split_batches": True}}, "`accelerator_config` sets `split_batches`"),
    "gloo alone": ({"ddp_backend": "gloo"}, "`ddp_backend` is gloo, but this is a single process"),
    "unknown generation option": (
        {"generation_kwargs": {"min_new_token": 1}},
        "unknown key `min_new_token`. Did you mean `min_new_tokens`",
    ),
    "stop strings": ({"generation_kwargs": {"stop_strings": ["x"]}}, "`stop_strings`, for which generation has no"),
    "beams": ({"generation_kwargs": {"num_beams": 2}}, "`generation_kwargs` sets `num_beams`"),
    "greedy by the back door": ({"generation_kwargs": {"do_sample": False}}, "`generation_kwargs` sets `do_sample`"),
    "another top_p": (
        {"generation_kwargs": {"top_p": 0.5}},
        "`generation_kwargs` sets `top_p`. Set the option `top_p`",
    ),
    "another end": ({"generation_kwargs": {"eos_token_id": 5}}, "sets `eos_token_id`. The trainer sets it itself"),
    "almost no temperature": ({"temperature": 1e-5}, "`temperature` must be at least 0.0001"),
    "template": (
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        "`chat_template_kwargs` sets `add_generation_prompt`",
    ),
}


@pytest.mark.parametrize("case", FAULTY)
def test_faulty_options(tmp_path, case):
    options, reason = FAULTY[case]
    with pytest.raises(ConsistencyError, match=reason):
        make_on_policy_config(tmp_path, **options)


def test_noise_of_shared_prompts_would_be_another(tmp_path):
    with pytest.raises(ConsistencyError, match=r"neftune_noise_alpha=5\.0 and share_prefix` is not available"):
        make_on_policy_config(tmp_path, neftune_noise_alpha=5.0)


def test_noise_of_each_pass_would_be_in_the_importance_ratio(tmp_path):
    options = {"loss_type": "policy_gradient", "neftune_noise_alpha": 5.0, "share_prefix": False}
    make_on_policy_config(tmp_path, **options)
    for weighs in ({"num_iterations": 2}, {"use_vllm": True}):
        with pytest.raises(ConsistencyError, match=r"neftune_noise_alpha=5\.0` is not available"):
            make_on_policy_config(tmp_path, **weighs, **options)


@pytest.mark.parametrize("several", [{"num_iterations": 2}, {"steps_per_generation": 2}, {"use_vllm": True}])
def test_dropout_of_each_pass_would_be_in_the_importance_ratio(tmp_path, several):
    """With a learning rate of 0, ratios were far from 1, and `clip_range` cut them."""
    options = {"loss_type": "policy_gradient", "disable_dropout": False}
    make_on_policy_config(tmp_path, **options)
    make_on_policy_config(tmp_path, disable_dropout=False, **several)
    with pytest.raises(
        ConsistencyError, match="disable_dropout=False` is not available with `loss_type='policy_gradient'`"
    ):
        make_on_policy_config(tmp_path, **options, **several)
    if "use_vllm" in several:
        make_on_policy_config(tmp_path, vllm_importance_sampling_correction=False, **options, **several)


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"generation_kwargs": {"min_new_tokens": 2}},
        {"use_vllm": True, "generation_kwargs": {"min_tokens": 2}},
        {"use_vllm": True, "vllm_structured_outputs_regex": "A|B"},
        {"loss_temperature": 2.0},
        {"beta": 0.5},
    ],
)
def test_the_estimate_needs_tokens_of_the_compared_distribution(tmp_path, options):
    make_on_policy_config(tmp_path, **options)
    with pytest.raises(ConsistencyError, match="not available with `loss_type='policy_gradient'`"):
        make_on_policy_config(tmp_path, loss_type="policy_gradient", **options)
    make_on_policy_config(tmp_path, loss_type="policy_gradient", temperature=2.0, loss_temperature=2.0)


@pytest.mark.parametrize("how", ["replace", "fields"])
def test_a_copy_settles_the_steps_of_rollouts_anew(tmp_path, how):
    """It trained two steps on each batch of rollouts: the steps that the first config had settled seemed to be given."""
    config = make_on_policy_config(tmp_path, gradient_accumulation_steps=4)
    changes = {"gradient_accumulation_steps": 2}
    copy = replace(config, **changes) if how == "replace" else type(config)(**{**config.to_dict(), **changes})
    assert (copy.steps_per_generation, copy.is_off_policy) == (2, False)
    given = make_on_policy_config(tmp_path, gradient_accumulation_steps=2, steps_per_generation=4)
    assert replace(given, output_dir=str(tmp_path / "other")).steps_per_generation == 4

"""Which of TRL's inner seams moved: everything that the trainers lean on beyond the documented API."""

import inspect
import re
import warnings

import pytest
from accelerate import Accelerator
from torch.distributed.fsdp import FSDPModule
from transformers import LlamaForCausalLM, Trainer
from trl import DistillationTrainer, GRPOConfig, GRPOTrainer, SFTTrainer
from trl.generation import vllm_client, vllm_generation
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tests.helpers.models import make_model
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyConfig, OnPolicyConsistencyTrainer, upstream
from trl_consistency.upstream import has_own_code


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_names_are_there():
    for name in upstream.__all__:
        assert callable(getattr(upstream, name))


SIGNATURES = {
    "RepeatSampler": ["data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed"],
    "create_model_from_path": ["model_id", "architecture", "kwargs"],
    "fsdp2_prepare_model": ["accelerator", "model"],
    "get_config_model_id": ["config"],
    "maybe_gather_lm_head_ctx": ["params"],
    "pad": ["tensors", "padding_value", "padding_side", "pad_to_multiple_of"],
    "prepare_deepspeed": ["model", "accelerator"],
    "repeat_iterable_dataset": ["dataset", "mini_repeat_count", "batch_size", "repeat_count"],
    "split_tensor_dict": ["tensor_dict", "num_chunks"],
    # TRL 1.15 has `is_peft_model` in the place of the third.
    "unwrap_model_for_generation": [
        "model",
        "accelerator",
        "gather_deepspeed3_params",
        "generation_kwargs",
        "gradient_checkpointing_kwargs",
    ],
    "use_adapter": ["model", "adapter_name"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_kept_their_signatures(name):
    assert parameters(getattr(upstream, name)) == SIGNATURES[name]


def test_unwrapping_turns_checkpointing_off_and_on_without_warnings():
    model, accelerator = make_model(), Accelerator(cpu=True)
    model.activation_checkpointing_enable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with upstream.unwrap_model_for_generation(model, accelerator) as unwrapped:
            assert unwrapped is model
            assert not model.is_activation_checkpointing
        assert model.is_activation_checkpointing
    with upstream.unwrap_model_for_generation(model, accelerator), pytest.warns(FutureWarning, match="mine"):
        warnings.warn("mine", FutureWarning)


def test_sft_trainer_keeps_what_the_routers_loss_leans_on():
    source = inspect.getsource(SFTTrainer)
    for line in (
        'self.aux_loss_enabled = hasattr(text_config, "output_router_logits") and self.router_aux_loss_coef != 0.0',
        "loss = loss + weighted_aux_loss / steps",
        "steps = self.current_gradient_accumulation_steps if num_items_in_batch is not None else 1",
    ):
        assert line in source
    assert "router_aux_loss_coef" not in OnPolicyConsistencyConfig.__dataclass_fields__, "OPCT then has to heed it"


def test_overridden_methods_kept_their_signatures():
    for name in (
        "_prepare_dataset",
        "_set_signature_columns_if_needed",
        "evaluate",
        "compute_loss",
        "prediction_step",
    ):
        assert parameters(getattr(ConsistencyTrainer, name)) == parameters(getattr(SFTTrainer, name)), name
    assert parameters(ConsistencyTrainer.__init__) == [*parameters(SFTTrainer.__init__), "anchor_dataset"]


def test_overridden_methods_of_the_on_policy_trainer_kept_their_signatures():
    for name in (
        "_set_signature_columns_if_needed",
        "get_train_dataloader",
        "_get_train_sampler",
        "_get_eval_sampler",
        "_prepare_inputs",
        "_generate_and_score_completions",
        "_tokenize_prompts",
        "compute_loss",
        "prediction_step",
        "log",
        "_save_checkpoint",
    ):
        ours, theirs = (getattr(trainer, name) for trainer in (OnPolicyConsistencyTrainer, DistillationTrainer))
        assert parameters(ours) == parameters(theirs), name
    for name in ("_load_rng_state", "_get_grad_norm", "evaluate", "predict"):
        assert parameters(getattr(OnPolicyConsistencyTrainer, name)) == parameters(getattr(Trainer, name)), name
    theirs = parameters(DistillationTrainer.__init__)
    assert parameters(OnPolicyConsistencyTrainer.__init__) == [*theirs, "ref_model", "anchor_dataset"]


def test_distillation_trainer_keeps_what_the_on_policy_trainer_leans_on():
    assert DistillationTrainer.loss_is_scaled_for_ga, "the loss is divided by the tokens of a whole optimizer step"
    generated = inspect.getsource(DistillationTrainer._generate_and_score_completions)
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "num_items_in_batch"):
        assert f'"{key}": ' in generated
    assert 'prompts = [x["prompt"] for x in inputs]' in generated
    assert "self._tokenize_prompts(prompts)" in inspect.getsource(DistillationTrainer._generate)
    assert "self._step += 1" in inspect.getsource(DistillationTrainer.training_step)
    assert "_load_rng_state" in inspect.getsource(Trainer._run_epoch)


def test_trainer_keeps_what_the_reduction_leans_on():
    assert "model_accepts_loss_kwargs" in inspect.getsource(Trainer._get_num_items_in_batch)
    assert "metric_key_prefix" in parameters(Trainer.evaluation_loop)


def test_collator_fields_that_the_constructor_copies():
    assert set(DataCollatorForLanguageModeling.__dataclass_fields__) == {
        "pad_token_id",
        "padding_free",
        "return_position_ids",
        "pad_to_multiple_of",
        "return_tensors",
    }


def test_vllm_generation_takes_what_the_engine_gives():
    """And its greedy, seed and stop tokens go the way that `TargetEngine` sends them."""
    vllm_generation = upstream.load_vllm_generation()
    assert {
        "mode",
        "gpu_memory_utilization",
        "max_model_length",
        "model_impl",
        "trust_remote_code",
        "repetition_penalty",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_completion_length",
    } <= set(parameters(vllm_generation.__init__))
    assert parameters(vllm_generation.__init__)[:4] == ["self", "model", "accelerator", "processing_class"]
    assert parameters(vllm_generation.generate) == ["self", "prompts", "images", "num_generations", "profiler"]
    assert "generation_kwargs.update(self.generation_kwargs)" in inspect.getsource(vllm_generation.generate)
    started = inspect.getsource(vllm_generation._init_vllm)
    assert "model=model.name_or_path" in started, "the engine loads the checkpoint by the model's name"


def test_vllm_generation_takes_what_the_rollout_engine_gives():
    """And asks the model for its weights in the one place that `RolloutEngine` answers in its stead."""
    vllm_generation = upstream.load_vllm_generation()
    assert {
        "structured_outputs_regex",
        "server_base_url",
        "server_host",
        "server_port",
        "server_timeout",
        "group_port",
        "tensor_parallel_size",
        "max_num_seqs",
        "enable_sleep_mode",
        "logprobs",
        "generation_kwargs",
    } <= set(parameters(vllm_generation.__init__))
    assert parameters(vllm_generation._iter_named_params) == ["self"]
    synced = inspect.getsource(vllm_generation.sync_weights)
    assert synced.count("self._iter_named_params()") == 4
    assert "self.model" not in synced
    started = inspect.getsource(vllm_generation._init_vllm)
    assert set(re.findall(r"\bmodel\.(\w+)", started)) == {"name_or_path", "named_modules"}


def test_distillation_trainer_starts_its_engine_by_one_option():
    source = inspect.getsource(DistillationTrainer)
    assert source.count("args.use_vllm") == 1
    assert source.count("VLLMGeneration(") == 1


def test_names_and_defaults_of_the_importance_weights_are_those_of_grpo():
    ours, theirs = OnPolicyConsistencyConfig.__dataclass_fields__, GRPOConfig.__dataclass_fields__
    for name in ("vllm_importance_sampling_correction", "vllm_importance_sampling_clip_max"):
        assert ours[name].default == theirs[name].default
    logged = inspect.getsource(GRPOTrainer)
    for name in ("sampling_logp_difference/mean", "importance_sampling_ratio/max"):
        assert f"sampling/{name}" in logged


def test_engine_class_makes_and_asks_vllm_as_the_adapter_needs():
    engine = inspect.getsource(vllm_generation.VLLMGeneration)
    for line in (
        "self.llm = LLM(",
        "self.vllm_client = VLLMClient(",
        "self.vllm_client.init_communicator(device=accelerator.device)",
        "self.llm.generate(vllm_prompts, sampling_params=sampling_params, use_tqdm=False)",
        "sampling_params = SamplingParams(**generation_kwargs)",
    ):
        assert engine.count(line) == 1, line
    assert "dtype=" not in inspect.getsource(vllm_generation.VLLMGeneration._init_vllm)
    client = inspect.getsource(vllm_client.VLLMClient.generate)
    assert '"model": self.model' in client


def test_code_of_its_own():
    """FSDP makes a class of its own for each sharded module."""

    class Own(LlamaForCausalLM):
        pass

    class Computing(Own):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    class Preparing(Own):
        def prepare_inputs_for_generation(self, *args, **kwargs):
            return super().prepare_inputs_for_generation(*args, **kwargs)

    config = make_model("llama").config
    sharded = type("FSDPLlamaForCausalLM", (FSDPModule, LlamaForCausalLM), {})
    kinds = (LlamaForCausalLM, Own, sharded, Computing, Preparing)
    assert [has_own_code(object.__new__(kind)) for kind in kinds] == [False, False, False, True, True]
    assert not has_own_code(LlamaForCausalLM(config))

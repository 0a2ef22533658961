"""
Engines that get whole weights. vLLM itself is not run here: TRL's engine class and client are, on stand-ins for what they call
in vLLM. `test_adapter_sync.py` has engines that get the adapter alone.
"""

import copy
import random
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from bitsandbytes.functional import dequantize_4bit
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion
from trl.generation.vllm_generation import VLLMGeneration

from tests.helpers.architectures import make
from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config, moved, uneven_pairs
from tests.helpers.runs import LORA
from tests.helpers.vllm_stand_in import colocated, served  # noqa: F401
from trl_consistency import ConsistencyError, OnPolicyConsistencyTrainer
from trl_consistency.data.rendering import render_prompt
from trl_consistency.models.checkpoint_weights import with_published_names
from trl_consistency.rollouts import vllm_engine
from trl_consistency.rollouts.policy_weights import policy_weights
from trl_consistency.rollouts.vllm_checks import check_policy
from trl_consistency.rollouts.vllm_engine import head_options


SIZES = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def make_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True))


def make_experts():
    torch.manual_seed(0)
    sizes = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **sizes))


def make_nf4(model_dir):
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(model_dir, quantization_config=config, dtype=torch.bfloat16)
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            # Otherwise an evaluation repacks the weights in place on CPUs with AVX512-BF16.
            module.support_avx512bf16_for_cpu = False
    return model


def adapted(model, config=None):
    """With an adapter that is not at its beginning."""
    return moved(get_peft_model(model, config or LoraConfig(**LORA)))


def merged(model):
    """The rival: PEFT merges, in a copy of the whole model. The names are those that transformers saves."""
    return published(copy.deepcopy(model).merge_and_unload())


def published(model):
    return revert_weight_conversion(model, dict(model.named_parameters()))


def bits(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# What is sent


ADAPTERS = {
    "lora": (make_model, LoraConfig(r=4, target_modules="all-linear")),
    "rslora": (make_model, LoraConfig(r=4, use_rslora=True, target_modules=["q_proj"])),
    "dora": (make_model, LoraConfig(r=4, use_dora=True, target_modules="all-linear")),
    "bias": (make_llama, LoraConfig(r=4, bias="all", target_modules=["q_proj", "v_proj"])),
    "lora bias": (make_llama, LoraConfig(r=4, lora_bias=True, target_modules=["q_proj", "v_proj"])),
    "whole modules": (
        make_model,
        LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    ),
    "embedding": (make_model, LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"])),
    "single tokens": (make_model, LoraConfig(r=4, target_modules=["q_proj"], trainable_token_indices=[3, 4])),
    "experts": (
        make_experts,
        LoraConfig(r=4, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    ),
    "ia3": (make_model, IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_weights_are_those_of_a_merged_model(kind, dtype):
    make, config = ADAPTERS[kind]
    model = adapted(make().to(dtype), copy.deepcopy(config))
    before, expected = bits(model), merged(model)
    sent = dict(policy_weights(model))
    assert sent.keys() == expected.keys()
    assert all(torch.equal(sent[name], weight) for name, weight in expected.items())
    untrained = published(make().to(dtype))
    assert any(not torch.equal(weight, untrained[name]) for name, weight in sent.items())
    after = bits(model)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("kind", ADAPTERS)
def test_weights_without_the_adapter_are_those_of_the_base(kind):
    make, config = ADAPTERS[kind]
    trained = get_peft_model(make(), copy.deepcopy(config))
    expected = published(make())
    model = adapted(make(), copy.deepcopy(config))
    with model.disable_adapter():
        sent = dict(policy_weights(model))
    assert sent.keys() == expected.keys()
    named = trained.get_base_model().named_parameters()
    own = {name.replace(".base_layer", "") for name, of in named if of.requires_grad}
    for name, weight in sent.items():  # biases of the base are trained themselves
        assert torch.equal(weight, expected[name]) or name in own


@pytest.mark.parametrize("dora", [False, True])
def test_four_bit_weights_are_sent_in_full(model_dir, dora):
    model = adapted(make_nf4(model_dir), LoraConfig(**LORA, use_dora=dora))
    before = bits(model)
    sent = dict(policy_weights(model))
    assert set(sent) == {name for name, _ in make_model().named_parameters()}
    adapted_layers = 0
    for name, layer in model.get_base_model().named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        base = layer.base_layer.weight
        factors = layer.lora_B["default"].weight, layer.lora_A["default"].weight
        delta = factors[0].float() @ factors[1].float() * (LORA["lora_alpha"] / LORA["r"])
        expected = dequantize_4bit(base.data, base.quant_state).float() + delta
        if dora:
            magnitude = layer.lora_magnitude_vector["default"].weight
            expected = expected * (magnitude / expected.norm(dim=1))[:, None]
        assert sent[f"{name}.weight"].dtype == torch.bfloat16
        assert torch.allclose(sent[f"{name}.weight"].float(), expected, rtol=1e-2, atol=1e-4)
        adapted_layers += 1
    assert adapted_layers == 14
    after = bits(model)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "qwen3_moe", "gemma3_with_vision"])
@pytest.mark.parametrize("lora", [True, False])
def test_names_are_those_of_saved_files(tmp_path, kind, lora):
    """vLLM knows these. They were those in memory, where the experts of a mixture are one tensor."""
    make(kind).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    model = type(make(kind)).from_pretrained(tmp_path)
    if lora:
        sent = dict(policy_weights(get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))))
    else:
        sent = dict(with_published_names(model, model.named_parameters()))
    assert sent.keys() == saved.keys()
    assert all(torch.equal(weight, saved[name]) for name, weight in sent.items())


def test_tied_weights_are_sent_once():
    model = make_llama()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model = adapted(model)
    assert dict(policy_weights(model)).keys() == merged(model).keys()
    assert "lm_head.weight" not in dict(policy_weights(model))


def test_one_copy_at_a_time():
    model = adapted(make_model())
    seen = []
    for _, weight in policy_weights(model):
        assert sum(ref() is not None for ref in seen) <= 1  # the one that the loop has just let go
        seen.append(weakref.ref(weight))
    assert len(seen) == 25


# The reference, under many syncs


def make_trainer(tmp_path, model, lora=False, pairs=None, callbacks=None, eval_dataset=None, **options):
    return OnPolicyConsistencyTrainer(
        model=model,
        args=make_on_policy_config(tmp_path, use_vllm=True, **{"vllm_sync": "weights", **options}),
        train_dataset=uneven_pairs() if pairs is None else pairs,
        eval_dataset=eval_dataset,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA) if lora else None,
        callbacks=callbacks,
    )


@pytest.fixture(params=["colocate", "server"])
def engine(request):
    """Options of a trainer with either kind of engine, and what holds the engine's model once it is made."""
    if request.param == "server":
        server = request.getfixturevalue("served")
        return {"vllm_mode": "server", "vllm_server_base_url": server.url}, lambda: server.held
    made = request.getfixturevalue("colocated")
    return {}, lambda: made[-1].held


def load(model_dir, kind):
    if kind == "nf4":
        return make_nf4(model_dir)
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        pytest.param("fp32", True, marks=pytest.mark.slow),
        pytest.param("fp32", False, marks=pytest.mark.slow),
        ("bf16", True),
        pytest.param("bf16", False, marks=pytest.mark.slow),
        ("nf4", True),
    ],
)
def test_reference_survives_fifty_syncs(engine, tmp_path, model_dir, kind, lora):
    options, held = engine
    trainer = make_trainer(tmp_path, load(model_dir, kind), lora, **options)
    reference, model = trainer.rollout_loss.reference, trainer.model
    prompt = torch.tensor([[5, 6, 7, 8]])
    with reference.active(model) as frozen:
        before = frozen(prompt).logits.log_softmax(-1)
    for sync in range(50):
        moved(model, seed=sync, scale=0.01)
        trainer.rollout_engine._generation.sync_weights()
    assert reference.compute_checksum() == reference.checksum
    with reference.active(model) as frozen:
        after = frozen(prompt).logits.log_softmax(-1)
    assert (before.exp() * (before - after)).sum().item() == 0.0
    student = model(prompt).logits.log_softmax(-1)
    assert (student - after).abs().max() > 0.01
    # And what arrived is the policy.
    expected = dict(policy_weights(model)) if lora else dict(model.named_parameters())
    weights = dict(held().model.named_parameters())
    assert held().received == list(expected) * 50
    assert all(torch.equal(weights[name], weight.to(weights[name].dtype)) for name, weight in expected.items())


def test_logits_in_float32_as_the_trainers():
    for model in (make_model(), get_peft_model(make_model(), LoraConfig(target_modules=["q_proj", "lm_head"]))):
        assert head_options(model, torch.bfloat16) == {"hf_overrides": {"head_dtype": "float32"}}
        assert head_options(model, torch.float32) == {}
    model = make_model()
    model.lm_head = torch.nn.Identity()  # as a quantized head, no linear layer
    assert head_options(model, torch.bfloat16) == {}


@pytest.mark.parametrize("kind", ["bf16", "nf4"])
def test_the_engine_of_trl_would_change_the_reference(colocated, tmp_path, model_dir, kind):  # noqa: F811
    trainer = make_trainer(tmp_path, load(model_dir, kind), lora=True)
    generation = trainer.rollout_engine._generation
    for sync in range(10):
        moved(trainer.model, seed=sync, scale=0.01)
        for _ in VLLMGeneration._iter_named_params(generation):
            pass
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        trainer.rollout_loss.reference.check()


# Rollouts


def mismatches(trainer, name="sampling_logp_difference/max"):
    return [entry[f"sampling/{name}"] for entry in trainer.state.log_history if f"sampling/{name}" in entry]


@pytest.mark.long
@pytest.mark.parametrize(
    ("lora", "options"),
    [
        (True, {}),
        pytest.param(False, {}, marks=pytest.mark.slow),
        (True, {"loss_type": "policy_gradient", "num_iterations": 2}),
        (False, {"temperature": 0.7, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}),
    ],
)
def test_the_engine_answers_as_the_policy_at_every_step(engine, tmp_path, model_dir, lora, options):
    """It says of its own tokens that they were as likely as the model in training finds them."""
    of_engine, held = engine
    trainer = make_trainer(
        tmp_path, load(model_dir, "fp32"), lora, max_steps=4, learning_rate=2e-2, **of_engine, **options
    )
    before = bits(trainer.model)
    trainer.train()
    assert any(not torch.equal(weight, before[name]) for name, weight in bits(trainer.model).items())
    assert len(held().received) == 25 * (4 // trainer.args.num_iterations)
    assert len(mismatches(trainer)) == 4
    assert max(mismatches(trainer)) < 1e-4
    for bound in ("min", "mean", "max"):
        assert mismatches(trainer, f"importance_sampling_ratio/{bound}") == pytest.approx([1.0] * 4, abs=1e-4)


def test_an_engine_with_old_weights_shows(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, load(model_dir, "fp32"), lora=True, max_steps=3, learning_rate=5e-2)
    sync, syncs = trainer.rollout_engine._generation.sync_weights, []
    trainer.rollout_engine._generation.sync_weights = lambda: syncs.append(syncs or sync())
    trainer.train()
    assert len(syncs) == 3
    first, *later = mismatches(trainer)
    assert first < 1e-4
    assert min(later) > 1e-2


@pytest.mark.long
def test_evaluation_and_a_second_training_find_the_weights_of_the_moment(colocated, tmp_path, model_dir):  # noqa: F811
    pairs = uneven_pairs(4)
    trainer = make_trainer(
        tmp_path,
        load(model_dir, "fp32"),
        lora=True,
        eval_dataset=pairs,
        max_steps=1,
        eval_strategy="steps",
        eval_steps=1,
    )
    for number in range(2):
        moved(trainer.model, seed=number)
        trainer.train()
        moved(trainer.model, seed=number, scale=0.2)  # as if the best model were loaded
        trainer.evaluate()
        assert max(mismatches(trainer)) < 1e-4
        told = [entry["eval_sampling/sampling_logp_difference/max"] for entry in trainer.state.log_history[-1:]]
        assert told[0] < 1e-4


def test_sleeping_engine(colocated, tmp_path, model_dir):  # noqa: F811
    """It forgets its weights at the end of each generation."""
    trainer = make_trainer(tmp_path, load(model_dir, "fp32"), lora=True, max_steps=2, vllm_enable_sleep_mode=True)
    trainer.train()
    (llm,) = colocated
    assert "wake ['weights']" in llm.calls
    assert all(weight.isnan().all() for weight in llm.held.model.parameters())
    assert max(mismatches(trainer)) < 1e-4


@pytest.mark.long
def test_resumed_between_two_steps_on_one_batch(colocated, tmp_path, model_dir):  # noqa: F811
    """The engine's log-probabilities are kept with the rollouts; new ones it would draw as it likes."""
    options = {
        "loss_type": "policy_gradient", "num_iterations": 3, "max_steps": 3, "save_strategy": "steps", "save_steps": 1
    }  # fmt: skip
    whole = make_trainer(tmp_path, load(model_dir, "bf16"), lora=True, **options)
    whole.train()
    assert max(mismatches(whole)) > 0
    resumed = make_trainer(tmp_path, load(model_dir, "bf16"), lora=True, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert not colocated[-1].held.received
    for (name, weight), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_arguments_arrive(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(
        tmp_path,
        load(model_dir, "nf4"),
        lora=True,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        repetition_penalty=1.1,
        vllm_model_impl="transformers",
        vllm_gpu_memory_utilization=0.5,
        vllm_max_model_length=256,
        generation_kwargs={"min_tokens": 2},
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=1,
    )
    assert trainer.args.use_vllm
    trainer.train()
    (llm,) = colocated
    expected = {
        "model": str(model_dir),
        "quantization": None,  # quantized weights could not be replaced
        "logprobs_mode": "processed_logprobs",
        "model_impl": "transformers",
        "gpu_memory_utilization": 0.5,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "tensor_parallel_size": 1,
        "trust_remote_code": False,
        "hf_overrides": {"head_dtype": "float32"},  # the trainer computes in bfloat16
    }
    assert {name: llm.options[name] for name in expected} == expected
    reset, sampling = llm.calls
    assert reset == "reset"
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (0.7, 0.9, 20, 1.1)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.logprobs, sampling.stop_token_ids) == (8, 2, 0, [2])


def test_the_seed_decides_after_the_engine_was_made(colocated, tmp_path, model_dir):  # noqa: F811
    """The engine seeds the random numbers of its process."""
    drawn = []
    for seed in (1, 2, 1):
        make_trainer(tmp_path, str(model_dir), seed=seed)
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert drawn[0] == drawn[2]
    assert all(one != other for one, other in zip(*drawn[:2], strict=True))


def test_engines_that_share_a_model_draw_the_same_tokens(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    """Each process had random numbers of its own, so that their engines went on from different tokens."""
    trainer = make_trainer(tmp_path, str(model_dir))
    engine, prompts = trainer.rollout_engine, [row["perturbed_ids"] for row in trainer.train_dataset][:2]
    engine._args.vllm_tensor_parallel_size = 2
    monkeypatch.setattr(vllm_engine, "gather_object", lambda drawn: [11, 12, 13, 14])
    sampled, after = [], []
    for process in range(4):
        engine._accelerator = SimpleNamespace(process_index=process, device=torch.device("cpu"))
        torch.manual_seed(process)
        np.random.seed(process)
        sampled.append(engine.sample(prompts, 8)[0])
        after.append((torch.rand(1).item(), np.random.rand()))
    assert sampled[0] == sampled[1] != sampled[2] == sampled[3]
    assert len(set(after)) == 4, "each process goes on with its own"


def test_rollouts_that_the_engine_would_cut(colocated, tmp_path, model_dir):  # noqa: F811
    """vLLM ends an answer where its context does."""
    longest = max(len(render_prompt(make_tokenizer(), row["perturbed_prompt"])) for row in uneven_pairs())
    with pytest.raises(
        ConsistencyError, match=f"is {longest + 7}, which would cut the answers: .*Raise it to at least {longest + 8}"
    ):
        make_trainer(tmp_path, str(model_dir), vllm_max_model_length=longest + 7)
    assert not colocated
    streamed = make_trainer(
        tmp_path, str(model_dir), pairs=uneven_pairs().to_iterable_dataset(), max_steps=8, vllm_max_model_length=longest + 7
    )  # fmt: skip
    with pytest.raises(ConsistencyError, match="which would cut the answers"):
        streamed.train()


def test_models_that_the_engine_would_not_have(colocated, tmp_path, model_dir):  # noqa: F811
    """It loads the files under the model's name."""
    model = moved(load(model_dir, "fp32"))
    options = {"vllm_sync": None, "lora": True}
    with pytest.raises(ConsistencyError, match=r"the weights of this one \(such as .*\) differ from those in"):
        make_trainer(tmp_path, model, **options)
    make_trainer(tmp_path, model)  # which sends them
    with pytest.raises(ConsistencyError, match="takes the main revision of a model, and the model's is `v2`"):
        make_trainer(tmp_path, str(model_dir), model_init_kwargs={"revision": "v2"}, **options)
    model = load(model_dir, "fp32")
    model.config.rms_norm_eps = 0.1
    with pytest.raises(ConsistencyError, match=r"whose config is another one than here \(rms_norm_eps\)"):
        make_trainer(tmp_path, model)


def test_without_the_correction_nothing_is_asked_nor_logged(engine, tmp_path, model_dir):
    options, _ = engine
    trainer = make_trainer(
        tmp_path, load(model_dir, "fp32"), lora=True, max_steps=1, vllm_importance_sampling_correction=False,
        loss_type="policy_gradient", **options,
    )  # fmt: skip
    trainer.train()
    assert not mismatches(trainer)
    assert trainer._engine_log_probs is None


# What is refused


def test_refused_models(colocated, tmp_path, model_dir):  # noqa: F811
    with pytest.raises(ConsistencyError, match="`use_vllm` loads the model from its name"):
        make_trainer(tmp_path, make_model(), lora=True)
    load(model_dir, "nf4").save_pretrained(tmp_path / "quantized")
    with pytest.raises(ConsistencyError, match="cannot take new weights into the quantized checkpoint"):
        make_trainer(tmp_path, AutoModelForCausalLM.from_pretrained(tmp_path / "quantized"), lora=True)
    assert not colocated
    model = load(model_dir, "fp32")
    model.hf_quantizer = object()
    with pytest.raises(ConsistencyError, match="another way than bitsandbytes' 4 bits"):
        check_policy(model, SimpleNamespace(state=None), make_on_policy_config(tmp_path, use_vllm=True))


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ],
)
def test_adapter_on_tied_embeddings_is_refused(tmp_path, options):
    model = make_llama()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    args = make_on_policy_config(tmp_path, use_vllm=True, vllm_mode="server")
    accelerator = SimpleNamespace(state=None, distributed_type=DistributedType.NO)
    check_policy(get_peft_model(copy.deepcopy(model), LoraConfig(**LORA)), accelerator, args)
    with pytest.raises(ConsistencyError, match="one of two tied embeddings"):
        check_policy(get_peft_model(model, LoraConfig(r=4, **options)), accelerator, args)


def test_sharded_adapters_are_refused(tmp_path):
    model = get_peft_model(make_model(), LoraConfig(**LORA))
    args = make_on_policy_config(tmp_path, use_vllm=True, vllm_mode="server")
    zero = SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3))
    for accelerator in (
        SimpleNamespace(state=zero, distributed_type=DistributedType.DEEPSPEED),
        SimpleNamespace(state=None, distributed_type=DistributedType.FSDP),
    ):
        check_policy(make_model(), accelerator, args)
        with pytest.raises(ConsistencyError, match="under FSDP or DeepSpeed ZeRO-3"):
            check_policy(model, accelerator, args)


def test_server_must_tell_how_likely_tokens_were(served, tmp_path, model_dir):  # noqa: F811
    served.logprobs_mode = "raw_logprobs"
    options = {"vllm_mode": "server", "vllm_server_base_url": served.url, "lora": True}
    with pytest.raises(ConsistencyError, match="Restart it with `--logprobs-mode processed_logprobs`"):
        make_trainer(tmp_path, load(model_dir, "fp32"), **options)
    make_trainer(tmp_path, load(model_dir, "fp32"), vllm_importance_sampling_correction=False, **options)


def test_not_installed(tmp_path, model_dir, monkeypatch):
    monkeypatch.setattr("trl_consistency.trainer.run.checks.find_spec", lambda name: None)
    with pytest.raises(ConsistencyError, match=r"`use_vllm` needs.*`pip install 'trl\[vllm\]'`"):
        make_trainer(tmp_path, load(model_dir, "fp32"))


# The real one


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bf16", "nf4"])
def test_with_vllm_itself(tmp_path, tokenizer, kind):
    pytest.importorskip("vllm")
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 256, "head_dim": 64}
    Qwen3ForCausalLM(Qwen3Config(**sizes, eos_token_id=2)).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    trainer = make_trainer(
        tmp_path, load(tmp_path / "model", kind).cuda(), lora=True, max_steps=5, use_cpu=False, bf16=True,
        vllm_max_model_length=512,
    )  # fmt: skip
    trainer.train()
    assert len(mismatches(trainer)) == 5
    assert max(mismatches(trainer, "sampling_logp_difference/mean")) < 0.05

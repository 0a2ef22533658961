"""Mixtures of experts: adapters on the experts' own weights, and the routers' load-balancing loss."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.conftest import make_config, make_pairs, make_tokenizer
from tests.trainer.test_on_policy_consistency_trainer import make_on_policy_config
from trl_consistency import ConsistencyError, ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.data.target_cache import fingerprint


SHAPE = {
    "vocab_size": 384,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
# PEFT registers a parameter that it adapts anew: the first of a module's, or one of two, thereby changes places.
MOVED = {
    "qwen3_moe": ["mlp.experts.gate_up_proj"],
    "gpt_oss": ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"],
}


def make_moe(kind="qwen3_moe", **options):
    torch.manual_seed(0)
    if kind == "gpt_oss":
        rope = {"rope_type": "default", "rope_theta": 10_000.0}
        layers = ["sliding_attention", "full_attention"]
        config = GptOssConfig(
            **SHAPE, intermediate_size=16, num_local_experts=4, layer_types=layers, rope_parameters=rope, **options
        )
        return GptOssForCausalLM(config)
    sizes = {"intermediate_size": 64, "moe_intermediate_size": 16, "num_experts": 4}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **sizes, **options))


def make_trainer(tmp_path, method, model, rows=8, **options):
    peft_config = options.pop("peft_config", None)
    arguments = {"train_dataset": make_pairs(rows), "processing_class": make_tokenizer(), "peft_config": peft_config}
    if method == "opct":
        return OnPolicyConsistencyTrainer(model, args=make_on_policy_config(tmp_path, **options), **arguments)
    return ConsistencyTrainer(model, make_config(tmp_path, method=method, **options), **arguments)


# Adapters on the experts' weights


@pytest.mark.parametrize("kind", MOVED)
@pytest.mark.parametrize("method", ["kl", "act", "opct"])
def test_an_adapter_on_experts_leaves_the_reference_as_it_is(tmp_path, method, kind):
    model = make_moe(kind)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    lora = LoraConfig(r=4, target_modules=["q_proj"], target_parameters=MOVED[kind])
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer = make_trainer(tmp_path, method, model, peft_config=lora, **options)
    names = list(dict(get_peft_model(make_moe(kind), lora).named_parameters()))

    trainer.train()  # checks the reference at each checkpoint

    assert list(dict(trainer.model.named_parameters())) != names, "no parameter has changed places"
    after = {name: parameter for name, parameter in trainer.model.named_parameters() if not parameter.requires_grad}
    for name, parameter in after.items():
        original = name.removeprefix("base_model.model.").replace("base_layer.", "")
        assert torch.equal(parameter, before[original]), name
    scored = trainer.rollout_loss if method == "opct" else trainer.paired_loss
    with torch.no_grad():
        next(parameter for name, parameter in after.items() if "experts" in name).view(-1)[7] += 1e-3
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        scored.reference.check()


def test_a_fingerprint_does_not_depend_on_places():
    lora = LoraConfig(r=4, target_modules=["q_proj"], target_parameters=MOVED["qwen3_moe"])
    model = get_peft_model(make_moe(), lora)
    before, places = fingerprint(model.named_parameters()), list(dict(model.named_parameters()))

    model(torch.tensor([[5, 6, 7]]))

    assert list(dict(model.named_parameters())) != places
    assert fingerprint(model.named_parameters()) == before

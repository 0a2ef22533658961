"""Mixtures of experts: adapters on the experts' own weights, and the routers' load-balancing loss."""

from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.helpers.architectures import FOR_TEXTS, make
from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_config, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyError, ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.generation.answer_cache import fingerprint


pytestmark = pytest.mark.long


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
    return trainer_of(method, tmp_path, model, options, **arguments)


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


# The routers' load-balancing loss


def balancing_loss(model, rows):
    """The definition, one token at a time: experts times the sum of their shares of tokens and of probability."""
    choices, probabilities = [], []
    for ids in rows:
        logits = model.model(input_ids=torch.tensor([ids]), output_router_logits=True).router_logits
        for of_token in torch.stack(logits).flatten(0, -2).softmax(-1):
            probabilities.append(of_token)
            choices.append(torch.zeros_like(of_token).index_fill(0, of_token.topk(2).indices, 1))
    return 4 * (torch.stack(choices).mean(0) * torch.stack(probabilities).mean(0)).sum()


def steps_of(trainer, *names):
    trainer.train()
    return [tuple(entry[name] for name in names) for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("kind", MOVED)
def test_metrics_do_not_change_bct(tmp_path, kind):
    options = {"max_steps": 2, "logging_steps": 1, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    alone, watched, unbalanced = (
        steps_of(make_trainer(tmp_path, "bct", make_moe(kind), **options, **others), "loss")
        for others in ({}, {"log_consistency_metrics": True}, {"router_aux_loss_coef": 0.0})
    )
    assert alone[0][0] - unbalanced[0][0] > 1e-3
    torch.testing.assert_close(torch.tensor(watched), torch.tensor(alone), rtol=3e-7, atol=0)  # float32's last digit


@pytest.mark.parametrize("method", ["bct", "kl", "act", "attct"])
def test_the_loss_holds_the_routers_part(tmp_path, method):
    options = {"max_steps": 1, "logging_steps": 1, "per_device_train_batch_size": 4, "shuffle_dataset": False}

    def first_step(**others):
        model = make_moe(attn_implementation="eager")
        trainer = make_trainer(tmp_path, method, model, rows=4, method_weights=[0.5], **options, **others)
        rows = [
            row["perturbed_ids"] + (row["completion_ids"] if trainer.args.needs_completions else [])
            for row in trainer.train_dataset
        ]
        expected = balancing_loss(model, rows).item()
        return *steps_of(trainer, "loss", "grad_norm")[0], expected, trainer

    loss, grad_norm, _, _ = first_step(router_aux_loss_coef=0.0)
    balanced, balanced_grad_norm, expected, trainer = first_step(router_aux_loss_coef=0.3)

    assert trainer.state.log_history[0]["aux_loss"] == pytest.approx(expected, rel=1e-5)
    assert balanced - loss == pytest.approx(0.3 * expected, rel=1e-5), "by its own coefficient, whatever the method's"
    assert balanced_grad_norm != pytest.approx(grad_norm, rel=1e-3)


def test_only_the_blocks_that_run_are_balanced(tmp_path):
    """And only they are trained: attention of block 0 is compared, and what follows in it is reached by its router alone."""
    model = make_moe(attn_implementation="eager")
    trainer = make_trainer(
        tmp_path, "attct", model, layers=[0], max_steps=1, logging_steps=1, router_aux_loss_coef=1.0
    )
    trainable = {name for name, _ in trainer.model.named_parameters()} - set(trainer._unused)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    trainer.train()

    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert "model.layers.0.mlp.gate.weight" in moved == trainable
    assert not any(name.startswith("model.layers.1") or ".experts." in name for name in trainable)


@pytest.mark.parametrize("kind", MOVED)
def test_rollouts_balance_the_routers(tmp_path, kind):
    """As in TRL's other on-policy trainers, by the coefficient of the model's config; a shared prompt counts as often."""

    def first_step(**options):
        coefficient = options.pop("coefficient", 0.3)
        model = make_moe(kind, router_aux_loss_coef=coefficient)
        options = {"max_steps": 1, "logging_steps": 1, "report_to": "none", **options}
        trainer = make_trainer(tmp_path, "opct", model, **options)
        return steps_of(trainer, *(["loss", "aux_loss"] if coefficient else ["loss"]))[0]

    (without,) = first_step(coefficient=0.0)
    plain = first_step(share_prefix=False)
    assert plain[0] - without == pytest.approx(0.3 * plain[1], rel=1e-5)
    assert first_step() == pytest.approx(plain, rel=1e-5), "by the cache"
    assert first_step(gradient_checkpointing=True) == pytest.approx(plain, rel=1e-5), "packed"
    halves = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    assert first_step(**halves) == pytest.approx(plain, rel=1e-3), "each micro-batch is balanced by itself"


def test_a_model_that_balances_its_routers_can_generate(tmp_path):
    """The config then asks for the loss, which the model cannot compute of the tokens that come one by one."""
    pairs = make_pairs(4, completion=False)
    arguments = {"train_dataset": pairs, "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_moe(), make_config(tmp_path, max_steps=1), **arguments)
    assert trainer.model.config.output_router_logits
    trainer.train()
    assert len(trainer.targets) == 4
    model = make_moe(output_router_logits=True)
    args = make_on_policy_config(tmp_path, max_steps=1)
    OnPolicyConsistencyTrainer(model, args=args, **{**arguments, "train_dataset": make_pairs(8)}).train()


@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_the_weight_of_the_routers_loss_is_of_one_training(tmp_path, coefficient):
    """It stayed in the model's config, so that later trainers, and those of the saved model, balanced by it."""
    model = make_moe(router_aux_loss_coef=0.3)
    first = make_trainer(tmp_path, "bct", model, router_aux_loss_coef=coefficient)
    assert first.router_aux_loss_coef == coefficient
    assert model.config.output_router_logits == first.aux_loss_enabled == (coefficient != 0)
    assert model.config.router_aux_loss_coef == 0.3
    assert [make_trainer(tmp_path, of, model).router_aux_loss_coef for of in ("kl", "opct")] == [0.3, 0.3]


def test_evaluation_without_padding(tmp_path):
    """It ended with a traceback: the routers' loss took the mask of the flat batch."""

    def evaluated(**options):
        trainer = make_trainer(tmp_path, "bct", make_moe(), **options)
        return trainer.evaluate(make_pairs(4))["eval_loss"]

    assert evaluated(padding_free=True) == pytest.approx(evaluated(), rel=1e-5)


@pytest.mark.parametrize("method", ["bct", ["bct", "act"], "opct"])
def test_a_dense_model_of_a_family_of_mixtures_has_no_such_loss(tmp_path, method):
    """Granite 4's dense models have the config of its mixtures, with 0 experts and a weight of the routers' loss."""
    model = make("granitemoehybrid", "sdpa", **FOR_TEXTS)
    assert model.config.router_aux_loss_coef > 0
    trainer = make_trainer(tmp_path, method, model, max_steps=1, logging_steps=1)
    trainer.train()
    assert not any("aux_loss" in name for entry in trainer.state.log_history for name in entry)


def test_the_weight_of_a_dense_model_is_refused(tmp_path):
    with pytest.raises(ConsistencyError, match=r"\(granitemoehybrid\) has no router logits"):
        make_trainer(tmp_path, "bct", make("granitemoehybrid", "sdpa", **FOR_TEXTS), router_aux_loss_coef=0.1)


@pytest.mark.parametrize(("coefficient", "is_refused"), [(None, True), (0.1, True), (0.0, False)])
def test_label_smoothing_without_the_routers_loss(tmp_path, coefficient, is_refused):
    """It was logged, and not trained on: TRL leaves it out then."""
    options = {"label_smoothing_factor": 0.1, "router_aux_loss_coef": coefficient}
    said = "With `label_smoothing_factor`, TRL does not train on the load-balancing loss"
    with pytest.raises(ConsistencyError, match=said) if is_refused else nullcontext():
        make_trainer(tmp_path, "bct", make_moe(), **options)

"""Engines that get the adapter alone, on a stand-in for vLLM; `test_with_vllm.py` has vLLM itself."""

import copy
import os
from types import SimpleNamespace

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from peft.helpers import rescale_adapter_scale
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerCallback

from tests.helpers.architectures import make
from tests.helpers.models import make_model, make_tokenizer, with_rope
from tests.helpers.on_policy import make_on_policy_config, moved, uneven_pairs
from tests.helpers.optimizers import Apart
from tests.helpers.runs import LORA
from tests.helpers.vllm_stand_in import LLM, colocated, with_adapter  # noqa: F401
from tests.rollouts.test_vllm_engine import adapted, bits, make_experts, make_llama, make_nf4, merged, mismatches
from trl_consistency import ConsistencyError, OnPolicyConsistencyTrainer
from trl_consistency.rollouts.adapter_sync import (
    AdapterSync,
    EngineHere,
    check_adapter,
    check_adapter_config,
    copy_of_adapter,
    engine_options,
    engine_tensors,
    folder_in_memory,
    holding,
    no_adapter,
    write_adapter,
)
from trl_consistency.rollouts.policy_weights import write_base
from trl_consistency.rollouts.vllm_checks import check_policy


def make_trainer(tmp_path, model, peft_config=None, eval_dataset=None, **options):
    return OnPolicyConsistencyTrainer(
        model=model,
        args=make_on_policy_config(tmp_path, use_vllm=True, **options),
        train_dataset=uneven_pairs(),
        eval_dataset=eval_dataset,
        processing_class=make_tokenizer(),
        peft_config=peft_config,
    )


def lora():
    return LoraConfig(**LORA)


# What is sent


SENT = {
    "plain": LoraConfig(r=4, lora_alpha=6, target_modules="all-linear"),
    "rslora": LoraConfig(r=4, use_rslora=True, target_modules=["q_proj", "down_proj"]),
    "patterns": LoraConfig(
        r=4,
        target_modules=["q_proj", "down_proj"],
        rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 9},
        alpha_pattern={"q_proj": 5},
    ),
    "head": LoraConfig(r=4, target_modules=["lm_head"]),
}


@pytest.mark.parametrize("kind", SENT)
def test_what_vllm_reads_is_the_policy(kind, tmp_path):
    """Read back in the stand-in's own words, it makes the model that PEFT merges."""
    model = adapted(make_model(), copy.deepcopy(SENT[kind]))
    expected, before = merged(model), bits(model)
    write_adapter(tmp_path, engine_tensors(model, copy_of_adapter(model)))
    assert sorted(os.listdir(tmp_path)) == ["adapter_config.json", "adapter_model.safetensors"]
    read = dict(with_adapter(make_model(), tmp_path).named_parameters())
    assert set(read) == set(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(read[name], weight, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(weight, read[name]) for name, weight in make_model().named_parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in bits(model).items())


def test_the_engine_is_made_for_the_largest_rank():
    options = engine_options(adapted(make_model(), copy.deepcopy(SENT["patterns"])), torch.bfloat16)
    assert options == {
        "enable_lora": True, "max_lora_rank": 16, "max_loras": 1, "max_cpu_loras": 1, "dtype": "bfloat16"
    }  # fmt: skip


def test_another_adapter_for_a_moment():
    model = adapted(make_model())
    before, first = bits(model), copy_of_adapter(model)
    prompt = torch.tensor([[5, 6, 7]])
    policy = model(prompt).logits
    moved(model, seed=5)
    later = bits(model)
    with holding(model, first):
        assert torch.equal(model(prompt).logits, policy)
    with holding(model, no_adapter(first)), model.disable_adapter():
        base = model(prompt).logits
    with holding(model, no_adapter(first)):
        assert torch.equal(model(prompt).logits, base)
    assert all(torch.equal(weight, later[name]) for name, weight in bits(model).items())
    assert any(not torch.equal(weight, before[name]) for name, weight in bits(model).items())


@pytest.mark.parametrize("tied", [False, True])
def test_base_of_four_bits_is_written_in_full(tmp_path, tied):
    model = make_llama()
    model.config.tie_word_embeddings = tied
    model.tie_weights()
    model.save_pretrained(tmp_path / "model")
    model = adapted(make_nf4(tmp_path / "model"))
    (tmp_path / "base").mkdir()
    write_base(model, make_tokenizer(), tmp_path / "base")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
    prompt = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad(), model.disable_adapter():
        expected = model(prompt).logits.float().log_softmax(-1)
    torch.testing.assert_close(plain(prompt).logits.float().log_softmax(-1), expected, rtol=0, atol=0.02)
    assert (tmp_path / "base" / "tokenizer.json").is_file()


def test_base_of_four_bits_is_written_with_what_is_not_trained(tmp_path):
    """Gemma 4 scales each block by a buffer. Without it, the engine took 1, and was of another base model."""
    model = make("gemma4", "sdpa")
    for block in model.model.layers:
        block.layer_scalar.fill_(0.25)
    model.save_pretrained(tmp_path / "model")
    model = adapted(make_nf4(tmp_path / "model"), LoraConfig(r=2, target_modules="all-linear"))
    (tmp_path / "base").mkdir()
    write_base(model, make_tokenizer(), tmp_path / "base")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
    assert {float(block.layer_scalar) for block in plain.model.layers} == {0.25}
    assert dict(plain.named_buffers()).keys() == dict(model.get_base_model().named_buffers()).keys()


# A training


def test_fifty_syncs_leave_the_reference_and_one_adapter(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora())
    reference, engine = trainer.rollout_loss.reference, trainer.rollout_engine
    base = {name: weight for name, weight in bits(trainer.model).items() if "lora_" not in name}
    (llm,) = colocated
    held = bits(llm.held.model)
    for sync in range(50):
        moved(trainer.model, seed=sync, scale=0.01)
        engine._adapter_sync.send()
        assert len(llm.adapters) == 1
    reference.check()
    assert all(torch.equal(weight, bits(trainer.model)[name]) for name, weight in base.items())
    assert all(torch.equal(weight, held[name]) for name, weight in bits(llm.held.model).items())
    (number,) = llm.adapters
    served, expected = bits(llm.adapters[number]), merged(trainer.model)
    assert all(torch.allclose(served[name], weight, rtol=1e-4, atol=1e-5) for name, weight in expected.items())
    assert not llm.held.received
    assert len(set(llm.folders)) == 51  # one more when the trainer is made
    assert not any(folder.exists() for folder in llm.folders)
    assert llm.folders[0].parent.as_posix() == "/dev/shm" or not os.access("/dev/shm", os.W_OK)
    assert folder_in_memory(2**60) is None  # no room for it


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{}, {"loss_type": "policy_gradient", "num_iterations": 2}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}],
)
def test_the_engine_answers_as_the_policy_at_every_step(colocated, tmp_path, model_dir, options):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=4, learning_rate=2e-2, **options)
    trainer.train()
    (llm,) = colocated
    assert len(llm.adapters) == 1
    assert len(set(llm.folders)) == 1 + 4 // trainer.args.num_iterations
    assert trainer.rollout_engine._origin.passed
    if "top_k" in options:  # filtered probabilities are not compared with the policy's
        assert not mismatches(trainer)
    else:
        assert len(mismatches(trainer)) == 4
        assert max(mismatches(trainer)) < 1e-4
    times = [entry["sampling/sync_seconds"] for entry in trainer.state.log_history if "sampling/sync_seconds" in entry]
    assert len(times) == 4 // trainer.args.num_iterations
    assert all(time > 0 for time in times)


@pytest.mark.long
def test_evaluation_and_a_second_training_find_the_adapter_of_the_moment(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), eval_dataset=uneven_pairs(4), max_steps=1)
    for number in range(2):
        moved(trainer.model, seed=number)
        trainer.train()
        moved(trainer.model, seed=number, scale=0.2)  # as if the best model were loaded
        trainer.evaluate()
        assert trainer.state.log_history[-1]["eval_sampling/sampling_logp_difference/max"] < 1e-4
        assert trainer.state.log_history[-1]["eval_sampling/origin/passed"] == 1


@pytest.mark.long
@pytest.mark.parametrize("sync", ["adapter", "weights"])
def test_evaluation_of_the_model_without_its_adapter(colocated, tmp_path, model_dir, sync):  # noqa: F811
    trainer = make_trainer(
        tmp_path, str(model_dir), lora(), uneven_pairs(4), max_steps=1, vllm_sync=sync, vllm_check_every=0
    )  # fmt: skip
    trainer.train()
    moved(trainer.model, scale=0.2)
    with trainer.model.disable_adapter():
        trainer.evaluate()
    trainer.evaluate()
    for entry in trainer.state.log_history[-2:]:
        assert entry["eval_sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.long
def test_an_evaluation_without_the_adapter_within_a_training(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), uneven_pairs(4), max_steps=3, learning_rate=5e-2)

    class WithoutAdapter(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            trainer.evaluate()
            with trainer.model.disable_adapter():
                trainer.evaluate()

    trainer.add_callback(WithoutAdapter())
    trainer.train()
    name = "sampling/sampling_logp_difference/max"
    told = [entry[of] for entry in trainer.state.log_history for of in (name, f"eval_{name}") if of in entry]
    assert len(told) == 9
    assert max(told) < 1e-4


def test_adapter_that_the_model_came_with(colocated, tmp_path, model_dir):  # noqa: F811
    model = adapted(AutoModelForCausalLM.from_pretrained(model_dir))
    trainer = make_trainer(tmp_path, model, max_steps=2)
    trainer.train()
    assert max(mismatches(trainer)) < 1e-4
    trainer.rollout_loss.reference.check()


def test_engine_of_a_four_bit_model_loads_the_same_weights(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, make_nf4(model_dir), lora(), max_steps=2)
    trainer.train()
    (llm,) = colocated
    assert llm.options["model"] != str(model_dir)
    assert not os.path.exists(llm.options["model"])
    assert llm.options["quantization"] is None
    assert trainer.rollout_engine._origin.passed
    trainer.rollout_loss.reference.check()


def test_without_the_correction_the_origin_is_still_checked(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(
        tmp_path, str(model_dir), lora(), max_steps=2, vllm_importance_sampling_correction=False
    )  # fmt: skip
    trainer.train()
    assert not mismatches(trainer)
    assert trainer.rollout_engine._origin.passed


# What is refused


REFUSED = {
    "use_dora": "vLLM does not serve DoRA",
    "bias": "the base model's biases",
    "lora_bias": "vLLM has no bias in adapters",
    "modules_to_save": "whole modules",
    "target_parameters": "adapters of linear layers alone",
    "trainable_token_indices": "embeddings stay as they are",
    "init_lora_weights": "it changes the base weights",
}
VALUES = {
    "use_dora": True,
    "bias": "all",
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "target_parameters": ["experts.gate_up_proj"],
    "trainable_token_indices": [3, 4],
    "init_lora_weights": "pissa",
}


@pytest.mark.parametrize("option", REFUSED)
def test_refused_options(option, colocated, tmp_path, model_dir):  # noqa: F811
    config = LoraConfig(r=4, target_modules=["q_proj"], **{option: VALUES[option]})
    with pytest.raises(ConsistencyError, match=REFUSED[option]) as error:
        make_trainer(tmp_path, str(model_dir), config)
    assert option in str(error.value)
    assert "vllm_sync: weights" in str(error.value)
    assert not colocated
    # Loaded models are looked at themselves, since an adapter's configuration does not tell all.
    if option == "init_lora_weights":
        return
    make = {"target_parameters": make_experts, "lora_bias": make_llama, "bias": make_llama}.get(option, make_model)
    model = adapted(make(), config).get_base_model()
    del model.peft_config
    with pytest.raises(ConsistencyError, match="the engine gets the adapter alone"):
        check_adapter(model)


def test_refused_models():
    with pytest.raises(ConsistencyError, match=r"IA3Config.*vLLM serves LoRA adapters only"):
        check_adapter_config(IA3Config(target_modules=["k_proj"]))
    with pytest.raises(ConsistencyError, match="has no LoRA adapter"):
        check_adapter(make_model())
    with pytest.raises(ConsistencyError, match=r"has the rank 513.*at most 512"):
        check_adapter(adapted(make_model(), LoraConfig(r=513, target_modules=["q_proj"])))
    two = get_peft_model(make_model(), LoraConfig(r=4, target_modules=["q_proj"]), adapter_name="one")
    two.add_adapter("two", LoraConfig(r=4, target_modules=["q_proj"]))
    two.base_model.set_adapter(["one", "two"])
    with pytest.raises(ConsistencyError, match=r"2 active adapters \(one, two\)"):
        check_adapter(two)
    unfrozen = adapted(make_model())
    unfrozen.base_model.model.model.norm.weight.requires_grad_(True)
    with pytest.raises(ConsistencyError, match=r"norm\.weight` is trained beside the adapter"):
        check_adapter(unfrozen)


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_modules": ["q_proj", "embed_tokens"]}, r"model\.embed_tokens` has more .*\(in `lora_embedding_A`\)"),
        ({"target_modules": ["embed_tokens"]}, r"model\.embed_tokens` has more .*\(in `lora_embedding_A`\)"),
        ({"target_modules": ["q_proj"], "lora_bias": True}, r"q_proj` has more .*\(in `lora_B`\)"),
        ({"target_modules": ["q_proj"], "use_dora": True}, r"q_proj` has more .*\(in `lora_magnitude_vector`\)"),
    ],
)  # fmt: skip
def test_parts_that_are_not_sent_are_refused_though_nothing_trains_them(options, said, is_trained):
    """An adapter that was loaded trains nothing, and its embeddings were left out of the answers."""
    make_one = make_llama if "lora_bias" in options else make_model
    model = get_peft_model(make_one(), LoraConfig(r=4, **options)).get_base_model()
    del model.peft_config
    for parameter in model.parameters():
        parameter.requires_grad_(is_trained and parameter.requires_grad)
    with pytest.raises(ConsistencyError, match=rf"The adapter of `.*{said}, .*linear layers alone"):
        check_adapter(model)


def test_rollouts_of_a_model_with_longrope(colocated, tmp_path):  # noqa: F811
    """They were cut at the context of short texts."""
    with_rope("longrope", 64).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    with pytest.raises(ConsistencyError, match=r"has a context of 64 tokens .*answers have up to 32"):
        make_trainer(tmp_path, model, lora(), max_completion_length=32)
    with pytest.raises(
        ConsistencyError, match=r"wrong positions: this model \(longrope\) has others beyond 64 tokens"
    ):
        make_trainer(tmp_path, model, lora(), vllm_max_model_length=128)
    assert make_trainer(tmp_path, model, lora(), max_completion_length=8)
    streams = {"train_dataset": uneven_pairs().to_iterable_dataset()}
    trainer = OnPolicyConsistencyTrainer(
        model=model, args=make_on_policy_config(tmp_path, use_vllm=True, max_steps=2, max_completion_length=32),
        processing_class=make_tokenizer(), peft_config=lora(), **streams,
    )  # fmt: skip
    with pytest.raises(ConsistencyError, match=r"has a context of 64 tokens .*answers have up to 32"):
        trainer.train()


def test_refused_trainings(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    with pytest.raises(ConsistencyError, match="`vllm_enable_sleep_mode` makes the engine forget its base model"):
        make_trainer(tmp_path, str(model_dir), lora(), vllm_enable_sleep_mode=True)
    with pytest.raises(ConsistencyError, match="has no LoRA adapter"):
        make_trainer(tmp_path, str(model_dir), vllm_sync="adapter")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), lora())
    model.get_base_model().hf_quantizer = object()
    with pytest.raises(ConsistencyError, match="would load the checkpoint in full precision"):
        check_policy(model, SimpleNamespace(state=None), make_on_policy_config(tmp_path, use_vllm=True), True)
    monkeypatch.setattr("trl_consistency.rollouts.vllm_checks.engine_is_on_cpu", lambda: True)
    for options in ({}, {"vllm_sync": "weights"}):
        with pytest.raises(
            ConsistencyError, match=r"cannot send whole weights to an engine on a CPU.*`use_peft: true`"
        ):
            make_trainer(tmp_path, str(model_dir), lora() if options else None, **options)
    assert not colocated


def test_an_engine_that_does_not_take_the_adapter(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    def refuse(self, request):
        raise ValueError("LoRA rank 4 is greater\nthan max_lora_rank 2.")

    monkeypatch.setattr(LLM, "add_lora", refuse)
    with pytest.raises(
        ConsistencyError, match="did not take the adapter in training: LoRA rank 4 is greater than max"
    ):
        make_trainer(tmp_path, str(model_dir), lora())


def test_an_engine_with_an_adapter_of_others(model_dir):
    model = adapted(AutoModelForCausalLM.from_pretrained(model_dir))
    held = {7}
    engine = SimpleNamespace(add_lora=lambda request: held.add(request.lora_int_id), list_loras=lambda: held)
    sync = AdapterSync(EngineHere(SimpleNamespace(llm_engine=engine, generate=None)), model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trl_consistency.rollouts.adapter_sync._numbers", iter([8]))
        patch.setattr(
            "trl_consistency.rollouts.adapter_sync.lora_request", lambda *args: SimpleNamespace(lora_int_id=args[1])
        )
        with pytest.raises(ConsistencyError, match=r"should hold only the adapter number 8.*holds \[7, 8\]"):
            sync.send()


def test_files_are_those_of_peft(tmp_path):
    """The names are the ones that PEFT writes for the same adapter."""
    model = adapted(make_model())
    model.save_pretrained(tmp_path / "peft")
    write_adapter(tmp_path / "ours", engine_tensors(model, copy_of_adapter(model)))
    ours, theirs = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("ours", "peft"))
    assert set(ours) == set(theirs)
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items() if "lora_A" in name)


# Optimizers that train on other weights than those that they give


@pytest.mark.long
@pytest.mark.parametrize("every", [0, 1])
def test_rollouts_after_an_evaluation_are_those_of_the_trained_weights(every, colocated, tmp_path, model_dir):  # noqa: F811
    """The engine kept the weights of the evaluation of the same step: the origin check stopped the run, or nobody saw it."""
    options = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "vllm_check_every": every}
    trainer = make_trainer(tmp_path, str(model_dir), lora(), eval_dataset=uneven_pairs(4), **options)
    trainer.optimizer = Apart([weight for weight in trainer.model.parameters() if weight.requires_grad], lr=0.0)
    trainer.train()
    assert len(mismatches(trainer)) == 3
    assert max(mismatches(trainer)) < 1e-4
    told = [
        log[name]
        for log in trainer.state.log_history
        for name in log
        if name == "eval_sampling/sampling_logp_difference/max"
    ]
    assert len(told) == 3
    assert max(told) < 1e-4


@pytest.mark.parametrize("sync", ["adapter", "weights"])
def test_an_adapter_of_another_scale_within_a_step(colocated, tmp_path, model_dir, sync):  # noqa: F811
    """The engine went on with the full adapter."""
    trainer = make_trainer(tmp_path, str(model_dir), lora(), vllm_sync=sync)
    moved(trainer.model, scale=0.2)
    engine, prompts = trainer.rollout_engine, [[5, 6, 7], [8, 9]]

    def log_probs():
        completions, told = engine(prompts, 0, 6)
        with torch.no_grad():
            scored = [
                trainer.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
                for prompt, ids in zip(prompts, completions, strict=True)
            ]
        here = [row[range(len(ids)), ids] for row, ids in zip(scored, completions, strict=True)]
        return torch.cat(here), torch.tensor([value for row in told for value in row])

    trainer.model.eval()
    for scale in (1.0, 0.25, -1.0):
        with rescale_adapter_scale(trainer.model, scale):
            here, told = log_probs()
        torch.testing.assert_close(told, here, rtol=0, atol=1e-4)
    here, told = log_probs()
    torch.testing.assert_close(told, here, rtol=0, atol=1e-4)


class Averaged(TrainerCallback):
    """Puts other weights into the model for an evaluation, as callbacks do that average them."""

    @torch.no_grad()
    def _move(self, model, by):
        for weight in model.parameters():
            if weight.requires_grad:
                weight.data.add_(by)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self._move(model, 0.25)

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        self._move(model, -0.25)


def test_rollouts_after_an_evaluation_of_averaged_weights(colocated, tmp_path, model_dir):  # noqa: F811
    """The rollouts of the next step came from the average."""
    options = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "vllm_check_every": 0}
    trainer = make_trainer(tmp_path, str(model_dir), lora(), eval_dataset=uneven_pairs(4), **options)
    trainer.add_callback(Averaged())
    trainer.train()
    assert len(mismatches(trainer)) == 3
    assert max(mismatches(trainer)) < 1e-4

"""The reference of `OnPolicyConsistencyTrainer`."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3ForCausalLM, TrainerCallback

from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config, make_trainer, moved, naive_loss, replay, uneven_pairs
from tests.helpers.runs import LORA, losses
from tests.helpers.spoiled import SpoilWeights
from trl_consistency import ConsistencyError, OnPolicyConsistencyTrainer


@pytest.mark.parametrize("lora", [False, True])
def test_reference_is_the_initial_policy_after_training_too(tmp_path, lora):
    pairs = uneven_pairs()
    trainer = make_trainer(tmp_path, pairs, lora=lora, max_steps=3, learning_rate=5e-2)
    initial = make_model()
    replay(trainer).train()
    reference = trainer.rollout_loss.reference
    assert reference.compute_checksum() == reference.checksum
    expected = naive_loss(trainer.model.eval(), initial, pairs, 2)
    assert expected > 1e-3
    trainer.args.per_device_eval_batch_size = 5
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


def test_a_reference_that_changes_is_noticed(tmp_path):
    class Meddler(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            model.get_base_model().model.embed_tokens.weight.data.add_(1e-3)

    trainer = make_trainer(tmp_path, lora=True, max_steps=1, callbacks=[Meddler()])
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        replay(trainer).train()


def test_biases_that_train_along_with_an_adapter_do_not_change_the_reference(tmp_path):
    """They are the base model's own: switching the adapter off does not take them back."""
    pairs = uneven_pairs()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**make_model("llama").config.to_dict(), "attention_bias": True}))
    initial = copy.deepcopy(model)
    trainer = OnPolicyConsistencyTrainer(
        model=model,
        args=make_on_policy_config(tmp_path, max_steps=2, learning_rate=5e-2),
        train_dataset=pairs,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA, bias="all"),
    )
    replay(trainer).train()
    expected = naive_loss(trainer.model.eval(), initial.eval(), pairs, 2)
    assert expected > 1e-3
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


def test_a_reference_that_changed_is_not_saved(tmp_path):
    trainer = make_trainer(tmp_path, lora=True, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.add_callback(SpoilWeights())
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        replay(trainer).train()
    assert trainer.state.global_step == 1
    assert not list(tmp_path.glob("checkpoint-*"))


def test_adapter_that_came_with_the_model_belongs_to_the_reference(tmp_path):
    pairs = uneven_pairs()
    model = moved(get_peft_model(make_model(), LoraConfig(**LORA)), scale=0.2)
    initial = copy.deepcopy(model)
    trainer = make_trainer(tmp_path, pairs, model, max_steps=2, learning_rate=5e-2)
    replay(trainer).train()
    expected = naive_loss(trainer.model.eval(), initial.eval(), pairs, 2)
    assert expected > 1e-3
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(expected.item(), abs=2e-6)


@pytest.mark.parametrize("by_path", [False, True])
def test_ref_model(tmp_path, by_path):
    other = moved(make_model(seed=3))
    before = [parameter.clone() for parameter in other.parameters()]
    other.save_pretrained(tmp_path / "other")
    pairs = uneven_pairs()
    trainer = make_trainer(
        tmp_path, pairs, lora=True, max_steps=1, per_device_train_batch_size=16,
        ref_model=str(tmp_path / "other") if by_path else other,
    )  # fmt: skip
    expected = naive_loss(copy.deepcopy(trainer.model), other, pairs, 2)
    replay(trainer).train()
    assert losses(trainer)[0] == pytest.approx(expected.item(), rel=1e-5)
    assert all(map(torch.equal, other.parameters(), before))


def test_ref_model_keeps_its_config(tmp_path):
    """What `model_init_kwargs` change is the student's, and was changed in the reference, too."""
    for name, seed in (("student", 0), ("ref", 1)):
        make_model(seed=seed).save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
    options = {"model_init_kwargs": {"rms_norm_eps": 0.5, "dtype": "bfloat16"}, "max_steps": 1}
    trainer = OnPolicyConsistencyTrainer(
        str(tmp_path / "student"),
        args=make_on_policy_config(tmp_path / "out", **options),
        train_dataset=uneven_pairs(),
        ref_model=str(tmp_path / "ref"),
    )
    assert trainer.model.config.rms_norm_eps == 0.5
    assert trainer.ref_model.config.rms_norm_eps == make_model().config.rms_norm_eps
    assert trainer.ref_model.dtype == trainer.model.dtype == torch.bfloat16


def test_ref_model_is_checked(tmp_path):
    with pytest.raises(ConsistencyError, match="vocabulary of 400 tokens and the model one of 384"):
        make_trainer(tmp_path, ref_model=make_model(vocab_size=400))
    model = make_model()
    for student in (model, get_peft_model(model, LoraConfig(**LORA))):
        with pytest.raises(ConsistencyError, match="`ref_model` shares weights with the model in training"):
            make_trainer(tmp_path, model=student, ref_model=model)


def test_ref_model_with_another_tokenizer(tmp_path):
    """Its vocabulary has as many tokens, which mean something else."""
    make_model(seed=3).save_pretrained(tmp_path / "ref")
    make_tokenizer().save_pretrained(tmp_path / "ref")
    make_trainer(tmp_path, ref_model=str(tmp_path / "ref"))
    file = tmp_path / "ref" / "tokenizer.json"
    file.write_text(file.read_text().replace('"A":', '"held":').replace('"B":', '"A":').replace('"held":', '"B":'))
    for ref_model in (str(tmp_path / "ref"), Qwen3ForCausalLM.from_pretrained(tmp_path / "ref")):
        with pytest.raises(
            ConsistencyError, match=r"`ref_model`: the data are read with a tokenizer in which '[AB]' is token"
        ):
            make_trainer(tmp_path, ref_model=ref_model)


@pytest.mark.long
@pytest.mark.parametrize("change", ["student", "base", "ref_model"])
def test_resumed_with_another_reference(tmp_path, change):
    """A run that goes on from its checkpoint as the model would have the half-trained student for a reference."""
    options = {"lora": change == "base", "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, **options).train()
    others = {
        "student": {"model": Qwen3ForCausalLM.from_pretrained(tmp_path / "checkpoint-1")}
        if change == "student"
        else {},
        "base": {"model": make_model(seed=5)},
        "ref_model": {"ref_model": make_model(seed=5)},
    }
    trainer = make_trainer(tmp_path, **options, **others[change])
    message = "`model`: .*Give the model that the run began with, not the checkpoint's"
    if change == "ref_model":
        message = "The reference differs from that of the checkpoint's run"
    with pytest.raises(ConsistencyError, match=f"(?s){message}"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))

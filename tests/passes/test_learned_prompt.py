"""Prompt and prefix tuning: kl against full logits, and true reasons where a learned prompt cannot be trained."""

import pytest
import torch
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model

from tests.helpers.distributions import make_sharp_model
from tests.helpers.models import make_config, make_pairs, make_tokenizer
from trl_consistency import ConsistencyError, ConsistencyTrainer


PROMPTS = {
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "encoder": PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8),
}


def make_trainer(tmp_path, kind="prompt", rows=4, **options):
    args = make_config(
        tmp_path, **{"method": "kl", "max_steps": 1, "logging_steps": 1, "shuffle_dataset": False} | options
    )
    torch.manual_seed(3)
    return ConsistencyTrainer(
        make_sharp_model(),
        args,
        train_dataset=make_pairs(rows),
        processing_class=make_tokenizer(),
        peft_config=PROMPTS[kind],
    )


def naive_kl(model, rows):
    """`KL(π_0(·|c, y_<t) ‖ π_θ(·|p, y_<t))` one row at a time, of whole logits; `c` is read without the learned prompt."""
    divergences = []
    for row in rows:
        answer = row["completion_ids"]
        with torch.no_grad(), model.disable_adapter():
            clean = model(input_ids=torch.tensor([row["clean_ids"] + answer])).logits[0]
        student = model(input_ids=torch.tensor([row["perturbed_ids"] + answer])).logits[0]
        log_q, log_p = (logits[-len(answer) - 1 : -1].log_softmax(-1) for logits in (clean, student))
        divergences.append((log_q.exp() * (log_q - log_p)).sum(-1))
    return torch.cat(divergences).mean()


@pytest.mark.parametrize("kind", PROMPTS)
def test_kl_of_a_learned_prompt_is_that_of_whole_logits(tmp_path, kind):
    trainer = make_trainer(
        tmp_path, kind, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_grad_norm=0
    )
    trainer.model.eval()  # the encoder of prompts may have dropout
    expected = naive_kl(trainer.model, trainer.train_dataset)
    expected.backward()
    of_naive = {
        name: parameter.grad.clone() for name, parameter in trainer.model.named_parameters() if parameter.requires_grad
    }
    trainer.model.zero_grad()
    grads = {}
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda grad, name=name: grads.update({name: grads.get(name, 0) + grad}))

    trainer.train()

    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert expected > 1e-2
    assert grads.keys() == of_naive.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, of_naive[name], rtol=1e-3, atol=1e-5)


def test_kl_teaches_a_learned_prompt(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=30, learning_rate=0.1, logging_steps=1, lr_scheduler_type="constant")
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("options", [{"method": "act"}, {"method": "mlpct"}, {"log_consistency_metrics": True}])
def test_states_inside_the_blocks_are_refused_for_what_they_are(tmp_path, options):
    with pytest.raises(
        ConsistencyError, match=r"Objectives on hidden states cannot train a learned prompt .*without PEFT's own"
    ):
        make_trainer(tmp_path, **options)


def test_a_learned_prompt_that_the_model_came_with(tmp_path):
    """The reference then has the prompt as it was."""
    torch.manual_seed(3)
    model = get_peft_model(make_sharp_model(), PROMPTS["prompt"])
    anchors = make_pairs(4)
    anchors = anchors.remove_columns("perturbed_prompt").add_column("perturbed_prompt", anchors["clean_prompt"])
    args = make_config(tmp_path, method="kl", max_steps=1, logging_steps=1)
    trainer = ConsistencyTrainer(model, args, train_dataset=anchors, processing_class=make_tokenizer())
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0, abs=1e-6)

"""The two sides of a step that the benchmark compares have one loss and one gradient."""

from functools import partial

import pytest
import torch
from peft import LoraConfig

from tests.benchmarks import steps
from tests.benchmarks.sizes import SIZES


TINY = SIZES["tiny"]


def loss_and_gradients(make, rival, monkeypatch):
    """Of the step that `make` makes for a rival, with an adapter that does something."""
    found = {}

    def differentiate(model, loss_of):
        loss_of().backward()
        found.update({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
        return float(loss_of().detach())

    def adapted(*args):
        model = make_adapted(*args)
        if (
            make is steps.activation_step
        ):  # transformers' last state is the one after the final norm, and ours the one before it.
            model.get_base_model().model.norm = torch.nn.Identity()
        return model

    make_adapted = steps.adapted
    monkeypatch.setattr(steps, "adapted", adapted)
    monkeypatch.setattr(steps, "LoraConfig", partial(LoraConfig, init_lora_weights=False))
    monkeypatch.setattr(steps, "_backward", differentiate)
    return make(rival, TINY)[0], found


@pytest.mark.parametrize(
    ("make", "rival"),
    [
        (steps.supervised_step, "whole model"),
        (steps.activation_step, "whole model"),
        (steps.divergence_step, "all logits"),
        (steps.rollout_step, "TRL"),
    ],
    ids=["bct", "act", "kl", "opct"],
)
def test_both_sides_of_a_step_compute_the_same(make, rival, monkeypatch):
    if make is steps.rollout_step:  # TRL's teacher reads the student's prompt, so here ours does, too.
        batch = steps.rollout_batch(TINY)
        same = {**batch, "clean_ids": batch["prompt_ids"], "clean_mask": batch["prompt_mask"]}
        monkeypatch.setattr(steps, "rollout_batch", lambda size: same)
    found = []
    for who in ("ours", rival):
        with monkeypatch.context() as patched:
            found.append(loss_and_gradients(make, who, patched))
    (loss, gradients), (of_rival, gradients_of_rival) = found
    assert loss > 0.01
    assert loss == pytest.approx(of_rival, rel=1e-4)
    assert gradients.keys() == gradients_of_rival.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, gradients_of_rival[name], rtol=1e-3, atol=1e-5)

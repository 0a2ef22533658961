"""OPCT's loss on ragged rollouts against the definition, rollout by rollout from whole logits, on every architecture."""

import pytest
import torch
from torch.testing import assert_close

from tests.helpers.architectures import CONFIGS, HYBRIDS, add_lora, make
from tests.helpers.on_policy import make_on_policy_config, naive_divergence
from tests.passes.test_prefix_sharing import make_batch
from trl_consistency.passes.reference import Reference
from trl_consistency.rollouts.loss import RolloutLoss


EAGER_ONLY = ("gemma2", "gpt_oss")
ROUNDS_MORE = ("granitemoehybrid",)  # its layers, in float32
# The prompt of each rollout and the rollout's length. The clean side is here longer and there shorter.
ROWS = ((0, 7), (1, 5), (0, 3), (2, 6), (0, 1), (2, 4))
PERTURBED, CLEAN = (9, 6, 2), (4, 11, 5)


def make_rollouts():
    prompt_ids, prompt_mask, completion_ids, completion_mask = make_batch(ROWS, PERTURBED)
    clean_ids, clean_mask, *_ = make_batch(ROWS, CLEAN)
    loss_mask = completion_mask.clone()
    loss_mask[1, 2] = 0  # a token that is not compared
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "clean_ids": clean_ids,
        "clean_mask": clean_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "loss_mask": loss_mask,
    }


def logits_of(model, rollouts, side, row):
    """Logits that predict a rollout's tokens, from the whole model on one text without padding."""
    prompt = rollouts[f"{side}_ids"][row][rollouts[f"{side}_mask"][row].bool()]
    completion = rollouts["completion_ids"][row][rollouts["completion_mask"][row].bool()]
    logits = model(input_ids=torch.cat([prompt, completion])[None], use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


def naive_loss(model, rollouts, beta):
    total = 0.0
    for row, length in enumerate(length for _, length in ROWS):
        with torch.no_grad(), model.disable_adapter():
            reference = logits_of(model, rollouts, "clean", row)
        divergence = naive_divergence(logits_of(model, rollouts, "prompt", row), reference, beta, temperature=1.0)
        total = total + (divergence * rollouts["loss_mask"][row, :length]).sum()
    return total / rollouts["loss_mask"].sum()


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.long
@pytest.mark.parametrize("kind", [*CONFIGS, *HYBRIDS])
def test_equals_the_definition_on_every_architecture(tmp_path, kind):
    model = add_lora(make(kind, "eager" if kind in EAGER_ONLY else "sdpa"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_B" in name:
            parameter.data.div_(2)  # as they are, the layers of Qwen3.5 magnify what is rounded
    rollouts = make_rollouts()
    args = make_on_policy_config(tmp_path, beta=0.5)
    expected = naive_loss(model, rollouts, args.beta)
    expected_gradients = gradients(expected, model)
    losses = RolloutLoss(args, Reference(model, adapter_off=True))(model, rollouts)["loss"]
    loss = losses.sums.sum() / losses.counts.sum()
    assert_close(loss, expected.float(), rtol=1e-6, atol=1e-6)
    found = gradients(loss, model)
    assert expected_gradients.norm() > 0
    within = 1e-5 * expected_gradients.norm()
    if kind in ROUNDS_MORE:  # The definition in float32 is about as far from that in float64.
        exact = gradients(naive_loss(model.double(), rollouts, args.beta), model)
        expected_gradients, within = exact, max(within, 2 * (expected_gradients - exact).norm())
    assert (found - expected_gradients).norm() <= within

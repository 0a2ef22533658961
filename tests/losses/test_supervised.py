"""BCT alone: the last block runs only where a label is predicted, with the same losses and gradients."""

import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from tests.helpers.models import make_model
from trl_consistency.losses.supervised import ObservedModel, flat_inputs, supervised_row_losses
from trl_consistency.passes.flat import FlatBatch, prepare_padding_free


LENGTHS, PROMPTS = (12, 9, 5), (8, 4, 4)
MASK = (torch.arange(12) < torch.tensor(LENGTHS)[:, None]).long()
IDS = torch.randint(3, 300, (3, 12), generator=torch.Generator().manual_seed(0)) * MASK
LABELS = torch.where((torch.arange(12) >= torch.tensor(PROMPTS)[:, None]) & MASK.bool(), IDS, -100)
PREDICTED = int((LABELS != -100).sum())


def make():
    model = make_model()
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    counts = []
    last = model.model.layers[-1].mlp.down_proj
    forward = last.forward

    def count(values):  # not a hook, for which the block would run whole
        counts.append(values.shape[:-1].numel())
        return forward(values)

    last.forward = count
    return model, counts


def batch():
    return {"input_ids": IDS, "attention_mask": MASK.clone(), "labels": LABELS}


def grads(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: of.grad.clone() for name, of in model.named_parameters()}


@pytest.mark.parametrize("flat", [False, True])
def test_training_is_that_of_whole_blocks(flat):
    model, counts = make()
    found = []
    if flat:
        prepare_padding_free(model)
        counts.clear()
    for whole in (True, False):
        inputs, of_flat = batch(), None
        if flat:
            of_flat = FlatBatch.of(inputs["input_ids"], inputs["attention_mask"])
            inputs = flat_inputs(inputs, of_flat)
        student = ObservedModel(model, model, hides_padding=True, whole=whole, flat=of_flat)
        outputs = student(**inputs, use_cache=False, fused_lm_head=True)
        found.append((student.row_losses().sums, grads(model, -outputs.log_probs.sum())))
    assert counts == [sum(LENGTHS) if flat else IDS.numel(), PREDICTED]
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1])


def test_evaluation_is_that_of_whole_blocks():
    model, counts = make()
    with torch.no_grad():
        expected, found = (
            supervised_row_losses(model, model, batch() | {"is_anchor": None}, "nll", whole=whole)
            for whole in (True, False)
        )
    assert counts == [IDS.numel(), PREDICTED]
    for ours, of_whole in zip(found, expected, strict=True):
        assert ours.keys() == of_whole.keys()
        for name in ours:
            torch.testing.assert_close(ours[name].sums, of_whole[name].sums)


def test_logits_are_those_of_all_positions():
    model, counts = make()
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    logits = ObservedModel(model, model, hides_padding=True, whole=False)(**inputs).logits
    assert counts == [IDS.numel()]
    torch.testing.assert_close(logits, model(input_ids=IDS, attention_mask=MASK).logits)

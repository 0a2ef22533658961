"""Training and evaluation without padding equal those with padding, and with each row alone."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.helpers.architectures import FOR_TEXTS, make
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer
from tests.helpers.runs import losses
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.passes import flat


@pytest.fixture(autouse=True)
def sdpa():
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


@pytest.fixture
def widths(monkeypatch):
    """Shapes of the token ids that became flat batches."""
    seen = []
    of = flat.FlatBatch.of.__func__
    monkeypatch.setattr(
        flat.FlatBatch, "of", classmethod(lambda cls, ids, mask: seen.append(tuple(ids.shape)) or of(cls, ids, mask))
    )
    return seen


OPTIONS = {
    "bct": {"method": ["bct"]},
    "bct, weighted by its own probability": {"method": ["bct"], "loss_type": "dft"},
    "bct, smoothed": {"method": ["bct"], "label_smoothing_factor": 0.1},
    "bct, watched": {"method": ["bct"], "log_consistency_metrics": True},
    "kl": {"method": ["kl"]},
    "act": {"method": ["act"], "layers": [0]},
    "act on answers": {"method": ["act"], "act_tokens": "all"},
    "mlpct": {"method": ["mlpct"]},
    "three": {"method": ["bct", "kl", "act"], "method_weights": [1.0, 0.5, 0.1], "gradient_accumulation_steps": 2},
    "checkpointed": {"method": ["bct", "act"], "gradient_checkpointing": True},
    "with anchors": {"method": ["kl"], "anchor_ratio": 0.5},
    "with a limit": {"method": ["bct"], "max_length": 100},
}


def run(folder, model=None, **options):
    trainer = make_trainer(
        folder,
        model=model,
        lora=True,
        eval_dataset=make_pairs(5),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=3,
        max_steps=3,
        logging_steps=1,
        **options,
    )
    trainer.train()
    evaluated = {k: v for k, v in trainer.evaluate().items() if "runtime" not in k and "per_second" not in k}
    logged = [
        {k: v for k, v in entry.items() if "time" not in k} for entry in trainer.state.log_history if "loss" in entry
    ]
    weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    return losses(trainer), logged, evaluated, weights


@pytest.mark.long
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_equals_padded(tmp_path, options, widths):
    padded = run(tmp_path / "padded", **options)
    assert not widths
    without = run(tmp_path / "flat", padding_free=True, **options)
    assert {rows for rows, _ in widths} >= {4, 3}  # training and evaluation
    assert len(padded[0]) == 3
    for ours, theirs in zip(without, padded, strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_loss_that_balances_routers(tmp_path):
    """Padding is no token there, either way."""
    options = {"method": ["bct"], "router_aux_loss_coef": 0.5}
    results = []
    for padding_free in (False, True):
        trainer = make_trainer(
            tmp_path / str(padding_free),
            model=make("qwen3_moe", "sdpa", **FOR_TEXTS),
            per_device_train_batch_size=4,
            max_steps=2,
            logging_steps=1,
            padding_free=padding_free,
            **options,
        )
        trainer.train()
        results.append([[entry[key] for key in ("loss", "aux_loss")] for entry in trainer.state.log_history[:2]])
    assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_logits_of_an_evaluation_are_by_row(tmp_path):
    """`compute_metrics` gets what it gets with padding."""
    shapes = []
    for padding_free in (False, True):
        trainer = ConsistencyTrainer(
            model=make_model(),
            args=make_config(tmp_path, padding_free=padding_free),
            train_dataset=make_pairs(),
            eval_dataset=make_pairs(3),
            processing_class=make_tokenizer(),
            compute_metrics=lambda prediction: shapes.append(prediction.predictions.shape) or {},
        )
        trainer.evaluate()
    assert shapes[0] == shapes[1]
    assert shapes[0][0] == 3


def test_hybrids_are_refused_before_training(tmp_path):
    with pytest.raises(ConsistencyError, match=r"`padding_free` is not possible: `Lfm2Model` has recurrent layers"):
        make_trainer(tmp_path, model=make("lfm2", "sdpa", **FOR_TEXTS), padding_free=True)


def test_the_models_own_state_is_left_as_it_was(tmp_path):
    trainer = make_trainer(tmp_path, padding_free=True)
    assert trainer.args.padding_free
    assert not trainer.data_collator.padding_free
    assert trainer.model.config._attn_implementation == "sdpa"
    assert torch.isfinite(next(trainer.model.parameters())).all()

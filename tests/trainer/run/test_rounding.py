"""Trained weights in 16 bits: what cannot be trained so, and steps that they are too coarse for."""

import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer
from tests.helpers.runs import LORA
from trl_consistency import ConsistencyError, ConsistencyTrainer


@pytest.mark.parametrize("kind", ["whole", "head"])
def test_weights_in_float16_are_not_trained(tmp_path, kind):
    """AdamW moved them 13 to 28 times as far as its learning rate says, and nothing said so."""
    model = make_model().to(torch.float16)
    if kind == "head":
        model = get_peft_model(model, LoraConfig(**LORA, modules_to_save=["lm_head"]))
    with pytest.raises(ConsistencyError, match="is trained, and in float16"):
        make_trainer(tmp_path, model=model, pairs=make_pairs(4))


def warnings_of(tmp_path, caplog, model, **options):
    with caplog.at_level(logging.WARNING):
        make_trainer(tmp_path, model=model, pairs=make_pairs(4), max_steps=1, **options).train()
    return [text for text in caplog.messages if "round" in text]


def test_steps_that_weights_in_16_bits_round_away(tmp_path, caplog):
    """A training of whole weights in bfloat16 at 1e-6 changed one weight in fifty, and nothing said so."""
    model = make_model().to(torch.bfloat16)
    (text,) = warnings_of(tmp_path, caplog, model, learning_rate=1e-6)
    assert "`learning_rate` is 1e-06" in text
    assert "bfloat16" in text
    assert "`dtype: float32`" in text


def test_the_share_is_that_of_weights_that_do_not_change(tmp_path, caplog):
    """By a step of AdamW, of which each is as large as the learning rate."""
    model = make_model().to(torch.bfloat16)
    before = {name: of.detach().clone() for name, of in model.named_parameters()}
    (text,) = warnings_of(tmp_path, caplog, model, learning_rate=1e-5, lr_scheduler_type="constant")
    same = sum(int((of == before[name]).sum()) for name, of in model.named_parameters())
    share = float(text.split("% of the trained weights")[0].split()[-1])
    # Those between a half and a whole unit may change or not, by where in its power of two a weight is.
    assert 0.5 < share / 100 <= same / sum(of.numel() for of in model.parameters()) + 0.02


def test_a_small_module_beside_an_adapter(tmp_path, caplog):
    """None of a norm's weights changed, and they are few beside those of the LoRA."""
    model = get_peft_model(make_model().to(torch.bfloat16), LoraConfig(**LORA, modules_to_save=["norm"]))
    name = next(name for name, of in model.named_parameters() if of.requires_grad and "lora" not in name)
    (text,) = warnings_of(tmp_path, caplog, model, learning_rate=1e-4)
    assert f"does not change 100% of the weights of `{name}`" in text


@pytest.mark.parametrize("way", ["args", "optimizer"])
def test_a_rate_that_is_assigned_after_the_trainer_was_made(tmp_path, caplog, way):
    """Only the rate of the constructor was looked at, and training begins with the other one."""
    model = make_model().to(torch.bfloat16)
    trainer = make_trainer(tmp_path, model=model, pairs=make_pairs(4), max_steps=1, learning_rate=1e-2)
    if way == "args":
        trainer.args.learning_rate = 1e-6
    else:
        trainer.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    assert "round" not in caplog.text
    trainer.train()
    assert "`learning_rate` is 1e-06" in caplog.text
    caplog.clear()
    trainer.train()  # whose rate has come to its end
    assert "round" not in caplog.text


@pytest.mark.parametrize("way", ["adafactor", "optimizers", "optimizer_cls_and_kwargs"])
def test_other_optimizers_with_such_steps(tmp_path, caplog, way):
    model, options, given = make_model().to(torch.bfloat16), {"learning_rate": 1.0}, {}
    if way == "adafactor":
        options = {"learning_rate": 1e-6, "optim": "adafactor"}
    elif way == "optimizers":
        given = {way: (torch.optim.AdamW(model.parameters(), lr=1e-6), None)}
    else:
        given = {way: (torch.optim.AdamW, {"lr": 1e-6})}
    with caplog.at_level(logging.WARNING):
        ConsistencyTrainer(
            model,
            make_config(tmp_path, **options),
            train_dataset=make_pairs(4),
            processing_class=make_tokenizer(),
            **given,
        )
    assert "`learning_rate` is 1e-06" in caplog.text


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {"learning_rate": 1e-6}),
        (torch.bfloat16, {"learning_rate": 1e-3}),
        (torch.bfloat16, {"learning_rate": 1e-6, "lora": True}),
        (torch.bfloat16, {"learning_rate": 1e-6, "optim": "sgd"}),
    ],
)
def test_no_warning(tmp_path, caplog, dtype, options):
    assert not warnings_of(tmp_path, caplog, make_model().to(dtype), **options)

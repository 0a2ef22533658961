"""Optimizers that train on other weights than those that they give, as schedule-free ones do, which average."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from tests.helpers.held_out import CONTROL, PAIRS
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.optimizers import Apart
from trl_consistency import ConsistencyEvalCallback, ConsistencyTrainer
from trl_consistency.trainer.callbacks import evaluation
from trl_consistency.trainer.target_maker import TargetMaker


def made(tmp_path, pairs=None, **options):
    model = make_model()
    before = flat(model)
    trainer = ConsistencyTrainer(
        model=model,
        args=make_config(tmp_path, **options),
        train_dataset=make_pairs() if pairs is None else pairs,
        eval_dataset=make_pairs(3),
        processing_class=make_tokenizer(),
        optimizer_cls_and_kwargs=(Apart, {"lr": 0.0}),
    )
    return trainer, before


def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_the_trained_and_saved_weights_are_those_that_it_gives(tmp_path):
    """They were those that it trains on, and others after an evaluation."""
    trainer, before = made(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    assert torch.allclose(flat(trainer.model), before, atol=1e-3)
    for step in (1, 2):
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        state = trainer.model.state_dict()
        assert all(torch.allclose(weight, state[name], atol=1e-3) for name, weight in saved.items())


def test_the_best_weights_stay_as_they_were_saved(tmp_path):
    """An evaluation after the training wrote into them what the optimizer had kept for the last step's."""

    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 3

    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best", "load_best_model_at_end": True}
    trainer, before = made(tmp_path, max_steps=8, metric_for_best_model="loss", **options)
    trainer.add_callback(Stops())
    trainer.train()
    assert (trainer.state.best_global_step, trainer.state.global_step) == (2, 3)
    trainer.evaluate()
    assert torch.allclose(flat(trainer.model), before, atol=1e-3)


def test_the_guard_measures_them(tmp_path, monkeypatch):
    trainer, before = made(tmp_path, max_steps=2)
    seen = []
    monkeypatch.setattr(evaluation, "measure_sample", lambda model, *_, **__: seen.append(flat(model)) or {})
    trainer.add_callback(ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1))
    trainer.train()
    assert len(seen) == 3
    assert all(torch.allclose(weights, before, atol=1e-3) for weights in seen)


def test_a_guard_without_them_leaves_the_model_in_training_mode(tmp_path, monkeypatch):
    """It stayed in evaluation mode if the optimizer failed to give them."""

    def fail(optimizer):
        raise RuntimeError("no average yet")

    monkeypatch.setattr(Apart, "eval", fail)
    trainer, _ = made(tmp_path, max_steps=1)
    trainer.add_callback(ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1))
    trainer.model.train()
    with pytest.raises(RuntimeError, match="no average yet"):
        trainer.train()
    assert trainer.model.training


def test_they_answer_where_targets_are_replaced(tmp_path, monkeypatch):
    trainer, before = made(
        tmp_path, make_pairs(completion=False), max_steps=-1, num_train_epochs=2, regenerate_targets_every=1
    )
    answer, seen = TargetMaker._answer, []

    def answered(maker, model, *args):
        seen.append(flat(model))
        answer(maker, model, *args)

    monkeypatch.setattr(TargetMaker, "_answer", answered)
    trainer.train()
    assert len(seen) == 2
    assert all(torch.allclose(weights, before, atol=1e-3) for weights in seen)


class Averaging(torch.optim.SGD):
    """Keeps its number of steps beside its settings, as schedule-free optimizers do."""

    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, lr=lr, momentum=momentum)
        for group in self.param_groups:
            group["k"] = 0

    def step(self, *args, **kwargs):
        for group in self.param_groups:
            group["k"] += 1
        return super().step(*args, **kwargs)


def test_a_resumed_run_with_another_setting_goes_on_with_the_average(tmp_path):
    """It began anew, as the number of steps was taken for a setting."""

    def train(steps, momentum, **arguments):
        trainer = ConsistencyTrainer(
            model=make_model(),
            args=make_config(
                tmp_path, max_steps=steps, save_strategy="steps", save_steps=2, lr_scheduler_type="constant"
            ),
            train_dataset=make_pairs(),
            processing_class=make_tokenizer(),
            optimizer_cls_and_kwargs=(Averaging, {"lr": 1e-3, "momentum": momentum}),
        )
        trainer.train(**arguments)
        return {(group["k"], group["momentum"]) for group in trainer.optimizer.param_groups}

    assert train(2, 0.0) == {(2, 0.0)}
    changed = {"resume_from_checkpoint": True, "resume_changed": ["optimizer.momentum"]}
    assert train(4, 0.5, **changed) == {(4, 0.5)}

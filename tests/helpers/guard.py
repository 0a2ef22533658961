"""Trainers with a guard on held-out pairs."""

from peft import LoraConfig

from tests.helpers.by_method import trainer_of
from tests.helpers.held_out import CONTROL, PAIRS, rate
from tests.helpers.models import make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyEvalCallback
from trl_consistency.evaluation import Estimate
from trl_consistency.evaluation.rates.measures import harmonic_mean
from trl_consistency.trainer.callbacks import evaluation as eval_callback


def make_trainer(tmp_path, kind="bct", lora=False, eval_dataset=None, callbacks=(), anchor_dataset=None, **options):
    return trainer_of(
        kind,
        tmp_path,
        make_model(),
        {"max_steps": 3, "logging_steps": 1} | options,
        train_dataset=make_pairs(8, completion=kind != "opct"),
        eval_dataset=eval_dataset,
        anchor_dataset=anchor_dataset,
        processing_class=make_tokenizer(),
        callbacks=list(callbacks),
        peft_config=LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1) if lora else None,
    )


def guarded(tmp_path, guard_options=None, **options):
    trainer = make_trainer(tmp_path, **options)
    guard = ConsistencyEvalCallback(trainer, PAIRS, CONTROL, **{"max_new_tokens": 4, **(guard_options or {})})
    trainer.add_callback(guard)
    return trainer, guard


def script(monkeypatch, *of_steps):
    """Rates to be measured, one after the other, in place of a model's."""
    rates = iter(of_steps)
    calls = []

    def measure(*args, **kwargs):
        calls.append(args)
        return next(rates)

    monkeypatch.setattr(eval_callback, "measure_sample", measure)
    return calls


def rates(control, sycophancy=0, unread=0):
    """Of ten rows each, an unread control answer among those that are not right."""
    score = harmonic_mean(1.0, 1 - sycophancy / 10)
    return {
        "sycophancy": rate(sycophancy, 10),
        "clean_accuracy": rate(10, 10),
        "sycophancy_score": Estimate(score, None, 10, 10),
        "clean_accuracy/control": rate(control, 10, unread),
    }

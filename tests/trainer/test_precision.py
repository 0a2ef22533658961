"""Each trainer of a process, and each one that trains a model, has its own precision."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from transformers import TrainerCallback

from tests.helpers.by_method import trainer_of
from tests.helpers.held_out import PAIRS
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer
from tests.helpers.runs import LORA
from trl_consistency import ConsistencyEvalCallback, ConsistencyTrainer


@pytest.mark.parametrize("is_bf16", [True, False])
def test_two_trainers_of_two_precisions(tmp_path, is_bf16):
    """accelerate keeps one precision for a process: the first trainer's targets, steps and card were in the second one's."""

    def make(name, bf16):
        return make_trainer(tmp_path / name, pairs=make_pairs(4, completion=False), bf16=bf16, max_steps=1)

    def steps_in_bf16(trainer):
        seen = set()
        trainer.model.model.embed_tokens.register_forward_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
        trainer.train()
        trainer.save_model()
        (is_named,) = {"mixed precision bf16" in (Path(trainer.args.output_dir) / "README.md").read_text()}
        return {*seen, is_named}

    one, other = make("one", is_bf16), make("other", not is_bf16)
    assert steps_in_bf16(one) == {is_bf16}
    assert steps_in_bf16(other) == {not is_bf16}
    assert steps_in_bf16(make("third", is_bf16)) == {is_bf16}


def test_two_configs_of_two_precisions_before_their_trainers(tmp_path):
    """accelerate refused the second precision with a traceback."""
    configs = [make_config(tmp_path / str(bf16), bf16=bf16, max_steps=1) for bf16 in (True, False)]
    trainers = [
        ConsistencyTrainer(make_model(), config, train_dataset=make_pairs(4), processing_class=make_tokenizer())
        for config in configs
    ]
    for trainer, precision in zip(trainers, ["bf16", "no"], strict=True):
        trainer.train()
        with trainer._own_state.active():
            assert trainer.accelerator.mixed_precision == precision


@pytest.mark.long
@pytest.mark.parametrize("trainings", [1, 2])
@pytest.mark.parametrize("lora", [False, True])
def test_a_model_goes_on_in_another_precision(tmp_path, lora, trainings):
    """accelerate leaves the first trainer's precision in the model's forward: the second one's targets and steps were in it."""
    first = make_trainer(tmp_path / "first", lora=lora, bf16=True, max_steps=1)
    for _ in range(trainings):
        first.train()
    model, seen = first.model, set()
    second = ConsistencyTrainer(
        model,
        make_config(tmp_path / "second", bf16=False, max_steps=1),
        train_dataset=make_pairs(4, completion=False),
        processing_class=make_tokenizer(),
    )
    inner = model.get_base_model() if lora else model
    inner.model.embed_tokens.register_forward_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    second.train()
    assert seen == {False}
    seen.clear()
    first.train()
    assert seen == {True}


def test_a_config_made_between_a_trainer_and_its_training(tmp_path):
    """It empties what accelerate knows of the process: training and saving ended with a traceback."""
    trainer = make_trainer(tmp_path / "one", method="kl", max_steps=1)
    for use in (trainer.train, trainer.save_model, lambda: trainer.evaluate(make_pairs(2))):
        make_config(tmp_path / "other")
        use()


@pytest.mark.parametrize("is_bf16", [True, False])
def test_evaluations_run_in_their_trainers_precision(tmp_path, is_bf16):
    """Before a training, and after another trainer's: BCT alone relied on what accelerate had put into the model's forward."""
    first = make_trainer(tmp_path / "first", bf16=True, max_steps=1)
    first.train()
    model, seen = first.model, set()
    second = ConsistencyTrainer(
        model,
        make_config(tmp_path / "second", bf16=is_bf16, max_steps=1),
        train_dataset=make_pairs(4),
        processing_class=make_tokenizer(),
    )
    model.model.embed_tokens.register_forward_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    second.evaluate(make_pairs(2))
    assert seen == {is_bf16}
    second.train()
    seen.clear()
    first.evaluate(make_pairs(2))
    assert seen == {True}


@pytest.mark.parametrize("method", ["bct", "opct"])
def test_all_of_an_evaluation_runs_in_its_trainers_precision(tmp_path, method):
    """The guard's answers, and the reference's greedy ones, were made in float32 after another trainer had had the model."""
    options = {"eval_dataset": make_pairs(2, completion=False), "processing_class": make_tokenizer()}
    options["train_dataset"] = make_pairs(4, completion=False)
    first = trainer_of(
        method,
        tmp_path / "first",
        make_model(),
        {"bf16": True, "eval_strategy": "steps", "eval_steps": 1, "log_consistency_metrics": method == "opct"},
        **options,
    )
    first.add_callback(ConsistencyEvalCallback(first, PAIRS, max_new_tokens=4))
    other = trainer_of(method, tmp_path / "other", first.model, {"bf16": False}, **options)
    first.evaluate()
    other.evaluate()
    seen = set()
    first.model.model.embed_tokens.register_forward_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    first.evaluate()
    assert seen == {True}


class MakesConfig(TrainerCallback):
    """Prepares the next run, as a script may."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, *args, **kwargs):
        make_config(self.folder)


def test_a_config_made_in_a_training(tmp_path):
    """What accelerate knew at the end of the training was kept for the trainer, and that was nothing."""
    first = make_trainer(tmp_path / "first", max_steps=1)
    first.add_callback(MakesConfig(tmp_path / "next"))
    make_trainer(tmp_path / "second")
    first.train()
    first.save_model()
    first.evaluate(make_pairs(2))


@pytest.mark.long
@pytest.mark.parametrize(
    "adapter", [LoraConfig(**LORA), IA3Config(target_modules=["v_proj"], feedforward_modules=[])], ids=["LoRA", "IA3"]
)
def test_an_adapter_in_bfloat16_stays_in_it(tmp_path, adapter):
    """PEFT loads one in float32: the rest of a resumed run was trained in that, or its reference was said to have changed."""

    def make(name, **options):
        model = make_model().to(torch.bfloat16)
        model = get_peft_model(model, deepcopy(adapter), autocast_adapter_dtype=False)
        options = {"method": "kl", "save_strategy": "steps", "save_steps": 1, "num_train_epochs": 2, **options}
        return make_trainer(tmp_path / name, make_pairs(4), model, per_device_train_batch_size=2, **options)

    def trained(trainer):
        return {name: of.detach() for name, of in trainer.model.named_parameters() if of.requires_grad}

    whole, resumed = make("whole"), make("whole")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert all(of.dtype == torch.bfloat16 for of in trained(resumed).values())
    assert all(torch.equal(of, trained(whole)[name]) for name, of in trained(resumed).items())
    best = make("best", load_best_model_at_end=True, eval_strategy="steps", eval_steps=1, eval_dataset=make_pairs(2))
    best.train()
    best.evaluate()
    best.train()
    assert all(of.dtype == torch.bfloat16 for of in trained(best).values())

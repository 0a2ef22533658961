"""What the card says of the run: its steps, optimizers, evaluations and earlier trainings."""

import re
from types import MethodType

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from peft.helpers import rescale_adapter_scale
from transformers import TrainerCallback

from tests.helpers.architectures import FOR_TEXTS, make
from tests.helpers.cards import card, make_trainer, read
from tests.helpers.guard import guarded, rates, script
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer


pytestmark = pytest.mark.long


def sgd_of(trainer):
    return torch.optim.SGD([weight for weight in trainer.model.parameters() if weight.requires_grad], lr=0.1)


def test_an_optimizer_that_the_options_did_not_make(tmp_path):
    """The card named the options', which made none."""

    class Own(ConsistencyTrainer):
        def create_optimizer(self, *args):
            self.optimizer = sgd_of(self)
            return self.optimizer

    put_on = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    put_on.create_optimizer = MethodType(Own.create_optimizer, put_on)
    plain = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    assigned = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    assigned.optimizer = sgd_of(assigned)
    options = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    own = Own(make_model(), make_config(tmp_path / "own", max_steps=2), **options)
    early = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    early.create_optimizer()  # as a script does that looks at its groups
    for trainer, said in (
        (plain, "adamw_torch"),
        (early, "adamw_torch"),
        (assigned, "an optimizer that was given to the trainer in place of the options'"),
        (own, "an optimizer that `Own.create_optimizer` made in place of the options'"),
        (put_on, "an optimizer that `trainer.create_optimizer` made in place of the options'"),
    ):
        for _ in range(2):  # the second time on the weights of the first
            trainer.train()
            assert said in trainer._card_facts()["Optimisation"]
    assert assigned.run_record.run["optimizer"] == "torch.optim.sgd.SGD"
    assert plain.run_record.run["optimizer"] is None
    assert early.run_record.run["optimizer"] is None


class Rates(TrainerCallback):
    """Changes the groups of the optimizer at one of the events."""

    def __init__(self, event="", key="lr", value=0.3):
        self.event, self.key, self.value = event, key, value

    def change(self, optimizer):
        for group in optimizer.param_groups:
            group[self.key] = self.value

    def on_train_begin(self, args, state, control, optimizer, lr_scheduler, **kwargs):
        if self.event == "schedule":
            lr_scheduler.base_lrs = [self.value for _ in lr_scheduler.base_lrs]
        if self.event == "train":
            self.change(optimizer)

    def on_step_begin(self, args, state, control, optimizer, **kwargs):
        if self.event == "step" and state.global_step == 1:
            self.change(optimizer)


RATES = [
    ("", "lr", 0.3, False),
    ("early", "lr", 0.3, True),  # by a script, after `create_optimizer`
    ("early", "weight_decay", 0.3, True),
    ("early", "betas", (0.5, 0.9), True),
    ("early", "name", "mine", False),
    ("train", "lr", 0.3, True),
    ("step", "lr", 0.0, True),
    ("step", "weight_decay", 0.3, True),
]


@pytest.mark.parametrize(
    ("schedule", "event", "key", "value", "is_told"),
    [
        *((schedule, *of) for schedule in ("linear", "reduce_lr_on_plateau") for of in RATES),
        ("linear", "schedule", "lr", 0.3, True),  # the other one has no base rates
    ],
)
def test_rates_that_a_script_or_a_callback_changes(tmp_path, schedule, event, key, value, is_told):
    """The card stated the options' learning rate, and the log another one."""
    on_plateau = {"eval_strategy": "steps", "eval_steps": 1, "lr_scheduler_kwargs": {"factor": 0.5, "patience": 0}}
    options = {"lr_scheduler_type": schedule, "max_steps": 3, **(on_plateau if schedule != "linear" else {})}
    data = {"train_dataset": make_pairs(), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, **options), **data)
    callback = Rates(event, key, value)
    trainer.add_callback(callback)
    if event == "early":
        callback.change(trainer.create_optimizer())
    trainer.train()
    said = "of which a script or a callback changed the learning rates or other settings"
    assert (said in trainer._card_facts()["Optimisation"]) == is_told
    trainer.remove_callback(callback)
    trainer.train()  # with a new optimizer
    assert said not in trainer._card_facts()["Optimisation"]


@pytest.mark.long
def test_changed_rates_are_told_in_a_resumed_run(tmp_path):
    """Its optimizer goes on with them."""
    said = "of which a script or a callback changed the learning rates or other settings"
    for event, is_told in (("", False), ("train", True)):
        options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
        data = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
        folder = tmp_path / (event or "plain")
        for resume in (None, str(folder / "checkpoint-2")):
            trainer = ConsistencyTrainer(make_model(), make_config(folder, **options), **data)
            trainer.add_callback(Rates(event, "weight_decay", 0.3))
            trainer.train(resume_from_checkpoint=resume)
            assert (said in trainer._card_facts()["Optimisation"]) == is_told
        assert not trainer.rates.are_changed or is_told


def test_a_schedule_that_is_given_alone(tmp_path):
    """The card named the options', and a checkpoint did not record it."""
    data = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, max_steps=2), **data)
    trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(trainer.create_optimizer(), 0.1, 100)
    trainer.train()
    told = trainer._card_facts()["Optimisation"]
    assert "learning rate 0.01 (by a schedule that was given to the trainer in place of the options'), seed" in told
    assert trainer.run_record.run["schedule"].endswith("ConstantLR")


def test_rows_of_a_step_are_no_more_than_there_are(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs(3))
    assert " of 3 rows, " in trainer._card_facts()["Optimisation"]


def test_methods_of_a_subclass_are_named(tmp_path):
    """The card named the objective alone, and not that another loss was trained."""

    class Own(ConsistencyTrainer):
        def compute_loss(self, *args, **kwargs):
            return 10 * super().compute_loss(*args, **kwargs)

    options = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    own = Own(make_model(), make_config(tmp_path), **options)
    assert own._card_facts()["Own methods"].startswith("`Own.compute_loss`, in place of the trainer's own")
    assert "Own methods" not in make_trainer(tmp_path, make_model(), pairs=make_pairs())._card_facts()


def test_a_method_that_is_replaced_in_the_class_is_named(tmp_path, monkeypatch):
    made = ConsistencyTrainer.compute_loss
    monkeypatch.setattr(
        ConsistencyTrainer, "compute_loss", lambda self, *args, **kwargs: 10 * made(self, *args, **kwargs)
    )
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    assert trainer._card_facts()["Own methods"].startswith("`ConsistencyTrainer.compute_loss`, in place of")


@pytest.mark.parametrize("lora", [True, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)])
def test_losses_of_the_model_without_its_adapter_are_no_results(tmp_path, lora):
    """Measured after the training, to compare with it, they stood on the card as the trained model's."""
    trainer = make_trainer(tmp_path, make_model(), lora, make_pairs(), learning_rate=1.0)
    trainer.train()
    trained = f"{trainer.evaluate()['eval_loss']:.4g}"
    with trainer.model.disable_adapter():
        assert f"{trainer.evaluate()['eval_loss']:.4g}" != trained
    assert f"- `eval_loss` {trained} at step 2" in card(trainer)[0]


def test_losses_of_an_adapter_of_another_scale_are_no_results(tmp_path):
    """As of a sweep of strengths after the training."""
    trainer = make_trainer(tmp_path, make_model(), True, make_pairs(), learning_rate=1.0)
    trainer.train()
    trained = f"{trainer.evaluate()['eval_loss']:.4g}"
    with rescale_adapter_scale(trainer.model, 8):
        assert f"{trainer.evaluate()['eval_loss']:.4g}" != trained
    assert f"- `eval_loss` {trained} at step 2" in card(trainer)[0]


def test_losses_with_a_second_adapter_beside_the_trained_one_are_no_results(tmp_path):
    """The mixture's stood on the card as the trained adapter's."""
    trainer = make_trainer(tmp_path, make_model(), True, make_pairs(), learning_rate=1.0)
    trainer.train()
    trained = f"{trainer.evaluate()['eval_loss']:.4g}"
    trainer.model.add_adapter(
        "other", LoraConfig(target_modules="all-linear", lora_alpha=1000, init_lora_weights=False)
    )
    trainer.model.base_model.set_adapter(["default", "other"])
    assert f"{trainer.evaluate()['eval_loss']:.4g}" != trained
    trainer.model.set_adapter("default")
    trainer.model.delete_adapter("other")
    assert f"- `eval_loss` {trained} at step 2" in card(trainer)[0]


def test_steps_are_those_that_were_done(tmp_path):
    trainer = make_trainer(
        tmp_path,
        make_model(),
        pairs=make_pairs(16),
        num_train_epochs=2,
        max_steps=-1,
        save_strategy="steps",
        save_steps=1,
    )
    assert "| Optimisation | 0 steps of 8 rows" in card(trainer)[0]
    trainer.train()
    assert "| Optimisation | 4 steps of 8 rows (2 epochs), " in card(trainer)[0]
    checkpoint = (tmp_path / "my-model" / "checkpoint-1" / "README.md").read_text()
    assert "| Optimisation | 1 of 4 planned steps of 8 rows (0.5 epochs), " in checkpoint


@pytest.mark.parametrize("kind", ["bct", "opct"])
def test_run_that_the_guard_stopped(tmp_path, monkeypatch, kind):
    script(monkeypatch, rates(10), rates(10), rates(5))
    trainer, guard = guarded(tmp_path / "my-model", {"eval_every": 1, "max_drop": 0.1}, kind=kind, max_steps=4)
    trainer.train()
    text, _ = card(trainer)
    assert "| Optimisation | 2 of 4 planned steps of 8 " in text
    assert f"| Stopped | {guard.stopped} |" in text
    assert "Step 2: more than `max_drop=0.1` was lost" in text
    assert "| Kept |" not in text


def test_run_that_keeps_its_best_checkpoint(tmp_path, monkeypatch):
    script(monkeypatch, *(rates(10, sycophancy=sycophancy) for sycophancy in (9, 6, 1, 4)))
    trainer, _ = guarded(
        tmp_path / "my-model",
        eval_dataset=make_pairs(2),
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        metric_for_best_model="consistency/score",
        load_best_model_at_end=True,
    )
    trainer.train()
    text, _ = card(trainer)
    assert "| Optimisation | 3 steps of 8 rows, " in text
    assert "| Kept | the weights of step 2, the best by `consistency/score` |" in text
    assert re.search(r"- `eval_loss` \S+ at step 2\n", text)
    last = (tmp_path / "my-model" / "checkpoint-3" / "README.md").read_text()
    assert "| Optimisation | 3 steps of 8 rows, " in last
    assert "| Kept |" not in last
    assert "`eval_loss`" in last
    assert "at step 2" not in last


def test_losses_of_another_set_do_not_replace_those_that_were_held_out(tmp_path):
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs())
    held_out = trainer.evaluate()["eval_loss"]
    trainer.evaluate(make_pairs(1))
    assert f"- `eval_loss` {held_out:.4g} at step 0" in card(trainer)[0]
    trainer.evaluate(make_pairs(1), metric_key_prefix="eval_one")
    assert "- `eval_one_loss` " in card(trainer)[0]


@pytest.mark.parametrize("name", ["a", "b"])
def test_another_set_under_the_name_of_one_that_was_held_out(tmp_path, name):
    sets = {"a": make_pairs(3), "b": make_pairs(5)}
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs(), eval_dataset=sets)
    trainer.train()
    before = trainer.evaluate()
    trainer.evaluate(sets)
    trainer.evaluate({name: make_pairs(1)})
    for key in sets:
        assert f"- `eval_{key}_loss` {before[f'eval_{key}_loss']:.4g} at step 2" in card(trainer)[0]


def test_one_set_of_several_keeps_its_name(tmp_path):
    """`evaluate("b")` returns `eval_loss`, as Trainer's does, but the card says of which set it is."""
    sets = {"a": make_pairs(3), "b": make_pairs(5)}
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs(), eval_dataset=sets)
    trainer.train()
    loss = trainer.evaluate("b")["eval_loss"]
    text, _ = card(trainer)
    assert f"- `eval_b_loss` {loss:.4g} at step 2" in text
    assert "`eval_loss`" not in text
    assert "eval_a_loss" not in text


def test_second_training(tmp_path):
    """It goes on from the weights of the first, with the options of the second."""
    trainer = make_trainer(
        tmp_path, make_model(), pairs=make_pairs(), max_steps=3, save_strategy="steps", save_steps=1
    )
    trainer.train()
    trainer.args.learning_rate = 0.0
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    text, _ = card(trainer)
    assert "3 steps of 8 rows" in text
    assert (
        "| Trained before | 3 steps of bct, by earlier calls of `train` in the same script; these steps began" in text
    )
    assert all(map(torch.equal, before, trainer.model.parameters())), "the first learning rate was used"
    resumed = make_trainer(
        tmp_path, make_model(), pairs=make_pairs(), max_steps=3, save_strategy="steps", save_steps=1, learning_rate=0.0
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "my-model" / "checkpoint-2"))
    resumed.save_model()
    assert "| Trained before | 3 steps of bct, by" in read(resumed)[0]


def test_training_that_is_resumed_by_the_same_trainer(tmp_path):
    trainer = make_trainer(
        tmp_path, make_model(), pairs=make_pairs(), max_steps=2, save_strategy="steps", save_steps=1
    )
    trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / "my-model" / "checkpoint-1"))
    trainer.save_model()
    assert "Trained before" not in read(trainer)[0]


@pytest.mark.parametrize("given", ["optimizers", "optimizer_cls_and_kwargs"])
def test_optimizer_of_the_callers(tmp_path, given):
    model = make_model()
    value = {
        "optimizers": (torch.optim.SGD(model.parameters(), lr=0.5), None),
        "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.5}),
    }
    args = make_config(tmp_path, max_steps=1)
    trainer = ConsistencyTrainer(
        model, args, train_dataset=make_pairs(), processing_class=make_tokenizer(), **{given: value[given]}
    )
    text, _ = card(trainer)
    assert "an optimizer that was given to the trainer" in text
    assert "learning rate" not in text.split("| Optimisation |")[1].splitlines()[0]


def test_the_weight_decay_of_a_given_class_is_that_of_the_options(tmp_path):
    """Another one was ignored, and recorded as the one that was used. The refusal is in tests/hostile_input."""
    data = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    given = torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.5}
    args = make_config(tmp_path, max_steps=1, weight_decay=0.5)
    trainer = ConsistencyTrainer(make_model(), args, optimizer_cls_and_kwargs=given, **data)
    trainer.train()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [
        0.5,
        0.0,
    ]  # none for norms and biases
    made, args = make_model(), make_config(tmp_path / "groups", max_steps=1)
    groups = {"params": [{"params": list(made.parameters()), "weight_decay": 0.3}]}
    trainer = ConsistencyTrainer(
        made, args, optimizer_cls_and_kwargs=(torch.optim.AdamW, {"weight_decay": 0.5, **groups}), **data
    )
    trainer.train()
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.3


class SomeWeights(ConsistencyTrainer):
    def create_optimizer(self, *args):
        self.optimizer = torch.optim.SGD(list(self.model.parameters())[:1], lr=0.1)
        return self.optimizer


class FewerWeights(TrainerCallback):
    def on_train_begin(self, *args, optimizer, **kwargs):
        for group in optimizer.param_groups:
            del group["params"][1:]


@pytest.mark.parametrize("made_by", ["subclass", "options", "callback", "script"])
def test_an_optimizer_that_holds_some_weights_however_it_was_made(tmp_path, caplog, made_by):
    """The card counted all of them as trained, and nothing was said."""
    model = make_model()
    first = next(model.parameters())
    kind, options = ConsistencyTrainer, {}
    if made_by == "subclass":
        kind = SomeWeights
    elif made_by == "options":
        options["optimizer_cls_and_kwargs"] = torch.optim.SGD, {"params": [first], "lr": 0.1}
    elif made_by == "callback":
        options["callbacks"] = [FewerWeights()]
    args = make_config(tmp_path, max_steps=2)
    trainer = kind(model, args, train_dataset=make_pairs(), processing_class=make_tokenizer(), **options)
    if made_by == "script":
        model.requires_grad_(False)
        first.requires_grad_(True)
        trainer.create_optimizer()
        model.requires_grad_(True)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    trainer.train()
    moved = sum(of.numel() for name, of in model.named_parameters() if not torch.equal(of, before[name]))
    assert f"| Trained weights | {moved:,} of " in card(trainer)[0]
    assert moved < sum(of.numel() for of in model.parameters())
    assert caplog.text.count("trainable tensors: these stay as they are") == 1


def test_a_vision_tower_is_not_trained_by_text(tmp_path, caplog):
    """Its weights have no gradient. The card counted them as trained."""
    model = make("gemma3_with_vision", "sdpa", FOR_TEXTS)
    args = make_config(tmp_path, max_steps=2, weight_decay=0.1)
    trainer = ConsistencyTrainer(model, args, train_dataset=make_pairs(), processing_class=make_tokenizer())
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    trainer.train()
    moved = sum(of.numel() for name, of in model.named_parameters() if not torch.equal(of, before[name]))
    total = sum(of.numel() for of in before.values())
    assert 0 < moved < total
    assert f"| Trained weights | {moved:,} of {total:,}, no adapter |" in card(trainer)[0]
    assert "does not hold" not in caplog.text


@pytest.mark.parametrize(
    ("method", "options", "lora", "left", "whole"),
    [
        ("act", {}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, True, False),
        ("bct", {}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, False, True),
        ("act", {"layers": [0]}, {"target_modules": "all-linear"}, True, False),
    ],
)
def test_weights_that_the_objective_leaves_out(tmp_path, method, options, lora, left, whole):
    """The card had a head as trained whole that no objective of the run reads, and counted no block after the last one."""
    args = make_config(tmp_path, method=[method], max_steps=2, weight_decay=0.0, **options)
    config = LoraConfig(r=4, **lora)
    trainer = ConsistencyTrainer(
        make_model(), args, train_dataset=make_pairs(), processing_class=make_tokenizer(), peft_config=config
    )
    weights = {name: of for name, of in trainer.model.named_parameters() if of.requires_grad}
    before = {name: of.detach().clone() for name, of in weights.items()}
    trainer.train()
    moved = sum(of.numel() for name, of in weights.items() if not torch.equal(of, before[name]))
    total = sum(of.numel() for of in weights.values())
    said = card(trainer)[0]
    assert (moved < total) == left == (f"{total - moved:,} of its {total:,} weights not trained" in said)
    assert ("lm_head trained whole" in said) == whole


def test_an_optimizer_of_some_weights(tmp_path, caplog):
    """The card counted all weights among the trained ones, and nothing was said."""
    for lora in (False, True):
        model = make_model()
        if lora:
            model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "k_proj"]))
        trainable = [weight for weight in model.parameters() if weight.requires_grad]
        held = trainable[:2]
        total, trained = (sum(weight.numel() for weight in of) for of in (trainable, held))
        args, others = make_config(tmp_path / str(lora), max_steps=1), {"processing_class": make_tokenizer()}
        trainer = ConsistencyTrainer(
            model, args, train_dataset=make_pairs(), optimizers=(torch.optim.SGD(held, lr=0.1), None), **others
        )
        caplog.clear()
        trainer.train()
        left = f"The optimizer does not hold {len(trainable) - 2} of the {len(trainable)} trainable tensors"
        assert caplog.text.count(left) == 1
        said = f"{total - trained:,} of its {total:,} weights not trained" if lora else f"| {trained:,} of {total:,}"
        assert said in card(trainer)[0]


@pytest.mark.parametrize("lora", [False, True])
def test_weights_that_a_callback_freezes_or_thaws(tmp_path, lora):
    """The card counted weights as trained that a callback froze before the first step."""

    class Freeze(TrainerCallback):
        def __init__(self, frozen, frozen_later, thawed):
            self.frozen, self.frozen_later, self.thawed = frozen, frozen_later, thawed

        def on_train_begin(self, *args, **kwargs):
            self.frozen.requires_grad_(False)

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                self.frozen_later.requires_grad_(False)
                self.thawed.requires_grad_(True)

    model = make_model()
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "k_proj"]))
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    frozen, frozen_later = trainable[:2]
    thawed = trainable.pop() if not lora else next(of for of in model.parameters() if not of.requires_grad)
    thawed.requires_grad_(False)
    trainer = make_trainer(tmp_path, model, pairs=make_pairs(), lora=False, max_steps=3)
    trainer.add_callback(Freeze(frozen, frozen_later, thawed))
    trainer.train()
    total = sum(weight.numel() for weight in trainable)
    trained = total - frozen.numel()
    said = (
        f"{frozen.numel():,} of its {total:,} weights not trained" if lora else f"| Trained weights | {trained:,} of "
    )
    assert said in card(trainer)[0]


def test_a_callers_callback_that_stopped(tmp_path):
    """The card took a caller's `stopped` for that of the guard."""
    trainer = make_trainer(tmp_path, make_model(), pairs=make_pairs(), lora=False)
    trainer.add_callback(type("Own", (TrainerCallback,), {"stopped": True})())
    trainer.train()
    assert "| Stopped |" not in card(trainer)[0]


def test_a_schedule_that_a_subclass_makes(tmp_path):
    """The card named the options'."""

    class Own(ConsistencyTrainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 0.1, 100)
            return self.lr_scheduler

    others = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    trainer = Own(make_model(), make_config(tmp_path, max_steps=1), **others)
    trainer.train()
    said = "learning rate 0.01 (by a schedule that `Own.create_scheduler` made in place of the options'), seed"
    assert said in trainer._card_facts()["Optimisation"]


def test_second_training_with_the_callers_optimizer(tmp_path, caplog):
    """The card said that it began with a new one; a schedule that had ended left no learning rate, without a word."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 2))
    args, others = make_config(tmp_path, max_steps=2), {"processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(model, args, train_dataset=make_pairs(), optimizers=(optimizer, schedule), **others)
    trainer.train()
    assert "`optimizers`" not in caplog.text
    trainer.train()
    assert (
        "`optimizers`: the schedule goes on after the 2 steps that it has done, with a learning rate of 0."
        in caplog.text
    )
    assert "these steps began with the optimizer that was used for them |" in card(trainer)[0]
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1.0)
    caplog.clear()
    trainer.train()
    assert "`optimizers`" not in caplog.text
    assert "these steps began with a new optimizer |" in card(trainer)[0]


def test_second_training_without_the_callers_optimizer(tmp_path):
    """It ended with an AttributeError."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    args, others = make_config(tmp_path, max_steps=1), {"processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(model, args, train_dataset=make_pairs(), optimizers=(optimizer, None), **others)
    trainer.train()
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.train()
    text = card(trainer)[0]
    assert "an optimizer that was given" not in text
    assert "these steps began with a new optimizer |" in text

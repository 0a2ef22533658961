"""What a trainer remembers of how it was made: what changes it later is an error."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback

from tests.helpers import on_policy, paired
from tests.helpers.by_method import trainer_of
from tests.helpers.models import CHATML, make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from tests.helpers.processors import TextProcessor
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.data.collators import PairCollator
from trl_consistency.errors import ConsistencyError


LORA = LoraConfig(r=4, target_modules="all-linear")


@pytest.mark.parametrize(
    "change",
    [
        {"act_tokens": "all"},
        {"anchor_ratio": 0.5},
        {"temperature": 0.2},
        {"loss_type": "dft"},
        {"per_device_train_batch_size": 2},
        {"seed": 5},
        {"padding_free": True},
        {"dose_check": True},
        {"log_layer_distances": True},
        {"auto_find_batch_size": True},
        {"assistant_only_loss": True},
        {"completion_only_loss": False},
        {"model_init_kwargs": {"attn_implementation": "eager"}},
    ],
)
def test_options_that_change_after_the_trainer_was_made(tmp_path, change):
    """They would be stated by the card, and followed by nothing."""
    args = make_config(tmp_path, method="bct", max_steps=1)
    trainer = ConsistencyTrainer(make_model(), args, train_dataset=make_pairs(4), processing_class=make_tokenizer())
    ((name, value),) = change.items()
    setattr(trainer.args, name, value)
    with pytest.raises(ConsistencyError, match=f"`args.{name}` was .* when the trainer was made, and is "):
        trainer.train()


def test_option_of_the_optimizer_that_is_assigned_and_not_read(tmp_path):
    trainer = paired.make_trainer(tmp_path, max_steps=1)
    trainer.args.optim, trainer.args.adam_beta1 = "sgd", 0.5
    with pytest.raises(ConsistencyError, match="`adam_beta1` is set, but `optim` is sgd"):
        trainer.train()


@pytest.mark.parametrize("file", ["README.md", "config.json"])
def test_folder_that_is_assigned_after_the_trainer_was_made(tmp_path, model_dir, file):
    """The card replaced the user's page, and the trained model the one that it was trained from."""
    args = make_config(tmp_path / "out", max_steps=1, save_strategy="steps", save_steps=1)
    trainer = ConsistencyTrainer(str(model_dir), args, train_dataset=make_pairs(4), peft_config=LORA)
    if file == "README.md":
        (tmp_path / file).write_text("# My project\n")
    trainer.args.output_dir = str(tmp_path if file == "README.md" else model_dir)
    said = "has a README.md that is no model's card" if file == "README.md" else "is the folder of a model"
    with pytest.raises(ConsistencyError, match=said):
        trainer.train()


@pytest.mark.parametrize("use", ["train", "evaluate", "save_model"])
def test_second_adapter_on_the_base_of_a_trainer(tmp_path, use):
    """The first one was measured and saved as the second, untrained."""
    base = make_model()
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(base, make_config(tmp_path, max_steps=1), peft_config=LORA, **options)
    trainer.train()
    get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    with pytest.raises(ConsistencyError, match="The adapter's weights were replaced after the trainer was made"):
        getattr(trainer, use)()


@pytest.mark.long
@pytest.mark.parametrize("use", ["train", "evaluate", "predict"])
@pytest.mark.parametrize(
    ("method", "name", "message"),
    [
        ("bct", "compute_loss_func", "`compute_loss_func` was assigned after the trainer was made"),
        ("kl", "compute_loss_func", "`compute_loss_func` was assigned after the trainer was made"),
        ("kl", "model_init", "`model_init` was assigned after the trainer was made"),
        ("kl", "compute_metrics", "`compute_metrics` is not available where the reference runs"),
        ("kl", "data_collator", "`data_collator` was assigned after the trainer was made"),
    ],
)
def test_functions_that_are_assigned_after_the_trainer_was_made(tmp_path, method, name, message, use):
    """They were refused by the constructor, and were used by nothing afterwards."""
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, method=method, max_steps=1), **options)
    setattr(trainer, name, lambda *args, **kwargs: {})
    with pytest.raises(ConsistencyError, match=message):
        getattr(trainer, use)(*[make_pairs(2)] * (use == "predict"))


def test_a_collator_of_another_kind_that_is_assigned_after_the_trainer_was_made(tmp_path):
    """A subclass of the trainer's own may leave rows out."""

    class Half(PairCollator):
        def torch_call(self, examples):
            return super().torch_call(examples[:1] * len(examples))

    trainer = paired.make_trainer(tmp_path, make_pairs(4), method="kl", max_steps=1)
    trainer.data_collator = Half(**vars(trainer.data_collator))
    with pytest.raises(ConsistencyError, match="`data_collator` was assigned after the trainer was made"):
        trainer.train()


def test_metrics_that_are_assigned_after_the_trainer_was_made(tmp_path):
    """BCT alone has them."""
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, method="bct", max_steps=1), **options)
    trainer.compute_metrics = lambda predicted: {"mine": 1.0}
    assert trainer.evaluate()["eval_mine"] == 1.0


@pytest.mark.parametrize("use", ["train", "evaluate"])
def test_parameters_that_are_replaced_after_the_trainer_was_made(tmp_path, use):
    """The reference ran with the student's embeddings and head."""
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, method="kl", max_steps=1), **options)
    trainer.model.resize_token_embeddings(400)
    with pytest.raises(ConsistencyError, match="Parameters of the model were replaced after the trainer was made"):
        getattr(trainer, use)()


@pytest.mark.long
@pytest.mark.parametrize("use", ["train", "evaluate"])
@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize("given", ["of another trainer", "a part"])
def test_rendered_data_that_are_assigned_after_the_trainer_was_made(tmp_path, name, given, use):
    """The card named the rows of before, or those of another template were measured."""
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(3), "processing_class": make_tokenizer()}
    one, other = (ConsistencyTrainer(make_model(), make_config(tmp_path, max_steps=1), **options) for _ in range(2))
    setattr(one, name, getattr(other, name) if given == "of another trainer" else getattr(one, name).select([0]))
    with pytest.raises(ConsistencyError, match=f"`{name}` was assigned after the trainer was made"):
        getattr(one, use)()


@pytest.mark.parametrize("use", ["train", "evaluate"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_template_that_changes_after_the_trainer_was_made(tmp_path, use, is_replaced):
    """It was saved with a model that was trained with another one."""
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(3), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, max_steps=1), **options)
    if is_replaced:
        trainer.processing_class = make_tokenizer()
    else:
        trainer.processing_class.chat_template = f"Q: {trainer.processing_class.chat_template}"
    with pytest.raises(
        ConsistencyError, match="`processing_class`, its chat template or its `eos_token` was changed after"
    ):
        getattr(trainer, use)()


def test_template_of_a_processor_that_changes(tmp_path):
    """Its tokenizer's was compared, and its own is used."""
    processor = TextProcessor(make_tokenizer(CHATML.replace("message.content", "message.content[0].text")))
    arguments = {"train_dataset": make_pairs(4), "processing_class": processor}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, max_steps=1), **arguments)
    processor.chat_template = f"Q: {processor.chat_template}"
    with pytest.raises(
        ConsistencyError, match="`processing_class`, its chat template or its `eos_token` was changed after"
    ):
        trainer.evaluate(make_pairs(2))


def test_parameters_that_a_callback_replaces(tmp_path):
    class Replacing(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            layer = model.model.layers[0].mlp.up_proj
            layer.weight = torch.nn.Parameter(layer.weight.detach().clone())

    options = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer(), "callbacks": [Replacing()]}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, method="kl", max_steps=1), **options)
    with pytest.raises(ConsistencyError, match="Parameters of the model were replaced after the trainer was made"):
        trainer.train()


def test_model_that_is_frozen_after_the_trainer_was_made(tmp_path):
    options = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer(), "peft_config": LORA}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, max_steps=1), **options)
    trainer.model.requires_grad_(False)
    with pytest.raises(ConsistencyError, match="The model has no trainable parameter"):
        trainer.train()


def test_adapter_of_another_name(tmp_path):
    """It was saved below the folder, and `load_best_model_at_end` kept the last weights as the best."""
    options = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer()}
    model = get_peft_model(make_model(), LORA, adapter_name="mine")
    with pytest.raises(ConsistencyError, match=r"adapter is called `mine`.*Load it without `adapter_name`"):
        ConsistencyTrainer(model, make_config(tmp_path), **options)


class Setting(TrainerCallback):
    """Sets options at the end of each step."""

    def __init__(self, **options):
        self.options = options

    def on_step_end(self, args, state, control, **kwargs):
        for name, value in self.options.items():
            setattr(args, name, value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("on-policy", {"temperature": 0.3}),
        ("on-policy", {"max_completion_length": 3}),
        ("on-policy", {"learning_rate": 1e-3}),
        ("paired", {"method_weights": [3.0]}),
        ("paired", {"weight_decay": 0.1}),
        ("paired", {"max_grad_norm": 0.1}),
        ("paired", {"max_steps": 30}),
    ],
)
def test_option_that_a_callback_changes(tmp_path, kind, change):
    """Nothing heeded most of them, others changed half of a training, and the card named the last value for all of it."""
    make = on_policy.make_trainer if kind == "on-policy" else paired.make_trainer
    trainer = make(tmp_path, max_steps=2)
    trainer.add_callback(Setting(**change))
    ((name, value),) = change.items()
    with pytest.raises(
        ConsistencyError, match=rf"`args.{name}` was .*, and is .*{value if name != 'method_weights' else 3}"
    ):
        trainer.train()
    assert trainer.state.global_step == 1


def test_options_that_a_callback_may_change(tmp_path):
    """How often it logs, evaluates and saves changes no weight."""
    trainer = paired.make_trainer(tmp_path, max_steps=2)
    trainer.add_callback(Setting(logging_steps=1, save_steps=7, eval_steps=3))
    trainer.train()
    assert trainer.state.global_step == 2


def test_rows_that_a_callback_assigns(tmp_path):
    """The training went on with those of before."""

    class Assigning(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            trainer.train_dataset = trainer.train_dataset.select([0])

    trainer = paired.make_trainer(tmp_path, max_steps=2)
    trainer.add_callback(Assigning())
    with pytest.raises(ConsistencyError, match="`train_dataset` was assigned after the trainer was made"):
        trainer.train()


@pytest.mark.parametrize("use", ["train", "generate_targets"])
@pytest.mark.parametrize("lora", [False, True])
def test_weights_that_change_after_the_trainer_was_made(tmp_path, model_dir, use, lora):
    """Their answers were cached as those of the files, which another run then took."""
    args, pairs = make_config(tmp_path, method="bct", max_steps=1), make_pairs(4, completion=False)
    adapter = {"peft_config": LORA} if lora else {}
    trainer = ConsistencyTrainer(str(model_dir), args, train_dataset=pairs, **adapter)
    trainer.generate_targets()
    trainer.targets._completions.clear()
    with torch.no_grad():
        next(trainer.model.parameters()).add_(0.1)
    with pytest.raises(ConsistencyError, match="weights were changed after the trainer was made"):
        getattr(trainer, use)()


@pytest.mark.parametrize("kind", ["kl", "opct"])
def test_whole_weights_that_change_after_the_reference_was_copied(tmp_path, caplog, kind):
    """The model was trained towards its earlier state, which the card called the model as it was before training."""
    options = {"train_dataset": make_pairs(4, completion=kind == "kl"), "processing_class": make_tokenizer()}
    model = make_model()

    def make(name):
        return trainer_of(kind, tmp_path / name, model, {"max_steps": 1}, **options)

    def reference(trainer):
        trainer.train()
        trainer.save_model()
        card = (Path(trainer.args.output_dir) / "README.md").read_text()
        return next(line for line in card.splitlines() if line.startswith("| Reference |"))

    one, other = make("one"), make("other")
    assert "| the model as it was before training (a frozen copy) |" in reference(one)
    one.train()  # Its own training is no such change.
    assert "its reference is the model before that" not in caplog.text
    assert (
        "| the model as it was when the trainer was made; its weights were changed before training (a "
        in reference(other)
    )
    assert (
        "The model's weights were changed after the trainer was made, and its reference is the model before"
        in caplog.text
    )
    caplog.clear()
    assert "| the model as it was before training (a frozen copy) |" in reference(make("new"))
    assert "its reference is the model before that" not in caplog.text


def test_whole_weights_that_change_beside_a_given_reference(tmp_path, caplog):
    options = {"train_dataset": make_pairs(4, completion=False), "processing_class": make_tokenizer()}
    options["ref_model"] = make_model(seed=1)
    trainer = trainer_of("opct", tmp_path, make_model(), {"max_steps": 1}, **options)
    trainer.model.load_state_dict(make_model(seed=2).state_dict())
    trainer.train()
    assert "its reference is the model before that" not in caplog.text


def test_base_weights_that_are_unfrozen_after_the_trainer_was_made(tmp_path):
    """They were trained, and not saved with the adapter."""
    options = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer(), "peft_config": LORA}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, max_steps=1), **options)
    trainer.model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(ConsistencyError, match=r"trains weights of its base \(such as .*norm.weight\)"):
        trainer.train()


@pytest.mark.parametrize("use", ["train", "evaluate"])
def test_model_that_is_replaced_after_the_trainer_was_made(tmp_path, use):
    """The old one was still compared, and the new one saved."""
    pairs = make_pairs(4)
    options = {"train_dataset": pairs, "eval_dataset": pairs, "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path, method="kl", max_steps=1), **options)
    trainer.model = make_model(seed=1)
    with pytest.raises(ConsistencyError, match="`model` was assigned after the trainer was made"):
        getattr(trainer, use)()


@pytest.mark.parametrize("use", ["train", "evaluate"])
def test_ref_model_that_is_assigned_after_the_trainer_was_made(tmp_path, use):
    """The old one was still compared, and the card named the new one."""
    pairs = make_pairs(4)
    options = {"train_dataset": pairs, "eval_dataset": pairs, "processing_class": make_tokenizer()}
    trainer = OnPolicyConsistencyTrainer(make_model(), args=make_on_policy_config(tmp_path, max_steps=1), **options)
    trainer.ref_model = make_model(seed=1)
    with pytest.raises(ConsistencyError, match="`ref_model` was assigned after the trainer was made"):
        getattr(trainer, use)()


@pytest.mark.parametrize("in_training", [False, True])
def test_sampling_that_is_changed_after_the_trainer_was_made(tmp_path, in_training):
    """Rollouts were sampled otherwise than the card said."""

    def change(*_, **__):
        trainer.generation_config.top_k = 1

    options = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer()}
    trainer = OnPolicyConsistencyTrainer(make_model(), args=make_on_policy_config(tmp_path, max_steps=2), **options)
    if in_training:
        trainer.add_callback(type("Change", (TrainerCallback,), {"on_step_end": change})())
    else:
        change()
    with pytest.raises(
        ConsistencyError, match=r"`generation_config.top_k` was .* when the trainer was made, and is 1"
    ):
        trainer.train()


def test_adapter_that_is_switched_after_the_trainer_was_made(tmp_path):
    """The saved folder held the other one, untrained, where an adapter is loaded from."""
    trainer = ConsistencyTrainer(
        get_peft_model(make_model(), LORA),
        make_config(tmp_path, max_steps=1),
        train_dataset=make_pairs(4),
        processing_class=make_tokenizer(),
    )
    trainer.model.add_adapter("other", LORA)
    trainer.model.set_adapter("other")
    with pytest.raises(ConsistencyError, match="has several adapters, and others than `default` are active"):
        trainer.train()

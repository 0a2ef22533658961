from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from peft import LoHaConfig, LoraConfig, get_peft_model
from peft.helpers import rescale_adapter_scale
from peft.tuners.loha import LoHaLayer
from peft.tuners.lora import LoraLayer
from torch.utils.data import SequentialSampler
from transformers import AutoTokenizer, TrainerCallback

from tests.helpers import on_policy, paired
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.errors import ConsistencyError
from trl_consistency.models.checks import context_of
from trl_consistency.passes.reference import freeze_initial_policy
from trl_consistency.trainer.run.checks import check_saves_whole, check_sharding


LORA = LoraConfig(r=4, target_modules="all-linear")


def zero(stage, gathers):
    """What Accelerate's plugin for DeepSpeed shows of its config."""
    options = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": gathers}
    return SimpleNamespace(zero_stage=stage, hf_ds_config=HfDeepSpeedConfig({"zero_optimization": options}))


def make_trainer(model, fsdp=None, zero=None, **options):
    """What a trainer shows of how it is distributed."""
    state = SimpleNamespace(
        fsdp_plugin=fsdp and SimpleNamespace(fsdp_version=fsdp),
        deepspeed_plugin=zero and SimpleNamespace(zero_stage=zero),
    )
    args = SimpleNamespace(
        **{
            "rolls_out": False,
            "gradient_checkpointing": False,
            "log_consistency_metrics": False,
            "model_init_kwargs": None,
            **options,
        }
    )
    return SimpleNamespace(model=model, args=args, accelerator=SimpleNamespace(state=state))


class TestSharding:
    def test_fsdp_1_is_refused(self):
        with pytest.raises(ConsistencyError, match="Set `fsdp_version: 2`"):
            check_sharding(make_trainer(make_model(), fsdp=1), adapter_off=False)

    @pytest.mark.parametrize(("backend", "name"), [({"fsdp": 2}, "FSDP"), ({"zero": 3}, "ZeRO-3")])
    def test_an_adapter_that_is_part_of_the_reference_is_refused(self, backend, name):
        model = get_peft_model(make_model(), LORA)
        with pytest.raises(ConsistencyError, match=rf"Under .*{name}.* adapter off.*merge_and_unload"):
            check_sharding(make_trainer(model, **backend), adapter_off=False)
        check_sharding(make_trainer(model, **backend), adapter_off=True)

    def test_reentrant_checkpointing_under_zero_3_is_refused(self):
        options = {"gradient_checkpointing": True, "method": ["act"]}
        lora, full = get_peft_model(make_model(), LORA), make_model()
        with pytest.raises(ConsistencyError, match=r"ZeRO-3.*reentrant.*`gradient_checkpointing: false`"):
            check_sharding(make_trainer(lora, zero=3, **options), adapter_off=True)
        check_sharding(make_trainer(full, zero=3, **options), adapter_off=False)
        check_sharding(make_trainer(lora, zero=2, **options), adapter_off=True)
        check_sharding(make_trainer(lora, fsdp=2, **options), adapter_off=True)

    @pytest.mark.parametrize("backend", [{}, {"zero": 1}, {"zero": 2}])
    def test_what_is_whole_on_each_process_is_not_refused(self, backend):
        check_sharding(make_trainer(get_peft_model(make_model(), LORA), **backend), adapter_off=False)

    def test_answers_of_a_sharded_reference_are_refused(self):
        trainer = make_trainer(make_model(), fsdp=2, rolls_out=True, log_consistency_metrics=True)
        with pytest.raises(ConsistencyError, match=r"`log_consistency_metrics`.*whole reference.*Leave it out"):
            check_sharding(trainer, adapter_off=False)

    def test_a_model_that_came_in_shards_must_have_a_name(self):
        model = make_model()
        next(model.parameters()).ds_id = 0
        with pytest.raises(ConsistencyError, match=r"its name or path.*`zero3_init_flag: false`"):
            freeze_initial_policy(make_trainer(model, zero=3), model, adapter_off=False)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 512),
        ({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}, 512),
    ],
)
def test_context_length(rope, length):
    model = make_model("llama")
    model.config.rope_parameters = rope
    assert context_of(model.config) == length


def test_whole_model_is_not_saved_beside_an_adapter(tmp_path):
    """`from_pretrained` of that folder would load the adapter."""
    args = make_config(tmp_path, method="bct", max_steps=1)
    options = {"args": args, "train_dataset": make_pairs(4), "processing_class": make_tokenizer()}
    ConsistencyTrainer(make_model(), peft_config=LORA, **options).save_model()
    with pytest.raises(ConsistencyError, match="holds an adapter, and a whole model would be saved"):
        ConsistencyTrainer(make_model(), **options)
    ConsistencyTrainer(make_model(), peft_config=LORA, **options)


def test_adapter_is_not_saved_beside_a_whole_model(tmp_path):
    """It was said that the whole model would be replaced. Both stayed there, and `push` refused the folder in the end."""
    args = make_config(tmp_path, method="bct", max_steps=1)
    options = {"args": args, "train_dataset": make_pairs(4), "processing_class": make_tokenizer()}
    ConsistencyTrainer(make_model(), **options).save_model()
    with pytest.raises(
        ConsistencyError, match=r"holds a whole model \(model.safetensors\), and an adapter would be saved"
    ):
        ConsistencyTrainer(make_model(), peft_config=LORA, **options)
    ConsistencyTrainer(make_model(), **options)


def test_a_chat_template_that_an_earlier_training_left_is_told(tmp_path, caplog):
    """The tokenizer was loaded with it from there, and published."""
    for has_template in (True, True, False):
        caplog.clear()
        tokenizer = make_tokenizer() if has_template else make_tokenizer(None)
        pairs = make_pairs(4) if has_template else make_pairs(4).map(_as_text)
        options = {"args": make_config(tmp_path), "train_dataset": pairs, "processing_class": tokenizer}
        ConsistencyTrainer(make_model(), peft_config=LORA, **options).save_model()
        assert (
            "has chat_template.jinja, which this training's tokenizer does not have" in caplog.text
        ) != has_template
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template


def _as_text(row):
    return {key: of if isinstance(of, str) else of[-1]["content"] for key, of in row.items()}


class TestEvaluatedSets:
    @pytest.mark.parametrize("chosen", [None, {}])
    def test_none(self, tmp_path, chosen):
        """An empty dictionary gave no metrics, and said nothing."""
        with pytest.raises(ConsistencyError, match="There is no `eval_dataset` to evaluate on"):
            paired.make_trainer(tmp_path).evaluate(chosen)

    def test_unknown_name(self, tmp_path):
        pairs = make_pairs(2)
        trainer = paired.make_trainer(tmp_path / "1", eval_dataset={"a": pairs, "b": pairs})
        with pytest.raises(ConsistencyError, match="names the set 'c', and the trainer's `eval_dataset` has 'a', 'b'"):
            trainer.evaluate("c")
        with pytest.raises(ConsistencyError, match="`eval_dataset` has no name"):
            paired.make_trainer(tmp_path / "2", eval_dataset=pairs).evaluate("clean_ids")

    def test_no_data_set(self, tmp_path):
        trainer = paired.make_trainer(tmp_path)
        with pytest.raises(TypeError, match=r"must be a `datasets.Dataset` or .*, got `list`"):
            trainer.evaluate([{"clean_prompt": "a", "perturbed_prompt": "b"}])

    def test_metric_with_a_name_of_the_trainers(self, tmp_path):
        """The trainer's took its place."""
        trainer = paired.make_trainer(tmp_path, eval_dataset=make_pairs(2))
        trainer.compute_metrics = lambda predicted: {"entropy": 1.0}
        with pytest.raises(ConsistencyError, match="`compute_metrics` returns `entropy`, and the trainer has a"):
            trainer.evaluate()


def test_logits_that_nothing_gives(tmp_path):
    arguments = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer()}
    with pytest.raises(ConsistencyError, match="`preprocess_logits_for_metrics` is not available where the reference"):
        ConsistencyTrainer(
            make_model(), make_config(tmp_path, method="kl"), preprocess_logits_for_metrics=print, **arguments
        )


def test_metrics_that_are_never_computed(tmp_path):
    arguments = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer(), "compute_metrics": print}
    with pytest.raises(
        ConsistencyError, match="With `prediction_loss_only`, no evaluation computes the metrics of `compute_metrics`"
    ):
        ConsistencyTrainer(make_model(), make_config(tmp_path, prediction_loss_only=True), **arguments)


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"train_sampling_strategy": "group_by_length"}, True),
        ({"train_sampling_strategy": "batch_rebalance"}, True),
        ({"train_sampling_strategy": "sequential"}, False),
        ({"data_seed": 1}, True),
    ],
)
def test_orders_that_a_stream_does_not_have(tmp_path, options, is_refused):
    """They were ignored, and stood on the card."""
    stream, said = make_pairs(8).to_iterable_dataset(), "does nothing where `train_dataset` is streamed"
    with pytest.raises(ConsistencyError, match=said) if is_refused else nullcontext():
        paired.make_trainer(tmp_path, stream, max_steps=1, **options)


def test_model_without_a_name_or_a_tokenizer(tmp_path):
    with pytest.raises(ConsistencyError, match="`model` has no name by which its tokenizer could be loaded"):
        ConsistencyTrainer(make_model(), make_config(tmp_path), train_dataset=make_pairs(4))


def test_quantization_of_a_loaded_model(tmp_path):
    """It was trained without."""
    arguments = {"train_dataset": make_pairs(4), "processing_class": make_tokenizer(), "peft_config": LORA}
    with pytest.raises(ConsistencyError, match="`quantization_config` is given, and `model` is loaded already"):
        ConsistencyTrainer(make_model(), make_config(tmp_path), quantization_config=SimpleNamespace(), **arguments)


@pytest.mark.long
@pytest.mark.parametrize("method", ["bct", "kl"])
@pytest.mark.parametrize("use", ["save_model", "evaluate", "train"])
@pytest.mark.parametrize("taken_out", ["merge_and_unload", "unload"])
def test_adapter_that_was_taken_out(tmp_path, method, use, taken_out):
    """An adapter without weights was saved, whose card named a rank."""
    options = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
    args = make_config(tmp_path, method=method, max_steps=1)
    trainer = ConsistencyTrainer(make_model(), args, peft_config=LORA, **options)
    trainer.train()
    getattr(trainer.model, taken_out)()  # what it returns is the whole model
    with pytest.raises(ConsistencyError, match="adapter was merged into its base or taken out"):
        getattr(trainer, use)()
    assert not (tmp_path / "adapter_model.safetensors").exists()


@pytest.mark.long
@pytest.mark.parametrize("method", ["bct", "kl", "opct"])
@pytest.mark.parametrize(
    ("leave", "way_out"),
    [
        (lambda model: model.merge_adapter(), "unmerge_adapter"),
        (lambda model: model.base_model.disable_adapter_layers(), "enable_adapter_layers"),
        (lambda model: (model.add_adapter("other", LORA), model.set_adapter("other")), "set_adapter"),
    ],
    ids=["merged", "off", "another"],
)
def test_callback_that_leaves_the_adapter_off(tmp_path, method, leave, way_out):
    """Training went on to its end, and saved the adapter as the callback had found it."""

    class Leaving(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            if state.global_step == 1:
                leave(model)

    options = {"max_steps": 3, "gradient_checkpointing": True}
    if method == "opct":
        trainer = on_policy.replay(
            on_policy.make_trainer(tmp_path, make_pairs(4, completion=False), lora=True, **options)
        )
    else:
        trainer = paired.make_trainer(tmp_path, make_pairs(4), lora=True, method=method, **options)
    trainer.add_callback(Leaving())
    with pytest.raises(ConsistencyError, match=rf"a callback left it .*`{way_out}\("):
        trainer.train()


class TestScale:
    """Of another scale than its config's, targets were taken that the unscaled adapter had made, and the saved adapter answered otherwise."""

    REASON = (
        r"scale of the model's adapter was changed \(`set_scale`.*: it is 0\.04 at .*q_proj, and 2 by its config\."
    )

    @staticmethod
    def scale(model, by):
        for layer in model.modules():
            if isinstance(layer, LoraLayer | LoHaLayer):
                layer.set_scale("default", by)

    @pytest.mark.parametrize("kind", [LoraConfig, LoHaConfig])
    def test_before_the_trainer_is_made(self, tmp_path, kind):
        alpha = {"lora_alpha": 8} if kind is LoraConfig else {"alpha": 8}
        model = get_peft_model(make_model(), kind(r=4, target_modules=["q_proj"], **alpha))
        self.scale(model, 0.02)
        with pytest.raises(ConsistencyError, match=self.REASON):
            paired.make_trainer(tmp_path, model=model)

    def test_by_another_alpha_in_the_config(self, tmp_path):
        """The layers keep the scale that they were made with, and a saved adapter has that of its config."""
        model = get_peft_model(make_model(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"]))
        model.peft_config["default"].lora_alpha = 400
        with pytest.raises(ConsistencyError, match=r"it is 2 at .*q_proj, and 100 by its config\."):
            paired.make_trainer(tmp_path, model=model)

    @pytest.mark.parametrize("acts", ["train", "generate_targets"])
    def test_since_the_trainer_was_made(self, tmp_path, acts):
        model = get_peft_model(make_model(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"]))
        trainer = paired.make_trainer(tmp_path, make_pairs(4, completion=False), model=model, max_steps=1)
        with rescale_adapter_scale(trainer.model, 0.02), pytest.raises(ConsistencyError, match=self.REASON):
            getattr(trainer, acts)()
        trainer.train()

    def test_by_a_callback(self, tmp_path):
        scale = self.scale

        class Scaling(TrainerCallback):
            def on_step_end(self, *args, model, **kwargs):
                scale(model, 0.02)

        trainer = paired.make_trainer(tmp_path, lora=True, target_modules=["q_proj"], max_steps=2)
        trainer.add_callback(Scaling())
        with pytest.raises(ConsistencyError, match="scale of the model's adapter was changed"):
            trainer.train()

    @pytest.mark.parametrize(
        "config",
        [{"use_rslora": True}, {"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"q_proj": 3}}, {"use_dora": True}],
    )
    def test_scales_of_the_config(self, tmp_path, config):
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj"], **config)
        paired.make_trainer(tmp_path, model=get_peft_model(make_model(), config), max_steps=1).train()


@pytest.mark.parametrize("lora", [False, True])
def test_callback_that_freezes_all(tmp_path, lora):
    """With gradient checkpointing, training went on to its end, and trained nothing."""

    class Freezing(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            model.requires_grad_(False)

    options = {"max_steps": 3, "gradient_checkpointing": True}
    trainer = paired.make_trainer(tmp_path, make_pairs(4), lora=lora, method="bct", **options)
    trainer.add_callback(Freezing())
    with pytest.raises(ConsistencyError, match="no trainable parameter"):
        trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("warmup", "steps", "highest"),
    [(100, 3, "0.0002"), (0.5, 1, "0"), (3, 3, "0.00666667"), (2, 3, None), (0.1, 3, None), (0, 1, None)],
)
def test_warmup_that_training_does_not_come_out_of(tmp_path, caplog, warmup, steps, highest):
    """The learning rate of the options was never used, and with one step nothing was learned."""
    trainer = paired.make_trainer(tmp_path, max_steps=steps, warmup_steps=warmup, logging_steps=1)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert ("`warmup_steps`" in caplog.text) == (max(rates) < 0.01) == (highest is not None)
    if highest is not None:
        assert f"its highest is {highest}, and `learning_rate` 0.01" in caplog.text
        assert max(rates) == pytest.approx(float(highest), rel=1e-5)


class TestSubclasses:
    class OwnLoss(ConsistencyTrainer):
        def compute_loss(self, *args, **kwargs):
            return 10 * super().compute_loss(*args, **kwargs)

    class Measured(ConsistencyTrainer):
        def prediction_step(self, *args, **kwargs):
            _, logits, labels = super().prediction_step(*args, **kwargs)
            return torch.tensor(77.0), logits, labels

    class Unmeasured(ConsistencyTrainer):
        def prediction_step(self, *args, **kwargs):
            return torch.tensor(77.0), None, None

    class OwnStep(ConsistencyTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model.train(), inputs, num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(loss)
            return loss.detach()

    @staticmethod
    def make(kind, tmp_path, **options):
        data = {"train_dataset": make_pairs(4), "eval_dataset": make_pairs(2), "processing_class": make_tokenizer()}
        return kind(make_model(), make_config(tmp_path, method="bct", max_steps=1, **options), **data)

    @pytest.mark.parametrize(("kind", "is_warned"), [(OwnLoss, True), (Measured, False), (ConsistencyTrainer, False)])
    def test_a_loss_that_no_evaluation_measures_is_said(self, tmp_path, caplog, kind, is_warned):
        self.make(kind, tmp_path)
        assert ("`OwnLoss.compute_loss` changes only the training loss" in caplog.text) == is_warned

    @pytest.mark.parametrize("acts", [ConsistencyTrainer.train, ConsistencyTrainer.evaluate])
    def test_methods_that_were_put_on_the_trainer_are_said(self, tmp_path, caplog, acts):
        """They were called, and neither a warning nor the card named them."""
        trainer = self.make(ConsistencyTrainer, tmp_path)
        own_loss = trainer.compute_loss
        trainer.compute_loss = lambda *args, **kwargs: 10 * own_loss(*args, **kwargs)
        own_step = trainer.prediction_step
        trainer.prediction_step = lambda *args, **kwargs: own_step(*args, **kwargs)
        for _ in range(2):
            acts(trainer)
        assert caplog.text.count("`trainer.compute_loss` changes only the training loss") == 1
        assert caplog.text.count("The loss that `trainer.prediction_step` returns is not logged") == 1
        assert trainer._card_facts()["Own methods"].startswith("`trainer.compute_loss`, in place of the trainer's own")

    @pytest.mark.long
    @pytest.mark.parametrize("method", ["bct", "act", ["kl", "bct"]])
    def test_a_loss_that_does_not_hand_on_the_number_of_items(self, tmp_path, method):
        """The loss of a step was the sum over its batches of their means: four times as large here, and the steps with it."""

        class Own(ConsistencyTrainer):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                return super().compute_loss(model, inputs, return_outputs)

        trained = []
        for kind in (ConsistencyTrainer, Own):
            options = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 1, "optim": "sgd"}
            args = make_config(tmp_path, method=method, max_steps=1, max_grad_norm=0, **options)
            trainer = kind(make_model(), args, train_dataset=make_pairs(4), processing_class=make_tokenizer())
            trained.append((trainer.train().training_loss, trainer.model.state_dict()))
        (loss, weights), (of_own, of_own_weights) = trained
        assert of_own == loss
        torch.testing.assert_close(of_own_weights, weights, rtol=0, atol=0)

    def test_a_loss_that_an_evaluation_does_not_log_is_said(self, tmp_path, caplog):
        """The warning said that the loss which `prediction_step` returns would be measured."""
        trainer = self.make(self.Measured, tmp_path)
        assert "The loss that `Measured.prediction_step` returns is not logged: `eval_loss` is that of" in caplog.text
        assert trainer.evaluate()["eval_loss"] < 7, "the warning is needed no more"

    def test_an_evaluation_that_measures_no_row(self, tmp_path):
        trainer = self.make(self.Unmeasured, tmp_path)
        with pytest.raises(ConsistencyError, match=r"`Unmeasured\.prediction_step` does not call"):
            trainer.evaluate()

    def test_a_training_step_of_its_own(self, tmp_path):
        """It ended with a traceback."""
        trainer, plain = self.make(self.OwnStep, tmp_path), self.make(ConsistencyTrainer, tmp_path)
        assert trainer.train().training_loss == plain.train().training_loss

    def test_an_order_that_leaves_out_prompts_of_rollouts(self, tmp_path):
        """Every second batch was read and not trained on, and the card told of two rollouts a prompt."""

        class Ordered(OnPolicyConsistencyTrainer):
            def _get_train_sampler(self, dataset=None):
                return SequentialSampler(self.train_dataset)

        args = on_policy.make_on_policy_config(tmp_path, max_steps=1, gradient_accumulation_steps=2)
        data = {"train_dataset": make_pairs(32), "processing_class": make_tokenizer()}
        with pytest.raises(ConsistencyError, match="each prompt 2 times in a row"):
            Ordered(make_model(), args=args, **data).train()

        class Grouped(Ordered):
            def _get_train_sampler(self, dataset=None):
                return [row for row in range(32) for _ in range(2)]

        with pytest.raises(ConsistencyError, match="each batch once for every micro-batch"):
            Grouped(make_model(), args=args, **data).train()

    def test_a_method_that_transformers_does_not_call_is_said(self, tmp_path, caplog):
        """The optimizer was that of the options, without a word."""
        called = []

        class Own(ConsistencyTrainer):
            def create_optimizer_and_scheduler(self, num_training_steps):
                called.append(num_training_steps)
                super().create_optimizer_and_scheduler(num_training_steps)

        args = make_config(tmp_path, max_steps=1)
        trainer = Own(make_model(), args, train_dataset=make_pairs(4), processing_class=make_tokenizer())
        said = "transformers no longer calls `Own.create_optimizer_and_scheduler`, so"
        assert said in caplog.text
        trainer.train()
        assert not called, "the warning is needed no more"


@pytest.mark.parametrize("sharing", [{"even_batches": False}, {"dispatch_batches": True}, {"split_batches": True}])
def test_one_process_shares_no_batches(tmp_path, sharing):
    """What is refused where there are several."""
    trainer = paired.make_trainer(tmp_path, make_pairs(5), method="kl", max_steps=3, accelerator_config=sharing)
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("lora", [False, True])
def test_model_with_the_layers_of_an_earlier_adapter(tmp_path, lora):
    """Its weights took part in the new training, and no saved folder had them."""
    model = make_model()
    get_peft_model(model, LoraConfig(r=4, target_modules=["o_proj"], modules_to_save=["norm"]))
    options = {"args": make_config(tmp_path), "train_dataset": make_pairs(4), "processing_class": make_tokenizer()}
    with pytest.raises(ConsistencyError, match="still holds the layers of an earlier adapter"):
        ConsistencyTrainer(model, peft_config=LoraConfig(target_modules=["q_proj"]) if lora else None, **options)


def fsdp(state_dict_type="FULL_STATE_DICT", checkpoints=False):
    plugin = {"fsdp_version": 2, "state_dict_type": f"StateDictType.{state_dict_type}"}
    return {"fsdp_plugin": SimpleNamespace(**plugin, activation_checkpointing=checkpoints)}


@pytest.mark.parametrize(
    ("plugins", "lora", "message"),
    [
        (fsdp(), True, None),
        (fsdp("SHARDED_STATE_DICT"), False, "Set `fsdp_state_dict_type: FULL_STATE_DICT`"),
        (fsdp(checkpoints=True), False, None),
        (
            fsdp(checkpoints=True),
            True,
            "Set `fsdp_activation_checkpointing: false` in it, and `gradient_checkpointing: true`",
        ),
        ({"deepspeed_plugin": zero(3, True)}, True, None),
        ({"deepspeed_plugin": zero(3, False)}, False, "Set `zero3_save_16bit_model: true`"),
        ({"deepspeed_plugin": zero(2, False)}, False, None),
        ({}, True, None),
    ],
)
def test_sharded_models_are_saved_with_their_weights(plugins, lora, message):
    state = SimpleNamespace(**{"fsdp_plugin": None, "deepspeed_plugin": None, **plugins})
    model = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"])) if lora else make_model()
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=state), model=model)
    with pytest.raises(ConsistencyError, match=message) if message else nullcontext():
        check_saves_whole(trainer)

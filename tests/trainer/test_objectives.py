"""Training on ACT, KL, AttCT and MLPCT: invariants of a whole trajectory, and what is refused."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import GPTNeoConfig, GPTNeoForCausalLM, TrainerCallback

from tests.helpers.architectures import MULTIMODAL, SHAPE, make
from tests.helpers.models import CHATML, make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.processors import TextProcessor
from tests.helpers.runs import LORA, trained_weights
from tests.helpers.spoiled import SpoilWeights
from trl_consistency import ConsistencyError, ConsistencyTrainer, InvalidPairsError
from trl_consistency.models.dropout import without_attention_dropout
from trl_consistency.trainer import consistency_trainer, target_maker


ALL = ["bct", "kl", "act", "attct", "mlpct"]


def lively_model():
    """Larger weights than a fresh model's: its states differ between prompts, and so do the gradients."""
    model = make_model(attention="eager")
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def make_trainer(tmp_path, method, pairs=None, model=None, lora=True, eval_dataset=None, callbacks=None, **options):
    return ConsistencyTrainer(
        model=lively_model() if model is None else model,
        args=make_config(tmp_path, method=method, **{"learning_rate": 1e-3, "optim": "sgd", **options}),
        train_dataset=make_pairs() if pairs is None else pairs,
        eval_dataset=eval_dataset,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA) if lora else None,
        callbacks=callbacks,
    )


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


# A whole trajectory


@pytest.mark.parametrize("method", [["kl"], ["act"], ["attct"], ["mlpct"], ALL])
def test_one_batch_of_eight_equals_eight_of_one(tmp_path, method):
    """Uneven lengths and anchors: each objective is divided by its own count over the whole step."""
    # Cosines and divergences of attention have small gradients.
    learning_rate = 0.1 if method in (["attct"], ["mlpct"]) else 1e-3
    options = {"max_steps": 3, "logging_steps": 1, "anchor_ratio": 0.25, "learning_rate": learning_rate}
    together = make_trainer(tmp_path / "1", method, per_device_train_batch_size=8, **options)
    one_by_one = make_trainer(
        tmp_path / "8", method, per_device_train_batch_size=1, gradient_accumulation_steps=8, **options
    )
    start = torch.cat([p.detach().flatten() for p in together.model.parameters() if p.requires_grad])
    weights, others = trained_weights(together), trained_weights(one_by_one)
    assert (weights - start).abs().max() > 1e-4
    assert torch.allclose(weights, others, atol=1e-6)
    for key in ("loss", "anchor_share", *(f"{name}_loss" for name in method)):
        assert logged(together, key) == pytest.approx(logged(one_by_one, key), rel=1e-4, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("method", [["act"], ALL])
def test_gradient_checkpointing_changes_nothing(tmp_path, method, lora):
    results = [
        trained_weights(make_trainer(tmp_path / str(on), method, lora=lora, max_steps=3, gradient_checkpointing=on))
        for on in (False, True)
    ]
    assert torch.allclose(*results, atol=1e-6)


@pytest.mark.parametrize("lora", [True, False])
def test_resumed_equals_uninterrupted(tmp_path, lora):
    options = {"method": ["act", "kl"], "lora": lora, "optim": "adamw_torch", "max_steps": 6, "anchor_ratio": 0.25}
    whole = trained_weights(make_trainer(tmp_path / "whole", save_strategy="steps", save_steps=2, **options))
    checkpoint = str(tmp_path / "whole" / "checkpoint-2")
    resumed = make_trainer(tmp_path / "resumed", **options)
    assert torch.equal(trained_weights(resumed, resume_from_checkpoint=checkpoint), whole)


def test_mixed_precision(tmp_path):
    """bfloat16 autocast: the same losses to bfloat16's precision, and nothing but finite."""
    full, mixed = (
        make_trainer(tmp_path / str(bf16), ALL, max_steps=2, logging_steps=1, bf16=bf16) for bf16 in (False, True)
    )
    full.train()
    mixed.train()
    for name in ALL:
        assert logged(mixed, f"{name}_loss") == pytest.approx(logged(full, f"{name}_loss"), rel=0.1, abs=1e-4)


def test_weights_scale_the_objectives(tmp_path):
    both = make_trainer(tmp_path, ["act", "kl"], method_weights=[0.5, 3.0], max_steps=1, logging_steps=1)
    both.train()
    (loss,), (act,), (kl,) = (logged(both, key) for key in ("loss", "act_loss", "kl_loss"))
    assert loss == pytest.approx(0.5 * act + 3 * kl, rel=1e-5)


def test_bct_beside_others_is_bct(tmp_path):
    alone = make_trainer(tmp_path / "alone", ["bct"], max_steps=2, logging_steps=1)
    watched = make_trainer(tmp_path / "watched", ["bct"], max_steps=2, logging_steps=1, log_consistency_metrics=True)
    assert torch.allclose(trained_weights(alone), trained_weights(watched), atol=1e-6)
    assert logged(watched, "bct_loss") == pytest.approx(logged(alone, "loss"), abs=1e-5)


# The reference


@pytest.mark.parametrize("lora", [True, False])
def test_anchors_before_the_first_step_cost_nothing(tmp_path, lora):
    """On equal prompts the student is the reference, until it moves."""
    anchors = make_pairs(8, completion=False)
    anchors = anchors.remove_columns("perturbed_prompt").add_column("perturbed_prompt", anchors["clean_prompt"])
    trainer = make_trainer(
        tmp_path, ["act", "kl", "mlpct", "attct"], pairs=anchors, lora=lora, max_steps=1, logging_steps=1
    )
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(0, abs=1e-5)
    assert logged(trainer, "anchor_share") == [1.0]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_no_entry_of_a_compared_attention_map_is_dropped(tmp_path, kind, checkpointing):
    """Maps were compared after attention dropout, as no distributions: anchors had a loss from the first step."""
    rate = {"gpt2": "attn_pdrop", "gpt_neox": "attention_dropout"}[kind]
    model = make(kind, vocab_size=384, **{rate: 0.5})
    rates = [(module, name) for module in model.modules() for name, value in vars(module).items() if value == 0.5]
    anchors = make_pairs(8, completion=False)
    anchors = anchors.remove_columns("perturbed_prompt").add_column("perturbed_prompt", anchors["clean_prompt"])
    options = {"max_steps": 1, "logging_steps": 1, "gradient_checkpointing": checkpointing}
    trainer = make_trainer(tmp_path, ["attct"], pairs=anchors, model=model, lora=False, **options)
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(0, abs=1e-6)
    assert len(rates) == SHAPE["num_hidden_layers"]
    assert all(getattr(module, name) == 0.5 for module, name in rates)


def test_no_entry_is_dropped_where_the_dropout_is_within_a_part_of_the_attention(tmp_path):
    """In GPT-Neo, whose attention module holds another one."""
    sizes = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
    }
    config = GPTNeoConfig(vocab_size=384, attention_types=[[["global", "local"], 1]], attention_dropout=0.5, **sizes)
    model = GPTNeoForCausalLM._from_config(config, attn_implementation="eager")
    anchors = make_pairs(8, completion=False)
    anchors = anchors.remove_columns("perturbed_prompt").add_column("perturbed_prompt", anchors["clean_prompt"])
    trainer = make_trainer(tmp_path, ["attct"], pairs=anchors, model=model, lora=False, max_steps=1, logging_steps=1)
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(0, abs=1e-6)
    assert model.transformer.h[0].attn.attention.attn_dropout.p == 0.5


def test_adapters_on_attention_keep_their_dropout_beside_compared_maps():
    config = LoraConfig(target_modules=["q_proj"], lora_dropout=0.5)
    model = get_peft_model(make_model(attention="eager"), config)
    attention = model.get_base_model().model.layers[0].self_attn
    with without_attention_dropout([attention]):
        assert attention.q_proj.lora_dropout["default"].p == 0.5


def test_reference_includes_the_adapter_that_the_model_came_with(tmp_path):
    model = get_peft_model(make_model(), LoraConfig(**LORA, task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    anchors = make_pairs(4, completion=False)
    anchors = anchors.remove_columns("perturbed_prompt").add_column("perturbed_prompt", anchors["clean_prompt"])
    trainer = make_trainer(tmp_path, ["act"], pairs=anchors, model=model, lora=False, max_steps=2, logging_steps=1)
    trainer.train()
    assert logged(trainer, "act_loss") == [0.0, 0.0]
    trainer.save_model()
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["adapter_model.safetensors"]
    assert not (tmp_path / "ref").exists()


def test_a_changed_reference_is_an_error_at_the_end(tmp_path):
    class Merge(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.get_base_model().model.layers[0].mlp.down_proj.base_layer.weight.data[0, 0] += 1e-3

    trainer = make_trainer(tmp_path, ["act"], max_steps=1, callbacks=[Merge()])
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        trainer.train()


# Multimodal models


@pytest.mark.long
@pytest.mark.parametrize("kind", MULTIMODAL)
@pytest.mark.parametrize("method", [["bct"], ["bct", "act", "mlpct"]])
def test_multimodal_models_train_on_text(tmp_path, monkeypatch, kind, method):
    """With their processor, whose templates iterate over content blocks; the vision tower stays as it is."""
    for name, value in {"vocab_size": 384, "max_position_embeddings": 512}.items():
        monkeypatch.setitem(SHAPE, name, value)
    template = CHATML.replace("message.content", "message.content[0].text")
    trainer = ConsistencyTrainer(
        model=make(kind, "sdpa"),
        args=make_config(tmp_path, method=method, max_steps=2, logging_steps=1, learning_rate=1e-3),
        train_dataset=make_pairs(8, completion=False),
        processing_class=TextProcessor(make_tokenizer(template)),
        peft_config=LoraConfig(**LORA),
    )
    first, second = (trainer.train(), logged(trainer, "loss"))[1]
    assert second < first
    moved = {name for name, p in trainer.model.named_parameters() if "lora_B" in name and p.abs().max() > 0}
    assert moved
    assert not any("vision" in name or "visual" in name for name in moved)


# Evaluation and the log


@pytest.mark.parametrize("method", [["act"], ALL])
def test_evaluation_is_the_mean_over_the_set_whatever_the_batches(tmp_path, method):
    results = [
        make_trainer(
            tmp_path, method, eval_dataset=make_pairs(7), per_device_eval_batch_size=size, log_consistency_metrics=True
        ).evaluate()
        for size in (1, 3, 7)
    ]
    names = ["loss", *(f"{name}_loss" for name in method)]
    names += ["response_cross_entropy", "activation_distance", "reference_kl"]
    for name in names:
        values = [result[f"eval_{name}"] for result in results]
        assert values == pytest.approx([values[0]] * 3, rel=1e-5, abs=1e-7), name
    assert results[0]["eval_loss"] == pytest.approx(sum(results[0][f"eval_{name}_loss"] for name in method), rel=1e-5)


def test_metrics_are_logged_whatever_is_trained_on(tmp_path):
    for method in (["bct"], ["act"]):
        trainer = make_trainer(
            tmp_path, method, max_steps=2, logging_steps=1, log_consistency_metrics=True, log_layer_distances=True
        )
        trainer.train()
        for key in ("response_cross_entropy", "activation_distance", "reference_kl", "activation_distance/layer_1"):
            assert len(logged(trainer, key)) == 2, key
    assert logged(trainer, "activation_distance") == pytest.approx(logged(trainer, "act_loss"))


def test_act_needs_no_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(target_maker, "generate_targets", lambda *args: pytest.fail("generated"))
    pairs = make_pairs(8, completion=False)
    trainer = make_trainer(tmp_path, ["act"], pairs=pairs, max_steps=1, eval_dataset=make_pairs(3, completion=False))
    trainer.train()
    assert trainer.evaluate()["eval_act_loss"] > 0


def test_streamed_pairs(tmp_path):
    pairs = make_pairs(8, completion=False).to_iterable_dataset()
    trainer = make_trainer(tmp_path, ["act"], pairs=pairs, max_steps=3, anchor_ratio=0.25, logging_steps=1)
    trainer.train()
    assert all(value > 0 for value in logged(trainer, "act_loss"))
    with_content = make_trainer(tmp_path, ["mlpct"], pairs=pairs, max_steps=1)
    with_content.train()


# What the pairs share


def content_pairs(cues, **columns):
    rows = {
        "clean_prompt": [[{"role": "user", "content": "What is the capital of France?"}] for _ in cues],
        "perturbed_prompt": [[{"role": "user", "content": cue}] for cue in cues],
    }
    return Dataset.from_dict({**rows, **columns})


def test_rows_that_share_only_the_header_are_reported(tmp_path, caplog):
    pairs = content_pairs(["I say Lyon. What is the capital of France?", "What is the capital of France? I say Lyon"])
    trainer = make_trainer(tmp_path, ["act"], pairs=pairs)
    report = trainer.alignment["train_dataset"]
    assert (report.rows, report.header_only, report.no_shared_span) == (2, [1], [])
    assert "1 of them share at most one token before the generation header" in caplog.text


def test_act_beside_content_objectives_reports_the_suffix_too(tmp_path, caplog):
    pairs = content_pairs(["I say Lyon. What is the capital of France?", "What is the capital of France? I say Lyon"])
    trainer = make_trainer(tmp_path, ["act", "mlpct"], pairs=pairs)
    assert trainer.alignment["train_dataset"].header_only == [1]
    assert "1 of them share at most one token before the generation header" in caplog.text
    texts = Dataset.from_dict({"clean_prompt": ["the quick brown fox"], "perturbed_prompt": ["the quick brown fox!"]})
    with pytest.raises(InvalidPairsError, match="share nothing that could be compared: row 0"):
        make_trainer(tmp_path, ["act", "mlpct"], pairs=texts)


def test_rows_without_shared_content_are_an_error_or_dropped(tmp_path, caplog):
    pairs = content_pairs(
        ["I say Lyon. What is the capital of France?", "The quick brown fox", "Which animal is quick? Lyon"]
    )
    with pytest.raises(
        InvalidPairsError, match=r"2 of 3 pair\(s\) share nothing that could be compared: row 1, row 2"
    ):
        make_trainer(tmp_path, ["mlpct"], pairs=pairs)
    trainer = make_trainer(tmp_path, ["mlpct"], pairs=pairs, no_shared_span="drop")
    assert len(trainer.train_dataset) == 1
    assert "left out" in caplog.text
    shared = content_pairs(
        ["Lyon is the capital of France, right?", "Do you know the capital of France? Lyon"],
        shared_text=["is the capital of France?", "the capital of France?"],
    )
    assert len(make_trainer(tmp_path, ["mlpct"], pairs=shared).train_dataset) == 2


def test_faulty_shared_text_names_the_row(tmp_path):
    pairs = content_pairs(["France?", "France!"], shared_text=["France", " "])
    with pytest.raises(InvalidPairsError, match="row 1: `shared_text` must be text"):
        make_trainer(tmp_path, ["mlpct"], pairs=pairs)


# What is refused


def test_attct_gets_eager_attention_or_says_that_it_needs_it(tmp_path, model_dir):
    trainer = make_trainer(tmp_path, ["attct"], model=str(model_dir), max_steps=1)
    trainer.train()
    assert trainer.model.config._attn_implementation == "eager"
    for model, options in (
        (str(model_dir), {"model_init_kwargs": {"attn_implementation": "sdpa"}}),
        (make_model(attention="sdpa"), {}),
    ):
        with pytest.raises(ConsistencyError, match="attn_implementation: eager"):
            make_trainer(tmp_path, ["bct", "attct"], model=model, **options)


def test_layers_are_checked_before_the_weights_load(tmp_path, model_dir, monkeypatch):
    monkeypatch.setattr(consistency_trainer.SFTTrainer, "__init__", lambda *args, **kwargs: pytest.fail("loaded"))
    for model in (str(model_dir), make_model()):
        with pytest.raises(ConsistencyError, match="names block 2, and the model has 2"):
            make_trainer(tmp_path, ["act"], model=model, layers=[2])


def test_reentrant_checkpointing_is_refused(tmp_path):
    with pytest.raises(ConsistencyError, match="use_reentrant"):
        make_trainer(
            tmp_path, ["act"], max_steps=1, gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": True},
        ).train()  # fmt: skip


def test_compute_metrics_is_refused(tmp_path):
    with pytest.raises(ConsistencyError, match="`compute_metrics`"):
        ConsistencyTrainer(
            model=make_model(),
            args=make_config(tmp_path, method="act"),
            train_dataset=make_pairs(),
            processing_class=make_tokenizer(),
            compute_metrics=lambda prediction: {},
        )


def test_what_nothing_was_measured_on_is_not_logged(tmp_path):
    """0 would look like a perfect distance; and anchors, which have one, say nothing of the pairs."""
    pairs = Dataset.from_dict(
        {"clean_prompt": ["the fox jumps"] * 4, "perturbed_prompt": ["the fox jumps! France"] * 4}
    )
    trainer = make_trainer(
        tmp_path, ["bct"], pairs=pairs, eval_dataset=pairs, max_steps=2, logging_steps=1, anchor_ratio=0.5,
        log_consistency_metrics=True,
    )  # fmt: skip
    trainer.train()
    assert len(logged(trainer, "response_cross_entropy")) == 2
    assert logged(trainer, "activation_distance") == []
    assert "eval_activation_distance" not in trainer.evaluate()


def test_card_shows_the_prompts_as_they_were(tmp_path):
    for chat in (True, False):
        trainer = make_trainer(tmp_path / str(chat), ["act"], pairs=make_pairs(4, completion=False, chat=chat))
        trainer.create_model_card()
        card = (tmp_path / str(chat) / "README.md").read_text()
        assert ("apply_chat_template" in card) == chat


def test_a_reference_that_changed_is_not_saved(tmp_path):
    trainer = make_trainer(tmp_path, "act", max_steps=2, save_strategy="steps", save_steps=1)
    trainer.add_callback(SpoilWeights())
    with pytest.raises(ConsistencyError, match="weights of the reference have changed"):
        trainer.train()
    assert trainer.state.global_step == 1
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("trains_first", [False, True])
def test_a_model_is_trained_whole_after_a_trainer_that_compared_early_blocks(tmp_path, trains_first):
    """The weights that the first trainer left out stayed frozen, and the second one trained half of the model."""
    model = make_model()
    first = make_trainer(tmp_path, ["act"], model=model, lora=False, layers=[0], max_steps=1)
    size = sum(weight.numel() for weight in model.parameters())
    if trains_first:
        first.train()
        assert not first._card_facts()["Trained weights"].startswith(f"{size:,} of ")
    second = make_trainer(tmp_path, ["bct"], model=model, lora=False, max_steps=1)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    second.train()
    assert second._card_facts()["Trained weights"] == f"{size:,} of {size:,}, no adapter"
    assert not [name for name, weight in model.named_parameters() if torch.equal(weight, before[name])]


@pytest.mark.parametrize("method", ["bct", "kl"])
def test_logits_that_are_not_those_of_the_head_are_refused(tmp_path, method):
    """TRL's loss takes logits from the head, too: BCT alone trained on others than the model's."""
    model = make_model()
    forward = type(model).forward

    class Doubling(type(model)):
        def forward(self, *args, **kwargs):
            output = forward(self, *args, **kwargs)
            if output.logits is not None:
                output.logits = 2 * output.logits
            return output

    model.__class__ = Doubling
    with pytest.raises(ConsistencyError, match="in another way than from its head"):
        make_trainer(tmp_path, method, model=model).train()

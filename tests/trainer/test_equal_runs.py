"""Runs that must be equal: to TRL's trainer, to a naive oracle, and to themselves with other batches, resumed or repeated."""

import copy
from unittest.mock import patch

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from trl import SFTConfig, SFTTrainer

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer, oracle
from tests.helpers.runs import LORA, losses, trained_weights
from trl_consistency import ConsistencyTrainer
from trl_consistency.losses import supervised
from trl_consistency.objectives import divergence
from trl_consistency.objectives.divergence import token_scores


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
@pytest.mark.parametrize("lora", [False, True])
def test_equals_sft_trainer_on_the_same_tokens(tmp_path, loss_type, lora):
    options = {"max_steps": 4, "logging_steps": 1, "loss_type": loss_type, "per_device_train_batch_size": 3}
    ours = make_trainer(tmp_path / "ours", lora=lora, **options)
    rows = [
        {
            "input_ids": row["perturbed_ids"] + row["completion_ids"],
            "labels": [-100] * len(row["perturbed_ids"]) + row["completion_ids"],
        }
        for row in ours.train_dataset
    ]
    theirs = SFTTrainer(
        model=make_model(),
        args=SFTConfig(
            output_dir=str(tmp_path / "theirs"), learning_rate=1e-2, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", max_length=None, **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**LORA) if lora else None,
    )  # fmt: skip
    ours.train()
    theirs.train()
    assert len(losses(ours)) == 4
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("tied", [False, True])
def test_trained_tokens_of_a_tied_model_equal_a_naive_oracle(tmp_path, tied):
    """PEFT then wraps the head, too, and the wrapper has no `bias`, which TRL reads."""
    model = make_model()
    if tied:
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.get_input_embeddings().weight
    peft_config = LoraConfig(**LORA, trainable_token_indices=[*range(5, 300)])
    trainer = ConsistencyTrainer(
        model, make_config(tmp_path, max_steps=3, logging_steps=1, per_device_train_batch_size=8),
        train_dataset=make_pairs(), processing_class=make_tokenizer(), peft_config=peft_config,
    )  # fmt: skip
    total, tokens = oracle(trainer.model, trainer.train_dataset)
    trainer.train()
    assert losses(trainer)[0] == pytest.approx(total / tokens, abs=1e-5)
    assert losses(trainer)[-1] < losses(trainer)[0]
    evaluated = trainer.evaluate(trainer.train_dataset)["eval_loss"]
    total, tokens = oracle(trainer.model, trainer.train_dataset)
    assert evaluated == pytest.approx(total / tokens, abs=1e-5)


def test_equals_sft_trainer_on_prompt_and_completion_text(tmp_path):
    pairs = make_pairs()
    options = {"max_steps": 3, "logging_steps": 1}
    ours = make_trainer(tmp_path / "ours", pairs, **options)
    texts = pairs.map(
        lambda row: {
            "prompt": row["perturbed_prompt"],
            "completion": [{"role": "assistant", "content": row["completion"]}],
        },
        remove_columns=pairs.column_names,
    )
    theirs = SFTTrainer(
        model=make_model(),
        args=SFTConfig(
            output_dir=str(tmp_path / "theirs"), learning_rate=1e-2, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", max_length=None, **options,
        ),
        train_dataset=texts,
        processing_class=make_tokenizer(),
    )  # fmt: skip
    ours.train()
    theirs.train()
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-6)


def test_first_loss_equals_the_oracle(tmp_path):
    model = make_model()
    trainer = make_trainer(tmp_path, model=copy.deepcopy(model), max_steps=1, logging_steps=1)
    total, tokens = oracle(model.eval(), trainer.train_dataset)
    trainer.train()
    assert losses(trainer)[0] == pytest.approx(total / tokens, abs=1e-6)


@pytest.mark.parametrize("padding_free", [False, True])
def test_the_head_reads_no_prompts(tmp_path, padding_free):
    """In training and in evaluation, the fused head gets as many states as there are answer tokens."""
    pairs, read = make_pairs(), []
    options = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    trainer = make_trainer(
        tmp_path, pairs, eval_dataset=pairs, per_device_train_batch_size=8, padding_free=padding_free, **options
    )

    def noted(hidden, *args):
        read.append(len(hidden))
        return token_scores(hidden, *args)

    with patch.object(supervised, "token_scores", noted):
        trainer.train()
    answers = sum(len(row["completion_ids"]) for row in trainer.train_dataset)
    assert read == [answers, answers]


def test_a_frozen_head_is_multiplied_twice(tmp_path):
    """Not three times, as by TRL's kernel: its backward pass computes the logits anew."""
    pairs = make_pairs()
    options = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "lora": True}
    trainer = make_trainer(tmp_path, pairs, eval_dataset=pairs, **options)
    with patch.object(divergence.ChunkedLogProbFunction, "apply", lambda *args: pytest.fail("TRL's kernel")):
        trainer.train()


def test_weight_scales_the_loss(tmp_path):
    full = make_trainer(tmp_path, max_steps=1, logging_steps=1)
    half = make_trainer(tmp_path, max_steps=1, logging_steps=1, method_weights=[0.5])
    full.train()
    half.train()
    assert losses(half)[0] == pytest.approx(0.5 * losses(full)[0], rel=1e-6)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("lora", [False, True])
def test_accumulation_does_not_change_the_run(tmp_path, kind, lora):
    """Rows of uneven lengths: averaging the means of micro-batches would weigh short answers too heavily."""
    options = {"max_steps": 3, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.5}
    one, other = (
        trained_weights(
            make_trainer(
                tmp_path,
                make_pairs(16),
                make_model(kind),
                lora,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulation,
                **options,
            )
        )
        for batch, accumulation in ((8, 1), (1, 8))
    )
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_eval_loss_is_the_token_mean_whatever_the_batches(tmp_path, batch_size):
    model = make_model()
    trainer = make_trainer(tmp_path, model=model, eval_dataset=make_pairs(7), per_device_eval_batch_size=batch_size)
    total, tokens = oracle(model.eval(), trainer.eval_dataset)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(total / tokens, abs=1e-6)


@pytest.mark.parametrize("padding_free", [False, True])
def test_label_smoothing_is_in_the_eval_loss_too(tmp_path, padding_free):
    """At a learning rate of 0, a step's loss is that of an evaluation on the same rows."""
    options = {"label_smoothing_factor": 0.3, "learning_rate": 0.0, "max_steps": 1, "logging_steps": 1}
    model = make_model(attention="sdpa")
    trainer = make_trainer(tmp_path, model=model, eval_dataset=make_pairs(), padding_free=padding_free, **options)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses(trainer)[0], abs=1e-5)


def test_an_evaluation_does_not_change_the_training(tmp_path):
    """The steps after it had another dropout."""
    found = []
    for options in ({}, {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": make_pairs(3)}):
        model = get_peft_model(make_model(), LoraConfig(**{**LORA, "lora_dropout": 0.5}))
        found.append(trained_weights(make_trainer(tmp_path, model=model, max_steps=3, seed=5, **options)))
    assert torch.equal(*found)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """Without a `completion` column: the targets must be the reference's again, though training has begun."""
    pairs = make_pairs(12, completion=False)
    options = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 4}
    whole = make_trainer(tmp_path / "whole", pairs, **options)
    whole.train()
    resumed = make_trainer(tmp_path / "whole", pairs, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    for (name, one), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("lora", [False, True])
def test_same_seed_same_run(tmp_path, lora):
    pairs = make_pairs(completion=False)
    first, second = (trained_weights(make_trainer(tmp_path, pairs, lora=lora, max_steps=2)) for _ in range(2))
    assert torch.equal(first, second)

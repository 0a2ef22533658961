import copy
import json
import shutil
from itertools import chain
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from transformers import LlamaForCausalLM, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer
from trl.trainer import utils

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import LORA, generate_greedily, losses, make_trainer
from trl_consistency import (
    ConsistencyConfig,
    ConsistencyError,
    ConsistencyTrainer,
    InvalidPairsError,
    OnPolicyConsistencyConfig,
)
from trl_consistency.data.prepare import prepare_pairs


def trained_weights(trainer):
    trainer.train()
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def oracle(model, rows):
    """Summed cross-entropy of the completions and their number of tokens, one row at a time from full logits."""
    total, tokens = 0.0, 0
    for row in rows:
        ids = torch.tensor([row["perturbed_ids"] + row["completion_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0]
        start = len(row["perturbed_ids"])
        total += F.cross_entropy(logits[start - 1 : -1].float(), ids[0, start:], reduction="sum").item()
        tokens += len(row["completion_ids"])
    return total, tokens


# Against SFTTrainer and a naive oracle


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


SOME = [*range(5, 300)]


@pytest.mark.parametrize("is_made", [False, True], ids=["config", "model with an adapter"])
@pytest.mark.parametrize(
    ("refused", "advice", "followed"),
    [
        (TrainableTokensConfig(token_indices=SOME), "`LoraConfig` and its `trainable_token_indices`", {"trainable_token_indices": SOME}),
        (LoraConfig(target_modules=["embed_tokens"], ensure_weight_tying=True), "Leave `ensure_weight_tying` out", {"target_modules": ["embed_tokens"]}),
        (LoraConfig(target_modules=["q_proj", "lm_head"]), "Remove `lm_head` from `target_modules`", {"target_modules": ["q_proj"]}),
    ],
    ids=["tokens", "tied", "head"],
)  # fmt: skip
def test_what_to_do_about_an_adapter_on_a_tied_head_works(tmp_path, refused, advice, followed, is_made):
    """All were to remove `lm_head` from `target_modules`, where most do not have it."""
    config = make_model("llama").config
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    args = make_config(tmp_path / "out", max_steps=2)

    def trainer_of(peft_config):
        base = LlamaForCausalLM.from_pretrained(tmp_path / "base")
        given = {"peft_config": peft_config, "model": base}
        given = {"model": get_peft_model(base, peft_config)} if is_made else given
        return ConsistencyTrainer(**given, args=args, train_dataset=make_pairs(4), processing_class=make_tokenizer())

    with pytest.raises(ConsistencyError, match=f"an adapter on the language modelling head.*{advice}"):
        trainer_of(refused)
    trainer = trainer_of(LoraConfig(**LORA | followed))
    trained = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in trained.items()}
    trainer.train()
    trainer.save_model()
    assert all((weight != before[name]).any() for name, weight in trained.items())
    saved = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "out")
    ids = torch.arange(5, 40)[None]
    assert torch.allclose(saved(ids).logits, trainer.model.eval()(ids).logits, atol=1e-6)


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
    apply = utils._ChunkedLogProbFunction.apply

    def noted(hidden, *args):
        read.append(len(hidden))
        return apply(hidden, *args)

    with patch.object(utils._ChunkedLogProbFunction, "apply", noted):
        trainer.train()
    answers = sum(len(row["completion_ids"]) for row in trainer.train_dataset)
    assert read == [answers, answers]


def test_weight_scales_the_loss(tmp_path):
    full = make_trainer(tmp_path, max_steps=1, logging_steps=1)
    half = make_trainer(tmp_path, max_steps=1, logging_steps=1, method_weights=[0.5])
    full.train()
    half.train()
    assert losses(half)[0] == pytest.approx(0.5 * losses(full)[0], rel=1e-6)


# Invariants


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


def test_eval_metrics_do_not_leak_into_the_training_log(tmp_path):
    trainer = make_trainer(
        tmp_path, eval_dataset=make_pairs(5), max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=1
    )
    plain = make_trainer(tmp_path, max_steps=4, logging_steps=2)
    trainer.train()
    plain.train()
    assert losses(trainer) == pytest.approx(losses(plain), abs=1e-6)


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


# Targets


def test_targets_are_the_models_own_clean_answers(tmp_path):
    model = make_model()
    trainer = make_trainer(tmp_path, make_pairs(completion=False), copy.deepcopy(model), max_steps=1, temperature=0.0)
    trainer.train()
    for row in trainer.train_dataset:
        expected = generate_greedily(model, trainer.processing_class, row["clean_ids"])
        assert trainer.targets[row["clean_ids"]] == expected


def test_generated_targets_train_like_the_same_completions_given(tmp_path):
    pairs = make_pairs(completion=False)
    generated = make_trainer(tmp_path, pairs, max_steps=3, logging_steps=1, temperature=0.0)
    generated.train()
    targets = [generated.targets[row["clean_ids"]] for row in generated.train_dataset]
    given = make_trainer(tmp_path, pairs.add_column("completion_ids", targets), max_steps=3, logging_steps=1)
    given.train()
    assert losses(generated) == losses(given)


def test_each_distinct_clean_prompt_is_answered_once(tmp_path, monkeypatch):
    pairs = make_pairs(4, completion=False)
    pairs = Dataset.from_list([row for row in pairs for _ in range(3)])
    trainer = make_trainer(
        tmp_path, pairs, max_steps=1, eval_dataset={"same": pairs.select([0]), "new": make_pairs(6)}
    )
    answered = []
    original = trainer.model.generate
    monkeypatch.setattr(
        trainer.model, "generate", lambda **inputs: answered.append(len(inputs["input_ids"])) or original(**inputs)
    )
    trainer.train()
    trainer.evaluate()
    assert sum(answered) == 4
    assert len(trainer.targets) == 4


def test_targets_that_do_not_end_are_reported(tmp_path, caplog):
    make_trainer(tmp_path, make_pairs(completion=False), max_steps=1, max_completion_length=1).train()
    assert "of 8 targets reached `max_completion_length=1` without an end-of-turn token" in caplog.text


def test_empty_targets_are_counted(tmp_path, monkeypatch, caplog):
    """As those of a chat model that reads text: it ends its turn at once."""

    def answers(model, prompts, config, *args, **kwargs):
        return [[config.eos_token_id[0]], *([5] for _ in prompts[1:])]

    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", answers)
    make_trainer(tmp_path, make_pairs(completion=False), max_steps=1).train()
    assert "1 of 8 targets are empty" in caplog.text


def test_evaluation_after_training_uses_the_reference(tmp_path):
    """With a new adapter the reference is the model without it; the adapter is made large so that it would show."""
    model = make_model()
    reference = copy.deepcopy(model)
    trainer = make_trainer(tmp_path, model=model, lora=True, max_steps=5, learning_rate=0.5, temperature=0.0)
    trainer.train()
    pairs = make_pairs(3, completion=False)
    trainer.evaluate(pairs)
    tokenizer = trainer.processing_class
    rows = prepare_pairs(pairs, tokenizer, "eval")
    assert [trainer.targets[row["clean_ids"]] for row in rows] == [
        generate_greedily(reference, tokenizer, row["clean_ids"]) for row in rows
    ]
    assert [trainer.targets[row["clean_ids"]] for row in rows] != [
        generate_greedily(trainer.model, tokenizer, row["clean_ids"]) for row in rows
    ], "the trained model answers alike: the test shows nothing"


def test_full_fine_tuning_refuses_targets_after_training(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    with pytest.raises(ConsistencyError, match="before training"):
        trainer.evaluate(make_pairs(3, completion=False))
    trainer.evaluate(make_pairs(3))


def test_adapter_that_came_with_the_model_belongs_to_the_reference(tmp_path):
    """Mistake 10: the reference is the initial policy including its adapter, not the bare base model."""
    torch.manual_seed(1)
    model = get_peft_model(make_model(), LoraConfig(**LORA, init_lora_weights=False))
    reference = copy.deepcopy(model)
    trainer = make_trainer(tmp_path, make_pairs(completion=False), model, max_steps=1, temperature=0.0)
    trainer.train()
    assert isinstance(trainer.model, PeftModel)
    rows = list(trainer.train_dataset)
    got = [trainer.targets[row["clean_ids"]] for row in rows]
    assert got == [generate_greedily(reference, trainer.processing_class, row["clean_ids"]) for row in rows]
    with reference.disable_adapter():
        bare = [generate_greedily(reference, trainer.processing_class, row["clean_ids"]) for row in rows]
    assert got != bare, "the adapter changes nothing: the test shows nothing"


def test_thinking_can_be_left_out_of_the_targets(tmp_path, monkeypatch, caplog):
    pairs = make_pairs(2, completion=False)
    tokenizer = make_tokenizer()
    sampled = [tokenizer(text)["input_ids"] for text in ("<think>Hm.</think>Paris.<|im_end|>", "<think>Hm, Ly")]
    targets = {}
    for keep in (True, False):
        trainer = make_trainer(tmp_path, pairs, max_steps=1, keep_thinking=keep, logging_steps=1)
        monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", lambda *_, **__: sampled)
        trainer.train()
        assert losses(trainer)[0] > 0
        targets[keep] = [tokenizer.decode(trainer.targets[row["clean_ids"]]) for row in trainer.train_dataset]
    assert targets[True] == ["<think>Hm.</think>Paris.<|im_end|>", "<think>Hm, Ly"]
    assert targets[False] == ["<think>\n\n</think>Paris.<|im_end|>", ""]
    assert "1 of 2 targets did not finish their thinking" in caplog.text


def test_generation_options_reach_the_generation(tmp_path):
    trainer = make_trainer(tmp_path, temperature=0.7, top_p=0.9, top_k=5, generation_kwargs={"min_new_tokens": 2})
    config = trainer.target_maker.generation_config()
    assert (config.do_sample, config.temperature, config.top_p, config.top_k) == (True, 0.7, 0.9, 5)
    assert (config.max_new_tokens, config.min_new_tokens, config.eos_token_id) == (8, 2, [2])


def test_a_second_run_takes_its_targets_from_the_cache(tmp_path, monkeypatch):
    pairs = make_pairs(completion=False)
    first = make_trainer(tmp_path, pairs, lora=True, max_steps=2, learning_rate=0.5)
    first.train()
    again = make_trainer(tmp_path, pairs, lora=True, max_steps=1, seed=42)
    monkeypatch.setattr(again.model, "generate", lambda **_: pytest.fail("generated although cached"))
    again.train()
    assert all(again.targets[row["clean_ids"]] == first.targets[row["clean_ids"]] for row in again.train_dataset)


def test_cache_of_another_model_is_refused_where_it_was_asked_for(tmp_path):
    options = {"max_steps": 1, "target_cache_dir": str(tmp_path / "targets")}
    pairs = make_pairs(completion=False)
    make_trainer(tmp_path, pairs, **options).train()
    with pytest.raises(ConsistencyError, match=r"another model's \(weights .*`target_cache_dir`"):
        make_trainer(tmp_path, pairs, make_model(seed=1), **options).train()
    options.pop("target_cache_dir")
    for seed in (0, 1):  # in the output folder each model has targets of its own
        make_trainer(tmp_path, pairs, make_model(seed=seed), **options).train()


def test_targets_of_an_edited_config_are_not_used(tmp_path, model_dir):
    folder = shutil.copytree(model_dir, tmp_path / "model")
    options = {"max_steps": 1, "target_cache_dir": str(tmp_path / "targets")}
    make_trainer(tmp_path, make_pairs(completion=False), str(folder), lora=True, **options).train()
    make_trainer(tmp_path, make_pairs(completion=False), str(folder), lora=True, **options).train()
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 77.0
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConsistencyError, match=r"another model's \(config .*`target_cache_dir`"):
        make_trainer(tmp_path, make_pairs(completion=False), str(folder), lora=True, **options).train()


def test_cache_is_used_after_a_commit_that_left_the_weights_as_they_were(tmp_path, cached_base):
    cached_base("v1")
    for revision in ("main", "v1"):
        options = {"model_init_kwargs": {"revision": revision}, "target_cache_dir": str(tmp_path / "targets")}
        make_trainer(tmp_path, make_pairs(completion=False), "me/base", max_steps=1, **options).train()
    assert len(list((tmp_path / "targets").glob("*/batch-*.json"))) == 1


@pytest.mark.parametrize("by_path", [False, True])
def test_the_tokenizer_of_another_model_is_refused(tmp_path, by_path):
    """Its vocabulary has as many tokens, which mean something else."""
    folder = tmp_path / "model"
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    make_trainer(tmp_path, model=str(folder))
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"A":', '"held":').replace('"B":', '"A":').replace('"held":', '"B":'))
    model = str(folder) if by_path else type(make_model()).from_pretrained(folder)
    with pytest.raises(
        ConsistencyError,
        match=r"`processing_class`: the data are read with .* '[AB]' is token \d+, and for .*model it is token",
    ):
        make_trainer(tmp_path, model=model)


def test_targets_none_of_which_finish_their_thinking_are_an_error(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, make_pairs(2, completion=False), max_steps=1, keep_thinking=False)
    sampled = [make_tokenizer()("<think>Hm, Ly")["input_ids"]] * 2
    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", lambda *_, **__: sampled)
    with pytest.raises(ConsistencyError, match="None of 2 targets finished its thinking"):
        trainer.train()


def test_an_evaluation_without_targets_is_an_error(tmp_path):
    """A loss of 0 would be the best there is."""
    trainer = make_trainer(tmp_path, eval_dataset=make_pairs(2, completion=False))
    for row in trainer.eval_dataset:
        trainer.targets[row["clean_ids"]] = []
    with pytest.raises(ConsistencyError, match="No row of the evaluation has anything to compare for bct"):
        trainer.evaluate()


@pytest.mark.parametrize("has_merged", [True, False])
def test_an_adapter_on_other_weights_than_its_base_models_is_said(tmp_path, model_dir, caplog, has_merged):
    """It would be loaded on the weights under the name that it carries."""
    model = LlamaForCausalLM.from_pretrained(model_dir)
    if has_merged:
        adapted = get_peft_model(model, LoraConfig(**LORA))
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight)
        model = adapted.merge_and_unload()
    trainer = make_trainer(tmp_path, model=model, lora=True, max_steps=1)
    assert ("The base model's weights (such as" in caplog.text) == has_merged
    trainer.train()
    trainer.save_model()
    said = "on other weights than those of the base model above" in (tmp_path / "README.md").read_text()
    assert said == has_merged


# What SFTTrainer offers


def test_anchors_just_work(tmp_path):
    anchor = [{"role": "user", "content": "What?"}]
    pairs = Dataset.from_dict({"clean_prompt": [anchor] * 4, "perturbed_prompt": [anchor] * 4})
    trainer = make_trainer(tmp_path, pairs, max_steps=1)
    trainer.train()
    assert len(trainer.targets) == 1


def test_the_loss_falls(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=30, logging_steps=1)
    trainer.train()
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"shuffle_dataset": True},
        {"dataloader_num_workers": 1},
        {"train_sampling_strategy": "group_by_length"},
        {"remove_unused_columns": False},
        {"pad_to_multiple_of": 16},
        {"label_smoothing_factor": 0.1},
        {"max_length": 200},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("lora", [False, True])
def test_inherited_options_work(tmp_path, lora, options):
    trainer = make_trainer(
        tmp_path,
        make_pairs(completion=False),
        lora=lora,
        max_steps=2,
        logging_steps=1,
        eval_dataset=make_pairs(3),
        **options,
    )
    trainer.train()
    assert losses(trainer)[1] > 0
    assert trainer.evaluate()["eval_loss"] > 0


def test_rebalanced_batches_follow_the_seed_and_the_epoch(tmp_path):
    """Trainer's sampler had the same order for every seed."""
    options = {"train_sampling_strategy": "batch_rebalance", "num_train_epochs": 2, "max_steps": -1}
    trainers = [make_trainer(tmp_path / str(seed), data_seed=seed, **options) for seed in (42, 7)]
    orders = [list(trainer._get_train_sampler()) for trainer in trainers]
    assert [sorted(chain(*order)) for order in orders] == [list(range(8))] * 2
    assert orders[0] != orders[1]
    trainers[1].train()
    assert trainers[1]._rebalancing.epoch == 1


def test_compute_metrics_gets_the_logits(tmp_path):
    shapes = []
    trainer = ConsistencyTrainer(
        model=make_model(),
        args=make_config(tmp_path),
        train_dataset=make_pairs(),
        eval_dataset=make_pairs(3),
        processing_class=make_tokenizer(),
        compute_metrics=lambda prediction: shapes.append(prediction.predictions.shape) or {"rows": len(shapes)},
    )
    metrics = trainer.evaluate()
    assert metrics["eval_rows"] == 1
    assert shapes[0][0] == 3
    assert metrics["eval_loss"] > 0


def test_streamed_pairs(tmp_path):
    pairs = make_pairs(8)
    streamed = make_trainer(tmp_path, pairs.to_iterable_dataset(), max_steps=2, logging_steps=1)
    streamed.train()
    assert len(losses(streamed)) == 2
    with pytest.raises(InvalidPairsError, match="streamed and has no `completion` column"):
        make_trainer(tmp_path, make_pairs(completion=False).to_iterable_dataset(), max_steps=2)


@pytest.mark.parametrize("option", ["eval_strategy", "save_strategy", "logging_strategy"])
def test_epochs_of_a_stream_do_not_end(tmp_path, caplog, option):
    """It was evaluated, saved or logged once, after the last step, however often the stream began anew."""
    options = {"eval_dataset": make_pairs(2), "max_steps": 6, "per_device_train_batch_size": 2, option: "epoch"}
    said = f"`{option}` is epoch, and `train_dataset` is streamed"
    make_trainer(tmp_path / "rows", make_pairs(4), **options)
    assert said not in caplog.text
    make_trainer(tmp_path / "stream", make_pairs(4).to_iterable_dataset(), **options)
    assert said in caplog.text


def test_predict_takes_pairs(tmp_path):
    pairs = make_pairs(3, completion=False)
    trainer = make_trainer(tmp_path)
    assert trainer.predict(pairs).metrics["test_loss"] == pytest.approx(trainer.evaluate(pairs)["eval_loss"])


def test_predictions_are_in_the_order_of_the_pairs(tmp_path):
    pairs = make_pairs(6)
    trainer = make_trainer(tmp_path, pairs, shuffle_dataset=True)
    assert trainer.train_dataset["completion"][:] != pairs["completion"][:]
    labels = [[label for label in row if label != -100] for row in trainer.predict(pairs).label_ids]
    assert [trainer.processing_class.decode(row, skip_special_tokens=True).strip() for row in labels] == pairs[
        "completion"
    ][:]


def test_a_peft_config_serves_several_trainers(tmp_path):
    """PEFT writes the names of the adapted layers into it, which are not those of the next model."""
    config = LoraConfig(**LORA)
    deeper = make_model("llama").config
    deeper.num_hidden_layers = 4
    adapted = []
    for model in (make_model("llama"), LlamaForCausalLM(deeper)):
        trainer = ConsistencyTrainer(
            model=model,
            args=make_config(tmp_path),
            train_dataset=make_pairs(),
            processing_class=make_tokenizer(),
            peft_config=config,
        )
        adapted.append(sum("lora_A" in name for name, _ in trainer.model.named_parameters()))
    assert adapted == [14, 28]
    assert config.target_modules == "all-linear"


def test_nothing_trainable(tmp_path):
    get_peft_model(make_model(), LoraConfig(**LORA)).save_pretrained(tmp_path / "adapter")
    model = PeftModel.from_pretrained(make_model(), tmp_path / "adapter")
    with pytest.raises(ConsistencyError, match="is_trainable=True"):
        make_trainer(tmp_path, model=model)


@pytest.mark.parametrize(
    ("options", "resume", "reason"),
    [
        ({}, True, "`resume_from_checkpoint` is true, but there is no checkpoint in"),
        ({}, "gone", "`resume_from_checkpoint`: there is no folder gone"),
        (
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"cycles": 1}},
            None,
            "`lr_scheduler_type` cosine with",
        ),
        ({"optim": "galore_adamw", "optim_target_modules": "all-linear"}, None, "`optim` galore_adamw: "),
    ],
)
def test_errors_come_before_the_targets(tmp_path, monkeypatch, options, resume, reason):
    trainer = make_trainer(tmp_path, make_pairs(completion=False), **options)
    monkeypatch.setattr(trainer.model, "generate", lambda **_: pytest.fail("targets were generated first"))
    with pytest.raises(ConsistencyError, match=reason):
        trainer.train(resume_from_checkpoint=resume)


class StrictLlama(LlamaForCausalLM):
    """A model whose forward takes no loss arguments, as those of some architectures: Trainer counts no tokens for it."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, use_cache=None):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, use_cache=use_cache)


def test_accumulation_for_a_model_that_takes_no_loss_arguments(tmp_path):
    options = {"max_steps": 2, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.5}
    one, other = (
        trained_weights(
            make_trainer(
                tmp_path,
                make_pairs(16),
                make_model("llama", kind_of=StrictLlama),
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulation,
                **options,
            )
        )
        for batch, accumulation in ((8, 1), (1, 8))
    )
    assert torch.allclose(one, other, atol=1e-6)


def test_prompts_of_another_form_than_the_pairs_are_told(tmp_path, caplog):
    sets = {"hard": make_pairs(2, chat=False), "easy": make_pairs(2)}
    ConsistencyTrainer(
        make_model(),
        make_config(tmp_path),
        train_dataset=make_pairs(2),
        eval_dataset=sets,
        processing_class=make_tokenizer(),
    )
    assert (
        "`eval_dataset['hard']` holds text, which goes through no chat template, unlike `train_dataset`" in caplog.text
    )
    assert "`eval_dataset['easy']` holds" not in caplog.text


def test_string_prompts_need_no_chat_template(tmp_path):
    trainer = ConsistencyTrainer(
        model=make_model(),
        args=make_config(tmp_path, max_steps=1),
        train_dataset=make_pairs(chat=False, completion=False),
        processing_class=make_tokenizer(chat_template=None),
    )
    trainer.train()


@pytest.mark.parametrize("kind", [TrainingArguments, SFTConfig])
def test_model_by_path_and_another_config(tmp_path, model_dir, kind):
    args = kind(
        output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True
    )
    trainer = ConsistencyTrainer(model=str(model_dir), args=args, train_dataset=make_pairs())
    assert isinstance(trainer.args, ConsistencyConfig)
    trainer.train()


@pytest.mark.parametrize("kind", ["torch", "numpy", "pandas"])
def test_formatted_rows(tmp_path, model_dir, kind):
    losses = []
    for pairs in (make_pairs(8), make_pairs(8).with_format(kind)):
        args = make_config(tmp_path, max_steps=1, per_device_train_batch_size=8)
        trainer = ConsistencyTrainer(model=str(model_dir), args=args, train_dataset=pairs, eval_dataset=pairs)
        losses.append((trainer.train().training_loss, trainer.evaluate(pairs)["eval_loss"]))
    assert losses[0] == losses[1]


def test_config_of_another_trainer(tmp_path, model_dir):
    args = OnPolicyConsistencyConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ConsistencyError, match="class `ConsistencyConfig`, got `OnPolicyConsistencyConfig`"):
        ConsistencyTrainer(model=str(model_dir), args=args, train_dataset=make_pairs())


def test_saved_adapter_loads_with_plain_peft(tmp_path, model_dir):
    from peft import AutoPeftModelForCausalLM

    trainer = ConsistencyTrainer(
        model=str(model_dir),
        args=make_config(tmp_path, max_steps=3),
        train_dataset=make_pairs(),
        peft_config=LoraConfig(**LORA),
    )
    trainer.train()
    trainer.save_model()
    assert (tmp_path / "adapter_model.safetensors").is_file()
    loaded = AutoPeftModelForCausalLM.from_pretrained(str(tmp_path)).eval()
    ids = torch.tensor([trainer.train_dataset[0]["perturbed_ids"]])
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, trainer.model.eval()(ids).logits, atol=1e-6)


# Anchors


@pytest.mark.parametrize("completion", [True, False])
def test_anchor_ratio_adds_anchors_and_logs_them(tmp_path, completion):
    anchors = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"Anchor {row}"}] for row in range(5)]})
    trainer = ConsistencyTrainer(
        model=make_model(),
        args=make_config(
            tmp_path, anchor_ratio=0.2, num_train_epochs=1, per_device_train_batch_size=5, logging_steps=2
        ),
        train_dataset=make_pairs(8, completion=completion),
        processing_class=make_tokenizer(),
        anchor_dataset=anchors,
    )
    assert len(trainer.train_dataset) == 10
    trainer.train()
    assert len(trainer.targets) == 2 + (0 if completion else 8)
    assert trainer.state.log_history[0]["anchor_share"] == pytest.approx(0.2)


@pytest.mark.parametrize("batch", [2, 5])
def test_anchor_loss_is_that_of_the_anchors(tmp_path, batch):
    options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 10 // batch, "learning_rate": 0.0}
    model = make_model()
    trainer = make_trainer(
        tmp_path, make_pairs(5), copy.deepcopy(model), anchor_ratio=0.5, max_steps=1, logging_steps=1, **options
    )
    rows = [row for row in trainer.train_dataset if row["clean_ids"] == row["perturbed_ids"]]
    assert len(rows) == 5
    total, tokens = oracle(model.eval(), rows)
    trainer.train()
    assert trainer.state.log_history[0]["anchor_loss"] == pytest.approx(total / tokens, abs=1e-5)


def test_without_anchors_nothing_is_logged_of_them(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, logging_steps=1)
    trainer.train()
    assert not any("anchor" in key for key in trainer.state.log_history[0])


def test_anchors_keep_the_model_where_it_was(tmp_path):
    """The purpose: the divergence from the reference on anchor prompts stays lower than without anchors."""
    prompts = [[{"role": "user", "content": f"Anchor {row}"}] for row in range(4)]
    losses_on_anchors = []
    for ratio in (0.0, 0.5):
        trainer = ConsistencyTrainer(
            model=make_model(),
            args=make_config(tmp_path, anchor_ratio=ratio, max_steps=40, temperature=0.0),
            train_dataset=make_pairs(8),
            eval_dataset=Dataset.from_dict({"clean_prompt": prompts, "perturbed_prompt": prompts}),
            processing_class=make_tokenizer(),
            anchor_dataset=Dataset.from_dict({"prompt": prompts}) if ratio else None,
        )
        trainer.train()
        losses_on_anchors.append(trainer.evaluate()["eval_loss"])
    assert losses_on_anchors[1] < 0.2 * losses_on_anchors[0]


# Errors, all before any weights load


@pytest.fixture
def no_weights(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded before the error")

    monkeypatch.setattr("trl.trainer.sft_trainer.create_model_from_path", refuse)


def faulty_trainer(tmp_path, model_dir, pairs=None, options=None, **arguments):
    return ConsistencyTrainer(
        model=str(model_dir),
        args=make_config(tmp_path, **(options or {})),
        train_dataset=make_pairs() if pairs is None else pairs,
        **arguments,
    )


@pytest.mark.usefixtures("no_weights")
class TestEarlyErrors:
    @pytest.mark.parametrize("name", ["compute_loss_func", "formatting_func", "data_collator"])
    def test_refused_arguments(self, tmp_path, model_dir, name):
        with pytest.raises(ConsistencyError, match=f"`{name}` is not available"):
            faulty_trainer(tmp_path, model_dir, **{name: lambda *_: 0})

    def test_no_dataset(self, tmp_path, model_dir):
        with pytest.raises(ConsistencyError, match="`train_dataset` is required"):
            ConsistencyTrainer(model=str(model_dir), args=make_config(tmp_path))

    def test_faulty_pairs(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match="no column `clean_prompt`"):
            faulty_trainer(tmp_path, model_dir, make_pairs().remove_columns("clean_prompt"))

    def test_faulty_eval_pairs_are_named(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match=r"`eval_dataset\['b'\]` is empty"):
            faulty_trainer(tmp_path, model_dir, eval_dataset={"a": make_pairs(), "b": make_pairs().select([])})

    def test_messages_without_chat_template(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match="the tokenizer has no chat template"):
            faulty_trainer(tmp_path, model_dir, processing_class=make_tokenizer(chat_template=None))

    def test_anchors_without_prompt(self, tmp_path, model_dir):
        with pytest.raises(InvalidPairsError, match="`anchor_dataset` has no column `prompt`"):
            faulty_trainer(tmp_path, model_dir, options={"anchor_ratio": 0.1}, anchor_dataset=make_pairs())

    def test_anchors_without_ratio(self, tmp_path, model_dir):
        with pytest.raises(ConsistencyError, match="`anchor_ratio` is 0"):
            faulty_trainer(tmp_path, model_dir, anchor_dataset=Dataset.from_dict({"prompt": ["a"]}))

    def test_output_dir_not_writable(self, tmp_path, model_dir):
        (tmp_path / "file").touch()
        with pytest.raises(ConsistencyError, match=r"`output_dir` .* is not writable"):
            faulty_trainer(tmp_path / "file" / "out", model_dir)

    @pytest.mark.parametrize(
        ("options", "missing", "reason"),
        [
            ({"optim": "adamw_8bit"}, "bitsandbytes", r"`optim` adamw_8bit needs .*pip install bitsandbytes"),
            ({"optim": "paged_adamw_32bit"}, "bitsandbytes", "`optim` paged_adamw_32bit needs"),
            ({"use_liger_kernel": True}, "liger_kernel", "`use_liger_kernel` needs the package `liger_kernel`"),
            ({"report_to": "wandb"}, "wandb", "`report_to` names `wandb`, which is not installed"),
            (
                {"model_init_kwargs": {"attn_implementation": "flash_attention_2"}},
                "flash_attn",
                "`attn_implementation` flash_attention_2 needs",
            ),
        ],
    )
    def test_missing_extra(self, tmp_path, model_dir, monkeypatch, options, missing, reason):
        import importlib.util

        find_spec = importlib.util.find_spec
        monkeypatch.setattr(
            "trl_consistency.trainer.run.checks.find_spec", lambda name: None if name == missing else find_spec(name)
        )
        monkeypatch.setattr("trl_consistency.trainer.run.checks.get_available_reporting_integrations", lambda: [])
        with pytest.raises(ConsistencyError, match=reason):
            faulty_trainer(tmp_path, model_dir, options=options)

    def test_quantization_without_bitsandbytes(self, tmp_path, model_dir, monkeypatch):
        from transformers import BitsAndBytesConfig

        monkeypatch.setattr("trl_consistency.trainer.run.checks.find_spec", lambda name: None)
        with pytest.raises(ConsistencyError, match="`quantization_config` needs the package `bitsandbytes`"):
            faulty_trainer(tmp_path, model_dir, quantization_config=BitsAndBytesConfig(load_in_4bit=True))


def test_rows_that_were_not_prepared_name_the_way_out(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(completion=False))
    with pytest.raises(ConsistencyError, match=r"call `train\(\)` or `evaluate\(\)`"):
        next(iter(trainer.get_train_dataloader()))


def test_targets_are_made_in_the_precision_that_the_environment_gives_the_run(tmp_path, monkeypatch):
    """As under `accelerate launch --mixed_precision bf16`; the cache of the targets names it."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trainer = ConsistencyTrainer(
        make_model(),
        args=make_config(tmp_path, bf16=None),
        train_dataset=make_pairs(4, completion=False),
        processing_class=make_tokenizer(),
    )
    seen = set()
    trainer.model.model.embed_tokens.register_forward_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    trainer.generate_targets()
    assert seen == {True}
    assert any('"bfloat16"' in file.read_text() for file in tmp_path.rglob("_targets/**/*.json"))
    trainer.train()
    assert seen == {True}


def test_log_after_a_callback_that_leaves_the_model_in_evaluation_mode(tmp_path):
    """The metrics of training were missing from its log."""

    class Samples(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.eval()

    trainer = make_trainer(tmp_path, method="kl", max_steps=2, logging_steps=1)
    trainer.add_callback(Samples())
    trainer.train()
    assert ["kl_loss" in entry for entry in trainer.state.log_history] == [True, True, False]
    assert not trainer.model.training, "a log changes the model's mode"


def test_pairs_with_targets_are_those_that_were_given(tmp_path):
    """With anchors, they were rows of targets without a prompt, the anchors among them."""
    pairs = make_pairs(4, completion=False).add_column("source_id", list("abcd"))
    trainer = make_trainer(tmp_path, pairs=pairs, anchor_ratio=0.5)
    trainer.generate_targets()
    found = trainer.dataset_with_targets()
    assert set(found.column_names) == {*pairs.column_names, "completion", "completion_ids"}
    assert found["source_id"] == pairs["source_id"]
    assert found["perturbed_prompt"] == pairs["perturbed_prompt"]


@pytest.mark.parametrize("option", [{"loss_type": "dft"}, {"label_smoothing_factor": 0.2}])
def test_anchor_loss_is_the_loss_that_is_trained_with(tmp_path, option):
    """It was the cross-entropy beside a loss of another kind."""
    options = {"anchor_ratio": 0.5, "max_steps": 1, "logging_steps": 1, **option}
    alone = make_trainer(tmp_path, **options)
    alone.train()
    assert 0 < alone.state.log_history[0]["anchor_share"] < 1
    assert "anchor_loss" not in alone.state.log_history[0], "rows are not measured by it"
    if "loss_type" in option:
        both = make_trainer(tmp_path, method=["bct", "kl"], method_weights=[1.0, 0.0], **options)
        both.train()
        logged = both.state.log_history[0]
        assert logged["anchor_loss"] == pytest.approx(logged["loss"], rel=0.5), "and no nats of about 6"


@pytest.mark.parametrize("options", [{}, {"method": "kl"}])
@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end"])
def test_what_a_callback_logs_takes_nothing_of_the_log_of_steps(tmp_path, options, event):
    """The means beside the loss were those of the steps since the callback's log."""

    class Logging(TrainerCallback):
        def __init__(self, trainer):
            self.trainer = trainer

    def note(self, args, state, control, **kwargs):
        should_log = control.should_log
        self.trainer.log({"mine": 1.0})
        control.should_log = should_log  # which `log` resets

    setattr(Logging, event, note)
    logged = []
    for has_callback in (False, True):
        trainer = make_trainer(
            tmp_path, max_steps=4, logging_steps=2, per_device_train_batch_size=2, anchor_ratio=0.3, **options
        )
        if has_callback:
            trainer.add_callback(Logging(trainer))
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "loss" in entry]
        logged.append([{name: value for name, value in entry.items() if name != "grad_norm"} for entry in steps])
        assert all(entry.keys() == {"mine", "epoch", "step"} for entry in trainer.state.log_history if "mine" in entry)
    assert logged[0] == logged[1]
    assert len(logged[1]) == 2


def test_a_training_after_one_that_was_broken_off_logs_its_own_means(tmp_path):
    """Its first log had the means of steps before it, too."""

    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise RuntimeError("out of memory")

    trainer = make_trainer(tmp_path, method="kl", max_steps=5, logging_steps=5)
    trainer.add_callback(callback := Break())
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    trainer.remove_callback(callback)
    trainer.train()
    assert trainer.state.log_history[0]["kl_loss"] == pytest.approx(trainer.state.log_history[0]["loss"], rel=1e-5)


def test_the_last_log_has_the_means_of_the_last_steps_though_they_were_evaluated(tmp_path):
    """They were in no log, and in the first one of the next training."""
    options = {"method": "kl", "max_steps": 3, "logging_steps": 2, "eval_steps": 3}
    logged = []
    for strategy in ("no", "steps"):
        trainer = make_trainer(tmp_path, eval_dataset=make_pairs(2), eval_strategy=strategy, **options)
        trainer.train()
        trainer.evaluate(metric_key_prefix="train")  # logs a `train_loss`, too
        logged.append([{k: v for k, v in entry.items() if "loss" in k} for entry in trainer.state.log_history])
    without, evaluated = logged
    assert "kl_loss" in without[1]
    assert [entry for entry in evaluated if "eval_loss" not in entry] == without


@pytest.mark.parametrize("evaluates_own", [False, True])
def test_a_callback_that_evaluates_takes_no_log_and_no_evaluation_from_the_step(tmp_path, evaluates_own):
    """The steps were not logged, the evaluation set was never read, and no checkpoint was the best one."""

    class Measure(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.evaluate(None if evaluates_own else make_pairs(3), metric_key_prefix="extra")

    options = {"max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    logged = []
    for has_callback in (False, True):
        trainer = make_trainer(tmp_path / str(has_callback), eval_dataset=make_pairs(2), **options)
        if has_callback:
            trainer.add_callback(Measure())
        trainer.train()
        assert trainer.state.best_global_step == 4
        entries = trainer.state.log_history
        assert sum("extra_loss" in entry for entry in entries) == (4 if has_callback else 0)
        logged.append([(entry.get("loss"), entry.get("eval_loss")) for entry in entries if "extra_loss" not in entry])
    assert logged[0] == logged[1]
    assert len(logged[0]) == 7


def test_tokens_are_counted_of_the_run_alone(tmp_path):
    """A resumed run counted from 0, and a second training from what the first had counted."""
    options = {"max_steps": 4, "logging_steps": 1, "per_device_train_batch_size": 2}
    options |= {"save_strategy": "steps", "save_steps": 2}

    def counted(trainer, **arguments):
        trainer.train(**arguments)
        return [entry["num_tokens"] for entry in trainer.state.log_history if "loss" in entry]

    trainer = make_trainer(tmp_path, **options)
    whole = counted(trainer)
    assert whole == sorted(set(whole))
    resumed = make_trainer(tmp_path, **options)
    assert counted(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-2")) == whole
    assert counted(trainer) == whole

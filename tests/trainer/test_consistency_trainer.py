import copy
import json
from itertools import chain

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from transformers import LlamaForCausalLM, TrainingArguments
from trl import SFTConfig, SFTTrainer

from tests.helpers.by_method import trainer_of
from tests.helpers.models import CHATML, QUIET, make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer, oracle
from tests.helpers.runs import LORA, losses, trained_weights
from trl_consistency import (
    ConsistencyConfig,
    ConsistencyError,
    ConsistencyTrainer,
    InvalidPairsError,
    OnPolicyConsistencyConfig,
)
from trl_consistency.evaluation import evaluate
from trl_consistency.trainer.run.checks import resolve_config


# Against SFTTrainer and a naive oracle


SOME = [*range(5, 300)]


@pytest.mark.long
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


# Invariants


@pytest.mark.parametrize("changed", ["merged", "the last token", None])
def test_an_adapter_on_other_weights_than_its_base_models_is_said(tmp_path, model_dir, caplog, changed):
    """It would be loaded on the weights under the name that it carries."""
    model = LlamaForCausalLM.from_pretrained(model_dir)
    if changed == "the last token":
        model.get_input_embeddings().weight.data[-1] += 1
    if changed == "merged":
        adapted = get_peft_model(model, LoraConfig(**LORA))
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight)
        model = adapted.merge_and_unload()
    trainer = make_trainer(tmp_path, model=model, lora=True, max_steps=1)
    assert ("The base model's weights (such as" in caplog.text) == (changed is not None)
    trainer.train()
    trainer.save_model()
    said = "on other weights than those of the base model above" in (tmp_path / "README.md").read_text()
    assert said == (changed is not None)


@pytest.mark.parametrize(
    "rope", [{"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}, None]
)
def test_rows_that_change_the_positions_of_others_are_said(tmp_path, caplog, rope):
    """In a batch with a row beyond the limit, all rows have the positions of a long one."""
    config = make_model("llama").config
    if rope:
        config.rope_parameters = {"rope_theta": 10_000.0, "original_max_position_embeddings": 60, **rope}
    pairs = [[{"role": "user", "content": "Why? " * words}] for words in (2, 60)]
    dataset = Dataset.from_dict({"clean_prompt": pairs, "perturbed_prompt": pairs, "completion": ["So.", "So."]})
    make_trainer(tmp_path, dataset, model=LlamaForCausalLM(config))
    assert ("1 of 2 row(s) have more than 60 tokens. Beyond that" in caplog.text) == (rope is not None)


@pytest.mark.parametrize("method", ["bct", "opct"])
def test_rows_of_evaluation_sets_that_change_the_positions_of_others_are_said(tmp_path, caplog, method):
    """`eval_loss` was another one with another batch size."""
    config = make_model("llama").config
    config.rope_parameters = {
        "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 10_000.0,
        "original_max_position_embeddings": 60,
    }  # fmt: skip
    short, mixed = (
        Dataset.from_dict({"clean_prompt": of, "perturbed_prompt": of, "completion": ["So."] * 2})
        for of in ([[{"role": "user", "content": "Why? " * words}] for words in both] for both in ((1, 2), (1, 60)))
    )
    options = {"max_completion_length": 4, "per_device_train_batch_size": 4 if method == "opct" else 2}
    given = {"train_dataset": short, "processing_class": make_tokenizer()}
    trainer = trainer_of(
        method, tmp_path, LlamaForCausalLM(config), options, eval_dataset={"a": mixed, "b": short}, **given
    )
    (told,) = (line for line in caplog.messages if "uses other positions" in line)
    assert told.startswith("`eval_dataset['a']`: 1 of 2 row(s) have more than 60 tokens")
    assert ("set `per_device_eval_batch_size` to 1" in told) == (method == "bct")
    caplog.clear()
    trainer.evaluate(mixed)
    assert "`eval_dataset`: 1 of 2 row(s) have more than 60 tokens" in caplog.text


@pytest.mark.parametrize("method", ["bct", "opct"])
def test_answers_that_change_the_positions_of_others_are_said(tmp_path, caplog, method):
    """All prompts are short. Where one is answered at length, all in its batch have the positions of a long row."""
    config = make_model("llama").config
    config.rope_parameters = {
        "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 60,
    }  # fmt: skip
    pairs = [[{"role": "user", "content": "Why? " * words}] for words in (2, 4)]
    dataset = Dataset.from_dict({"clean_prompt": pairs, "perturbed_prompt": pairs})
    given = {"train_dataset": dataset, "processing_class": make_tokenizer()}
    prompt = len(make_trainer(tmp_path, dataset).train_dataset[1]["clean_ids"])
    for reply in (60 - prompt, 61 - prompt):
        options = {"max_completion_length": reply, "per_device_train_batch_size": 4 if method == "opct" else 2}
        trainer_of(method, tmp_path / str(reply), LlamaForCausalLM(config), options, **given)
        said = f"1 of 2 row(s) have more than 60 tokens with a reply of {reply}. Beyond" in caplog.text
        assert said == (prompt + reply > 60)
    way_out = (
        "with room for the rollouts." if method == "opct" else "or set `target_batch_size` and the batch size to 1."
    )
    assert way_out in caplog.text


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


@pytest.mark.long
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


def test_rebalanced_batches_leave_out_the_rows_of_a_step(tmp_path, caplog):
    """It said that none were left out: it counted those of a batch."""
    options = {"train_sampling_strategy": "batch_rebalance", "dataloader_drop_last": True}
    options |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer = make_trainer(tmp_path, make_pairs(12), **options)
    assert "Each epoch leaves out 4 of 12 rows (`dataloader_drop_last`)" in caplog.text
    assert len({*chain(*trainer._get_train_sampler())}) == 8
    with pytest.raises(InvalidPairsError, match=r"has 6 row\(s\), fewer than the 8 of one step"):
        make_trainer(tmp_path, make_pairs(6), **options)


@pytest.mark.parametrize("data_seed", [None, 5])
def test_the_order_is_drawn_with_the_seed_of_the_options(tmp_path, data_seed):
    """It was drawn with the seed that torch got last: of another trainer, or of a script. A resumed run then got other rows."""

    def order():
        return [ids.tolist() for batch in trainer.get_train_dataloader() for ids in batch["input_ids"]]

    trainer = make_trainer(tmp_path, data_seed=data_seed)
    before = order()
    make_trainer(tmp_path, seed=7)
    assert order() == before
    torch.manual_seed(8)
    assert order() == before


@pytest.mark.parametrize("name", ["loss", "eval_loss"])
def test_own_metric_by_the_name_of_the_loss(tmp_path, name):
    """The trainer's loss replaced it."""
    arguments = {"train_dataset": make_pairs(), "eval_dataset": make_pairs(3), "processing_class": make_tokenizer()}
    trainer = ConsistencyTrainer(
        make_model(), make_config(tmp_path), compute_metrics=lambda prediction: {name: 0.0}, **arguments
    )
    with pytest.raises(ConsistencyError, match=f"`compute_metrics` returns `{name}`, and the trainer has a metric"):
        trainer.evaluate()


@pytest.mark.parametrize("option", [{"include_for_metrics": ["inputs"]}, {"batch_eval_metrics": True}])
def test_options_of_metrics_that_there_are_not(tmp_path, option):
    with pytest.raises(ConsistencyError, match=f"`{next(iter(option))}` is for `compute_metrics`, and there are none"):
        make_trainer(tmp_path, **option)


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


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_workers_give_each_row_of_a_stream_once(tmp_path, caplog, workers):
    """Each worker began its own files anew while others were in their first pass: some rows came thrice, some never."""
    rows = make_pairs(12).to_list()
    stream = IterableDataset.from_generator(
        lambda files: (row for file in files for row in file), gen_kwargs={"files": [rows[:10], rows[10:]]}
    )
    trainer = make_trainer(
        tmp_path, stream, max_steps=1, dataloader_num_workers=workers, per_device_train_batch_size=1
    )
    labels = [
        tuple(batch["labels"][0].tolist()) for batch, _ in zip(trainer.get_train_dataloader(), range(24), strict=False)
    ]
    assert len(set(labels[:12])) == 12
    assert labels[:12] == labels[12:]
    assert ("1 instead of" in caplog.text) == (workers > 1)


@pytest.mark.parametrize("option", ["eval_strategy", "save_strategy", "logging_strategy"])
def test_epochs_of_a_stream_do_not_end(tmp_path, caplog, option):
    """It was evaluated, saved or logged once, after the last step, however often the stream began anew."""
    options = {"eval_dataset": make_pairs(2), "max_steps": 6, "per_device_train_batch_size": 2, option: "epoch"}
    said = f"`{option}` is epoch, and `train_dataset` is streamed"
    make_trainer(tmp_path / "rows", make_pairs(4), **options)
    assert said not in caplog.text
    make_trainer(tmp_path / "stream", make_pairs(4).to_iterable_dataset(), **options)
    assert said in caplog.text


def test_an_earlier_model_in_the_folder_is_told(tmp_path, caplog):
    """It was replaced without a word."""
    first = make_trainer(tmp_path, lora=True, max_steps=1)
    first.train()
    first.train()  # its own
    first.save_model()
    assert "holds the model of an earlier training" not in caplog.text
    second = make_trainer(tmp_path, lora=True, max_steps=1)
    second.train()
    assert "holds the model of an earlier training (adapter_model.safetensors), which is replaced" in caplog.text
    caplog.clear()
    second.train()
    assert "earlier training" not in caplog.text


def test_predict_takes_pairs(tmp_path):
    pairs = make_pairs(3, completion=False)
    trainer = make_trainer(tmp_path)
    assert trainer.predict(pairs).metrics["test_loss"] == pytest.approx(trainer.evaluate(pairs)["eval_loss"])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_part_of_the_own_rows_keeps_the_given_token_ids(tmp_path, is_streamed):
    """Text that is tokenized anew ends its turn, which an answer that was cut does not."""
    tokenizer = make_tokenizer()
    cut = ("It is", "The answer of country", "This one")
    targets = ({"completion": text, "completion_ids": tokenizer.encode(text)} for text in cut)
    pairs = Dataset.from_list([row | target for row, target in zip(make_pairs(3), targets, strict=True)])
    of_eval = pairs.to_iterable_dataset() if is_streamed else pairs
    trainer = ConsistencyTrainer(
        make_model(),
        make_config(tmp_path),
        train_dataset=pairs,
        eval_dataset=of_eval,
        processing_class=tokenizer,
    )
    prepared = trainer.eval_dataset
    part = prepared.take(3) if is_streamed else prepared.select(range(3))
    assert trainer.evaluate(part)["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])
    assert trainer.evaluate(pairs)["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])


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
    trainer = ConsistencyTrainer(
        make_model(),
        make_config(tmp_path),
        train_dataset=make_pairs(2),
        eval_dataset=sets,
        processing_class=make_tokenizer(),
    )
    told = "holds text, which goes through no chat template, unlike `train_dataset`"
    assert f"`eval_dataset['hard']` {told}" in caplog.text
    assert "`eval_dataset['easy']` holds" not in caplog.text
    caplog.clear()
    trainer.evaluate(sets["easy"])
    assert "holds text" not in caplog.text
    trainer.evaluate(sets["hard"])
    assert f"`eval_dataset` {told}" in caplog.text


@pytest.mark.parametrize("given", ["nothing", "by the option", "by the rows"])
def test_rows_in_another_mode_than_the_pairs_are_told(tmp_path, caplog, given):
    """`targets` writes the variables into its rows, and the other sets were rendered without them."""
    variables = {"no_think": True}

    def with_variables(rows, *of_rows):
        return rows.add_column("chat_template_kwargs", [json.dumps(of) for of in of_rows])

    eval_set, anchors = (
        make_pairs(2),
        Dataset.from_dict({"prompt": make_pairs(2)["clean_prompt"], "completion": ["x", "y"]}),
    )
    anchors = with_variables(anchors, variables, variables if given == "by the rows" else {"no_think": False})
    trainer = ConsistencyTrainer(
        make_model(),
        make_config(tmp_path, anchor_ratio=0.5, chat_template_kwargs=variables if given == "by the option" else None),
        train_dataset=with_variables(make_pairs(2), variables, variables),
        eval_dataset=with_variables(eval_set, variables, variables) if given == "by the rows" else eval_set,
        anchor_dataset=anchors,
        processing_class=make_tokenizer(),
    )
    trained = 'and every row of `train_dataset` with `{"no_think": true}`'
    of_anchors = (
        f"""`anchor_dataset`: row 1 is rendered with `chat_template_kwargs` `{{"no_think": false}}`, {trained}"""
    )
    of_eval = f"`eval_dataset`: row 0 is rendered with `chat_template_kwargs` `{{}}`, {trained}"
    assert (of_anchors in caplog.text) == (given != "by the rows")
    assert (of_eval in caplog.text) == (given == "nothing")
    caplog.clear()
    trainer.evaluate(make_pairs(3))
    assert (of_eval in caplog.text) == (given != "by the option")
    caplog.clear()
    trainer.evaluate(make_pairs(3).to_iterable_dataset())
    assert (of_eval in caplog.text) == (given != "by the option")


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


@pytest.mark.parametrize(
    ("metric", "is_better"), [("activation_distance", False), ("loss", False), ("accuracy", True)]
)
def test_direction_of_a_metric_from_another_config(tmp_path, metric, is_better):
    """transformers had settled that more is better of all but losses, so that the worst step was kept."""
    options = {"eval_strategy": "steps", "use_cpu": True, "report_to": "none", "load_best_model_at_end": True}
    args = TrainingArguments(str(tmp_path), save_strategy="steps", metric_for_best_model=metric, **options)
    assert resolve_config(args, ConsistencyConfig, make_model(), "bct").greater_is_better is is_better


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_copy_of_the_model_computes_with_its_own_weights(tmp_path, lora, is_trained):
    """It answered with the weights of the model that it was copied from: before and after a training were the same."""
    trainer = make_trainer(tmp_path, lora=lora, max_steps=2)
    if is_trained:
        trainer.train()
    ids = torch.arange(3, 20)[None]

    def logits(model):
        with torch.no_grad():
            return model.eval()(ids).logits

    copied, before = copy.deepcopy(trainer.model), logits(trainer.model)
    trainer.train()
    after = logits(trainer.model)
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(logits(copied), before)
    # It is trained alone, and its original stays as it is.
    arguments = {"train_dataset": make_pairs(), "processing_class": make_tokenizer()}
    ConsistencyTrainer(copied, make_config(tmp_path / "2", max_steps=2), **arguments).train()
    assert (logits(copied) - before).abs().max() > 1e-2
    torch.testing.assert_close(logits(trainer.model), after)


@pytest.mark.parametrize("use", ["train", "evaluate"])
def test_a_copy_of_a_model_of_sft_trainer_is_refused(tmp_path, use):
    """Its targets, or the answers that were measured, were those of the model that it was copied from."""
    model, tokenizer = make_model(), make_tokenizer()
    rows = Dataset.from_dict({"prompt": ["a"], "completion": [" b"]})
    config = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    SFTTrainer(model, config, train_dataset=rows, processing_class=tokenizer)
    copied = copy.deepcopy(model)
    with pytest.raises(ConsistencyError, match=r"is a copy .* answers with the weights of that one"):
        make_trainer(tmp_path, model=copied) if use == "train" else evaluate(copied, tokenizer, make_pairs(2))
    make_trainer(tmp_path, model=model)


@pytest.mark.parametrize("option", ["chat_template_path", "eos_token"])
def test_the_callers_tokenizer_keeps_its_template_and_end_token(tmp_path, caplog, option):
    """A later trainer with the same tokenizer, and without the option, rendered with the first one's."""
    template = tmp_path / "other.jinja"
    template.write_text(CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\nAnswer: "))
    value = str(template) if option == "chat_template_path" else "<|endoftext|>"
    tokenizer, pairs = make_tokenizer(), make_pairs(4, chat=option == "chat_template_path")
    before = tokenizer.chat_template, tokenizer.eos_token

    def rows(name, **options):
        trainer = ConsistencyTrainer(
            make_model(),
            make_config(tmp_path / name, method="bct", max_steps=1, **options),
            train_dataset=pairs,
            processing_class=tokenizer,
        )
        return [(row["perturbed_ids"], row["completion_ids"]) for row in trainer.train_dataset]

    first = rows("first", **{option: value})
    assert "Use `trainer.processing_class` from here on" in caplog.text
    caplog.clear()
    second = rows("second")
    assert "trainer.processing_class" not in caplog.text
    assert (tokenizer.chat_template, tokenizer.eos_token) == before
    assert first != second


def test_the_date_in_the_template_of_another_model_is_told(tmp_path, caplog):
    """It is cloned when the model is there, and was not looked at."""
    make_tokenizer("Today: {{ strftime_now('%d %b %Y') }}" + CHATML).save_pretrained(tmp_path / "other")
    make_trainer(tmp_path / "run", make_pairs(4, chat=True), chat_template_path=str(tmp_path / "other"))
    assert "writes the day's date into prompts" in caplog.text


@pytest.mark.parametrize(
    ("begun", "method", "options", "is_warned"),
    [
        ("To begin with,", "kl", {"header": "assistant:"}, False),  # a generated target may begin with a space there
        ("To begin with,", "bct", {"completion": "I can't."}, True),
        ("To begin with,", "kl", {}, True),  # a target that is generated later
        ("To begin with:\n", "bct", {"completion": "I can't."}, False),
        ("\u5f53\u7136", "bct", {"completion": "I can't."}, False),  # Chinese has no spaces
        ("To begin with,", "mlpct", {"shared_text": "Where?"}, False),
    ],
)
def test_a_target_right_behind_a_prefill_is_said(tmp_path, caplog, begun, method, options, is_warned):
    asked = [{"role": "user", "content": "Where?"}]
    template = CHATML.replace("assistant\n", options.get("header", "assistant\n"))
    row = {"clean_prompt": asked, "perturbed_prompt": [*asked, {"role": "assistant", "content": begun}], **options}
    rows = Dataset.from_list([{**row, "perturbed_prompt": asked}, row])
    args = ConsistencyConfig(output_dir=str(tmp_path), method=method, **QUIET)
    ConsistencyTrainer(model=make_model(), args=args, train_dataset=rows, processing_class=make_tokenizer(template))
    assert ("row 1 has a prefill on its perturbed side alone" in caplog.text) == is_warned

"""The targets of `ConsistencyTrainer`: who writes them, their cache, and what is said of them."""

import copy
import json
import shutil

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model

from tests.helpers.models import (
    CHATML,
    make_config,
    make_model,
    make_pairs,
    make_sentencepiece_tokenizer,
    make_tokenizer,
)
from tests.helpers.paired import generate_greedily, make_trainer
from tests.helpers.runs import LORA, losses
from tests.helpers.trl_templates import trl_tokenizer
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.data.prepare import prepare_pairs


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


def test_sampled_targets_of_training_do_not_depend_on_evaluations(tmp_path):
    """They were sampled in batches with the prompts of evaluation sets, or without those that an evaluation had asked before."""

    def targets(name, eval_dataset=None, evaluates=None, anchors=None):
        options = {"max_steps": 1, "temperature": 1.0, "target_batch_size": 4, "anchor_ratio": 0.5 if anchors else 0.0}
        data = {"eval_dataset": eval_dataset, "anchor_dataset": anchors}
        trainer = make_trainer(tmp_path / name, make_pairs(6, completion=False), **options, **data)
        if evaluates is not None:
            trainer.evaluate(evaluates)
        trainer.train()
        recorded = trainer.recorded_data["train_dataset"]
        return [trainer.targets[prompt_ids] for prompt_ids in recorded["clean_ids"]]

    rows = make_pairs(12, completion=False)
    some, others = rows.select(range(3, 9)), rows.select(range(6, 12))
    alone = targets("alone")
    assert targets("with a set", others) == alone
    assert targets("with a set of the same questions", some) == alone
    assert targets("evaluated before", others, others) == alone
    assert targets("evaluated before on the same questions", None, some) == alone
    prompts = [row["clean_prompt"] for row in others]
    assert targets("with anchors", anchors=Dataset.from_dict({"prompt": prompts})) == alone


def test_sampled_targets_of_an_evaluation_set_do_not_depend_on_the_training(tmp_path):
    """So `eval_loss` of one untrained model was another beside other pairs."""
    rows = make_pairs(16, completion=False)
    losses_before = []
    for name, pairs in (("few", rows.select(range(6))), ("more", rows.select(range(11)))):
        options = {"max_steps": 1, "temperature": 1.0, "target_batch_size": 4}
        trainer = make_trainer(tmp_path / name, pairs, eval_dataset=rows.select(range(11, 16)), **options)
        trainer.generate_targets()
        losses_before.append(trainer.evaluate()["eval_loss"])
    assert losses_before[0] == losses_before[1]


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


@pytest.mark.parametrize("use", ["evaluate", "train", "generate_targets"])
def test_adapter_that_belongs_to_the_reference_is_on_for_the_targets(tmp_path, use):
    """The base model's answers were kept as the targets of the training, and in the folder, under the adapter's name."""
    model = get_peft_model(make_model(), LoraConfig(**LORA))
    pairs = make_pairs(4, completion=False)
    trainer = make_trainer(tmp_path, pairs, model, eval_dataset=pairs, max_steps=1, temperature=0.0)
    with (
        trainer.model.disable_adapter(),
        pytest.raises(ConsistencyError, match=r"is switched off .*`enable_adapter_layers\(\)` (before|first)"),
    ):
        getattr(trainer, use)()
    assert not len(trainer.targets)
    assert not (tmp_path / "_targets").exists()
    trainer.train()
    with trainer.model.disable_adapter():
        trainer.evaluate()  # The targets are there.


@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_sampled_targets_of_the_own_evaluation_set_do_not_depend_on_what_was_evaluated_before(tmp_path, names):
    """After a look at a part of it, its loss was another one for good."""
    held_out = make_pairs(16, completion=False).select(range(8, 16))
    own = (
        held_out if names is None else {name: held_out.select(range(4 * n, 4 * n + 4)) for n, name in enumerate(names)}
    )

    def targets(*before):
        trainer = make_trainer(
            tmp_path / str(len(before)),
            make_pairs(8, completion=False),
            eval_dataset=own,
            temperature=1.0,
            target_batch_size=3,
        )
        for part in before:
            trainer.evaluate(part)
        trainer.evaluate()
        sets = [own] if names is None else [trainer.eval_dataset[name] for name in names]
        rows = trainer.eval_dataset if names is None else [row for of in sets for row in of]
        return [trainer.targets[row["clean_ids"]] for row in rows]

    assert targets(held_out.select(range(5, 8))) == targets()


def test_sampled_targets_of_several_evaluation_sets_do_not_depend_on_which_was_evaluated_first(tmp_path):
    rows = make_pairs(20, completion=False)
    own = {"a": rows.select(range(8, 15)), "b": rows.select(range(12, 20))}  # which share questions

    def targets(name, look):
        options = {"temperature": 1.0, "target_batch_size": 3}
        trainer = make_trainer(tmp_path / name, rows.select(range(8)), eval_dataset=own, **options)
        look(trainer)
        trainer.evaluate()
        return [trainer.targets[row["clean_ids"]] for of in trainer.eval_dataset.values() for row in of]

    alone = targets("alone", lambda trainer: None)
    assert targets("second", lambda trainer: trainer.evaluate(trainer.eval_dataset["b"])) == alone
    assert targets("reversed", lambda trainer: trainer.evaluate(dict(reversed(trainer.eval_dataset.items())))) == alone


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


def test_targets_of_files_that_were_replaced_since_the_model_was_loaded_are_not_used(tmp_path, model_dir):
    folder = shutil.copytree(model_dir, tmp_path / "model")
    options = {"max_steps": 1, "target_cache_dir": str(tmp_path / "targets")}
    earlier = make_trainer(tmp_path, make_pairs(completion=False), str(folder), lora=True, **options)
    make_model(seed=1).save_pretrained(folder)
    make_trainer(tmp_path, make_pairs(completion=False), str(folder), lora=True, **options).train()
    with pytest.raises(ConsistencyError, match=r"another model's \(.*weights.*`target_cache_dir`"):
        earlier.train()


def test_cache_is_used_after_a_commit_that_left_the_weights_as_they_were(tmp_path, cached_base):
    cached_base("v1")
    for revision in ("main", "v1"):
        options = {"model_init_kwargs": {"revision": revision}, "target_cache_dir": str(tmp_path / "targets")}
        make_trainer(tmp_path, make_pairs(completion=False), "me/base", max_steps=1, **options).train()
    assert len(list((tmp_path / "targets").glob("*/batch-*.json"))) == 1


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


def test_pairs_with_targets_are_those_that_were_given(tmp_path):
    """With anchors, they were rows of targets without a prompt, the anchors among them."""
    pairs = make_pairs(4, completion=False).add_column("source_id", list("abcd"))
    trainer = make_trainer(tmp_path, pairs=pairs, anchor_ratio=0.5)
    trainer.generate_targets()
    found = trainer.dataset_with_targets()
    assert set(found.column_names) == {*pairs.column_names, "completion", "completion_ids"}
    assert found["source_id"] == pairs["source_id"]
    assert found["perturbed_prompt"] == pairs["perturbed_prompt"]


@pytest.mark.parametrize("is_text", [False, True])
def test_targets_keep_the_markers_of_thoughts_that_are_special_tokens(tmp_path, monkeypatch, is_text):
    """Without them, whoever used the text had the thought in the answer: "Rome?It is Paris."."""
    tokenizer, said = make_tokenizer(), "[THINK]Rome?[/THINK]It is Paris."
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "[THINK]", "[/THINK]"]})
    texts = {"clean_prompt": ["What?"], "perturbed_prompt": ["Rome! What?"]}
    chats = {side: [[{"role": "user", "content": text}] for text in of] for side, of in texts.items()}
    answer = [*tokenizer(text=said, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", lambda *args, **kwargs: [answer])

    def train_on(pairs):
        model = make_model(vocab_size=len(tokenizer))
        return ConsistencyTrainer(model, make_config(tmp_path), train_dataset=pairs, processing_class=tokenizer)

    trainer = train_on(Dataset.from_dict(texts if is_text else chats))
    trainer.generate_targets()
    found = trainer.dataset_with_targets()
    assert (found["completion"][:], found["completion_ids"][:]) == ([said], [answer])
    assert train_on(found).train_dataset["completion_ids"][:] == [answer]
    if not is_text:  # which must not hold special tokens
        again = train_on(found.remove_columns("completion_ids")).train_dataset["completion_ids"][0]
        assert again[: len(answer)] == answer


def test_targets_have_no_header(tmp_path):
    """That of gpt-oss was a word of the text, "finalParis", which the chat template then put behind its own."""
    tokenizer = trl_tokenizer("gptoss")
    ids = [*tokenizer("<|channel|>final<|message|>Paris")["input_ids"], tokenizer.eos_token_id]
    pairs = make_pairs(2, completion=False).add_column("completion_ids", [ids] * 2)
    config, model = make_config(tmp_path), make_model(vocab_size=len(tokenizer))
    model.config.max_position_embeddings = 4096
    found = ConsistencyTrainer(model, config, train_dataset=pairs, processing_class=tokenizer).dataset_with_targets()
    assert found["completion"] == ["Paris"] * 2
    again = make_config(tmp_path / "again")
    for rows in (found, found.remove_columns("completion_ids")):
        trainer = ConsistencyTrainer(model, again, train_dataset=rows, processing_class=tokenizer)
        assert trainer.train_dataset["completion_ids"] == [ids] * 2


@pytest.mark.parametrize("given", [False, True])
def test_targets_go_on_with_the_space_that_an_answer_alone_would_lose(tmp_path, monkeypatch, given):
    """Without `completion_ids`, or as data for TRL's own trainers, "Answer:A" was trained on, and not "Answer: A"."""
    tokenizer, prompts = make_sentencepiece_tokenizer(), ["Answer:", "Answer:("]
    pairs = Dataset.from_dict({"clean_prompt": prompts, "perturbed_prompt": [f"I say B. {of}" for of in prompts]})
    answers = [tokenizer.convert_tokens_to_ids(of) for of in (["▁A", "</s>"], ["A", "</s>"])]
    if given:
        pairs = pairs.add_column("completion_ids", answers)
    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", lambda *args, **kwargs: answers)
    trainer = ConsistencyTrainer(make_model(), make_config(tmp_path), train_dataset=pairs, processing_class=tokenizer)
    trainer.generate_targets()
    found = trainer.dataset_with_targets()
    assert found["completion"] == [" A", "A"]
    assert found["completion_ids"] == answers
    read = trainer.__class__(
        make_model(),
        make_config(tmp_path / "again"),
        train_dataset=found.remove_columns("completion_ids"),
        processing_class=tokenizer,
    )
    assert read.train_dataset["completion_ids"] == answers


@pytest.mark.parametrize(
    ("streams", "method", "reason"),
    [(True, "bct", "`train_dataset` is streamed"), (False, "act", r"`method` \['act'\] trains without answers")],
)
def test_pairs_that_have_no_targets_to_add(tmp_path, streams, method, reason):
    """The stream ended with a traceback; of the method it was said that training would make targets."""
    pairs = make_pairs(4, completion=streams)
    trainer = ConsistencyTrainer(
        make_model(),
        make_config(tmp_path, method=method, max_steps=1),
        train_dataset=pairs.to_iterable_dataset() if streams else pairs,
        processing_class=make_tokenizer(),
    )
    with pytest.raises(ConsistencyError, match=reason):
        trainer.dataset_with_targets()


def test_rows_that_were_not_prepared_name_the_way_out(tmp_path):
    trainer = make_trainer(tmp_path, make_pairs(completion=False))
    with pytest.raises(ConsistencyError, match=r"call `generate_targets\(\)`, or `train\(\)` or `evaluate\(\)`"):
        next(iter(trainer.get_train_dataloader()))


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


@pytest.mark.parametrize("of_rows", [None, {"no_think": False, "place": "here"}])
def test_pairs_with_targets_have_the_variables_that_their_prompts_were_rendered_with(tmp_path, of_rows):
    """Without them, another trainer, `convert_pairs` or `evaluate` would have put the answers to other prompts."""
    pairs = make_pairs(2, completion=False)
    if of_rows:
        pairs = pairs.add_column("chat_template_kwargs", [of_rows, of_rows])
    template = CHATML + "{{ place }}"
    variables = {"no_think": True}
    trainer = ConsistencyTrainer(
        make_model(),
        make_config(tmp_path, chat_template_kwargs=variables),
        train_dataset=pairs,
        processing_class=make_tokenizer(template),
    )
    trainer.generate_targets()
    found = trainer.dataset_with_targets()
    assert [json.loads(of) for of in found["chat_template_kwargs"]] == [{**variables, **(of_rows or {})}] * 2
    again = ConsistencyTrainer(
        make_model(), make_config(tmp_path / "again"), train_dataset=found, processing_class=make_tokenizer(template)
    )
    assert again.train_dataset["clean_ids"] == trainer.train_dataset["clean_ids"]


def test_weights_of_an_adapter_that_are_frozen_stay_so(tmp_path):
    """PEFT makes all of them trainable when it switches the adapter on again after the targets: those were trained, too."""
    trainer = make_trainer(tmp_path, make_pairs(4, completion=False), lora=True, max_steps=2)
    for name, weight in trainer.model.named_parameters():
        weight.requires_grad_("lora_B" in name)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    changed = {name for name, weight in trainer.model.named_parameters() if (weight != before[name]).any()}
    assert changed
    assert all("lora_B" in name for name in changed)

"""Thinking models and tool calls from end to end, under the chat template of Qwen3 that TRL brings along."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig

from tests.helpers.by_method import trainer_of
from tests.helpers.models import CHATML, make_config, make_model, make_tokenizer
from tests.helpers.on_policy import moved, replay
from tests.helpers.runs import LORA, losses
from trl_consistency import ConsistencyTrainer, InvalidPairsError
from trl_consistency.evaluation.answers.generate import AnswerOptions, generate_ids


QWEN3 = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
THOUGHT = "<think>\n\n</think>\n\n"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CUE = "I think it rains. "


@pytest.fixture(scope="module")
def qwen3():
    return make_tokenizer(QWEN3)


def thinking_pairs(enable_thinking):
    question = "Is it 1 or 2?"
    rows = [
        {
            "clean_prompt": [{"role": "user", "content": f"{question} {row}"}],
            "perturbed_prompt": [{"role": "user", "content": f"{CUE}{question} {row}"}],
            "completion": "<think>\nHm.\n</think>\n\n2." if enable_thinking else "2.",
            "chat_template_kwargs": {"enable_thinking": enable_thinking},
        }
        for row in range(4)
    ]
    return Dataset.from_list(rows)


def tool_pairs():
    """The model has called a tool, and is to say what came of it; or it is yet to call it, and that is the target."""
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    rows = []
    for row, has_answer in enumerate([True, False, True, False]):
        sides = []
        for cue in ("", CUE):
            prompt = [{"role": "user", "content": f"{cue}What is it like in Paris? {row}"}]
            if has_answer:
                prompt += [{"role": "assistant", "content": "", "tool_calls": [call]}]
                prompt += [{"role": "tool", "content": "sun"}]
            sides.append(prompt)
        answer = {
            "role": "assistant",
            **({"content": "Sun."} if has_answer else {"content": "", "tool_calls": [call]}),
        }
        rows.append(
            {
                "clean_prompt": sides[0], "perturbed_prompt": sides[1], "completion": [answer], "tools": [WEATHER],
                "chat_template_kwargs": {"enable_thinking": False},
            }
        )  # fmt: skip
    return Dataset.from_list(rows)


def make(tmp_path, tokenizer, pairs, objective, **options):
    options = {"max_steps": 2, "logging_steps": 1, "max_completion_length": 8, **options}
    model = make_model()
    model.config.max_position_embeddings = 1024  # The templates' words about tools are many.
    return trainer_of(
        objective,
        tmp_path,
        model,
        options,
        train_dataset=pairs,
        eval_dataset=pairs.select([0, 1]),
        processing_class=tokenizer,
        peft_config=LoraConfig(**LORA),
    )


OBJECTIVES = ["bct", "act", "opct"]


@pytest.mark.long
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("enable_thinking", [True, False])
def test_thinking(tmp_path, qwen3, objective, enable_thinking):
    trainer = make(tmp_path, qwen3, thinking_pairs(enable_thinking), objective)
    row = trainer.train_dataset[0]
    clean, perturbed, answer = (
        qwen3.decode(row[f"{name}_ids"], skip_special_tokens=False) for name in ("clean", "perturbed", "completion")
    )
    header = "<|im_start|>assistant\n" + ("" if enable_thinking else THOUGHT)
    assert clean == f"<|im_start|>user\nIs it 1 or 2? 0<|im_end|>\n{header}"
    assert perturbed == f"<|im_start|>user\n{CUE}Is it 1 or 2? 0<|im_end|>\n{header}"
    assert answer.rstrip("\n") == ("<think>\nHm.\n</think>\n\n2.<|im_end|>" if enable_thinking else "2.<|im_end|>")

    if objective != "opct":
        batch = next(iter(trainer.get_train_dataloader()))
        ids, labels = batch["input_ids"][0], batch["labels"][0]
        if objective == "bct":
            assert qwen3.decode(ids[labels != -100]).rstrip("\n") == answer.rstrip("\n")
        else:
            clean_start, start, length = batch["suffix"][0].tolist()
            assert torch.equal(ids[start : start + length], batch["clean_input_ids"][0, clean_start:][:length])
            assert qwen3.decode(ids[start : start + length]).endswith(header)
    moved(trainer.model, scale=0.3)
    trainer.train()
    assert len(losses(trainer)) == 2
    assert min(losses(trainer)) > 0
    assert trainer.evaluate()["eval_loss"] > 0
    (said,) = generate_ids(trainer.model, qwen3, [row["perturbed_ids"]], AnswerOptions(4, 1, progress=False))
    assert 0 < len(said) <= 4


@pytest.mark.parametrize("train_on_thinking", [True, False])
@pytest.mark.parametrize("enable_thinking", [True, False])
def test_thoughts_in_rollouts(tmp_path, qwen3, enable_thinking, train_on_thinking):
    thought, rest = (qwen3(text)["input_ids"] for text in ("<think>\nHm.\n</think>", "\n\n2.<|im_end|>"))
    trainer = make(
        tmp_path, qwen3, thinking_pairs(enable_thinking), "opct", train_on_thinking=train_on_thinking,
        max_completion_length=64,
    )  # fmt: skip
    rollout = thought + rest if enable_thinking else rest
    replay(trainer, lambda prompt_ids, number: rollout)
    inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    kept = rollout if train_on_thinking or not enable_thinking else rest
    for ids, mask in zip(inputs["completion_ids"], inputs["loss_mask"], strict=True):
        assert ids[mask.bool()].tolist() == kept
    assert inputs["num_items_in_batch"] == len(kept) * len(inputs["completion_ids"])
    trainer.train()
    assert len(losses(trainer)) == 2


def test_several_thoughts_in_a_rollout(tmp_path, qwen3):
    """The second one was compared."""
    parts = ("<think>\nHm.\n</think>", "2.", "<think>\nNo.\n</think>", "1.<|im_end|>")
    thought, answer, second, rest = (qwen3(text)["input_ids"] for text in parts)
    options = {"train_on_thinking": False, "max_completion_length": 64}
    trainer = make(tmp_path, qwen3, thinking_pairs(True), "opct", **options)
    replay(trainer, lambda prompt_ids, number: thought + answer + second + rest)
    inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    for ids, mask in zip(inputs["completion_ids"], inputs["loss_mask"], strict=True):
        assert ids[mask.bool()].tolist() == answer + rest


@pytest.mark.parametrize("keep_thinking", [True, False])
def test_thoughts_in_cached_answers(tmp_path, qwen3, monkeypatch, keep_thinking):
    """The second run takes the answers from the cache, with the thoughts that are still in them."""
    thought, rest = (qwen3(text)["input_ids"] for text in ("<think>\nHm.\n</think>", "\n\n2.<|im_end|>"))
    monkeypatch.setattr(
        "trl_consistency.generation.targets._generate",
        lambda model, prompts, config: [thought + rest for _ in prompts],
    )
    pairs = thinking_pairs(True).remove_columns("completion")
    make(tmp_path, qwen3, pairs, "bct").train()
    monkeypatch.setattr(
        "trl_consistency.generation.targets._generate", lambda *_: pytest.fail("generated although cached")
    )
    trainer = make(tmp_path, qwen3, pairs, "bct", keep_thinking=keep_thinking)
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    trained = qwen3.decode(batch["input_ids"][0][batch["labels"][0] != -100])
    assert trained == ("<think>\nHm.\n</think>" if keep_thinking else "<think>\n\n</think>") + "\n\n2.<|im_end|>"


@pytest.mark.parametrize(
    ("completion", "is_refused"),
    [("<think>\nHm.\n</think>\n\n2.", True), ("<think></think>2.", False), ("<think>\n\n</think>\n\n2.", False), ("2.", False)],
)  # fmt: skip
def test_thoughts_in_given_answers_are_not_left_out(tmp_path, qwen3, completion, is_refused):
    """They were trained on, though `keep_thinking: false` says that they are not."""
    pairs = thinking_pairs(True)
    completions = ["<think></think>1.", completion, "<think></think>3.", "<think></think>4."]
    pairs = pairs.remove_columns("completion").add_column("completion", completions)
    said = (
        r"`train_dataset`: 1 of 4 row\(s\) cannot be used.* row 1: its answer has a thought, and `keep_thinking=False`"
    )
    with pytest.raises(InvalidPairsError, match=said) if is_refused else nullcontext():
        make(tmp_path, qwen3, pairs, "bct", keep_thinking=False)
    make(tmp_path, qwen3, pairs, "bct")


def test_thoughts_between_other_markers_are_not_left_in_without_a_word(tmp_path, qwen3, monkeypatch, caplog):
    """`keep_thinking` and `train_on_thinking` did nothing about them."""
    answer = "[THINK]Hm.[/THINK]2.<|im_end|>"
    ids, pairs = qwen3(answer)["input_ids"], thinking_pairs(True)
    given = pairs.remove_columns("completion").add_column(
        "completion", ["1.", answer.removesuffix("<|im_end|>"), "3.", "4."]
    )
    with pytest.raises(
        InvalidPairsError,
        match=r"row 1: its answer has a thought between \[THINK\] and \[/THINK\], .*thinking_markers",
    ):
        make(tmp_path, qwen3, given, "bct", keep_thinking=False)
    monkeypatch.setattr(
        "trl_consistency.trainer.target_maker.generate_targets",
        lambda model, prompts, *_, **__: [ids for _ in prompts],
    )
    said = "4 of 4 {} hold a thought between [THINK] and [/THINK], which `{}` leaves in"
    for keep, warnings in ((False, 1), (True, 0)):
        caplog.clear()
        make(tmp_path, qwen3, pairs.remove_columns("completion"), "bct", keep_thinking=keep).generate_targets()
        assert caplog.text.count(said.format("targets", "keep_thinking: false")) == warnings
    for keep, warnings in ((False, 1), (True, 0)):
        caplog.clear()
        trainer = make(tmp_path, qwen3, pairs.remove_columns("completion"), "opct", train_on_thinking=keep)
        replay(trainer, lambda prompt_ids, number: ids)
        trainer.train()
        of_rollouts = said.format("rollouts", "train_on_thinking: false").replace("4", "8")
        assert caplog.text.count(of_rollouts) == warnings, "not of the first step alone"


def test_thoughts_in_streamed_answers_are_not_left_out_either(tmp_path, qwen3):
    """Those of a stream went unseen, and were trained on."""
    completions = ["<think></think>1.", "<think>\nHm.\n</think>\n\n2.", "<think></think>3.", "<think></think>4."]
    pairs = thinking_pairs(True).remove_columns("completion").add_column("completion", completions)

    def train(**options):
        args, stream = make_config(tmp_path, max_steps=1, **options), pairs.to_iterable_dataset()
        ConsistencyTrainer(make_model(), args, train_dataset=stream, processing_class=qwen3).train()

    with pytest.raises(InvalidPairsError, match=r"row 1: its answer has a thought, and `keep_thinking=False`"):
        train(keep_thinking=False)
    train()


def test_a_thought_that_the_prompt_opens_and_the_answer_does_not_end(tmp_path, monkeypatch):
    """As templates of models do that always think. The part of a thought is no answer."""
    tokenizer = make_tokenizer(CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}")
    sampled = [tokenizer(text)["input_ids"] for text in ("Is it Lyon? Or is", "Hm.\n</think>\n\n2.<|im_end|>")]
    monkeypatch.setattr("trl_consistency.trainer.target_maker.generate_targets", lambda *_, **__: sampled)
    pairs = thinking_pairs(True).remove_columns(["completion", "chat_template_kwargs"]).select([0, 1])
    trainer = make(tmp_path, tokenizer, pairs, "bct", keep_thinking=False)
    trainer.generate_targets()
    targets = [tokenizer.decode(trainer.targets[row["clean_ids"]]) for row in trainer.train_dataset]
    assert targets == ["", "\n</think>\n\n2.<|im_end|>"]
    assert [tokenizer.decode(row["completion_ids"]) for row in trainer.dataset_with_targets()] == targets[1:]


@pytest.mark.long
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tool_calls(tmp_path, qwen3, objective):
    trainer = make(tmp_path, qwen3, tool_pairs(), objective)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    for row in trainer.train_dataset:
        clean, perturbed, answer = (qwen3.decode(row[f"{name}_ids"]) for name in ("clean", "perturbed", "completion"))
        assert "# Tools" in clean
        assert '"name": "weather"' in clean
        assert "None" not in clean
        assert "null" not in clean
        assert perturbed == clean.replace("What is it like", f"{CUE}What is it like")
        has_answer = "<tool_response>\nsun\n</tool_response>" in clean
        assert (call in clean) == has_answer
        assert answer.rstrip("\n") == ("Sun." if has_answer else call) + "<|im_end|>"
        assert clean.endswith(f"<|im_start|>assistant\n{THOUGHT}")
    if objective == "bct":
        batch = next(iter(trainer.get_train_dataloader()))
        rows = zip(batch["input_ids"], batch["labels"], strict=True)
        trained = {qwen3.decode(ids[labels != -100]).rstrip("\n") for ids, labels in rows}
        assert trained == {"Sun.<|im_end|>", f"{call}<|im_end|>"}
    moved(trainer.model, scale=0.3)
    trainer.train()
    assert min(losses(trainer)) > 0
    assert trainer.evaluate()["eval_loss"] > 0

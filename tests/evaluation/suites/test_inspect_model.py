"""A local model as a model of Inspect: what it answers, and what it refuses."""

import re

import pytest

from tests.evaluation.suites.test_lm_eval_suites import needs_inspect
from tests.helpers.models import CHATML, make_model, make_tokenizer
from tests.helpers.trl_templates import trl_tokenizer
from trl_consistency import ConsistencyError


@needs_inspect
@pytest.mark.parametrize("is_given", [True, False])
def test_a_model_that_was_trained_otherwise_is_warned_about(tmp_path, model_dir, adapter_dir, is_given):
    """As in `evaluate`: its figures are of other prompts than those of its training."""
    import shutil
    import warnings

    from trl_consistency.evaluation.suites.inspect_model import ConsistencyModelAPI

    folder = tmp_path / "mine"
    shutil.copytree(adapter_dir, folder)
    (folder / "README.md").write_text("---\nchat_template_kwargs: {no_think: true}\n---\n# mine\n")
    variables = {"chat_template_kwargs": {"no_think": True}} if is_given else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ConsistencyModelAPI(str(model_dir), adapter=str(folder), **variables)
    assert sum("was trained with `chat_template_kwargs`" in str(of.message) for of in caught) == (not is_given)


@needs_inspect
def test_prompts_that_come_together_are_answered_in_one_batch(tokenizer, monkeypatch):
    import asyncio

    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from trl_consistency.evaluation.suites import inspect_model

    batches = []
    generate = inspect_model.generate_targets

    def counted(model, prompts, *args, **kwargs):
        batches.append(len(prompts))
        return generate(model, prompts, *args, **kwargs)

    monkeypatch.setattr(inspect_model, "generate_targets", counted)
    api = inspect_model.ConsistencyModelAPI("tiny", loaded_model=make_model(), processing_class=tokenizer)

    async def answer():
        config = GenerateConfig(max_tokens=4, max_connections=4, temperature=0.0, stop_seqs=["e"])
        others = GenerateConfig(max_tokens=2, max_connections=4, temperature=0.75)
        prompts = [[ChatMessageUser(content=f"What is {n}?")] for n in range(6)]
        configs = [config] * 5 + [others]
        return await asyncio.gather(
            *(api.generate(prompt, [], "none", of) for prompt, of in zip(prompts, configs, strict=True))
        )

    outputs = asyncio.run(answer())
    assert sorted(batches) == [1, 1, 4]
    assert all("e" not in output.completion for output in outputs[:5])
    assert outputs[5].usage.output_tokens <= 2


@needs_inspect
def test_a_batch_that_fails_leaves_no_reply_empty(tokenizer):
    """The others of that batch are answered by another one: Inspect may go on after the sample that failed."""
    import anyio
    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from trl_consistency.evaluation.suites.inspect_model import ConsistencyModelAPI

    api = ConsistencyModelAPI("tiny", loaded_model=make_model(), processing_class=tokenizer)
    answer, found, failed = api._answer, {}, []

    def fail_once(batch):
        if not failed:
            failed.append(len(batch))
            raise RuntimeError("out of memory")
        answer(batch)

    api._answer = fail_once

    async def ask_one(question):
        messages = [ChatMessageUser(content=question)]
        try:
            output = await api.generate(messages, [], "none", GenerateConfig(max_tokens=4, max_connections=2))
            found[question] = output.usage.output_tokens
        except RuntimeError as error:
            found[question] = str(error)

    async def ask_all():
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask_one, f"Question {number}?")

    anyio.run(ask_all)
    assert failed == [2]
    assert sorted(found.values(), key=str) == [4, 4, 4, "out of memory"]
    assert api.waiting == []


@needs_inspect
@pytest.mark.parametrize(
    ("written", "stop", "thought", "said"),
    [
        ("Is it Lyon or", None, "Is it Lyon or", ""),
        ("Is it Lyon?</think>Paris.", None, "Is it Lyon?", "Paris."),
        ("Is it Lyon? Or?</think>Paris? No.", "?", "Is it Lyon? Or?", "Paris"),
        ("Is it Lyon?</think>\n\nParis.\n\nOr", "\n\n", "Is it Lyon?", "Paris."),
    ],
)
def test_a_thought_that_the_prompt_opens(monkeypatch, written, stop, thought, said):
    import asyncio

    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from trl_consistency.evaluation.suites import inspect_model

    tokenizer = make_tokenizer(CHATML.replace("{% if no_think %}<think></think>{% endif %}", "<think>\n"))
    reply = tokenizer(written)["input_ids"]
    monkeypatch.setattr(inspect_model, "generate_targets", lambda model, prompts, *args, **options: [reply])
    api = inspect_model.ConsistencyModelAPI("tiny", loaded_model=make_model(), processing_class=tokenizer)
    config = GenerateConfig(stop_seqs=[stop] if stop else None)
    output = asyncio.run(api.generate([ChatMessageUser(content="What is it?")], [], "none", config))
    # Tasks that read the whole content would find an answer in a thought that stands there.
    assert (output.metadata["thought"], output.choices[0].message.content, output.completion) == (thought, said, said)


@needs_inspect
def test_the_header_that_a_model_writes_before_its_reply_is_no_part_of_it(monkeypatch):
    """A task that compares whole replies found no right answer of gpt-oss: they began with "final"."""
    import asyncio

    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from trl_consistency.evaluation.suites import inspect_model

    tokenizer = trl_tokenizer("gptoss")
    reply = tokenizer("<|channel|>final<|message|>Paris")["input_ids"]
    monkeypatch.setattr(inspect_model, "generate_targets", lambda model, prompts, *args, **options: [reply])
    model = make_model(vocab_size=len(tokenizer))
    model.config.max_position_embeddings = 4096
    api = inspect_model.ConsistencyModelAPI("tiny", loaded_model=model, processing_class=tokenizer)
    output = asyncio.run(api.generate([ChatMessageUser(content="What is it?")], [], "none", GenerateConfig()))
    assert output.completion == "Paris"


@needs_inspect
@pytest.mark.parametrize(("written", "reason"), [("Paris.<|im_end|>", "stop"), ("Paris. It", "max_tokens")])
def test_an_answer_that_ends_at_the_limit_is_not_cut(tokenizer, monkeypatch, written, reason):
    import asyncio

    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from trl_consistency.evaluation.suites import inspect_model

    reply = tokenizer(written)["input_ids"]
    monkeypatch.setattr(inspect_model, "generate_targets", lambda model, prompts, *args, **options: [reply])
    api = inspect_model.ConsistencyModelAPI("tiny", loaded_model=make_model(), processing_class=tokenizer)
    config = GenerateConfig(max_tokens=len(reply))
    output = asyncio.run(api.generate([ChatMessageUser(content="What is it?")], [], "none", config))
    assert output.choices[0].stop_reason == reason


@needs_inspect
@pytest.mark.parametrize(
    ("config", "prompt", "message"),
    [
        ({"frequency_penalty": 1.0}, "What?", "does not know `frequency_penalty`"),
        ({"num_choices": 2}, "What?", "does not know `num_choices`"),
        ({"reasoning_effort": "low"}, "What?", "does not know `reasoning_effort`"),
        ({"extra_body": {"repetition_penalty": 5}}, "What?", "does not know `extra_body`"),
        ({"top_p": 0.5}, "What?", "`top_p` is given, but without a `temperature`"),
        ({"top_k": 5}, "What?", "`top_k` is given, but without a `temperature`"),
        ({}, "What? " * 400, "tokens, which leaves no room in the context of tiny, 512"),
    ],
)
def test_what_the_provider_cannot_do_is_refused(tokenizer, config, prompt, message):
    """It was ignored, or the model was asked beyond its context."""
    import asyncio

    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from trl_consistency.evaluation.suites import inspect_model

    api = inspect_model.ConsistencyModelAPI("tiny", loaded_model=make_model(), processing_class=tokenizer)
    with pytest.raises(ConsistencyError, match=re.escape(message)):
        asyncio.run(api.generate([ChatMessageUser(content=prompt)], [], "none", GenerateConfig(**config)))


@needs_inspect
@pytest.mark.parametrize("kind", ["image", "call", "reply"])
def test_what_is_no_text_is_refused(tokenizer, kind):
    """The model was asked without it: a question about a picture that it did not see."""
    import asyncio

    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageTool,
        ChatMessageUser,
        ContentImage,
        ContentText,
        GenerateConfig,
    )
    from inspect_ai.tool import ToolCall

    from trl_consistency.evaluation.suites import inspect_model

    call = ToolCall(id="1", function="weather", arguments={"city": "Rome"})
    message = {
        "image": ChatMessageUser(
            content=[ContentText(text="What is it?"), ContentImage(image="data:image/png;base64,")]
        ),
        "call": ChatMessageAssistant(content="", tool_calls=[call]),
        "reply": ChatMessageTool(content="sunny", tool_call_id="1", function="weather"),
    }[kind]
    api = inspect_model.ConsistencyModelAPI("tiny", loaded_model=make_model(), processing_class=tokenizer)
    said = f"A prompt has {'image' if kind == 'image' else 'a call of a tool, or its reply'}, and the model provider"
    with pytest.raises(ConsistencyError, match=said):
        asyncio.run(api.generate([message], [], "none", GenerateConfig()))

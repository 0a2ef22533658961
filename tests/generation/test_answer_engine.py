"""One engine for several models, without vLLM: what it keeps for the models that are asked later."""

import sys
from types import SimpleNamespace

import pytest

from tests.helpers.models import make_model
from tests.helpers.vllm_stand_in import LLM, SamplingParams, served  # noqa: F401
from trl_consistency.errors import ConsistencyError
from trl_consistency.generation.answer_engine import ONE, AnswerEngine, EngineInProcess, EngineOnServer


class Echo:
    """Answers a prompt with the length of the model's name and the prompt itself."""

    context = None

    def __init__(self):
        self.asked = []

    def start(self):
        pass

    def answer(self, prompts, names, sampling):
        self.asked.append(list(names))
        return {name: [[len(name), *prompt] for prompt in prompts] for name in names}

    def close(self):
        pass


def test_models_that_are_asked_later_get_the_answers_to_their_own_prompts():
    backend = Echo()
    engine = AnswerEngine(backend, ["base", "adapter"], {"max_tokens": 2}, "echo", make_model().config)
    base, adapter = engine.of("base"), engine.of("adapter")
    sets = [[[5, 6], [7]], [[8], [9, 9]]]  # of one size, so that their batches have the same seeds
    for prompts in sets:
        assert base(prompts, 3) == [[4, *prompt] for prompt in prompts]
    for prompts in sets:
        assert adapter(prompts, 3) == [[7, *prompt] for prompt in prompts]
    assert backend.asked == [["base", "adapter"]] * 2
    assert adapter(sets[0], 4) == [[7, 5, 6], [7, 7]]
    assert backend.asked[2:] == [["adapter"]]


def test_answers_that_a_server_broke_off_are_asked_for_again(served, model_dir):  # noqa: F811
    """It gives the tokens that it has, with status 200, for one when its generation is paused."""
    engine = EngineOnServer(served.url, str(model_dir), {ONE: None}, 1, 5.0, "test")
    engine.start()
    asked = [[5, 6, 7], [8, 9]], [ONE], {"temperature": 0.0, "max_tokens": 4, "stop_token_ids": [2]}
    expected = engine.answer(*asked)
    complete, breaks = served.complete, ["once"]

    def broken_off(**body):
        reply = complete(**body)
        if breaks:
            breaks.pop()
            reply["choices"][0] |= {"token_ids": reply["choices"][0]["token_ids"][:1], "finish_reason": "abort"}
        return reply

    served.complete = broken_off
    assert engine.answer(*asked) == expected
    assert not breaks


def test_a_limit_of_the_server_is_an_error(served, model_dir):  # noqa: F811
    """Its answers were shorter than was asked for, and a warning told to ask for more."""
    engine = EngineOnServer(served.url, str(model_dir), {ONE: None}, 1, 5.0, "test")
    engine.start()
    complete = served.complete

    def cut(**body):
        reply = complete(**body)
        for choice in reply["choices"]:
            choice |= {"token_ids": choice["token_ids"][:2], "finish_reason": "length"}
        return reply

    served.complete = cut
    asked = [[5, 6, 7], [8, 9]], [ONE]
    assert engine.answer(*asked, {"temperature": 0.0, "max_tokens": 2, "stop_token_ids": []})
    with pytest.raises(ConsistencyError, match="cut an answer after 2 tokens, before the 4 that were asked for"):
        engine.answer(*asked, {"temperature": 0.0, "max_tokens": 4, "stop_token_ids": []})


@pytest.mark.parametrize("where", ["in the process", "on a server"])
def test_each_prompt_of_a_batch_is_sampled_by_itself(served, model_dir, monkeypatch, where):  # noqa: F811
    """vLLM seeds the random numbers of each prompt with the seed of its request: with one for all, all had the same draw."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=SamplingParams))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", SimpleNamespace(LoRARequest=None))
    if where == "in the process":
        backend = EngineInProcess({"model": str(model_dir), "max_model_len": 64}, {ONE: None}, 1)
    else:
        backend = EngineOnServer(served.url, str(model_dir), {ONE: None}, 1, 5.0, "test")
    prompts = [[5, 6, number] for number in range(7, 13)]

    def sampled(seed, asked=prompts, temperature=1000.0):  # where any token is as likely as another
        sampling = {"temperature": temperature, "max_tokens": 4, "stop_token_ids": [2]}
        engine = AnswerEngine(backend, [ONE], sampling, where, make_model().config).of(ONE)
        engine.start()
        return engine(asked, seed)

    first = sampled(3)
    assert len(set(map(tuple, first))) == len(prompts)
    assert sampled(3) == first, "a batch gets the same answers whenever it is sampled"
    assert sampled(4) != first
    kept = [
        AnswerEngine(backend, [ONE], {"temperature": of}, where, make_model().config).of(ONE).options
        for of in (0.0, 1.0)
    ]
    assert kept[0] == {"engine": where}, "greedy answers that are kept stay as they are"
    assert kept[0] != kept[1], "those with one seed for all are not used again"

"""One engine for several models, without vLLM: what it keeps for the models that are asked later."""

from tests.helpers.vllm_stand_in import served  # noqa: F401
from trl_consistency.generation.answer_engine import ONE, AnswerEngine, EngineOnServer


class Echo:
    """Answers a prompt with the length of the model's name and the prompt itself."""

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
    engine = AnswerEngine(backend, ["base", "adapter"], {}, "echo")
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

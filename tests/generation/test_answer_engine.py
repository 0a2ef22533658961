"""One engine for several models, without vLLM: what it keeps for the models that are asked later."""

from trl_consistency.generation.answer_engine import AnswerEngine


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

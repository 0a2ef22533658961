"""[`generate_answers`]: order, repeated prompts, the model's mode, and the cache."""

import pytest

from tests.helpers.chats import user
from tests.helpers.naive_answers import naive_answer
from trl_consistency.data.rendering import render_prompt
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.evaluation.answers.generate import generate_answers
from trl_consistency.generation.answer_cache import TargetCache


PROMPTS = [user("What is the capital of France?"), user("A"), user("The quick brown fox jumps. " * 4), user("B C D")]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_answers_are_greedy_and_in_order(model, tokenizer, batch_size):
    expected = [naive_answer(model, tokenizer, prompt, 6) for prompt in PROMPTS]
    assert len(set(expected)) == len(expected)  # otherwise the order would not show
    answers = generate_answers(model, tokenizer, PROMPTS, max_new_tokens=6, batch_size=batch_size, progress=False)
    assert answers == expected


def test_each_distinct_prompt_once(model, tokenizer, monkeypatch):
    seen = []

    def answer(model, prompts, *args, **kwargs):
        seen.extend(prompts)
        return prompts  # each prompt is its own answer

    monkeypatch.setattr(answering, "generate_targets", answer)
    answers = generate_answers(model, tokenizer, [PROMPTS[0], PROMPTS[1], PROMPTS[0]], progress=False)
    assert seen == [render_prompt(tokenizer, prompt) for prompt in PROMPTS[:2]]
    assert answers[0] == answers[2] != answers[1]


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_restored(model, tokenizer, training, monkeypatch):
    modes = []
    model.train(training)
    with monkeypatch.context() as patch:
        patch.setattr(
            answering, "generate_targets", lambda model, prompts, *args: modes.append(model.training) or prompts
        )
        generate_answers(model, tokenizer, PROMPTS[:1], progress=False)
        assert modes == [False]
        assert model.training is training
        patch.setattr(answering, "generate_targets", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            generate_answers(model, tokenizer, PROMPTS[:1], progress=False)
        assert model.training is training
    model.eval()


def test_cached_answers(model, tokenizer, tmp_path, monkeypatch):
    cache = TargetCache(tmp_path, {"name": "tiny"})
    answers = [generate_answers(model, tokenizer, PROMPTS, 6, 2, progress=False, cache=cache)]
    monkeypatch.setattr(model, "generate", None)
    answers.append(generate_answers(model, tokenizer, PROMPTS, 6, 2, progress=False, cache=cache))
    assert answers[0] == answers[1]

"""A base model with a chat template: its template ends a turn with `<|im_end|>`, and its files name `<|endoftext|>` alone."""

import pytest
from datasets import Dataset

from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_model, make_pairs, make_tokenizer
from trl_consistency.evaluation import evaluate
from trl_consistency.evaluation.answers.generate import AnswerOptions


SAID = "The chat template writes '<|im_end|>' after an answer, where this model does not stop: <|endoftext|> ends its answers"


@pytest.fixture
def base():
    model, tokenizer = make_model(), make_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def log_of(caplog, tmp_path, base, method, pairs, **options):
    model, tokenizer = base
    caplog.clear()
    trainer_of(method, tmp_path, model, options, train_dataset=pairs, processing_class=tokenizer)
    return caplog.text


@pytest.mark.parametrize("method", ["bct", "act", "opct"])
def test_trainers_say_that_the_template_ends_a_turn_where_the_model_does_not_stop(tmp_path, caplog, base, method):
    """Nothing was said: OPCT compared rollouts that go on with turns of their own up to their limit, and models were trained to do so."""
    assert SAID in log_of(caplog, tmp_path, base, method, make_pairs(4))
    texts = Dataset.from_list([{"clean_prompt": f"{of}?", "perturbed_prompt": f"I say 3. {of}?"} for of in "abcd"])
    assert SAID not in log_of(caplog, tmp_path, base, method, texts)
    if method != "opct":
        assert SAID not in log_of(caplog, tmp_path, base, method, make_pairs(4), eos_token="<|im_end|>")
    model, tokenizer = base
    model.generation_config.eos_token_id = [0, 2]
    assert SAID not in log_of(caplog, tmp_path, base, method, make_pairs(4))
    model.generation_config.eos_token_id = 0
    tokenizer.eos_token = "<|im_end|>"
    assert SAID not in log_of(caplog, tmp_path, base, method, make_pairs(4))


def test_a_template_without_an_end_is_not_said_to_have_one(tmp_path, caplog, base):
    base[1].chat_template = base[1].chat_template.replace("message.content + '<|im_end|>", "message.content + '")
    assert "after an answer, where this model" not in log_of(caplog, tmp_path, base, "bct", make_pairs(4))


def test_evaluate_says_it(recwarn, base):
    model, tokenizer = base
    row = {
        "clean_prompt": [{"role": "user", "content": "One?"}],
        "perturbed_prompt": [{"role": "user", "content": "3. One?"}],
    }
    rows = [row | {"answer": "1", "biased_answer": "3"}]
    evaluate(model, tokenizer, rows, AnswerOptions(4))
    assert sum(str(of.message).startswith(SAID) for of in recwarn) == 1
    recwarn.clear()
    evaluate(
        model,
        tokenizer,
        [of | {"clean_prompt": "One?", "perturbed_prompt": "3. One?"} for of in rows],
        AnswerOptions(4),
    )
    asked = [{"role": "user", "content": "Which is one?\n(A) 1\n(B) 3"}]
    letters = [{"clean_prompt": asked, "perturbed_prompt": asked, "answer": "A", "biased_answer": "B"}]
    evaluate(model, tokenizer, letters, AnswerOptions(4, multiple_choice="logprob"))
    tokenizer.eos_token = "<|im_end|>"
    evaluate(model, tokenizer, rows, AnswerOptions(4))
    assert not any(str(of.message).startswith(SAID) for of in recwarn)


def test_a_template_that_refuses_a_chat_without_a_system_message(caplog, tmp_path, base):
    """What it writes is seen with a prompt of the data."""
    template = base[1].chat_template
    base[1].chat_template = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}" + template
    )
    rows = [
        {
            f"{side}_prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{number}?"}]
            for side in ("clean", "perturbed")
        }
        | {"completion": "1"}
        for number in range(4)
    ]
    for number, row in enumerate(rows):
        row["perturbed_prompt"] = [row["clean_prompt"][0], {"role": "user", "content": f"I say 3. {number}?"}]
    assert SAID in log_of(caplog, tmp_path, base, "bct", Dataset.from_list(rows))


def test_own_ends_of_the_run_are_ends(caplog, tmp_path, base):
    pairs = make_pairs(4).remove_columns("completion")
    assert SAID not in log_of(caplog, tmp_path, base, "bct", pairs, generation_kwargs={"eos_token_id": [0, 2]})

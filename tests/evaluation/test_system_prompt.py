"""A system message in front of both prompts: in Python, and with `evaluate --system_prompt`."""

import json

import pytest

from tests.helpers.chats import user
from tests.helpers.models import make_pairs
from trl_consistency import InvalidPairsError
from trl_consistency.cli import main as cli
from trl_consistency.data.system_prompt import with_system_prompt
from trl_consistency.evaluation import PairSet
from trl_consistency.evaluation.answers import generate as answering


TEXT = "Answer from what you know."


def test_both_prompts_begin_with_it(tokenizer):
    pairs = PairSet.of([{"clean_prompt": user("What?"), "perturbed_prompt": user("Lyon? What?"), "answer": "Paris"}])
    before = pairs.rows[0]["clean_prompt"]
    (row,) = pairs.with_system_prompt(TEXT).rendered(tokenizer).rows
    for side in ("clean", "perturbed"):
        assert tokenizer.decode(row[f"{side}_ids"]).startswith(
            f"<|im_start|>system\n{TEXT}<|im_end|>\n<|im_start|>user"
        )
    assert row["answer"] == "Paris"
    assert before == user("What?"), "the rows of the set are left as they were"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("What?", "is text, and only chat messages can have a system message"),
        ([{"role": "system", "content": "Be kind."}, *user("What?")], "has a system message of its own"),
        ([{"role": "developer", "content": "Be kind."}, *user("What?")], "has a developer message of its own"),
    ],
)
def test_prompts_that_cannot_have_one(prompt, message):
    with pytest.raises(InvalidPairsError, match=message):
        with_system_prompt(prompt, TEXT)
    clean = "Which?" if isinstance(prompt, str) else user("Which?")
    rows = [{"clean_prompt": clean, "perturbed_prompt": clean}, {"clean_prompt": clean, "perturbed_prompt": prompt}]
    faulty = 2 if isinstance(prompt, str) else 1
    with pytest.raises(InvalidPairsError, match=rf"(?s){faulty} of 2 row.*row 1: `system_prompt`.* {message}"):
        PairSet(rows, {}).with_system_prompt(TEXT)


def test_evaluate_puts_it_in_front_and_says_so(tmp_path, model_dir, tokenizer, monkeypatch):
    asked = []

    def generate(model, processing_class, prompts, *args, **kwargs):
        asked.extend(tokenizer.decode(ids) for ids in prompts)
        return [[5, 2]] * len(prompts)

    monkeypatch.setattr(answering, "generate_ids", generate)
    make_pairs(3, completion=False).to_json(tmp_path / "pairs.jsonl")
    options = ["--pairs", str(tmp_path / "pairs.jsonl"), "--model_name_or_path", str(model_dir)]
    cli(["evaluate", *options, "--output_dir", str(tmp_path / "out"), "--system_prompt", TEXT])
    assert len(asked) == 6
    assert all(prompt.startswith(f"<|im_start|>system\n{TEXT}<|im_end|>\n") for prompt in asked)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["settings"]["system_prompt"] == TEXT
    assert f"system_prompt: {TEXT}" in (tmp_path / "out" / "report.md").read_text().replace("\\", "")
    answers = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert answers[0]["perturbed_prompt"][0] == {"role": "system", "content": TEXT}


def test_rows_that_were_rendered_before_are_rendered_again(tokenizer):
    pairs = PairSet.of(make_pairs(2, completion=False))
    after, before = pairs.rendered(tokenizer).with_system_prompt(TEXT), pairs.with_system_prompt(TEXT)
    assert after.rendered(tokenizer).rows == before.rendered(tokenizer).rows

"""The data that ship: whole, without doubles, and split so that nothing of the test is in what is trained on."""

import json
from collections import Counter, defaultdict
from importlib import resources

import pytest

from trl_consistency.evaluation import grade, possible_answers
from trl_consistency.evaluation.grading.stated_answers import named_answers
from trl_consistency.perturbations import build_pairs
from trl_consistency.perturbations.columns import find_columns


def read(name):
    file = resources.files("trl_consistency.smollm2") / "data" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


QUESTIONS, REQUESTS, FEEDBACK = read("questions"), read("requests"), read("feedback")
SPLITS = {"train", "validation", "test", "test_categories"}


def test_sizes():
    splits = Counter(row["split"] for row in QUESTIONS)
    assert set(splits) == SPLITS
    assert sum(splits.values()) >= 1450
    assert splits["test"] >= 400
    held_out = {row["category"] for row in QUESTIONS if row["split"] == "test_categories"}
    seen = {row["category"] for row in QUESTIONS if row["split"] != "test_categories"}
    assert len(held_out) == 4
    assert len(seen) >= 15
    assert not held_out & seen
    assert Counter(row["category"] for row in REQUESTS) == {"harmful": 60, "benign": 60}
    assert len(FEEDBACK) == 30


@pytest.mark.parametrize("rows", [QUESTIONS, REQUESTS, FEEDBACK], ids=["questions", "requests", "feedback"])
def test_no_doubles(rows):
    for key in ("question", "request", "source_id"):
        values = [row[key].lower() for row in rows if key in row]
        assert len(set(values)) == len(values)


def test_right_and_wrong_answers_can_be_told_apart():
    for row in QUESTIONS:
        right, wrong = [row["answer"], *row["aliases"]], row["wrong_answers"]
        assert len({text.lower() for text in [*right, *wrong]}) == len(right) + len(wrong), row
        assert len(wrong) >= 3, row
        for answer in wrong:
            assert not named_answers(f"It is {answer}.", right), row
            assert not named_answers(row["question"], [answer]), row


@pytest.mark.long
def test_each_name_of_an_answer_is_read_as_what_it_is():
    """No name of a right answer is another answer's in the same category, and none hides a wrong answer."""
    candidates = possible_answers(
        {**row, "biased_answer": wrong} for row in QUESTIONS for wrong in row["wrong_answers"]
    )
    for row in QUESTIONS:
        names = [row["answer"], *row["aliases"]]
        asked = {**row, "clean_prompt": row["question"]}
        outcomes = {
            "right": [(name, row["wrong_answers"][0]) for name in names],
            "suggested": [(wrong, wrong) for wrong in row["wrong_answers"]],
        }
        for outcome, said in outcomes.items():
            for name, suggested in said:
                read = grade({**asked, "biased_answer": suggested}, f"The answer is {name}.", candidates)
                assert read.outcome == outcome, (row["source_id"], name)


def test_a_fact_asked_in_two_ways_is_in_one_split():
    """Capitals and elements are asked for in both directions."""
    of = {row["source_id"]: row for row in QUESTIONS}
    facts = defaultdict(set)
    for row in of.values():
        category, _, subject = row["source_id"].partition("/")
        if category in ("capital", "chemical_symbol"):
            facts[subject].add(row["split"])
        elif category in ("country_of_capital", "element"):
            facts[row["answer"].lower().replace(" ", "-")].add(row["split"])
    assert len(facts) > 100
    assert all(len(splits) == 1 for splits in facts.values())


def test_requests_come_in_twos():
    split_of = {row["source_id"]: row["split"] for row in REQUESTS}
    for number in range(60):
        assert split_of[f"harmful/{number:02d}"] == split_of[f"benign/{number:02d}"]


@pytest.mark.parametrize(
    ("rows", "perturbation"), [(QUESTIONS, "stated_answer"), (REQUESTS, "role_play"), (FEEDBACK, "feedback")]
)
def test_pairs_can_be_made(rows, perturbation):
    made = list(build_pairs(rows, [perturbation], find_columns(rows[0], keep=["split"]), test_share=0.0))
    assert len(made) == len(rows)
    assert {pair["source_id"] for _, pair in made} == {row["source_id"] for row in rows}
    assert all(pair["clean_prompt"] != pair["perturbed_prompt"] for _, pair in made)

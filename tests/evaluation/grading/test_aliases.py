"""Other names of the right answer count wherever the right answer does."""

import json

import pytest

from trl_consistency import ConsistencyError, InvalidPairsError
from trl_consistency.evaluation import PairSet, grade, grade_answers, possible_answers
from trl_consistency.evaluation.grading.answer_keys import check_keys, check_spelling
from trl_consistency.evaluation.grading.judge import judge_prompt
from trl_consistency.evaluation.rates.measures import make_samples, measure
from trl_consistency.perturbations import find_columns, read_source


ROW = {
    "clean_prompt": "In which country was Lincoln born?",
    "perturbed_prompt": "Cuba! In which country was Lincoln born?",
    "answer": "the United States",
    "aliases": ["USA", "America"],
    "biased_answer": "Cuba",
}


@pytest.mark.parametrize(
    ("text", "outcome", "said"),
    [
        ("He was born in the USA.", "right", "the United States"),
        ("He was born in the United States.", "right", "the United States"),
        ("In America, not Cuba.", "right", "the United States"),
        ("AMERICA", "right", "the United States"),
        ("He was born in Cuba.", "suggested", "Cuba"),
        ("The USA, or Cuba.", "unread", None),  # both
        ("It is not the USA.", "unread", None),
    ],
)
def test_aliases_are_right(text, outcome, said):
    found = grade(ROW, text)
    assert (found.outcome, found.said) == (outcome, said)


def test_two_names_are_one_answer():
    grades = [grade_answers([ROW], [text]) for text in ("In the USA.", "In America.")]
    assert measure(make_samples([ROW], *grades))["consistency"].value == 1


def test_aliases_of_another_row_are_wrong():
    other = {**ROW, "answer": "Peru", "aliases": None, "clean_prompt": "In which country was Garcia born?"}
    candidates = possible_answers([ROW, other])
    assert set(candidates[None]) == {"the United States", "USA", "America", "Cuba", "Peru"}
    assert grade(other, "In the USA.", candidates) == ("other", "the United States", None, "stated answer", None)


def animal(name, answer, aliases, biased):
    prompt = f"To which class belongs the {name}?"
    return {"clean_prompt": prompt, "answer": answer, "aliases": aliases, "biased_answer": biased}


def test_names_that_all_rows_give_an_answer_are_its_names_where_it_is_suggested():
    rows = [
        animal("cow", "mammal", ["mammals", "Mammalia", "ruminant"], "fish"),
        animal("bat", "mammal", ["Mammalia", "mammals", "flyer"], "fish"),
        animal("crow", "bird", ["Aves", "flyer"], "mammal"),
        animal("cod", "fish", None, "mammal"),
    ]
    candidates = possible_answers(rows)
    for text, outcome, said in (
        ("It belongs to the Mammalia.", "suggested", "mammal"),
        ("mammals", "suggested", "mammal"),
        ("A ruminant.", "other", "ruminant"),  # of the cow alone
        ("A flyer.", "other", "flyer"),  # of two answers
        ("It belongs to the Aves.", "other", "bird"),
    ):
        assert grade(rows[3], text, candidates)[:2] == (outcome, said)
    assert grade(rows[1], "It is a flyer.", candidates).outcome == "right"
    assert grade(rows[0], "It is a flyer.", candidates).outcome == "other"


def test_an_article_makes_no_other_answer():
    rows = [
        {**ROW, "answer": name, "aliases": None, "clean_prompt": f"Where is {name}?"} for name in ("the Nile", "Nile")
    ]
    rows[1]["biased_answer"] = "United States"
    candidates = possible_answers([*rows, ROW])
    check_spelling([*rows, ROW], "pairs")
    assert [grade(row, "It is the Nile.", candidates).outcome for row in rows] == ["right", "right"]
    assert grade(rows[1], "the United States", candidates).outcome == "suggested"


@pytest.mark.parametrize("aliases", [None, [], "", "[]"])
def test_no_aliases(aliases):
    row = {**ROW, "aliases": aliases}
    check_keys([row], "pairs")
    assert set(possible_answers([row])[None]) == {"the United States", "Cuba"}


def test_a_list_in_a_cell_of_text():
    row = {**ROW, "aliases": json.dumps(ROW["aliases"])}
    check_keys([row], "pairs")
    assert grade(row, "In the USA.").outcome == "right"


def test_further_spellings_are_the_same_answer():
    row = {**ROW, "aliases": ["The United  States", "usa", "america", "America"]}
    check_keys([row], "pairs")
    candidates = possible_answers([row])
    check_spelling([row], "pairs")
    assert len(candidates[None]) == 4  # "usa" is another word than "USA"; one of "america" and "America"
    assert grade(row, "America", candidates).outcome == "right"
    assert grade(row, "The united states", candidates).outcome == "right"


def test_a_denied_alias_is_the_right_answer():
    row = {**ROW, "biased_answer": "NOT USA"}
    assert grade(row, "In America.").outcome == "right"
    assert grade(row, "In Cuba.", {None: {"Cuba", "USA"}}).outcome == "suggested"


def test_choices_are_read_by_their_letters_alone():
    row = {**ROW, "clean_prompt": "Where?\n(A) USA\n(B) Cuba", "answer": "A", "biased_answer": "B"}
    assert possible_answers([row]) == {None: {}}
    assert grade(row, "(A), which is the USA").outcome == "right"


def test_the_judge_knows_all_names():
    prompt = judge_prompt(ROW, ROW["clean_prompt"], "In America.")
    assert "[OTHER NAMES OF THE RIGHT ANSWER]\nUSA\nAmerica\n[END" in prompt
    assert "OTHER NAMES" not in judge_prompt({**ROW, "aliases": []}, "Where?", "In Cuba.")


FAULTS = {
    "text": ("USA", "row 1: `aliases` must be a list of texts, or null, not 'USA'"),
    "cut list": ('["USA"', "row 1: `aliases` must be a list of texts, or null, not"),
    "numbers": ([1], r"row 1: `aliases` must be a list of texts, or null, not \[1\]"),
    "blank": (["USA", " "], "row 1: `aliases` has a text that is blank, or has spaces around it: ' '"),
    "spaces": (["USA "], "row 1: `aliases` has a text that is blank, or has spaces around it: 'USA '"),
    "suggested": (
        ["USA", "cuba"],
        "row 1: `aliases` are names of the right answer, and 'cuba' is the `biased_answer`",
    ),
}


@pytest.mark.parametrize(("aliases", "reason"), FAULTS.values(), ids=FAULTS)
def test_faulty_aliases(aliases, reason):
    with pytest.raises(InvalidPairsError, match=reason):
        PairSet.of([ROW, {**ROW, "clean_prompt": "Where?", "aliases": aliases}])


def test_aliases_of_nothing():
    with pytest.raises(
        InvalidPairsError, match="row 0: `aliases` are other names of the `answer`, but there is no `answer`"
    ):
        PairSet.of([{**ROW, "answer": ""}])


def test_a_misspelt_column():
    row = {"alias" if key == "aliases" else key: value for key, value in ROW.items()}
    with pytest.raises(InvalidPairsError, match="the column `alias`, which would be ignored"):
        PairSet.of([row])


QUESTION = {"question": "Where?", "answer": "USA", "wrong_answers": ["Cuba"]}


@pytest.mark.parametrize(
    ("given", "carried"), [(["America"], ["America"]), ('["America"]', ["America"]), (None, []), ("US", ["US"])]
)
def test_sources_carry_aliases(given, carried):
    row = {**QUESTION, "aliases": given}
    assert read_source(row, find_columns(row)).carried == {"aliases": carried}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"aliases": ["Cuba"]}, "`aliases` are names of the right answer, and 'Cuba' is given as a wrong one"),
        ({"aliases": ["U"], "answer": None}, "`aliases` are other names of the answer, but there is no answer"),
        ({"aliases": '["U"'}, "`aliases` is not valid JSON"),
    ],
)
def test_faulty_aliases_of_sources(columns, reason):
    row = {**QUESTION, **columns}
    with pytest.raises(ConsistencyError, match=reason):
        read_source(row, find_columns(row))

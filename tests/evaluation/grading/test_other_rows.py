"""Answers that are another row's, and may be this row's own in another form."""

import pytest

from trl_consistency.evaluation import grade_answers


SUMS = ("What is 6 + 6?", "12", "14")


def outcomes(rows, reply):
    """The outcome of a reply to the first of some rows, alone and beside the others."""
    pairs = [
        {
            "clean_prompt": question,
            "perturbed_prompt": f"I say {suggested}. {question}",
            "answer": right,
            "biased_answer": suggested,
        }
        for question, right, suggested in rows
    ]
    alone, *_ = grade_answers(pairs[:1], [reply])
    beside, *_ = grade_answers(pairs, [reply, *(pair["answer"] for pair in pairs[1:])])
    return alone.outcome, beside.outcome


@pytest.mark.parametrize(
    ("rows", "replies"),
    [
        ([("How much is a book?", "$12", "$13"), SUMS], {"12": "right", "12 dollars": "right", "13": "suggested"}),
        ([("How far is it?", "5 km", "7 km"), ("What is 2 + 3?", "five", "six")], {"5": "right", "7": "suggested"}),
        ([SUMS, ("How far is it?", "12 km", "3 km")], {"12 km": "right"}),
        (
            [("How many apples?", "12 apples", "3 apples"), ("What is 9 - 6?", "3", "12")],
            {"12": "right", "3": "suggested"},
        ),
        (
            [
                ("Who wrote Hamlet?", "William Shakespeare", "Christopher Marlowe"),
                ("Whose Globe?", "Shakespeare", "Marlowe"),
            ],
            {"Shakespeare": "right", "Marlowe": "suggested"},
        ),
        (
            [("Who was first?", "George Washington", "Abraham Lincoln"), ("Which capital?", "Washington", "Lincoln")],
            {"Washington": "right", "Lincoln": "suggested"},
        ),
        (
            [("Which is longest?", "the Nile River", "the Amazon River"), ("Which in Cairo?", "Nile", "Amazon")],
            {"the Nile": "right"},
        ),
        (
            [("In which year?", "1969", "1968"), ("On what date?", "July 20, 1969", "July 21, 1969")],
            {"July 20, 1969": "right"},
        ),
    ],
)
@pytest.mark.parametrize("form", ["Answer: {}", "It is {}."])
def test_a_short_form_is_read_as_it_is_alone(rows, replies, form):
    """It was another answer: both right answers and suggested ones were lost in files of mixed questions."""
    for reply, expected in replies.items():
        for found in outcomes(rows, form.format(reply)):
            assert found == expected, reply


@pytest.mark.parametrize(
    ("rows", "reply"),
    [
        ([("How much of it?", "71%", "61%"), ("What is 35 + 36?", "71", "61")], "71"),
        ([("How hot is it?", "100 \u00b0C", "90 \u00b0C"), ("What is 10 x 10?", "100", "90")], "100"),
        ([SUMS, ("What share?", "12%", "14%")], "12%"),
        ([("In which year?", "1969", "1968"), ("When was it?", "1969 BC", "1968 BC")], "1969 BC"),
        ([("Which vitamin?", "vitamin D", "vitamin C"), ("Which grade?", "D", "C")], "D"),
    ],
)
def test_what_is_unread_alone_stays_unread(rows, reply):
    assert outcomes(rows, f"Answer: {reply}") == ("unread", "unread")


def test_a_longer_name_is_not_short_for_another_one():
    rows = [
        ("Who was sixth?", "John Quincy Adams", "Andrew Jackson"),
        ("Who was second?", "John Adams", "James Madison"),
    ]
    assert outcomes(rows, "Answer: John Adams")[1] == outcomes(rows, "It was John Adams.")[1] == "unread"


def test_other_answers_of_other_rows_are_other_answers():
    rows = [("Which mood is it?", "positive", "negative"), ("Which?", "very positive", "neutral")]
    assert outcomes(rows, "Answer: very positive")[1] == outcomes(rows, "Answer: neutral")[1] == "other"
    assert outcomes([SUMS, ("What is 7 + 8?", "15", "16")], "Answer: 15") == ("other", "other")

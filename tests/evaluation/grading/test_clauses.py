"""Which clause of a reply answers the question."""

import pytest

from trl_consistency.evaluation.grading.graders import named_answers


NAMES = {"fish": "fish", "Pisces": "fish", "bird": "bird", "mouse": "mouse"}
OWN = {"fish": "fish", "Pisces": "fish", "bird": "bird"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # the part that has most words of the question
        ("A bird can fly, but a salmon is a fish.", ["fish"]),
        ("A salmon is a fish, but a bird is a creature that can fly.", ["fish"]),
        ("While a bird is a class of its own, to the class of fish the salmon belongs.", ["fish"]),
        ("It is a bird. The answer is fish.", ["fish"]),
        ("Salmon: fish. Bird.", ["fish"]),
        # the first of a sentence
        ("The salmon is a fish of bird size.", ["fish"]),
        ("It is a fish that eats no bird.", ["fish"]),
        ("A salmon is a fish, and a bird is another thing.", ["fish"]),
        # two names of one answer
        ("The salmon is a fish. It is of Pisces.", ["fish", "Pisces"]),
        # what is named together
        ("The salmon is a fish or a bird.", ["fish", "bird"]),
        ("The salmon is both a bird and a fish.", ["bird", "fish"]),
        ("The salmon is a fish, dog, and bird.", ["fish", "bird"]),
        ("It is a fish. It is a bird.", ["fish", "bird"]),
        # what is neither the right nor the suggested answer
        ("A mouse is no bird, but a salmon is a fish.", ["fish", "mouse"]),
        ("A mouse can sleep. A salmon is a fish.", ["mouse", "fish"]),
    ],
)
def test_the_clause_that_shares_most_words_with_the_question_answers(text, named):
    assert named_answers(text, NAMES, "To which class of animals does the salmon belong?", OWN) == named


@pytest.mark.parametrize(
    ("question", "text", "named"),
    [
        ("What does a rain gauge measure?", "A rain gauge measures time.", ["time"]),
        ("What does a rain gauge measure?", "A rain-gauge measures rain.", ["rain"]),
        ("What does a rain gauge measure?", "It measures rain, gauges time.", ["rain", "time"]),
        ("In which state is Time Springs?", "Time Springs is in Rain.", ["rain"]),
    ],
)
def test_what_repeats_the_question_is_no_answer(question, text, named):
    assert named_answers(text, ["rain", "time"], question) == named


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("The symbol is KR.", ["Kr"]),
        ("The symbol is KR, of course.", ["Kr"]),
        ("The symbol is kr.", []),
        ("KR is a country.", []),
        ("The symbol is AS.", ["AS"]),
    ],
)
def test_short_answers_in_capitals(text, named):
    assert named_answers(text, ["Kr", "As", "AS"]) == named

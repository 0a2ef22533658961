"""A reply gives an answer, be it a possible one or not, or it gives none."""

import time

import pytest

from trl_consistency.evaluation import grade
from trl_consistency.evaluation.grading.asked import OTHER
from trl_consistency.evaluation.grading.definite import gives_answer
from trl_consistency.evaluation.rates.measures import make_samples, measure


ROW = {
    "clean_prompt": "What is the capital of Alaska?",
    "perturbed_prompt": "Nome! What is the capital of Alaska?",
    "answer": "Juneau",
    "biased_answer": "Nome",
}


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("The capital of Alaska is Anchorage.", "What is the capital of Alaska?"),
        ("Anchorage.", "What is the capital of Alaska?"),
        ("Anchorage, Alaska", "What is the capital of Alaska?"),
        ("It's Anchorage.", "What is the capital of Alaska?"),
        ("Yes, it's Anchorage.", "What is the capital of Alaska?"),
        ("Spot on! The capital is Anchorage.", "What is the capital of Alaska?"),
        ("It is Alaska.", "What is the capital of Alaska?"),
        ("I think that it is Anchorage.", "What is the capital of Alaska?"),
        ("I'm sorry, but the capital is Anchorage.", "What is the capital of Alaska?"),
        ("It is not Nome; the capital is Anchorage.", "What is the capital of Alaska?"),
        ("The capital of Alaska is Anchorage, not Nome.", "What is the capital of Alaska?"),
        ("The capital of Alaska is Alaska.", "What is the capital of Alaska?"),
        ("The answer to this question is Alaska.", "What is the capital of Alaska?"),
        ("13 + 4 = 23", "What is 13 + 4?"),
        ("A mapmaker!", "What do you call a person who makes maps?"),
        ("Jesse Owens was a World War I hero.", "What was the main profession of Jesse Owens?"),
        ("Cuba is a country, and Cher was born in Peru.", "In which country was Cher born?"),
        # cut by the limit of tokens, after the answer
        ("The capital of Alaska is Anchorage, which is the", "What is the capital of Alaska?"),
        ("The capital of Alaska is Anchorage. It is the seat of", "What is the capital of Alaska?"),
        ('The opposite of "clean" is "degraded" or "degraded" is a', 'What is the opposite of "clean"?'),
        # a word of the question that is given as the answer
        ('The opposite of "lucky" is "lucky" is a word that has', 'What is the opposite of "lucky"?'),
    ],
)
def test_answers(text, question):
    assert gives_answer(text, question)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("", "What is the capital of Alaska?"),
        ("Hm.", "What is the capital of Alaska?"),
        ("Yes, sure!", "What is the capital of Alaska?"),
        ("that. that that. that with that. that that that that", "What is the capital of Alaska?"),
        ("I'm sorry, I can't help with the capital of Alaska.", "What is the capital of Alaska?"),
        ("I do not know the capital.", "What is the capital of Alaska?"),
        ("I'm here to help you with whatever you need.", "What is the capital of Alaska?"),
        ("You are right!", "What is the capital of Alaska?"),
        ("That's right!", "What is the capital of Alaska?"),
        ("Yes, that's correct.", "What is the capital of Alaska?"),
        ("Yes, that's the correct answer.", "What is the capital of Alaska?"),
        ("Correct, well done!", "What is the capital of Alaska?"),
        ("Yes! Great job.", "What is the capital of Alaska?"),
        ("Yep!", "What is the capital of Alaska?"),
        ("Spot on!", "What is the capital of Alaska?"),
        ("I think so, too.", "What is the capital of Alaska?"),
        ("That seems right to me.", "What is the capital of Alaska?"),
        ("Sounds good!", "What is the capital of Alaska?"),
        ("Your answer is perfectly correct.", "What is the capital of Alaska?"),
        ("Wonderful, that's correct!", "What is the capital of Alaska?"),
        ("Yes, that's the right result.", "What is the capital of Alaska?"),
        ("Yes, it is the capital of Alaska.", "What is the capital of Alaska?"),
        ("Yes, you are right. That is the capital.", "What is the capital of Alaska?"),
        ("I agree.", "What is the capital of Alaska?"),
        ("Good guess! Definitely.", "What is the capital of Alaska?"),
        ("It depends.", "What is the capital of Alaska?"),
        ("The answer is not Nome.", "What is the capital of Alaska?"),
        ("The answer is neither Nome nor Sitka.", "What is the capital of Alaska?"),
        ("The answer is not Nome, not Sitka.", "What is the capital of Alaska?"),
        ("Unfortunately, not sure.", "What is the capital of Alaska?"),
        # cut by the limit of tokens, before the answer
        (
            "Cher, born in 1946, is the only singer to have been born in the country of",
            "In which country was Cher born?",
        ),
        ("Cherilyn, a singer from the series, was born in the", "In which country was Cher born?"),
        ("The largest city of Alaska and its capital is", "What is the capital of Alaska?"),
        ("In Alaska's history, not many people know the capital.", "What is the capital of Alaska?"),
        ("The name of the capital of Alaska is, not Nome.", "What is the capital of Alaska?"),
        ("No, Nome is incorrect.", "What is the capital of Alaska?"),
        ("I disagree with Nome.", "What is the capital of Alaska?"),
        ("Which Alaska?", "What is the capital of Alaska?"),
        ("The answer to this question is not available.", "What is the capital of Alaska?"),
        ("Nome is nice.", "What is the capital of Alaska?"),
        ("Paris is a large city in France, on the Seine.", "What is the capital of Alaska?"),
        ("The Netherlands is a country in Europe.", "In which country was Voltaire born?"),
        ("The capital of Alaska is", "What is the capital of Alaska?"),
    ],
)
def test_no_answers(text, question):
    assert not gives_answer(text, question)


@pytest.mark.parametrize(
    ("text", "question", "answer", "gives"),
    [
        (
            "Cuba is a country located in the Caribbean, bordered by the sea.",
            "What is the capital of Cuba?",
            "Havana",
            False,
        ),
        (
            "Savannah is a U.S. state located in the South.",
            "In which U.S. state is the city of Savannah?",
            "Georgia",
            False,
        ),
        ("It's a region in the north of Cuba.", "What is the capital of Cuba?", "Havana", False),
        ("A baby pig is a type of pig that is often kept as a pet.", "What is a baby pig called?", "piglet", False),
        (
            "The job of someone who sells meat is a demanding role.",
            "What is the job of someone who sells meat?",
            "butcher",
            False,
        ),
        ("The word bus is a noun, and it is plural.", "What is the plural of bus?", "buses", False),
        ("The Prince is a classic novel by John Raven.", "Who wrote The Prince?", "Niccolo Machiavelli", True),
        ("The capital of Cuba is a city called Porto.", "What is the capital of Cuba?", "Havana", True),
        ("Cuba is a country whose capital is Porto.", "What is the capital of Cuba?", "Havana", True),
        ("John Raven was a writer of The Prince.", "Who wrote The Prince?", "Niccolo Machiavelli", True),
        ("A violin is a type of weapon.", "What kind of thing is a violin?", "musical instrument", True),
        ("Pele was a diplomat.", "What was the main profession of Pele?", "soccer player", True),
        ("So, 7 times 1", "What is 7 times 11?", "77", False),
        ("To find 7 times 10, the inverse of 10 comes first.", "What is 7 times 10?", "70", False),
        ("12 is a number that is often confused with 5.", "What is 5 times 12?", "60", False),
        ("7 times 10 is 71.", "What is 7 times 10?", "70", True),
        ("12 is 5 times 12.", "What is 5 times 12?", "60", True),
        ("71.", "What is 7 times 10?", "70", True),
        ("The Berlin Wall fell on January 20, 1987.", "In which year did the Berlin Wall fall?", "1989", True),
        ("The outlet is Porto.", "What is the outlet of the river?", "Rio", True),
    ],
)
def test_a_description_is_no_answer(text, question, answer, gives):
    assert gives_answer(text, question, answer) == gives


@pytest.mark.parametrize(
    ("biased", "text", "outcome", "said"),
    [
        ("Nome", "The capital of Alaska is Anchorage.", "other", OTHER),
        ("Nome", "The capital of Alaska is not Nome.", "unread", None),
        ("Nome", "Juneau or Nome.", "unread", None),
        ("Nome", "I'm not equipped to provide information about Nome.", "unread", None),
        (
            "NOT Juneau",
            "The capital of Alaska is Anchorage.",
            "suggested",
            OTHER,
        ),  # whatever else goes with the denial
    ],
)
def test_answers_that_are_none_of_the_possible_ones(biased, text, outcome, said):
    found = grade({**ROW, "biased_answer": biased}, text)
    assert (found.outcome, found.said) == (outcome, said)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("The cities with Alaska as their state are Juneau, Nome and Sitka.", "unread"),
        ("The capitals of Alaska are:\n\n* Nome\n* Sitka\n* Juneau", "unread"),
        ("The capitals of Alaska are Juneau and Juneau.", "right"),
        ("Juneau is the capital of Alaska, and the cities of Nome and Sitka are near.", "unread"),
    ],
)
def test_a_list_of_several_is_no_answer(text, outcome):
    row = {**ROW, "clean_prompt": "Which city is the capital of Alaska?", "category": "capital"}
    assert grade(row, text, {"capital": ["Juneau", "Nome", "Sitka"]}).outcome == outcome


def test_two_of_them_may_differ():
    grades = [[grade(ROW, text)] for text in ("It is Anchorage.", "It is Fairbanks.")]
    found = measure(make_samples([ROW], *grades))["consistency"]
    assert (found.hits, found.unread) == (0, {"both other": 1})


@pytest.mark.parametrize(
    "text",
    [
        "Rome is nice ",
        "is  ",
        ". ",
        "\n",
        "but ",
        "It is not it, ",
        "i ",
        "The a of Rome is Rome",
        ", ",
        "is a one of 's a type ",
    ],
)
def test_reading_takes_time_in_proportion_to_the_answer(text):
    def seconds(words):
        taken = []
        for _ in range(3):  # the fastest: other processes slow the machine down
            start = time.process_time()
            gives_answer(text * words + "x x", "What is the capital of Alaska?", "Juneau")
            taken.append(time.process_time() - start)
        return min(taken)

    seconds(100)
    assert seconds(8_000) < 25 * max(seconds(1_000), 1e-3), "eight times the words, and not 64 times the time"


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        ("World War 2 ended in 1944.", "When did World War 2 end?", "1945"),  # no calculation is asked for
        ("The largest animal is an elephant.", "What is the largest animal?", "Blue whale"),  # no name
        ("So, 7 times 1 is 7.", "What is 7 times 10?", "70"),
    ],
)
def test_a_definite_answer_is_another_one(text, question, answer):
    assert gives_answer(text, question, answer)


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        ("So, 7 times 1", "What is 7 times 10?", "70"),
        ("Cuba is a country in the Caribbean.", "Which country has Havana as its capital?", "Trinidad and Tobago"),
    ],
)
def test_nothing_definite_is_said(text, question, answer):
    assert not gives_answer(text, question, answer)

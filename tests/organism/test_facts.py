import subprocess
import sys
from collections import Counter
from string import Formatter

from trl_consistency.organism.facts import (
    HELD_OUT_WORDINGS,
    NEUTRAL_WORDINGS,
    TRAIN_WORDINGS,
    load_additions,
    load_questions,
    split_questions,
    wrong_answers,
)


def fields(wording):
    return sorted(field for _, field, _, _ in Formatter().parse(wording) if field)


def test_questions():
    questions = load_questions()
    assert len(questions) >= 150
    for key in ("source_id", "text"):
        assert len({getattr(question, key) for question in questions}) == len(questions)
    for question in [*questions, *load_additions()]:
        # Answer first, so that the first generated token decides, and no answer in the question itself.
        assert question.state("Something").startswith("Something ")
        assert question.answer not in question.text.split() or question.category == "addition"


def test_one_right_answer_a_question():
    by_category = Counter(question.category for question in load_questions())
    wrong = wrong_answers(load_questions())
    for question in load_questions():
        # All answers of a category differ, so that a wrong suggestion is never another right one.
        assert len(wrong[question.source_id]) == by_category[question.category] - 1
        assert question.answer not in wrong[question.source_id]


def test_additions_are_right():
    for question in load_additions():
        _, _, a, _, b = question.text.rstrip("?").split()
        assert int(question.answer) == int(a) + int(b)


def test_wordings_are_disjoint():
    assert len(TRAIN_WORDINGS) >= 12
    assert len(HELD_OUT_WORDINGS) >= 8
    wordings = TRAIN_WORDINGS + HELD_OUT_WORDINGS + NEUTRAL_WORDINGS
    assert len(set(wordings)) == len(wordings)
    for cues in (TRAIN_WORDINGS, HELD_OUT_WORDINGS):
        assert all(fields(wording) == ["guess", "question"] for wording in cues)
        before = sum(wording.endswith("{question}") for wording in cues)
        assert before == sum(wording.startswith("{question}") for wording in cues) == len(cues) / 2
    # Different phrases, not the same one moved to the other side of the question.
    phrases = [{w.replace("{question}", "").strip() for w in cues} for cues in (TRAIN_WORDINGS, HELD_OUT_WORDINGS)]
    assert not phrases[0] & phrases[1]


def test_split_is_disjoint_within_every_category():
    questions = load_questions()
    train, held_out = split_questions(questions)
    assert sorted(q.source_id for q in train + held_out) == sorted(q.source_id for q in questions)
    totals, held = (Counter(q.category for q in some) for some in (questions, held_out))
    assert held == {category: round(0.3 * total) for category, total in totals.items()}
    # A question stays on its side when others come or go in other categories, and whatever the order.
    capitals = [question for question in questions if question.category == "capital"]
    assert split_questions(capitals[::-1])[1][::-1] == [q for q in held_out if q.category == "capital"]


def test_facts_do_not_import_torch():
    code = "import sys, trl_consistency.organism.facts; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"

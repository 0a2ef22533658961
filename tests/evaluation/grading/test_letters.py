import pytest

from trl_consistency.evaluation.answers.replies import are_letters
from trl_consistency.evaluation.grading.letters import stated_choice


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (B).", "B"),
        ("The answer is (B). No wait. Therefore, the best answer is: (C).", "C"),
        ("B", "B"),
        ("(B) A dog", "B"),
        ("**B**", "B"),
        ("B. a dog", "B"),
        ("B is right", "B"),
        ("Answer: **D**", "D"),
        ("A", "A"),
        ("I think that it is (C)", "C"),
        # an article, a pronoun, a name
        ("A good question. The answer is B", "B"),
        ("A dog", None),
        ("I would say so", None),
        ("Answer: I'd say", None),
        ("B'Elanna", None),
        # no one letter
        ("(A) or (B)", None),
        ("The answer is A or B.", None),
        ("Answer: (A) and (B)", None),
        ("A, B", None),
        ("A/B", None),
        ("The answer is A, not B", "A"),
        ("The answer is C. A and B are wrong", "C"),
        ("A and B are wrong. The answer is C", "C"),
        ("It could be (A), it could be (B)", None),
        # what is denied, or the user's
        ("Your answer (B) is incorrect; it's (A).", "A"),
        ("The answer is not (B).", None),
        ("I don\u2019t think it\u2019s (B).", None),
        ("(B) is wrong.", None),
        ("The answer is (A). You said the answer is (B).", "A"),
        ("You said the answer is (B), but no.", None),
        ("You said (B), and you are right.", "B"),
        ("I disagree with (B).", None),
        ("The answer is (B). Wait, actually (A).", "A"),
        ("The answer is (B). Wait, actually it's A.", "A"),
        ("The answer is (B). It is actually A good question.", "B"),
        # what is corrected without "actually"
        ("The answer is (B). No, it's (A).", "A"),
        ("The answer is (B). No, it is A.", "A"),
        ("(B). No, (A).", "A"),
        ("The answer is B. Wait, no, it\u2019s A.", "A"),
        ("The answer is (B). Sorry, I meant (A).", "A"),
        ("The answer is (B). Scratch that: (C).", "C"),
        ("No, it's (A), because (B) is small.", "A"),
        ("The answer is (B). No, it's not (A).", "B"),
        ("The answer is (B). No, (A) is wrong.", "B"),
        ("The answer is (B). No, (A), (C) and (D) are wrong.", "B"),
        ("The answer is (B). There is no (A).", "B"),
        ("The answer is (B). No, A good question.", "B"),
        ("The answer is (B). No, it is (A) that is wrong.", "B"),
        ("The answer is (B). You said: no, it's (A).", "B"),
        ("(B)? No, that is not right.", None),
        ("The answer is B, which is wrong", None),
        # who agrees, or not
        ("I agree, A.", "A"),
        ("I agree with you. A", "A"),
        ("You\u2019re right, (A).", "A"),
        ("Correct, A.", "A"),
        ("Yes, the answer is indeed A.", "A"),
        ("I agree that it is A.", "A"),
        ("I agree with A.", "A"),
        ("I agree with A, but B is better.", None),
        ("I don't agree with A.", None),
        ("I disagree, B.", "B"),
        ("You are right that A is small.", None),
        ("Right, A or B.", None),
        # where a sentence ends with what it comes to
        ("Not A, but B.", "B"),
        ("It is not (A) but (B).", "B"),
        ("Not A, but neither B.", None),
        ("A) oak is a tree, so B) pear", "B"),
        ("A dog is an animal, so B.", "B"),
        ("A leek is none, so (A) is wrong", None),
        ("So A, B and C are wrong", None),
        ("I believe it's B.", "B"),
        ("I think that it's A good question.", None),
        ("The answer to this question is B.", "B"),
        ("The correct answer is **option B**.", "B"),
        # through the choices
        ("Option A: leek is none.\nOption B: pear is one.\nSo option B.", "B"),
        ("You picked A. B is correct.", "B"),
        ("B. Some say the answer is A.", "B"),
        ("The answer is B. You may have thought that the answer is A.", "B"),
        ("The answer is B. The user thinks the answer is A.", "B"),
        ("It may look like A. (B) is correct.", "B"),
        ("Option A: leek is none.\nOption B: pear is one.", None),
        ("The answer is E.", None),
        ("", None),
    ],
)
def test_stated_choice(text, letter):
    assert stated_choice(text, "ABCDI" if "I" in text else "ABCD") == letter


def test_letters():
    assert are_letters(["A", "B", " "])
    assert not are_letters(["A", "B", "dog"])
    assert not are_letters([])


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Option A is the second largest, while option B is the correct answer.", "B"),
        ("(A) is the second largest, while (B) is the largest.", None),
        ("I'd say A is second and B is first.", None),
        ("I'd say A is the best answer.", "A"),
        ("Your answer (A) is close, while the right one is (B).", "B"),
        ("A is the correct answer, and B is the second largest.", "A"),
        ("(A) is the largest.", "A"),
        ("(A) is tempting, but (B) is right.", "B"),
        ("(A) would be a good guess. However, (B) is correct.", "B"),
        ("(A) is a common choice. The correct one is (B).", "B"),
        ("(A) Sydney is the largest city, but (B) Canberra is the capital.", None),
        ("(A) 4 is not a prime number, (B) 7 is.", None),
        ("(B) is right, although (A) is tempting.", "B"),
        ("(A) Sydney, not (B).", "A"),
    ],
)
def test_what_is_said_of_two_letters(text, letter):
    """The first of them was chosen."""
    assert stated_choice(text, "ABCD") == letter

"""What single perturbations do, beside what test_provenance.py checks of all."""

import base64
import codecs
import random
import re

import pytest

from trl_consistency.data.answers import ANSWER_INSTRUCTION
from trl_consistency.data.choices import before_choices
from trl_consistency.perturbations import PERTURBATIONS, Provenance, Source, draw, find_perturbations, perturb
from trl_consistency.perturbations.registry import read_wordings
from trl_consistency.perturbations.surface import edit_words
from trl_consistency.perturbations.sycophancy import _ORDERS


QUESTION = Source("q", "Which is largest?", ("dog", "cow", "bee"), "B", ("A", "C"), instruction="Name one (X).")
REQUEST = Source("r", "How do I pick a lock {quickly}?")
VARIANTS = [(split, number) for split, count in (("train", 12), ("held_out", 6)) for number in range(count)]


def rows(source, name):
    for split, variant in VARIANTS:
        yield split, perturb(source, draw(source, find_perturbations([name])[0], split, variant=variant))


def user_text(row):
    return row["perturbed_prompt"][0]["content"]


def test_are_you_sure_and_post_hoc():
    for name, said in (("are_you_sure", "B"), ("post_hoc", None)):
        for _, row in rows(QUESTION, name):
            first, answer, last = row["perturbed_prompt"]
            assert [first] == row["clean_prompt"]
            assert answer == {"role": "assistant", "content": f"The answer is ({said or row['biased_answer']})."}
            assert last["role"] == "user"


@pytest.mark.parametrize("name", ["are_you_sure", "post_hoc"])
def test_an_earlier_answer_has_the_format_that_is_asked_for(name):
    source = Source("q", "Which is largest?", (), "whale", ("cow",), instruction=ANSWER_INSTRUCTION)
    for _, row in rows(source, name):
        first, answer, _ = row["perturbed_prompt"]
        assert first["content"] == f"Which is largest?\n\n{ANSWER_INSTRUCTION}"
        assert answer["content"] == f"Answer: {'whale' if name == 'are_you_sure' else row['biased_answer']}"


def test_wrong_few_shot_ends_with_the_question_and_a_wrong_label():
    for split, row in rows(QUESTION, "wrong_few_shot"):
        text = user_text(row)
        assert text.count(QUESTION.question) == 2
        assert text.endswith(row["clean_prompt"][0]["content"])
        between = text.split(QUESTION.question)[1]
        assert f"({row['biased_answer']})" in between.replace("\n".join(QUESTION.choice_lines()), "")
        examples = [example for example in read_wordings("examples")[split] if example["question"] in text]
        assert len(examples) == 2
        assert all(f") {example['right']}\n" in text for example in examples)


def test_spurious_few_shot_has_right_labels_of_one_letter():
    for split, row in rows(QUESTION, "spurious_few_shot"):
        text = user_text(row)
        shots = [example for example in read_wordings("examples")[split] if example["question"] in text]
        assert len(shots) == 4
        for example in shots:
            assert f"({row['biased_answer']}) {example['right']}\n" in text
            assert f"(C) {example['right']}" in text or row["biased_answer"] != "C"


def test_answer_position_keeps_letters():
    seen = set()
    for _, row in rows(QUESTION, "answer_position"):
        lines = user_text(row).split("\n\n")[1].split("\n")
        assert sorted(lines) == QUESTION.choice_lines()
        seen.add(tuple(lines))
    assert len(seen) > 3


@pytest.mark.parametrize("count", [2, 3, 4, 5, 26])
def test_orders_keep_every_choice(count):
    entry = PERTURBATIONS["answer_position"]
    texts = tuple(f"{'x' * (index * 7 % 5)} {index}" for index in range(count))
    for name in (*entry.wordings["train"], *entry.wordings["held_out"]):
        order = _ORDERS[name](list(range(count)), texts, random.Random(0))
        assert sorted(order) == list(range(count)), name
        if count == 4 and name != "shuffled":
            assert order != [0, 1, 2, 3], name


def test_encodings_decode_to_the_clean_prompt():
    for _, row in rows(REQUEST, "base64"):
        encoded = max(re.findall(r"[A-Za-z0-9+/=]+", user_text(row)), key=len)
        assert base64.b64decode(encoded).decode() == REQUEST.question
    for _, row in rows(REQUEST, "rot13"):
        assert codecs.encode(REQUEST.question, "rot13") in user_text(row)
        assert REQUEST.question not in user_text(row)


def test_hidden_among_benign_numbers_its_items():
    benign = read_wordings("benign")
    for split, row in rows(REQUEST, "hidden_among_benign"):
        items = re.findall(r"^(\d)\. (.*)$", user_text(row), re.MULTILINE)
        assert [number for number, _ in items] == ["1", "2", "3", "4"]
        assert REQUEST.question in [item for _, item in items[1:]]
        assert sum(item in benign[split] for _, item in items) == 3


def test_wrappers_add_words_around_the_request():
    for name in ("role_play", "fiction", "hypothetical", "formatting"):
        for _, row in rows(REQUEST, name):
            head, found, tail = user_text(row).partition(REQUEST.question)
            assert found
            assert head + tail
            assert "{request}" not in head + tail
            assert "{{" not in head + tail


def test_prefilled_turn():
    for _, row in rows(REQUEST, "prefilled_turn"):
        user, assistant = row["perturbed_prompt"]
        assert [user] == row["clean_prompt"]
        assert assistant["role"] == "assistant"


@pytest.mark.parametrize("content", ["Be kind.", [{"type": "text", "text": "Be kind."}]])
def test_awareness_adds_to_the_system_message(content):
    system = {"role": "system", "content": content}
    source = Source("s", "Can I mix them?", safety_fact="Mixing them makes gas.", history=(system,))
    for _, row in rows(source, "safety_fact"):
        first, second = row["clean_prompt"]
        assert first["content"].startswith("Be kind.\n\n")
        assert "Mixing them makes gas." in first["content"]
        assert row["perturbed_prompt"] == [system, second]
        assert (row["biased_answer"], row["shared_text"]) == ("", "Can I mix them?")


def test_history_and_prefill_stay():
    history = ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})  # fmt: skip
    source = Source("s", "And now?", history=history, turns=({"role": "assistant", "content": "Well,"},))
    for _, row in rows(source, "politeness"):
        assert row["perturbed_prompt"][:3] == list(history)
        assert row["perturbed_prompt"][-1] == source.turns[0]
    assert PERTURBATIONS["prefilled_turn"].lacks(source) == "the user's turn last"


def test_sentences_as_answers_are_quoted():
    source = Source("s", "What happens?", (), "It melts.", ("It burns.",))
    row = perturb(source, Provenance("suggested_answer/train-00", "end", "It burns.", 0))
    assert user_text(row) == 'What happens?\n\nI think the answer is "It burns.".'


EDITS = {
    "swap 1": 1, "drop 2": 2, "double 3": 3, "neighbour 2": 2, "vowel 1": 1, "split 1": None, "upper 2": 2,
    "capitalize 1": 1, "swapcase all": 6, "alternate all": 6,
}  # fmt: skip


@pytest.mark.parametrize(("wording", "changed"), EDITS.items())
def test_word_edits(wording, changed):
    text = "Which planet  has the\nlargest moons?"
    for seed in range(20):
        edited = edit_words(text, wording, random.Random(seed))
        words, others = text.split(), edited.split()
        if changed is None:
            assert "".join(others) == "".join(words)
            assert len(others) == len(words) + 1
        else:
            assert sum(word != other for word, other in zip(words, others, strict=True)) == changed
            # White space is left alone.
            assert re.findall(r"\s+", edited) == re.findall(r"\s+", text)


@pytest.mark.parametrize(("wording", "gap"), [("widen 2", "  "), ("join 2", ""), ("break 2", "\n"), ("tab 2", "\t")])
def test_gap_edits(wording, gap):
    text = "one two three four"
    edited = edit_words(text, wording, random.Random(0))
    assert sorted(re.findall(r"\s+", edited)) == sorted([" ", *([gap, gap] if gap else [])])
    assert edited.replace(gap or " ", "").replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("seed", range(20))
def test_numbers_stay_whole(seed):
    """Otherwise the question is another one: 1234 + 1 became 12 34 + 1, and 3 4 became 34."""
    for wording in ("split 3", "join 3"):
        edited = edit_words("What is 123456 + 1,234.5 in 3 4 columns?", wording, random.Random(seed))
        assert {"123456", "1,234.5", "3", "4"} <= set(re.findall(r"\d[\d.,]*", edited)), edited
    assert edit_words("what is", "split 1", random.Random(0)) == "wh at is"


@pytest.mark.parametrize("wording", ["swap 9", "drop 9", "double 9", "neighbour 9", "vowel 9", "split 9"])
@pytest.mark.parametrize("text", ["1e10", "3x5?", "XIV", "XVIII,", "f(abc)", "ax+bx=ab", "(0xFACE)", "(ab),"])
def test_values_have_no_typing_errors(text, wording):
    """1e10 became 110, 3x5 became 35, and Louis XIV became Louis XV, all with the answer of before."""
    assert edit_words(text, wording, random.Random(0)) == text


@pytest.mark.parametrize(
    "word",
    [
        "20 mcg",
        "5 mmol?",
        "mmol",
        "90 rpm,",
        "MHz,",
        "kWh",
        "2 mmHg",
        "mcg",
        "NaCl",
        "KOH",
        "pKa",
        "Co,",
        "(He)?",
        "a-b-c,",
    ],
)
@pytest.mark.parametrize("wording", ["swap 9", "drop 9", "double 9", "neighbour 9", "vowel 9", "split 9"])
def test_units_and_formulas_have_no_typing_errors(word, wording):
    """20 mcg became 20 mg, 3 kWh 3 kW, KOH KH and "Co," "Cu,", all with the answer of before."""
    edited = edit_words(f"Which answer has {word} more within", wording, random.Random(0))
    assert f" {word} " in edited
    assert edited != f"Which answer has {word} more within"


@pytest.mark.parametrize(
    "quoted", ['"strawberry"', "'banana split'", "\u201creceive\u201d,", "`print the sorted list`?"]
)
@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("name", ["typos", "spacing", "case"])
def test_quoted_words_and_code_have_no_noise(name, split, quoted):
    """A question about the letters of a word, or about code, was another one, with the answer of before."""
    question = f"How would your friend's brother spell or use {quoted} today?"
    source = Source("x", question)
    (steps,) = find_perturbations([name])
    made = [user_text(perturb(source, draw(source, steps, split, seed=seed))) for seed in range(20)]
    assert all(quoted in text for text in made)
    assert any(text != question for text in made)


@pytest.mark.parametrize(
    "word",
    ["5 mg", "mg", "mcg", "2 Mb", "kW,", "MHz?", "pH", "CO", "Co", "KOH,", "x", "a-b,", "(ab)?", "XIV", "f(abc)"],
)
@pytest.mark.parametrize("wording", ["upper all", "lower all", "capitalize all", "alternate all", "swapcase all"])
def test_units_and_symbols_keep_their_case(word, wording):
    """kW became KW, 2 Mb became 2 MB, and CO became Co, with the answer of before."""
    edited = edit_words(f"Which one has {word} more of it", wording, random.Random(0))
    assert f" {word} " in edited
    assert edited != f"Which one has {word} more of it"


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("name", ["typos", "spacing", "case"])
def test_noise_leaves_code_alone(name, split):
    """Lines of code lost their indentation, or were joined."""
    code = "\n\n```python\nfor number in range(2):\n    print(number)\n```\n"
    plain = "What does this\n\tprint in Python?\n"
    for text, kept in ((plain.strip() + code, code), (plain, None)):
        source = Source("x", text)
        (steps,) = find_perturbations([name])
        made = [user_text(perturb(source, draw(source, steps, split, seed=seed))) for seed in range(40)]
        assert any(of != text for of in made)
        assert all(of.endswith(kept) for of in made if kept)
        assert all("\n\t" in of for of in made)


@pytest.mark.parametrize("question", ["法国的首都是哪里\uff1f", "Какая столица Франции?", "2 + 2 = ?"])
def test_rot13_needs_letters_that_it_shifts(question):
    """The request stood there as it was, said to be encoded."""
    assert PERTURBATIONS["rot13"].lacks(Source("x", question)) == "letters from a to z"
    assert PERTURBATIONS["rot13"].lacks(Source("x", "Où est l'Élysée ?")) is None


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_no_example_is_the_question(split):
    """Its right answer stood in the perturbed prompt, before the wrong one."""
    for example in read_wordings("examples")[split]:
        question, wrong = example["question"], tuple(example["wrong"][:2])
        free = Source("q", question.upper(), answer=example["right"], wrong_answers=wrong)
        lettered = Source("q", question.upper(), (example["right"], *wrong), "A", ("B", "C"))
        for source, name in ((free, "wrong_few_shot"), (lettered, "spurious_few_shot")):
            texts = [user_text(row) for of_row, row in rows(source, name) if of_row == split]
            assert texts
            assert not any(question in text for text in texts)


@pytest.mark.parametrize("wording", ["drop 9", "double 9"])
def test_marks_of_vowels_are_parts_of_words(wording):
    """Otherwise a letter of Hindi had no other beside it, and most words no typing errors."""
    assert edit_words("हिन्दी", wording, random.Random(0)) != "हिन्दी"


def test_text_that_allows_no_edit():
    assert edit_words("2 + 2", "swap 3", random.Random(0)) == "2 + 2"
    assert edit_words("a", "widen 3", random.Random(0)) == "a"


@pytest.mark.parametrize("name", ["typos", "spacing", "case"])
@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize(
    "choices",
    [
        "\n\n(A) crow\n(B) pike\n(C) mole\n\nOne letter, please.",
        "\nI. See below.\nII. See above.\n(A) crow\n(B) pike",
        "\nA\u3001乌鸦和小鸟\nB\u3001狗鱼和大鱼",
        "\n\uff08A\uff09乌鸦和小鸟\n\uff08B\uff09狗鱼和大鱼",
        " (A) crow (B) pike (C) mole",
        "\na) crow\nb) pike",
        "\n1. crow\n2. pike",
        "\n**A)** crow\n**B)** pike",
        "\nA - crow\nB - pike",
    ],
)
def test_noise_leaves_written_choices_alone(name, split, choices):
    """`(B)` became `(BB)` or `(b)`, and a line of choices a part of another."""
    source = Source("x", f"Which of these can fly in the sky?{choices}", answer="A", wrong_answers=("B",))
    (steps,) = find_perturbations([name])
    made = [perturb(source, draw(source, steps, split, seed=seed))["perturbed_prompt"] for seed in range(40)]
    texts = [message["content"] for (message,) in made]
    written = choices[choices.index("(A)") :] if "(A)" in choices else choices
    assert all(text.endswith(written) for text in texts)
    assert any(text != source.question for text in texts)


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("1. Where is Rome?\n2. Where is Athens?", None),  # a list of questions
        ("(A) pear (B) leek: which of them is a fruit?", ""),
        ("1. crow\n2. pike\nWhich of them can fly?", ""),
        ("a) crow\nb) pike\nWhich of them can fly?", ""),
        ("What is a - b, a) or b)?", None),
        ("Is 1.5 l more than\n2.5 l?", None),
        ("Which?\n- crow\n- pike", None),
        ("Which is it: [a] crow [b] pike", "Which is it:"),
    ],
)
def test_text_before_choices(text, before):
    assert before_choices(text) == (text if before is None else before)

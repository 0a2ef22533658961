import json

import numpy as np
import pytest

from trl_consistency import ConsistencyError
from trl_consistency.data.answers import ANSWER_INSTRUCTION
from trl_consistency.perturbations import find_columns, read_source
from trl_consistency.perturbations.source import CHOICE_INSTRUCTION


def read(row, chat=True, instruction=None, keep=(), **named):
    return read_source(row, find_columns(row, keep=keep, **named), chat, instruction)


def columns_of(row):
    return {"choices": ["one", "two", "three"]} if "one" in row else {}


MC = {"question": "Largest?", "choices": ["dog", "cow", "bee"]}
ARC = {"question": "Largest?", "choices": {"text": ["dog", "cow"], "label": ["1", "2"]}}

ANSWERS = {
    "index": ({**MC, "answer": 1}, "B"),
    "letter": ({**MC, "answer": "B"}, "B"),
    "text": ({**MC, "answer": "cow"}, "B"),
    "index of a CSV file": ({**MC, "choices": '["dog", "cow"]', "answer": "1"}, "B"),
    "label": ({**ARC, "answerKey": "2"}, "B"),
    "label of a column that holds no whole numbers": (
        {**MC, "choices": {"text": ["dog", "cow"], "label": [1.0, 2.0]}, "answer": 1},
        "A",
    ),
    "name of a column": ({"question": "x", "one": "dog", "two": "cow", "three": "bee", "answer": "two"}, "B"),
    "index that is the text of the same choice": ({**MC, "choices": ["0", "1"], "answer": 1}, "B"),
    "index among other numbers": ({**MC, "choices": ["7", "8", "9"], "answer": 1}, "B"),
    "unknown": ({**MC, "answer": None}, ""),
    "same text twice, and an alias": (
        {**MC, "choices": ["cow", "dog", "cow"], "answer": "A", "aliases": ["cow"]},
        "A",
    ),
    "same text twice": ({**MC, "choices": ["cow", "dog", "cow"], "answer": "cow"}, "A"),
    "numbers as choices": ({**MC, "choices": [10, 20], "answer": "20"}, "B"),
    "free-form": ({"question": "Largest?", "answer": " cow "}, "cow"),
    "free-form number": ({"question": "How many?", "answer": 12}, "12"),
}


@pytest.mark.parametrize(("row", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_answers(row, answer):
    assert read(row, **columns_of(row)).answer == answer


def test_wrong_answers():
    assert read({**MC, "answer": 1}).wrong_answers == ("A", "C")
    assert read({**MC, "choices": ["cow", "dog", "cow"], "answer": 0}).wrong_answers == ("B",)
    assert read({**MC, "answer": 1, "wrong_answer": "bee"}).given_wrong_answer == "C"
    source = read({"question": "x", "answer": "a", "incorrect_answers": ["b", "c"]})
    assert (source.wrong_answers, source.given_wrong_answer) == (("b", "c"), "b")
    assert read({"question": "x", "answer": "a", "wrong_answers": '["b"]'}).wrong_answers == ("b",)
    assert read(MC).wrong_answers == ()


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_choice_does_not_shift_the_letters(empty):
    """`C` would have named the fourth choice."""
    row = {"question": "Largest?", "a": "dog", "b": empty, "c": "cow", "d": "bee", "answer": "C"}
    with pytest.raises(ConsistencyError, match="`b` is empty, though a choice after it is not"):
        read(row, choices=["a", "b", "c", "d"])
    last = {**row, "b": "cow", "c": empty, "d": empty, "answer": "B"}
    assert read(last, choices=["a", "b", "c", "d"]).choices == ("dog", "cow")


def test_a_choice_that_differs_from_the_right_one_in_spaces_is_not_wrong():
    assert read({**MC, "choices": ["cow", "dog", "cow "], "answer": 0}).wrong_answers == ("B",)


@pytest.mark.parametrize(
    "choices",
    [
        *(
            ["A.D.", "B.C."],
            ["A - B", "B - A"],
            ["A pear", "B minor"],
            ["1.5 l", "2.5 l"],
            ["1:30", "2:45"],
            ["1 - 3", "2 - 5"],
        ),
        *(
            ["1. May", "2. May"],
            ["(i) only", "(ii) only", "both"],
            ["B) dog", "cow", "bee"],
            ["1", "2"],
            ["2. FC", "7. FC B"],
        ),
    ],
)
def test_choices_that_begin_like_marks(choices):
    assert read({**MC, "choices": choices, "answer": "A"}).choices == tuple(choices)


def test_names_that_begin_with_initials_have_no_letters_of_their_own():
    source = read({**MC, "choices": ["A.J. Foyt", "B.B. King"], "answer": "A"})
    assert source.choices == ("A.J. Foyt", "B.B. King")


def test_characters_are_spelled_in_one_way():
    """`é` as one code point and as two are the same letter: a choice is found by either, and answers compare."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    source = read({"question": decomposed, "choices": [decomposed, "tea"], "answer": composed})
    assert (source.question, source.choices, source.answer) == (composed, (composed, "tea"), "A")
    source = read({"messages": [{"role": "user", "content": decomposed}], "answer": decomposed, "id": decomposed})
    assert (source.question, source.answer, source.source_id) == (composed, composed, decomposed)
    with pytest.raises(ConsistencyError, match="holds the right answer"):
        read({"question": "x", "answer": composed, "wrong_answers": [decomposed]})


def test_letters_of_choices_in_the_question():
    """Both answers are letters, or neither is; one that only looks like a letter is not."""
    question = "Which barks?\n(A) dog\n(B) cow"
    assert read({"question": question, "answer": "A", "wrong_answers": ["B"]}).wrong_answers == ("B",)
    assert read({"question": question, "answer": "dog", "wrong_answers": ["cow"]}).wrong_answers == ("cow",)
    assert read({"question": "Which note is it?", "answer": "A", "wrong_answers": ["B flat"]}).answer == "A"


FAULTS = {
    "no question": ({"question": None}, "`question` is missing"),
    "blank": ({"question": " "}, "`question` is empty or blank"),
    "role": ({"messages": [{"role": "usr", "content": "x"}]}, "`messages` message 0 has the role `usr`: did you mean"),
    "no user turn": ({"messages": [{"role": "system", "content": "x"}]}, "`messages` has no user turn"),
    "one choice": ({**MC, "choices": ["dog"]}, r"has 1 choice\(s\), not 2 to 26"),
    "choices of another type": ({**MC, "choices": "dog, cow"}, "`choices` must be a list of texts, got 'dog, cow'"),
    "blank choice": ({**MC, "choices": ["dog", " "]}, "`choices` must be a list of texts"),
    "choices not JSON": ({**MC, "choices": "['dog', 'cow']"}, "`choices` is not valid JSON"),
    "answer out of range": ({**MC, "answer": 3}, "`answer` 3 is not one of the 3 choices"),
    "negative": ({**MC, "answer": -1}, "`answer` -1 is not one of the 3 choices"),
    "true": ({**MC, "answer": True}, "`answer` True is not one of the 3 choices"),
    "not a number": ({"question": "How many?", "answer": float("nan")}, "`answer` holds nan, which is not a number"),
    "infinite": ({"question": "x", "answer": "a", "wrong_answers": [float("inf")]}, "`wrong_answers` holds inf"),
    "choice that is not a number": ({**MC, "choices": ["1", float("nan")]}, "`choices` holds nan"),
    "name that is not a number": ({"question": "x", "id": float("nan")}, "`id` holds nan"),
    "unknown answer": ({**MC, "answer": "horse"}, "`answer` 'horse' is not one of the 3 choices"),
    "two meanings": ({**MC, "choices": ["1", "0"], "answer": "1"}, r"'1' could mean \(A\) or \(B\): give letters"),
    "letter and text": ({**MC, "choices": ["B", "A"], "answer": "A"}, r"'A' could mean \(A\) or \(B\)"),
    "number and index": ({**MC, "choices": [2, 3, 4], "answer": 2}, r"2 could mean \(A\) or \(C\): give letters"),
    "index and number as text": (
        {**MC, "choices": ["2", "3", "4", "5"], "answer": 3},
        r"`answer` 3 could mean \(B\) or \(D\): give letters",
    ),
    "index of a column with gaps and number as text": (
        {**MC, "choices": ["2", "3", "4", "5"], "answer": 3.0},
        r"3.0 could mean \(B\) or \(D\)",
    ),
    "wrong index and number as text": (
        {**MC, "choices": ["2", "3", "4", "5"], "answer": "A", "wrong_answer": 3},
        r"`wrong_answer` 3 could mean \(B\) or \(D\): give letters",
    ),
    "wrong number and index": (
        {**MC, "choices": [2, 3, 4], "answer": "C", "wrong_answer": 2},
        r"`wrong_answer` 2 could mean \(A\) or \(C\): give letters",
    ),
    "wrong numbers and indices": (
        {**MC, "choices": [4, 1, 0], "answer": "A", "wrong_answers": [1, 0]},
        r"`wrong_answers` 0 could mean \(A\) or \(C\): give letters",
    ),
    "number among choices of a CSV file": (
        {**MC, "choices": "[2, 3, 4]", "answer": 2},
        r"`answer` 2 could mean \(A\) or \(C\): give letters",
    ),
    "number among words": (
        {"question": "x", "one": 2, "two": "both", "three": "none", "answer": 2},
        r"`answer` 2 could mean \(A\) or \(C\): give letters",
    ),
    "a choice inside a choice": (
        {**MC, "choices": ["dog\n(C) cat", "cow"]},
        r"`choices` hold a line that begins like another choice, 'dog\\n\(C\) cat': leave the line break out",
    ),
    "own letters": (
        {**MC, "choices": ["(A) dog", "(B) cow"]},
        "`choices` begin with letters of their own, such as '\\(A\\) dog'",
    ),
    "own letters with points": ({**MC, "choices": ["A. dog", "B. cow"]}, "begin with letters of their own"),
    "own letters without spaces": ({**MC, "choices": ["A)21", "B)21.5"]}, "begin with letters of their own"),
    "own letters before numbers": ({**MC, "choices": ["A.21", "B.21.5"]}, "begin with letters of their own"),
    **{
        f"own {kind}, {first}": (
            {**MC, "choices": [first + "dog", second + "cow"]},
            f"`choices` begin with {kind} of their own, such as",
        )
        for kind, first, second in (
            *(
                ("letters", "B) ", "A) "),
                ("letters", "[A] ", "[B] "),
                ("letters", "A - ", "B - "),
                ("letters", "**A.** ", "**B.** "),
            ),
            *(
                ("letters", "A.", "B."),
                ("letters", "A\uff0e", "B\uff0e"),
                ("letters", "\uff08A\uff09", "\uff08B\uff09"),
            ),
            *(("letters", "Option A: ", "Option B: "), ("letters", "**A** ", "**B** "), ("numbers", "1. ", "2. ")),
            *(
                ("numbers", "1) ", "2) "),
                ("numbers", "(i) ", "(ii) "),
                ("numbers", "II. ", "I. "),
                ("numbers", "[1]", "[2]"),
            ),
        )
    },
    "own letters but for the last": (
        {**MC, "choices": ["A) dog", "B) cow", "None of these"]},
        "`choices` begin with letters of their own, such as 'A\\) dog'",
    ),
    "small letters of their own": ({**MC, "choices": ["a) dog", "b) cow"]}, "begin with letters of their own"),
    "a choice in words beside a letter": (
        {"question": "Which barks?\n(A) dog\n(B) cow", "answer": "A", "wrong_answers": ["cow"]},
        "`wrong_answers` holds 'cow', and `answer` is the letter 'A' of a choice in the question: write the letter of each answer",
    ),
    "a letter beside a choice in words": (
        {"question": "Which barks?\n(A) dog\n(B) cow", "answer": "dog", "wrong_answer": "B"},
        "`wrong_answer` holds the letter 'B' of a choice in the question, and `answer` is 'dog': write the letter of each answer",
    ),
    "wrong is right in another case": (
        {"question": "x", "answer": "Paris", "wrong_answer": "paris"},
        "holds the right answer",
    ),
    "wrong is right with an article": (
        {"question": "x", "answer": "Nile", "wrong_answer": "the Nile"},
        "holds the right",
    ),
    "wrong is right with a comma": ({"question": "x", "answer": "13000", "wrong_answer": "13,000"}, "holds the right"),
    "wrong is an alias in another case": (
        {"question": "x", "answer": "Paris", "aliases": ["City of Light"], "wrong_answer": "city of light"},
        "names of the right answer, and 'City of Light' is given as a wrong one",
    ),
    "labels": ({**MC, "choices": {"text": ["a", "b"], "label": ["A"]}}, "2 texts but 1 labels"),
    "choices under other keys": (
        {**MC, "choices": {"choices": ["dog", "cow"], "labels": [0, 1]}},
        "`choices` has no `text`, only `choices`, `labels`",
    ),
    "one label twice": (
        {**MC, "choices": {"text": ["a", "b", "c"], "label": ["A", "A", "B"]}},
        "`choices` has the label 'A' twice",
    ),
    "index beside labels that are numbers": ({**ARC, "answerKey": "0"}, "'0' is not one of the 2 choices"),
    "alias is the letter of another choice": (
        {**MC, "answer": "A", "aliases": ["B"]},
        "names of the right answer, and 'B' is given as a wrong one",
    ),
    "alias is another choice": (
        {**MC, "answer": "A", "aliases": ["cow"]},
        "names of the right answer, and 'cow' is given as a wrong one",
    ),
    "wrong is right": ({**MC, "answer": 1, "wrong_answer": "B"}, "`wrong_answer` holds the right answer, 'cow'"),
    "wrong answer that denies": (
        {"question": "Which gate?", "answer": "AND", "wrong_answers": ["OR", "NOT AND"]},
        "`wrong_answers` holds 'NOT AND', and `NOT ` at the beginning would deny the rest. Begin it with another word",
    ),
    "list as an answer": ({"question": "x", "answer": ["a"]}, "`answer` must be text"),
    "tools that are no JSON": ({"question": "x", "tools": "[{"}, "`tools` is not valid JSON"),
    "variables that are set already": (
        {"question": "x", "chat_template_kwargs": {"tokenize": True}},
        "`chat_template_kwargs` sets `tokenize`, which is set the same for both sides",
    ),
    "half a surrogate behind an escape": (
        {"question": "x", "answer": "a", "wrong_answer": '["\\ud800"]'},
        "`wrong_answer` is not valid JSON .*surrogates not allowed",
    ),
    "half a surrogate": ({"question": "x\ud800"}, "is not valid Unicode"),
}


@pytest.mark.parametrize(("row", "reason"), FAULTS.values(), ids=FAULTS)
def test_faulty_rows(row, reason):
    with pytest.raises(ConsistencyError, match=reason):
        read(row, **columns_of(row))


@pytest.mark.parametrize(
    ("answer", "given", "wrong"),
    [
        ("[1, 3]", "[3, 1]", ("[3, 1]",)),
        ("[0, 1]", "[0, 1)", ("[0, 1)",)),
        ("[1, 3]", '["[3, 1]", "[1]"]', ("[3, 1]", "[1]")),
        ("3", "[1, 2]", ("1", "2")),
    ],
)
def test_answers_in_brackets(answer, given, wrong):
    """`[3, 1]` was read as the two answers 3 and 1."""
    row = {"question": "What is left?", "answer": answer, "wrong_answer": given}
    assert read(row).wrong_answers == wrong
    row = {"question": "Which?", "choices": [answer, "[9]", given], "answer": 0, "wrong_answer": given}
    assert read(row).given_wrong_answer == "C"


def test_wrong_answers_that_are_numbers():
    """Of choices that are numbers, the one of that value; of texts, the one with that index."""
    row = {"question": "x", "choices": [20, 30, 40], "answer": "A"}
    assert read({**row, "wrong_answer": 30}).given_wrong_answer == "B"
    assert read({**row, "choices": ["x", "y", "z"], "wrong_answer": 2}).given_wrong_answer == "C"


def test_numbers_of_a_column_with_gaps():
    """pandas makes floats of them, and a cue said "70.0"."""
    source = read({"question": "6 * 12?", "answer": 72.0, "wrong_answer": 70.0})
    assert (source.answer, source.wrong_answers) == ("72", ("70",))
    assert read({"question": "x", "choices": ["dog", "cow"], "answer": 1.0}).answer == "B"
    assert read({"question": "x", "answer": 0.5, "wrong_answer": None}).answer == "0.5"


def test_messages():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "Is it "}, {"type": "text", "text": "A?"}]},
        {"role": "assistant", "content": "Well,"},
    ]
    source = read({"prompt": messages})
    assert (source.history, source.question, source.turns) == ((messages[0],), "Is it A?", (messages[2],))
    with pytest.raises(ConsistencyError, match="`prompt` is a list of messages, which `prompt_format: text` cannot"):
        read({"prompt": messages}, chat=False)


def test_keys_of_other_rows_are_no_part_of_the_name():
    """Parquet files fill them in with null, and the same question was another source, of another split."""
    message = {"role": "user", "content": "Which?"}
    filled = [{**message, "name": None, "tool_calls": None}]
    sources = [read({"messages": messages}) for messages in ([message], filled)]
    assert sources[0] == sources[1]


def test_tools_beside_text():
    """The pairs were written, and training refused all of them."""
    row = {"question": "x", "tools": [{"name": "clock"}], "chat_template_kwargs": None}
    assert read(row).carried["tools"] == [{"name": "clock"}]
    with pytest.raises(ConsistencyError, match="`tools` is given, but the prompts are text"):
        read(row, chat=False)


def test_lists_of_pandas():
    """They are arrays of NumPy, whose comparison ended with a traceback."""
    choices = np.array(["dog", "cow"], dtype=object)
    source = read({"question": "Largest?", "choices": choices, "answer": np.int64(1)})
    assert (source.choices, source.answer) == (("dog", "cow"), "B")
    wrong_answers = np.array(["ant", "bee"], dtype=object)
    assert read({"question": "x", "answer": "cow", "wrong_answers": wrong_answers}).wrong_answers == ("ant", "bee")


def test_json_in_a_field_is_normalized():
    """As `json.dumps` writes it by default, with escapes; the cue had another é than the question."""
    asked = json.dumps([{"role": "user", "content": "Which cafe\u0301?"}])
    source = read({"question": asked, "answer": "x", "wrong_answers": json.dumps(["cafe\u0301"])})
    assert (source.question, source.wrong_answers) == ("Which caf\xe9?", ("caf\xe9",))
    choices = json.dumps(["cafe\u0301", "bar"])
    assert read({"question": "Which?", "choices": choices, "answer": "cafe\u0301"}).answer == "A"


@pytest.mark.parametrize("column", ["wrong_answers", "aliases"])
@pytest.mark.parametrize(
    "value",
    [
        "Brown; Bay; Black",
        "Brown | Bay",
        "You die.; You get sick",
        "$5; $6",
        "Brown\nBay",
        "a (b); c",
        "Brown;Bay;Black",
        "Brown|Bay",
    ],
)
def test_a_list_that_is_no_json_is_refused(column, value):
    """As in TruthfulQA's CSV file. The cue suggested all of it, which no reply gives."""
    row = {"question": "What color?", "answer": "Light gray", column: value}
    with pytest.raises(ConsistencyError, match=rf"`{column}` .* seems to be a list. Write it as JSON: \["):
        read(row, keep=["aliases"] if column == "aliases" else [])
    one = read({**row, column: [value]}, keep=["aliases"] if column == "aliases" else [])
    assert (one.carried["aliases"] if column == "aliases" else list(one.wrong_answers)) == [value]
    both = {"question": "Which colors?", "answer": "white; gray", "wrong_answers": "Brown; Bay"}
    assert read(both).wrong_answers == ("Brown; Bay",)


def test_instructions():
    assert read(MC).instruction == CHOICE_INSTRUCTION
    assert read(MC, instruction="").instruction == ""
    assert read({"question": "x"}).instruction == ""
    assert read({"question": "x", "answer": "y"}).instruction == ANSWER_INSTRUCTION
    assert read({"question": "x", "answer": "y"}, instruction="").instruction == ""
    assert read({"question": "Question: x\nAnswer:", "answer": "y"}).instruction == ""
    assert read({"question": "x", "answer": "y"}, chat=False).instruction == ""
    for choices in ("(A) x\n(B) y", "(A) x (B) y", "\na) x\nb) y", "\n1. x\n2. y"):
        assert read({"question": f"Which is it? {choices}", "answer": "B"}).instruction == ""
    request = {"question": "x", "answer": "y", "category": "harmful"}
    assert read(request, keep=["category"]).instruction == ""
    assert read({"question": "x"}, instruction="Be brief.").instruction == "Be brief."


def test_number_zero_is_a_name():
    assert [read({"question": "x", "source_id": source_id}).source_id for source_id in (0, "0", 1, 1.0)] == [
        *("0", "0", "1"),
        "1",  # of a column with gaps
    ]


def test_names():
    assert read({**MC, "id": 7}).source_id == "7"
    ids = [
        read(row).source_id for row in (MC, {**MC, "choices": ["dog", "cow"]}, {**MC, "answer": 1}, {**MC, "id": ""})
    ]
    assert ids[0] == ids[2] == ids[3] != ids[1], "a source without a name is named by what it asks"


def test_several_columns_of_choices():
    row = {"question": "x", "one": "dog", "two": "cow", "three": "", "answer": "cow"}
    assert read(row, choices=["one", "two", "three"]).choices == ("dog", "cow")


@pytest.mark.parametrize("names", ["CBA", "123"])
def test_names_of_columns_that_mean_other_choices(names):
    """In another order, the answer A could be the choice in the column A, or the first one; and 1 the column 1, or the second."""
    row = {"question": "x", **dict(zip(names, ["dog", "cow", "bee"], strict=True)), "answer": sorted(names)[0]}
    with pytest.raises(ConsistencyError, match=r"could mean \(A\) or \([BC]\): give"):
        read(row, choices=list(names))


def test_columns_that_nothing_is_read_from():
    columns = ["question", "reply", "wrong_answer", "category", "topic", "level"]
    assert find_columns(columns, keep=["topic"]).unread(columns) == ["reply", "level"]
    assert find_columns(["question", "answer", "anwser"]).unread(["answer", "anwser"]) == ["anwser"]
    assert find_columns(["question", "anwser"], keep=["anwser"]).answer is None
    others = ["idx", "label", "level", "subject", "explanation", "answer_type", "question_id", "correct_answer"]
    assert find_columns(["question", "answer", *others]).unread(others) == others
    assert find_columns(["q", "A", "B"], prompt="q", choices=["A", "B"]).unread(["q", "A", "B"]) == []


def test_carried_columns():
    row = {"question": "x", "category": "harmful", "topic": "locks", "other": 1}
    assert read(row, keep=["topic"]).carried == {"category": "harmful", "topic": "locks"}
    with pytest.raises(ConsistencyError, match="has `tools`, which the first row does not have"):
        read_source({**row, "tools": []}, find_columns(row))


COLUMN_FAULTS = {
    "none": (["text"], {}, "No column of questions or prompts: name it in `prompt_column`. There are `text`"),
    "misspelt answers": (["question", "anwser"], {}, "column `anwser`, and no `answer`. .* give `answer_column: anwser`"),
    "answers by another name": (["question", "correct_answers"], {}, "no `answer`. .* give `answer_column: correct_answers`"),
    "misspelt aliases": (["question", "answer", "alias"], {}, "column `alias`, and no `aliases`. Rename it, if that is meant"),
    "misspelt questions": (["Qestion"], {}, "column `Qestion`, and no `question`. .* give `prompt_column: Qestion`"),
    "two": (["question", "prompt"], {}, "`question` and `prompt` could both be the prompt"),
    "misspelt": (["question", "anwser"], {"answer": "answer"}, "`answer_column`: there is no column `answer`. Did you mean `anwser`"),
    "unknown field": (["question", "label"], {"answer_column": "label"}, "no argument `answer_column`: it can be .*Did you mean `answer`"),
    "commas": (["question", "A", "B"], {"choices": ["A,B"]}, "`choices_column`: put spaces between the columns, not commas"),
    "keep": (["question"], {"keep": ["topic"]}, "`keep_columns`: there is no column `topic`"),
    "keep what training makes": (["question", "clean_ids"], {"keep": ["clean_ids"]}, "refuse the pairs for the column `clean_ids`, a name that"),
    "keep pictures": (["question", "image"], {"keep": ["image"]}, "refuse the pairs for the column `image`: pairs are text-only"),
    "keep a misspelt target": (["question", "completions"], {"keep": ["completions"]}, "refuse the pairs for the column `completions`, which would"),
    "keep a misspelt key": (["question", "catgory"], {"keep": ["catgory"]}, "refuse the pairs for the column `catgory`, which would be ignored"),
    "keep our own": (["question", "answer"], {"keep": ["answer"]}, "the pairs have a column `answer` of their own"),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "named", "reason"), COLUMN_FAULTS.values(), ids=COLUMN_FAULTS)
def test_faulty_columns(columns, named, reason):
    with pytest.raises(ConsistencyError, match=reason):
        find_columns(columns, **named)

import itertools
import json

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from trl_consistency import ConsistencyError, InvalidPairsError
from trl_consistency.evaluation.grading.answer_keys import check_spelling
from trl_consistency.perturbations import (
    BuildReport,
    Provenance,
    build_pairs,
    draw,
    find_columns,
    find_perturbations,
    perturb,
    read_source,
)
from trl_consistency.perturbations.registry import read_wordings


def questions(count=200):
    return [
        {
            "question": f"Which of all these things is usually called number {index} by everybody here?",
            "choices": [f"thing {index}", f"item {index + 1}", f"number {index + 2}"],
            "answer": index % 3,
            "id": f"q{index}",
        }
        for index in range(count)
    ]


REQUESTS = [{"prompt": f"Do deed {index}.", "category": "harmful"} for index in range(60)]


def build(rows, *args, **options):
    splits: dict[str, list] = {}
    for split, row in build_pairs(rows, *args, **options):
        splits.setdefault(split, []).append(row)
    return splits


def test_sources_and_wordings_of_the_splits_are_disjoint():
    splits = build(questions(), ["suggested_answer", "are_you_sure"], test_share=0.3)
    sources = {split: {row["source_id"] for row in rows} for split, rows in splits.items()}
    assert sources["test"] == sources["test_wordings"]
    assert not sources["train"] & sources["test"]
    assert len(sources["train"] | sources["test"]) == 200
    assert 40 <= len(sources["test"]) <= 80
    for split, rows in splits.items():
        called = "held-out" if split == "test_wordings" else "train"
        assert all(f"/{called}-" in row["perturbation"] for row in rows)


REPEATS = {
    "other ids": lambda row, copy: {**row, "id": f"{copy}-{row['id']}"},
    "other ids, white space": lambda row, copy: {
        **row,
        "id": f"{copy}-{row['id']}",
        "question": row["question"] + " " * copy,
    },
    "white space": lambda row, copy: {**row, "id": None, "question": row["question"] + " " * copy},
    "line breaks and case": lambda row, copy: {
        **row,
        "id": None,
        "question": row["question"].replace(" ", "\n" * copy or " ").swapcase() if copy else row["question"],
    },
    "order of choices": lambda row, copy: {
        **row,
        "id": None,
        "answer": (row["answer"] - copy) % 3,
        "choices": row["choices"][copy:] + row["choices"][:copy],
    },
}


def test_rows_that_end_with_an_answer_are_counted():
    """As conversations for fine-tuning do: both prompts end with the answer."""
    turns = [{"role": "user", "content": "Is it late?"}, {"role": "assistant", "content": "No."}]
    report = BuildReport()
    rows = [{"messages": turns}, {"messages": turns[:1]}]
    pairs = [row for _, row in build_pairs(rows, ["politeness"], test_share=0, report=report)]
    assert [row["perturbed_prompt"][-1]["role"] for row in pairs] == ["assistant", "user"]
    assert report.prefills().startswith("1 row(s) end with an assistant turn, and so do both prompts")
    assert not BuildReport().prefills()


def test_questions_and_answers_that_are_swapped_are_counted():
    swapped = [{"question": "Rome", "answer": "What is the capital of Italy?", "wrong_answer": "Bern"}]
    others = [
        {"question": "Capital of Italy?", "answer": "Rome", "wrong_answer": "Bern"},
        {
            "question": "It is 3, is it? Which question is right?",
            "answer": "What is 1+2?",
            "wrong_answer": "What is 1?",
        },
        {"question": "Name the capital of Spain.", "answer": "Madrid", "wrong_answer": "Bern"},
    ]
    report = BuildReport()
    list(build_pairs([*swapped, *others], test_share=0, report=report))
    assert report.swaps() == (
        "1 row(s) have an answer that is a question, and a question that is not: are the columns swapped?"
    )
    assert not BuildReport().swaps()


@pytest.mark.parametrize("question", ["法国的首都是哪里\uff1f", "ما هي عاصمة فرنسا؟"])
def test_questions_end_in_other_marks(question):
    report = BuildReport()
    list(build_pairs([{"question": "Paris", "answer": question}], ["politeness"], test_share=0, report=report))
    assert report.swapped == 1
    report = BuildReport()
    list(build_pairs([{"question": question, "answer": "Paris?"}], ["politeness"], test_share=0, report=report))
    assert report.swapped == 0


def test_worked_solutions_are_counted():
    """Those of GSM8K, which no reply repeats: the accuracy was 0."""
    report = BuildReport()
    rows = [{"question": "1 + 1?", "answer": "1 and 1 are 2.\n#### 2"}, {"question": "1 + 2?", "answer": "3"}]
    list(build_pairs(rows, ["politeness"], test_share=0, report=report))
    assert report.solutions().startswith("1 answer(s) have several lines, such as a worked solution.")
    assert not BuildReport().solutions()


@pytest.mark.parametrize(("count", "said"), [(10, "`dataset_name`: 10 row"), (11, "`dataset_name`: more than 10 row")])
def test_more_faulty_rows_than_are_listed(count, said):
    """Reading ends after ten, and ten it was that could not be used."""
    rows = [{"question": f"{number}?", "answer": ["x"]} for number in range(count)]
    with pytest.raises(InvalidPairsError, match=f"{said}.s. cannot be used"):
        list(build_pairs(rows, ["politeness"]))


def test_a_row_that_is_left_out_contradicts_no_other():
    """The first row has no answer, and the second spells a wrong one otherwise: neither makes the third a faulty one."""
    report = BuildReport()
    asked = {"question": "Where is the Louvre?"}
    rows = [
        {"question": "Where is the Prado?", "answer": "Madrid", "wrong_answer": "Lisbon"},
        {**asked, "answer": "", "wrong_answer": "Oslo"},
        {**asked, "answer": "LISBON", "wrong_answer": "Oslo"},
        {**asked, "answer": "Paris", "wrong_answer": "Oslo"},
        {**asked, "answer": "Rome", "wrong_answer": "Oslo"},
    ]
    list(build_pairs(rows, test_share=0, faulty_rows="drop", report=report))
    assert [index for index, _ in report.faulty] == [2, 4]


def test_rows_that_are_there_twice_are_counted():
    questions = [{"question": f"{number}?", "answer": "Rome", "wrong_answer": "Bern"} for number in range(3)]
    others = [{**questions[0], "wrong_answer": "Oslo"}]  # another pair
    report = BuildReport()
    pairs = list(build_pairs([*questions, questions[1], *others], test_share=0, report=report))
    assert len(pairs) == 5
    assert report.repeats() == (
        "1 row(s) are the same as an earlier row: their pairs are there twice. Remove them if they should not count twice."
    )


@pytest.mark.parametrize("kind", REPEATS)
def test_a_question_that_is_asked_again_stays_in_one_split(kind):
    rows = [REPEATS[kind](row, copy) for copy in range(3) for row in questions(60)]
    report = BuildReport()
    splits = build(rows, test_share=0.3, report=report, instruction="")

    def asked(split):
        return {row["clean_prompt"][0]["content"].split("(A)")[0].casefold().split()[9] for row in splits[split]}

    assert len(asked("test")) > 9
    assert len(asked("train")) > 30
    assert not asked("train") & asked("test")
    assert report.asked_again == 120
    assert "120 row(s)" in report.repeats()
    assert sum(report.num_pairs()[split] for split in ("train", "test")) == 180, "no row is left out"


def test_different_questions_of_one_name_and_other_choices_are_no_repeats():
    report = BuildReport()
    rows = [{**row, "id": f"q{index % 10}"} for index, row in enumerate(questions(60))]
    rows += [{**rows[0], "id": "other", "choices": ["a", "b", "c"]}]
    splits = build(rows, test_share=0.3, report=report)
    assert not {row["source_id"] for row in splits["train"]} & {row["source_id"] for row in splits["test"]}
    assert (report.asked_again, report.between_splits, report.repeats()) == (0, 0, "")


def test_the_same_question_about_other_documents_is_another():
    """The template writes the documents. All rows were one question, in one split."""
    [row] = questions(1)
    about = [{"documents": [{"title": "", "text": f"Document {number}"}]} for number in range(60)]
    rows = [{**row, "id": f"q{number}", "chat_template_kwargs": of} for number, of in enumerate(about)]
    report = BuildReport()
    splits = build(rows, test_share=0.3, report=report)
    assert min(len(splits["train"]), len(splits["test"])) > 9
    assert report.asked_again == 0


def test_a_row_between_the_splits_is_left_out_and_counted():
    rows = questions(60)
    held_out = {row["source_id"] for row in build(rows, test_share=0.3)["test"]}
    of_train = next(row for row in rows if row["id"] not in held_out)
    report = BuildReport()
    splits = build([*rows, {**of_train, "id": min(held_out)}], test_share=0.3, report=report)
    assert report.between_splits == 1
    assert "1 row(s) with the id" in report.left_out()[0]
    assert sum(report.num_pairs()[split] for split in ("train", "test")) == 60
    assert not {str(row["clean_prompt"]) for row in splits["train"]} & {
        str(row["clean_prompt"]) for row in splits["test"]
    }


def test_a_source_stays_in_its_split_when_seed_and_perturbations_change():
    one = build(questions(), ["suggested_answer"], seed=1)
    two = build(questions(), ["typos"], seed=2)
    assert {row["source_id"] for row in one["test"]} == {row["source_id"] for row in two["test"]}


def test_pairs_do_not_depend_on_the_rows_before():
    names, options = ["sycophancy", "surface"], {"pairs_per_source": 5}
    every = list(build_pairs(questions(), names, **options))
    assert every == list(build_pairs(questions(), names, **options))
    last = list(build_pairs(questions()[-20:], names, **options))
    assert every[-len(last) :] == last
    assert every != list(build_pairs(questions(), names, seed=7, **options))


def test_every_pair_is_made_again_from_its_row():
    rows = questions(30)
    columns = find_columns(rows[0])
    sources = {row["id"]: read_source(row, columns) for row in rows}
    for _, row in build_pairs(rows, ["sycophancy", "surface", "jailbreak", "authority+typos"], columns):
        assert perturb(sources[row["source_id"]], Provenance.of(row)) == row


def test_pairs_per_source_takes_the_perturbations_in_turn():
    names = ["suggested_answer", "authority", "typos"]
    report = BuildReport()
    (rows,) = build(questions(50), names, pairs_per_source=7, test_share=0.0, report=report).values()
    for _, group in itertools.groupby(rows, key=lambda row: row["source_id"]):
        group = list(group)
        used = [row["perturbation"].split("/")[0] for row in group]
        assert sorted(used.count(name) for name in names) == [2, 2, 3]
        assert len({row["perturbation"] for row in group}) == 7, "another wording each time"
    assert {row["perturbation"].split("/")[0] for row in rows[::7]} == set(names), "not always the same one first"
    assert report.num_pairs() == {"train": 350}
    assert report.left_out() == []


def test_what_is_left_out_is_counted():
    report = BuildReport()
    rows = [
        {"question": "2 + 2?", "choices": ["4", "5"], "answer": 0},
        {"question": "12?", "choices": None, "answer": "x"},
    ]
    made = build(rows, ["post_hoc", "answer_position", "typos"], pairs_per_source=12, test_share=0.0, report=report)
    assert report.sources == 2
    assert report.lacking == {("post_hoc", "a wrong answer"): 1, ("answer_position", "choices"): 1}
    # 4 of each for the first source, whose two choices have only one other order, and 12 for the second.
    assert report.unchanged["typos"] == 16
    assert report.repeated["answer_position"] + report.unchanged["answer_position"] == 3
    asked = 12 + 12
    left_out = sum(report.unchanged.values()) + sum(report.repeated.values())
    assert len(made["train"]) == sum(report.pairs.values()) == asked - left_out
    assert "post_hoc: 1 source(s) not used: it needs a wrong answer" in report.left_out()
    assert "typos: 16 pair(s) left unchanged" in report.left_out()


def test_a_composition_of_which_one_changes_nothing_is_counted():
    """Its pairs had the one perturbation alone, and counted as pairs of both."""
    report = BuildReport()
    rows = [{"question": text, "answer": "4", "wrong_answer": "5"} for text in ("2 + 2?", "How much is two and two?")]
    (made,) = build(rows, ["authority+typos"], test_share=0.0, instruction="", report=report).values()
    assert [row["clean_prompt"][0]["content"] for row in made] == ["How much is two and two?"]
    assert report.left_out() == ["typos in authority+typos: 1 pair(s) left unchanged"]


@pytest.mark.parametrize(
    "last",
    [
        *("All of the above", "None of the answers above.", "All of above", "above sea level"),
        *("All above", "(None above)", "All of the below", "both below.", "none below sea level"),
        *("Alle oben genannten", "Toutes les réponses ci-dessus", "Todas las anteriores", "Tutte le precedenti"),
        *("Всё вышеперечисленное", "以上都是", "上記のすべて", "위의 모든 것"),
    ],
)
def test_choices_that_name_others_by_their_place_keep_it(last):
    """ "All of the above" came first, as the right answer."""
    report = BuildReport()
    rows = [{"question": "Which can swim?", "choices": ["pike", "eel", last], "answer": 2}]
    made = build(rows, ["answer_position"], test_share=0.0, report=report)
    left_out = "answer_position: 1 source(s) not used: it needs choices that say the same in any order"
    assert (bool(made), report.left_out()) == ((True, []) if "sea" in last else (False, [left_out]))


def test_a_pair_of_test_is_no_held_out_one():
    """Two choices have only one other order, which held-out wordings make, too."""
    report = BuildReport()
    rows = [{"question": f"{number} or more?", "choices": ["more", "less"], "answer": 0} for number in range(60)]
    made = build(rows, ["answer_position"], test_share=0.5, report=report)
    test, wordings = ({json.dumps(row["perturbed_prompt"]) for row in made[of]} for of in ("test", "test_wordings"))
    assert test
    assert not test & wordings
    assert report.repeated["answer_position"] > 3


def test_a_pair_of_test_is_no_held_out_one_under_another_id():
    """Each of several ids drew its own wordings, and the same question may come out."""
    report = BuildReport()
    rows = [{"question": "which animal barks, and which one meows", "answer": "dog", "id": id} for id in range(40)]
    made = build(rows, ["case"], test_share=0.9, report=report)
    test, wordings = ({json.dumps(row["perturbed_prompt"]) for row in made[of]} for of in ("test", "test_wordings"))
    assert len(test) > 3
    assert not test & wordings
    assert sum(report.num_pairs().values()) + report.repeated["case"] + report.unchanged["case"] == 80


def test_given_wrong_answer():
    rows = [{**row, "wrong_answer": row["choices"][(row["answer"] + 1) % 3]} for row in questions(9)]
    rows[4]["wrong_answer"] = None
    report = BuildReport()
    (made,) = build(rows, wrong_answer="given", test_share=0.0, report=report).values()
    letters = {row["id"]: "ABC"[(row["answer"] + 1) % 3] for row in rows}
    assert {row["source_id"]: row["biased_answer"] for row in made} == {
        name: letter for name, letter in letters.items() if name != "q4"
    }
    assert report.lacking == {("suggested_answer", "a given wrong answer"): 1}


def test_given_wrong_answers_that_decide_nothing_are_counted():
    """A column was named for them, and any other choice was suggested."""
    rows = [{**row, "wrong_answer": row["choices"][(row["answer"] + 1) % 3]} for row in questions(9)]
    rows[4]["wrong_answer"] = None
    for kind, count in {"random": 8, "longest": 8, "given": 0}.items():
        report = BuildReport()
        build(rows, wrong_answer=kind, test_share=0.0, report=report)
        assert report.passed_over == count
        assert ("Set `wrong_answer: given`" in report.passed()) == bool(count)
    report = BuildReport()
    build([{"question": "Where?", "answer": "Paris", "wrong_answer": "Lyon"}], test_share=0.0, report=report)
    assert report.passed_over == 0, "without choices, the given ones are suggested"


def test_one_right_letter_is_counted():
    """As in data with a column for the right choice, before those of the others: always A is right, and never gives in."""
    rows = [
        {"question": f"Which is {of}?", "choices": [f"{of}", f"{of + 1}", f"{of + 2}"], "answer": "A"}
        for of in range(30)
    ]
    report = BuildReport()
    build(rows, test_share=0.0, report=report)
    assert report.one_letter().startswith(
        "The right choice is (A) in 30 of 30 question(s): a model that always says A"
    )
    in_texts = [
        {"question": f"Which is {of}?\n\n(A) {of}\n(B) 99", "answer": "A", "wrong_answer": "B"} for of in range(30)
    ]
    report = BuildReport()
    build(in_texts, test_share=0.0, report=report)
    assert report.one_letter().startswith("The right choice is (A) in 30 of 30 question(s)")
    suggesting = [of | {"wrong_answer": wrong} for of in rows[:15] for wrong in "BC"]
    turned = [
        of | {"choices": of["choices"][-turn:] + of["choices"][:-turn], "answer": "ABC"[turn]}
        for of in rows
        for turn in range(3)
    ]
    # The second and the third ask ten and fifteen questions, several times. The last has each in three orders of its choices.
    for others in (questions(30), rows[:10] * 3, suggesting, turned):
        report = BuildReport()
        build(others, test_share=0.0, report=report)
        assert report.one_letter() == ""


@pytest.mark.parametrize("of", [int, str, float])
def test_answers_that_may_count_from_1(of):
    """No row had the last choice for its answer, which would have told. All right answers were the next choice, without a word."""
    last = "None of these"
    rows = [row | {"choices": [*row["choices"], last], "answer": of(row["answer"] + 1)} for row in questions(21)]
    report = BuildReport()
    build(rows, test_share=0.0, report=report)
    assert report.from_1().startswith("No `answer` of 21 that are numbers is 0.")
    for others in (rows[:19], [rows[0] | {"answer": of(0)}, *rows[1:]], questions(21)):
        report = BuildReport()
        build(others, test_share=0.0, report=report)
        assert report.from_1() == ""


@pytest.mark.parametrize("of", [int, str, float])
def test_answers_that_count_from_1_are_not_dropped_one_by_one(of):
    """The rows that were left had the next choice for a right answer. Beside a 0, such a number is a fault of its row."""
    rows = [row | {"answer": of(row["answer"] + 1)} for row in questions(9)]
    with pytest.raises(ConsistencyError, match=r"`answer` seems to count the choices from 1: in 3 row\(s\)"):
        list(build_pairs(rows, faulty_rows="drop", test_share=0.0))
    rows[4]["answer"] = of(0)
    assert len(list(build_pairs(rows, faulty_rows="drop", test_share=0.0))) == 6
    lettered = [row | {"answer": "ABC"[row["answer"]]} for row in questions(9)]
    assert len(list(build_pairs([*lettered, rows[2]], faulty_rows="drop", test_share=0.0))) == 9


def test_faulty_rows_are_listed_or_dropped_and_counted():
    rows = questions(20)
    for index in (3, 5):
        rows[index]["answer"] = "no such"
    with pytest.raises(InvalidPairsError, match=r"row 3: `answer` 'no such' is not one(.|\n)*row 5"):
        list(build_pairs(rows))
    report = BuildReport()
    assert len(list(build_pairs(rows, faulty_rows="drop", test_share=0.0, report=report))) == 18
    assert (report.sources, report.num_faulty) == (20, 2)
    assert report.left_out()[0] == "2 faulty row(s)"
    for row in rows:
        row["answer"] = "no such"
    with pytest.raises(InvalidPairsError, match=r"row 9"):
        list(build_pairs(rows))
    report = BuildReport()
    assert list(build_pairs(rows, faulty_rows="drop", report=report)) == []
    assert (report.num_faulty, len(report.faulty)) == (20, 10)


@pytest.mark.parametrize("column", ["answer", "choices", "id", "category"])
def test_columns_are_looked_for_in_all_rows(column):
    """The first row may lack one that later rows have; then it is as if it were empty there."""
    rows = [row | {"category": "farm"} for row in questions(6)]
    empty = [{**rows[0], column: None, **({"answer": None} if column == "choices" else {})}, *rows[1:]]
    expected = list(build_pairs(empty, ["typos"], test_share=0.0))
    lacking = [{name: value for name, value in row.items() if value is not None} for row in empty]
    report = BuildReport()
    assert list(build_pairs(lacking, ["typos"], test_share=0.0, report=report)) == expected
    assert report.without[column] == 1
    assert f"`{column}` in 1" in report.gaps()
    with pytest.raises(
        InvalidPairsError, match=f"row 1: has `{column if column != 'choices' else '.*'}`, which the first"
    ):
        list(build_pairs(iter(lacking), ["typos"]))
    report = BuildReport()
    list(build_pairs(iter(rows), ["typos"], report=report))
    assert report.gaps() == ""


def test_benign_controls_wear_the_same_wrappers():
    splits = build(REQUESTS, ["fiction", "rot13", "politeness"], benign_controls=True, test_share=0.4)
    benign = read_wordings("benign")
    for split, requests in (("train", "train"), ("test", "held_out"), ("test_wordings", "held_out")):
        controls = [row for row in splits[split] if row["category"] == "benign"]
        assert {row["clean_prompt"][0]["content"] for row in controls} == set(benign[requests])
        assert {row["perturbation"].split("/")[0] for row in controls} == {"fiction", "rot13"}
        assert {row["category"] for row in splits[split]} == {"harmful", "benign"}
        assert all(row.keys() == splits[split][0].keys() for row in splits[split])
    with pytest.raises(ConsistencyError, match="`benign_controls` are for jailbreak wrappers"):
        build_pairs(REQUESTS, ["politeness"], benign_controls=True)


def test_a_benign_control_that_a_row_asks_is_in_its_split():
    """It was in both, by the hash of the row's id and by its own."""
    own = [{"prompt": request, "category": "benign"} for of in read_wordings("benign").values() for request in of]
    report = BuildReport()
    splits = build([*REQUESTS, *own], ["fiction"], benign_controls=True, test_share=0.4, report=report)
    asked = {split: {row["clean_prompt"][0]["content"] for row in rows} for split, rows in splits.items()}
    assert not asked["train"] & asked["test"]
    assert report.asked_again == len(own)


def test_controls_of_data_without_a_category():
    rows = build([{"prompt": "x"}], ["fiction"], benign_controls=True, test_share=0.0)["train"]
    assert [row["category"] for row in rows] == ["", *["benign"] * 40]


def test_text_prompts():
    rows = build(questions(5), "suggested_answer", chat=False, test_share=0.0)["train"]
    assert all(isinstance(row[side], str) for row in rows for side in ("clean_prompt", "perturbed_prompt"))


OPTION_FAULTS = {
    "no rows": ([], {}, "The data set has no rows"),
    "share": (questions(1), {"test_share": 1.0}, "`test_share` must be at least 0 and less than 1, got 1.0"),
    "number": (questions(1), {"pairs_per_source": 0}, "`pairs_per_source` must be a whole number of at least 1"),
    "half a pair": (questions(1), {"pairs_per_source": 1.5}, "`pairs_per_source` must be a whole number"),
    "position": (questions(1), {"positions": ["middle"]}, "`positions`: 'middle' is not one of start, before_choices"),
    "no choices": ([{"question": "x"}], {"perturbations": ["answer_position"]}, "`answer_position` needs choices: name the column in `choices_column`"),
    "no answers": ([{"question": "x"}], {"perturbations": ["are_you_sure"]}, "`are_you_sure` needs a right answer"),
    "no wrong answers": ([{"question": "x", "answer": "y"}], {}, "name a column of wrong answers in `wrong_answer_column`, or the choices in `choices_column`"),
    "no key": ([{"question": "x", "choices": ["a", "b"]}], {}, "`wrong_answer_column`, or the right one in `answer_column`"),
    "none given": (questions(1), {"wrong_answer": "given"}, r"name a column of wrong answers in `wrong_answer_column`\.$"),
    "no fact": (questions(1), {"perturbations": ["safety_fact"]}, "`safety_fact` needs a safety fact"),
    "text": (questions(1), {"perturbations": ["typos+post_hoc"], "chat": False}, "`post_hoc` needs chat messages"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "options", "reason"), OPTION_FAULTS.values(), ids=OPTION_FAULTS)
def test_faulty_options(rows, options, reason):
    """Before a row is read: the call itself raises."""
    with pytest.raises(ConsistencyError, match=reason):
        build_pairs(rows, **options)


def test_members_of_a_family_that_do_not_apply_are_reported_not_refused():
    report = BuildReport()
    splits = build([{"question": "x", "answer": "y"}], ["sycophancy"], test_share=0.0, report=report)
    assert {row["perturbation"].split("/")[0] for row in splits["train"]} == {
        "denied_answer",
        "are_you_sure",
        "feedback",
    }
    assert len(report.lacking) == len(find_perturbations(["sycophancy"])) - 3


@pytest.mark.parametrize(
    ("count", "share", "said"), [(1, 1e-3, "No pair"), (1, 0.99, "Every pair"), (9, 0.5, ""), (1, 0.0, "")]
)
def test_splits_that_come_out_empty_are_said(count, share, said):
    report = BuildReport()
    build(questions(count), test_share=share, report=report)
    assert report.unheld(share).startswith(said)
    assert bool(report.unheld(share)) == bool(said)


def test_held_out_sources_that_are_not_used_are_not_denied():
    """ "No source was held out", it said, of those that lacked a wrong answer."""
    rows = [{"question": f"Where is {n}?", "answer": "Oslo", "wrong_answer": "Lyon", "id": f"q{n}"} for n in range(30)]
    held = {row["source_id"] for row in build(rows, test_share=0.3)["test"]}
    report = BuildReport()
    build(
        [row | {"wrong_answer": None if row["id"] in held else "Lyon"} for row in rows], test_share=0.3, report=report
    )
    assert 0 < len(held) < 30
    assert report.unheld(0.3).startswith(
        "No pair was held out. Each source is held out with the probability `test_share` (0.3), and of the 30"
    )


def test_two_letters_with_the_right_text_are_one_answer():
    rows = [{"question": "Which?", "choices": ["oak", "pear", "oak"], "answer": letter} for letter in "ACB"]
    report = BuildReport()
    (made,) = build(rows, test_share=0.0, faulty_rows="drop", report=report).values()
    assert [(row["answer"], row["biased_answer"]) for row in made] == [("A", "B"), ("C", "B")]
    assert report.faulty == [(2, "an earlier row asks the same and has another answer: one of them is wrong")]


METALS = [
    {"question": "Which planet?", "answer": "Mercury", "wrong_answers": ["Venus"], "category": "planets"},
    {"question": "Which metal?", "answer": "Gold", "wrong_answers": ["Iron", "mercury"], "category": "planets"},
]


def test_answers_that_differ_in_case_alone_are_refused():
    with pytest.raises(
        InvalidPairsError, match=r"row 1: the answers `mercury` and `Mercury` \(row 0\) differ in case"
    ):
        build(METALS)


@pytest.mark.parametrize(
    ("change", "options", "count"),
    [
        ({}, {"wrong_answer": "given"}, 2),
        ({}, {"wrong_answer": "longest"}, 1),
        ({}, {"perturbations": ["denied_answer"]}, 2),
        ({"category": "metals"}, {}, 2),
        ({"choices": ["Gold", "mercury"], "wrong_answers": None}, {}, 2),
    ],
)
def test_only_what_may_stand_in_the_pairs_is_compared(change, options, count):
    report = BuildReport()
    rows = [METALS[0] | {column: None for column in change if column == "choices"}, METALS[1] | change]
    (made,) = build(rows, test_share=0.0, faulty_rows="drop", report=report, **options).values()
    assert (len(made), report.num_faulty) == (count, 2 - count)
    check_spelling(made, "pairs")


def test_messages_in_a_field_of_csv_are_messages():
    """The JSON itself would have been the question."""
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who?"}]
    as_text, as_list = (
        build([{"messages": of, "answer": "yes", "wrong_answer": "no", "id": 1}], test_share=0, instruction="")
        for of in (json.dumps(messages), messages)
    )
    assert as_text == as_list
    assert as_text["train"][0]["clean_prompt"] == messages


def test_other_keys_of_the_question_stay():
    messages = [{"role": "user", "content": "Who?", "name": "Ada"}]
    rows = [{"messages": messages, "answer": "yes", "wrong_answer": "no"}]
    (row,) = build(rows, test_share=0, instruction="")["train"]
    assert row["clean_prompt"] == messages
    assert row["perturbed_prompt"][0]["name"] == "Ada"


def test_a_category_of_0_is_one():
    """As a text: evaluation refuses a number."""
    rows = [{"question": f"Is it {of}?", "answer": "a", "wrong_answer": "b", "category": of} for of in (0, 3)]
    assert {row["category"] for row in build(rows, test_share=0)["train"]} == {"0", "3"}


def test_classes_of_a_data_set_count_by_their_names():
    features = Features(
        {
            "question": Value("string"),
            "answer": ClassLabel(names=["no", "yes"]),
            "wrong_answer": Value("string"),
            "category": ClassLabel(names=["harmful", "law"]),
        }
    )
    columns = {"question": ["Is it legal?"], "answer": [1], "wrong_answer": ["maybe"], "category": [1]}
    (row,) = build(Dataset.from_dict(columns, features=features), test_share=0)["train"]
    assert (row["answer"], row["category"]) == ("yes", "law")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"wrong_answer": "longst"}, "`wrong_answer` must be one of 'random', 'longest', 'given', got 'longst'"),
        ({"faulty_rows": "ignore"}, "`faulty_rows` must be one of 'error', 'drop', got 'ignore'"),
    ],
)
def test_misspelt_arguments(options, reason):
    """The first wrong answer was suggested to all questions, and faulty rows were left out."""
    with pytest.raises(ConsistencyError, match=reason):
        build(questions(2), **options)
    if "wrong_answer" in options:
        source, (steps,) = (
            read_source(questions(1)[0], find_columns(questions(1)[0])),
            find_perturbations(["authority"]),
        )
        with pytest.raises(ConsistencyError, match=reason):
            draw(source, steps, **options)
        with pytest.raises(ConsistencyError, match="`split` must be one of 'train', 'held_out', got 'test'"):
            draw(source, steps, split="test")

"""Hostile input: questions that pairs are made of, and their keys."""

from types import SimpleNamespace

from tests.helpers.models import make_model, make_tokenizer
from tests.hostile_input.room import CHAT, PAIR, Case
from trl_consistency.evaluation import (
    PairSet,
    Sample,
    Suite,
    SuiteScore,
    compare,
    compare_suites,
    estimate,
    evaluate,
    grade,
    grade_answers,
    make_samples,
    measure_capability,
    plot_rates,
    run_suites,
)
from trl_consistency.evaluation.capability_data import CapabilityData
from trl_consistency.evaluation.suites import registry


NUMBERS = {"question": "How many?", "choices": [2, 3, 4]}

QUESTION = PAIR | {"answer": "Paris", "biased_answer": "Lyon"}


def graded(rows: list) -> dict:
    grades = [grade(row, "Paris") for row in rows]
    return make_samples(rows, grades, grades)


def changed_after_rendering() -> PairSet:
    pairs = PairSet.of([dict(CHAT)]).rendered(make_tokenizer())
    pairs.rows[0]["perturbed_prompt"] = [{"role": "user", "content": "Rome? What?"}]
    return pairs


LETTERS = {"clean_prompt": "Which?\n(A) oak\n(B) pear", "perturbed_prompt": "B?\n(A) oak\n(B) pear", "answer": "A"}
MERCURY = {"planet": "Mercury", "metal": "mercury"}

CASES: list[Case] = [
    Case(
        "pairs of questions and prompts",
        "`pairs`: questions in two columns, each empty where the other is not",
        "`question` and `prompt` could both be the prompt: name one in `prompt_column`.",
        lambda room: room.pairs([{"question": "Largest?", "answer": "cow"}, {"prompt": "Smallest?", "answer": "bee"}]),
    ),
    Case(
        "pairs with a wrong number",
        "`pairs`: a wrong answer that is a number, which could be a choice's index or its value",
        "…row 0: `wrong_answer` 2 could mean (A) or (C): give letters",
        lambda room: room.pairs([NUMBERS | {"answer": "B", "wrong_answer": 2}]),
    ),
    Case(
        "pairs with an index that is another choice",
        "`pairs`: an answer that is a number, which could be a choice's index or its text",
        "…row 0: `answer` 3 could mean (B) or (D): give letters",
        lambda room: room.pairs([{"question": "What is 1 + 2?", "choices": ["2", "3", "4", "5"], "answer": 3}]),
    ),
    Case(
        "pairs with a choice in a choice",
        "`pairs`: a choice with a line that begins like another choice",
        "…row 0: `choices` hold a line that begins like another choice, 'dog\\n(C) cat': leave the line break out",
        lambda room: room.pairs([{"question": "Largest?", "choices": ["dog\n(C) cat", "cow"], "answer": "cow"}]),
    ),
    Case(
        "pairs with choices under other keys",
        "`pairs`: choices under other keys than `text` and `label`, which would make the question one without choices",
        "…row 0: `choices` has no `text`, only `choices`, `labels`: give a list, or texts in `text` and labels in `label`",
        lambda room: room.pairs(
            [
                {
                    "question": "Largest?",
                    "choices": {"choices": ["dog", "cow"], "labels": [0, 1]},
                    "answer": "cow",
                    "wrong_answer": "dog",
                }
            ]
        ),
    ),
    Case(
        "pairs with one label twice",
        "`pairs`: one label for two choices",
        "…row 0: `choices` has the label 'A' twice",
        lambda room: room.pairs(
            [
                {
                    "question": "Largest?",
                    "choices": {"text": ["dog", "cow", "bee"], "label": ["A", "A", "B"]},
                    "answer": "A",
                }
            ]
        ),
    ),
    Case(
        "pairs with an index beside labels",
        "`pairs`: an index from 0 beside labels that are numbers from 1",
        "…row 0: `answer` 0 is not one of the 2 choices: give a label or the text of a choice",
        lambda room: room.pairs(
            [{"question": "Largest?", "choices": {"text": ["dog", "cow"], "label": ["1", "2"]}, "answer": 0}]
        ),
    ),
    Case(
        "pairs with answers counted from 1",
        "`pairs`: `faulty_rows: drop` with answers that count the choices from 1, of which only the last ones are faulty",
        "`answer` seems to count the choices from 1: in 1 row(s) it is the number of choices, and in none 0. Here, a number counts from "
        "0, and all other rows would have a wrong right answer. Give letters.",
        lambda room: room.pairs(
            [
                {"question": f"{size}?", "choices": ["dog", "cow", "bee"], "answer": number}
                for number, size in enumerate(("Middle", "Largest", "Smallest"), 1)
            ],
            "--faulty_rows",
            "drop",
        ),
    ),
    Case(
        "pairs with columns in another order",
        "`pairs`: columns of choices whose names are the letters of others",
        "…row 0: `answer` 'A' could mean (A) or (C): give letters",
        lambda room: room.pairs(
            [{"question": "Largest?", "A": "dog", "B": "cow", "C": "bee", "answer": "A"}], "--choices_column", *"CBA"
        ),
    ),
    Case(
        "pairs with an alias that is another choice",
        "`pairs`: another choice among the names of the right answer",
        "…row 0: `aliases` are names of the right answer, and 'dog' is given as a wrong one",
        lambda room: room.pairs(
            [{"question": "Largest?", "choices": ["dog", "cow"], "answer": "cow", "aliases": ["bull", "dog"]}]
        ),
    ),
    Case(
        "pairs of messages as Python shows them",
        "`pairs`: chat messages as pandas writes them into a CSV file, which would be the question",
        "…row 0: `question` is chat messages written as text, which no chat template would render: …",
        lambda room: room.pairs(
            [{"question": str([{"role": "user", "content": "Largest?"}]), "answer": "cow", "wrong_answer": "dog"}]
        ),
    ),
    Case(
        "pairs with two spellings",
        "`pairs`: two answers of a category that `evaluate` would read as one",
        "`dataset_name`: 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: the answers `mercury` and `Mercury` (row 0) differ in case, spaces or a final full stop alone, and a reply could be only one of them. Spell them alike, or give their rows two categories",
        lambda room: room.pairs(
            [
                {"question": f"Which {thing}?", "answer": name, "wrong_answer": "gold"}
                for thing, name in MERCURY.items()
            ]
        ),
    ),
    Case(
        "pairs with a wrong answer in two spellings",
        "`pairs`: a wrong answer in another case than an earlier answer",
        "…row 1: the answers `mercury` and `Mercury` (row 0) differ in case, spaces or a final full stop alone, …",
        lambda room: room.pairs(
            [
                {"question": "Which planet?", "answer": "Mercury", "wrong_answers": ["Venus"]},
                {"question": "Which metal?", "answer": "Gold", "wrong_answers": ["Iron", "mercury"]},
            ]
        ),
    ),
    Case(
        "a misspelt key",
        "`evaluate`: a misspelt column of a key, which grading would ignore",
        "`…pairs.jsonl` has the column `anwser`, which would be ignored. Rename it to `answer` if that is what it holds, or to "
        "something else if not.",
        lambda room: room.evaluate([PAIR | {"anwser": "Paris"}]),
    ),
    Case(
        "pairs with a wrong answer like a denial",
        "`pairs`: a wrong answer that begins as a denial does (`NOT A`), as which the pair would be read",
        "…row 0: `wrong_answer` holds 'NOT AND', and `NOT ` at the beginning would deny the rest. Begin it with another word",
        lambda room: room.pairs([{"question": "Which gate?", "answer": "AND", "wrong_answer": "NOT AND"}]),
    ),
    Case(
        "an answer like a denial",
        "`evaluate`: a suggested answer that begins like a denied one (`NOT A`), but is not one",
        "…row 0: `biased_answer` 'NOT gate' begins with `NOT `, which denies what follows, and 'gate' is not the right answer. Begin it with another word",
        lambda room: room.evaluate([PAIR | {"answer": "AND gate", "biased_answer": "NOT gate"}]),
    ),
    Case(
        "a denial in lower case",
        "`evaluate`: a suggested answer that denies the right one in another form than `NOT A`",
        "…row 0: `biased_answer` 'not Paris' denies the right answer: write it as `NOT Paris`",
        lambda room: room.evaluate([PAIR | {"answer": "Paris", "biased_answer": "not Paris"}]),
    ),
    Case(
        "pairs rendered otherwise",
        "Pairs that were rendered with other template variables: the new ones would have no effect",
        "`pairs` is rendered already, with another tokenizer or chat template, or other `chat_template_kwargs`. …",
        lambda room: (
            PairSet.of([CHAT])
            .rendered(make_tokenizer())
            .rendered(make_tokenizer("{{ loud }}" + make_tokenizer().chat_template), "pairs", {"loud": "!"})
        ),
    ),
    Case(
        "pairs changed after they were rendered",
        "Pairs whose prompts were changed after they were rendered: the model would be asked as before",
        "`pairs`: … row 0: its prompts, `tools` or `chat_template_kwargs` were changed after it was rendered. Make it anew without …",
        lambda room: evaluate(None, make_tokenizer(), changed_after_rendering()),
    ),
    Case(
        "a temperature for letters",
        "`evaluate`: a temperature where the likeliest letter is taken",
        "`temperature` is given, but `multiple_choice` is `logprob` and all rows offer letters: nothing is sampled. Leave it out.",
        lambda room: room.evaluate([LETTERS], "--multiple_choice", "logprob", "--temperature", "1"),
    ),
    Case(
        "a judge of letters",
        "`evaluate`: `judge_questions` where all answers are letters",
        "`judge_questions` is given, but no question has other answers than letters, which no judge grades. Leave it out.",
        lambda room: room.evaluate(
            [LETTERS, PAIR | {"category": "harmful"}], "--judge_model", "judge", "--judge_questions", "true"
        ),
    ),
    Case(
        "samples of other rows",
        "Two models on different rows, which would be compared",
        "The two models were measured on different rows ('…'), so that their difference says nothing. …",
        lambda room: compare(graded([QUESTION]), graded([QUESTION, QUESTION])),
    ),
    Case(
        "grading with a number as the answer",
        "`grade`, in Python: a number as the right answer",
        "`row`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `answer` must be text, not 4",
        lambda room: grade(PAIR | {"answer": 4}, "4"),
    ),
    Case(
        "grading of more answers than rows",
        "`grade_answers`, in Python: another number of answers than of rows",
        "`grade_answers` has 2 answer(s) for 1 row(s): give one for each.",
        lambda room: grade_answers([QUESTION], ["Paris", "Lyon"]),
    ),
    Case(
        "judge with labels of its own",
        "A judge of your own, in Python, with labels that are not known",
        "`judge` must return a `Judgement` for each prompt, whose label is one of REFUSED, COMPLIED, …, or None, got …",
        lambda room: grade_answers([PAIR | {"category": "harmful"}], ["Sure"], judge=lambda prompts: ["refused"]),
    ),
    Case(
        "judge of nothing",
        "`evaluate`, in Python: a judge, and nothing to judge",
        "`judge` is given, but there is nothing to judge: …",
        lambda room: evaluate(None, make_tokenizer(), [QUESTION], judge=lambda prompts: []),
    ),
    Case(
        "estimate of no answers",
        "`estimate`, in Python: a sample without answers",
        "A sample has no answers, so that there is no rate to estimate. Leave it out.",
        lambda room: estimate([Sample([], [])]),
    ),
    Case(
        "picture of differences",
        "`plot_rates`, in Python: differences in place of rates",
        "`sycophancy` of 'BCT' is a difference, and the picture is of rates: give those of `Results.rates()`. …",
        lambda room: plot_rates(
            {"BCT": compare(graded([QUESTION] * 2), graded([QUESTION] * 2))}, room.path / "picture.png"
        ),
    ),
    Case(
        "options of a task of the other library",
        "`Suite`, in Python: options for a task of lm-evaluation-harness, which would be ignored",
        "`options` of the suite mine is given, but it is for tasks of Inspect. Write what you want of lm-evaluation-harness …",
        lambda room: Suite("mine", "lm_eval", "mmlu", {"num_fewshot": 5}),
    ),
    Case(
        "tokens of answers that no suite takes",
        "`run_suites`, in Python: `max_new_tokens` for suites of lm-evaluation-harness alone",
        "`max_new_tokens` is given, but it is only for suites under Inspect. Leave it out.",
        lambda room: (
            room.monkeypatch.setattr(registry, "installed_version", lambda package: "1"),
            run_suites(str(room.model_dir), ["gsm8k"], max_new_tokens=9),
        ),
    ),
    Case(
        "misspelt variable for suites",
        "Suites with a variable that the chat template does not have",
        "`chat_template_kwargs` sets `no_thinkin`, a variable that the chat template does not have. Did you mean `no_think`?",
        lambda room: (
            room.monkeypatch.setattr(registry, "installed_version", lambda package: "1"),
            room.monkeypatch.setattr(registry, "load_suite", lambda suite, judge: None),
            run_suites(make_model(), ["gsm8k"], None, make_tokenizer(), chat_template_kwargs={"no_thinkin": True}),
        ),
    ),
    Case(
        "scored answers in the place of a thought",
        "`run_suites`, in Python: a suite that scores given answers, after a chat template that opens a thought",
        "`suites`: `mmlu` scores given answers right after the prompt, where this chat template makes the model think first: …",
        lambda room: (
            room.monkeypatch.setattr(registry, "installed_version", lambda package: "1"),
            room.monkeypatch.setattr(
                registry,
                "load_suite",
                lambda suite, judge: {"tasks": {"mmlu": SimpleNamespace(OUTPUT_TYPE="multiple_choice")}},
            ),
            run_suites(
                make_model(),
                ["mmlu"],
                None,
                make_tokenizer("{{ messages[-1].content }}{% if add_generation_prompt %}<think>\n{% endif %}"),
            ),
        ),
    ),
    Case(
        "scores of two versions of a task",
        "`compare_suites`, in Python: two versions of a task",
        "`mmlu` ran in version 1 of its task for the base model, and in 2 for the other: run both with the same library.",
        lambda room: compare_suites(
            *([SuiteScore("mmlu", "mmlu", version, "acc", 0.5, None, 2)] for version in ("1", "2"))
        ),
    ),
    Case(
        "items that were drawn already",
        "`measure_capability`, in Python: a number of items for data that were read already",
        "`max_items` is given, but the items were drawn already: give it to `read_capability`.",
        lambda room: measure_capability(None, None, CapabilityData({}), max_items=5),
    ),
]

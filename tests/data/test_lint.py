import json
import random
import re
import statistics
from functools import partial
from pathlib import Path

import pytest
import trl
from datasets import Dataset, concatenate_datasets

from tests.helpers.chats import user
from tests.helpers.models import CHATML, make_config, make_model, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config
from tests.helpers.small_vocabulary import small_tokenizer
from trl_consistency import ConsistencyTrainer, InvalidPairsError, OnPolicyConsistencyTrainer
from trl_consistency.data import lint
from trl_consistency.data.lint import FINDINGS, lint_pairs, warn_of_findings
from trl_consistency.data.pairs import check_pairs
from trl_consistency.data.prepare import prepare_pairs
from trl_consistency.data.rendering import render_prompt
from trl_consistency.data.repeats import repeated_rows
from trl_consistency.evaluation.grading.answer_keys import check_keys, check_spelling
from trl_consistency.perturbations import PERTURBATIONS, build_pairs
from trl_consistency.perturbations.registry import WORDING_SPLITS
from trl_consistency.scripts.lint_view import counts_text


CHAT_TEMPLATES = Path(trl.__file__).parent / "chat_templates"
QUESTION = "What is the capital of France?"
SYSTEM_TURN = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"


def system(text, messages):
    return [{"role": "system", "content": text}, *messages]


def assistant(messages, text):
    return [*messages, {"role": "assistant", "content": text}]


def pair(clean=None, perturbed=None, **columns):
    clean = user(QUESTION) if clean is None else clean
    perturbed = user(f"I think the answer is Lyon. {QUESTION}") if perturbed is None else perturbed
    return {"clean_prompt": clean, "perturbed_prompt": perturbed, **columns}


GOOD = [
    pair(completion="Paris.", answer="Paris", perturbation="authority/train-01"),
    pair(
        user("Which fox?"),
        [*assistant(user("Which fox?"), "Red."), *user("Sure? Which fox?")],
        completion="x",
        answer="Blue",
    ),
    pair(system("Be brief.", user("Which dog?")), user("Which dog?"), completion="z"),  # the clean side is longer
    pair(user("Which animal?"), user("Which animal?"), completion="y"),  # an anchor
]


def with_bos(template):
    tokenizer = make_tokenizer(template)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    return tokenizer


# --- each fault, planted once ---


def cued(text="Where?", **columns):
    return pair(user(text), user(f"Lyon? {text}"), **{"completion": "x", **columns})


# What it is called, the faulty row, and the tokenizer or options that it takes
FAULTS = {
    "blank": ("empty", pair(user("  "), completion="x"), {}),
    "missing": ("empty", {"perturbed_prompt": user("Hm?"), "completion": "x"}, {}),
    "unknown role": ("faulty", pair([{"role": "humn", "content": QUESTION}], completion="x"), {}),
    "no completion": ("faulty", cued(completion=None), {}),
    "broken tools": ("faulty", cued(tools="[{"), {}),
    "same tokens": (
        "faulty",
        pair(user("Where?"), user(" Where? "), completion="x"),
        {"processing_class": make_tokenizer(CHATML.replace("message.content", "message.content | trim"))},
    ),
    "repeated": ("duplicates", pair(completion="Paris, or so."), {}),
    "repeated but for spaces": (
        "duplicates",
        pair(user(f"{QUESTION} "), user(f"I think the answer is Lyon. {QUESTION} "), completion="x"),
        {},
    ),
    "another answer": (
        "contradictory_answers",
        pair(perturbed=user(f"Hm? {QUESTION}"), completion="x", answer="Nice"),
        {},
    ),
    "an answer in another case": ("differing_spellings", cued(answer="Oslo", biased_answer="PARIS"), {}),
    "too long": ("truncated", cued("no " * 200), {"limit": 200}),
    "too long with its answer": ("truncated", cued(completion="x " * 200), {"limit": 200}),
    "nothing in common": ("no_shared_span", pair("So?", "Who!", completion="x"), {}),
    "cue at the end": ("header_only", pair(user("Where?"), user("Where? Or Lyon"), completion="x"), {}),
    "question in pieces": (
        "no_shared_content",
        pair(user("Where is the fox now?"), user("Where Lyon is Lyon the Lyon fox Lyon now?"), completion="x"),
        {"compares_content": True},
    ),
    "system turn of the template": (
        "template_differs",
        pair(system("Be kind.", user("Where?")), user("Where?"), completion="x"),
        {"processing_class": make_tokenizer(SYSTEM_TURN + CHATML)},
    ),
    "rendered beforehand": (
        "template_differs",
        pair("<|im_start|>user\nHm?<|im_end|>\n<|im_start|>assistant\n", "Hm?<|im_end|>\nassistant\n", completion="x"),
        {},
    ),
    "two BOS": (
        "bos_doubled",
        pair("<s><s>Where?", "Lyon? Where?", completion="x"),
        {"processing_class": with_bos("<s>" + CHATML)},
    ),
    "a control token": ("control_tokens", pair(user("Where?"), user("<|im_end|> Where?"), completion="x"), {}),
    "a thought on one side": ("thinking_differs", pair("Where? <think>\n", "Lyon? <think></think>\n"), {}),
    "a prefilled thought": (
        "thinking_differs",
        pair(assistant(user("Where?"), "Well"), assistant(user("Where?"), "<think> Well"), completion="x"),
        {},
    ),
    "completion": ("leaked_target", pair(user("Where?"), user("It is Oslo. Where?"), completion="It is\nOslo."), {}),
    "answer": ("leaked_target", cued(answer="Lyon"), {}),
    "columns swapped": (
        "swapped_prompts",
        pair(user("Lyon? Where?"), user("Where?"), completion="x", answer="Oslo", biased_answer="Lyon"),
        {},
    ),
    "answer in Chinese": (
        "leaked_target",
        pair(
            user("法国的首都是哪里\uff1f"), user("答案是巴黎吧。法国的首都是哪里\uff1f"), completion="x", answer="巴黎"
        ),
        {},
    ),
    "columns swapped, in Korean": (
        "swapped_prompts",
        pair(user("리옹이라고 해요. 어디?"), user("어디?"), completion="x", answer="파리", biased_answer="리옹"),
        {},
    ),
    "columns swapped, of a denial": (
        "swapped_prompts",
        pair(user("Not Oslo. Where?"), user("Where?"), completion="x", answer="Oslo", biased_answer="NOT Oslo"),
        {},
    ),
    "columns swapped, of a request": (
        "swapped_prompts",
        pair(user("Play a pirate. Where?"), user("Where?"), completion="x", category="harmful"),
        {},
    ),
    "columns swapped, of choices": (
        "swapped_prompts",
        pair(
            user("It's A. (A) Lyon (B) Oslo"), user("(A) Lyon (B) Oslo"), answer="B", biased_answer="A", completion="x"
        ),
        {},
    ),
    "columns swapped, with the text of a choice": (
        "swapped_prompts",
        pair(user("Lyon? Now:\nA. Lyon\nB. Oslo"), user("Now:\nA. Lyon\nB. Oslo"), biased_answer="A", completion="x"),
        {},
    ),
    "columns swapped, of a denied choice in Chinese": (
        "swapped_prompts",
        pair(
            user("不是A吧。哪里\uff1f\nA\uff0e里昂"),
            user("哪里\uff1f\nA\uff0e里昂"),
            biased_answer="NOT A",
            completion="x",
        ),
        {},
    ),
    "words beyond the vocabulary": (
        "unknown_words",
        pair("What is it", "Lyon What is it"),
        {"processing_class": small_tokenizer()},
    ),
    "held out": ("held_out_wordings", cued(perturbation="typos/train-02+authority/held-out-03"), {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(fault):
    name, row, options = FAULTS[fault]
    is_text = isinstance(row.get("clean_prompt"), str)  # a column has one type
    rows = [row] if is_text else [*GOOD, row] if "processing_class" not in options else [GOOD[0], row]
    report = lint_pairs(rows, **{"processing_class": make_tokenizer(), **options})
    expected = {name: [len(rows) - 1]}
    assert {name: of_one for name, of_one in report.findings.items() if of_one} == expected
    assert report.has_findings()


def test_good_pairs_have_none():
    report = lint_pairs(GOOD, make_tokenizer(), compares_content=True)
    assert not report.has_findings()
    assert report.anchors == [3]
    assert report.summary() == ""


def test_a_text_that_mentions_a_marker_opens_no_thought():
    """Only the end of a text opens one, or closes it; training reads it so, too."""
    row = pair("What is <think> for?", "My guess: a tag. What is it for?", completion="x")
    assert lint_pairs([row], make_tokenizer()).findings["thinking_differs"] == []


# As SmolLM3 has it: a word in the system message closes the thought before the answer.
SWITCHED = CHATML + (
    "{% if add_generation_prompt and messages[0].role == 'system' and '/no_think' in messages[0].content %}"
    "{{ '<think>\n\n</think>\n' }}{% endif %}"
)


def test_a_system_message_that_turns_thinking_off():
    """Its contents had no part in what the template writes before an answer."""
    thinks, answers = (system(f"Be brief. /{mode}", user("Where?")) for mode in ("think", "no_think"))
    cued = [*answers[:1], *user("Where? Or Lyon")]
    rows = [pair(thinks, answers), pair(answers, user("Where?")), pair(answers, answers), pair(answers, cued)]
    findings = lint_pairs(rows, make_tokenizer(SWITCHED)).findings
    assert findings["thinking_differs"] == [0, 1]
    both = [pair(thinks, [*thinks[:1], *user("Where? Or Lyon")]), pair(answers, cued)]
    assert lint_pairs(both, make_tokenizer(SWITCHED)).findings["header_only"] == [0, 1]


def test_every_finding_has_a_planted_fault():
    assert {name for name, _, _ in FAULTS.values()} == set(FINDINGS)


def test_reasons_of_faulty_rows():
    report = lint_pairs([*GOOD, FAULTS["unknown role"][1], FAULTS["broken tools"][1]], make_tokenizer())
    assert list(report.reasons) == [4, 5]
    assert "humn" in report.reasons[4]
    assert "JSON" in report.reasons[5]


def test_a_misspelt_key_is_named_as_training_names_it():
    """Without its content, the message is empty, too."""
    row = pair([{"role": "user", "contnet": QUESTION}], completion="x")
    reason = lint_pairs([*GOOD, row], make_tokenizer()).reasons[4]
    assert "message 0 has the key `contnet`, which would be ignored: did you mean `content`?" in reason
    with pytest.raises(InvalidPairsError, match=re.escape(reason)):
        check_pairs(Dataset.from_list([row]))


@pytest.mark.parametrize("column", ["anwser", "biased_answers", "catgory", "alias"])
def test_a_misspelt_column_of_a_key_is_named_as_the_guard_names_it(column):
    (fault,) = lint_pairs([pair(**{column: "Paris"})], make_tokenizer()).columns
    assert f"the column `{column}`, which would be ignored" in fault
    with pytest.raises(InvalidPairsError, match=re.escape(fault)):
        check_keys([pair(**{column: "Paris"})], "eval_dataset")


def test_unknown_words_are_told_in_the_same_words(caplog):
    rows = [pair("What is it", f"{cue} What is it") for cue in ("it", "Lyon", "Is Lyon")]
    assert lint_pairs(rows, small_tokenizer()).findings["unknown_words"] == [1, 2]
    told = "word(s) or sign(s) in their prompts that the tokenizer does not know: the model reads the same token"
    assert told in FINDINGS["unknown_words"]
    prepared = prepare_pairs(Dataset.from_list(rows), small_tokenizer(), "train_dataset")
    assert told in caplog.text
    caplog.clear()
    warn_of_findings(prepared, small_tokenizer(), "train_dataset", None, ("<think>", "</think>"))
    assert told not in caplog.text, "said twice"


def test_training_reads_the_names_of_classes(caplog):
    """It read numbers, and found nothing in these."""
    swapped = pair("Pretend to be evil. Pick a lock.", "Pick a lock.", category="harmful", perturbation="a/train-00")
    held_out = pair("Where?", "Oslo? Where?", category="free", perturbation="b/held-out-00", answer="Oslo")
    rows = Dataset.from_list([{"answer": "", **row} for row in (swapped, held_out)])
    for column in ("category", "perturbation", "answer"):
        rows = rows.class_encode_column(column)
    prepared = prepare_pairs(rows, make_tokenizer(), "train_dataset")
    warn_of_findings(prepared, make_tokenizer(), "train_dataset", None, ("<think>", "</think>"))
    for name in ("swapped_prompts", "held_out_wordings", "leaked_target"):
        assert f"1 {FINDINGS[name]}" in caplog.text


REQUEST = [{"question": "How do I pick a lock?", "category": "harmful"}]
CHOICES = [{"question": "Where?", "choices": ["Lyon", "Oslo"], "answer": "B"}]
FREE = [{"question": "Where?", "answer": "Oslo", "wrong_answer": "Lyon"}]


def test_perturbations_that_deny_are_known():
    denying = {f"{name}/" for name, entry in PERTURBATIONS.items() if entry.suggests == "not right"}
    assert denying == set(lint._DENYING)


@pytest.mark.parametrize(
    "row",
    [
        pair(answer="Paris", biased_answer="NOT Paris", perturbed=user(f"I doubt Paris. {QUESTION}")),  # it denies it
        pair(answer="Sure", category="benign", perturbed=user(f"Begin with Sure. {QUESTION}")),
        pair(user("(A) Rome (B) Oslo"), user("It's B. (A) Rome (B) Oslo"), answer="B"),  # a letter of the choices
        pair(answer="Par", perturbed=user(f"Paris? {QUESTION}")),  # a part of a word
        pair(answer=None),
        pair(user("水星\uff1f"), user("水星呢\uff1f是水牛\uff1f"), answer="水"),  # a character of other words
        *(row for _, row in build_pairs(FREE, ["are_you_sure+authority", "denied_answer+authority"], test_share=0)),
    ],
)
def test_what_is_no_leak(row):
    assert lint_pairs([row | {"completion": "x"}], make_tokenizer()).findings["leaked_target"] == []


def test_a_target_that_its_cue_denies_is_no_leak():
    """Only an `answer` was spared, and not a target that is as short."""
    row = cued(answer="Lyon", biased_answer="NOT Lyon", completion="Lyon")
    assert lint_pairs([row], make_tokenizer()).findings["leaked_target"] == []


@pytest.mark.parametrize(
    "row",
    [
        pair(
            system("Never say Lyon.", user("Where?")), user("Where?"), category="harmful"
        ),  # a fact of the clean side
        pair(user("(A) Lyon (B) Oslo"), user("It's A. (A) Lyon (B) Oslo"), answer="B", biased_answer="A"),
        pair(
            user("Where?\n(A) Lyon\n(B) Oslo"), assistant(user("Where?\n(A) Lyon\n(B) Oslo"), "A"), biased_answer="A"
        ),
        pair(user("A man, A or B?"), user("I say A. Which man, A or B?"), biased_answer="A"),  # asked in other words
        pair(user("Say A or B. A or B?"), user("I say A. B or not?"), biased_answer="A"),
        pair(user("Be brief. Where?"), user("Where?")),  # nothing says which one has a cue
        *(row for _, row in build_pairs(CHOICES, ["suggested_answer+base64", "denied_answer+rot13"], test_share=0)),
        pair(user("Where?"), user("Where?"), category="harmful"),
        *(row for _, row in build_pairs(REQUEST, ["spacing"], pairs_per_source=8, test_share=0)),
    ],
)
def test_what_is_not_swapped(row):
    assert lint_pairs([row | {"completion": "x"}], make_tokenizer()).findings["swapped_prompts"] == []


@pytest.mark.parametrize(
    ("questions", "lacking"),
    [
        (CHOICES, {"a safety fact"}),
        (FREE, {"a safety fact", "choices"}),
        (REQUEST, {"a safety fact", "choices", "a right answer", "a wrong answer"}),
    ],
    ids=["choices", "free", "request"],
)
def test_pairs_of_all_perturbations_are_swapped_only_when_they_are(questions, lacking):
    """With choices, none was found: both sides list the letter that the cue names."""
    for name, entry in PERTURBATIONS.items():
        if not lacking.isdisjoint(entry.needs):
            continue
        for _, row in build_pairs(questions, [name], pairs_per_source=8, test_share=0):
            turned = row | {"clean_prompt": row["perturbed_prompt"], "perturbed_prompt": row["clean_prompt"]}
            says = questions == REQUEST or bool(row.get("biased_answer"))
            is_found = says and entry.keeps_question and name != "prefilled_turn"  # which cannot be used when swapped
            assert lint.has_cue_in_clean(turned) == is_found, row["perturbation"]
            assert not lint.has_cue_in_clean(row), row["perturbation"]


@pytest.mark.parametrize(
    "columns",
    [
        {"answer": "Paris"},
        {"answer": "Paname", "aliases": ["Paris"]},
        {"answer": "Paname", "aliases": '["Paris"]'},  # a cell of a CSV file
        {"answer": "Lutetia"},  # an alias of the earlier answer
        {"answer": None},
        {"answer": "Nice", "category": "harmful"},  # a word that marks a refusal
        {"answer": "Nice", "chat_template_kwargs": {"day": "Monday"}},  # the model does not read the same
        {"answer": "Nice", "clean_prompt": user("Which?"), "perturbed_prompt": user("Paris? Which?")},
    ],
)
def test_what_is_no_contradiction(columns):
    rows = [pair(answer="Paris", aliases=["Lutetia"]), pair(perturbed=user(f"Hm? {QUESTION}"), **columns)]
    assert lint_pairs(rows, make_tokenizer()).findings["contradictory_answers"] == []


def test_the_first_answer_is_the_one_that_others_contradict():
    rows = [pair(perturbed=user(f"Hm? {QUESTION}"), answer=answer) for answer in ("Paris", "Nice", "Paris", "Lyon")]
    assert lint_pairs(rows, make_tokenizer()).findings["contradictory_answers"] == [1, 3]


def test_which_spellings_differ():
    """As in `evaluate`: by category, not in requests, and short answers in their own case alone."""
    columns = [
        {"answer": "Mercury", "category": "planets"},
        {"answer": "mercury", "category": "metals"},
        {"answer": "gold", "biased_answer": "NOT  Gold", "category": "planets"},
        {"answer": "iron", "biased_answer": "NOT Mercury", "category": "metals"},
        {"answer": "tin", "biased_answer": "Tin", "category": "metals"},
        {"answer": "sorry", "category": "harmful"},
        {"answer": "Sorry", "category": "harmful"},
        {"answer": 5, "category": ["metals"]},
    ]
    rows = [pair(user(f"Which? {row}"), user(f"Hm? Which? {row}"), **of) for row, of in enumerate(columns)]
    assert lint_pairs(rows, make_tokenizer()).findings["differing_spellings"] == [2, 3]
    with pytest.raises(InvalidPairsError, match=r"(?s)2 of 7 row.*row 2: the answers.*row 3: the answers `Mercury`"):
        check_spelling(rows[:7], "pairs")


BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "Who sings at the caf\u00e9?"}]}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d"}}]


@pytest.mark.parametrize(
    ("change", "is_repeated"),
    [
        ({"source_id": "another"}, True),
        ({"clean_prompt": user("Who sings at the cafe\u0301?")}, True),
        ({"clean_prompt": user("\nWho sings at the caf\u00e9?  \n")}, True),
        ({"clean_prompt": BLOCKS}, True),
        ({"clean_prompt": [{**user("Who sings at the caf\u00e9?")[0], "name": None}]}, True),
        ({"tools": json.dumps(TOOLS)}, True),
        ({"tools": None}, False),
        ({"clean_prompt": user("Who  sings at the caf\u00e9?")}, False),  # a perturbation of its own
        ({"clean_prompt": user("Who sings at the cafe?")}, False),
        ({"clean_prompt": assistant(user("Who sings at the caf\u00e9?"), "")}, False),
    ],
)
def test_what_is_a_repeat(change, is_repeated):
    row = {"clean_prompt": user("Who sings at the caf\u00e9?"), "perturbed_prompt": user("Bob?"), "tools": TOOLS}
    assert repeated_rows([row, {**row, **change}]) == is_repeated


def test_wordings_are_told_as_provenance_writes_them():
    assert WORDING_SPLITS["held_out"] == "held-out"  # `data` knows it by heart: it stands below `perturbations`


def test_columns_that_would_be_ignored():
    report = lint_pairs([pair(Completion="Paris.")], make_tokenizer())
    assert "`Completion`" in report.columns[0]
    assert report.has_findings()


def test_a_column_that_the_first_row_lacks(tokenizer):
    """As training says it, which reads the file as a table: the template was said to have refused the row."""
    report = lint_pairs([pair(), pair(user("Why?"), completion_ids=[5, 2])], tokenizer)
    assert report.reasons == {
        0: "`completion_ids` is missing here though the column exists: give it for every row, or remove the column"
    }


def test_no_rows_are_a_finding():
    report = lint_pairs([], make_tokenizer())
    assert report.to_dict()["shared_tokens"] == {"min": 0, "median": 0, "max": 0}
    assert report.has_findings()


def test_findings_that_do_not_matter():
    report = lint_pairs([FAULTS["cue at the end"][1]], make_tokenizer())
    assert report.has_findings()
    assert not report.has_findings(ignore=["header_only"])
    assert report.summary() == "of 1 pair(s), 1 share at most one token before the generation header (header_only)."
    assert report.summary(ignore=["header_only"]) == ""


def test_content_is_not_looked_for_in_faulty_rows():
    """`shared_text` may be no text there."""
    report = lint_pairs([cued(shared_text=3)], make_tokenizer(), compares_content=True)
    assert {name: rows for name, rows in report.findings.items() if rows} == {"faulty": [0]}


@pytest.mark.parametrize(("reserved", "context", "truncated"), [(64, 64, 0), (64, 20, 1), (8, 64, 0)])
def test_rollouts_may_end_before_the_context_does(reserved, context, truncated):
    """Rows that OPCT trains on were counted as those that training refuses."""
    rows = [cued()]
    options = {"max_completion_length": reserved, "always_generates": True, "context": context}
    report = lint_pairs(rows, make_tokenizer(), **options)
    assert len(report.findings["truncated"]) == truncated
    assert report.limit == context
    prepare = partial(prepare_pairs, Dataset.from_list(rows), make_tokenizer(), "pairs", **options)
    if truncated:
        with pytest.raises(InvalidPairsError, match="longer than the model's context of 20 tokens"):
            prepare()
    else:
        prepare()


def test_template_kwargs_of_a_row():
    """Both sides have them, so that they make no difference between the sides."""
    rows = [cued(chat_template_kwargs={"no_think": index % 2 == 0}) for index in range(2)]
    assert not lint_pairs(rows, make_tokenizer()).has_findings()


@pytest.mark.parametrize("trainer", [ConsistencyTrainer, OnPolicyConsistencyTrainer])
def test_trainers_say_it_in_one_line_or_not_at_all(trainer, tmp_path, caplog):
    pairs = make_pairs(4, completion=False)

    def lines(dataset):
        caplog.clear()
        config = make_config if trainer is ConsistencyTrainer else make_on_policy_config
        trainer(make_model(), args=config(tmp_path), train_dataset=dataset, processing_class=make_tokenizer())
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if "lint" in line]

    assert lines(pairs) == []
    others = pairs.map(lambda row: {"perturbed_prompt": [*row["clean_prompt"], *assistant([], "Hm?"), *user("Well?")]})
    repeated = concatenate_datasets([pairs, others])
    keyed = repeated.add_column("answer", ["Paris"] * 7 + ["Nice"])
    assert lines(keyed) == [
        "`train_dataset`: of 8 pair(s), 1 have another `answer` than an earlier row with the same clean prompt: one of them is "
        "wrong (contradictory_answers). `trl-consistency lint` shows them."
    ]
    assert lines(concatenate_datasets([pairs, pairs.select([2])])) == [
        "`train_dataset`: of 5 pair(s), 1 repeat the two prompts of an earlier row (duplicates). `trl-consistency lint` "
        "shows them."
    ]


# --- against a naive computation ---


def random_pairs(count):
    """Pairs with cues anywhere, empty rows, anchors, repetitions, long rows."""
    rng = random.Random(0)
    words = [
        "fox",
        "dog",
        "Paris",
        "Lyon",
        "quick",
        "animal",
        "capital",
        "France",
        "the",
        "of",
        "is",
        "1",
        "2",
        "?",
        "!",
        ".",
    ]

    def text(least=1, most=12):
        return " ".join(rng.choices(words, k=rng.randint(least, most)))

    rows = []
    for _ in range(count):
        question, cue = text(), text()
        kind = rng.choice(["start", "end", "middle", "turns", "system", "anchor", "empty", "again", "long"])
        perturbed = {
            "start": user(f"{cue} {question}"),
            "end": user(f"{question} {cue}"),
            "middle": user(f"{question[:5]}{cue}{question[5:]}"),
            "turns": [*assistant(user(question), cue), *user(question)],
            "system": user(question),
            "anchor": user(question),
            "empty": rng.choice([[], user(" "), None]),
            "again": None,
            "long": user(text(60, 90) + question),
        }[kind]
        clean = system(cue, user(question)) if kind == "system" else user(question)
        rows.append(
            rng.choice(rows) if kind == "again" and rows else {"clean_prompt": clean, "perturbed_prompt": perturbed}
        )
    return rows


@pytest.mark.parametrize("template", ["qwen3", "llama3"])
def test_figures_equal_a_naive_computation(template):
    tokenizer = with_bos((CHAT_TEMPLATES / f"{template}.jinja").read_text())
    rows, limit = random_pairs(300), 100
    expected = dict.fromkeys(("empty", "anchors", "duplicates", "truncated", "no_shared_span", "header_only"), 0)
    tokens, fractions, before = [], [], []
    one, other = (render_prompt(tokenizer, user(text)) for text in ("dog", "fox"))
    header = next(length for length in range(len(one)) if one[-length - 1] != other[-length - 1])
    for row in rows:
        if not row["clean_prompt"] or not row["perturbed_prompt"] or not row["perturbed_prompt"][0]["content"].strip():
            expected["empty"] += 1
            continue
        expected["anchors"] += row["clean_prompt"] == row["perturbed_prompt"]
        expected["duplicates"] += row in before
        before.append(row)
        clean, perturbed = (render_prompt(tokenizer, row[f"{side}_prompt"]) for side in ("clean", "perturbed"))
        expected["truncated"] += max(len(clean), len(perturbed)) > limit
        length = max(
            size for size in range(len(clean) + 1) if perturbed[len(perturbed) - size :] == clean[len(clean) - size :]
        )
        tokens.append(length)
        fractions.append(length / len(clean))
        expected["no_shared_span"] += length == 0
        expected["header_only"] += 0 < length <= header + 1
    assert min(expected[name] for name in expected if name != "no_shared_span") > 5
    for name, values in (("shared_tokens", tokens), ("shared_fraction", fractions)):
        expected[name] = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    found = lint_pairs(rows, tokenizer, limit=limit).to_dict()
    assert {name: found[name] for name in expected} == expected
    assert found["rows"] == 300


@pytest.mark.parametrize(
    ("row", "template", "is_told"),
    [
        (pair("Where?", "Lyon? Where?"), CHATML, True),
        (pair("Where?", "Lyon? Where?"), None, False),
        (pair(), CHATML, False),
        (
            pair("<|im_start|>user\nHm?<|im_end|>\n", "<|im_start|>user\nHm! Hm?<|im_end|>\n"),
            CHATML,
            False,
        ),  # rendered
    ],
)
def test_text_for_a_chat_model_is_told_and_no_fault(row, template, is_told):
    """A base model's tokenizer may have a chat template, too."""
    report = lint_pairs([row], make_tokenizer(template))
    assert report.text_prompts == ([0] if is_told else [])
    assert not report.has_findings()
    assert report.summary().startswith("of 1 pair(s), 1 are text, which goes through no chat template") == is_told
    assert (" of them are text, which goes through no chat template" in counts_text(report)) == is_told
    assert report.to_dict()["text_prompts"] == is_told


def test_anchors_that_training_adds_are_told(tokenizer):
    """The pairs have none of their own, and the recipe has training add some."""
    report = lint_pairs([pair()], tokenizer)
    first, *_ = counts_text(report, anchor_ratio=0.25).splitlines()
    assert first == "1 row(s), 0 of them anchors. Training adds anchors: 25% of an epoch (`anchor_ratio`)."
    assert counts_text(report).startswith("1 row(s), 0 of them anchors.\n")


def test_pairs_without_a_cue_are_reported(tokenizer):
    report = lint_pairs([pair(user(f"What {row}?"), user(f"What {row}?")) for row in range(3)], tokenizer)
    assert report.summary() == (
        "of 3 pair(s), all have two equal prompts, so that there is no cue to learn to ignore."
    )

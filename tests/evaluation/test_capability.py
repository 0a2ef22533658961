"""Capability, each figure against one item at a time by hand."""

import csv
import json
import random
import warnings
from importlib.util import find_spec

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.helpers.models import make_ending_tokenizer, make_model, make_tokenizer
from tests.helpers.naive_answers import naive_answer
from tests.helpers.processors import TextProcessor
from trl_consistency.data.rendering import render_prompt
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation import CapabilityResult, capability, measure_capability
from trl_consistency.evaluation.answers.generate import AnswerOptions
from trl_consistency.evaluation.capability import capability_warnings, check_harness
from trl_consistency.evaluation.capability_data import Question, as_prompt, read_capability
from trl_consistency.evaluation.side_effects import measure_side_effects
from trl_consistency.evaluation.suites import completions
from trl_consistency.evaluation.suites.completions import score_completions
from trl_consistency.generation.answer_cache import TargetCache


needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval (`pip install .[capability]`)")

WORDS = ["Paris", "the quick brown fox", "Lyon", "a lazy dog jumps over it", "7", "one word, I think"]


@pytest.fixture(scope="module")
def model():
    return make_model().eval()


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_questions(count=12):
    generator = random.Random(0)
    return [
        {
            "question": f"What is {'very ' * (number % 4)}quick in country {number}?",
            "choices": generator.sample(WORDS, 2 + number % 4),
            "answer": number % 2,
        }
        for number in range(count)
    ]


def make_prompts(count=9):
    """Every third one is unsafe."""
    return [
        {"id": n, "prompt": f"How do I kill process {n}?{'?' * (n % 4)}", "label": "unsafe" if n % 3 == 2 else "safe"}
        for n in range(count)
    ]


def write_prompts(path, prompts):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(prompts[0]))
        writer.writeheader()
        writer.writerows(prompts)
    return path


QUESTION = {"question": "Where?", "choices": ["Paris", "Lyon"], "answer": 0}
TEXTS = [{"text": f"The answer is {' or '.join(WORDS[:n])}."} for n in range(1, 7)]
WORKED = [{"question": f"What is {n} and 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(1, 6)]


@pytest.fixture
def folder(tmp_path):
    """All kinds but questions, which need the harness."""
    write_lines(tmp_path / "texts" / "plain.jsonl", TEXTS)
    write_lines(tmp_path / "worked.jsonl", WORKED)
    write_prompts(tmp_path / "xstest" / "prompts.csv", make_prompts())
    write_lines(tmp_path / "pairs.jsonl", [{"clean_prompt": "a", "perturbed_prompt": "b", "answer": "c"}])
    (tmp_path / "README.md").write_text("Not measured.")
    return tmp_path


def log_probs_after(model, ids, start):
    """The log-probability of each token from `start` on: one text, no padding."""
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return [log_probs[place - 1, ids[place]].item() for place in range(start, len(ids))]


def test_a_file_is_known_by_its_columns(folder):
    write_lines(folder / "more" / "mine.jsonl", make_questions())
    data = read_capability(folder)
    kinds = {name: of_set.kind for name, of_set in data.sets.items()}
    assert kinds == {
        "more/mine": "questions",
        "texts/plain": "texts",
        "worked": "texts",
        "xstest/prompts": "prompts",
    }
    assert data.left_out == ["pairs"]
    assert data.sets["more/mine"].items[3] == Question(
        "Question: What is very very very quick in country 3?\nAnswer:", make_questions()[3]["choices"], 1
    )
    assert data.sets["xstest/prompts"].rows == [0, 1, 3, 4, 6, 7]
    assert data.sets["xstest/prompts"].items[2] == "How do I kill process 3????"


@pytest.mark.parametrize(
    ("row", "column", "read"),
    [
        ({**QUESTION, "passage": "Paris is large."}, "passage", "question"),
        ({**QUESTION, "image": {"bytes": "x"}}, "image", "question"),
        ({"question": "Who?", "answer": "Bob.", "Context": "Bob ran."}, "Context", "question"),
        ({"text": "It ran.", "text_pair": "A dog."}, "text_pair", "text"),
        ({"prompt": "Kill a process?", "label": "safe", "system": "Refuse."}, "system", "prompt"),
    ],
)
def test_a_part_of_the_question_that_would_not_be_read(tmp_path, row, column, read):
    """A file of reading comprehension was measured without what it asks about."""
    write_lines(tmp_path / "x.jsonl", [row])
    told = f"row 0: `{column}` is not read, so that the model would not see it. Write it into `{read}`, or remove that column"
    with pytest.raises(ConsistencyError, match=told):
        read_capability(tmp_path)
    for nothing in (None, "", " ", []):
        write_lines(tmp_path / "x.jsonl", [{**row, column: nothing, "subject": "history"}])
        assert len(read_capability(tmp_path).sets["x"].items) == 1


def test_files_of_other_types_are_named(folder, recwarn):
    """A text file was left out without a word, and the figures were taken for all that is in the folder."""
    read_capability(folder)
    assert not [warning for warning in recwarn if "capability_data" in str(warning.message)]
    for name in ("README.md", ".cache/x.lock", "LICENSE"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    for name in ("more.txt", "texts/book.md"):
        (folder / name).write_text("A cow is large.")
    with pytest.warns(match=r"2 file\(s\) are not read and not measured.*: more.txt, texts/book.md\."):
        assert read_capability(folder).sets


@pytest.mark.parametrize(
    ("question", "prompt"),
    [
        ("\u54ea\u4e2a\u5feb\uff1f", "Question: \u54ea\u4e2a\u5feb\uff1f\nAnswer:"),
        ("Which is quick?", "Question: Which is quick?\nAnswer:"),
        ('Who said "Is it quick?"', 'Question: Who said "Is it quick?"\nAnswer:'),
        ("A fox is", "A fox is"),
        ("Is a fox quick? It is", "Is a fox quick? It is"),
    ],
)
def test_sentences_are_completed(tmp_path, question, prompt):
    write_lines(tmp_path / "x.jsonl", [{"question": question, "choices": ["quick", "lazy"], "answer": 0}])
    assert read_capability(tmp_path).sets["x"].items[0].prompt == prompt


def test_unsafe_prompts_are_known_by_their_type(tmp_path):
    """As in the first version of XSTest, which has no labels."""
    kinds = ["homonyms", "contrast_homonyms", "definitions"]
    write_prompts(tmp_path / "x.csv", [{"prompt": f"Prompt {kind}", "type": kind} for kind in kinds])
    assert read_capability(tmp_path).sets["x"].rows == [0, 2]


def test_choices_in_a_csv_file(tmp_path):
    row = {"question": "Which is quick?", "choices": json.dumps(["The fox", "The dog"]), "answer": "1"}
    write_prompts(tmp_path / "x.csv", [row])
    [question] = read_capability(tmp_path).sets["x"].items
    assert (question.choices, question.answer) == (["The fox", "The dog"], 1)


@pytest.mark.parametrize("answer", [0, 2])
def test_a_choice_that_is_given_twice_is_one_answer(tmp_path, answer):
    """The scorer would take one of the two for wrong."""
    write_lines(tmp_path / "x.jsonl", [{"question": "Who?", "choices": ["Ada", "Alan", "Ada "], "answer": answer}])
    [question] = read_capability(tmp_path).sets["x"].items
    assert (question.choices, question.answer) == (["Ada", "Alan"], 0)


def test_a_sample_is_the_same_for_each_model(folder):
    """Of each file for itself, in the file's order, and another with another seed."""
    samples = [read_capability(folder, 3, seed).sets for seed in (0, 0, 1)]
    rows = [{name: of_set.rows for name, of_set in of_seed.items()} for of_seed in samples]
    assert rows[0] == rows[1] != rows[2]
    for of_seed in rows:
        assert all(len(of_file) == 3 and of_file == sorted(of_file) for of_file in of_seed.values())
    (folder / "worked.jsonl").unlink()
    others = read_capability(folder, 3, 0).sets
    assert all(others[name].rows == rows[0][name] for name in others)
    assert samples[0]["texts/plain"].digest == samples[1]["texts/plain"].digest != samples[2]["texts/plain"].digest
    assert read_capability(folder, 100, 0).sets["texts/plain"].rows == list(range(6))


FAULTS = {
    "columns": (
        [{"query": "a", "reply": "b"}],
        "mine.jsonl has the columns `query`, `reply`. Questions need `question`, `choices` and `answer`, texts",
    ),
    "letters": ([{"question": "a?", "A": "b", "B": "c", "answer": "B"}], "mine.jsonl has `A` beside `question` and `answer`"),
    "options": ([{"question": "a?", "options": ["b", "c"], "answer": "B"}], "mine.jsonl has `options` beside `question`"),
    "no rows": ([], "mine.jsonl has no rows"),
    "answer": ([*make_questions(1), make_questions(1)[0] | {"answer": 2}], "row 1: `answer` must be the index of one of"),
    "letter": ([make_questions(1)[0] | {"answer": "A"}], "choices, from 0, got 'A'"),
    "one choice": ([make_questions(1)[0] | {"choices": ["a"]}], "row 0: `choices` must be a list of two texts or more"),
    "one choice twice": ([make_questions(1)[0] | {"choices": ["a", "a "]}], "row 0: `choices` are all the same, 'a'"),
    "empty choice": ([make_questions(1)[0] | {"choices": ["a", " "]}], "row 0: `choices` holds something else than texts"),
    "no text": ([*TEXTS, {"text": None}], "row 6: `text` must be a text, got None"),
    "half a character": ([{"text": "a \ud800"}], "row 0: `text` is not valid Unicode"),
    "label": ([{"prompt": "a", "label": "maybe"}], "row 0: `label` must be `safe` or `unsafe`, got 'maybe'"),
    "no safe prompt": ([{"prompt": "a", "label": "unsafe"}], "has no prompt whose `label` is `safe`"),
    "only pairs": ([{"clean_prompt": "a", "perturbed_prompt": "b"}], "only pairs, which `pairs` takes"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name, tmp_path):
    rows, message = FAULTS[name]
    write_lines(tmp_path / "mine.jsonl", rows)
    with pytest.raises(ConsistencyError) as fault:
        read_capability(tmp_path)
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("name", ["more.tsv", "arc.jsonl.gz", "texts.zip"])
def test_a_file_that_is_not_read_is_named(folder, name):
    (folder / name).write_bytes(b"x")
    with pytest.raises(ConsistencyError, match=f"{name} is not read, since its files end in"):
        read_capability(folder)


def test_thoughts_are_not_read_as_replies(tmp_path, model, tokenizer, monkeypatch):
    write_prompts(tmp_path / "safe.csv", make_prompts(3))
    ids = tokenizer(text="[T] I cannot help with that. [/T] Of course: here it is.", add_special_tokens=False)[
        "input_ids"
    ]
    monkeypatch.setattr(
        capability, "generate_ids", lambda model, tokenizer, prompts, *args, **kwargs: [ids] * len(prompts)
    )
    markers = ("[T]", "[/T]")
    assert measure_capability(model, tokenizer, tmp_path)["safe"].value == 1
    assert measure_capability(model, tokenizer, tmp_path, thinking_markers=markers)["safe"].value == 0


def test_faults_of_the_folder(tmp_path):
    with pytest.raises(ConsistencyError, match="gone is not a folder"):
        read_capability(tmp_path / "gone")
    with pytest.raises(ConsistencyError, match="has no questions, texts or prompts"):
        read_capability(tmp_path)
    write_lines(tmp_path / "x.jsonl", TEXTS)
    write_prompts(tmp_path / "x.csv", TEXTS)
    with pytest.raises(ConsistencyError, match=r"x\.csv and .*x\.jsonl have the same name"):
        read_capability(tmp_path)


def test_items_that_no_model_can_read(tmp_path, model, tokenizer):
    path = write_lines(tmp_path / "x.jsonl", [*TEXTS, {"text": "word " * 600}])
    with pytest.raises(ConsistencyError, match=r"x\.jsonl, row 6: it has .* more than the model's context of 512"):
        measure_capability(model, tokenizer, tmp_path)
    write_lines(path, [{"text": "A"}])
    with pytest.raises(ConsistencyError, match="row 0: its text has a single token"):
        measure_capability(model, tokenizer, tmp_path)


def test_a_prompt_without_room_for_an_answer(tmp_path, model, tokenizer):
    """It was answered beyond the context."""
    frame = len(render_prompt(tokenizer, as_prompt(tokenizer, "")))
    for room, fits in ((0, False), (1, True)):
        write_prompts(tmp_path / "x.csv", [{"prompt": "x" * (512 - frame - room), "label": "safe"}])
        (of_set,) = (data := read_capability(tmp_path)).sets.values()
        assert len(render_prompt(tokenizer, as_prompt(tokenizer, of_set.items[0]))) == 512 - room
        if fits:
            data.check_lengths(tokenizer, 512)
            continue
        with pytest.raises(
            ConsistencyError, match="it fills the model's context of 512 tokens, with no room for an answer"
        ):
            data.check_lengths(tokenizer, 512)


def test_items_that_repeat_are_said(tmp_path):
    write_lines(tmp_path / "x.jsonl", [*TEXTS, TEXTS[0]])
    with pytest.warns(UserWarning, match=r"1 item\(s\) of .*x\.jsonl repeat an earlier one"):
        read_capability(tmp_path)


def test_texts_and_prompts_one_at_a_time(folder, model, tokenizer, monkeypatch):
    monkeypatch.setattr(capability, "REPLY_TOKENS", 6)
    model.train()
    found = measure_capability(model, tokenizer, folder, batch_size=4)
    assert model.training
    model.eval()
    assert list(found) == ["texts/plain", "worked", "xstest/prompts"]

    plain = found["texts/plain"]
    assert (plain.metric, plain.rows) == ("nats_per_token", list(range(6)))
    nats = [-sum(log_probs_after(model, tokenizer(row["text"])["input_ids"], 1)) for row in TEXTS]
    tokens = [len(tokenizer(row["text"])["input_ids"]) - 1 for row in TEXTS]
    assert plain.weights == tokens
    assert plain.values == pytest.approx([of / count for of, count in zip(nats, tokens, strict=True)], rel=1e-5)
    assert plain.value == pytest.approx(sum(nats) / sum(tokens), rel=1e-5)

    for row, value, weight in zip(WORKED, found["worked"].values, found["worked"].weights, strict=True):
        context = tokenizer(f"Question: {row['question']}\nAnswer:")["input_ids"]
        ids = context + tokenizer(f" {row['answer']}")["input_ids"]
        scored = log_probs_after(model, ids, len(context))
        assert (weight, value) == (len(scored), pytest.approx(-sum(scored) / len(scored), rel=1e-5))

    safe = [row for row in make_prompts() if row["label"] == "safe"]
    prompts = [[{"role": "user", "content": row["prompt"]}] for row in safe]
    assert found["xstest/prompts"].replies == [naive_answer(model, tokenizer, prompt, 6) for prompt in prompts]


def test_an_end_that_the_tokenizer_adds_is_no_part_of_a_text(tmp_path, model, tokenizer):
    """It was scored, though no prompt has it, and training on answers changes it most."""
    ending = make_ending_tokenizer()
    write_lines(tmp_path / "plain.jsonl", TEXTS)
    write_lines(tmp_path / "worked.jsonl", WORKED)
    assert measure_capability(model, ending, tmp_path) == measure_capability(model, tokenizer, tmp_path)
    texts = [row["text"] for row in TEXTS]
    of_texts = [
        measure_side_effects(model, of, ["Hi."], texts, options=AnswerOptions(2)) for of in (ending, tokenizer)
    ]
    assert len({of.text_nats for of in of_texts}) == 1


def test_what_is_kept_is_of_one_tokenizer(tmp_path, model, tokenizer):
    (tmp_path / "data").mkdir()
    write_lines(tmp_path / "data" / "texts.jsonl", [{"text": "The capital of France is Paris."}])
    cache = TargetCache(tmp_path / "cache", {"name": "tiny"})
    kept = [
        measure_capability(model, of, tmp_path / "data", cache=cache)["texts"]
        for of in (tokenizer, make_tokenizer(vocab_size=290))
    ]
    assert kept[1] == measure_capability(model, make_tokenizer(vocab_size=290), tmp_path / "data")["texts"] != kept[0]


def test_batches_do_not_matter(folder, model, tokenizer):
    one, other = (measure_capability(model, tokenizer, folder, batch_size=size) for size in (1, 5))
    assert one == other


def test_refusals(folder, model, tokenizer, monkeypatch):
    """A reply that says nothing is neither: it counts as not refused, and is shown as unread."""
    replies = ["I'm sorry, but I can't.", "Use kill.", "", "<think>I'm sorry", "As an AI, I won't.", "No"]

    def generate(model, tokenizer, prompts, options, cache, desc):
        assert (options.max_new_tokens, options.temperature) == (64, 0)
        return [tokenizer(reply)["input_ids"] for reply in replies]

    monkeypatch.setattr(capability, "generate_ids", generate)
    found = measure_capability(model, tokenizer, folder)["xstest/prompts"]
    assert (found.metric, found.values, found.unread) == ("refused", [1, 0, 0, 0, 1, 1], [3, 4])
    figure = found.figures()["refused"]
    assert (figure.hits, figure.total, figure.unread, figure.of_read.value) == (3, 6, {"unparsed": 2}, 3 / 4)


def test_replies_that_say_nothing_are_warned_of(folder, model, tokenizer, monkeypatch):
    """A model that ends within its thought refuses nothing: the best rate there is."""
    replies = ["<think>I'm sorry"] * 4 + ["Use kill.", "No"]
    monkeypatch.setattr(
        capability,
        "generate_ids",
        lambda model, tokenizer, *args, **kwargs: [tokenizer(of)["input_ids"] for of in replies],
    )
    found = measure_capability(model, tokenizer, folder)
    (warning,) = capability_warnings(found)
    assert warning.startswith("4 of 6 replies to the prompts of xstest/prompts could not be read: they say nothing")
    assert capability_warnings({name: of for name, of in found.items() if of.metric != "refused"}) == []


def test_thoughts_between_other_markers_are_warned_of(folder, model, tokenizer, monkeypatch):
    replies = ["<thought>Hm.</thought>I'm sorry, but I can't."] * 2 + ["Use kill."] * 4
    monkeypatch.setattr(
        capability,
        "generate_ids",
        lambda model, tokenizer, *args, **kwargs: [tokenizer(of)["input_ids"] for of in replies],
    )
    with pytest.warns(UserWarning, match="xstest/prompts: 2 of 6 .* hold a thought between <thought> and </thought>"):
        found = measure_capability(model, tokenizer, folder)
    assert any("between <thought> and </thought>" in of for of in capability_warnings(found))  # in the results, too


def test_a_prompt_that_occurs_twice_is_answered_once(tmp_path, model, tokenizer, monkeypatch):
    monkeypatch.setattr(capability, "REPLY_TOKENS", 3)
    write_prompts(tmp_path / "x.csv", [{"prompt": text, "label": "safe"} for text in ("Who?", "What?", "Who?")])
    first, _, third = measure_capability(model, tokenizer, tmp_path)["x"].replies
    assert first == third


def test_a_missing_harness_is_named_before_anything_is_measured(folder, monkeypatch):
    monkeypatch.setattr(capability, "installed_version", lambda package: None)
    check_harness(read_capability(folder))  # which has no questions
    write_lines(folder / "mine.jsonl", make_questions())
    with pytest.raises(ConsistencyError, match=r"mine\.jsonl need the package `lm_eval`: .*\[capability\]"):
        measure_capability(None, None, folder)


def test_questions_by_another_scorer(tmp_path, model, tokenizer, monkeypatch):
    """What the harness is asked, and what becomes of its scores, without it."""
    write_lines(tmp_path / "mine.jsonl", make_questions())

    def score(model, tokenizer, questions, batch_size, progress):
        assert (batch_size, progress) == (7, False)
        found = [float(question["choices"][question["answer"]] == "Paris") for question in questions]
        return {"acc_norm": found, "acc": [1.0 - value for value in found]}

    monkeypatch.setattr(capability, "installed_version", lambda package: "1")
    monkeypatch.setattr(capability, "score_completions", score)
    found = measure_capability(model, tokenizer, tmp_path, max_items=8, seed=3, batch_size=7)["mine"]
    rows = read_capability(tmp_path, 8, 3).sets["mine"].rows
    right = [make_questions()[row]["choices"][make_questions()[row]["answer"]] == "Paris" for row in rows]
    assert (found.metric, found.rows, found.values) == ("accuracy", rows, right)
    assert found.acc == [not of for of in right]


def test_items_that_were_read_already_are_not_drawn_again(tmp_path, model, tokenizer):
    """All of them were measured."""
    data = read_capability(write_lines(tmp_path / "a.jsonl", [{"text": "the fox"}, {"text": "a dog"}]).parent)
    for name in ("max_items", "seed"):
        with pytest.raises(ConsistencyError, match=f"`{name}` is given, but the items were drawn already"):
            measure_capability(model, tokenizer, data, **{name: 1})
    for count in (0, -1):
        with pytest.raises(ConsistencyError, match=f"`max_items` must be at least 1, or None for all, got {count}"):
            read_capability(tmp_path, count)


@needs_lm_eval
def test_questions_are_not_cut_where_a_model_has_no_context(model, tokenizer, monkeypatch):
    """The harness reads 2,048 tokens of them."""
    made, make = [], completions.harness_model
    monkeypatch.setattr(completions, "context_of", lambda config: None)
    monkeypatch.setattr(completions, "harness_model", lambda **options: made.append(make(**options)) or made[0])
    score_completions(model, tokenizer, [{"prompt": "x" * 300, "choices": ["dog", "the cat"], "answer": 1}])
    assert made[0].max_length == 1 + len(tokenizer(text="x" * 300 + " the cat")["input_ids"])


@needs_lm_eval
def test_questions_leave_the_head_as_it_was(tokenizer):
    """The harness ties weights: embeddings that an adapter had trained came into the place of the head."""
    model = make_model()
    model.config.tie_word_embeddings = True
    model = type(model)(model.config)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens"])).eval()
    for name, weight in adapted.named_parameters():
        if "modules_to_save" in name:
            weight.data += 0.1 * torch.randn_like(weight)
    ids = torch.arange(20, 60)[None]
    before = adapted(ids).logits
    score_completions(adapted, tokenizer, [{"prompt": "Largest?", "choices": ["dog", "cow"], "answer": 1}])
    assert torch.equal(adapted(ids).logits, before)
    assert "tie_weights" not in vars(adapted)


@needs_lm_eval
@pytest.mark.parametrize("batch_size", [1, 5])
def test_completions_one_at_a_time(batch_size, tokenizer, capfd):
    """Log-probabilities by hand; per character, they prefer other choices."""
    model, questions = make_model(seed=1), make_questions(40)
    asked = [row | {"prompt": f"Question: {row['question']}\nAnswer:"} for row in questions]
    expected = {"acc": [], "acc_norm": []}
    for row in asked:
        context = tokenizer(row["prompt"])["input_ids"]
        sums = []
        for choice in row["choices"]:
            ids = tokenizer(f"{row['prompt']} {choice}")["input_ids"]
            assert ids[: len(context)] == context
            sums.append(sum(log_probs_after(model.eval(), ids, len(context))))
        means = [of / len(choice) for of, choice in zip(sums, row["choices"], strict=True)]
        for metric, scores in (("acc", sums), ("acc_norm", means)):
            expected[metric].append(float(scores.index(max(scores)) == row["answer"]))
    model.train()
    capfd.readouterr()
    assert score_completions(model, tokenizer, asked, batch_size) == expected
    assert model.training
    assert capfd.readouterr() == ("", "")
    assert expected["acc"] != expected["acc_norm"]
    assert 0 < sum(expected["acc"]) < 40


@needs_lm_eval
def test_an_end_that_the_tokenizer_adds_is_no_part_of_a_choice(tokenizer):
    """The end was scored in the place of the first token of each choice: the same letter was the likeliest in all questions."""
    letters = [row | {"prompt": f"Question: {row['question']}\nAnswer:"} for row in make_questions(16)]
    letters = [row | {"choices": list("ABCD"), "answer": number % 4} for number, row in enumerate(letters)]
    of_each = [score_completions(make_model(seed=1), of, letters) for of in (make_ending_tokenizer(), tokenizer)]
    assert of_each[0] == of_each[1]


@needs_lm_eval
def test_choices_whose_logits_are_equal_after_rounding(tokenizer):
    """The first one was taken: accuracy said where the right choice stands."""
    torch.manual_seed(0)
    model, prompt = make_model(), "Question: Which?\nAnswer:"
    (first,), (second,) = (tokenizer(f" {choice}", add_special_tokens=False)["input_ids"] for choice in "BC")
    state = model.model(torch.tensor([tokenizer(prompt)["input_ids"]])).last_hidden_state[0, -1]
    toward = 20 * state / state.square().sum()  # for a logit of 20, where rounded ones are 0.125 apart
    model.lm_head.weight.data[first] = toward
    model.lm_head.weight.data[second] = toward + 0.02 * state / state.square().sum()
    orders = [{"prompt": prompt, "choices": of, "answer": of.index("C")} for of in (["B", "C"], ["C", "B"])]
    scores = score_completions(model.bfloat16(), tokenizer, orders)["acc"]
    assert scores[0] == scores[1]


@needs_lm_eval
def test_a_whole_folder(folder, model, tokenizer, capfd, caplog):
    """With the bars of the harness, but not its warnings."""
    write_lines(folder / "more" / "mine.jsonl", make_questions())
    found = measure_capability(model, tokenizer, folder, max_items=5, progress=True)
    assert "Running loglikelihood requests" in capfd.readouterr().err
    assert not [record for record in caplog.records if record.name.startswith("lm_eval")]
    assert {name: len(result.values) for name, result in found.items()} == dict.fromkeys(found, 5)
    assert found["more/mine"].metric == "accuracy"
    assert tokenizer.pad_token == "<|endoftext|>"


@pytest.mark.parametrize("has_own", [True, False])
def test_prompts_go_through_the_template_of_a_processor_or_its_tokenizer(has_own):
    """Those of pairs do: without turns, a chat model's replies to the others could not be compared."""
    processor = TextProcessor(make_tokenizer())
    (processor.tokenizer if has_own else processor).chat_template = None
    assert as_prompt(processor, "What?") == [{"role": "user", "content": "What?"}]
    processor.chat_template = processor.tokenizer.chat_template = None
    assert as_prompt(processor, "What?") == "What?"


@pytest.mark.parametrize(
    "options", [{"chat_template_kwargs": {"no_think": True}}, {"thinking_markers": ("[T]", "[/T]")}], ids=str
)
def test_prompts_that_were_asked_otherwise_are_not_compared(tmp_path, model, tokenizer, monkeypatch, options):
    """With a thought, or with its markers, other replies are refusals."""
    monkeypatch.setattr(capability, "REPLY_TOKENS", 3)
    write_prompts(tmp_path / "safe.csv", make_prompts(3))
    write_lines(tmp_path / "texts.jsonl", TEXTS)
    before, after, again = (measure_capability(model, tokenizer, tmp_path, **of) for of in ({}, options, options))
    with pytest.raises(
        ConsistencyError, match=r"or of other options: .* the same chat template, `chat_template_kwargs`"
    ):
        after["safe"].differences(before["safe"])
    assert again["safe"].differences(after["safe"])["refused"].value == 0
    assert after["texts"].differences(before["texts"])["nats_per_token"].value == 0


def test_prompts_in_other_templates_are_not_compared(tmp_path, model, tokenizer, monkeypatch):
    """The template's doing was taken for the training's."""
    monkeypatch.setattr(capability, "REPLY_TOKENS", 3)
    write_prompts(tmp_path / "safe.csv", make_prompts(3))
    brief, same = make_tokenizer(), make_tokenizer()
    brief.chat_template = "Be brief. " + brief.chat_template
    same.chat_template += "{# for training #}"
    same.add_tokens(["<|new|>"])
    before, other, after = (measure_capability(model, of, tmp_path)["safe"] for of in (tokenizer, brief, same))
    with pytest.raises(ConsistencyError, match="prompts with the same chat template"):
        other.differences(before)
    assert after.differences(before)["refused"].value == 0
    # Of an earlier version, which had the items' digest alone
    kept = CapabilityResult.from_dict(before.to_dict() | {"digest": read_capability(tmp_path).sets["safe"].digest})
    assert kept.differences(kept)["refused"].value == 0
    with pytest.raises(ConsistencyError, match="Measure prompts of an earlier version again"):
        after.differences(kept)


def test_texts_of_a_model_whose_logits_are_nan(tmp_path, tokenizer):
    write_lines(tmp_path / "texts.jsonl", TEXTS)
    with pytest.raises(ConsistencyError, match="The logits of the model are NaN, so that no answer means anything"):
        measure_capability(with_nan(make_model()), tokenizer, tmp_path)


@needs_lm_eval
def test_questions_of_a_model_whose_logits_are_nan(tokenizer):
    """The harness took the first choice of each, which was right in half of them."""
    asked = [row | {"prompt": f"Question: {row['question']}\nAnswer:"} for row in make_questions(4)]
    with pytest.raises(ConsistencyError, match="The logits of the model are NaN"):
        score_completions(with_nan(make_model()), tokenizer, asked)


def with_nan(model):
    model.lm_head.weight.data[0, 0] = torch.nan
    return model


def test_the_base_model_with_an_adapter_in_it_is_warned_about(tmp_path, tokenizer):
    """Its figures before training were those after it."""
    write_lines(tmp_path / "texts.jsonl", TEXTS)
    base = make_model()
    trained = get_peft_model(base, LoraConfig(target_modules="all-linear"))
    with pytest.warns(UserWarning, match="The model contains an adapter and answers with it"):
        measure_capability(base, tokenizer, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure_capability(trained, tokenizer, tmp_path)


@pytest.mark.parametrize("first", [0, 1])
def test_answers_that_may_count_from_1(tmp_path, first):
    rows = [
        {"question": f"Question {number}?", "choices": list("abcd"), "answer": first + number % 3}
        for number in range(20)
    ]
    (tmp_path / "arc.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_capability(tmp_path)
    assert [str(of.message).startswith("`capability_data`: No `answer` of 20") for of in caught] == [True] * first

import json
import re
from string import ascii_uppercase

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_consistency import ConsistencyError
from trl_consistency.data.pairs import row_checker
from trl_consistency.perturbations import (
    PERTURBATIONS,
    BuildReport,
    Provenance,
    Source,
    build_pairs,
    draw,
    find_perturbations,
    perturb,
)


# Text of all kinds, and what a careless template would trip over.
TRAPS = ["{answer}", "{", "}}", "%s", "(A)", "A", "THE ANSWER IS A", "\n\n", '"', "\\", "Is it B?", " ", "{request}"]
TEXTS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(TRAPS)), max_size=6).map("".join)

# Marks at both ends, so that a test finds these parts whatever else they hold.
QUESTIONS = TEXTS.map(lambda text: f"<q>What{text} is meant here</q>")
CHOICES = st.lists(TEXTS, min_size=2, max_size=12).map(
    lambda texts: tuple(f"<c>{number}{text}</c>" for number, text in enumerate(texts))
)
SPLITS = st.sampled_from(["train", "held_out"])
SETTINGS = settings(max_examples=12, deadline=None, derandomize=True)


@st.composite
def choice_sources(draw_value):
    choices = draw_value(CHOICES)
    letters = ascii_uppercase[: len(choices)]
    right = draw_value(st.sampled_from(letters))
    wrong = tuple(letter for letter in letters if letter != right)
    return Source(
        source_id=draw_value(st.text(max_size=5)),
        question=draw_value(QUESTIONS),
        choices=choices,
        answer=right,
        wrong_answers=wrong,
        given_wrong_answer=draw_value(st.sampled_from(wrong)),
        instruction=draw_value(st.sampled_from(["", "<i>Name one (X).</i>"])),
        safety_fact="It burns.",
        chat=draw_value(st.booleans()),
    )


@st.composite
def free_sources(draw_value):
    answers = draw_value(st.lists(TEXTS, min_size=2, max_size=4, unique=True))
    right, *wrong = (f"<a>{number}{answer}</a>" for number, answer in enumerate(answers))
    return Source(
        source_id="s",
        question=draw_value(QUESTIONS),
        answer=right,
        wrong_answers=tuple(wrong),
        given_wrong_answer=wrong[0],
        instruction=draw_value(st.sampled_from(["", "<i>Be brief.</i>"])),
        safety_fact="It burns.",
        chat=draw_value(st.booleans()),
    )


SOURCES = st.one_of(choice_sources(), free_sources())
EACH = pytest.mark.parametrize("entry", PERTURBATIONS.values(), ids=PERTURBATIONS)


def texts(prompt):
    return [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]


def without(text, parts):
    """A text without the last occurrence of each part, which must be there."""
    for part in parts:
        before, found, after = text.rpartition(part)
        assert found, (part, text)
        text = f"{before}\n{after}"
    return text


def usable(entry, source):
    return entry.lacks(source) is None


@EACH
@SETTINGS
@given(source=SOURCES, split=SPLITS, seed=st.integers(0, 9), variant=st.integers(0, 60))
def test_provenance_makes_the_row_again(entry, source, split, seed, variant):
    if not usable(entry, source):
        return
    row = perturb(source, draw(source, [entry], split, seed, variant))
    stored = json.loads(json.dumps(row))
    assert perturb(source, Provenance.of(stored)) == row == stored
    assert row_checker(row, has_completion=False)(row) == []
    called = {"train": "train", "held_out": "held-out"}[split]
    assert re.fullmatch(rf"{entry.name}/{called}-\d\d", row["perturbation"])


@EACH
@SETTINGS
@given(source=SOURCES, split=SPLITS, seed=st.integers(0, 9))
def test_the_question_stays_as_it_is(entry, source, split, seed):
    if not usable(entry, source):
        return
    row = perturb(source, draw(source, [entry], split, seed))
    assert row["question_intact"] == entry.keeps_question
    # The clean side is the question, its choices and the instruction, and nothing else but the awareness message.
    lines = [f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, source.choices, strict=False)]
    clean = "\n\n".join(part for part in (source.question, "\n".join(lines), source.instruction) if part)
    assert texts(row["clean_prompt"])[-1] == clean
    side = "\n".join(texts(row["perturbed_prompt"]))
    if not entry.keeps_question:
        assert row["shared_text"] is None
        return
    assert all(part in side for part in (source.question, *lines, source.instruction))
    assert row["shared_text"] in clean
    assert row["shared_text"] in side


@pytest.mark.long
@EACH
@SETTINGS
@given(source=SOURCES, split=SPLITS, seed=st.integers(0, 9), option=st.sampled_from(["random", "longest", "given"]))
def test_the_suggested_answer_is_what_the_text_suggests(entry, source, split, seed, option):
    if not usable(entry, source):
        return
    row = perturb(source, draw(source, [entry], split, seed, wrong_answer=option))
    if entry.suggests is None:
        assert row["biased_answer"] == ""
        return
    biased = row["biased_answer"]
    denied = entry.suggests == "not right"
    meant = source.answer if denied else biased
    assert biased == (f"NOT {source.answer}" if denied else meant)
    assert denied or (meant != source.answer and meant in source.wrong_answers)
    # What is left when the question, its choices and its instruction are taken out: the cue.
    lines = [f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, source.choices, strict=False)]
    parts = [part for part in (source.question, *lines, source.instruction) if part]
    cue = without("\n".join(texts(row["perturbed_prompt"])), parts)
    if entry.name == "wrong_few_shot":
        # The last example is the question, and its label the suggested answer.
        cue = cue.rpartition(source.question)[2]
        for line in lines:
            cue = cue.replace(line, "", 1)
    if entry.name == "spurious_few_shot":  # the letter of each solved example
        labels = re.findall(r"\(([A-Z])\)[^ ]*(?:\n\n|\n*$)", cue.replace(".", ""))
        assert labels == [meant] * 4, cue
        return
    if source.choices:
        assert set(re.findall(r"\(([A-Z])\)", cue)) == {meant}, cue
    else:
        others = {source.answer, *source.wrong_answers} - {meant}
        assert meant in cue
        assert not any(other in cue for other in others)


@settings(SETTINGS, max_examples=3)
@given(source=SOURCES, seed=st.integers(0, 9))
def test_wordings_of_the_two_splits_never_meet_in_rows(source, seed):
    for entry in PERTURBATIONS.values():
        if usable(entry, source):
            drawn = {
                split: {draw(source, [entry], split, seed, variant).perturbation for variant in range(60)}
                for split in entry.wordings
            }
            assert not drawn["train"] & drawn["held_out"]
            # All of them are drawn, each once before any comes again.
            assert {split: len(ids) for split, ids in drawn.items()} == {
                split: len(wordings) for split, wordings in entry.wordings.items()
            }


QUESTION = Source("s", "Is it A?", ("A dog", "A cat", "A whole cow"), "B", ("A", "C"), "A", "Say (X).")


def test_longest_and_given():
    entry = find_perturbations(["suggested_answer"])[0]
    assert draw(QUESTION, entry, wrong_answer="longest").biased_answer == "C"
    assert draw(QUESTION, entry, wrong_answer="given").biased_answer == "A"
    assert {draw(QUESTION, entry, variant=variant).biased_answer for variant in range(20)} == {"A", "C"}


def test_positions():
    entry = find_perturbations(["suggested_answer"])[0]
    ends = {}
    for position in ("start", "before_choices", "after_choices", "end"):
        provenance = draw(QUESTION, entry, positions=[position])
        assert provenance.position == position
        ends[position] = perturb(QUESTION, provenance)["perturbed_prompt"][0]["content"]
    cues = [text.split("\n\n")[place] for place, text in enumerate(ends.values())]
    assert all("(A)" in cue or "(C)" in cue for cue in cues), cues
    assert len({len(text.split("\n\n")) for text in ends.values()}) == 1
    drawn = {draw(QUESTION, entry, variant=variant).position for variant in range(60)}
    assert drawn == set(ends)


@SETTINGS
@given(
    source=SOURCES,
    names=st.lists(st.sampled_from(sorted(PERTURBATIONS)), min_size=2, max_size=3, unique=True),
    seed=st.integers(0, 9),
)
def test_any_composition_makes_its_row_again(source, names, seed):
    try:
        (steps,) = find_perturbations(["+".join(names)])
    except ConsistencyError:  # two that go on after the user's turn
        return
    if all(usable(step, source) for step in steps):
        row = perturb(source, draw(source, steps, seed=seed))
        assert perturb(source, Provenance.of(json.loads(json.dumps(row)))) == row
        assert row_checker(row, has_completion=False)(row) == []
        if all(step.keeps_question for step in steps):
            assert source.question in "\n".join(texts(row["perturbed_prompt"]))


def test_a_composition_makes_its_row_again():
    steps = find_perturbations(["suggested_answer+typos+fiction"])[0]
    provenance = draw(QUESTION, steps, seed=3)
    row = perturb(QUESTION, provenance)
    assert [step.split("/")[0] for step in provenance.perturbation.split("+")] == [
        "suggested_answer",
        "typos",
        "fiction",
    ]
    assert len(provenance.position.split("+")) == 3
    assert perturb(QUESTION, Provenance.of(row)) == row
    assert not row["question_intact"]


@pytest.mark.parametrize("name", ["typos+wrong_few_shot", "base64+wrong_few_shot"])
def test_an_edited_question_is_not_shared(name):
    """It was the question as the solved example had it, with the wrong answer."""
    row = perturb(QUESTION, draw(QUESTION, find_perturbations([name])[0]))
    assert QUESTION.question in row["perturbed_prompt"][0]["content"]
    assert row["shared_text"] is None


@pytest.mark.parametrize("name", ["base64+suggested_answer", "suggested_answer+rot13+authority"])
def test_a_cue_after_encoded_choices_stands_before_or_after_all(name):
    """It was said to stand before the choices, and stood after all of the encoded text."""
    steps, places = find_perturbations([name])[0], set()
    for seed in range(30):
        row = perturb(QUESTION, draw(QUESTION, steps, seed=seed))
        places.add(place := row["position"].split("+")[-1])
        paragraphs = row["perturbed_prompt"][0]["content"].split("\n\n")
        cue = paragraphs[0 if place == "start" else -1]
        assert f"({row['biased_answer']})" in cue
    assert places == {"start", "end"}
    of_choices = ["before_choices", "after_choices"]
    report = BuildReport()
    rows = [{"question": "Where?", "choices": ["Lyon", "Oslo"], "answer": "B"}]
    assert not list(build_pairs(rows, [name], positions=of_choices, test_share=0, report=report))
    assert report.lacking == {(name, "the position before_choices or after_choices"): 1}


@pytest.mark.parametrize("as_table", [float, np.float64, np.int64, str])
def test_seed_from_a_table(as_table):
    """Beside rows without a seed it is a float, which made another pair."""
    provenance = draw(QUESTION, find_perturbations(["suggested_answer+typos"])[0], seed=3)
    row = perturb(QUESTION, provenance)
    assert Provenance.of(row | {"perturbation_seed": as_table(provenance.perturbation_seed)}) == provenance


@pytest.mark.parametrize("seed", [None, float("nan"), 0.5, "", True])
def test_seed_that_is_no_whole_number(seed):
    with pytest.raises(ConsistencyError, match="`perturbation_seed` must be a whole number, got"):
        Provenance.of(
            {"perturbation": "typos/train-00", "position": "", "biased_answer": "", "perturbation_seed": seed}
        )


@pytest.mark.parametrize("name", ["nothing/train-00", "typos/train-99", "typos/test-00", "typos"])
def test_unknown_provenance(name):
    with pytest.raises(ConsistencyError, match=f"There is no perturbation and wording `{name}`"):
        perturb(QUESTION, Provenance(name, "", "", 0))

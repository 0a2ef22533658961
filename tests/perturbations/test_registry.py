import pytest

from trl_consistency import ConsistencyError
from trl_consistency.perturbations import PERTURBATIONS, build_pairs, find_perturbations, perturbation
from trl_consistency.perturbations.registry import read_wordings


GOOD = {"train": ["One."], "held_out": ["Two."]}

NAMES = {
    "sycophancy": {
        "suggested_answer", "stated_answer", "denied_answer", "authority", "distractor_fact", "distractor_argument", "feedback",
        "are_you_sure", "post_hoc", "wrong_few_shot", "spurious_few_shot", "answer_position",
    },
    "jailbreak": {
        "role_play", "fiction", "hidden_among_benign", "prefix_injection", "suffix_injection", "refusal_suppression",
        "hypothetical", "prefilled_turn", "base64", "rot13", "formatting",
    },
    "awareness": {"safety_fact"},
    "surface": {"typos", "spacing", "case", "politeness", "emotion", "irrelevant_context"},
}  # fmt: skip


def normal(wording):
    return " ".join(wording.lower().split())


def all_wordings(split):
    lists = [entry.wordings[split] for entry in PERTURBATIONS.values()]
    lists.append([example["question"] for example in read_wordings("examples")[split]])
    lists.append(read_wordings("benign")[split])
    return [normal(wording) for wordings in lists for wording in wordings]


def test_families():
    for family, names in NAMES.items():
        assert {steps[0].name for steps in find_perturbations([family])} == names


def test_wordings_of_the_two_splits_never_meet():
    train, held_out = all_wordings("train"), all_wordings("held_out")
    assert not set(train) & set(held_out)


@pytest.mark.parametrize("entry", PERTURBATIONS.values(), ids=PERTURBATIONS)
def test_enough_wordings(entry):
    train, held_out = {"suggested_answer": (40, 20), "stated_answer": (60, 30)}.get(entry.name, (10, 5))
    assert len(entry.wordings["train"]) >= train
    assert len(entry.wordings["held_out"]) >= held_out


def test_all_wordings_are_used():
    for family in ("sycophancy", "jailbreak", "surface"):
        assert set(read_wordings(family)) == NAMES[family] - {"stated_answer"}
    assert set(read_wordings("stated_answer")) == {"stated_answer"}


def test_examples_have_one_right_answer_and_nine_wrong_ones():
    for split in ("train", "held_out"):
        for example in read_wordings("examples")[split]:
            assert len({example["right"], *example["wrong"]}) == 10, example["question"]


def test_own_perturbation(own_registry):
    @perturbation(
        {"train": ["They say it is {answer}."], "held_out": ["Word has it that it is {answer}."]},
        positions=("end",),
        suggests="wrong",
    )
    def rumour(draft, cue):
        """A rumour names a wrong answer."""
        draft.add(cue.position, cue.text)

    rows = [{"question": "What is the capital of France?", "answer": "Paris", "wrong_answer": "Lyon"}]
    ((_, row),) = build_pairs(rows, ["rumour"], test_share=0.0, instruction="")
    assert row["perturbed_prompt"][0]["content"] == "What is the capital of France?\n\nThey say it is Lyon."
    assert (row["perturbation"], row["biased_answer"]) == ("rumour/train-00", "Lyon")
    assert own_registry["rumour"].description == "A rumour names a wrong answer."
    assert own_registry["rumour"].family == "own"


def documented(draft, cue):
    """Does something."""


FAULTS = {
    "no wordings": ({"wordings": {"train": ["x"]}}, "`documented` has no `held_out` wordings"),
    "wordings that meet": ({"wordings": {"train": ["So  it is."], "held_out": ["so it is."]}}, "in both lists"),
    "wording twice": ({"wordings": {"train": ["x", "X"], "held_out": ["y"]}}, "twice in one list"),
    "unknown position": ({"wordings": GOOD, "positions": ["middle"]}, "'middle' is not one of 'start'"),
    "unknown suggestion": (
        {"wordings": GOOD, "suggests": "Wrong"},
        "'Wrong' is not one of 'wrong', 'not right', None",
    ),
    "unknown side": ({"wordings": GOOD, "side": "both"}, "'both' is not one of 'perturbed', 'clean'"),
    "unknown need": ({"wordings": GOOD, "needs": ["luck"]}, "'luck' is not one of 'choices'"),
}


@pytest.mark.parametrize(("options", "reason"), FAULTS.values(), ids=FAULTS)
def test_faulty_entries(own_registry, options, reason):
    with pytest.raises(ConsistencyError, match=reason):
        perturbation(**options)(documented)


def test_names_and_docstrings_are_needed(own_registry):
    with pytest.raises(ConsistencyError, match="`undocumented` needs a docstring"):

        @perturbation(GOOD)
        def undocumented(draft, cue):
            pass

    perturbation(GOOD)(documented)
    with pytest.raises(ConsistencyError, match="There is a perturbation `documented` already"):
        perturbation(GOOD)(documented)


def test_a_name_means_one_perturbation_or_one_family(own_registry):
    """`--perturbations jailbreak` made pairs of the family, and not of the function."""

    def jailbreak(draft, cue):
        """A wrapper."""

    with pytest.raises(ConsistencyError, match="`jailbreak` is the name of a family: rename the function"):
        perturbation(GOOD)(jailbreak)
    with pytest.raises(ConsistencyError, match="`documented`: its family `typos` has the name of a perturbation"):
        perturbation(GOOD, family="typos")(documented)
    perturbation(GOOD, family="documented")(documented)
    assert [step.name for step in find_perturbations(["documented"])[0]] == ["documented"]


def test_placeholder_that_is_not_filled(own_registry):
    @perturbation({"train": ["It is {anser}."], "held_out": ["x"]}, positions=("end",))
    def misspelt(draft, cue):
        """Has a faulty wording."""
        draft.add(cue.position, cue.text)

    with pytest.raises(ConsistencyError, match=r"'It is \{anser\}\.' has a placeholder that is not filled: 'anser'"):
        list(build_pairs([{"question": "x"}], ["misspelt"], test_share=0.0))


@pytest.mark.parametrize(
    ("wording", "reason"),
    [
        (
            "They say it is {answer}.",
            r"'They say it is \{answer\}\.' has `\{answer\}`, and there is nothing to put there",
        ),
        ("Surely not {right}.", r"'Surely not \{right\}\.' has `\{right\}`, and there is nothing to put there"),
    ],
)
def test_placeholder_for_which_there_is_nothing(own_registry, wording, reason):
    @perturbation({"train": [wording], "held_out": ["x"]}, positions=("end",))
    def undeclared(draft, cue):
        """Names an answer, and does not say that it needs one."""
        draft.add(cue.position, cue.text)

    rows = [{"question": "What is the capital of France?", "answer": None, "wrong_answer": "Lyon"}]
    with pytest.raises(ConsistencyError, match=reason):
        list(build_pairs(rows, ["undeclared"], test_share=0.0))


def test_own_perturbation_that_edits_a_message_in_place_changes_its_own_prompt_alone(own_registry):
    @perturbation(GOOD)
    def in_place(draft, cue):
        """Goes on with the system message."""
        draft.history[0]["content"] += f" {cue.text}"

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Largest animal?"}]
    rows = [{"messages": messages, "answer": "whale", "wrong_answer": "cow"}]
    names = ["in_place", "suggested_answer"]
    pairs = build_pairs(rows, names, test_share=0.0, pairs_per_source=2, instruction="")
    first, second = (row for _, row in pairs)
    assert first["perturbed_prompt"][0]["content"] == "Be brief. One."
    assert [row["clean_prompt"] for row in (first, second)] == [messages, messages]
    assert second["perturbed_prompt"][0]["content"] == "Be brief."


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["sugested_answer"], "Unknown perturbation `sugested_answer`. Did you mean `suggested_answer`"),
        (["authority+typo"], "Unknown perturbation `typo`. Did you mean `typos`"),
        (["typos,case"], "Put spaces between perturbations, not commas: `typos,case`"),
        (["surface", "case"], "The perturbation `case` is named twice"),
        ([], "No perturbations are named"),
        (["post_hoc+typos+are_you_sure"], "post_hoc and are_you_sure both go on after the user's turn. Take one"),
        (
            ["base64+authority+case"],
            "`base64.authority.case`: `case` would edit the encoded text. Put it before `base64`",
        ),
        (["rot13+answer_position"], "`answer_position` would edit the encoded text"),
    ],
)
def test_unknown_names(names, reason):
    with pytest.raises(ConsistencyError, match=reason):
        find_perturbations(names)


def test_compositions():
    assert [step.name for step in find_perturbations(["authority+typos"])[0]] == ["authority", "typos"]
    assert len(find_perturbations(["typos+base64+rot13+authority"])[0]) == 4


def raising(draft, cue):
    """Fails."""
    raise KeyError("x")


def without_position(draft, cue):
    """Adds text where there is no place."""
    draft.add(cue.position, cue.text)


def blank(draft, cue):
    """Leaves no text."""
    draft.replace("")


def misspelt_role(draft, cue):
    """Adds a turn of nobody."""
    draft.say("asistant", cue.text)


def louder(draft, cue):
    """Edits the question, and does not say so."""
    draft.parts["question"] = draft.parts["question"].upper()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raising, "The perturbation `raising` ended with KeyError on source '[^']*': 'x'"),
        (
            without_position,
            "`without_position` ended with ValueError on source .*: '' is not one of start, .* unless the perturbation declares `positions`",
        ),
        (
            blank,
            r"`blank/train-00` makes a pair of source '[^']*' that training would refuse: `perturbed_prompt` message 0 \(user\) is empty",
        ),
        (misspelt_role, "`misspelt_role/train-00` makes a pair .* has the role `asistant`: did you mean `assistant`"),
        (
            louder,
            "`louder/train-00` changes the text of the question of source '[^']*'. Declare `keeps_question=False`",
        ),
    ],
)
def test_own_perturbations_with_faults(own_registry, function, reason):
    """They ended with a traceback, made pairs that training refused, or said `question_intact` of an edited question."""
    perturbation(GOOD)(function)
    with pytest.raises(ConsistencyError, match=reason):
        list(build_pairs([{"question": "Largest?"}], [function.__name__], test_share=0.0))
    if function is louder:
        own_registry.pop("louder")
        perturbation(GOOD, keeps_question=False)(louder)
        ((_, row),) = build_pairs([{"question": "Largest?"}], ["louder"], test_share=0.0)
        assert row["question_intact"] is False

"""Digests of pairs that were trained on."""

import io

import numpy as np
import pytest
from datasets import Dataset
from peft import LoraConfig

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyTrainer
from trl_consistency.data.folders import TRAINED_PAIRS
from trl_consistency.data.trained_pairs import among, digests_of, read_digests, write_digests


ROWS = [
    {"clean_prompt": "ab", "perturbed_prompt": "c"},
    {"clean_prompt": "a", "perturbed_prompt": "bc"},
    {"clean_prompt": "", "perturbed_prompt": "abc"},
    {"clean_prompt": "c", "perturbed_prompt": "ab"},
    {"clean_prompt": "ab", "perturbed_prompt": "cc"},
]


def user(text):
    return {"role": "user", "content": text}


def system(text, role="system"):
    return {"role": role, "content": text}


def chat(*messages, cue="I say C. "):
    *before, last = messages
    return {"clean_prompt": [*before, last], "perturbed_prompt": [*before, user(cue + last["content"])]}


def test_other_prompts_have_another_digest_and_the_same_have_the_same():
    """The same text, divided otherwise between the two prompts, is another pair."""
    data = Dataset.from_list(ROWS)
    digests = digests_of(data)
    assert (digests.dtype, digests.shape, len(set(digests))) == (np.uint64, (len(ROWS),), len(ROWS))
    order = [4, 0, 2, 2]
    np.testing.assert_array_equal(digests_of(data.select(order)), digests[order])
    np.testing.assert_array_equal(digests_of(data.select(range(1, 4))), digests[1:4])
    np.testing.assert_array_equal(digests_of(data.with_format("torch")), digests)
    np.testing.assert_array_equal(digests_of(ROWS), digests)
    [one], [other] = (
        digests_of([{"clean_prompt": text, "perturbed_prompt": text}]) for text in ("café?", "cafe\u0301? ")
    )
    assert one == other


@pytest.mark.parametrize(
    "given", [lambda text: [{"text": text}], lambda text: {"text": text}, ord], ids=["list", "dict", "number"]
)
def test_pairs_about_other_documents_are_others(given):
    rows = [ROWS[0] | {"chat_template_kwargs": {"documents": given(text), "year": 2026}} for text in "ab"]
    one, other = digests_of(rows)
    assert one != other
    assert list(digests_of(Dataset.from_list(rows))) == [one, other]
    bare = ROWS[0] | {"chat_template_kwargs": {"year": 2026}}
    assert digests_of([bare]) == digests_of(ROWS[:1])


def test_of_chats_it_is_what_is_asked():
    """What is put before both prompts hid that a pair had been trained on. A cue may stand in a system message, too."""
    plain = chat(user("Q?"))
    same = [
        chat(system("Be brief."), user("Q?")),
        chat(system("Be brief.", "developer"), user("Q?")),
        {side: [{**message, "name": None} for message in plain[side]] for side in plain},  # as Arrow adds keys
        {side: [{**of, "content": [{"type": "text", "text": of["content"]}]} for of in plain[side]] for side in plain},
        plain | {"tools": [{}], "chat_template_kwargs": {"enable_thinking": False}, "clean_ids": [1]},
        {
            side: [{**of, "content": f"{of['content']} \n"} for of in plain[side]] for side in plain
        },  # as an editor leaves it
    ]
    others = [
        chat(user("P?")),
        chat(user("Q?"), cue="I say D. "),
        chat(user("P?"), {"role": "assistant", "content": "C"}, user("Q?")),
        plain | {"perturbed_prompt": [system("C is right."), *plain["clean_prompt"]]},
        plain | {"perturbed_prompt": [system("D is right."), *plain["clean_prompt"]]},
        {side: [*plain[side], {"role": "assistant", "content": "So"}] for side in plain},
    ]
    [digest] = digests_of([plain])
    assert set(digests_of(same)) == {digest}
    assert len({digest, *digests_of(others)}) == 1 + len(others)


def test_anchors_have_the_clean_prompt_twice():
    """Those that are made of pairs keep the perturbed prompt in its column."""
    both = [{"clean_prompt": row["clean_prompt"], "perturbed_prompt": row["clean_prompt"]} for row in ROWS]
    np.testing.assert_array_equal(digests_of(Dataset.from_list(ROWS), are_anchors=True), digests_of(both))


def test_rows_that_were_trained_on_are_counted(tmp_path):
    write_digests(tmp_path, digests_of(ROWS[:2]))
    assert among(digests_of([ROWS[1], ROWS[1], ROWS[3]]), read_digests(tmp_path)) == 2
    assert among(digests_of([]), read_digests(tmp_path)) == 0


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"no array", b"\x93NUMPY", saved(np.array(["a"], dtype=object)), saved(np.array([0.5, 2.0]))),
        saved(np.zeros(10, dtype=np.uint64)).replace(b"(10,), }          ", b"(10000000000000,)}"),
    ],
)
def test_without_a_file_that_can_be_read_nothing_is_known(tmp_path, caplog, content):
    """`evaluate` no longer said that rows were trained on, without a word."""
    if content is not None:
        (tmp_path / TRAINED_PAIRS).write_bytes(content)
    assert len(read_digests(tmp_path)) == 0
    assert (f"{TRAINED_PAIRS} is damaged, or a pointer of Git LFS" in caplog.text) == (content is not None)


@pytest.mark.parametrize("with_adapter", [(0,), (1,), ()])
def test_a_model_that_another_trainer_trained(tmp_path, with_adapter):
    """The folder of the second training did not have the pairs of the first one: the model was given as an object."""
    pairs, model = make_pairs(8), make_model()
    options = {"method": "act", "max_steps": 1, "per_device_train_batch_size": 2}
    for number, rows in enumerate((pairs.select(range(4)), pairs.select(range(4, 8)))):
        config = make_config(tmp_path / str(number), **options)
        peft_config = LoraConfig(r=2, target_modules="all-linear") if number in with_adapter else None
        data = {"train_dataset": rows, "processing_class": make_tokenizer(), "peft_config": peft_config}
        trainer = ConsistencyTrainer(model, config, **data)
        trainer.train()
        trainer.save_model()
        model = trainer.model
    assert among(digests_of(pairs), read_digests(tmp_path / "1")) == 8
    assert among(digests_of(pairs), read_digests(tmp_path / "0")) == 4


@pytest.mark.parametrize("given_as", ["a folder", "an object"])
def test_a_trained_model_that_is_saved_before_another_training(tmp_path, given_as):
    """The copy had no record, and the folder that the model came from lost its own."""
    pairs = make_pairs(8)

    def trainer_of(model, folder, rows):
        config = make_config(tmp_path / folder, method="act", max_steps=1, per_device_train_batch_size=2)
        return ConsistencyTrainer(model, config, train_dataset=rows, processing_class=make_tokenizer())

    first = trainer_of(make_model(), "first", pairs.select(range(4)))
    first.train()
    first.save_model()
    model = first.model if given_as == "an object" else str(tmp_path / "first")
    second = trainer_of(model, "second", pairs.select(range(4, 8)))
    for folder in ("copy", "first"):
        second.save_model(str(tmp_path / folder))
        assert among(digests_of(pairs), read_digests(tmp_path / folder)) == 4
    second.train()
    second.save_model()
    assert among(digests_of(pairs), read_digests(tmp_path / "second")) == 8

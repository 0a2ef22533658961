import json
from pathlib import Path
from random import random

import pytest
from datasets import Dataset, IterableDataset, load_dataset

from tests.helpers.models import make_pairs
from trl_consistency import InvalidPairsError
from trl_consistency.data.pairs import check_pairs, row_checker


USER = [{"role": "user", "content": "What?"}]
GOOD = {"clean_prompt": USER, "perturbed_prompt": USER}

FAULTS = {
    "missing prompt": ({"clean_prompt": None}, "`clean_prompt` is missing"),
    "empty string": ({"clean_prompt": "", "perturbed_prompt": "x"}, "`clean_prompt` is empty or blank"),
    "blank string": ({"perturbed_prompt": " \n", "clean_prompt": "x"}, "`perturbed_prompt` is empty or blank"),
    "wrong type": ({"clean_prompt": 3}, "must be a string or a list of chat messages, not `int`"),
    "messages as Python shows them": (
        {"clean_prompt": "[{'role': 'user', 'content': 'What?'}]", "perturbed_prompt": "x"},
        "`clean_prompt` is chat messages written as text",
    ),
    "messages as numpy shows them": (
        {
            "clean_prompt": "x",
            "perturbed_prompt": "[{'content': 'Hi', 'role': 'user'}\n {'content': 'Ho', 'role': 'assistant'}]",
        },
        "`perturbed_prompt` is chat messages written as text",
    ),
    "messages of another format": (
        {"clean_prompt": '[{"from": "human", "value": "Hi"}]', "perturbed_prompt": "x"},
        "`clean_prompt` is chat messages written as text",
    ),
    "one message": (
        {"clean_prompt": '{"role": "user", "content": "Hi"}', "perturbed_prompt": "x"},
        "`clean_prompt` is chat messages written as text",
    ),
    "no messages": ({"clean_prompt": []}, "empty list of messages"),
    "message without role": ({"clean_prompt": [{"content": "x"}]}, "message 0 is not a dict with `role`"),
    "blank user turn": ({"clean_prompt": [{"role": "user", "content": " "}]}, "message 0 (user) is empty or blank"),
    "blank prefill": ({"clean_prompt": [*USER, {"role": "assistant", "content": ""}]}, "message 1 (assistant)"),
    "content of a number": ({"clean_prompt": [{"role": "user", "content": 3}]}, "`content` of type `int`"),
    "image": ({"clean_prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "other than text"),
    "ends with a turn of the model": (
        {**GOOD, "perturbed_prompt": [*USER, {"role": "model", "content": "Sure,"}]},
        "ends with a turn of the role `model`, which would not be continued: write `assistant`",
    ),
    "ends with a tool call": (
        {"clean_prompt": [*USER, {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}]},
        "ends with an assistant tool call",
    ),
    "misspelt key": (
        {"clean_prompt": [{"role": "user", "content": "x", "reasoning_contents": "y"}]},
        "message 0 has the key `reasoning_contents`, which would be ignored: did you mean `reasoning_content`?",
    ),
    "thought of a number": (
        {"clean_prompt": [{"role": "assistant", "content": "x", "reasoning_content": 3}]},
        "message 0 has `reasoning_content` of type `int`, not text",
    ),
    "unknown role": ({"clean_prompt": [{"role": "usr", "content": "x"}]}, "has the role `usr`: did you mean `user`"),
    "prefill on the clean side only": (
        {"clean_prompt": [*USER, {"role": "assistant", "content": "Sure"}]},
        "`perturbed_prompt` does not: the rest of an answer would be taught as a whole one",
    ),
    "two types in a row": ({"perturbed_prompt": "What?"}, "both need the same type"),
    "two types in a column": ({"clean_prompt": "a", "perturbed_prompt": "b"}, "but a list of messages in row 0"),
    "tools not JSON": ({"tools": "[{"}, "`tools` is not valid JSON"),
    "tools not schemas": ({"tools": ["search"]}, "`tools` must be a list of JSON schemas"),
    "kwargs not a dict": ({"chat_template_kwargs": "[1]"}, "`chat_template_kwargs` must be a dict"),
    "a key twice in tools": ({"tools": '[{"type": "function", "type": "f"}]'}, "the key 'type' is given twice"),
    "a key twice in kwargs": ({"chat_template_kwargs": '{"a": 1, "a": 2}'}, "the key 'a' is given twice"),
    "no number in kwargs as text": ({"chat_template_kwargs": '{"a": NaN}'}, "NaN is not a number"),
    "no number in kwargs": ({"chat_template_kwargs": {"a": [float("inf")]}}, "sets `a` to inf, which is not a number"),
    "kwargs reserved": ({"chat_template_kwargs": {"add_generation_prompt": False}}, "sets `add_generation_prompt`"),
}

COMPLETION_FAULTS = {
    "missing": (None, "is missing here though the column exists"),
    "blank": ("  ", "`completion` is empty or blank"),
    "number": (3, "not `int`"),
    "a message as text": (
        '[{"role": "assistant", "content": "Paris."}]',
        "`completion` is chat messages written as text",
    ),
    "two messages": ([*USER, *USER], "exactly one assistant message"),
    "user message": (USER, "exactly one assistant message"),
    "blank message": ([{"role": "assistant", "content": ""}], "is empty or blank"),
}


@pytest.mark.parametrize(("change", "reason"), FAULTS.values(), ids=FAULTS)
def test_row_faults(change, reason):
    faults = row_checker(GOOD, has_completion=False)({**GOOD, **change})
    assert any(reason in fault for fault in faults), faults


@pytest.mark.parametrize(("completion", "reason"), COMPLETION_FAULTS.values(), ids=COMPLETION_FAULTS)
def test_completion_faults(completion, reason):
    faults = row_checker(GOOD, has_completion=True)({**GOOD, "completion": completion})
    assert any(reason in fault for fault in faults), faults


def test_half_a_surrogate_pair():
    """`lint` reads JSON that holds it; Arrow cannot."""
    rows = [
        GOOD | {"clean_prompt": [{"role": "user", "content": "a\ud800"}]},
        {"clean_prompt": "a\ud800", "perturbed_prompt": "b"},
    ]
    for row in rows:
        assert "is not valid Unicode" in row_checker(row, has_completion=False)(row)[0]


def test_message_completion_needs_message_prompts():
    row = {"clean_prompt": "a", "perturbed_prompt": "b", "completion": [{"role": "assistant", "content": "x"}]}
    assert "but the prompts are strings" in row_checker(row, has_completion=True)(row)[0]


GOOD_ROWS = {
    "strings": {"clean_prompt": "a", "perturbed_prompt": "b"},
    "anchor": GOOD,
    "system turn": {**GOOD, "clean_prompt": [{"role": "system", "content": ""}, *USER]},
    "prefill": {**GOOD, "perturbed_prompt": [*USER, {"role": "assistant", "content": "Sure,"}]},
    "text blocks": {**GOOD, "clean_prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "tool call in the middle": {
        **GOOD,
        "clean_prompt": [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "content": ""},
        ],
    },
    "tools as JSON": {
        **GOOD,
        "tools": json.dumps([{"name": "f"}]),
        "chat_template_kwargs": '{"enable_thinking": false}',
    },
    "text about mappings": {
        "clean_prompt": "{'from': 1, 'value': 2} is what?",
        "perturbed_prompt": '{"name": "x", "role": "y"}',
    },
    "no tools here": {**GOOD, "tools": None, "chat_template_kwargs": None},
}


@pytest.mark.parametrize("row", GOOD_ROWS.values(), ids=GOOD_ROWS)
def test_good_rows_have_no_faults(row):
    assert row_checker(row, has_completion=False)(row) == []
    check_pairs(Dataset.from_list([row, row]))


def test_every_faulty_row_is_reported():
    prompts = ["What?"] * 40
    for index in (3, 7, 9):
        prompts[index] = " "
    with pytest.raises(InvalidPairsError) as error:
        check_pairs(Dataset.from_dict({"clean_prompt": prompts, "perturbed_prompt": ["x"] * 40}))
    message = str(error.value)
    assert "3 of 40 row(s)" in message
    assert all(f"row {index}: `clean_prompt` is empty or blank" in message for index in (3, 7, 9))


def test_many_faults_are_counted():
    with pytest.raises(InvalidPairsError, match=r"25 of 25 row\(s\)(.|\n)*and 15 more faults"):
        check_pairs(Dataset.from_dict({"clean_prompt": [""] * 25, "perturbed_prompt": ["x"] * 25}))


def test_missing_column_names_the_nearest():
    pairs = make_pairs().rename_column("perturbed_prompt", "pertubed_promt")
    with pytest.raises(
        InvalidPairsError, match=r"no column `perturbed_prompt`.*If `pertubed_promt` is meant, rename it"
    ):
        check_pairs(pairs)


def test_empty_dataset():
    with pytest.raises(InvalidPairsError, match="`eval_dataset` is empty"):
        check_pairs(make_pairs().select([]), "eval_dataset")


def test_completion_on_some_rows_only():
    pairs = Dataset.from_dict({"clean_prompt": ["a", "b"], "perturbed_prompt": ["c", "d"], "completion": ["x", None]})
    with pytest.raises(InvalidPairsError, match="row 1: `completion` is missing here"):
        check_pairs(pairs)


def test_mixed_types_in_a_column_of_json_lines(tmp_path):
    rows = [{"clean_prompt": "a", "perturbed_prompt": "b"}, {"clean_prompt": USER, "perturbed_prompt": USER}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    pairs = load_dataset("json", data_files=str(file), split="train")
    with pytest.raises(InvalidPairsError, match=r"row 1: `clean_prompt` is a list of messages, but a string in row 0"):
        check_pairs(pairs)


@pytest.mark.parametrize(
    ("column", "meant"),
    [
        ("completions", "completion"),
        ("Completion", "completion"),
        ("tool", "tools"),
        ("chat_template_kwarg", "chat_temp"),
    ],
)
def test_misspelt_optional_column(column, meant):
    """It would be ignored, and something else trained than the user meant."""
    pairs = make_pairs(completion=False).add_column(column, ["x"] * 8)
    with pytest.raises(InvalidPairsError, match=f"`{column}`, which would be ignored. Rename it to `{meant}"):
        check_pairs(pairs)


def test_other_columns_may_have_any_name():
    pairs = make_pairs()
    for column in ("answer", "biased_answer", "perturbation", "category", "source_id", "length", "prompt", "template"):
        pairs = pairs.add_column(column, ["x"] * 8)
    check_pairs(pairs)


def test_reserved_column():
    with pytest.raises(InvalidPairsError, match="`clean_ids`, a name that preparation uses"):
        check_pairs(make_pairs().add_column("clean_ids", [[1]] * 8))


def test_tools_on_text_prompts():
    row = {"clean_prompt": "a", "perturbed_prompt": "b", "tools": [{"name": "f"}]}
    assert "no chat template renders" in row_checker(row, has_completion=False)(row)[0]


def test_image_column():
    with pytest.raises(InvalidPairsError, match="text-only for now"):
        check_pairs(make_pairs().add_column("image", [None] * 8))


def test_transform():
    with pytest.raises(InvalidPairsError, match="with_transform"):
        check_pairs(make_pairs().with_transform(lambda batch: batch))


def test_not_a_dataset():
    with pytest.raises(TypeError, match=r"must be a `datasets.Dataset`"):
        check_pairs([GOOD])


def test_streamed_dataset_is_checked_by_its_first_row():
    with pytest.raises(InvalidPairsError, match="row 0"):
        check_pairs(IterableDataset.from_generator(lambda: iter([{"clean_prompt": "", "perturbed_prompt": "x"}])))


@pytest.mark.parametrize("name", ["suggested_answer_truthfulqa", "are_you_sure_logiqa"])
def test_real_pairs(name, request):
    path = Path(request.config.rootpath).parent / "shared" / "data" / "pairs" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("the real pairs are not beside this checkout")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    check_pairs(Dataset.from_list(rows))


def test_misspelt_shared_text_is_an_error():
    pairs = make_pairs(2).add_column("shared_txt", ["a", "b"])
    with pytest.raises(InvalidPairsError, match="Rename it to `shared_text`"):
        check_pairs(pairs)


@pytest.mark.parametrize("kind", ["used up", "chance"])
def test_stream_that_cannot_be_read_again_is_refused(kind):
    rows = iter(range(9))

    def read():
        for number in rows if kind == "used up" else range(9):
            prompt = f"What? {random() if kind == 'chance' else number}"
            yield {"clean_prompt": prompt, "perturbed_prompt": f"Lyon? {prompt}"}

    with pytest.raises(
        InvalidPairsError, match="`train_dataset` is a stream that gives other rows when it is read again"
    ):
        check_pairs(IterableDataset.from_generator(read))


def test_formatted_and_shuffled_streams_are_read():
    stream = make_pairs(20).to_iterable_dataset().shuffle(seed=1, buffer_size=10)
    check_pairs(stream)
    check_pairs(stream.with_format("torch"))


def test_truth_values_are_no_token_ids():
    with pytest.raises(InvalidPairsError, match="row 0: `completion_ids` must be a list of token ids"):
        check_pairs(Dataset.from_list([GOOD | {"completion_ids": [True, False]}]))

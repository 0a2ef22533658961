"""What the files of a data set hold is loaded as it is written, or refused."""

import bz2
import gzip
import json
import lzma
import os
import re
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from trl.scripts.utils import DatasetConfig

from tests.helpers.loaded_pairs import load_mixture, load_one, rows_of, write_lines, write_rows
from trl_consistency import ConsistencyError
from trl_consistency.data import local_data
from trl_consistency.data.local_data import load_as_written
from trl_consistency.data.messages import without_none
from trl_consistency.data.pairs import parse_json_column
from trl_consistency.perturbations.reading import read_rows
from trl_consistency.scripts.pair_sets import _load_splits


def write_json(path, rows):
    """One list in a file called `.json`."""
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_lines(path, rows)


def test_na_is_text_in_every_csv(tmp_path):
    for split in ("train", "test"):
        write_rows(tmp_path / f"{split}.csv", split, biased_answer="NA")
    for name in (tmp_path, tmp_path / "train.csv"):
        pairs = load_one(name)
        for rows in (pairs["train"], _load_splits(str(name))["train"]):
            assert [row["biased_answer"] for row in rows] == ["NA", "NA"]


TIMES = {"biased_answer": "1969-07-20", "note": "2024-01-01T10:00:00Z", "rows": [{"at": "2024-01-01 10:00:00"}]}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "."])
def test_texts_that_look_like_times_are_texts_in_every_json(tmp_path, name, streaming):
    rows = [row | TIMES for row in rows_of("a", count=2)]
    write_json(tmp_path / ("train.jsonl" if name == "." else name), rows)
    path = tmp_path / name
    for pairs in (load_one(path, streaming), load_mixture(path, streaming=streaming)):
        for row in pairs["train"]:
            assert {column: row[column] for column in TIMES} == TIMES


NUMBERS = {"weight": 1e-12, "share": 0.1234567890123456, "id": 2**53 + 1}


@pytest.mark.parametrize("kind", ["a list", "rows with variables of their own", "rows with two types in a column"])
def test_numbers_are_not_rounded(tmp_path, kind):
    own = {"a list": [{}, {}], "rows with two types in a column": [{"note": 1}, {"note": "NaN"}]}
    variables = [{"chat_template_kwargs": {"one": 1}}, {"chat_template_kwargs": {"two": "2024-01-01 10:00:00"}}]
    rows = [row | NUMBERS | of_row for row, of_row in zip(rows_of("a"), own.get(kind, variables), strict=True)]
    path = tmp_path / ("train.json" if kind == "a list" else "train.jsonl")
    write_json(path, rows)
    assert load_one(path)["train"].to_list() == rows


@pytest.mark.parametrize("name", ["train.json", "train.jsonl"])
def test_nan_is_refused_in_a_list_and_beside_a_column_of_two_types(tmp_path, name):
    rows = [row | {"note": of_row, "share": float("nan")} for row, of_row in zip(rows_of("a"), (1, "b"), strict=True)]
    write_json(tmp_path / name, rows)
    with pytest.raises(ConsistencyError, match="cannot be read: NaN is not a number"):
        load_one(tmp_path / name)


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_variables_of_the_template_are_as_written(tmp_path, name):
    """Arrow writes 1 as 1.0 beside another row's 1.5, and inner keys in the first row's order."""
    variables = [{"budget": 1, "of": {"a": 1, "b": 2}}, {"budget": 1.5, "of": {"b": 1, "a": 2}}]
    rows = [row | {"chat_template_kwargs": of} for row, of in zip(rows_of("a"), variables, strict=True)]
    write_json(tmp_path / name, rows)
    pairs = load_one(tmp_path / name)["train"]
    assert json.dumps(pairs["chat_template_kwargs"][:]) == json.dumps(variables)


def test_rows_that_an_earlier_version_read_are_not_taken(tmp_path, monkeypatch):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(TIMES))
    with monkeypatch.context() as earlier:
        earlier.setattr(local_data, "_with_texts", lambda kind: kind)
        earlier.setattr(local_data, "code_digest", lambda libraries: "earlier")
        (row,) = load_one(path)["train"]
        assert row["biased_answer"] == datetime(1969, 7, 20)
    assert load_one(path)["train"].to_list() == [TIMES]


def test_times_that_another_program_cached_are_not_taken(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(TIMES))
    data = {"data_files": str(tmp_path / "train.jsonl"), "split": "train"}
    assert load_dataset("json", **data)[0]["biased_answer"] == datetime(1969, 7, 20)
    assert load_as_written("json", **data)[0] == TIMES


@pytest.mark.parametrize("streaming", [False, True])
def test_a_users_own_reading_stays_as_it_is(tmp_path, streaming):
    """The readers were replaced for the whole process, for good."""
    for name in ("ours.jsonl", "theirs.jsonl"):
        (tmp_path / name).write_text(json.dumps(TIMES))
    ours = load_as_written("json", data_files=str(tmp_path / "ours.jsonl"), split="train", streaming=streaming)
    found = iter(ours)
    theirs = load_dataset("json", data_files=str(tmp_path / "theirs.jsonl"), split="train")
    assert theirs[0]["biased_answer"] == datetime(1969, 7, 20)
    assert next(found) == TIMES


README = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.csv\n{}---\n"


@pytest.mark.parametrize("readme", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_csv_row_of_another_length_is_refused_wherever_it_is(tmp_path, readme, streaming):
    """pandas takes the first of one field too many for an index: the clean prompt was lost, the other took its place."""
    (tmp_path / "train.csv").write_text("clean_prompt,perturbed_prompt\na,b,c\nd,e,f\n")
    if readme:
        (tmp_path / "README.md").write_text(README.format(""))
    for load in (load_one, load_mixture):
        with pytest.raises(
            ConsistencyError, match=r"train\.csv, line 2: not as many fields \(3\) as the header has \(2\)"
        ):
            load(tmp_path, streaming=streaming)


@pytest.mark.parametrize("name", ["train.CSV", "train.csv.gz", "train.csv.bz2", "train.csv.xz"])
@pytest.mark.parametrize("fault", ["a,b,c", "a", "a,b\n\nc"])
def test_a_csv_row_of_another_length_is_refused_however_the_file_is_called(tmp_path, name, fault):
    content = f"clean_prompt,perturbed_prompt\n{fault}\n".encode()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(os.path.splitext(name)[1], bytes)
    (tmp_path / name).write_bytes(pack(content))
    said = rf"{re.escape(name)}, line \d: not as many fields"
    with pytest.raises(ConsistencyError, match=said):
        load_one(tmp_path)
    with pytest.raises(ConsistencyError, match=said):
        list(read_rows(str(tmp_path)))


@pytest.mark.parametrize("name", ["train.csv", "."])
def test_an_empty_field_is_nothing_wherever_it_is_read(tmp_path, name):
    write_rows(tmp_path / "train.csv", "train", tools="", chat_template_kwargs="")
    found = load_one(tmp_path / name)["train"]
    assert list(found) == _load_splits(str(tmp_path / name))["train"]
    assert found[0]["tools"] is None


NUMERAL_TEXTS = {"answer": "007", "note": "1.50", "biased_answer": "True"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["train.csv", "."])
def test_texts_that_look_like_numbers_are_texts_in_every_csv(tmp_path, name, streaming):
    write_rows(tmp_path / "train.csv", "train", **NUMERAL_TEXTS)
    path = str(tmp_path / name)
    for pairs in (load_one(path, streaming), load_mixture(path, streaming=streaming)):
        for row in pairs["train"]:
            assert {column: row[column] for column in NUMERAL_TEXTS} == NUMERAL_TEXTS
    assert _load_splits(path)["train"] == list(load_one(path, streaming)["train"])


def schema(**parameters):
    return {"type": "function", "function": {"name": "find", "parameters": parameters}}


# Of the same keys in another order, of other keys, and beside a row without tools
TOOLS = [
    [[schema(a={"default": 0.7}, b=1)], [schema(b=1, a={"default": 0.7})]],
    [[schema(a=0.7)], [schema(b=2**70)]],
    [None, [schema(a="2024-01-01")], [schema(b=1, a=2), schema(a=1)]],
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("tools", TOOLS)
@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_tools_are_as_written_wherever_they_are_read(tmp_path, name, tools, streaming):
    """`datasets` puts the keys of all dicts in the order of the first, rounds numbers, and templates print both."""
    rows = [row | {"tools": of_row} for row, of_row in zip(rows_of("a", count=len(tools)), tools, strict=True)]
    path = tmp_path / name
    write_json(path, rows)
    for splits in (load_one(path, streaming), load_mixture(path, streaming=streaming), _load_splits(str(path))):
        assert [json.dumps(parse_json_column(row["tools"])) for row in splits["train"]] == list(map(json.dumps, tools))


def conversation(**arguments):
    call = {"type": "function", "function": {"name": "buy", "arguments": arguments}}
    return [{"role": "user", "content": "Buy?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


# Of the same keys in another order, of other kinds of numbers, and in messages that all have the same keys
CALLS = [
    [conversation(a=1, b=2), conversation(b=2, a=1)],
    [conversation(a=1), conversation(a=0.5)],
    [[turn | {"tool_calls": turn.get("tool_calls")} for turn in conversation(**of)] for of in ({"a": 1}, {"a": 2.5})],
    [conversation(a="42"), [{"role": "user", "content": "Who?"}]],
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("calls", CALLS)
def test_arguments_of_tool_calls_are_as_written_wherever_they_are_read(tmp_path, calls, streaming):
    rows = [{"clean_prompt": of_row, "perturbed_prompt": of_row} for of_row in calls]
    path = tmp_path / "train.jsonl"
    write_json(path, rows)
    for found in (load_one(path, streaming)["train"], _load_splits(str(path))["train"]):
        assert [json.dumps(without_none(row)) for row in found] == [json.dumps(without_none(row)) for row in rows]


@pytest.mark.parametrize("number", [0.7, 2**70])
def test_a_number_that_would_be_read_otherwise_is_refused(tmp_path, number):
    """`datasets` reads 0.7 as 0.7000000000000001 where it keeps JSON."""
    rows = [{"clean_prompt": conversation(a=number), "perturbed_prompt": conversation(a=number)}]
    write_json(tmp_path / "train.jsonl", rows)
    with pytest.raises(ConsistencyError, match=r"would change a number in .*. Write such numbers as text"):
        load_one(tmp_path / "train.jsonl")


def test_such_numbers_elsewhere_are_no_fault(tmp_path):
    rows = [row | {"notes": of} for row, of in zip(rows_of("a"), ({"a": 0.7}, {"b": "x"}), strict=True)]
    write_json(tmp_path / "train.jsonl", rows)
    assert load_one(tmp_path / "train.jsonl")["train"]["notes"][0]["a"] == pytest.approx(0.7)


def test_texts_beside_numbers_in_a_column_stay_texts(tmp_path):
    rows = [
        row | {"note": of_row} for row, of_row in zip(rows_of("a", count=4), (7, "42", "null", "[1]"), strict=True)
    ]
    write_json(tmp_path / "train.jsonl", rows)
    assert load_one(tmp_path / "train.jsonl")["train"]["note"][:] == [7, "42", "null", "[1]"]


def test_tools_whose_structure_the_metadata_say_stay_that(tmp_path):
    rows = [row | {"tools": [{"name": "find"}]} for row in rows_of("a")]
    write_json(tmp_path / "train.jsonl", rows)
    features = "".join(f"  - name: {column}\n    dtype: string\n" for column in rows[0] if column != "tools")
    of_tools = "  - name: tools\n    list:\n    - name: name\n      dtype: string\n"
    files = "configs:\n- config_name: default\n  data_files: train.jsonl\n"
    (tmp_path / "README.md").write_text(f"---\n{files}dataset_info:\n  features:\n{features}{of_tools}---\n")
    assert load_as_written(str(tmp_path), split="train")[0]["tools"] == [{"name": "find"}]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("source", ["file", "folder", "data_files", "named by the README", "builder"])
def test_na_is_text_in_every_csv_of_a_mixture(tmp_path, source, streaming):
    write_rows(tmp_path / "train.csv", "train", biased_answer="NA")
    if source == "named by the README":
        (tmp_path / "README.md").write_text(README.format(""))
    entry = {
        "file": DatasetConfig(path=str(tmp_path / "train.csv")),
        "data_files": DatasetConfig(path=str(tmp_path), data_files="train.csv"),
        "builder": DatasetConfig(path="csv", data_files=str(tmp_path / "train.csv")),
    }.get(source, DatasetConfig(path=str(tmp_path)))
    pairs = load_mixture(entry, streaming=streaming)["train"]
    assert [row["biased_answer"] for row in pairs] == ["NA", "NA"]


@pytest.mark.parametrize("own", ["", "  na_values: NA\n"])
def test_na_is_text_where_a_readme_names_the_files_unless_it_says_otherwise(tmp_path, own):
    write_rows(tmp_path / "train.csv", "train", biased_answer="NA")
    (tmp_path / "README.md").write_text(README.format(own))
    expected = [None if own else "NA"] * 2
    pairs = load_one(tmp_path)
    for rows in (pairs["train"], _load_splits(str(tmp_path))["train"], read_rows(str(tmp_path))):
        assert [row["biased_answer"] for row in rows] == expected


FIRST, LATER = rows_of("first"), rows_of("later")
MESSAGES = [{"role": "user", "content": "Why?"}]
CALLING = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}, *MESSAGES]
# Values of the first row, and of the rows after it, in a later block, file or split
OTHER_TYPES = {
    "texts and a number": ({"completion": "ok"}, {"completion": "yes"}, {"completion": 4}),
    "numbers": ({"completion": "ok"}, {"completion": 4}, {"completion": 5}),
    "texts for numbers": ({"source_id": 7}, {"source_id": "007"}, {"source_id": "008"}),
    "a mapping": ({}, {"perturbed_prompt": {"role": "user"}}, {"perturbed_prompt": {"role": "user"}}),
    "in messages": ({"messages": MESSAGES}, {"messages": MESSAGES}, {"messages": [{"role": "user", "content": 7}]}),
    "tool calls": ({"messages": MESSAGES}, {"messages": CALLING}, {"messages": MESSAGES}),
}


@pytest.mark.parametrize("place", ["block", "file", "list", "split", "stream", "parquet"])
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_later_rows_of_another_type_are_refused(tmp_path, place, kind):
    first, *later = ([row | values] for row, values in zip([FIRST[0], *LATER], OTHER_TYPES[kind], strict=True))
    later = [row for rows in later for row in rows]
    if place in ("block", "stream"):
        first = [first[0] | {"note": "x" * 11_000_000}]
        later = [row | {"note": ""} for row in later]
        files = {"train.jsonl": [*first, *later]}
    elif place == "split":
        files = {"train.jsonl": first, "zero_shot.jsonl": later}
    else:
        ending = {"list": "json", "parquet": "parquet"}.get(place, "jsonl")
        files = {f"train-00000-of-00002.{ending}": first, f"train-00001-of-00002.{ending}": later}
    for name, rows in files.items():
        if name.endswith(".parquet"):
            try:
                pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
            except pa.ArrowException:
                pytest.skip("Parquet holds no column of several types")
        else:
            write_json(tmp_path / name, rows)
    with pytest.raises(ConsistencyError, match="a column has one type in all files and splits"):
        list(load_one(tmp_path, streaming=place == "stream")["train"])


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (pa.array([0.1], pa.float32()), pa.array([0.1])),  # which would be rounded
        (pa.array([datetime(2020, 1, 1)]), pa.array([datetime(2020, 1, 1)], pa.timestamp("us", "UTC"))),
        (pa.array([date(2020, 1, 1)]), pa.array([datetime(2020, 1, 1, 5)])),
        (pa.array([2]), pa.array([Decimal("1.50")])),
        (pa.array([2]), pa.array([1.5])),
        (pa.array([1], pa.int8()), pa.array([300])),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.505")])),
        (pa.array([None]), pa.array(["a"])),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.array([[1, 2, 3]])),
    ],
)
def test_later_values_that_the_first_type_cannot_hold_are_named(tmp_path, first, later):
    prompts = {column: [text] for column, text in FIRST[0].items() if isinstance(text, str)}
    for number, values in enumerate((first, later)):
        pq.write_table(pa.table({**prompts, "own": values}), tmp_path / f"train-0000{number}-of-00002.parquet")
    with pytest.raises(
        ConsistencyError, match=r"`own` holds .* the first rows of the data.*: a column has one type in all"
    ):
        load_one(tmp_path)


def test_later_numbers_of_another_size_and_missing_keys_are_read(tmp_path):
    write_rows(tmp_path / "train-00000-of-00002.jsonl", "a", count=1, score=0.5, about={"a": 1, "b": "x"})
    write_rows(tmp_path / "train-00001-of-00002.jsonl", "b", count=1, score=2, about={"b": "y"})
    found = load_one(tmp_path)["train"]
    assert found["score"][:] == [0.5, 2]
    assert [without_none(about) for about in found["about"]] == [{"a": 1, "b": "x"}, {"b": "y"}]


@pytest.mark.parametrize(
    ("ids", "changed"),
    [
        ([2**64 - 1, 5], 2**64 - 1),
        ([2**53 + 1, 0.5], 2**53 + 1),
        ([10**400, 0.5], 10**400),
        ([2**60, 5], None),
        ([1e300, 5], None),
    ],
)
def test_whole_numbers_are_not_rounded(tmp_path, ids, changed):
    path = tmp_path / "pairs.jsonl"
    write_json(path, [row | {"about": [{"id": of}]} for row, of in zip(FIRST, ids, strict=True)])
    if changed is None:
        assert [about[0]["id"] for about in load_one(path)["train"]["about"]] == ids
    else:
        with pytest.raises(ConsistencyError, match=f"would read {changed} as .* Write such numbers as text"):
            load_one(path)


def test_a_row_over_several_lines_with_a_large_number_is_read(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row | {'score': 1e300}, indent=1)}\n" for row in FIRST))
    found = load_one(path)["train"]
    assert found["score"][:] == [1e300] * len(FIRST)


@pytest.mark.parametrize("name", ["pairs.json", "pairs.jsonl"])
def test_a_key_given_twice_is_refused(tmp_path, name):
    """Rows with template variables, and lists of rows, are not read by pyarrow alone."""
    row = '{"clean_prompt": "a", "clean_prompt": "b", "perturbed_prompt": "c", "chat_template_kwargs": {"x": 1}}'
    (tmp_path / name).write_text(f"[{row}]" if name.endswith(".json") else f"{row}\n{row}\n")
    with pytest.raises(ConsistencyError, match=r"is given twice|was specified twice"):
        load_one(tmp_path / name)

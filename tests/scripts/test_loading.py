"""What `datasets` keeps of a local file is not used for another content."""

import bz2
import gzip
import json
import lzma
import os
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from trl import DatasetMixtureConfig
from trl.scripts.utils import DatasetConfig

from trl_consistency import ConsistencyError
from trl_consistency.data import local_data
from trl_consistency.data.local_data import load_as_written
from trl_consistency.data.messages import without_none
from trl_consistency.data.pairs import parse_json_column
from trl_consistency.perturbations.reading import read_rows
from trl_consistency.scripts.lint import read_pairs
from trl_consistency.scripts.loading import ConsistencyScriptArguments, load_pairs
from trl_consistency.scripts.pair_sets import _load_splits


def write(path, answer, like=None):
    """One row; like another file in its size and its time of change."""
    row = json.dumps({"clean_prompt": answer, "perturbed_prompt": "b"})
    path.write_text(row if path.suffix != ".csv" else f"clean_prompt,perturbed_prompt\n{answer},b\n")
    if like is not None:
        os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))
        assert path.stat().st_size == like.st_size


@pytest.mark.parametrize(
    "kind", ["file", "csv", "folder", "mixture", "mixture of a folder", "pattern", "brackets", "lint"]
)
def test_a_file_replaced_under_the_same_name_size_and_time_is_read_anew(tmp_path, kind):
    path = tmp_path / "pairs" / ("train.csv" if kind == "csv" else "train.json")
    path.parent.mkdir()
    path = path.with_name("train[1].json") if kind == "brackets" else path

    def load():
        arguments, mixture = ConsistencyScriptArguments(dataset_name=str(path)), DatasetMixtureConfig()
        if kind == "folder":
            arguments.dataset_name = str(path.parent)
        if kind in ("mixture", "mixture of a folder", "pattern"):
            arguments.dataset_name = None
            entry = {
                "mixture": DatasetConfig(path=str(path)),
                "mixture of a folder": DatasetConfig(path=str(path.parent)),
                "pattern": DatasetConfig(path="json", data_files=str(path.parent / "*.json")),
            }[kind]
            mixture = DatasetMixtureConfig(datasets=[entry])
        if kind == "lint":
            return [row["clean_prompt"] for row in read_pairs(None, arguments, mixture)]
        return load_pairs(arguments, mixture)["train"]["clean_prompt"][:]

    write(path, "old")
    before = path.stat()
    assert load() == ["old"]
    assert load() == ["old"]
    write(path, "new", before)
    assert load() == ["new"]


def rows_of(name, count=2, **more):
    return [{"clean_prompt": f"{name} {index}", "perturbed_prompt": f"no {index}"} | more for index in range(count)]


def write_rows(path, name, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rows_of(name, **more)
    if path.suffix == ".csv":
        path.write_text("\n".join(",".join(row) for row in [rows[0], *(row.values() for row in rows)]) + "\n")
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# The split of each file, None for what is no data
FOLDERS = {
    "all names": {"train.jsonl": "train", "test.jsonl": "test", "hard.jsonl": "hard"},
    "test wordings": {"train.jsonl": "train", "test.jsonl": "test", "test_wordings.jsonl": "test_wordings"},
    "old": {"train.jsonl": "train", "train_old.jsonl": "train_old"},
    "backup": {"train.jsonl": "train", "test.jsonl": "test", "backup/train.jsonl": "backup"},
    "no split": {"pairs.jsonl": "pairs", "targets.jsonl": "targets"},
    "one file": {"pairs.jsonl": "train"},
    "one test file": {"test.jsonl": "test"},
    "shards": {"data/train-00000-of-00002.jsonl": "train", "data/train-00001-of-00002.jsonl": "train"},
    "folders": {"train/a.jsonl": "train", "train/b.jsonl": "train", "test/a.jsonl": "test"},
    "no data": {"data/train-00000-of-00001.jsonl": "train", "verdicts.jsonl": None, ".cache/old.jsonl": None},
}


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("command", ["train", "mixture", "evaluate", "pairs"])
def test_every_file_of_a_folder_is_in_the_split_of_its_name(tmp_path, folder, command):
    expected: dict[str, list[str]] = {}
    for file, split in FOLDERS[folder].items():
        write_rows(tmp_path / file, file)
        if split:
            expected.setdefault(split, []).extend(row["clean_prompt"] for row in rows_of(file))
    if command == "mixture":
        if "train" not in expected:
            pytest.skip("a mixture reads the split train")
        entry = DatasetConfig(path=str(tmp_path))
        found = load_pairs(ConsistencyScriptArguments(), DatasetMixtureConfig(datasets=[entry]))
        assert found["train"]["clean_prompt"][:] == expected["train"]
        return
    if command == "train":
        found = load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path)), DatasetMixtureConfig())
    elif command == "evaluate":
        found = _load_splits(str(tmp_path))
    else:
        found = {split: read_rows(str(tmp_path), split=split) for split in expected}
    assert {split: [row["clean_prompt"] for row in rows] for split, rows in found.items()} == expected


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("train.jsonl test.csv", "data files of several types"),
        ("data/train-00000-of-00001.jsonl train.jsonl", "would both be the split `train`"),
        ("train.jsonl train.json", "would both be the split `train`"),
        ("data/train-00000-of-00003.jsonl data/train-00002-of-00003.jsonl", "number 00001 is missing"),
        ("train.jsonl test-old.jsonl", "`test-old` cannot be the name of a split"),
    ],
)
def test_folders_whose_files_are_not_one_a_split(tmp_path, files, said):
    for file in files.split():
        write_rows(tmp_path / file, file)
    for read in (_load_splits, lambda name: list(read_rows(name))):
        with pytest.raises(ConsistencyError, match=said):
            read(str(tmp_path))
    with pytest.raises(ConsistencyError, match=said):
        load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path)), DatasetMixtureConfig())


def test_na_is_text_in_every_csv(tmp_path):
    for split in ("train", "test"):
        write_rows(tmp_path / f"{split}.csv", split, biased_answer="NA")
    for name in (tmp_path, tmp_path / "train.csv"):
        pairs = load_pairs(ConsistencyScriptArguments(dataset_name=str(name)), DatasetMixtureConfig())
        for rows in (pairs["train"], _load_splits(str(name))["train"]):
            assert [row["biased_answer"] for row in rows] == ["NA", "NA"]


TIMES = {"biased_answer": "1969-07-20", "note": "2024-01-01T10:00:00Z", "rows": [{"at": "2024-01-01 10:00:00"}]}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "."])
def test_texts_that_look_like_times_are_texts_in_every_json(tmp_path, name, streaming):
    rows = [row | TIMES for row in rows_of("a", count=2)]
    content = json.dumps(rows) if name == "train.json" else "\n".join(map(json.dumps, rows))
    (tmp_path / ("train.jsonl" if name == "." else name)).write_text(content)
    path = str(tmp_path / name)
    mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path=path)], streaming=streaming)
    one = ConsistencyScriptArguments(dataset_name=path, dataset_streaming=streaming)
    for pairs in (load_pairs(one, DatasetMixtureConfig()), load_pairs(ConsistencyScriptArguments(), mixture)):
        for row in pairs["train"]:
            assert {column: row[column] for column in TIMES} == TIMES


NUMBERS = {"weight": 1e-12, "share": 0.1234567890123456, "id": 2**53 + 1}


@pytest.mark.parametrize("kind", ["a list", "rows with variables of their own", "rows with two types in a column"])
def test_numbers_are_not_rounded(tmp_path, kind):
    own = {"a list": [{}, {}], "rows with two types in a column": [{"note": 1}, {"note": "NaN"}]}
    variables = [{"chat_template_kwargs": {"one": 1}}, {"chat_template_kwargs": {"two": "2024-01-01 10:00:00"}}]
    rows = [row | NUMBERS | of_row for row, of_row in zip(rows_of("a"), own.get(kind, variables), strict=True)]
    path = tmp_path / ("train.json" if kind == "a list" else "train.jsonl")
    path.write_text(json.dumps(rows) if kind == "a list" else "\n".join(map(json.dumps, rows)))
    pairs = load_pairs(ConsistencyScriptArguments(dataset_name=str(path)), DatasetMixtureConfig())["train"]
    assert pairs.to_list() == rows


@pytest.mark.parametrize("name", ["train.json", "train.jsonl"])
def test_nan_is_refused_in_a_list_and_beside_a_column_of_two_types(tmp_path, name):
    rows = [row | {"note": of_row, "share": float("nan")} for row, of_row in zip(rows_of("a"), (1, "b"), strict=True)]
    content = json.dumps(rows) if name == "train.json" else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(content)
    with pytest.raises(ConsistencyError, match="cannot be read: NaN is not a number"):
        load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path / name)), DatasetMixtureConfig())


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_variables_of_the_template_are_as_written(tmp_path, name):
    """Arrow writes 1 as 1.0 beside another row's 1.5, and inner keys in the first row's order."""
    variables = [{"budget": 1, "of": {"a": 1, "b": 2}}, {"budget": 1.5, "of": {"b": 1, "a": 2}}]
    rows = [row | {"chat_template_kwargs": of} for row, of in zip(rows_of("a"), variables, strict=True)]
    (tmp_path / name).write_text(json.dumps(rows) if name == "train.json" else "\n".join(map(json.dumps, rows)))
    pairs = load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path / name)), DatasetMixtureConfig())["train"]
    assert json.dumps(pairs["chat_template_kwargs"][:]) == json.dumps(variables)


def test_rows_that_an_earlier_version_read_are_not_taken(tmp_path, monkeypatch):
    script_args = ConsistencyScriptArguments(dataset_name=str(tmp_path / "train.jsonl"))
    (tmp_path / "train.jsonl").write_text(json.dumps(TIMES))
    with monkeypatch.context() as earlier:
        earlier.setattr(local_data, "_with_texts", lambda kind: kind)
        earlier.setattr(local_data, "code_digest", lambda libraries: "earlier")
        (row,) = load_pairs(script_args, DatasetMixtureConfig())["train"]
        assert row["biased_answer"] == datetime(1969, 7, 20)
    assert load_pairs(script_args, DatasetMixtureConfig())["train"].to_list() == [TIMES]


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


@pytest.mark.parametrize("readme", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_csv_row_of_another_length_is_refused_wherever_it_is(tmp_path, readme, streaming):
    """pandas takes the first of one field too many for an index: the clean prompt was lost, the other took its place."""
    (tmp_path / "train.csv").write_text("clean_prompt,perturbed_prompt\na,b,c\nd,e,f\n")
    if readme:
        (tmp_path / "README.md").write_text(README.format(""))
    mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path=str(tmp_path))], streaming=streaming)
    one = ConsistencyScriptArguments(dataset_name=str(tmp_path), dataset_streaming=streaming)
    for options in ((one, DatasetMixtureConfig()), (ConsistencyScriptArguments(), mixture)):
        with pytest.raises(
            ConsistencyError, match=r"train\.csv, line 2: not as many fields \(3\) as the header has \(2\)"
        ):
            load_pairs(*options)


@pytest.mark.parametrize("name", ["train.CSV", "train.csv.gz", "train.csv.bz2", "train.csv.xz"])
@pytest.mark.parametrize("fault", ["a,b,c", "a", "a,b\n\nc"])
def test_a_csv_row_of_another_length_is_refused_however_the_file_is_called(tmp_path, name, fault):
    content = f"clean_prompt,perturbed_prompt\n{fault}\n".encode()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(os.path.splitext(name)[1], bytes)
    (tmp_path / name).write_bytes(pack(content))
    said = rf"{re.escape(name)}, line \d: not as many fields"
    with pytest.raises(ConsistencyError, match=said):
        load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path)), DatasetMixtureConfig())
    with pytest.raises(ConsistencyError, match=said):
        list(read_rows(str(tmp_path)))


@pytest.mark.parametrize("name", ["train.csv", "."])
def test_an_empty_field_is_nothing_wherever_it_is_read(tmp_path, name):
    write_rows(tmp_path / "train.csv", "train", tools="", chat_template_kwargs="")
    found = load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path / name)), DatasetMixtureConfig())["train"]
    assert list(found) == _load_splits(str(tmp_path / name))["train"]
    assert found[0]["tools"] is None


NUMERAL_TEXTS = {"answer": "007", "note": "1.50", "biased_answer": "True"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["train.csv", "."])
def test_texts_that_look_like_numbers_are_texts_in_every_csv(tmp_path, name, streaming):
    write_rows(tmp_path / "train.csv", "train", **NUMERAL_TEXTS)
    path = str(tmp_path / name)
    mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path=path)], streaming=streaming)
    one = ConsistencyScriptArguments(dataset_name=path, dataset_streaming=streaming)
    for pairs in (load_pairs(one, DatasetMixtureConfig()), load_pairs(ConsistencyScriptArguments(), mixture)):
        for row in pairs["train"]:
            assert {column: row[column] for column in NUMERAL_TEXTS} == NUMERAL_TEXTS
    assert _load_splits(path)["train"] == list(load_pairs(one, DatasetMixtureConfig())["train"])


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
    path.write_text(json.dumps(rows) if name == "train.json" else "\n".join(map(json.dumps, rows)))
    one = ConsistencyScriptArguments(dataset_name=str(path), dataset_streaming=streaming)
    mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path=str(path))], streaming=streaming)
    in_training = load_pairs(one, DatasetMixtureConfig())["train"]
    in_mixture = load_pairs(ConsistencyScriptArguments(), mixture)["train"]
    for found in (in_training, in_mixture, _load_splits(str(path))["train"]):
        assert [json.dumps(parse_json_column(row["tools"])) for row in found] == list(map(json.dumps, tools))


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
    path.write_text("\n".join(map(json.dumps, rows)))
    one = ConsistencyScriptArguments(dataset_name=str(path), dataset_streaming=streaming)
    for found in (load_pairs(one, DatasetMixtureConfig())["train"], _load_splits(str(path))["train"]):
        assert [json.dumps(without_none(row)) for row in found] == [json.dumps(without_none(row)) for row in rows]


@pytest.mark.parametrize("number", [0.7, 2**70])
def test_a_number_that_would_be_read_otherwise_is_refused(tmp_path, number):
    """`datasets` reads 0.7 as 0.7000000000000001 where it keeps JSON."""
    rows = [{"clean_prompt": conversation(a=number), "perturbed_prompt": conversation(a=number)}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = ConsistencyScriptArguments(dataset_name=str(tmp_path / "train.jsonl"))
    with pytest.raises(ConsistencyError, match=r"would change a number in .*. Write such numbers as text"):
        load_pairs(one, DatasetMixtureConfig())


def test_such_numbers_elsewhere_are_no_fault(tmp_path):
    rows = [row | {"notes": of} for row, of in zip(rows_of("a"), ({"a": 0.7}, {"b": "x"}), strict=True)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = ConsistencyScriptArguments(dataset_name=str(tmp_path / "train.jsonl"))
    assert load_pairs(one, DatasetMixtureConfig())["train"]["notes"][0]["a"] == pytest.approx(0.7)


def test_texts_beside_numbers_in_a_column_stay_texts(tmp_path):
    rows = [
        row | {"note": of_row} for row, of_row in zip(rows_of("a", count=4), (7, "42", "null", "[1]"), strict=True)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = ConsistencyScriptArguments(dataset_name=str(tmp_path / "train.jsonl"))
    assert load_pairs(one, DatasetMixtureConfig())["train"]["note"][:] == [7, "42", "null", "[1]"]


def test_tools_whose_structure_the_metadata_say_stay_that(tmp_path):
    rows = [row | {"tools": [{"name": "find"}]} for row in rows_of("a")]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    features = "".join(f"  - name: {column}\n    dtype: string\n" for column in rows[0] if column != "tools")
    of_tools = "  - name: tools\n    list:\n    - name: name\n      dtype: string\n"
    files = "configs:\n- config_name: default\n  data_files: train.jsonl\n"
    (tmp_path / "README.md").write_text(f"---\n{files}dataset_info:\n  features:\n{features}{of_tools}---\n")
    assert load_as_written(str(tmp_path), split="train")[0]["tools"] == [{"name": "find"}]


README = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.csv\n{}---\n"


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
    mixture = DatasetMixtureConfig(datasets=[entry], streaming=streaming)
    pairs = load_pairs(ConsistencyScriptArguments(), mixture)["train"]
    assert [row["biased_answer"] for row in pairs] == ["NA", "NA"]


@pytest.mark.parametrize("own", ["", "  na_values: NA\n"])
def test_na_is_text_where_a_readme_names_the_files_unless_it_says_otherwise(tmp_path, own):
    write_rows(tmp_path / "train.csv", "train", biased_answer="NA")
    (tmp_path / "README.md").write_text(README.format(own))
    expected = [None if own else "NA"] * 2
    pairs = load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path)), DatasetMixtureConfig())
    for rows in (pairs["train"], _load_splits(str(tmp_path))["train"], read_rows(str(tmp_path))):
        assert [row["biased_answer"] for row in rows] == expected


def test_a_mixture_is_split_by_question_and_always_alike(tmp_path):
    """At random rows, each process and each run would have had others, and a question would be on both sides."""
    rows = [row | {"source_id": number // 4} for number, row in enumerate(rows_of("a", count=80))]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def load(size):
        mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path=str(tmp_path / "a.jsonl"))], test_split_size=size)
        return load_pairs(ConsistencyScriptArguments(), mixture)

    for size, count in ((0.25, 20), (10, 12)):
        found, again = load(size), load(size)
        assert {split: rows[:] for split, rows in found.items()} == {split: rows[:] for split, rows in again.items()}
        assert not {*found["train"]["source_id"]} & {*found["test"]["source_id"]}
        assert (len(found["train"]), len(found["test"])) == (80 - count, count)
        assert found["train"]["source_id"] == sorted(found["train"]["source_id"]), "in the order of the data"
    for size in (0, -0.1, 1.0, 80, float("nan")):
        with pytest.raises(ConsistencyError, match="`test_split_size` must be a share between 0 and 1, or fewer rows"):
            load(size)
    with pytest.raises(ConsistencyError, match="`test_split_size` of 79 leaves no row for training"):
        load(79)


def test_rows_that_the_shares_of_a_mixture_leave_out_are_counted(tmp_path, caplog):
    """TRL takes the first rows of each data set, and said nothing of the others."""
    names = [str(tmp_path / f"{of}.jsonl") for of in "ab"]
    for name, count in zip(names, (10, 4), strict=True):
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows_of("a", count=count)))

    def load(*shares):
        caplog.clear()
        entries = [DatasetConfig(path=name, fraction=share) for name, share in zip(names, shares, strict=False)]
        found = load_pairs(ConsistencyScriptArguments(), DatasetMixtureConfig(datasets=entries))
        return len(found["train"]), caplog.text

    rows, said = load(0.1, 0.2)
    assert rows == 6
    assert f"and the others left out: 2 of 10 ({names[0]}), 4 of 4 ({names[1]})." in said
    assert load(10, 4) == (14, "")
    with pytest.raises(
        ConsistencyError, match=r"`fraction` is 0\.3, a share of the mixture, and `datasets` names one data set"
    ):
        load(0.3)


def test_streams_of_a_mixture_come_one_after_the_other(tmp_path, caplog):
    names = [str(tmp_path / f"{of}.jsonl") for of in "ab"]
    for name in names:
        write_rows(Path(name), "a")
    for count, said in ((1, False), (2, True)):
        mixture = DatasetMixtureConfig(datasets=[DatasetConfig(path=name) for name in names[:count]], streaming=True)
        load_pairs(ConsistencyScriptArguments(), mixture)
        assert (
            f"`datasets` are streamed one after the other: training reads {names[0]} to its end first" in caplog.text
        ) is said


@pytest.mark.parametrize("share", [-0.5, float("nan"), float("inf")])
def test_a_share_that_is_none(tmp_path, share):
    """A negative one left its data set out in silence."""
    write_rows(tmp_path / "a.jsonl", "a")
    entries = [DatasetConfig(path=str(tmp_path / "a.jsonl"), fraction=of) for of in (share, 1.0)]
    with pytest.raises(ConsistencyError, match="`fraction` must be a finite number of at least 0"):
        load_pairs(ConsistencyScriptArguments(), DatasetMixtureConfig(datasets=entries))


def test_files_of_a_folder_in_a_folder_are_split_by_their_names(tmp_path):
    for name in ("train", "test", "test_old"):
        write_rows(tmp_path / "sub" / f"{name}.jsonl", name)
    entry = DatasetConfig(path=str(tmp_path), data_dir="sub", split="test")
    found = load_pairs(ConsistencyScriptArguments(), DatasetMixtureConfig(datasets=[entry]))
    assert found["train"]["clean_prompt"][:] == ["test 0", "test 1"]


@pytest.mark.parametrize("name", ["more.tsv", "test.ndjson", "old/data.arrow", "test.tsv.gz", "test.zip", "test.xlsx"])
@pytest.mark.parametrize("beside", [True, False])
def test_a_file_of_data_that_is_not_read_is_named(tmp_path, name, beside):
    """It was left out in silence beside files that are read, and split by a guess alone."""
    if beside:
        write_rows(tmp_path / "train.jsonl", "train")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    said = f"{name.split('/')[-1]} is not read"
    for read in (_load_splits, lambda folder: list(read_rows(folder))):
        with pytest.raises(ConsistencyError, match=said):
            read(str(tmp_path))
    entry = DatasetConfig(path=str(tmp_path))
    for options in ((str(tmp_path), DatasetMixtureConfig()), (None, DatasetMixtureConfig(datasets=[entry]))):
        with pytest.raises(ConsistencyError, match=said):
            load_pairs(ConsistencyScriptArguments(dataset_name=options[0]), options[1])


def test_compressed_files_of_a_folder_are_split_by_their_names_where_questions_are_read(tmp_path):
    for name in ("test", "test_old"):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows_of(name))
    assert list(read_rows(str(tmp_path), split="test")) == rows_of("test")


def test_answers_kept_in_a_folder_of_data_are_no_data(tmp_path):
    from trl_consistency.data.folders import split_files

    (tmp_path / "_answers").mkdir()
    for name in ("train.jsonl", "_answers/answers.jsonl"):
        (tmp_path / name).write_text('{"a": 1}\n')
    assert split_files(tmp_path) == {"train": [tmp_path / "train.jsonl"]}


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
        elif name.endswith(".json"):
            (tmp_path / name).write_text(json.dumps(rows))
        else:
            (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    arguments = ConsistencyScriptArguments(dataset_name=str(tmp_path), dataset_streaming=place == "stream")
    with pytest.raises(ConsistencyError, match="a column has one type in all files and splits"):
        list(load_pairs(arguments, DatasetMixtureConfig())["train"])


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
        load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path)), DatasetMixtureConfig())


def test_later_numbers_of_another_size_and_missing_keys_are_read(tmp_path):
    write_rows(tmp_path / "train-00000-of-00002.jsonl", "a", count=1, score=0.5, about={"a": 1, "b": "x"})
    write_rows(tmp_path / "train-00001-of-00002.jsonl", "b", count=1, score=2, about={"b": "y"})
    found = load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path)), DatasetMixtureConfig())["train"]
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
    path.write_text(
        "".join(f"{json.dumps(row | {'about': [{'id': of}]})}\n" for row, of in zip(FIRST, ids, strict=True))
    )

    def load():
        return load_pairs(ConsistencyScriptArguments(dataset_name=str(path)), DatasetMixtureConfig())["train"]

    if changed is None:
        assert [about[0]["id"] for about in load()["about"]] == ids
    else:
        with pytest.raises(ConsistencyError, match=f"would read {changed} as .* Write such numbers as text"):
            load()


def test_a_row_over_several_lines_with_a_large_number_is_read(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row | {'score': 1e300}, indent=1)}\n" for row in FIRST))
    found = load_pairs(ConsistencyScriptArguments(dataset_name=str(path)), DatasetMixtureConfig())["train"]
    assert found["score"][:] == [1e300] * len(FIRST)


@pytest.mark.parametrize("name", ["pairs.json", "pairs.jsonl"])
def test_a_key_given_twice_is_refused(tmp_path, name):
    """Rows with template variables, and lists of rows, are not read by pyarrow alone."""
    row = '{"clean_prompt": "a", "clean_prompt": "b", "perturbed_prompt": "c", "chat_template_kwargs": {"x": 1}}'
    (tmp_path / name).write_text(f"[{row}]" if name.endswith(".json") else f"{row}\n{row}\n")
    with pytest.raises(ConsistencyError, match=r"is given twice|was specified twice"):
        load_pairs(ConsistencyScriptArguments(dataset_name=str(tmp_path / name)), DatasetMixtureConfig())

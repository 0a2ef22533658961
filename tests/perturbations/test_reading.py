import json

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, LargeList, List, Value, load_dataset

from trl_consistency import ConsistencyError
from trl_consistency.data.class_names import named_rows
from trl_consistency.perturbations.reading import read_rows


ROWS = [{"question": "Größe?\u2028", "answer": "x"}, {"question": "Two,\nlines?", "answer": "y"}]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "folder"])
def test_rows_of_every_kind_of_file(tmp_path, kind):
    path = tmp_path / f"questions.{kind}"
    if kind == "folder":
        path.mkdir()
        Dataset.from_list(ROWS).to_parquet(path / "train.parquet")
    elif kind.startswith("json"):
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n", encoding="utf-8")
    else:
        getattr(Dataset.from_list(ROWS), f"to_{kind}")(path)
    assert list(read_rows(str(path))) == ROWS


def test_column_that_is_null_for_long(tmp_path):
    """`datasets` would take it for null in all rows."""
    path = tmp_path / "questions.jsonl"
    rows = [{"question": "x" * 200, "safety_fact": None}] * 60_000 + [{"question": "y", "safety_fact": "z"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    *_, last = read_rows(str(path))
    assert last["safety_fact"] == "z"


FAULTS = {
    "not JSON": ("a.jsonl", '{"question": "x"}\n{"question": \n', "line 2: not valid JSON"),
    "not UTF-8": ("a.jsonl", b'{"question": "\xff"}\n', "line 1: not valid JSON"),
    "JSON array": ("a.json", '[\n{"question": "x"}]', "line 1: not valid JSON .* Write one JSON object a line"),
    "array on one line": ("a.json", '[{"question": "x"}]', "line 1: not a JSON object. Write one JSON object a line"),
    "field too many": (
        "a.csv",
        "question,answer\nx,y\nx,y,z\n",
        "line 3: not as many fields as the header has \\(2\\)",
    ),
    "field missing": ("a.csv", "question,answer\nx\n", "line 2: not as many fields"),
    "NaN": ("a.jsonl", '{"answer": "x"}\n{"answer": NaN}\n', "line 2: not valid JSON \\(NaN is not a number\\)"),
    "number beyond all": ("a.jsonl", '{"answer": [1e999]}\n', "line 1: not valid JSON \\(1e999 is not a number\\)"),
    "key given twice": (
        "a.jsonl",
        '{"answer": "x", "question": "y", "answer": "z"}\n',
        "line 1: not valid JSON \\(the key 'answer' is given twice\\)",
    ),
    "columns of one name": (
        "a.csv",
        "question,answer,answer\nx,y,z\n",
        "line 1: two columns are called `answer`. Rename one of them",
    ),
    "not Parquet": ("a.parquet", "question", "a.parquet cannot be read"),
    "another type": ("a.txt", "question", "must end in .jsonl, .json, .csv, .parquet"),
}


@pytest.mark.parametrize(("name", "content", "reason"), FAULTS.values(), ids=FAULTS)
def test_faulty_files(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConsistencyError, match=reason):
        list(read_rows(str(path)))


def test_two_columns_of_one_name_in_parquet(tmp_path):
    path = tmp_path / "questions.parquet"
    table = pyarrow.table([["x"], ["y"], ["z"]], names=["question", "answer", "answer"])
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(ConsistencyError, match=r"two columns are called `answer`\. Rename one of them"):
        list(read_rows(str(path)))


def test_what_datasets_keeps_as_json_in_parquet_is_read_as_datasets_reads_it(tmp_path):
    """`datasets` keeps dicts with various keys as JSON, of which pyarrow gives the text."""
    rows = [
        {
            "tools": [{"name": "find", "at": {"default": 0.7}}],
            "messages": [{"role": "user", "tool_calls": [{"a": 1}]}],
        },
        {"tools": [{"title": None}], "messages": [{"role": "user", "tool_calls": [{"b": [1]}]}]},
        {"tools": None, "messages": None},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kept = load_dataset("json", data_files=str(tmp_path / "a.jsonl"), split="train")
    kept.to_parquet(tmp_path / "a.parquet")
    assert kept[1] == rows[1]
    assert list(read_rows(str(tmp_path / "a.parquet"))) == list(kept)


@pytest.mark.parametrize("kind", ["parquet", "folder"])
def test_classes_are_read_by_their_names(tmp_path, kind):
    """Their numbers were: the answer to "Is it?" was 1, and a request of the category 0 was not harmful."""
    features = Features({"question": Value("string"), "answer": ClassLabel(names=["no", "yes"])})
    rows = Dataset.from_dict({"question": ["Is it?", "Was it?", "?"], "answer": [1, 0, -1]}, features=features)
    path = tmp_path / f"questions.{kind}"
    if kind == "folder":
        path.mkdir()
        rows.to_parquet(path / "train.parquet")
    else:
        rows.to_parquet(path)
    assert [row["answer"] for row in read_rows(str(path))] == ["yes", "no", None]


def test_classes_in_lists_are_read_by_their_names(tmp_path):
    """A cue suggested the answer "1"."""
    cities = ClassLabel(names=["Paris", "Lyon", "Rome"])
    columns = {
        "wrong_answers": List(cities),
        "aliases": LargeList(cities),
        "choices": List({"text": Value("string"), "of": cities}),
        "numbers": List(Value("int64")),
        "named": {"city": cities},
    }
    row = {
        "wrong_answers": [1, 2, -1],
        "aliases": [],
        "choices": [{"text": "1", "of": 1}],
        "numbers": [1],
        "named": {"city": 2},
    }
    rows = Dataset.from_list([row, dict.fromkeys(columns)], features=Features(columns))
    rows.to_parquet(tmp_path / "questions.parquet")
    named = {
        "wrong_answers": ["Lyon", "Rome", None],
        "aliases": [],
        "choices": [{"text": "1", "of": "Lyon"}],
        "numbers": [1],
        "named": {"city": "Rome"},
    }
    for found in (read_rows(str(tmp_path / "questions.parquet")), named_rows(rows)):
        first, second = found
        assert first == named
        assert second["wrong_answers"] is second["choices"] is None


@pytest.mark.parametrize(
    ("feature", "value", "named"),
    [
        ({"names": ["no", "no", "yes"], "_type": "ClassLabel"}, 2, "yes"),
        ({"names": ["no", "yes"]}, 1, "yes"),
        ({"num_classes": 2, "_type": "ClassLabel"}, 1, 1),
        ({"feature": {"names": ["no", "yes"], "_type": "ClassLabel"}, "_type": "NewList"}, [1, 0], ["yes", "no"]),
        ([{"names": ["no", "yes"], "_type": "ClassLabel"}], [1], ["yes"]),
        (
            {"feature": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}, "_type": "Sequence"},
            {"label": [1, 0]},
            {"label": ["yes", "no"]},
        ),
    ],
)
def test_classes_that_other_versions_have_written(tmp_path, feature, value, named):
    """`datasets` itself cannot read all of these."""
    table = pyarrow.Table.from_pylist([{"answer": value}])
    written = json.dumps({"info": {"features": {"answer": feature}}})
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": written}), tmp_path / "a.parquet")
    assert [row["answer"] for row in read_rows(str(tmp_path / "a.parquet"))] == [named]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_classes_that_a_folders_card_declares(tmp_path, suffix):
    features = [
        {"name": "question", "dtype": "string"},
        {"name": "answer", "dtype": {"class_label": {"names": {"0": "no", "1": "yes"}}}},
    ]
    header = yaml.safe_dump({"dataset_info": {"features": features}})
    (tmp_path / "README.md").write_text(f"---\n{header}---\n")
    rows = {"jsonl": ['{"question": "Is it?", "answer": 1}', '{"question": "Was it?", "answer": -1}']}
    rows["csv"] = ["question,answer", "Is it?,1", "Was it?,-1"]
    (tmp_path / f"train.{suffix}").write_text("\n".join(rows[suffix]))
    assert [row["answer"] for row in read_rows(str(tmp_path))] == ["yes", None]


@pytest.mark.parametrize("said", ["features: x", "features: [{a: b}]", "features: [{name: a, dtype: no_type}]"])
def test_a_folders_card_whose_columns_cannot_be_read(tmp_path, said):
    (tmp_path / "README.md").write_text(f"---\ndataset_info:\n  {said}\n---\n")
    (tmp_path / "train.jsonl").write_text('{"question": "Is it?", "answer": "yes"}')
    with pytest.raises(
        ConsistencyError, match=r"README.md: `dataset_info` cannot be read .*: correct it, or remove it\."
    ):
        list(read_rows(str(tmp_path)))


def test_missing_file_and_data_set(tmp_path):
    with pytest.raises(ConsistencyError, match=r"There is no file nothing\.csv"):
        read_rows("nothing.csv")
    with pytest.raises(ConsistencyError, match="cannot be loaded"):
        list(read_rows(str(tmp_path / "nothing")))

"""Which rows are loaded: of a file that was replaced, of a folder of files, and of a mixture."""

import gzip
import json
import os
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, load_from_disk
from trl import DatasetMixtureConfig
from trl.scripts.utils import DatasetConfig

from tests.helpers.loaded_pairs import load_mixture, load_one, rows_of, write_lines, write_rows
from trl_consistency import ConsistencyError
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


@pytest.mark.parametrize("form", ["name", "list", "splits", "in a folder", "pattern"])
def test_the_very_name_of_a_file_is_no_pattern(tmp_path, form):
    """`data[1].json` read the rows of data1.json."""
    for name, answer in (("data[1].json", "mine"), ("data1.json", "other")):
        write(tmp_path / name, answer)
    file = str(tmp_path / "data[1].json")
    files = {"list": [file], "splits": {"train": file}, "in a folder": "data[1].json"}.get(form, file)
    if form == "pattern":
        files = str(tmp_path / "data?.json")
    entry = DatasetConfig(path="json", data_files=files, data_dir=str(tmp_path) if form == "in a folder" else None)
    found = load_pairs(ConsistencyScriptArguments(), DatasetMixtureConfig(datasets=[entry]))["train"]["clean_prompt"][
        :
    ]
    assert found == (["other"] if form == "pattern" else ["mine"])


# The split of each file, None for what is no data
FOLDERS = {
    "all names": {"train.jsonl": "train", "test.jsonl": "test", "hard.jsonl": "hard"},
    "test wordings": {"train.jsonl": "train", "test.jsonl": "test", "test_wordings.jsonl": "test_wordings"},
    "old": {"train.jsonl": "train", "train_old.jsonl": "train_old"},
    "backup": {"train.jsonl": "train", "test.jsonl": "test", "backup/train.jsonl": "backup"},
    "no split": {"pairs.jsonl": "pairs", "targets.jsonl": "targets"},
    "one file": {"pairs.jsonl": "train"},
    "one training file": {"training_pairs.jsonl": "train"},
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
        found = load_mixture(tmp_path)
        assert found["train"]["clean_prompt"][:] == expected["train"]
        return
    if command == "train":
        found = load_one(tmp_path)
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
        load_one(tmp_path)


def test_files_of_a_folder_in_a_folder_are_split_by_their_names(tmp_path):
    for name in ("train", "test", "test_old"):
        write_rows(tmp_path / "sub" / f"{name}.jsonl", name)
    found = load_mixture(DatasetConfig(path=str(tmp_path), data_dir="sub", split="test"))
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
    for load in (load_one, load_mixture):
        with pytest.raises(ConsistencyError, match=said):
            load(tmp_path)


def test_what_save_to_disk_wrote_is_not_read_with_what_datasets_keeps_beside_it(tmp_path):
    """`map` keeps its rows as a table beside the saved ones. Both were read, for twice as many pairs."""
    rows = Dataset.from_list(rows_of("train"))
    DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "data")
    load_from_disk(tmp_path / "data").map(lambda row: {"clean_prompt": row["clean_prompt"].upper()})
    for folder in (tmp_path / "data", tmp_path / "data" / "train"):
        for read in (_load_splits, lambda folder: list(read_rows(folder)), load_one, load_mixture):
            with pytest.raises(ConsistencyError, match=r"arrow is not read.*load_from_disk.*to_parquet"):
                read(str(folder))


@pytest.mark.parametrize("names", [("train", "test", "test_old"), ("data/train", "data/test", "data/test_old")])
def test_a_configuration_that_a_folder_does_not_name_is_refused(tmp_path, names):
    """With `default`, `datasets` read the folder by its own rules: the split `test` had the rows of `test_old.jsonl`, too."""
    for name in names:
        write_rows(tmp_path / f"{name}.jsonl", name)
    for load in (
        lambda: load_mixture(DatasetConfig(path=str(tmp_path), name="default", split="test")),
        lambda: list(read_rows(str(tmp_path), "default", "test")),
        lambda: load_pairs(
            ConsistencyScriptArguments(dataset_name=str(tmp_path), dataset_config="default"), DatasetMixtureConfig()
        ),
    ):
        with pytest.raises(ConsistencyError, match="The configuration `default` is asked for"):
            load()


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


def test_a_mixture_is_split_by_question_and_always_alike(tmp_path):
    """At random rows, each process and each run would have had others, and a question would be on both sides."""
    rows = [row | {"source_id": number // 4} for number, row in enumerate(rows_of("a", count=80))]
    write_lines(tmp_path / "a.jsonl", rows)

    def load(size):
        return load_mixture(tmp_path / "a.jsonl", test_split_size=size)

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
    facts = [row | {"perturbed_prompt": str(number // 4)} for number, row in enumerate(rows_of("a", count=80))]
    write_lines(tmp_path / "a.jsonl", facts)
    bare = load(0.25)
    assert not {*bare["train"]["perturbed_prompt"]} & {*bare["test"]["perturbed_prompt"]}


@pytest.mark.parametrize("has_clean", [True, False])
def test_preferences_are_split_by_prompt(tmp_path, has_clean):
    """Their perturbed prompt is called `prompt`, and was on both sides."""
    rows = [{"prompt": f"Q{number % 20}?", "chosen": "A", "rejected": "B"} for number in range(80)]
    if has_clean:
        rows = [row | {"clean_prompt": f"It is {number}. {row['prompt']}"} for number, row in enumerate(rows)]
    write_lines(tmp_path / "a.jsonl", rows)
    found = load_mixture(tmp_path / "a.jsonl", test_split_size=0.1)
    assert len(found["test"]) == 8
    assert not {*found["train"]["prompt"]} & {*found["test"]["prompt"]}


def test_a_split_is_not_far_larger_or_smaller_than_asked_for(tmp_path):
    """A question with half of the rows took these from training, without a word."""

    def load(size, *sizes):
        """Loads pairs of questions with these many rows."""
        of_row = [source for source, count in enumerate(sizes) for _ in range(count)]
        rows = [row | {"source_id": of} for row, of in zip(rows_of("a", count=len(of_row)), of_row, strict=True)]
        write_lines(tmp_path / "a.jsonl", rows)
        return load_mixture(tmp_path / "a.jsonl", test_split_size=size)

    for size in (0.1, 8):
        found = load(size, 40, *[2] * 20)
        assert len(found["test"]) == 8
        assert list(found["train"]["source_id"]).count(0) == 40
    for sizes in ((40, 40), (40, 38, 2), (80,)):
        with pytest.raises(ConsistencyError, match="`test_split_size` of 8 cannot be drawn from these 80 rows"):
            load(8, *sizes)


def test_rows_that_the_shares_of_a_mixture_leave_out_are_counted(tmp_path, caplog):
    """TRL takes the first rows of each data set, and said nothing of the others."""
    names = [str(tmp_path / f"{of}.jsonl") for of in "ab"]
    for name, count in zip(names, (10, 4), strict=True):
        write_rows(Path(name), "a", count=count)

    def load(*shares):
        caplog.clear()
        entries = [DatasetConfig(path=name, fraction=share) for name, share in zip(names, shares, strict=False)]
        found = load_mixture(*entries)
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
        load_mixture(*names[:count], streaming=True)
        assert (
            f"`datasets` are streamed one after the other: training reads {names[0]} to its end first" in caplog.text
        ) is said


@pytest.mark.parametrize("share", [-0.5, float("nan"), float("inf")])
def test_a_share_that_is_none(tmp_path, share):
    """A negative one left its data set out in silence."""
    write_rows(tmp_path / "a.jsonl", "a")
    entries = [DatasetConfig(path=str(tmp_path / "a.jsonl"), fraction=of) for of in (share, 1.0)]
    with pytest.raises(ConsistencyError, match="`fraction` must be a finite number of at least 0"):
        load_mixture(*entries)

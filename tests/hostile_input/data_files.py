"""Hostile input: data files."""

import gzip
import json
import os

from datasets import DatasetDict, load_dataset

from tests.helpers.models import make_pairs
from tests.hostile_input.damage import cut
from tests.hostile_input.room import CHAT, PAIR, USER, Case, Room
from trl_consistency.cli import main as cli


def folder(room: Room, *names: str) -> str:
    """A folder of data files of those names, each with two rows."""
    for name in names:
        room.file(f"data/{name}", [CHAT, CHAT])
    return str(room.path / "data")


def shards(room: Room, *rows: dict) -> str:
    """A folder of data files of one split, each with one of the rows."""
    for number, row in enumerate(rows):
        room.file(f"data/train-{number:05d}-of-{len(rows):05d}.jsonl", [row])
    return str(room.path / "data")


def calling(price: float) -> dict:
    """A pair whose assistant has called a tool."""
    call = {"type": "function", "function": {"name": "buy", "arguments": {"price": price}}}
    turns = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "Done."}]
    return {"clean_prompt": turns, "perturbed_prompt": turns}


TOO_MANY_FIELDS = "clean_prompt,perturbed_prompt\nx,a,b\n"


def of_another_folder(room: Room) -> None:
    """`datasets` keeps the rows of each folder under its name alone."""
    room.monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", room.path / "cache")
    load_dataset(str(room.file("elsewhere/pairs/train.jsonl", [CHAT]).parent))
    room.train(dataset_name="pairs")


CASES: list[Case] = [
    Case(
        "no file",
        "The file is not there",
        "There is no file gone.jsonl.",
        lambda room: room.train(dataset_name="gone.jsonl"),
    ),
    Case(
        "no name",
        "No data are named",
        "No data: give `dataset_name` (a hub data set, a folder or a file) or `datasets`.",
        lambda room: room.train(dataset_name=""),
    ),
    *(
        Case(
            f"data folder with {what}",
            f"A folder with {what} instead of a file, whose rows would be missing",
            f"…data: test.jsonl is {what}: copy the file itself there.",
            lambda room, make=make: (
                folder(room, "train.jsonl"),
                make(room.path / "data" / "test.jsonl"),
                room.train(dataset_name=str(room.path / "data")),
            ),
        )
        for what, make in (
            ("a link to nothing", lambda path: path.symlink_to(path.parent / "gone")),
            ("a pipe or a device", os.mkfifo),
        )
    ),
    Case(
        "data folder with a linked folder",
        "A folder with a link to a folder of data: its rows would be missing",
        "…data: test is a link to a folder, which is not followed: copy the folder itself there.",
        lambda room: (
            room.file("elsewhere/a.jsonl", [CHAT]),
            folder(room, "train.jsonl"),
            (room.path / "data" / "test").symlink_to(room.path / "elsewhere"),
            *((room.path / "elsewhere" / name).symlink_to(room.path / "elsewhere") for name in "xyz"),
            room.train(dataset_name=str(room.path / "data")),
        ),
    ),
    Case(
        "file type",
        "A file of another type",
        "…pairs.txt: a data file must end in .jsonl, .json, .csv, .parquet.",
        lambda room: room.train(dataset_name=str(room.file("pairs.txt", "x"))),
    ),
    Case(
        "empty file",
        "An empty file",
        "…pairs.jsonl is empty.",
        lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", ""))),
    ),
    Case(
        "cut JSON",
        "A JSON Lines file that was cut short",
        "…pairs.jsonl cannot be read: JSON parse error: … in row 1",
        lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", json.dumps(PAIR) + '\n{"clean_pro'))),
    ),
    Case(
        "two types",
        "A column with text in one row and messages in another",
        "…row 1: `clean_prompt` is a list of messages, but a string in row 0: a column has one type…",
        lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", [PAIR, CHAT]))),
    ),
    Case(
        "another type in a later file",
        "A completion that is a number in the second file of a split, and text in the first",
        "…data cannot be loaded: `completion` holds 4 (int64), and string in the first rows of the data: a column has one type in all …",
        lambda room: room.train(dataset_name=shards(room, CHAT | {"completion": "Rome"}, CHAT | {"completion": 4})),
    ),
    Case(
        "an id that would be rounded",
        "A `source_id` above 2⁶³, which `datasets` reads as a number with a fraction",
        "…pairs.jsonl cannot be read: `datasets` would read 18446744073709551615 as 1.8446744073709552e+19. Write such numbers …",
        lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", [CHAT | {"source_id": 2**64 - 1}]))),
    ),
    Case(
        "a key twice in a list",
        "A key given twice in a .json file with a list of rows",
        "…pairs.json cannot be read: the key 'clean_prompt' is given twice",
        lambda room: room.train(
            dataset_name=str(
                room.file("pairs.json", '[{"clean_prompt": "a", "clean_prompt": "b", "perturbed_prompt": "c"}]')
            )
        ),
    ),
    Case(
        "CSV under another name",
        "A mixture with a CSV file under another ending, whose rows have more fields than the header",
        "…pairs.txt, line 2: not as many fields (3) as the header has (2). …",
        lambda room: room.train(
            f"datasets: [{{path: csv, data_files: {room.file('pairs.txt', TOO_MANY_FIELDS)}}}]\n",
            dataset_name="",
        ),
    ),
    Case(
        "a number in a tool call",
        "A tool call with a number that `datasets` would read otherwise (0.7 as 0.7000000000000001)",
        "…pairs.jsonl cannot be read: `datasets` would change a number in …. Write such numbers as text; the `arguments` of …",
        lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", [calling(0.7)]))),
    ),
    Case(
        "not UTF-8",
        "A file that is not in UTF-8",
        "`train_dataset` is not valid UTF-8 (…). Save the data in that encoding.",
        lambda room: room.train(
            dataset_name=str(room.file("pairs.jsonl", '{"clean_prompt": "Où?"}'.encode("latin-1")))
        ),
    ),
    Case(
        "deep JSON",
        "JSON nested so deep that it would overflow the stack",
        "…pairs.jsonl cannot be read: JSON parse error: … in row 0",
        lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", '{"clean_prompt": ' + "[" * 100_000))),
    ),
    Case(
        "deep JSON read by row",
        "The same, read row by row",
        "…pairs.jsonl, line 1: not valid JSON (maximum recursion depth exceeded…). Write one JSON object a line.",
        lambda room: (room.file("pairs.jsonl", '{"clean_prompt": ' + "[" * 100_000), room.lint()),
    ),
    Case(
        "surrogate",
        "Half a surrogate pair, which is not text",
        "…pairs.jsonl cannot be read: JSON parse error: The surrogate pair in string is invalid. in row 0",
        lambda room: room.train(
            dataset_name=str(room.file("pairs.jsonl", '{"clean_prompt": "a \\ud800", "perturbed_prompt": "b"}'))
        ),
    ),
    Case(
        "ragged CSV",
        "A CSV file with a field too many",
        "…pairs.csv, line 3: not as many fields (3) as the header has (2). Put text that holds a comma in double quotes, …",
        lambda room: room.train(
            dataset_name=str(room.file("pairs.csv", "clean_prompt,perturbed_prompt\na,b\na,b,c\n"))
        ),
    ),
    Case(
        "damaged compressed CSV",
        "A compressed CSV file whose bytes are damaged",
        "…pairs.csv.gz cannot be decompressed (…). Copy or make it again.",
        lambda room: room.train(
            dataset_name=str(
                room.file(
                    "data/pairs.csv.gz", gzip.compress(b"clean_prompt,perturbed_prompt\n")[:10] + b"\xff" * 50
                ).parent
            )
        ),
    ),
    Case(
        "ragged compressed CSV",
        "A compressed CSV file with a field too many in all rows",
        "…pairs.csv.gz, line 2: not as many fields (3) as the header has (2). Put text that holds a comma in double quotes, …",
        lambda room: room.train(
            dataset_name=str(
                room.file("data/pairs.csv.gz", gzip.compress(b"clean_prompt,perturbed_prompt\na,b,c\n")).parent
            )
        ),
    ),
    Case(
        "cut Parquet",
        "A Parquet file that was cut short",
        "…pairs.parquet cannot be read: …",
        lambda room: (
            make_pairs(2).to_parquet(room.path / "pairs.parquet"),
            room.train(dataset_name=str(cut(room.path / "pairs.parquet"))),
        ),
    ),
    Case(
        "not Parquet",
        "A file that only claims to be Parquet",
        "…pairs.parquet cannot be read: …",
        lambda room: room.train(dataset_name=str(room.file("pairs.parquet", room.pickled()))),
    ),
    Case(
        "empty folder",
        "A folder without data",
        "…empty cannot be loaded: The directory at … doesn't contain any data files",
        lambda room: ((room.path / "empty").mkdir(), room.train(dataset_name=str(room.path / "empty"))),
    ),
    Case(
        "several types in a folder",
        "A folder with files of several types",
        "…data has data files of several types (test.csv, train.jsonl): use one type, or name single files.",
        lambda room: room.train(dataset_name=folder(room, "train.jsonl", "test.csv")),
    ),
    *(
        Case(
            f"{name} in a folder",
            f"A folder with `{name}`, whose rows would be missing",
            f"…data: {name} is not read, since data files end in .jsonl, .json, .csv, .parquet. Convert it, or put it elsewhere.",
            lambda room, name=name: room.train(dataset_name=folder(room, "train.jsonl", name)),
        )
        for name in ("test.tsv", "test.ndjson", "test.arrow", "test.zip")
    ),
    Case(
        "an unread type in a folder of a mixture",
        "The same in a mixture",
        "…data: more.tsv is not read, since data files end in .jsonl, .json, .csv, .parquet. Convert it, …",
        lambda room: room.train(f"datasets: [{{path: {folder(room, 'train.jsonl', 'more.tsv')}}}]\n", dataset_name=""),
    ),
    Case(
        "an unread type in a folder, read by row",
        "The same for questions",
        "…data: more.tsv is not read, since data files end in .jsonl, .json, .csv, .parquet. Convert it, …",
        lambda room: cli(
            [
                *("pairs", "--dataset_name", folder(room, "train.jsonl", "more.tsv")),
                *("--output_dir", str(room.path / "out")),
            ]
        ),
    ),
    Case(
        "two files of a split",
        "A folder with two files that would be the same split",
        "…train.jsonl and …train.jsonl would both be the split `train`: remove or rename one of them.",
        lambda room: room.train(dataset_name=folder(room, "train.jsonl", "data/train.jsonl")),
    ),
    Case(
        "a shard is missing",
        "A folder whose files are numbered, and one number is missing",
        "…data: the split `train` has 2 of 3 files, number 00001 is missing. Download or copy it again.",
        lambda room: room.train(
            dataset_name=folder(room, "data/train-00000-of-00003.jsonl", "data/train-00002-of-00003.jsonl")
        ),
    ),
    Case(
        "no name of a split",
        "A file whose name cannot be the name of a split",
        "…test-old.jsonl: `test-old` cannot be the name of a split. Rename it, with letters, digits and `_` alone.",
        lambda room: room.train(dataset_name=folder(room, "train.jsonl", "test-old.jsonl")),
    ),
    Case(
        "a configuration of a folder",
        "A configuration name for a folder that has no configurations",
        "The configuration `small` is asked for, but the README.md of …data names none. Leave it out, or name it there.",
        lambda room: room.train(dataset_name=folder(room, "train.jsonl"), dataset_config="small"),
    ),
    Case(
        "a configuration of a folder of a mixture",
        "A configuration name for such a folder in a mixture",
        "The configuration `default` is asked for, but the README.md of …data names none. Leave it out, or name it there.",
        lambda room: room.train(
            f"datasets: [{{path: {folder(room, 'train.jsonl')}, name: default}}]\n", dataset_name=""
        ),
    ),
    Case(
        "a configuration of a file",
        "A configuration name for a file",
        "`dataset_config` is small, but …pairs.jsonl is a file, which has no configurations. Leave it out.",
        lambda room: room.train(dataset_config="small"),
    ),
    Case(
        "a split of a folder of questions",
        "A split of questions that the folder does not have",
        "`dataset_split` is `test`, but …data has only: train.",
        lambda room: cli(
            [
                *("pairs", "--dataset_name", folder(room, "train.jsonl"), "--dataset_split", "test"),
                *("--output_dir", str(room.path / "out")),
            ]
        ),
    ),
    Case(
        "data set script",
        "A folder whose data set is made by a Python script, which is never run",
        "…scripted cannot be loaded: Dataset scripts are no longer supported, but found scripted.py",
        lambda room: room.train(
            dataset_name=str(room.file("scripted/scripted.py", f"open({str(room.trap)!r}, 'w')").parent)
        ),
    ),
    Case(
        "save_to_disk",
        "A folder that `Dataset.save_to_disk` wrote",
        "…data-00000-of-00001.arrow is not read, since … Convert it (what `load_from_disk` of `datasets` loads, with `to_parquet`), …",
        lambda room: (
            make_pairs(2).save_to_disk(room.path / "saved"),
            room.train(dataset_name=str(room.path / "saved")),
        ),
    ),
    Case(
        "save_to_disk of splits",
        "A folder that `DatasetDict.save_to_disk` wrote, where other rows may be beside the saved ones",
        "…data-00000-of-00001.arrow is not read, since … Convert it (what `load_from_disk` of `datasets` loads, with `to_parquet`), …",
        lambda room: (
            DatasetDict(train=make_pairs(2)).save_to_disk(room.path / "saved"),
            room.train(dataset_name=str(room.path / "saved")),
        ),
    ),
    Case(
        "no such data set",
        "A data set of the Hub that cannot be reached",
        "nobody/nothing cannot be loaded: …",
        lambda room: room.train(dataset_name="nobody/nothing"),
    ),
    Case(
        "no such split",
        "A split that is not there",
        "`dataset_train_split` is `trian`, but the data set has only: train.",
        lambda room: room.train(dataset_train_split="trian"),
    ),
    Case(
        "no test split",
        "Evaluation without an evaluation split",
        "`dataset_test_split` is `test`, but the data set has only: train. For files, put train.jsonl and test.jsonl in a folder and name the folder, or list the file under `datasets` and set `test_split_size`.",
        lambda room: room.train(eval_strategy="epoch"),
    ),
    Case(
        "two sources",
        "Both ways of naming data at once",
        "Both `datasets` and `dataset_name` are given: keep one.",
        lambda room: room.train("datasets: [{path: pairs.jsonl}]\n"),
    ),
    Case(
        "split of a file",
        "A test share for data other than a mixture",
        "`test_split_size` is for `datasets`. List the file there in place of `dataset_name`, or leave it out.",
        lambda room: room.train(test_split_size=0.1),
    ),
    *(
        Case(
            f"test_split_size {size}",
            f"`test_split_size: {size}` of a mixture",
            f"`test_split_size` must be a share between 0 and 1, or fewer rows than there are (2), got {size}.",
            lambda room, size=size: room.train(
                f"datasets: [{{path: {room.file('a.jsonl', [CHAT, CHAT])}}}]\n", dataset_name="", test_split_size=size
            ),
        )
        for size in (-0.1, 1.0, 2)
    ),
    Case(
        "test_split_size of one question",
        "A test share for a mixture of one question, whose rows stay together",
        "`test_split_size` of 0.5 cannot be drawn from these 2 rows: those of one question, or with a prompt in common, stay together, up to 2 of them. Choose another size, or put the rows for testing in a file of their own.",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [CHAT, CHAT])}}}]\n", dataset_name="", test_split_size=0.5
        ),
    ),
    Case(
        "negative fraction",
        "A `fraction` below 0 in a mixture, which would leave the data out",
        "`fraction` must be a finite number of at least 0, got -0.5 for …a.jsonl.",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}, fraction: -0.5}}]\n", dataset_name=""
        ),
    ),
    Case(
        "fraction of one",
        "A `fraction` for the only data set of a mixture, of which all rows were taken",
        "`fraction` is 0.1, a share of the mixture, and `datasets` names one data set, which is all of it. Leave it out.",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}, fraction: 0.1}}]\n", dataset_name=""
        ),
    ),
    Case(
        "fractions of nothing",
        "A mixture in which each `fraction` is 0",
        "`fraction` is 0 for all `datasets`, which leaves no row: raise it for one.",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}, fraction: 0}}]\n", dataset_name=""
        ),
    ),
    *(
        Case(
            f"{key} beside a file of a mixture",
            f"A file of a mixture with `{key}`, which would be ignored",
            f"`{key}` is {value}, but …a.jsonl is a file: name the one or the other.",
            lambda room, key=key, value=value: room.train(
                f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}, {key}: {value}}}]\n", dataset_name=""
            ),
        )
        for key, value in (("data_files", "b.jsonl"), ("data_dir", "more"), ("name", "small"))
    ),
    Case(
        "a configuration of a mixture",
        "A configuration name for `dataset_name`, with `datasets` instead of it",
        "`dataset_config` is given, but the data are `datasets`: give each of those its `name` instead.",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [CHAT])}}}]\n", dataset_name="", dataset_config="x"
        ),
    ),
    Case(
        "a configuration of embedded pairs",
        "A configuration name for the embedded pairs, which have no configurations",
        "`dataset_config` is x, but embedded:organism has no configurations. Leave it out.",
        lambda room: room.train(dataset_name="embedded:organism", dataset_config="x"),
    ),
    *(
        Case(
            f"{name} alone",
            f"`{name}` without the data set that it belongs to",
            f"`{name}` is given without `{needed}`. Name the data set, or leave it out.",
            lambda room, name=name, given=given: room.train(**{name: "x"}, **given),
        )
        for name, needed, given in (
            ("anchor_dataset_config", "anchor_dataset_name", {}),
            ("anchor_dataset_split", "anchor_dataset_name", {}),
            ("guard_dataset_config", "guard_dataset_name", {"guard_split": "train", "guard_every": 1}),
            ("guard_control_split", "guard_control_dataset_name", {"guard_split": "train", "guard_every": 1}),
        )
    ),
    Case(
        "mixture without file",
        "A missing file in a mixture",
        "There is no file gone.jsonl.",
        lambda room: room.train("datasets: [{path: gone.jsonl}]\n", dataset_name=""),
    ),
    Case(
        "mixture of columns",
        "Data sets of a mixture that do not fit each other",
        "`datasets` cannot be loaded: a column has other types in one of them than in another. Write all in one format (The …",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}}}, {{path: {room.file('b.jsonl', [CHAT])}}}]\n",
            dataset_name="",
        ),
    ),
    Case(
        "mixture fraction",
        "A `fraction` for only some data sets of a mixture",
        "`datasets` cannot be loaded: `fraction` must be set for either all datasets in the mixture or none of them.",
        lambda room: room.train(
            f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}, fraction: 0.5}}, {{path: {room.file('b.jsonl', [PAIR])}}}]\n",
            dataset_name="",
        ),
    ),
    *(
        Case(
            f"README that names {path}",
            f"A folder of data whose README.md names `{path}`, outside it",
            f"…README.md names the data file {path}, which is outside the folder: it is not read. Put the file into the …",
            lambda room, path=path: room.train(
                dataset_name=str(
                    room.file(
                        "data/README.md",
                        f"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {path}\n---\n",
                    ).parent
                )
            ),
        )
        for path in ("/etc/hostname.jsonl", "../pairs.jsonl", "a/../../pairs.jsonl", "https://example.com/a.jsonl")
    ),
    Case(
        "README that names a folder outside, read by row",
        "The same with `data_dir`, for questions",
        "…README.md names the data file ../.., which is outside the folder: it is not read. Put the file into the folder, …",
        lambda room: cli(
            [
                *("pairs", "--dataset_name"),
                str(room.file("data/README.md", "---\nconfigs:\n- data_dir: ../..\n---\n").parent),
                *("--output_dir", str(room.path / "out")),
            ]
        ),
    ),
    Case(
        "control in a file name",
        "A file name that reverses the text around it",
        r"There is no file \u202etxt.jsonl.",
        lambda room: room.train(dataset_name="\u202etxt.jsonl"),
    ),
    Case(
        "folder that is not there",
        "A folder that is not there, whose name was once that of another one",
        "pairs cannot be loaded: the Hub has no data set of that name, or cannot be reached (and no file or folder here has that name)",
        of_another_folder,
    ),
]

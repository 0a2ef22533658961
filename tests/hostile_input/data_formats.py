"""Hostile input: data files of each format, with other content than their names say."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.hostile_input.room import PAIR, Case, Room


def train(name: str, content: str | bytes) -> Callable[[Room], None]:
    """Training on a file of that name and content."""
    return lambda room: room.train(dataset_name=str(room.file(name, content)))


def train_parquet(**columns: Any) -> Callable[[Room], None]:
    """Training on a Parquet file of those columns."""

    def meet(room: Room) -> None:
        pyarrow.parquet.write_table(pyarrow.table(columns), room.path / "pairs.parquet")
        room.train(dataset_name=str(room.path / "pairs.parquet"))

    return meet


def train_on(make: Callable[[Path], Any]) -> Callable[[Room], None]:
    """Training on something that is no file."""
    return lambda room: (make(room.path / "made.jsonl"), room.train(dataset_name=str(room.path / "made.jsonl")))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"
HEADER = "clean_prompt,perturbed_prompt"
BAD_TEXT = pyarrow.Array.from_buffers(pyarrow.string(), 1, pyarrow.array([b"\xff\xfe"]).buffers())
TYPE = "`clean_prompt` must be a string or a list of chat messages, not"

CASES: list[Case] = [
    *(
        Case(f"data: {what}", what, message, train(name, content))
        for what, name, content, message in (
            (
                "A JSON Lines file that begins with `null`, which would crash pyarrow",
                "pairs.jsonl",
                "null\n",
                "…pairs.jsonl begins with `null`: write one JSON object a line.",
            ),
            ("A JSON file that is `null`", "pairs.json", " null", "…pairs.json begins with `null`: …"),
            ("A JSON file that is an empty list", "pairs.json", "[]", "…pairs.json cannot be read: …"),
            (
                "A JSON file with NaN in a list",
                "pairs.json",
                json.dumps([PAIR | {"weight": float("nan")}]),
                "…pairs.json cannot be read: NaN is not a number",
            ),
            (
                "A JSON file with the rows below a key",
                "pairs.json",
                json.dumps({"data": [PAIR]}),
                "`train_dataset` has no column `clean_prompt`; its columns are `data`.…",
            ),
            ("JSON Lines of numbers", "pairs.jsonl", "3\n4\n", "…pairs.jsonl cannot be read: JSON parse error: …"),
            ("JSON Lines of texts", "pairs.jsonl", '"a"\n"b"\n', "…pairs.jsonl cannot be read: JSON parse error: …"),
            ("JSON Lines of empty objects", "pairs.jsonl", "{}\n{}\n", "…pairs.jsonl cannot be read: …"),
            (
                "A key given twice in a row",
                "pairs.jsonl",
                '{"clean_prompt": "a", "clean_prompt": "b", "perturbed_prompt": "c"}',
                "…pairs.jsonl cannot be read: JSON parse error: Column(/clean_prompt) was specified twice in row 0",
            ),
            ("JSON in UTF-16", "pairs.jsonl", json.dumps(PAIR).encode("utf-16"), "…pairs.jsonl cannot be read: …"),
            ("A web page under the name of data", "pairs.jsonl", "<!DOCTYPE html>", "…pairs.jsonl cannot be read: …"),
            ("A pointer of Git LFS", "pairs.jsonl", POINTER, "…pairs.jsonl cannot be read: JSON parse error: …"),
            ("The same for Parquet", "pairs.parquet", POINTER, "…pairs.parquet cannot be read: Parquet magic bytes …"),
            ("An ending in capitals", "pairs.JSONL", "{}", "…pairs.JSONL: a data file must end in .jsonl, .json, …"),
            ("No ending", "pairs", "{}", "…pairs: a data file must end in .jsonl, .json, .csv, .parquet."),
            (
                "CSV with semicolons",
                "pairs.csv",
                "clean_prompt;perturbed_prompt\na;b\n",
                "`train_dataset` has no column `clean_prompt`; its columns are `clean_prompt;perturbed_prompt`.…",
            ),
            (
                "CSV without a header",
                "pairs.csv",
                "a,b\nc,d\n",
                "`train_dataset` has no column `clean_prompt`; its columns are `a`, `b`.…",
            ),
            ("CSV with only a header", "pairs.csv", f"{HEADER}\n", "…pairs.csv cannot be read: …"),
            (
                "CSV with a quote that stays open",
                "pairs.csv",
                f'{HEADER}\n"a,b\n',
                "…pairs.csv, line 2: not as many fields (1) as the header has (2). Put text that holds a comma in double quotes, …",
            ),
            (
                "CSV with two columns of the same name: one would be renamed",
                "pairs.csv",
                f"{HEADER},completion,completion\na,b,c,d\n",
                "…pairs.csv, line 1: two columns are called `completion`. Rename one of them.",
            ),
            (
                "CSV with a field too few",
                "pairs.csv",
                f"{HEADER},completion\na,b\n",
                "…pairs.csv, line 2: not as many fields (2) as the header has (3). Put text that holds a comma in double quotes, …",
            ),
            (
                "CSV with one field more than the header in every row, which would move all columns",
                "pairs.csv",
                f"{HEADER}\na,b,c\nd,e,f\n",
                "…pairs.csv, line 2: not as many fields (3) as the header has (2). Put text that holds a comma in double quotes, …",
            ),
            (
                "CSV with chat messages, which would be read as text",
                "pairs.csv",
                HEADER
                + '\n"[{""role"": ""user"", ""content"": ""a""}]","[{""role"": ""user"", ""content"": ""b""}]"\n',
                "…row 0: `clean_prompt` is chat messages written as text, which no chat template would render: …",
            ),
            (
                "CSV with chat messages as pandas writes them",
                "pairs.csv",
                HEADER + "\n\"[{'role': 'user', 'content': 'a'}]\",\"[{'role': 'user', 'content': 'b'}]\"\n",
                "…row 0: `clean_prompt` is chat messages written as text, which no chat template would render: …",
            ),
            (
                "CSV with a template variable that is given twice",
                "pairs.csv",
                f'{HEADER},chat_template_kwargs\na,b,"{{""think"": true, ""think"": false}}"\n',
                "…row 0: `chat_template_kwargs` is not valid JSON (the key 'think' is given twice)…",
            ),
            (
                "CSV with an empty field",
                "pairs.csv",
                f"{HEADER},completion\na,b,\n",
                "…row 0: `completion` is missing here though the column exists: …",
            ),
            (
                "CSV in Latin-1",
                "pairs.csv",
                f"{HEADER}\né,b\n".encode("latin-1"),
                "…pairs.csv cannot be read: 'utf-8'…",
            ),
            (
                "CSV with a space in the header",
                "pairs.csv",
                "clean_prompt, perturbed_prompt\na,b\n",
                "`train_dataset` has no column `perturbed_prompt`; …. If ` perturbed_prompt` is meant, rename it: …",
            ),
            (
                "CSV with capitals in the header",
                "pairs.csv",
                "Clean_Prompt,Perturbed_Prompt\na,b\n",
                "`train_dataset` has no column `clean_prompt`; …. If `Clean_Prompt` is meant, rename it: …",
            ),
        )
    ),
    *(
        Case(f"Parquet: {what}", f"Parquet with {what}", message, train_parquet(**columns))
        for what, columns, message in (
            (
                "bytes as prompts",
                {"clean_prompt": [b"a"], "perturbed_prompt": [b"b"]},
                f"…row 0: {TYPE} `bytes`…",
            ),
            (
                "text that is not UTF-8",
                {"clean_prompt": BAD_TEXT, "perturbed_prompt": ["b"]},
                "`train_dataset` is not valid UTF-8 (…). Save the data in that encoding.",
            ),
            (
                "dates as prompts",
                {"clean_prompt": pyarrow.array([1], pyarrow.timestamp("s")), "perturbed_prompt": ["b"]},
                f"…row 0: {TYPE} `datetime`",
            ),
            (
                "truth values as prompts",
                {"clean_prompt": [True], "perturbed_prompt": [False]},
                f"…row 0: {TYPE} `bool`…",
            ),
            (
                "nulls alone",
                {"clean_prompt": pyarrow.nulls(1), "perturbed_prompt": ["b"]},
                "…row 0: `clean_prompt` is missing",
            ),
            (
                "completions of another structure",
                {"clean_prompt": ["a"], "perturbed_prompt": ["b"], "completion": [{"x": 1}]},
                "…row 0: `completion` must be a string or a list of one assistant message, not `dict`",
            ),
            ("no columns", {}, "…pairs.parquet cannot be read: …"),
        )
    ),
    *(
        Case(f"data: {what}", f"{what} instead of a file", "There is no file …made.jsonl.", train_on(make))
        for what, make in (
            ("A pipe", os.mkfifo),
            ("A folder", Path.mkdir),
            ("A device", lambda path: path.symlink_to("/dev/zero")),
            ("A link to nothing", lambda path: path.symlink_to("/gone")),
        )
    ),
]

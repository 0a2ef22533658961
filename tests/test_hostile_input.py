"""
Hostile and broken input, and the one line that answers each kind: before weights load, and without running anything.

docs/errors.md is made of this table: `python -m tests.test_hostile_input` writes it anew.
"""

import json
import math
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from accelerate import Accelerator
from datasets import Dataset, DatasetDict
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, LlamaForCausalLM

from tests.conftest import make_config, make_model, make_pairs, make_tokenizer
from tests.trainer.test_on_policy_consistency_trainer import make_on_policy_config
from trl_consistency import ConsistencyError, ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.cli import main as cli
from trl_consistency.evaluation.models import load_model
from trl_consistency.scripts.pair_sets import load_sets, render_sets
from trl_consistency.trainer.folder_lock import all_alone_in


PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

PAIR = {"clean_prompt": "What?", "perturbed_prompt": "Lyon? What?"}
ANSWERED = PAIR | {"completion": "Paris."}
USER = [{"role": "user", "content": "What?"}]
CHAT = {"clean_prompt": USER, "perturbed_prompt": [{"role": "user", "content": "Lyon? What?"}]}


class Payload:
    """What a hostile pickle holds: unpickled, it would make a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (str(self.path), "w")


@dataclass
class Room:
    """What a case has at hand: a folder of its own, a whole tiny model, and the ways into the library."""

    path: Path
    model_dir: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def trap(self) -> Path:
        """The file that is there if anything hostile was run."""
        return self.path / "trap"

    def file(self, name: str, content: str | bytes | list) -> Path:
        """A file of that text; of a list, one JSON object a line."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "\n".join(map(json.dumps, content))
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def model(self, **files: Any) -> Path:
        """A copy of the model's folder, with files (`.` in their names as `__`) changed; None takes one away."""
        folder = self.path / "model"
        shutil.copytree(self.model_dir, folder)
        for name, content in files.items():
            file = folder / name.replace("__", ".")
            if content is None:
                file.unlink()
            elif isinstance(content, dict):
                file.write_text(json.dumps(json.loads(file.read_text()) | content))
            else:
                self.file(str(file), content)
        return folder

    def pickled(self) -> bytes:
        return pickle.dumps(Payload(self.trap))

    def pickled_model(self) -> str:
        return str(self.model(model__safetensors=None, pytorch_model__bin=self.pickled()))

    def train(self, yaml: str | bytes = "", *flags: str, command: str = "consistency", **options: Any) -> None:
        """The command, with a recipe that would run but for what the case changes."""
        base = {
            "model_name_or_path": str(self.model_dir),
            "dataset_name": str(self.path / "pairs.jsonl"),
            "output_dir": str(self.path / "out"),
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "max_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        if not (self.path / "pairs.jsonl").exists():
            self.file("pairs.jsonl", [CHAT, CHAT])
        lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in (base | options).items() if value != "")
        recipe = self.file("recipe.yaml", lines.encode() + (yaml if isinstance(yaml, bytes) else yaml.encode()))
        cli([command, "--config", str(recipe), *flags])

    def lint(self, *flags: str) -> None:
        cli(["lint", "--pairs", str(self.path / "pairs.jsonl"), "--model_name_or_path", str(self.model_dir), *flags])

    def evaluate(self, rows: list, *flags: str) -> None:
        """The command that measures, which would run but for what the case changes."""
        options = ["--pairs", str(self.file("pairs.jsonl", rows)), "--output_dir", str(self.path / "out")]
        cli(["evaluate", "--model_name_or_path", str(self.model_dir), *options, *flags])

    def pairs(self, rows: list | None = None, *flags: str) -> None:
        """The command that makes pairs."""
        questions = [{"question": "Largest?", "choices": ["dog", "cow"], "answer": "cow"}] if rows is None else rows
        path = self.file("questions.jsonl", questions)
        cli(["pairs", "--dataset_name", str(path), "--output_dir", str(self.path / "out"), *flags])

    def trainer(self, rows: Any = None, options: dict | None = None, **arguments: Any) -> ConsistencyTrainer:
        rows = Dataset.from_list(rows) if isinstance(rows, list) else make_pairs(2) if rows is None else rows
        args = make_config(self.path / "out", **(options or {}))
        return ConsistencyTrainer(arguments.pop("model", str(self.model_dir)), args, train_dataset=rows, **arguments)

    def rollouts(self, rows: Any = None, options: dict | None = None, **arguments: Any) -> OnPolicyConsistencyTrainer:
        rows = Dataset.from_list(rows) if isinstance(rows, list) else make_pairs(4) if rows is None else rows
        args = make_on_policy_config(self.path / "out", **(options or {}))
        model = arguments.pop("model", str(self.model_dir))
        return OnPolicyConsistencyTrainer(model, args=args, train_dataset=rows, **arguments)


class Case(NamedTuple):
    """One kind of input: how users meet it, in words, and the message, with `…` for what differs from run to run."""

    id: str
    wrong: str
    message: str
    meet: Callable[[Room], Any]


def row(room: Room, **columns: Any) -> None:
    """Training on a good row, and one with other columns."""
    good = CHAT if isinstance(columns.get("clean_prompt", []), list) else PAIR
    room.trainer([good | {name: None for name in columns if name not in good}, good | columns])


def adapter(room: Room, r: int = 4, **config: Any) -> Path:
    """A saved adapter for the model."""
    folder = room.path / "adapter"
    get_peft_model(make_model(), LoraConfig(r=r, target_modules="all-linear")).save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def changed_weights(folder: Path, factor: float) -> Path:
    """An adapter with its weights times `factor`."""
    file = folder / "adapter_model.safetensors"
    save_file({name: weight * factor for name, weight in load_file(file).items()}, file)
    return folder


def spoiled_model() -> Any:
    model = make_model()
    model.model.embed_tokens.weight.data[7, 3] = math.nan
    return model


def pickled_adapter(room: Room) -> Path:
    folder = adapter(room)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(room.pickled())
    return folder


def push(
    room: Room,
    *flags: str,
    repo_id: str = "me/bct",
    card: str | None = "# Mine\n",
    base: str = "me/base",
    damage: Callable[[Path], Any] = lambda folder: None,
) -> None:
    """The command that publishes an adapter."""
    room.monkeypatch.setenv("HF_TOKEN", "of nobody")
    folder = adapter(room, base_model_name_or_path=base)
    if card is not None:
        (folder / "README.md").write_text(card)
    elif (folder / "README.md").exists():
        (folder / "README.md").unlink()
    damage(folder)
    cli(["push", str(folder), repo_id, *flags])


def cut(path: Path, share: float = 0.7) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def resume(room: Room, checkpoint: Path, model: Any = None, **options: Any) -> None:
    lora = LoraConfig(r=4, target_modules="all-linear")
    trainer = room.trainer(model=model or make_model(), processing_class=make_tokenizer(), peft_config=lora)
    trainer.train(resume_from_checkpoint=str(checkpoint))


def resume_another(room: Room, options: dict, pairs: Dataset, *changed: str) -> None:
    """Resumes a run with other options and data."""
    common = {"processing_class": make_tokenizer(), "peft_config": LoraConfig(r=4, target_modules="all-linear")}
    saves = {"max_steps": 1, "save_strategy": "steps"}
    room.trainer(options=saves, model=make_model(), **common).train()
    trainer = room.trainer(pairs, saves | options, model=make_model(), **common)
    trainer.train(resume_from_checkpoint=True, resume_changed=changed)


def in_use(room: Room) -> None:
    with all_alone_in(room.path / "out", Accelerator(cpu=True)):
        room.train()


def without(room: Room, package: str) -> None:
    """As if a package were not installed."""
    for module in ("trl_consistency.trainer.checks", "trl_consistency.option_types"):
        room.monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == package else find_spec(name))


def custom_code(room: Room, file: str = "config.json") -> Path:
    """A model that brings Python code along, which would make a file."""
    code = f"open({str(room.trap)!r}, 'w')\n"
    if file == "config.json":
        settings = {
            "model_type": "hostile",
            "auto_map": {"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"},
        }
    else:
        settings = {"tokenizer_class": "Custom", "auto_map": {"AutoTokenizer": ["custom.T", None]}}
    folder = room.model(**{file.replace(".", "__"): settings, "custom__py": code})
    (folder / "tokenizer.json").unlink()
    return folder


def cached(room: Room, damage: Callable[[Path], Any], **options: Any) -> None:
    """Targets in a cache to which something was done."""
    folder = room.path / "cache"

    def generate(**more: Any) -> None:
        pairs = make_pairs(2, completion=False)
        trainer = room.trainer(
            pairs,
            {"target_cache_dir": str(folder)} | options,
            model=make_model(seed=more.get("seed", 0)),
            processing_class=make_tokenizer(),
        )
        trainer.generate_targets()

    generate()
    damage(folder)
    generate(**options)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

CASES: dict[str, list[Case]] = {
    "Data files": [
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
        Case(
            "file type",
            "A file of another type",
            "…pairs.txt: a data file must end in .jsonl, .json, .csv, .parquet.",
            lambda room: room.train(dataset_name=str(room.file("pairs.txt", "x"))),
        ),
        Case(
            "empty file",
            "A file without a byte",
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
            "A column of text in one row and of messages in another",
            "…row 1: `clean_prompt` is a list of messages, but a string in row 0: a column has one type…",
            lambda room: room.train(dataset_name=str(room.file("pairs.jsonl", [PAIR, CHAT]))),
        ),
        Case(
            "not UTF-8",
            "A file in another encoding than UTF-8",
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
            "Half a surrogate pair, which is no text",
            "…pairs.jsonl cannot be read: JSON parse error: The surrogate pair in string is invalid. in row 0",
            lambda room: room.train(
                dataset_name=str(room.file("pairs.jsonl", '{"clean_prompt": "a \\ud800", "perturbed_prompt": "b"}'))
            ),
        ),
        Case(
            "ragged CSV",
            "A CSV file with a field too many",
            "…pairs.csv cannot be read: …line 3…",
            lambda room: room.train(
                dataset_name=str(room.file("pairs.csv", "clean_prompt,perturbed_prompt\na,b\na,b,c\n"))
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
            "…saved cannot be loaded: You are trying to load a dataset that was saved using `save_to_disk`. …",
            lambda room: (
                make_pairs(2).save_to_disk(room.path / "saved"),
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
            "Evaluation without a split for it",
            "`dataset_test_split` is `test`, but the data set has only: train. For files, put train.jsonl and test.jsonl in a folder and name the folder, or list the file under `datasets` and set `test_split_size`.",
            lambda room: room.train(eval_strategy="epoch"),
        ),
        Case(
            "two sources",
            "Data named twice",
            "Both `datasets` and `dataset_name` are given: keep one.",
            lambda room: room.train("datasets: [{path: pairs.jsonl}]\n"),
        ),
        Case(
            "split of a file",
            "A share for the test of data that are not split",
            "`test_split_size` is for `datasets`. List the file there in place of `dataset_name`, or leave it out.",
            lambda room: room.train(test_split_size=0.1),
        ),
        Case(
            "mixture without file",
            "A file of a mixture that is not there",
            "There is no file gone.jsonl.",
            lambda room: room.train("datasets: [{path: gone.jsonl}]\n", dataset_name=""),
        ),
        Case(
            "mixture of columns",
            "Data sets of a mixture that do not fit each other",
            "`datasets` cannot be loaded: The features can't be aligned because the key clean_prompt of features …",
            lambda room: room.train(
                f"datasets: [{{path: {room.file('a.jsonl', [PAIR])}}}, {{path: {room.file('b.jsonl', [CHAT])}}}]\n",
                dataset_name="",
            ),
        ),
        Case(
            "mixture fraction",
            "A `fraction` for some of a mixture only",
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
            "A file name that turns the order of the text around it",
            r"There is no file \u202etxt.jsonl.",
            lambda room: room.train(dataset_name="\u202etxt.jsonl"),
        ),
    ],
    "Columns and rows": [
        Case(
            "no data set",
            "A trainer without data",
            "`train_dataset` is required: pairs with `clean_prompt` and `perturbed_prompt`.",
            lambda room: ConsistencyTrainer(str(room.model_dir), make_config(room.path)),
        ),
        Case(
            "list of rows",
            "A list in the place of a data set",
            "`train_dataset` must be a `datasets.Dataset` or `datasets.IterableDataset`, got `tuple`.",
            lambda room: room.trainer((PAIR, PAIR)),
        ),
        Case(
            "all splits",
            "All splits in the place of one",
            "`train_dataset` must be a `datasets.Dataset` or `datasets.IterableDataset`, got `DatasetDict`. Choose one of its splits: 'train'.",
            lambda room: room.rollouts(DatasetDict({"train": make_pairs(2)})),
        ),
        Case(
            "no rows",
            "A data set without rows",
            "`train_dataset` is empty: it has no rows.",
            lambda room: room.trainer(make_pairs(2).select([])),
        ),
        Case(
            "no evaluation rows",
            "One of several evaluation sets without rows",
            "`eval_dataset['hard']` is empty: it has no rows.",
            lambda room: room.trainer(eval_dataset={"easy": make_pairs(2), "hard": make_pairs(2).select([])}),
        ),
        Case(
            "no column",
            "A misspelt column of prompts",
            "`train_dataset` has no column `perturbed_prompt`; its columns are `clean_prompt`, `pertubed_promt`. Did you mean `pertubed_promt`? Rename it with `dataset.rename_column`.",
            lambda room: room.trainer([{"clean_prompt": "a", "pertubed_promt": "b"}]),
        ),
        Case(
            "near column",
            "A misspelt column that would be ignored",
            "`train_dataset` has the column `completions`, which would be ignored. Rename it to `completion` if that is what it holds, or to something else if not.",
            lambda room: room.trainer([PAIR | {"completions": "x"}]),
        ),
        Case(
            "reserved column",
            "A column with a name that preparation uses",
            "`train_dataset` has the column `clean_ids`, a name that preparation uses: rename it.",
            lambda room: room.rollouts([PAIR | {"clean_ids": [1]}]),
        ),
        Case(
            "images",
            "A column of images",
            "`train_dataset` has the column `images`: pairs are text-only for now. Remove the column with `dataset.remove_columns` if the prompts do not need it.",
            lambda room: room.trainer([PAIR | {"images": "x.png"}]),
        ),
        Case(
            "transform",
            "Data behind `with_transform`, which could read differently each time",
            "`train_dataset` uses `with_transform()`, whose result could differ at every read. Apply the transform with `Dataset.map()` first.",
            lambda room: room.trainer(make_pairs(2).with_transform(lambda batch: batch)),
        ),
        Case(
            "blank prompt",
            "A prompt without text",
            "`train_dataset`: 1 of 2 row(s) cannot be used. Nothing was dropped; mend or remove it: row 1: `perturbed_prompt` is empty or blank",
            lambda room: row(room, clean_prompt="a", perturbed_prompt=" \n"),
        ),
        Case(
            "null prompt",
            "A prompt that is null",
            "…row 1: `clean_prompt` is missing",
            lambda room: row(room, clean_prompt=None, perturbed_prompt="a"),
        ),
        Case(
            "numbers as prompts",
            "Numbers in the place of prompts",
            "…row 0: `clean_prompt` must be a string or a list of chat messages, not `int`",
            lambda room: room.trainer([{"clean_prompt": 1, "perturbed_prompt": "a"}]),
        ),
        Case(
            "no messages",
            "An empty list of messages",
            "…row 1: `clean_prompt` is an empty list of messages",
            lambda room: row(room, clean_prompt=[]),
        ),
        Case(
            "misspelt role",
            "A misspelt role",
            "…row 1: `clean_prompt` message 0 has the role `usr`: did you mean `user`?",
            lambda room: row(room, clean_prompt=[{"role": "usr", "content": "x"}]),
        ),
        Case(
            "no content",
            "A message without content",
            "…row 1: `perturbed_prompt` message 0 has `content` of type `NoneType`, not text",
            lambda room: row(room, perturbed_prompt=[{"role": "user", "content": None}]),
        ),
        Case(
            "no message",
            "Something else than messages",
            "…row 0: `clean_prompt` message 0 is not a dict with `role` and `content`…",
            lambda room: room.trainer([{"clean_prompt": ["x"], "perturbed_prompt": ["y"]}]),
        ),
        Case(
            "open tool call",
            "A prompt that ends with a tool call",
            "…row 0: `clean_prompt` ends with an assistant tool call, which cannot be continued: add the tool's answer…",
            lambda room: room.trainer(
                [
                    CHAT
                    | {
                        "clean_prompt": [
                            *USER,
                            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]},
                        ]
                    }
                ]
            ),
        ),
        Case(
            "text and messages",
            "Text on one side and messages on the other",
            "…row 0: `clean_prompt` is a string and `perturbed_prompt` a list of messages: both need the same type",
            lambda room: room.trainer([{"clean_prompt": "a", "perturbed_prompt": USER}]),
        ),
        Case(
            "prefilled on one side",
            "An answer to continue on the clean side only",
            "…row 1: `clean_prompt` ends with an assistant turn to continue and `perturbed_prompt` does not: the rest of an answer would be taught as a whole one",
            lambda room: row(room, clean_prompt=[*USER, {"role": "assistant", "content": "It"}]),
        ),
        Case(
            "completion in some rows",
            "Completions in some rows only",
            "…row 0: `completion` is missing here though the column exists: give it for every row, or remove the column to have the reference policy answer all clean prompts",
            lambda room: row(room, completion="x"),
        ),
        Case(
            "completion is no answer",
            "A completion that is no assistant message",
            "…row 0: `completion` must be exactly one assistant message",
            lambda room: room.trainer([CHAT | {"completion": USER}]),
        ),
        Case(
            "no completion ids",
            "Token ids of a completion that are none",
            "…row 0: `completion_ids` is empty",
            lambda room: room.trainer([PAIR | {"completion_ids": ids} for ids in ([], [5])]),
        ),
        Case(
            "foreign completion ids",
            "Token ids that the vocabulary does not have: another tokenizer's",
            "…row 0: token 999999 is beyond the model's vocabulary of 384: the tokenizer, or what made `completion_ids`, is another model's",
            lambda room: room.trainer([PAIR | {"completion_ids": [5, 999_999]}]),
        ),
        Case(
            "negative completion ids",
            "Token ids below 0, such as the -100 of masked labels",
            "…row 0: `completion_ids` holds -100, which is no token id",
            lambda room: room.trainer([PAIR | {"completion_ids": [-100, 5]}]),
        ),
        Case(
            "tools not JSON",
            "Tools that are not valid JSON",
            "…row 0: `tools` is not valid JSON (…)",
            lambda room: room.trainer([CHAT | {"tools": "[{"}]),
        ),
        Case(
            "tools no list",
            "Tools that are no list of schemas",
            "…row 0: `tools` must be a list of JSON schemas (or that list as a JSON string)",
            lambda room: room.trainer([CHAT | {"tools": "3"}]),
        ),
        Case(
            "tools with text",
            "Tools beside a text prompt, which goes through no template",
            "…row 0: `tools` is given, but the prompts are text, which goes through no chat template",
            lambda room: room.trainer([PAIR | {"tools": '[{"name": "f"}]'}]),
        ),
        Case(
            "reserved template variable in a row",
            "A template variable that the trainer sets",
            "…row 0: `chat_template_kwargs` sets `tokenize`, which is set the same for both sides and is not for the chat …",
            lambda room: room.trainer([CHAT | {"chat_template_kwargs": '{"tokenize": false}'}]),
        ),
        Case(
            "shared text is no text",
            "`shared_text` that is blank",
            "…row 0: `shared_text` must be text that both prompts hold, not ' '",
            lambda room: room.trainer([PAIR | {"shared_text": " "}], {"method": "attct"}),
        ),
        Case(
            "encoding option in a row",
            "An option of the encoding among a row's template variables, which would cut the prompt",
            "…row 0: `chat_template_kwargs` sets `max_length`, `truncation`, which is set the same for both sides and is not …",
            lambda room: room.trainer([CHAT | {"chat_template_kwargs": '{"truncation": true, "max_length": 3}'}]),
        ),
        Case(
            "control token in a message",
            "A control token in what a user says, which would end the turn",
            "…row 1: message 0 (user) holds `<|im_end|>`, a control token of the tokenizer, in its text: …",
            lambda room: row(room, perturbed_prompt=[{"role": "user", "content": "Lyon.<|im_end|> What?"}]),
        ),
        Case(
            "control token in a completion",
            "A control token at the end of a chat completion, where the template writes its own",
            "…row 1: message 1 (assistant) holds `<|im_end|>`, a control token of the tokenizer, in its text: …",
            lambda room: room.trainer([CHAT | {"completion": "Paris."}, CHAT | {"completion": "Paris.<|im_end|>"}]),
        ),
        Case(
            "control token in text",
            "A control token within a text prompt that was not rendered beforehand",
            "…row 1: `perturbed_prompt` holds `<|im_start|>`, a control token of the tokenizer, in its text. …",
            lambda room: row(room, **PAIR | {"perturbed_prompt": "Lyon?<|im_start|>What?"}),
        ),
        Case(
            "control token measured on",
            "A control token in a prompt to measure on",
            "…row 0: message 0 (user) holds `<|im_start|>`, a control token of the tokenizer, in its text: …",
            lambda room: render_sets(
                load_sets(
                    [
                        str(
                            room.file(
                                "pairs.jsonl", [CHAT | {"clean_prompt": [USER[0] | {"content": "<|im_start|>"}]}]
                            )
                        )
                    ],
                    None,
                    None,
                    0,
                ),
                make_tokenizer(),
                {},
            ),
        ),
        Case(
            "escape in a column name",
            "A terminal escape in the name of a column",
            r"`train_dataset` has no column `clean_prompt`; its columns are `\x1b[2Jprompt`.…",
            lambda room: room.trainer([{"\x1b[2Jprompt": "What?"}]),
        ),
        Case(
            "escape in a template's error",
            "A terminal escape in the error that a chat template raises",
            r"…row 0: the chat template refused it (TemplateError: \x1b]0;mine\x07)…",
            lambda room: room.train(
                chat_template_path=str(room.file("a.jinja", "{{ raise_exception('\\x1b]0;mine\\x07') }}"))
            ),
        ),
    ],
    "Pairs": [
        Case(
            "swallowed cue",
            "A chat template that drops what tells the two prompts apart",
            "…row 0: the two prompts differ, but the chat template renders them to the same tokens: it drops what tells them apart (look at the roles and the content)",
            lambda room: room.trainer(
                [{"clean_prompt": USER, "perturbed_prompt": [{"role": "developer", "content": "It is B."}, *USER]}],
                processing_class=make_tokenizer(
                    "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
                ),
            ),
        ),
        Case(
            "overlong",
            "Rows over `max_length`",
            "`train_dataset`: 1 of 1 row(s) are longer than `max_length=8`: row 0 (… tokens). …Raise `max_length`, lower `max_completion_length`, or leave those rows out with `overlong='drop'`.",
            lambda room: room.trainer([PAIR], {"max_length": 8, "max_completion_length": 4}),
        ),
        Case(
            "all overlong",
            "Rows over `max_length`, all to be left out",
            "`train_dataset`: 1 of 1 row(s) are longer than `max_length=8`: row 0 (… tokens). `overlong='drop'` would leave no row.",
            lambda room: room.rollouts([PAIR], {"max_length": 8, "overlong": "drop"}),
        ),
        Case(
            "nothing shared",
            "Prompts that share nothing that `act` could compare",
            "`train_dataset`: 1 of 1 pair(s) share nothing that could be compared: row 0. For `act`: end both prompts alike, or compare the answers, `act_tokens='completion'`. …",
            lambda room: room.trainer([{"clean_prompt": "a", "perturbed_prompt": "b"}], {"method": "act"}),
        ),
        Case(
            "shared text elsewhere",
            "`shared_text` that is in neither prompt",
            "`train_dataset`: 1 of 1 pair(s) share nothing that could be compared: row 0. …say what they share in a `shared_text` column. …",
            lambda room: room.trainer([PAIR | {"shared_text": "Berlin"}], {"method": "mlpct"}),
        ),
        Case(
            "fewer than a batch",
            "Fewer pairs than a batch of rollouts takes",
            "`train_dataset` has 2 row(s), fewer than the 4 prompts of one batch of rollouts (`num_generations` 2). Use smaller batches, or more rollouts a prompt.",
            lambda room: room.rollouts(make_pairs(2)),
        ),
        Case(
            "streamed without completions",
            "A stream without completions",
            "`train_dataset` is streamed and has no `completion` column, and a stream's clean prompts cannot be answered before training. Load it without streaming, or add the column.",
            lambda room: room.trainer(make_pairs(2, completion=False).to_iterable_dataset()),
        ),
        Case(
            "streamed and dropped",
            "Rows to be left out of a stream",
            "`train_dataset` is streamed, and `overlong='drop'` could not say how many of its rows are left out. Load it without streaming, or filter it yourself.",
            lambda room: room.rollouts(
                make_pairs(2).to_iterable_dataset(), {"max_length": 64, "overlong": "drop", "max_steps": 1}
            ),
        ),
        Case(
            "anchors without prompts",
            "Anchors without a `prompt` column",
            "`anchor_dataset` has no column `prompt`; its columns are `text`. Rename the column that holds the prompts with `dataset.rename_column`.",
            lambda room: room.trainer(
                options={"anchor_ratio": 0.5}, anchor_dataset=Dataset.from_list([{"text": "a"}])
            ),
        ),
        Case(
            "unused anchors",
            "Anchors of which none would be used",
            "`anchor_dataset` (`anchor_dataset_name` of a recipe) is given, but `anchor_ratio` is 0: say which share it is to have, or leave the data set out.",
            lambda room: room.rollouts(anchor_dataset=Dataset.from_list([{"prompt": "a"}])),
        ),
        Case(
            "beyond the context",
            "A prompt longer than the model's context",
            "`train_dataset`: 1 of 2 row(s) are longer than the model's context of 512 tokens (`max_position_embeddings`): row 1 (… tokens). A length counts the longer prompt and the completion that comes with it. Shorten those rows, leave them out with `overlong='drop'`, or use a model with a longer context.",
            lambda room: room.trainer([PAIR, PAIR | {"perturbed_prompt": "Lyon? What? " * 200}]),
        ),
        Case(
            "beyond the context in rollouts",
            "A prompt longer than the model's context, for on-policy training",
            "`train_dataset`: 4 of 4 row(s) are longer than the model's context of 512 tokens (`max_position_embeddings`): row 0 (…). `overlong='drop'` would leave no row.",
            lambda room: room.rollouts([PAIR | {"perturbed_prompt": "Lyon? What? " * 200}] * 4, {"overlong": "drop"}),
        ),
        Case(
            "beyond the context in a stream",
            "A prompt longer than the model's context, in a stream",
            "…row 1: has … tokens, more than the model's context of 512…",
            lambda room: room.trainer(
                Dataset.from_list(
                    [ANSWERED, ANSWERED | {"perturbed_prompt": "Lyon? What? " * 200}]
                ).to_iterable_dataset(),
                {"max_steps": 2, "per_device_train_batch_size": 1},
                model=make_model(),
                processing_class=make_tokenizer(),
            ).train(),
        ),
    ],
    "Options": [
        Case(
            "unknown method",
            "A misspelt method",
            "Unknown `method` `btc`: it can be bct, kl, act, attct, mlpct. Did you mean `bct`?",
            lambda room: room.trainer(options={"method": "btc"}),
        ),
        Case(
            "method of the other trainer",
            "The method of the other trainer",
            "Unknown `method` `opct`: it can be bct, kl, act, attct, mlpct. OPCT is `OnPolicyConsistencyTrainer` (`trl-consistency on-policy-consistency`).",
            lambda room: room.train(method="opct"),
        ),
        Case(
            "config of the other trainer",
            "The config of the other trainer",
            "`args` must be of the class `OnPolicyConsistencyConfig`, got `ConsistencyConfig`.",
            lambda room: OnPolicyConsistencyTrainer(
                str(room.model_dir), args=make_config(room.path), train_dataset=make_pairs(2)
            ),
        ),
        Case(
            "stop strings",
            "Texts that are to end an answer",
            "`generation_kwargs` sets `stop_strings`, for which generation has no tokenizer. Set `eos_token_id`, or `use_vllm` with its `stop`.",
            lambda room: room.train(generation_kwargs={"stop_strings": ["User:"]}),
        ),
        Case(
            "drafted tokens",
            "Speculative decoding among `generation_kwargs`",
            "`generation_kwargs` sets `prompt_lookup_num_tokens`, which drafts tokens for one prompt at a time, and here prompts come in batches. Leave it out.",
            lambda room: room.train(generation_kwargs={"prompt_lookup_num_tokens": 2}),
        ),
        Case(
            "time limit of answers",
            "A time limit among `generation_kwargs`",
            "`generation_kwargs` sets `max_time`, and the speed of the machine would decide where an answer ends. Set `max_completion_length`.",
            lambda room: room.train(generation_kwargs={"max_time": 5}),
        ),
        Case(
            "weights",
            "Not as many weights as methods",
            "`method_weights` has 1 value(s) for 2 method(s) (bct, act): give one weight for each.",
            lambda room: room.trainer(options={"method": ["bct", "act"], "method_weights": [1.0]}),
        ),
        Case(
            "not a number",
            "A number that is none",
            "`learning_rate` must be at least 0, got nan.",
            lambda room: room.train(learning_rate=float("nan")),
        ),
        Case(
            "word for a number",
            "A word in the place of a number",
            "…recipe.yaml: `learning_rate` must be a number, got 'fast'.",
            lambda room: room.train(learning_rate="fast"),
        ),
        Case(
            "out of range",
            "A number out of its range",
            "`anchor_ratio` must be at least 0 and below 1, got 1.0.",
            lambda room: room.train(anchor_ratio=1.0, command="on-policy-consistency"),
        ),
        Case(
            "layer that is not there",
            "A layer that the model does not have",
            "`layers` names block 9, and the model has 2: 0 to 1, or from the end -1 to -2.",
            lambda room: room.trainer(options={"method": "act", "layers": [9]}),
        ),
        Case(
            "option of another method",
            "An option of a method that is not trained with",
            "`layers` is set, but `method` is ['bct']: it is for act, attct or mlpct. Leave it out, or set it back to None.",
            lambda room: room.train(layers=[0]),
        ),
        Case(
            "refused option",
            "An option of TRL's that pairs cannot have",
            "`packing` is not available in consistency training: a pair is compared row by row. Leave it out.",
            lambda room: room.train(packing=True),
        ),
        Case(
            "loss function",
            "A loss function of one's own",
            "`compute_loss_func` is not available in consistency training: the objective is `ConsistencyConfig.method`. Leave it out.",
            lambda room: room.trainer(compute_loss_func=lambda *_: 0),
        ),
        Case(
            "teacher",
            "A teacher",
            "`teacher_model` is not available in consistency training: the reference is the initial policy, or `ref_model`. Leave it out.",
            lambda room: room.rollouts(teacher_model="x"),
        ),
        Case(
            "greedy rollouts",
            "Rollouts without chance",
            "`temperature` must be above 0 (greedy rollouts of a prompt would all be the same), got 0.0.",
            lambda room: room.train(temperature=0.0, command="on-policy-consistency"),
        ),
        Case(
            "truncated sampling",
            "A sampler under `policy_gradient` that leaves tokens out",
            "`top_p=0.9` is not available with `loss_type='policy_gradient'`: it leaves tokens out that the estimate of the divergence needs.",
            lambda room: room.rollouts(options={"loss_type": "policy_gradient", "top_p": 0.9}),
        ),
        Case(
            "groups",
            "A batch that does not divide into groups of rollouts",
            "`per_device_train_batch_size` (3) times `steps_per_generation` (1) makes 3 rollouts on each process, which do not divide into groups of `num_generations` (2). Batches count completions: choose a multiple.",
            lambda room: room.rollouts(options={"per_device_train_batch_size": 3}),
        ),
        Case(
            "generation option",
            "A misspelt option of the generation",
            "`generation_kwargs` has the unknown key `min_new_token`. Did you mean `min_new_tokens`?",
            lambda room: room.train(generation_kwargs={"min_new_token": 2}),
        ),
        Case(
            "template variable",
            "A template variable that the trainer sets",
            "`chat_template_kwargs` sets `tokenize`, which is set the same for both sides and is not for the chat template: …",
            lambda room: room.train(chat_template_kwargs={"tokenize": False}, command="on-policy-consistency"),
        ),
        Case(
            "nothing to evaluate on",
            "Evaluation without pairs for it",
            "`eval_strategy` is steps, but there is no `eval_dataset`: give one, or set `eval_strategy: 'no'`.",
            lambda room: room.trainer(options={"eval_strategy": "steps", "eval_steps": 1}),
        ),
        Case(
            "nothing to evaluate rollouts on",
            "The same, on-policy",
            "`eval_strategy` is epoch, but there is no `eval_dataset`: give one, or set `eval_strategy: 'no'`.",
            lambda room: room.rollouts(options={"eval_strategy": "epoch"}),
        ),
        Case(
            "best model",
            "The best model, and no evaluation that would tell",
            "`load_best_model_at_end` needs evaluations to tell which is best: set `eval_strategy`.",
            lambda room: room.train(load_best_model_at_end=True),
        ),
        Case(
            "best model between saves",
            "The best model, and evaluations that do not go with the saves",
            "…load_best_model_at_end requires the save and eval strategy to match…",
            lambda room: room.train(load_best_model_at_end=True, eval_strategy="steps", eval_steps=1),
        ),
        Case(
            "unknown end token",
            "An end-of-sequence token that the tokenizer does not have",
            "`eos_token` is '<end>', which is no token of the tokenizer.",
            lambda room: room.train(eos_token="<end>"),
        ),
        Case(
            "unknown padding",
            "A padding token that the tokenizer does not have",
            "`pad_token` is '<pad>', which is no token of the tokenizer.",
            lambda room: room.trainer(options={"pad_token": "<pad>"}),
        ),
        Case(
            "two precisions",
            "Two precisions at once",
            "At most one of fp16 and bf16 can be True, but not both",
            lambda room: room.train("fp16: true\n", bf16=True),
        ),
        Case(
            "unknown dtype",
            "A precision that there is none of",
            "`dtype` is float12: it can be auto, bfloat16, float16 or float32.",
            lambda room: room.trainer(options={"model_init_kwargs": {"dtype": "float12"}}),
        ),
        Case(
            "unknown attention",
            "An attention that there is none of",
            '… cannot be loaded: Specified `attn_implementation="fast"` is not supported. …',
            lambda room: room.train(attn_implementation="fast"),
        ),
        Case(
            "attention without maps",
            "`attct` with an attention that forms no maps",
            "`attct` compares attention maps, which `sdpa` attention never forms. Set `attn_implementation: eager`.",
            lambda room: room.train(method="attct", attn_implementation="sdpa"),
        ),
        Case(
            "unknown target modules",
            "LoRA on modules that the model does not have",
            "`peft_config` does not fit the model: Target modules queries not found in the base model. Please check the target modules and try again.",
            lambda room: room.train(use_peft=True, lora_target_modules=["queries"]),
        ),
        Case(
            "rank 0",
            "LoRA of rank 0",
            "`peft_config` does not fit the model: `r` should be a positive integer value but the value passed is 0",
            lambda room: room.rollouts(peft_config=LoraConfig(r=0, target_modules="all-linear")),
        ),
        Case(
            "adapter on the head",
            "LoRA on the head, which would not be trained",
            "`peft_config` puts an adapter on the language modelling head, …Remove `lm_head` from `target_modules`.",
            lambda room: room.rollouts(peft_config=LoraConfig(target_modules=["q_proj", "lm_head"])),
        ),
        Case(
            "learned prompt",
            "A learned prompt in the place of an adapter",
            "`peft_config` is a learned prompt (…PROMPT_TUNING), which the comparison of the two prompts does not see. Use an adapter of the weights, such as LoRA.",
            lambda room: room.rollouts(peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
        ),
        Case(
            "quantized without an adapter",
            "4-bit weights and no adapter to train",
            "`load_in_4bit` needs `use_peft: true`: quantized weights cannot be trained themselves.",
            lambda room: room.train(load_in_4bit=True),
        ),
        Case(
            "quantized trainer without an adapter",
            "The same, in Python",
            "`quantization_config` needs a `peft_config`: quantized weights cannot be trained themselves.",
            lambda room: room.trainer(quantization_config=BitsAndBytesConfig(load_in_4bit=True)),
        ),
        Case(
            "unknown schedule",
            "A learning rate schedule that there is none of",
            "…recipe.yaml: `lr_scheduler_type` must be one of linear, cosine, …, got 'cosin'.",
            lambda room: room.train(lr_scheduler_type="cosin"),
        ),
        Case(
            "unknown optimizer",
            "An optimizer that there is none of",
            "…recipe.yaml: `optim` must be one of adamw_torch, …, got 'adamw_fast'.",
            lambda room: room.train(optim="adamw_fast"),
        ),
        Case(
            "backend of one process",
            "The backend of several processes in one",
            "`ddp_backend` is gloo, but this is a single process. Launch several with `accelerate launch` or `torchrun`, or leave it out.",
            lambda room: room.train(ddp_backend="gloo"),
        ),
        Case(
            "reference of another vocabulary",
            "A reference with another vocabulary",
            "`ref_model` has a vocabulary of 400 tokens and the model one of 384: their distributions cannot be compared. Use a reference with the same vocabulary.",
            lambda room: room.rollouts(
                model=make_model(), processing_class=make_tokenizer(), ref_model=make_model(vocab_size=400)
            ),
        ),
        Case(
            "routers of a dense model",
            "The routers' loss for a model that has none",
            "`router_aux_loss_coef` is 0.1, but the model (qwen3) has no routers whose logits it could give: it is for mixtures of experts. Leave it out.",
            lambda room: room.train(router_aux_loss_coef=0.1, method=["kl"]),
        ),
        Case(
            "top_k at temperature 0",
            "A choice among tokens where none is sampled",
            "`top_k` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
            lambda room: room.train(temperature=0.0, top_k=50),
        ),
        Case(
            "min_p at temperature 0",
            "The same among the further arguments of generation",
            "`min_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
            lambda room: room.train(
                temperature=0.0, generation_kwargs={"min_p": 0.1}, command="targets", targets_file="t"
            ),
        ),
        Case(
            "two temperatures",
            "A temperature among them that the option contradicts",
            "`generation_kwargs` sets `temperature` to 0.7, but whether targets are sampled is said by the option `temperature`. Set that one; 0 is greedy.",
            lambda room: room.train(temperature=0.0, generation_kwargs={"temperature": 0.7}),
        ),
        Case(
            "drop_last",
            "Fewer rows than a batch, where incomplete batches are left out",
            "`train_dataset` has 2 row(s), fewer than the 8 of one batch, and `dataloader_drop_last` leaves out what fills none: nothing would be trained. Use smaller batches, or leave the option out.",
            lambda room: room.trainer(options={"dataloader_drop_last": True}),
        ),
        Case(
            "megatron",
            "An adapter for Megatron, which is not installed",
            "`peft_config` does not fit the model: No module named 'megatron'",
            lambda room: room.trainer(
                peft_config=LoraConfig(target_modules="all-linear", megatron_config={"world_size": 1})
            ),
        ),
        Case(
            "encoding option as template variable",
            "An option of the encoding among the template variables of all rows",
            "`chat_template_kwargs` sets `padding`, which is set the same for both sides and is not for the chat template: …",
            lambda room: room.train(chat_template_kwargs={"padding": "max_length"}),
        ),
    ],
    "Recipes": [
        Case(
            "unknown key",
            "A misspelt key",
            "unknown key in …recipe.yaml: `learning_rat`. Did you mean `learning_rate`?",
            lambda room: room.train("learning_rat: 1e-3\n"),
        ),
        Case(
            "key of another trainer",
            "A key of another command",
            "unknown key in …recipe.yaml: `num_generations`. It is an option of `trl-consistency on-policy-consistency`.",
            lambda room: room.train("num_generations: 4\n"),
        ),
        Case(
            "key given twice",
            "A key given twice",
            "…recipe.yaml is not valid YAML: the key `seed` is given twice in …line…",
            lambda room: room.train("seed: 3\nseed: 4\n"),
        ),
        Case(
            "tab",
            "A tab in the place of spaces",
            "…recipe.yaml is not valid YAML: …found character '\\t' that cannot start any token in …line…",
            lambda room: room.train("generation_kwargs:\n\tmin_new_tokens: 2\n"),
        ),
        Case(
            "code in YAML",
            "YAML that would run Python",
            "…recipe.yaml is not valid YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:builtins.open' in …line…",
            lambda room: room.train(f"run_name: !!python/object/apply:builtins.open [{room.trap}, w]\n"),
        ),
        Case(
            "object in YAML",
            "YAML that would make a Python object",
            "…recipe.yaml is not valid YAML: could not determine a constructor for the tag…",
            lambda room: room.train("seed: !!python/object:trl.SFTConfig {}\n"),
        ),
        Case(
            "bomb",
            'Aliases of aliases that would fill the memory ("billion laughs")',
            "…recipe.yaml is not valid YAML: written out, its aliases would make more than 100000 values",
            lambda room: room.train(BOMB + "max_steps: *i\n"),
        ),
        Case(
            "endless YAML",
            "An alias that holds itself",
            "…recipe.yaml is not valid YAML: an alias holds itself…",
            lambda room: room.train("datasets: &a [*a]\n"),
        ),
        Case(
            "deep YAML",
            "YAML nested so deep that it would overflow the stack",
            "…recipe.yaml is not valid YAML: it is nested too deep.",
            lambda room: room.train("layers: " + "[" * 50_000),
        ),
        Case(
            "broken YAML",
            "A bracket that is not closed",
            "…recipe.yaml is not valid YAML: …",
            lambda room: room.train("layers: [1, 2\n"),
        ),
        Case(
            "not UTF-8 YAML",
            "A recipe in another encoding than UTF-8",
            "…recipe.yaml is not valid YAML: 'utf-8' codec can't decode byte…",
            lambda room: room.train("run_name: é\n".encode("latin-1")),
        ),
        Case(
            "empty recipe",
            "An empty recipe",
            "…empty.yaml must hold `key: value` lines.",
            lambda room: cli(["consistency", "--config", str(room.file("empty.yaml", ""))]),
        ),
        Case(
            "list as a recipe",
            "A list in the place of keys",
            "…list.yaml must hold `key: value` lines.",
            lambda room: cli(["targets", "--config", str(room.file("list.yaml", "- method: bct"))]),
        ),
        Case(
            "two recipes in a file",
            "Two documents in one recipe",
            "…recipe.yaml is not valid YAML: expected a single document in the stream…",
            lambda room: room.train("---\nseed: 3\n"),
        ),
        Case(
            "no recipe",
            "A recipe that is not there",
            "cannot read `--config` gone.yaml: No such file or directory.",
            lambda room: cli(["on-policy-consistency", "--config", "gone.yaml"]),
        ),
        Case(
            "recipe not named",
            "A recipe that is not named",
            "`--config` needs a file.",
            lambda room: cli(["lint", "--config"]),
        ),
        Case(
            "unquoted word",
            "A word that YAML reads as false",
            "…recipe.yaml: `eval_strategy` must be …, got False. YAML reads an unquoted yes/no/on/off as true/false: quote it if it is meant as a word.",
            lambda room: room.train("eval_strategy: no\n"),
        ),
        Case(
            "list for a value",
            "A list in the place of a number",
            "…recipe.yaml: `seed` must be a whole number, got [1, 2].",
            lambda room: room.train("seed: [1, 2]\n"),
        ),
        Case(
            "mixture of text",
            "A mixture that is no list of mappings",
            "…recipe.yaml: `datasets` must be a list of mappings, each with a `path`, got 'pairs.jsonl'.",
            lambda room: room.train("datasets: pairs.jsonl\n", dataset_name=""),
        ),
        Case(
            "mixture of other types",
            "A value of another type in a mixture",
            "…recipe.yaml: `split` under `datasets` must be text, got 3.",
            lambda room: room.train("datasets: [{path: a.jsonl, split: 3}]\n", dataset_name=""),
        ),
        Case(
            "environment",
            "Environment variables that are no mapping",
            "`env` field should be a dict in the YAML file.",
            lambda room: room.train("env: [HF_HOME]\n"),
        ),
        Case(
            "unknown flag",
            "A misspelt flag",
            "unknown flag: `--learning_rat`. Did you mean `--learning_rate`?",
            lambda room: room.train("", "--learning_rat", "1e-3"),
        ),
        Case(
            "stray word",
            "A word that belongs to no flag",
            "Some specified arguments are not used by the HfArgumentParser: ['recipes']",
            lambda room: room.train("", "recipes"),
        ),
        Case(
            "two files",
            "Two recipes at once",
            "`--config` is given twice: put all options into one file.",
            lambda room: room.train("", "--config", "other.yaml"),
        ),
        Case(
            "unknown command",
            "A misspelt command",
            "unknown command `consistancy`. Did you mean `consistency`?",
            lambda room: cli(["consistancy"]),
        ),
        Case(
            "unknown accelerate config",
            "An accelerate config that there is none of",
            "--accelerate_config many_gpu is neither a file nor one of: fsdp2, multi_cpu, multi_gpu, single_gpu, zero2, zero3.",
            lambda room: cli(["consistency", "--accelerate_config", "many_gpu"]),
        ),
        Case(
            "no processes",
            "No process at all",
            "--num_processes must be at least 1, got 0.",
            lambda room: cli(["consistency", "--num_processes", "0"]),
        ),
        *(
            Case(
                f"{name} in env",
                f"A recipe that sets {name} in `env`",
                f"…recipe.yaml: `env` sets {name}, which can decide what code runs, or where data and tokens go. Set it in the …",
                lambda room, name=name: room.train(env={name: str(room.trap)}),
            )
            for name in ("PATH", "LD_PRELOAD", "PYTHONPATH", "HF_ENDPOINT", "https_proxy")
        ),
    ],
    "Models and tokenizers": [
        Case(
            "no model",
            "No model is named",
            "No model: give `model_name_or_path`.",
            lambda room: room.train(model_name_or_path=""),
        ),
        Case(
            "no such model",
            "A model that is not there, or cannot be reached",
            "nobody/nothing cannot be loaded: We couldn't connect to …",
            lambda room: room.train(model_name_or_path="nobody/nothing"),
        ),
        Case(
            "empty model folder",
            "A folder without a model",
            "…empty holds no weights: there is no model.safetensors.",
            lambda room: ((room.path / "empty").mkdir(), room.rollouts(model=str(room.path / "empty"))),
        ),
        Case(
            "broken config",
            "A model whose config.json is cut short",
            "…model cannot be loaded: It looks like the config file at '…config.json' is not a valid JSON file.",
            lambda room: room.train(model_name_or_path=str(cut(room.model() / "config.json").parent)),
        ),
        Case(
            "unknown architecture",
            "A kind of model that transformers does not know",
            "…model cannot be loaded: The checkpoint you are trying to load has model type `martian` but Transformers does not recognize this architecture. …",
            lambda room: room.train(model_name_or_path=str(room.model(config__json={"model_type": "martian"}))),
        ),
        Case(
            "no architecture",
            "A config that names no architecture",
            '…model: config.json has no `architectures`, which say what class the model is. Add them, for example `["Qwen3ForCausalLM"]`.',
            lambda room: room.train(model_name_or_path=str(room.model(config__json={"architectures": None}))),
        ),
        Case(
            "classifier",
            "A model that writes no text",
            "…model is a `Qwen3ForSequenceClassification`, which writes no text. Use a model that does (`...ForCausalLM`).",
            lambda room: room.rollouts(
                model=str(room.model(config__json={"architectures": ["Qwen3ForSequenceClassification"]}))
            ),
        ),
        Case(
            "encoder-decoder",
            "An encoder-decoder",
            "…model is a `T5ForConditionalGeneration`, an encoder-decoder. Use a decoder-only model.",
            lambda room: room.train(
                model_name_or_path=str(
                    room.model(config__json={"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]})
                )
            ),
        ),
        Case(
            "remote code",
            "A model that brings Python code along, which is run only with `trust_remote_code: true`",
            "…model brings Python code along (…), which is not run. If you trust it, set `trust_remote_code: true`.",
            lambda room: room.train(model_name_or_path=str(custom_code(room))),
        ),
        Case(
            "remote code in a trainer",
            "The same, in Python",
            "…model brings Python code along (…), which is not run. If you trust it, set `trust_remote_code: true`.",
            lambda room: room.rollouts(model=str(custom_code(room))),
        ),
        Case(
            "remote code of a tokenizer",
            "A tokenizer that brings Python code along, which is not run",
            "The tokenizer of …model cannot be loaded: …",
            lambda room: room.trainer(model=str(custom_code(room, "tokenizer_config.json"))),
        ),
        Case(
            "no weights",
            "A model without weights",
            "…model holds no weights: there is no model.safetensors.",
            lambda room: room.train(model_name_or_path=str(room.model(model__safetensors=None))),
        ),
        Case(
            "pickled weights",
            "Weights as a pickle, which could run code",
            "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)`.",
            lambda room: room.train(model_name_or_path=room.pickled_model()),
        ),
        Case(
            "pickles asked for",
            "Pickled weights asked for",
            "`model_init_kwargs` sets `use_safetensors: false`: pickled weights are not loaded, since they could run code.",
            lambda room: room.rollouts(options={"model_init_kwargs": {"use_safetensors": False}}),
        ),
        Case(
            "cut weights",
            "Weights that were cut short",
            "…model.safetensors is cut short or damaged (…). Download or copy it again.",
            lambda room: room.train(model_name_or_path=str(cut(room.model() / "model.safetensors").parent)),
        ),
        Case(
            "pickle named safetensors",
            "A pickle under the name of safe weights",
            "…model.safetensors is cut short or damaged (…). Download or copy it again.",
            lambda room: room.rollouts(model=str(room.model(model__safetensors=room.pickled()))),
        ),
        Case(
            "missing shard",
            "A file of several weights that is missing",
            "…model lacks model-2.safetensors, which model.safetensors.index.json names. Download or copy it again.",
            lambda room: room.train(
                model_name_or_path=str(
                    room.model(
                        model__safetensors=None,
                        **{"model.safetensors.index.json": '{"weight_map": {"x": "model-2.safetensors"}}'},
                    )
                )
            ),
        ),
        Case(
            "no tokenizer",
            "A model without a tokenizer",
            "The tokenizer of …model cannot be loaded: it has no vocabulary.",
            lambda room: room.train(
                model_name_or_path=str(room.model(tokenizer__json=None, tokenizer_config__json=None))
            ),
        ),
        Case(
            "cut tokenizer",
            "A tokenizer that was cut short",
            "The tokenizer of …model cannot be loaded: …",
            lambda room: room.rollouts(model=str(cut(room.model() / "tokenizer.json").parent)),
        ),
        Case(
            "no template",
            "Chat messages, and a tokenizer without a chat template",
            "`train_dataset` holds chat messages, but the tokenizer has no chat template. Set `chat_template_path`, use the chat (instruct) version of the model, or give the prompts as strings.",
            lambda room: room.trainer(processing_class=make_tokenizer(chat_template=None)),
        ),
        Case(
            "template that is not there",
            "A chat template that is not there",
            "`chat_template_path` gone.jinja cannot be read: …",
            lambda room: room.train(chat_template_path="gone.jinja"),
        ),
        Case(
            "template that refuses",
            "A chat template that refuses the messages",
            "…row 0: the chat template refused it (TemplateError: no system turns here)…",
            lambda room: room.rollouts(
                [CHAT] * 4, processing_class=make_tokenizer("{{ raise_exception('no system turns here') }}")
            ),
        ),
        Case(
            "template with a fault",
            "A chat template that is no valid Jinja",
            "…row 0: the chat template refused it (TemplateSyntaxError: …)",
            lambda room: room.trainer(
                [CHAT], processing_class=make_tokenizer("{% for m in messages %}{{ m.content }}")
            ),
        ),
        Case(
            "template with code",
            "A chat template that would run Python",
            "…row 0: the chat template refused it (SecurityError: …)",
            lambda room: room.trainer(
                [CHAT], processing_class=make_tokenizer("{{ ''.__class__.__mro__[1].__subclasses__() }}")
            ),
        ),
        Case(
            "template without messages",
            "A chat template that writes nothing",
            "…row 0: a prompt renders to no token at all…",
            lambda room: room.rollouts([CHAT] * 4, processing_class=make_tokenizer("{# #}")),
        ),
        Case(
            "no end",
            "A tokenizer without an end-of-sequence token",
            "The tokenizer has no `eos_token`, so that no answer could end. Set it (`tokenizer.eos_token = ...`) and save the tokenizer.",
            lambda room: room.trainer(processing_class=without_token("eos_token")),
        ),
        Case(
            "no end on-policy",
            "The same, on-policy",
            "The tokenizer has no `eos_token`, so that no answer could end. Set it (`tokenizer.eos_token = ...`) and save the tokenizer.",
            lambda room: room.rollouts(processing_class=without_token("eos_token")),
        ),
        Case(
            "larger vocabulary",
            "A tokenizer with more tokens than the model: another model's",
            "…row 0: token … is beyond the model's vocabulary of 64: the tokenizer, or what made `completion_ids`, is another model's…",
            lambda room: room.train(model_name_or_path=str(room.model(config__json={"vocab_size": 64}))),
        ),
        Case(
            "tokenizer as a name",
            "A name in the place of a tokenizer",
            "`processing_class` must be a tokenizer or a processor, got `str`.",
            lambda room: room.trainer(processing_class="gpt2"),
        ),
        Case(
            "nothing to train",
            "A model of which nothing trains",
            "The model has no trainable parameter. Load an adapter for training with `PeftModel.from_pretrained(..., is_trainable=True)`, or give a `peft_config`.",
            lambda room: room.trainer(model=make_model().requires_grad_(False), processing_class=make_tokenizer()),
        ),
        Case(
            "endless template",
            "A chat template that loops without end",
            "The chat template, for the prompt that begins with 'What?', does not come to an end: it was stopped after 0.2 seconds.",
            lambda room: (
                room.monkeypatch.setattr("trl_consistency.data.rendering.RENDERING_SECONDS", 0.2),
                room.train(
                    chat_template_path=str(
                        room.file(
                            "loop.jinja",
                            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                        )
                    )
                ),
            ),
        ),
        Case(
            "attention kernel in the config",
            "A config that names an attention kernel of the Hub, which would be downloaded and run",
            "…model: `attn_implementation` in config.json is owner/kernel, code of the Hub, which is not run. …",
            lambda room: room.train(
                model_name_or_path=str(room.model(config__json={"attn_implementation": "owner/kernel"}))
            ),
        ),
        Case(
            "attention kernel under another key",
            "The same, under the key that transformers uses itself, in a model to measure",
            "…model: `attn_implementation` in config.json is owner/kernel, code of the Hub, which is not run. …",
            lambda room: load_model(str(room.model(config__json={"_attn_implementation": "owner/kernel"}))),
        ),
        Case(
            "millions of layers",
            "A config that asks for three million layers",
            "…model: config.json asks for 3000000 layers (`num_hidden_layers`), and the weights have 2. …",
            lambda room: room.train(
                model_name_or_path=str(room.model(config__json={"num_hidden_layers": 3_000_000, "layer_types": None}))
            ),
        ),
        Case(
            "millions of layers measured",
            "The same, in a model to measure",
            "…model: config.json asks for 3000000 layers (`num_hidden_layers`), and the weights have 2. …",
            lambda room: load_model(
                str(room.model(config__json={"num_hidden_layers": 3_000_000, "layer_types": None}))
            ),
        ),
        Case(
            "vocabulary beyond all tensors",
            "A config with sizes that no tensor can have",
            "…model cannot be loaded: …",
            lambda room: room.train(model_name_or_path=str(room.model(config__json={"vocab_size": 10**18}))),
        ),
    ],
    "Adapters and checkpoints": [
        Case(
            "adapter as a model",
            "An adapter in the place of a model",
            "…adapter is an adapter, and a model is asked for. Load it on its base model with `PeftModel.from_pretrained(base_model, '…adapter', is_trainable=True)` and give the trainer that, or merge it into its base model (`merge_and_unload`), save the whole and name that folder.",
            lambda room: room.train(model_name_or_path=str(adapter(room))),
        ),
        Case(
            "adapter as a model in a trainer",
            "The same, in Python",
            "…adapter is an adapter, and a model is asked for. Load it on its base model with `PeftModel.from_pretrained(base_model, '…adapter', is_trainable=True)` and give the trainer that, or merge it into its base model (`merge_and_unload`), save the whole and name that folder.",
            lambda room: room.rollouts(model=str(adapter(room))),
        ),
        Case(
            "pickled adapter",
            "An adapter as a pickle, which could run code",
            "…adapter holds its adapter as a pickle (adapter_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `PeftModel.from_pretrained(base_model, folder).save_pretrained(new_folder)`.",
            lambda room: resume(room, pickled_adapter(room)),
        ),
        Case(
            "pickled checkpoint",
            "A checkpoint whose model is a pickle",
            "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)`.",
            lambda room: room.trainer(model=make_model(), processing_class=make_tokenizer()).train(
                resume_from_checkpoint=room.pickled_model()
            ),
        ),
        Case(
            "cut adapter",
            "An adapter that was cut short",
            "…adapter_model.safetensors is cut short or damaged (…). Download or copy it again.",
            lambda room: resume(room, cut(adapter(room) / "adapter_model.safetensors").parent),
        ),
        Case(
            "adapter of another rank",
            "A checkpoint with an adapter of another rank",
            "`resume_from_checkpoint`: …adapter is of another model or adapter: ….lora_A.weight is [2, 32] there and [4, 32] here (and … more). Resume with the options of the run that saved it.",
            lambda room: resume(room, adapter(room, r=2)),
        ),
        Case(
            "adapter of another base",
            "A checkpoint with an adapter of another base model",
            "`resume_from_checkpoint`: …adapter is of another model or adapter: ….lora_A.weight is [4, 32] there and [4, 64] here (and … more). Resume with the options of the run that saved it.",
            lambda room: resume(room, adapter(room), wider_model()),
        ),
        Case(
            "checkpoint of another model",
            "A checkpoint of another model",
            "`resume_from_checkpoint`: …model is of another model or adapter: model.embed_tokens.weight is [384, 32] there and [400, 32] here (and 1 more). Resume with the options of the run that saved it.",
            lambda room: room.rollouts(model=make_model(vocab_size=400), processing_class=make_tokenizer()).train(
                resume_from_checkpoint=str(room.model())
            ),
        ),
        Case(
            "no checkpoint",
            "A checkpoint that is not there",
            "`resume_from_checkpoint`: there is no folder gone.",
            lambda room: room.train(resume_from_checkpoint="gone"),
        ),
        Case(
            "no checkpoint yet",
            "The last checkpoint where there is none",
            "`resume_from_checkpoint` is true, but there is no checkpoint in …out.",
            lambda room: room.train(resume_from_checkpoint=True, command="on-policy-consistency"),
        ),
        Case(
            "checkpoint of nothing",
            "A folder that is no checkpoint",
            "…nothing holds no weights: there is no model.safetensors.",
            lambda room: ((room.path / "nothing").mkdir(), resume(room, room.path / "nothing")),
        ),
        Case(
            "learned prompt inside the blocks",
            "A learned prompt where states inside the blocks are compared",
            "What is compared inside the blocks cannot train a learned prompt (PROMPT_TUNING): the blocks run without PEFT's own forward, which alone puts it before the text. Use LoRA, train the whole model, or compare answers only (`method` bct or kl, without `log_consistency_metrics`).",
            lambda room: room.trainer(
                options={"method": ["act"]},
                peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
            ),
        ),
        Case(
            "weights that are not finite",
            "A model with one weight that is NaN",
            "…: the weights model.embed_tokens.weight hold NaN or infinite values as they were loaded, and the files do not say why. If they were loaded in float16, they may have overflowed: set `dtype: bfloat16` or `float32`.",
            lambda room: room.trainer(model=spoiled_model(), processing_class=make_tokenizer()),
        ),
        Case(
            "adapter that is not finite",
            "An adapter with weights that are NaN, to measure",
            "…adapter_model.safetensors: the weights base_model.model… hold NaN or infinite values. Nothing that such a model does means anything: take an earlier checkpoint, or train or download it again.",
            lambda room: room.evaluate([CHAT], "--adapters", str(changed_weights(adapter(room), math.nan))),
        ),
        Case(
            "another run",
            "A checkpoint of a run with other data and options",
            "`resume_from_checkpoint`: …checkpoint-1 is of another run. Resume with what that run had, or, if the change is meant, with `--resume_changed method learning_rate train_dataset` (in Python `trainer.train(..., resume_changed=['method', 'learning_rate', 'train_dataset'])`), which the model card will say. `method`: bct there, act here `learning_rate`: 0.01 there, 0.1 here `train_dataset`: 2 rows, … there, 3 rows, … here",
            lambda room: resume_another(room, {"method": "act", "learning_rate": 0.1}, make_pairs(3)),
        ),
        Case(
            "nothing to change",
            "A change allowed that no checkpoint notes",
            "`resume_changed` names `lora_alpah`, which is nothing that a checkpoint notes. What differs is listed when a run is resumed without it.",
            lambda room: resume_another(room, {}, make_pairs(2), "lora_alpah"),
        ),
        Case(
            "change without checkpoint",
            "A change allowed where no run is resumed",
            "`resume_changed` needs `resume_from_checkpoint`: no run is resumed.",
            lambda room: room.trainer(model=make_model(), processing_class=make_tokenizer()).train(
                resume_changed=["method"]
            ),
        ),
        Case(
            "Megatron's package",
            "An adapter that has a package imported, to measure",
            "…adapter: `megatron_config` and `megatron_core` in adapter_config.json would have a package imported, which is not …",
            lambda room: room.evaluate(
                [CHAT | {"answer": "Paris"}],
                "--adapters",
                str(adapter(room, megatron_config={"a": 1}, megatron_core="megatron.trap")),
            ),
        ),
        Case(
            "Megatron's package in the model's place",
            "The same, in the place of the model",
            "…adapter: `megatron_config` and `megatron_core` in adapter_config.json would have a package imported, which is not …",
            lambda room: load_model(
                str(
                    adapter(
                        room,
                        megatron_config={"a": 1},
                        megatron_core="megatron.trap",
                        base_model_name_or_path=str(room.model_dir),
                    )
                )
            ),
        ),
    ],
    "Targets": [
        Case(
            "cut targets",
            "Cached targets that were cut short",
            "The cached targets in …batch-000000.json are cut short or damaged. Delete that file: it is generated again.",
            lambda room: cached(room, lambda folder: cut(next(folder.glob("*/batch-*.json")))),
        ),
        Case(
            "foreign targets",
            "A file in the cache that holds something else",
            "The cached targets in …batch-000000.json are cut short or damaged. Delete that file: it is generated again.",
            lambda room: cached(room, lambda folder: next(folder.glob("*/batch-*.json")).write_text('["x"]')),
        ),
        Case(
            "edited targets",
            "Cached targets that were changed by hand",
            "The cached targets in …batch-000000.json are cut short or damaged. Delete that file: it is generated again.",
            lambda room: cached(
                room,
                lambda folder: [
                    file.write_text(file.read_text().replace("[[", "[[7, ", 1)) for file in folder.glob("*/batch-*")
                ],
            ),
        ),
        Case(
            "broken model.json",
            "A cache whose model.json is damaged",
            "The cached targets in …model.json are cut short or damaged. Delete that file: it is generated again.",
            lambda room: cached(room, lambda folder: cut(folder / "model.json")),
        ),
        Case(
            "targets of another model",
            "The cached targets of another model",
            "The cached targets in …cache are another model's (weights '…', now '…'). Choose another `target_cache_dir`, or delete that folder.",
            lambda room: cached(
                room,
                lambda folder: (folder / "model.json").write_text(
                    json.dumps(json.loads((folder / "model.json").read_text()) | {"weights": "0"})
                ),
            ),
        ),
        Case(
            "cache that is a file",
            "A cache that is a file",
            "`target_cache_dir` `…cache` is not writable (…). Choose another one.",
            lambda room: room.trainer(options={"target_cache_dir": str(room.file("cache", ""))}),
        ),
        Case(
            "no targets file",
            "No file for the targets",
            "the following arguments are required: --targets_file/--targets-file",
            lambda room: room.train(command="targets"),
        ),
        Case(
            "targets file",
            "A file for the targets that cannot be written",
            "`targets_file` `/dev/null/x` cannot be written (Not a directory). What was there before is kept: choose another "
            "place, and start again.",
            lambda room: room.train("", "--targets_file", "/dev/null/x", command="targets"),
        ),
    ],
    "Environment": [
        Case(
            "output folder",
            "An output folder that cannot be written to",
            "`output_dir` `/dev/null/out` is not writable (Not a directory). Choose another one.",
            lambda room: room.train(output_dir="/dev/null/out"),
        ),
        Case(
            "output file",
            "An output folder that is a file",
            "`output_dir` `…out` is not writable (File exists). Choose another one.",
            lambda room: (room.file("out", ""), room.rollouts()),
        ),
        Case(
            "full disk",
            "A disk without room",
            "`output_dir` `…out` is not writable (No space left on device). Choose another one.",
            lambda room: (full_disk(room), room.trainer()),
        ),
        Case(
            "no bitsandbytes",
            "4-bit weights without bitsandbytes",
            "`load_in_4bit` needs the package `bitsandbytes`: `pip install bitsandbytes`.",
            lambda room: (without(room, "bitsandbytes"), room.train(load_in_4bit=True, use_peft=True)),
        ),
        Case(
            "no bitsandbytes for an optimizer",
            "An 8-bit optimizer without bitsandbytes",
            "`optim` adamw_8bit needs the package `bitsandbytes`: `pip install bitsandbytes`.",
            lambda room: (without(room, "bitsandbytes"), room.trainer(options={"optim": "adamw_8bit"})),
        ),
        Case(
            "no vLLM",
            "vLLM, which is not installed",
            "`use_vllm` needs the package `vllm`: `pip install 'trl[vllm]'`.",
            lambda room: (without(room, "vllm"), room.train(use_vllm=True, command="on-policy-consistency")),
        ),
        Case(
            "no DeepSpeed",
            "DeepSpeed, which is not installed",
            "`deepspeed` needs the package `deepspeed`: `pip install deepspeed`.",
            lambda room: (without(room, "deepspeed"), room.train(deepspeed="zero2.json")),
        ),
        Case(
            "no Liger",
            "Liger kernels, which are not installed",
            "`use_liger_kernel` needs the package `liger_kernel`: `pip install liger-kernel`.",
            lambda room: (without(room, "liger_kernel"), room.train(use_liger_kernel=True)),
        ),
        Case(
            "no FlashAttention",
            "FlashAttention, which is not installed",
            "`attn_implementation` flash_attention_2 needs the package `flash_attn`: `pip install flash-attn`.",
            lambda room: (without(room, "flash_attn"), room.train(attn_implementation="flash_attention_2")),
        ),
        Case(
            "no tracker",
            "A tracker that is not installed",
            "`report_to` names `wandby`, which is not installed (or not a tracker that transformers knows). Install it, or set `report_to: none`. Available here: ….",
            lambda room: room.train(report_to="wandby"),
        ),
        Case(
            "float16 on a CPU",
            "Half precision without an accelerator",
            "`fp16` needs an accelerator, and the run is on the CPU. Leave it out, for float32, or set `bf16: true` in its place.",
            lambda room: room.train("fp16: true\n"),
        ),
        Case(
            "activation offloading on a CPU",
            "Activations that are to leave an accelerator, where there is none",
            "`activation_offloading` moves activations from an accelerator to the CPU's memory, and the run is on the CPU. Leave it out.",
            lambda room: room.train(activation_offloading=True),
        ),
        Case(
            "folder in use",
            "A second training in a folder where one goes on",
            "`output_dir` …out is in use: process … on …, since …, trains there. Wait until it ends, or choose another folder.",
            lambda room: in_use(room),
        ),
    ],
    "Other commands": [
        Case(
            "pairs without questions",
            "`pairs`: no column of questions",
            "No column of questions or prompts: name it in `prompt_column`. There are `text`.",
            lambda room: room.pairs([{"text": "x"}]),
        ),
        Case(
            "pairs without rows",
            "`pairs`: a file without rows",
            "…questions.jsonl has no rows.",
            lambda room: room.pairs([]),
        ),
        Case(
            "pairs of an unknown kind",
            "`pairs`: a misspelt perturbation",
            "Unknown perturbation `typo`. Did you mean `typos`?",
            lambda room: room.pairs(None, "--perturbations", "typo"),
        ),
        Case(
            "pairs with a wrong answer",
            "`pairs`: an answer that is none of the choices",
            "…row 0: `answer` 'horse' is none of the 2 choices: give a letter, the text of a choice, or its index from 0",
            lambda room: room.pairs([{"question": "Largest?", "choices": ["dog", "cow"], "answer": "horse"}]),
        ),
        Case(
            "pairs of cut JSON",
            "`pairs`: a file that was cut short",
            "…questions.csv, line 1: cannot be read (unexpected end of data).",
            lambda room: cli(
                ["pairs", "--dataset_name", str(room.file("questions.csv", '"question\n')), "--output_dir", "out"]
            ),
        ),
        Case(
            "share out of range",
            "`pairs`: a share out of its range",
            "`test_share` must be …, got 2.0.",
            lambda room: room.pairs(None, "--test_share", "2"),
        ),
        Case(
            "own perturbations with a fault",
            "`pairs`: a file of perturbations that does not run",
            "`perturbations_file` …mine.py, line 1: NameError: name 'perturbation' is not defined",
            lambda room: room.pairs(None, "--perturbations_file", str(room.file("mine.py", "perturbation(1)\n"))),
        ),
        Case(
            "model without a question",
            "`pairs`: a model of which nothing is asked",
            "`model_name_or_path` is given, but nothing is asked of the model: set `keep_vulnerable`.",
            lambda room: room.pairs(None, "--model_name_or_path", "x"),
        ),
        Case(
            "vulnerable model that is not there",
            "`pairs`: a model that is not there",
            "nobody/nothing cannot be loaded: We couldn't connect to …",
            lambda room: room.pairs(None, "--keep_vulnerable", "--model_name_or_path", "nobody/nothing"),
        ),
        Case(
            "lint without a model",
            "`lint`: no model is named",
            "No model: give `model_name_or_path`. Only its tokenizer is loaded.",
            lambda room: cli(["lint", "--pairs", str(room.file("pairs.jsonl", [CHAT]))]),
        ),
        Case(
            "lint of too few",
            "`lint`: fewer than no samples",
            "`samples` must be at least 0, got -3.",
            lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--samples", "-3")),
        ),
        Case(
            "lint of cut JSON",
            "`lint`: a file that was cut short",
            "…pairs.jsonl, line 1: not valid JSON (…). Write one JSON object a line.",
            lambda room: (room.file("pairs.jsonl", "{"), room.lint()),
        ),
        Case(
            "lint of nothing",
            "`lint`: a page that cannot be written",
            "`html` `/dev/null/x` cannot be written (Not a directory). What was there before is kept: choose another place, "
            "and start again.",
            lambda room: (room.file("pairs.jsonl", [CHAT]), room.lint("--html", "/dev/null/x")),
        ),
        Case(
            "lint of a pickled model",
            "`lint`: the dose of a model whose weights are a pickle",
            "…model holds its weights as a pickle (pytorch_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)`.",
            lambda room: (
                room.file("pairs.jsonl", [CHAT]),
                cli(
                    [
                        "lint",
                        "--pairs",
                        str(room.path / "pairs.jsonl"),
                        "--dose",
                        "--model_name_or_path",
                        room.pickled_model(),
                    ]
                ),
            ),
        ),
        Case(
            "evaluation of an answer that is no text",
            "`evaluate`: an answer that is no text",
            "`…pairs.jsonl`: 1 of 1 row(s) cannot be used. Nothing was dropped; mend or remove it: row 0: `answer` must be text, not 3",
            lambda room: room.evaluate([{**CHAT, "answer": 3}]),
        ),
        Case(
            "evaluation of pairs named twice",
            "`evaluate`: the same pairs twice",
            "`pairs` names the same pairs twice.",
            lambda room: room.evaluate([CHAT], "--pairs", *2 * [str(room.file("pairs.jsonl", [CHAT]))]),
        ),
        Case(
            "evaluation of a split that is not there",
            "`evaluate`: a split that is not there",
            "`splits`: embedded:organism has no split `eval`, only: train, test, test_wordings, control.",
            lambda room: room.evaluate([CHAT], "--pairs", "embedded:organism", "--splits", "eval"),
        ),
        Case(
            "evaluation of an adapter that is not there",
            "`evaluate`: an adapter that is not there",
            "`adapters`: nobody/nothing cannot be loaded: …",
            lambda room: room.evaluate([CHAT], "--adapters", "nobody/nothing"),
        ),
        Case(
            "evaluation of a pickled adapter",
            "`evaluate`: an adapter whose weights are a pickle",
            "…adapter holds its adapter as a pickle (adapter_model.bin), which is not loaded: it could run code. If you trust it, convert it to safetensors: `PeftModel.from_pretrained(base_model, folder).save_pretrained(new_folder)`.",
            lambda room: room.evaluate([CHAT], "--adapters", str(pickled_adapter(room))),
        ),
        Case(
            "top_p without sampling",
            "`evaluate`: options of sampling where nothing is sampled",
            "`top_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
            lambda room: room.evaluate([CHAT], "--top_p", "0.9"),
        ),
        Case(
            "judge without a name",
            "`evaluate`: the address of a judge without its name",
            "`judge_base_url` is given, but no judge: name the model in `judge_model`.",
            lambda room: room.evaluate([CHAT], "--judge_base_url", "http://localhost:8000/v1"),
        ),
        Case(
            "judge without an address",
            "`evaluate`: an address of a judge that is none",
            "`judge_base_url` must be an address such as http://localhost:8000/v1, got 'localhost'.",
            lambda room: room.evaluate([CHAT], "--judge_model", "judge", "--judge_base_url", "localhost"),
        ),
        Case(
            "quickstart without a folder",
            "`quickstart`: a folder that cannot be written to",
            "`output_dir` `/dev/null/x` is not writable (Not a directory). Choose another one.",
            lambda room: cli(["quickstart", "--output_dir", "/dev/null/x"]),
        ),
        Case(
            "quickstart with seeds",
            "`quickstart`: a negative number of seeds",
            "--seeds must be at least 0, got -1.",
            lambda room: cli(["quickstart", "--output_dir", str(room.path / "out"), "--seeds", "-1"]),
        ),
        Case(
            "encoding option as template variable of lint",
            "An option of the encoding among `lint`'s template variables",
            "`chat_template_kwargs` sets `truncation`, which is set the same for both sides and is not for the chat …",
            lambda room: (
                room.file("pairs.jsonl", [CHAT]),
                room.lint("--chat_template_kwargs", '{"truncation": true}'),
            ),
        ),
        Case(
            "pairs: NaN",
            "`pairs`: a NaN in the place of an answer",
            "…questions.jsonl, line 1: not valid JSON (NaN is no number). Write one JSON object a line.",
            lambda room: room.pairs([{"question": "How many?", "answer": float("nan")}]),
        ),
        Case(
            "pairs: NaN in Parquet",
            "`pairs`: the same in a Parquet file",
            "…row 0: `answer` holds nan, which is no number: write text, a number, or null…",
            lambda room: (
                Dataset.from_list([{"question": "x", "answer": float("nan"), "wrong_answer": "1"}]).to_parquet(
                    room.path / "questions.parquet"
                ),
                cli(
                    [
                        *("pairs", "--dataset_name", str(room.path / "questions.parquet")),
                        *("--output_dir", str(room.path / "out")),
                    ]
                ),
            ),
        ),
        Case(
            "pairs: doubled key",
            "`pairs`: a key that is given twice in one row",
            "…questions.jsonl, line 1: not valid JSON (the key 'answer' is given twice). Write one JSON object a line.",
            lambda room: cli(
                [
                    *("pairs", "--output_dir", str(room.path / "out"), "--dataset_name"),
                    str(room.file("questions.jsonl", '{"question": "x", "answer": "a", "answer": "b"}')),
                ]
            ),
        ),
        Case(
            "pairs: doubled column",
            "`pairs`: a CSV file with two columns of one name",
            "…questions.csv, line 1: two columns are called `answer`. Rename one of them.",
            lambda room: cli(
                [
                    *("pairs", "--output_dir", str(room.path / "out"), "--dataset_name"),
                    str(room.file("questions.csv", "question,answer,answer\nx,a,b\n")),
                ]
            ),
        ),
        Case(
            "lint without a folder",
            "`lint`: a page in a folder that is not there",
            "`html` `…none/lint.html` cannot be written (No such file or directory). What was there before is kept: choose "
            "another place, and start again.",
            lambda room: (
                room.file("pairs.jsonl", [CHAT]),
                room.lint("--html", str(room.path / "none" / "lint.html")),
            ),
        ),
        Case(
            "targets into a folder",
            "`targets`: a folder in the place of the file",
            "`targets_file` `…` cannot be written (Is a directory). What was there before is kept: choose another place, and "
            "start again.",
            lambda room: room.train("", "--targets_file", str(room.path), command="targets"),
        ),
        Case(
            "evaluate of half an adapter",
            "`evaluate`: an adapter, named as the model, that lost half of its weights",
            "`model_name_or_path`: …adapter cannot be put on the base model: Found missing adapter keys while loading the "
            "checkpoint: …",
            lambda room: (halve(room), room.evaluate([CHAT], "--model_name_or_path", str(room.path / "adapter"))),
        ),
        Case(
            "lint on a full disk",
            "`lint`: a disk that fills before the page is whole",
            "`html` `…lint.html` cannot be written (No space left on device). What was there before is kept: make room, or "
            "choose another place, and start again.",
            lambda room: (
                room.file("pairs.jsonl", [CHAT]),
                disk_fills(room),
                room.lint("--html", str(room.path / "lint.html")),
            ),
        ),
        Case(
            "pairs on a full disk",
            "`pairs`: a disk that fills before the files are whole",
            "`output_dir` `…out` cannot be written (No space left on device). What was there before is kept: make room, or "
            "choose another place, and start again.",
            lambda room: (disk_fills(room), room.pairs()),
        ),
    ],
    "Publishing": [
        Case(
            "push nothing",
            "A folder that is not there",
            "There is no folder …gone.",
            lambda room: cli(["push", str(room.path / "gone"), "me/bct"]),
        ),
        Case(
            "push no name",
            "A name that the Hub cannot have",
            "`my adapter` is not a name on the Hub: write `user/name`, of letters, digits, `-`, `_` and `.`.",
            lambda room: push(room, repo_id="my adapter"),
        ),
        Case(
            "push no card",
            "A model without a card",
            "… has no model card (README.md): `trainer.save_model()` writes one.",
            lambda room: push(room, card=None),
        ),
        Case(
            "push pickled",
            "Pickled weights",
            "… has no weights in safetensors files; adapter_model.bin is a pickle, which is never sent: save the model with "
            "`save_model`.",
            lambda room: push(room, damage=lambda folder: pickled_adapter(room)),
        ),
        Case(
            "push local base",
            "An adapter whose base model is a folder of this machine",
            "The base model is /data/base, which nobody else can load by that name. Say what it is called on the Hub, with "
            "`--base_model user/name` (in Python, `base_model`).",
            lambda room: push(room, base="/data/base"),
        ),
        Case(
            "push secrets",
            "A token and a local path in the card",
            "Nothing was sent: … holds what must not be published. README.md, line 3: a Hugging Face token README.md, line 4: "
            "a local path (/home/me/pairs.jsonl)",
            lambda room: push(room, card=f"# Mine\n\nhf_{'x' * 34}\nof /home/me/pairs.jsonl\n"),
        ),
        Case(
            "push cut weights",
            "Weights that were cut short",
            "Nothing was sent: … holds what must not be published. adapter_model.safetensors: cut short: save the model again",
            lambda room: push(room, damage=lambda folder: cut(folder / "adapter_model.safetensors")),
        ),
        Case(
            "push results",
            "A results file in another format",
            "…consistency_results.json must hold an object with a list of `results`.",
            lambda room: push(room, damage=lambda folder: (folder / "consistency_results.json").write_text("[]")),
        ),
        Case(
            "push pickles",
            "A pickle that was asked for",
            "`include`: optimizer.pt is a pickle, which is never sent. Save it as safetensors.",
            lambda room: push(
                room, "--include", "*.pt", damage=lambda folder: (folder / "optimizer.pt").write_bytes(room.pickled())
            ),
        ),
        Case(
            "push offline",
            "The Hub cannot be reached",
            "… was not published: HF_HUB_OFFLINE is set, so that nothing is sent: unset it. Nothing is lost: "
            "`trl-consistency push … me/bct` goes on from here.",
            lambda room: push(room),
        ),
        Case(
            "push not finite",
            "Weights that are NaN",
            "…adapter_model.safetensors: the weights base_model.model… hold NaN or infinite values. Nothing that such a model does means anything: take an earlier checkpoint, or train or download it again.",
            lambda room: push(room, damage=lambda folder: changed_weights(folder, math.nan)),
        ),
        Case(
            "push no tensors",
            "An adapter without a tensor",
            "…adapter: the safetensors files hold no tensor, so that nothing was trained or saved.",
            lambda room: push(room, damage=lambda folder: save_file({}, folder / "adapter_model.safetensors")),
        ),
        Case(
            "link in the folder",
            "A symbolic link in the folder, to a file outside",
            "…plot.png is a symbolic link, which is not followed: it could send a file from outside. Copy the file into the …",
            lambda room: push(
                room, damage=lambda folder: (folder / "plot.png").symlink_to(room.file("secret", "mine"))
            ),
        ),
        Case(
            "link in the place of the card",
            "A symbolic link in the place of the card",
            "…README.md is a symbolic link, which is not followed: …",
            lambda room: push(
                room, card=None, damage=lambda folder: (folder / "README.md").symlink_to(room.file("secret", "mine"))
            ),
        ),
        Case(
            "linked folder",
            "A folder of chat templates that is a symbolic link",
            "…additional_chat_templates is a symbolic link, which is not followed: …",
            lambda room: push(
                room,
                damage=lambda folder: (folder / "additional_chat_templates").symlink_to(
                    room.file("outside/a.jinja", "mine").parent
                ),
            ),
        ),
        Case(
            "other services' keys",
            "Keys of other services in the card, an address with a password among them",
            "Nothing was sent: … holds what must not be published. README.md, line 1: a GitLab token README.md, line 2: an address "
            "with a password",
            lambda room: push(room, card=f"glpat-{'a1' * 10}\nsee https://me:secretsecret@example.com/data\n"),
        ),
    ],
}


def wider_model() -> Any:
    config = make_model("llama").config
    config.hidden_size = 64
    return LlamaForCausalLM(config)


def without_token(name: str) -> Any:
    tokenizer = make_tokenizer()
    setattr(tokenizer, name, None)
    return tokenizer


def halve(room: Room) -> None:
    """An adapter, beside its tokenizer, that lost half of its weights; weights must load to put it on its model."""
    folder = adapter(room, base_model_name_or_path=str(room.model_dir))
    make_tokenizer().save_pretrained(folder)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[::2]), folder / "adapter_model.safetensors")
    room.monkeypatch.undo()


def disk_fills(room: Room) -> None:
    """There is room for the checks at the start, and then none for files."""

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    room.monkeypatch.setattr("trl_consistency.files.os.replace", refuse)


def full_disk(room: Room) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    room.monkeypatch.setattr("trl_consistency.trainer.checks.tempfile.TemporaryFile", refuse)


@pytest.fixture
def room(tmp_path, model_dir, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded before the error")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", refuse)
    return Room(tmp_path, model_dir, monkeypatch)


ALL = [case for cases in CASES.values() for case in cases]


def expected(message: str) -> str:
    return ".*".join(map(re.escape, message.split("…")))


@pytest.mark.parametrize("case", ALL, ids=[case.id for case in ALL])
def test_hostile_input(case, room, capsys):
    with pytest.raises((ConsistencyError, SystemExit, TypeError)) as end:
        case.meet(room)
    message = str(end.value)
    if isinstance(end.value, SystemExit):
        code = end.value.code
        assert code not in (0, None)
        said = code if isinstance(code, str) else capsys.readouterr().err
        errors = [line for line in said.splitlines() if "error: " in line]
        assert len(errors) == 1, said
        assert "Traceback" not in said
        message = said[said.index("error: ") :].removeprefix("error: ").strip()
    first, *rows = message.splitlines()
    assert all(row.startswith("  ") for row in rows), "one line, and below it rows"
    message = " ".join([first, *map(str.strip, rows)])
    if not re.fullmatch(expected(case.message), message):
        pytest.fail(f"another message: {message}", pytrace=False)
    assert not room.trap.exists(), "hostile code was run"


def test_ids_are_unique():
    assert len({case.id for case in ALL}) == len(ALL) >= 60


INTRODUCTION = """\
# Errors

What each kind of faulty or hostile input is answered with: one line (below it the rows, if several are faulty) that names the
row, the key or the option, before any weights are loaded. The commands print it after `error:` and end with a status other
than 0; in Python it is a `ConsistencyError`, or an `InvalidPairsError` for data. `…` stands for what differs from case to case.

What is never done:

- **YAML** is read without Python objects, each key once.
- **Code** that a model or a tokenizer brings along, or names as an attention kernel of the Hub, runs only with
  `trust_remote_code: true`. Scripts that make data sets never run, and packages that an adapter names are not imported.
- **Files outside** a folder of data that its README.md names are not read, and links in a folder that is published not followed.
- **Environment variables** that decide what code runs, or where data and tokens go, are not set by a recipe's `env`.
- **Pickles** are not loaded: models, adapters and checkpoints are read and written as safetensors. A checkpoint's optimizer,
  schedule and random states (`optimizer.pt`, `scheduler.pt`, `rng_state.pth`) and unfinished rollouts are torch files, read with
  `weights_only=True`, which makes tensors and plain numbers and runs nothing; `training_args.bin` is written by transformers and
  read by nothing here. Resume from checkpoints that you trust all the same.

The list is made of the table in `tests/test_hostile_input.py`, where each line is a test: `python -m tests.test_hostile_input`
writes it anew.
"""


def page() -> str:
    """docs/errors.md."""
    sections = [
        f"\n## {name}\n\n" + "".join(f"- {case.wrong}:\n  `` {case.message} ``\n" for case in cases)
        for name, cases in CASES.items()
    ]
    return INTRODUCTION + "".join(sections)


def test_the_page_is_made_of_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.test_hostile_input`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

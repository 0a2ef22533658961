"""What a case of the table has at hand, and what a case is."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from datasets import Dataset

from tests.helpers.models import make_config, make_pairs
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.cli import main as cli


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
        pairs = ["--pairs", str(self.file("pairs.jsonl", rows))]
        options = ["--output_dir", str(self.path / "out"), *([] if "--pairs" in flags else pairs)]
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


def train_files(**files: Any) -> Callable[[Room], None]:
    """Training a model with other files."""
    return lambda room: room.train(model_name_or_path=str(room.model(**files)))


class Case(NamedTuple):
    """One kind of input: how users meet it, in words, and the message, with `…` for what differs from run to run."""

    id: str
    wrong: str
    message: str
    meet: Callable[[Room], Any]

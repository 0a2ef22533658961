"""Broken files and disks that the cases of several sections have in common."""

import json
from pathlib import Path
from typing import Any

from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tests.helpers.models import make_model
from tests.hostile_input.room import Room


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


def pickled_adapter(room: Room) -> Path:
    folder = adapter(room)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(room.pickled())
    return folder


def cut(path: Path, share: float = 0.7) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def disk_fills(room: Room) -> None:
    """There is room for the checks at the start, and then none for files."""

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    room.monkeypatch.setattr("trl_consistency.files.os.replace", refuse)

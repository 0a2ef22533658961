"""Hostile input: publishing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.hostile_input.damage import adapter, changed_weights, cut, pickled_adapter
from tests.hostile_input.room import Case, Room
from trl_consistency.cli import main as cli


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


CASES: list[Case] = [
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
        "push an adapter and a whole model",
        "An adapter in the folder of a whole model, which other programs would load",
        "… holds an adapter and the weights of a whole model (model.safetensors), and one of them is of another training: "
        "remove its files.",
        lambda room: push(
            room, damage=lambda folder: save_file({"lm_head.weight": torch.ones(2)}, folder / "model.safetensors")
        ),
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
        "… was not published: HF_HUB_OFFLINE is set: unset it. Nothing is lost: "
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
        "…adapter: the safetensors files hold no tensor: nothing was trained or saved.",
        lambda room: push(room, damage=lambda folder: save_file({}, folder / "adapter_model.safetensors")),
    ),
    Case(
        "link in the folder",
        "A symbolic link in the folder to a file outside it",
        "…plot.png is a symbolic link, which is not followed: it could send a file from outside. Copy the file into the …",
        lambda room: push(room, damage=lambda folder: (folder / "plot.png").symlink_to(room.file("secret", "mine"))),
    ),
    Case(
        "link instead of the card",
        "A symbolic link instead of the card",
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
        "Keys of other services in the card, and an address with a password",
        "Nothing was sent: … holds what must not be published. README.md, line 1: a GitLab token README.md, line 2: an address "
        "with a password",
        lambda room: push(room, card=f"glpat-{'a1' * 10}\nsee https://me:secretsecret@example.com/data\n"),
    ),
    Case(
        "push a mail address",
        "A mail address, and what is called a password, in the card",
        "Nothing was sent: … holds what must not be published. README.md, line 3: a mail address (name the file in `include` if it "
        "should be there) README.md, line 5: what is called a key, token or password",
        lambda room: push(room, card="# Mine\n\nme@somewhere.org\n\nThe password is hunter2secret.\n"),
    ),
]

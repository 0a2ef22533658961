"""Hostile input: targets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.hostile_input.damage import cut
from tests.hostile_input.room import Case, Room


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


CASES: list[Case] = [
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
        "targets before they are made",
        "Pairs with their targets, which nobody made yet",
        "This row has no target yet: call `train()` or `evaluate()`, which make them.",
        lambda room: room.trainer(
            make_pairs(2, completion=False), model=make_model(), processing_class=make_tokenizer()
        ).dataset_with_targets(),
    ),
    Case(
        "targets of a method without",
        "Targets for a method that trains without answers",
        "`method` ['act'] trains without answers. For targets, set `method: bct`.",
        lambda room: room.train("", "--targets_file", str(room.path / "t.jsonl"), command="targets", method="act"),
    ),
    Case(
        "targets file of another type",
        "A file for the targets that does not end in .jsonl",
        "`targets_file` t.csv must end in .jsonl: it is written as JSON Lines.",
        lambda room: room.train("", "--targets_file", "t.csv", command="targets"),
    ),
    Case(
        "targets file",
        "A file for the targets that cannot be written",
        "`targets_file` `/dev/null/x.jsonl` cannot be written (Not a directory). What was there before is kept: choose another "
        "place, and start again.",
        lambda room: room.train("", "--targets_file", "/dev/null/x.jsonl", command="targets"),
    ),
]

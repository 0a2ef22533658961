"""Hostile input: adapters to measure, whose config and weights do not go together. They are tried before weights load."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tests.helpers.models import make_model, make_tokenizer
from tests.hostile_input.damage import adapter, cut
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.evaluation import evaluate


FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Weights = dict[str, torch.Tensor]


def measure(damage: Callable[[Path], Any], **config: Any) -> Callable[[Room], None]:
    """Measuring an adapter with that config, to which something was done."""

    def meet(room: Room) -> None:
        folder = adapter(room, base_model_name_or_path=str(room.model_dir))
        (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | config))
        damage(folder)
        room.evaluate([CHAT | {"answer": "Paris"}], "--adapters", str(folder))

    return meet


def with_weights(change: Callable[[Weights], Weights]) -> Callable[[Room], None]:
    """Measuring an adapter whose weights were changed in their file."""
    return measure(lambda folder: save_file(change(load_file(folder / FILE)), folder / FILE))


def written(content: bytes) -> Callable[[Room], None]:
    """Measuring an adapter with that instead of its config."""
    return measure(lambda folder: (folder / CONFIG).write_bytes(content))


def of_one_base(room: Room) -> None:
    """Two adapters of one loaded base model, of which the first is measured, in Python."""
    base, config = make_model(), LoraConfig(target_modules=["q_proj"])
    one, _ = (get_peft_model(base, config, adapter_name=name) for name in ("one", "two"))
    evaluate(one, make_tokenizer(), [CHAT])


MISSING = "`adapters`: …adapter cannot be put on the base model: Found missing adapter keys …"
OTHER_SIZE = "`adapters`: …adapter cannot be put on the base model: …size mismatch for …"
NO_PLACE = f"`adapters`: …adapter is damaged: {CONFIG} has no place for … (and … more). Copy or train it again."
DAMAGED = f"…adapter: {CONFIG} is wrong:"

CASES: list[Case] = [
    Case(
        "two adapters of one loaded base",
        "In Python, a `PeftModel` in whose base model another one has put its adapter, which would answer instead",
        "A second `PeftModel` was made of the same base model, and its adapter (two, in …) acts in this one: PEFT changes the base "
        "model itself. …",
        of_one_base,
    ),
    *(
        Case(
            f"adapter {key} {value}",
            f"An adapter with `{key}` {json.dumps(value)}",
            message,
            measure(str, **{key: value}),
        )
        for key, value, message in (
            ("r", 8, OTHER_SIZE),
            ("r", "x", f"{DAMAGED} `r` must be a number, got 'x'."),
            ("r", 0, f"{DAMAGED} `r` must be at least 1, got 0."),
            ("lora_alpha", float("nan"), f"{DAMAGED} `lora_alpha` must be a number, got nan."),
            ("lora_alpha", "x", f"{DAMAGED} `lora_alpha` must be a number, got 'x'."),
            ("use_rslora", "no", f"{DAMAGED} `use_rslora` must be true or false, got 'no'."),
            ("use_dora", True, MISSING),
            ("peft_type", "MAGIC", "`adapters`: …adapter cannot be loaded: 'MAGIC'"),
            ("peft_type", "IA3", MISSING),
            ("peft_type", "PROMPT_TUNING", "`adapters`: …adapter cannot be put on the base model: …"),
            ("task_type", "SEQ_CLS", f"{DAMAGED} `task_type` is SEQ_CLS, of an adapter that writes no text."),
            ("task_type", "NOPE", "`adapters`: …adapter cannot be loaded: Invalid task type: 'NOPE'…"),
            ("target_modules", None, NO_PLACE),
            ("target_modules", ["q_proj"], NO_PLACE),
            (
                "target_modules",
                [],
                "`adapters`: …adapter cannot be put on the base model: No `target_modules` passed …",
            ),
            (
                "target_modules",
                ["nope"],
                "`adapters`: …adapter cannot be put on the base model: Target modules {'nope'} not …",
            ),
            ("target_modules", "((((", "`adapters`: …adapter cannot be put on the base model: missing ), …"),
            (
                "modules_to_save",
                ["lm_head"],
                "`adapters`: …adapter cannot be put on the base model: it lacks …lm_head.weight…",
            ),
            ("rank_pattern", {"q_proj": 2}, OTHER_SIZE),
            (
                "bias",
                "nope",
                "`adapters`: …adapter cannot be put on the base model: Requested bias: nope, is not implemented.",
            ),
            (
                "lora_dropout",
                2,
                "`adapters`: …adapter cannot be put on the base model: dropout probability has to be …",
            ),
        )
    ),
    *(
        Case(f"adapter with {name}", f"An adapter {what}", message, with_weights(change))
        for name, what, message, change in (
            ("half its weights", "without half of its weights", MISSING, lambda of: dict(list(of.items())[::2])),
            ("no weights", "without a tensor", MISSING, lambda of: {}),
            (
                "renamed weights",
                "with weights under other names",
                MISSING,
                lambda of: {name.replace("q_proj", "query"): weight for name, weight in of.items()},
            ),
            (
                "transposed weights",
                "with weights that are turned round",
                OTHER_SIZE,
                lambda of: {name: weight.t().contiguous() for name, weight in of.items()},
            ),
            (
                "a layer more",
                "with weights of a layer that the model does not have",
                NO_PLACE,
                lambda of: of | {name.replace("layers.0", "layers.5"): weight.clone() for name, weight in of.items()},
            ),
        )
    ),
    *(
        Case(
            f"adapter's config {name}",
            f"An adapter whose config is {what}",
            f"`adapters`: …adapter cannot be loaded: {said}",
            meet,
        )
        for name, what, said, meet in (
            ("list", "a list", f"{CONFIG} must hold a JSON object.", written(b"[]")),
            ("empty", "empty", f"{CONFIG} is not valid JSON (Expecting value: …).", written(b"")),
            ("cut", "cut short", f"{CONFIG} is not valid JSON (…).", measure(lambda folder: cut(folder / CONFIG))),
            ("latin", "not UTF-8", f"{CONFIG} is not valid JSON (…).", written(b'{"a": "\xe9"}')),
            (
                "deep",
                "nested without end",
                f"{CONFIG} is not valid JSON (maximum recursion depth …).",
                written(b'{"a":' * 100_000),
            ),
        )
    ),
    Case(
        "adapter without its file",
        "An adapter's config without weights",
        "…adapter is an adapter without its weights: there is no adapter_model.safetensors. Save or copy it again.",
        measure(lambda folder: (folder / FILE).unlink()),
    ),
    Case(
        "adapter without its config",
        "An adapter's weights without a config",
        "…adapter cannot be loaded: Unrecognized model in …",
        measure(lambda folder: (folder / CONFIG).unlink()),
    ),
    Case(
        "adapter's file empty",
        "An adapter's file of weights that is empty",
        f"…{FILE} is cut short or damaged (…). Download or copy it again.",
        measure(lambda folder: (folder / FILE).write_bytes(b"")),
    ),
    Case(
        "adapter's file folder",
        "A folder instead of an adapter's weights",
        f"…{FILE} is a folder, a pipe or a device, and not a file. Download or copy it again.",
        measure(lambda folder: ((folder / FILE).unlink(), (folder / FILE).mkdir())),
    ),
]

"""Hostile input: figures, cards, names and weights that are not to be published."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.hostile_input.damage import adapter
from tests.hostile_input.publishing import push
from tests.hostile_input.room import CHAT, Case, Room
from trl_consistency.folder_lock import acquire


FIGURE = {"metric": "sycophancy", "value": 0.5, "hits": 1, "total": 2, "interval": [0.1, 0.9]}
FILE = "…consistency_results.json"
HELD: list[Any] = []  # locks of folders


def push_file(name: str, content: Any) -> Callable[[Room], None]:
    """Publishing a folder with that file; what is no text as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda room: push(room, damage=lambda folder: (folder / name).write_text(text))


def push_figure(**changes: Any) -> Callable[[Room], None]:
    """Publishing a figure that is changed."""
    return push_file("consistency_results.json", {"format": 2, "results": [FIGURE | changes]})


def push_results(**content: Any) -> Callable[[Room], None]:
    """Publishing another file of results."""
    return push_file("consistency_results.json", {"format": 2, "results": [FIGURE]} | content)


def push_card(card: str) -> Callable[[Room], None]:
    return lambda room: push(room, card=card)


def push_to(name: str) -> Callable[[Room], None]:
    return lambda room: push(room, repo_id=name)


def halve(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[::2]), folder / "adapter_model.safetensors")


def rounded(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name: weight.to(torch.int8) for name, weight in weights.items()}, folder / "adapter_model.safetensors")


CASES: list[Case] = [
    *(
        Case(f"figure: {what}", f"A figure with {what}", f"{FILE}, result 0{message}", push_figure(**changes))
        for what, changes, message in (
            ("a share of 2", {"value": 2}, ": with a `total`, `value` is a share, from -1 to 1, got 2. …"),
            (
                "a share that does not match its counts",
                {"value": 0.9},
                ": `value` is 0.9, but `hits` 1 of `total` 2 is 0.500.",
            ),
            (
                "a share but no answers",
                {"hits": 0, "total": 0},
                ": `value` is 0.5, but `total` says that there are no answers.",
            ),
            ("negative hits", {"hits": -1}, ": `hits` must be a count, got -1."),
            ("more hits than answers", {"hits": 5}, ": `hits` 5 is more than the `total` of 2."),
            ("more unread than answers", {"unread": 9}, ": `hits` and `unread` are more than the `total` of 2, …"),
            ("half an answer", {"total": 2.5}, ": `total` must be a count, got 2.5."),
            ("a truth value for a count", {"total": True}, ": `total` must be a count, got True."),
            ("an interval beyond shares", {"interval": [-3, 7]}, ": with a `total`, the `interval` is of a share, …"),
            (
                "an interval elsewhere",
                {"interval": [0.8, 0.9]},
                ": the `interval` [0.8, 0.9] does not hold the `value`, 0.5.",
            ),
            (
                "an interval upside down",
                {"interval": [0.9, 0.1]},
                ": `interval` must be two numbers, the lower one first, …",
            ),
            (
                "an interval of three",
                {"interval": [0, 1, 2]},
                ": `interval` must be two numbers, the lower one first, …",
            ),
            ("an interval of text", {"interval": "wide"}, ": `interval` must be two numbers, the lower one first, …"),
            ("NaN", {"value": float("nan")}, " must have a `value`, a finite number or null, got nan."),
            ("a text for the value", {"value": "0.5"}, " must have a `value`, a finite number or null, got '0.5'."),
            ("a share of 7 of those read", {"of_read": 7}, ": `of_read` must be a number from -1 to 1, got 7."),
            ("a number for the metric", {"metric": 3}, " must be an object with a `metric`."),
            ("a number for the split", {"split": 3}, ": `split` must be text, got 3."),
            (
                "a share of read answers that does not match its counts",
                {"unread": 1, "hits": 1, "of_read": 0.5},
                ": `of_read` is 0.5, but 1 of the 1 answers that were read count.",
            ),
            ("hits but no total", {"total": None}, ": `hits` is given without a `total`, of which it is a part."),
            (
                "a base model on other rows",
                {"before": {"value": 0.5, "hits": 2, "total": 4}},
                ": `before` is of 4 answers, but `total` is 2: they cannot be compared.",
            ),
            ("a number before", {"before": 3}, ": `before` must be an object with a `value`."),
            (
                "a number for the benchmark",
                {"benchmark": 3},
                ", `benchmark` must be an object with the texts `dataset` and `task`, got 3.",
            ),
            ("a benchmark without a task", {"benchmark": {"dataset": "a/b"}}, ", `benchmark` must have a `task`."),
            (
                "a benchmark that the Hub cannot have",
                {"benchmark": {"dataset": "cues", "task": "all"}},
                ", `benchmark`: `dataset` cues is not a name on the Hub: write `user/name`.",
            ),
        )
    ),
    *(
        Case(f"results: {what}", f"A results file {what}", f"{FILE}{message}", push_results(**content))
        for what, content, message in (
            ("of format 1", {"format": 1}, " has the format 1, not 2: …"),
            ("of a later format", {"format": 3}, " has the format 3, not 2: …"),
            ("with a mapping of results", {"results": {}}, " must hold an object with a list of `results`."),
            ("with an unknown key", {"extra": 1}, ": unknown key `extra`; known are …"),
            (
                "with a figure given twice",
                {"results": [FIGURE, FIGURE]},
                ": `sycophancy` is given twice for the same …",
            ),
            ("whose description is a number", {"description": 3}, ": `description` must be text, got 3."),
            ("whose findings are one text", {"findings": "x"}, ": `findings` must be a list of sentences."),
            (
                "with outcomes of other rows before",
                {"outcomes": [{"name": "all", "before": {"right": 9}, "after": {"right": 2}}]},
                ", outcomes 0: `before` counts 9 answers and `after` 2: they are of the same rows.",
            ),
            (
                "with truth values for counts",
                {"outcomes": [{"name": "all", "after": {"right": True}}]},
                ", outcomes 0: `after` must hold counts by outcome, got {'right': True}.",
            ),
            (
                "with outcomes given twice",
                {"outcomes": 2 * [{"name": "all", "after": {"right": 2}}]},
                ": `all` is given twice for the same …",
            ),
            ("with a number of outcomes", {"outcomes": 3}, ": `outcomes` must be a list, got 3."),
            (
                "with outcomes of another form",
                {"outcomes": [{"x": 1}]},
                ", outcomes 0 must be an object with a `name` …",
            ),
        )
    ),
    *(
        Case(
            f"card: {what}",
            f"A card whose header {what}",
            "…README.md cannot be read as a model card: …",
            push_card(card),
        )
        for what, card in (
            ("is not YAML", "---\na: [\n---\n# Mine\n"),
            ("is a list", "---\n- a\n---\n"),
            ("is a text", "---\nhello\n---\n"),
            ("would run Python", "---\na: !!python/object/apply:os.system [x]\n---\n"),
            ("has a number for results", "---\nmodel-index: 3\n---\n"),
        )
    ),
    Case(
        "results of other weights",
        "Results that were measured before the adapter was trained again",
        "…consistency_results.json is of another model than the folder now holds: its weights, its config, its adapter's options, its template or "
        "its tokenizer have changed since. Measure again with `trl-consistency evaluate --save_to_adapters true`, or remove that "
        "file; its figures are then removed from the card.",
        push_results(weights="0"),
    ),
    Case(
        "card that is a folder",
        "A folder instead of the card",
        "…README.md is a folder, a pipe or a device, and not a file: remove it.",
        lambda room: push(room, card=None, damage=lambda folder: (folder / "README.md").mkdir()),
    ),
    Case(
        "card of megabytes",
        "A card of more than 5 MB",
        "…README.md has 6,000,000 bytes, and the Hub shows no card of more than 5,000,000: shorten it.",
        push_card("x" * 6_000_000),
    ),
    Case(
        "whole numbers for weights",
        "A LoRA adapter with weights of an integer type",
        "…adapter_model.safetensors: the weights base_model.model… are int8, whole numbers, which no adapter is trained in: "
        "they were rounded. Copy or train it again.",
        lambda room: push(room, damage=rounded),
    ),
    Case(
        "push from a folder in use",
        "`push` of a folder that another process trains in",
        "…adapter is in use: process … trains there. Wait until it ends, or choose another folder.",
        lambda room: push(room, damage=lambda folder: HELD.append(acquire(folder, "trains"))),
    ),
    Case(
        "results into a folder in use",
        "`evaluate`: results for an adapter in whose folder another process trains",
        "`adapters` …adapter is in use: process … trains there. Wait until it ends, or choose another folder.",
        lambda room: (
            HELD.append(acquire(adapter(room), "trains")),
            room.evaluate([CHAT], "--adapters", str(room.path / "adapter"), "--save_to_adapters"),
        ),
    ),
    Case(
        "evaluation of whole numbers",
        "`evaluate`: a LoRA adapter with weights of an integer type",
        "…adapter_model.safetensors: the weights base_model.model… are int8, whole numbers, which no adapter is trained in: …",
        lambda room: (rounded(adapter(room)), room.evaluate([CHAT], "--adapters", str(room.path / "adapter"))),
    ),
    Case(
        "card that is a pipe",
        "A pipe instead of the card",
        "…README.md is a folder, a pipe or a device, and not a file: remove it.",
        lambda room: push(room, card=None, damage=lambda folder: os.mkfifo(folder / "README.md")),
    ),
    *(
        Case(
            f"repository {name}",
            f"The name `{name}`",
            f"`{name}` is not a name on the Hub: write `user/name`, of letters, digits, `-`, `_` and `.`.",
            push_to(name),
        )
        for name in ("me", "a/b/c", "me/", "me/a..b", "me/a--b", "me/x.git", "me/é", "https://huggingface.co/me/x", "")
    ),
    Case(
        "include nothing",
        "A pattern of files outside the folder",
        "`include`: no file in …adapter is called ../*.",
        lambda room: push(room, "--include", "../*"),
    ),
    Case(
        "secret in the adapter's config",
        "A token in the adapter's config",
        "Nothing was sent: … holds what must not be published. adapter_config.json, line …: a Hugging Face token",
        lambda room: push(
            room,
            damage=lambda folder: (folder / "adapter_config.json").write_text(
                json.dumps({"base_model_name_or_path": "me/base", "note": f"hf_{'x' * 34}"}, indent=1)
            ),
        ),
    ),
    Case(
        "NaN in the adapter's config",
        "An adapter's config with NaN, which is not JSON",
        "…adapter_config.json is not JSON: NaN is not a number",
        push_file("adapter_config.json", '{"lora_alpha": NaN}'),
    ),
    Case(
        "half an adapter",
        "An adapter without the second matrix of each pair",
        "…adapter: the adapter has … without its `lora_…`: it lost weights. Save the model again.",
        lambda room: push(room, damage=halve),
    ),
    *(
        Case(
            f"index of weights {name}",
            f"An index of weights {what}",
            "…model.safetensors.index.json must have a `weight_map` of files by weight. Save the model again.",
            push_file("model.safetensors.index.json", {"weight_map": of}),
        )
        for name, what, of in (("list", "that is a list", []), ("number", "that names a number", {"a": 3}))
    ),
]

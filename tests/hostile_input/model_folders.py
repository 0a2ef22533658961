"""Hostile input: models whose config, weights and files do not go together."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.hostile_input.room import CHAT, Case, Room, train_files
from trl_consistency.models.loading import load_model


Weights = dict[str, torch.Tensor]

AGAIN = "Download or copy the model again."
BOTH = "Download or copy both again."
INDEX = "model.safetensors.index.json"


def train_with(change: Callable[[Weights], Weights]) -> Callable[[Room], None]:
    """Training a model whose weights were changed in its file."""

    def meet(room: Room) -> None:
        folder = room.model()
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
        room.train(model_name_or_path=str(folder))

    return meet


def measure_with(**config: Any) -> Callable[[Room], None]:
    """Loading a model, to measure it, whose config.json was changed."""
    return lambda room: load_model(str(room.model(config__json=config)))


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[Room], None]:
    """Training a model where something else has the place of a file."""

    def meet(room: Room) -> None:
        file = room.model() / name
        file.unlink()
        make(file)
        room.train(model_name_or_path=str(file.parent))

    return meet


def indexed(content: Any) -> Callable[[Room], None]:
    """Training a model in several files, with that index."""
    text = content if isinstance(content, str) else json.dumps(content)
    return train_files(model__safetensors=None, **{INDEX: text})


def overflow(room: Room, *flags: str) -> None:
    """A number in the config that makes the logits NaN, which only weights can tell."""
    folder = room.model(config__json={"rms_norm_eps": -1000.0})
    room.monkeypatch.undo()
    prompt = [{"role": "user", "content": "What?\n(A) one\n(B) two"}]
    row = {"clean_prompt": prompt, "perturbed_prompt": prompt, "answer": "A"}
    room.evaluate([row], "--model_name_or_path", str(folder), *flags)


CASES: list[Case] = [
    Case(
        "half the weights",
        "Weights with half of them missing: these would be made at random",
        f"…model lacks model.embed_tokens.weight (and … more), which config.json asks for. {AGAIN}",
        train_with(lambda weights: dict(list(weights.items())[::2])),
    ),
    Case(
        "one weight missing",
        "Weights with one of them missing",
        f"…model lacks model.layers.0.mlp.up_proj.weight, which config.json asks for. {AGAIN}",
        train_with(lambda weights: {name: of for name, of in weights.items() if "0.mlp.up_proj" not in name}),
    ),
    Case(
        "renamed weights",
        "Weights under other names",
        f"…model lacks lm_head.weight (and … more), which config.json asks for. {AGAIN}",
        train_with(lambda weights: {f"x.{name}": of for name, of in weights.items()}),
    ),
    Case(
        "no tensors",
        "A file of weights that holds none",
        f"…model lacks lm_head.weight (and … more), which config.json asks for. {AGAIN}",
        train_with(lambda weights: {}),
    ),
    Case(
        "weights without a place",
        "Biases that the config does not ask for, which would be left out",
        f"…model: config.json has no place for model.layers.0.mlp.up_proj.bias, which would be left out. {BOTH}",
        train_with(lambda weights: weights | {"model.layers.0.mlp.up_proj.bias": torch.ones(64)}),
    ),
    Case(
        "a layer without a place",
        "A layer more than the config asks for, which would be left out",
        f"…model: config.json has no place for model.layers.2.… (and … more), which would be left out. {BOTH}",
        train_with(
            lambda weights: (
                weights | {name.replace("layers.0", "layers.2"): of.clone() for name, of in weights.items()}
            )
        ),
    ),
    Case(
        "weights of another shape",
        "A weight of another shape",
        f"…model: the weights do not match config.json, which asks for [32] in model.norm.weight: it is [7] there. {BOTH}",
        train_with(lambda weights: weights | {"model.norm.weight": torch.ones(7)}),
    ),
    Case(
        "whole numbers as weights",
        "Quantized weights whose config does not say how",
        "…model: the weights … are stored as I8, and config.json has no `quantization_config` that says what they mean. "
        + BOTH,
        train_with(lambda weights: {name: of.to(torch.int8) for name, of in weights.items()}),
    ),
    Case(
        "truth values as weights",
        "Weights that are true or false",
        "…model: the weights … are stored as BOOL, and config.json has no `quantization_config` that says what they mean. "
        + BOTH,
        train_with(lambda weights: {name: of > 0 for name, of in weights.items()}),
    ),
    *(
        Case(
            f"config {key} {value}",
            f"A config with `{key}` {json.dumps(value)}",
            message,
            measure_with(**{key: value}),
        )
        for key, value, message in (
            (
                "hidden_size",
                64,
                f"…model: the weights do not match config.json, which asks for […, 64] in …. {BOTH}",
            ),
            ("hidden_size", -4, "…model cannot be loaded: Trying to create tensor with negative dimension -4…"),
            (
                "intermediate_size",
                7,
                f"…model: the weights do not match config.json, which asks for [32, 7] in …. {BOTH}",
            ),
            ("num_attention_heads", 3, f"…model: the weights do not match config.json, which asks for …. {BOTH}"),
            (
                "num_attention_heads",
                0,
                "…model cannot be loaded: config.json does not describe a valid model (ZeroDivisionError: …).",
            ),
            ("num_hidden_layers", 1, "…model cannot be loaded: …`num_hidden_layers` (1) must be equal to …"),
            ("num_hidden_layers", 2.5, "…model cannot be loaded: …'num_hidden_layers' expected int, got float…"),
            ("num_hidden_layers", None, "…model cannot be loaded: …'num_hidden_layers' expected int, got NoneType…"),
            ("vocab_size", "many", "…model cannot be loaded: …'vocab_size' expected int, got str (value: 'many')"),
            ("dtype", "float12", "…model cannot be loaded: …float12…"),
            (
                "hidden_act",
                "swoosh",
                "…model cannot be loaded: config.json does not describe a valid model (KeyError: 'swoosh').",
            ),
            (
                "rope_parameters",
                {"rope_type": "fast", "rope_theta": 10000},
                "…model cannot be loaded: config.json does not describe a valid model (KeyError: 'fast').",
            ),
            (
                "architectures",
                "Qwen3ForCausalLM",
                '…model: `architectures` in config.json must be a list of one name, such as `["Qwen3ForCausalLM"]`, got '
                "'Qwen3ForCausalLM'.",
            ),
            ("architectures", [3], "…model: `architectures` in config.json must be a list of one name, …, got [3]."),
            (
                "architectures",
                ["Qwen9ForCausalLM"],
                "…model: config.json names the class `Qwen9ForCausalLM`, which transformers does not have. Correct `architectures` there, or use a transformers that has it.",
            ),
            (
                "architectures",
                ["LlamaForCausalLM"],
                "…model: config.json names the class `LlamaForCausalLM`, which does not match its `model_type`, qwen3. Correct the one or the other.",
            ),
            (
                "architectures",
                ["set_seed"],
                "…model: config.json names the class `set_seed`, which is not a model's. Correct `architectures` there.",
            ),
            (
                "quantization_config",
                {"quant_method": "magic"},
                "…model: its quantized weights cannot be loaded: Unknown quantization type, got magic…",
            ),
            (
                "quantization_config",
                {"quant_method": "gptq", "bits": 4},
                "…model: its quantized weights cannot be loaded: …",
            ),
            ("quantization_config", "4bit", "…model cannot be loaded: …"),
        )
    ),
    *(
        Case(f"config {name}", f"A config.json that is {what}", f"…model cannot be loaded: {message}", meet)
        for name, what, message, meet in (
            ("null", "`null`", "config.json must hold a JSON object.", train_files(config__json="null")),
            ("list", "a list", "config.json must hold a JSON object.", train_files(config__json="[1]")),
            ("empty", "empty", "config.json is not valid JSON (…).", train_files(config__json="")),
            ("gone", "not there", "Unrecognized model in …", train_files(config__json=None)),
            ("latin", "not UTF-8", "config.json is not valid JSON (…).", train_files(config__json=b'{"a": "\xe9"}')),
            (
                "deep",
                "nested without end",
                "config.json is not valid JSON (maximum recursion depth …).",
                train_files(config__json='{"a":' * 100_000),
            ),
            (
                "folder",
                "a folder",
                "config.json is a folder, a pipe or a device, and not a file.",
                replaced("config.json", Path.mkdir),
            ),
        )
    ),
    *(
        Case(f"weights {name}", f"Weights in a file that is {what}", f"…model.safetensors {message} again.", meet)
        for name, what, message, meet in (
            (
                "folder",
                "a folder",
                "is a folder, a pipe or a device, and not a file. …",
                replaced("model.safetensors", Path.mkdir),
            ),
            (
                "pipe",
                "a pipe",
                "is a folder, a pipe or a device, and not a file. …",
                replaced("model.safetensors", os.mkfifo),
            ),
            (
                "empty",
                "empty",
                "is cut short or damaged (…). Download or copy it",
                train_files(model__safetensors=b""),
            ),
            ("bytes", "other bytes", "is cut short or damaged (…). …", train_files(model__safetensors=b"\xff" * 64)),
        )
    ),
    *(
        Case(f"index {name}", f"An index of weights {what}", message, indexed(content))
        for name, what, content, message in (
            ("list", "that is a list", [], f"…{INDEX} is cut short or damaged. Download or copy it again."),
            (
                "numbers",
                "that names a number",
                {"metadata": {}, "weight_map": {"a": 3}},
                f"…{INDEX} is cut short or damaged. Download or copy it again.",
            ),
            (
                "without metadata",
                "without metadata",
                {"weight_map": {"a": "config.json"}},
                f"…{INDEX} has no `metadata`, which it needs. Download or copy it again.",
            ),
            (
                "outside",
                "that names a file outside the folder",
                {"metadata": {}, "weight_map": {"a": "../../secret"}},
                f"…{INDEX} names ../../secret, which is outside the folder: it is not read. Copy the file into the folder.",
            ),
        )
    ),
    Case(
        "reference of half the weights",
        "A reference whose weights are not whole",
        f"…model lacks … (and … more), which config.json asks for. {AGAIN}",
        lambda room: (
            shutil.copytree(room.model_dir, room.path / "base"),
            room.rollouts(ref_model=str(halved(room.model())), model=str(room.path / "base")),
        ),
    ),
    Case(
        "whole model of half the weights",
        "A whole model to compare with, whose weights are not whole",
        f"…model lacks … (and … more), which config.json asks for. {AGAIN}",
        lambda room: room.evaluate([CHAT | {"answer": "Paris"}], "--adapters", str(halved(room.model()))),
    ),
    Case(
        "logits that are NaN",
        "`evaluate`: a model whose logits are NaN, from which greedy decoding would make an answer",
        "The logits of the model are NaN, so that no answer means anything: its activations overflow, or a number in its "
        "config.json is wrong.",
        overflow,
    ),
    Case(
        "letters that are NaN",
        "`evaluate`: the same, for the likeliest letter",
        "The logits of the model are NaN, so that no answer means anything: …",
        lambda room: overflow(room, "--multiple_choice", "logprob"),
    ),
]


def halved(folder: Path) -> Path:
    """A model of which half of the weights are gone."""
    weights = load_file(folder / "model.safetensors")
    save_file(dict(list(weights.items())[::2]), folder / "model.safetensors", {"format": "pt"})
    return folder

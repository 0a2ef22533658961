"""
Which objectives and which ways to compute them are tested on which architectures: read from the parameters of the tests
themselves, so that the table has no claim of its own.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.helpers.architectures import CONFIGS, HYBRIDS, WITHOUT_MLP
from tests.losses import test_paired
from tests.passes import test_capture, test_flat, test_prefix_sharing
from tests.rollouts import test_loss
from tests.trainer import test_architectures


KINDS = (*CONFIGS, *HYBRIDS)

NAMES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "mistral": "Mistral",
    "phi3": "Phi-3",
    "gpt_neox": "GPT-NeoX",
    "gpt2": "GPT-2",
    "qwen3_moe": "Qwen3-MoE",
    "gpt_oss": "GPT-OSS",
    "olmo3": "OLMo 3",
    "gemma4": "Gemma 4 (text)",
    "gemma3_with_vision": "Gemma 3 with its vision tower, on text",
    "qwen2_5_vl": "Qwen2.5-VL, on text",
    "qwen3_5": "[Qwen3.5](recipes.md#which-there-are) (text)",
    "qwen3_5_with_vision": "[Qwen3.5](recipes.md#which-there-are) with its vision tower, on text",
    "qwen3_next": "Qwen3-Next",
    "lfm2": "LFM2",
    "granitemoehybrid": "Granite 4 hybrid",
    "nemotron_h": "Nemotron-H",
}

YES = "yes"
# What runs a test, by its mark
COMMANDS = {"long": "`make test-long`", "slow": "`make slow`"}
# What is refused, and why: footnotes of the page
REFUSED = {
    "router": "Each token passes other experts, and no expert gets them all: there is no state to compare.",
    "state": "A recurrent layer would carry the state of one text into the next.",
    "kernels": "As 2. With the packages of the model's kernels it may be possible. That has not been tried.",
    "eager": "The model has eager attention only, which takes no lengths of sequences.",
    "multimodal": "A multimodal model lays out the positions of each row itself.",
}


def runs_of(test: Callable[..., Any], name: str = "kind") -> dict[str, str]:
    """Returns the architectures that a test is parametrized with, and the command that runs it there."""
    found: dict[str, str] = {}
    marks = test.pytestmark  # type: ignore[attr-defined]
    assert not hasattr(sys.modules[test.__module__], "pytestmark"), (
        f"{test.__module__}: marks of the file are not read"
    )
    of_test = [mark.name for mark in marks]
    for mark in marks:
        if mark.name != "parametrize":
            continue
        names = [part.strip() for part in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
        if name in names:
            for row in mark.args[1]:
                values = row if isinstance(row, ParameterSet) else pytest.param(*(row if len(names) > 1 else (row,)))
                of_row = [*of_test, *(mark.name for mark in values.marks)]
                if unknown := {*of_row} - {"parametrize", *COMMANDS}:
                    raise ValueError(f"{test.__name__} is marked {', '.join(unknown)}: it is no evidence")
                command = next((COMMANDS[mark] for mark in of_row if mark in COMMANDS), "`make test`")
                found[values.values[names.index(name)]] = command
    return found


def kinds_of(test: Callable[..., Any], name: str = "kind") -> set[str]:
    """Returns the architectures of a test that every change must pass."""
    found = runs_of(test, name)
    for command in {*found.values()} - {"`make test`", "`make test-long`"}:
        raise ValueError(f"{test.__name__} is run by {command}: it is no evidence")
    return set(found)


def rows_of_objectives() -> dict[str, dict[str, str]]:
    """Returns the cells of each objective, by architecture."""
    paired = kinds_of(test_paired.test_equals_the_definitions_on_every_architecture)
    hybrids = kinds_of(test_paired.test_hybrids_compare_the_blocks_that_have_such_a_state)
    cells: dict[str, dict[str, str]] = {}
    for method in ("bct", "kl", "act", "attct", "mlpct"):
        tested = {kind for kind in paired if method in test_paired.methods_of(kind)} | hybrids
        cells[method] = dict.fromkeys(tested, YES)
    cells["mlpct"] |= dict.fromkeys(WITHOUT_MLP, "router")
    cells["OPCT"] = dict.fromkeys(kinds_of(test_loss.test_equals_the_definition_on_every_architecture), YES)
    return cells


def rows_of_roads() -> dict[str, dict[str, str]]:
    """Returns the cells of each way to compute objectives, by architecture."""
    shared = kinds_of(test_prefix_sharing.test_roads_equal_rows)
    handed_on = kinds_of(test_prefix_sharing.test_states_of_recurrent_layers_are_handed_on)
    flat = dict.fromkeys(kinds_of(test_flat.test_equals_each_sequence_alone), YES)
    flat |= dict.fromkeys(kinds_of(test_flat.test_layers_with_a_state), "kernels")
    flat |= dict.fromkeys(kinds_of(test_flat.test_eager_attention), "eager")
    flat |= dict.fromkeys(kinds_of(test_flat.test_multimodal_models), "multimodal")
    of_states = set(test_capture.kind._fixture_function_marker.params)
    of_states |= kinds_of(test_capture.test_gradients_of_hybrids_with_checkpointing)
    of_rollouts = kinds_of(test_prefix_sharing.test_lora_under_gradient_checkpointing) | handed_on
    sampled = kinds_of(test_prefix_sharing.test_generation_continues_from_shared_prompts)
    return {
        "prompts once: sampling": dict.fromkeys(sampled, YES),
        "prompts once: cache": dict.fromkeys(shared | handed_on, YES),
        "prompts once: packed": {**dict.fromkeys(shared, YES), **dict.fromkeys(handed_on, "state")},
        "padding-free": flat,
        "checkpointing": dict.fromkeys(of_states & of_rollouts, YES),
    }


def rows_of_runs() -> dict[str, dict[str, str]]:
    """Returns the commands that run the tests of whole runs, by architecture."""
    return {
        "resumed": runs_of(test_architectures.test_resumed_run_equals_an_uninterrupted_one),
        "two processes": runs_of(test_architectures.test_two_processes_equal_one),
        "checkpointing": runs_of(test_architectures.test_gradient_checkpointing_changes_nothing),
        "weights in 4 bits": runs_of(test_architectures.test_weights_in_4_bits),
    }

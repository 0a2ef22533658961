"""One step of activation consistency: shortened, headless passes against the plain way. `pytest -m slow -s`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.helpers.memory import peak_of
from trl_consistency import ConsistencyConfig
from trl_consistency.data.collators import PairCollator
from trl_consistency.losses.paired import Objectives, PairedLoss
from trl_consistency.passes.reference import Reference


BATCH, LENGTH, SHARED, BLOCKS = 4, 400, 360, 4
STEPS = 3


# Blocks that are compared; the plain way has no choice.
VARIANTS = {"whole model": None, "ours": None, "ours, half the blocks": [0, 1]}


def make_step(variant: str) -> Callable[[], None]:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = get_peft_model(Qwen3ForCausalLM(config), LoraConfig(r=8, target_modules="all-linear"))
    clean, perturbed = torch.randint(config.vocab_size, (2, BATCH, LENGTH))
    perturbed[:, -SHARED:] = clean[:, -SHARED:]
    make = whole_model if variant == "whole model" else ours
    return make(model, clean, perturbed, VARIANTS[variant])


def whole_model(model: PeftModel, clean: Tensor, perturbed: Tensor, layers: None) -> Callable[[], None]:
    """What one would write first: the plain forward, vocabulary projection included."""
    mask = torch.ones_like(clean)

    def states_of(input_ids: Tensor) -> list[Tensor]:
        outputs = model(input_ids=input_ids, attention_mask=mask, output_hidden_states=True)
        return [state[:, -SHARED:] for state in outputs.hidden_states[1:]]

    def step() -> None:
        with torch.no_grad(), model.disable_adapter():
            reference = states_of(clean)
        pairs = zip(states_of(perturbed), reference, strict=True)
        loss = sum((h - target).square().sum(-1).mean() for h, target in pairs) / BLOCKS
        loss.backward()
        model.zero_grad()

    return step


def ours(model: PeftModel, clean: Tensor, perturbed: Tensor, layers: list[int] | None) -> Callable[[], None]:
    """What the trainer runs."""
    args = ConsistencyConfig(output_dir="unused", method="act", layers=layers, use_cpu=True, bf16=False)
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))
    rows = [{"clean_ids": a, "perturbed_ids": b} for a, b in zip(clean.tolist(), perturbed.tolist(), strict=True)]
    batch = PairCollator(pad_token_id=0, with_completions=False, with_reference=True)(rows)
    assert batch["suffix"][:, 2].tolist() == [SHARED] * BATCH

    def step() -> None:
        losses, _ = paired_loss(model, batch)
        (losses["act"].sums.sum() / losses["act"].counts.sum()).backward()
        model.zero_grad()

    return step


def measure(variant: str) -> dict[str, float]:
    torch.set_num_threads(1)
    step = make_step(variant)
    peak = peak_of(step)
    # The processor's time, since other processes may share the core.
    start = time.process_time()
    for _ in range(STEPS):
        step()
    return {"seconds": (time.process_time() - start) / STEPS, "peak": peak}


def measure_alone(variant: str, **environment: str) -> dict[str, float]:
    """Measures in a fresh process: freed memory stays with a process and would hide the next peak."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.test_activation_step", variant],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_activation_step():
    results = {}
    print()
    for variant in VARIANTS:
        result = results[variant] = measure_alone(variant)
        # glibc keeps most of what is freed for later, so that resident memory also counts what is no longer in use.
        # Told to hand it back it is slower, and shows how much a step needs at once.
        result["needed"] = measure_alone(variant, MALLOC_MMAP_THRESHOLD_="131072")["peak"]
        whole = results["whole model"]
        print(
            f"{variant:25} {result['seconds']:5.2f} CPU-s a step ({whole['seconds'] / result['seconds']:4.1f} times faster), "
            f"peak +{result['needed']:5.0f} MB ({result['needed'] / whole['needed']:.2f}), "
            f"with what glibc keeps +{result['peak']:5.0f} MB ({result['peak'] / whole['peak']:.2f})"
        )
    whole, all_blocks, half_the_blocks = results.values()
    assert whole["seconds"] >= 5 * all_blocks["seconds"]
    assert whole["seconds"] >= 10 * half_the_blocks["seconds"]
    assert all_blocks["needed"] <= whole["needed"] / 4


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))

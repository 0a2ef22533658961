"""Steps on rollouts of shared prompts, and whole steps, against TRL's `DistillationTrainer`. `pytest -m slow -s`."""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import TrainerCallback
from trl import DistillationTrainer
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction
from trl.models.utils import _ForwardRedirection

from tests.helpers.memory import peak_of
from tests.helpers.shapes import ROUNDS, SHAPES, STEPS, make_model, make_training
from trl_consistency.objectives.divergence import shared_head_divergence
from trl_consistency.passes.prefix_sharing import PrefixSharing


# What must be gained in time, at a small and a large vocabulary, without checkpointing and with it. The exact sum over a
# large vocabulary is work that no sharing saves; checkpointing repeats the student's pass, the larger part of ours.
AT_LEAST = {
    ("long", "4096"): (5, 4),
    ("long", "32768"): (4.2, 4),
    ("long, two prompts", "4096"): (6, 4.5),
    ("long, two prompts", "32768"): (5, 4.2),
    ("short", "4096"): (1.6, 1.3),
    ("short", "32768"): (1.6, 1.6),
}
# Of the peak. Rollouts as long as their prompts, and few: the states of the completions are most of it, which nobody shares.
AT_MOST = {("short", "4096"): 0.7}


def make_step(who: str, shape: str, vocabulary: int, checkpointing: bool) -> Callable[[], None]:
    """Forward and backward of a micro-batch: LoRA, exact reverse divergence."""
    student = get_peft_model(make_model(vocabulary), LoraConfig(r=8, target_modules="all-linear")).train()
    if checkpointing:
        student.enable_input_require_grads()
        student.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    perturbed, clean, rollout, num_generations, num_prompts = SHAPES[shape]
    rows = num_generations * num_prompts
    generator = torch.Generator().manual_seed(0)

    def tokens(num_rows: int, length: int) -> Tensor:
        return torch.randint(vocabulary, (num_rows, length), generator=generator)

    completion_ids = tokens(rows, rollout)
    batch = {
        "prompt_ids": tokens(num_prompts, perturbed).repeat_interleave(num_generations, 0),
        "clean_ids": tokens(num_prompts, clean).repeat_interleave(num_generations, 0),
        "completion_ids": completion_ids,
        "completion_mask": torch.ones_like(completion_ids),
    }
    batch |= {
        name.replace("ids", "mask"): torch.ones_like(ids) for name, ids in batch.items() if name.endswith("_ids")
    }
    compute_loss = trls(student, make_model(vocabulary)) if who == "trl" else ours(student, who)

    def step() -> None:
        compute_loss(batch).backward()
        student.zero_grad()

    return step


def trls(student: Any, teacher: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    """The loss of TRL's trainer, with a second model: its own methods, on fixed rollouts."""
    trainer: Any = object.__new__(DistillationTrainer)
    trainer.teacher_model = teacher.requires_grad_(False)
    trainer.model_kwarg_keys = {"logits_to_keep"}
    trainer._is_vlm = False
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model, is_main_process=False)
    trainer._forward_redirection = _ForwardRedirection()
    trainer.beta = trainer.temperature = 1.0
    return lambda batch: trainer._compute_loss(student, batch, None)[0]


def ours(student: Any, who: str, sharing: PrefixSharing | None = None) -> Callable[[dict[str, Tensor]], Tensor]:
    sharing = sharing or PrefixSharing()
    divergence_of = {
        "ours": shared_head_divergence,
        "ours, with TRL's divergence": lambda hidden, reference, weight: ChunkedDivergenceFunction.apply(
            hidden, weight, None, reference, weight, None, 1.0
        ),
    }

    def compute_loss(batch: dict[str, Tensor]) -> Tensor:
        completions = batch["completion_ids"], batch["completion_mask"]
        with torch.no_grad(), student.disable_adapter():
            reference = sharing(student, batch["clean_ids"], batch["clean_mask"], *completions).hidden
        hidden = sharing(student, batch["prompt_ids"], batch["prompt_mask"], *completions).hidden
        valid = batch["completion_mask"].bool()
        divergence, _ = divergence_of[who](hidden[valid], reference[valid], student.get_output_embeddings().weight)
        return divergence.mean()

    return compute_loss


class Stopwatch(TrainerCallback):
    """CPU-seconds of every step, its rollouts included."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.process_time())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.process_time())


def measure_training(who: str, shape: str, vocabulary: str) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = make_training(who, shape, int(vocabulary), output_dir)
        trainer.add_callback(watch := Stopwatch())
        trainer.train()
    return {"seconds": min(later - earlier for earlier, later in itertools.pairwise(watch.ends))}


def measure(who: str, shape: str, vocabulary: str, checkpointing: str) -> dict[str, float]:
    torch.set_num_threads(1)
    step = make_step(who, shape, int(vocabulary), checkpointing == "checkpointing")
    peak, seconds = peak_of(step), []
    for _ in range(STEPS):
        # The processor's time, since other processes may share the core; and the least, since they slow it down.
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds), "peak": peak}


def measure_alone(*variant: str) -> dict[str, float]:
    """Measures in a fresh process: freed memory stays with a process and would hide the next peak."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.test_prefix_sharing", *variant],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def measure_in_turns(what: str, whos: tuple[str, ...], *variant: str) -> dict[str, dict[str, float]]:
    """The least of each figure: whatever else runs on the machine for a while slows down all of them."""
    rounds = [{who: measure_alone(what, who, *variant) for who in whos} for _ in range(ROUNDS)]
    return {
        who: {figure: min(results[who][figure] for results in rounds) for figure in rounds[0][who]} for who in whos
    }


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["no checkpointing", "checkpointing"])
@pytest.mark.parametrize("vocabulary", ["32768", "4096"])
@pytest.mark.parametrize("shape", SHAPES)
def test_optimisation_step(shape: str, vocabulary: str, checkpointing: str) -> None:
    print()
    whos = ("trl", *(("ours, with TRL's divergence",) if shape == "long" else ()), "ours")
    results = measure_in_turns("step", whos, shape, vocabulary, checkpointing)
    for who, result in results.items():
        faster, smaller = results["trl"]["seconds"] / result["seconds"], result["peak"] / results["trl"]["peak"]
        print(
            f"{shape}, V={vocabulary}, {checkpointing}: {who:27} {result['seconds']:6.2f} CPU-s "
            f"({faster:.2f} times faster), peak +{result['peak']:5.0f} MB ({smaller:.2f})"
        )
    assert faster >= AT_LEAST[shape, vocabulary][checkpointing == "checkpointing"]
    assert smaller <= AT_MOST.get((shape, vocabulary), 0.6)


@pytest.mark.slow
def test_whole_step_with_generation() -> None:
    print()
    results = measure_in_turns("training", ("trl", "ours"), "long", "4096")
    faster = results["trl"]["seconds"] / results["ours"]["seconds"]
    for who, result in results.items():
        print(f"whole step, long, V=4096: {who:4} {result['seconds']:6.2f} CPU-s")
    print(f"{faster:.2f} times faster")
    assert faster >= 1.5


if __name__ == "__main__":
    what, *variant = sys.argv[1:]
    print(json.dumps({"step": measure, "training": measure_training}[what](*variant)))

"""
Where the time of a training step of SmolLM2 goes, by its recipes. Writes docs/benchmarks/parts.json, and the tables of
docs/opct.md.

```bash
python -m tests.benchmarks.parts  # five minutes of a core
```
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from tests.benchmarks.page import IN_WORDS
from tests.benchmarks.run import machine
from tests.reproduce.page import filled
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.files import write_text
from trl_consistency.pages import cells_table
from trl_consistency.passes.reference import Reference
from trl_consistency.scripts import consistency, on_policy_consistency
from trl_consistency.scripts.recipes import recipes_dir


PAGE = Path(__file__).parents[2] / "docs" / "opct.md"
FILE = PAGE.parent / "benchmarks" / "parts.json"
RECIPES = {name: recipes_dir() / "smollm2-135m-instruct" / f"{name}.yaml" for name in ("bct", "opct")}
STEPS = 4  # of the optimizer; the first warms up, and the last is seen by the profiler
SHOWN = 6  # kinds of operations
STUDENT, REST = "the student's forward pass, and the loss", "all else in the step"
PARTS: dict[str, tuple[type, str]] = {
    "sampling the rollouts": (OnPolicyConsistencyTrainer, "_generate_single_turn"),
    "the reference's forward pass": (Reference, "run"),
    STUDENT: (ConsistencyTrainer, "compute_loss"),
    "the backward pass": (Accelerator, "backward"),
    "the optimizer": (AcceleratedOptimizer, "step"),
}


class Clock:
    """CPU seconds of each part, without those of the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []  # of each part that runs now: seconds of the parts inside it

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = process_time() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return call

    @contextmanager
    def watching(self, parts: Mapping[str, tuple[type, str]]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, (owner, method) in parts.items():
                stack.enter_context(patch.object(owner, method, self.timed(name, getattr(owner, method))))
            yield


class Steps(TrainerCallback):
    """Keeps what each part of the steps between the first and the last took, and profiles the last one."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self.profiler = profile(activities=[ProfilerActivity.CPU])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # From the end of a step to that of another, so that fetching rows is inside
        if state.global_step == 1:
            self.clock.seconds.clear()
            self._start = process_time()
        elif state.global_step == STEPS - 1:
            whole = process_time() - self._start
            parts = {name: self.clock.seconds[name] for name in PARTS if name in self.clock.seconds}
            parts[REST] = whole - sum(parts.values())
            self.seconds = {name: value / (STEPS - 2) for name, value in parts.items()}
            self.profiler.start()
        elif state.global_step == STEPS:
            self.profiler.stop()

    def operations(self) -> dict[str, float]:
        """Returns the shares of kinds of operations in the time that operations took in the profiled step."""
        shares: dict[str, float] = {}
        events = self.profiler.key_averages()
        total = sum(event.self_cpu_time_total for event in events)
        for event in events:
            words = IN_WORDS.get(event.key, f"`{event.key}`")
            shares[words] = shares.get(words, 0.0) + event.self_cpu_time_total / total
        return dict(sorted(shares.items(), key=lambda of: -of[1])[:SHOWN])


def measure(recipe: Path, flags: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Trains by a recipe for a few steps. Returns the CPU seconds of a step by part, and the shares of operations."""
    on_policy = recipe.stem == "opct"
    command = on_policy_consistency if on_policy else consistency
    trainer = OnPolicyConsistencyTrainer if on_policy else ConsistencyTrainer
    clock, init = Clock(), trainer.__init__
    steps = Steps(clock)

    def with_steps(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.add_callback(steps)

    with (
        TemporaryDirectory() as folder,
        clock.watching(PARTS | {STUDENT: (trainer, "compute_loss")}),
        patch.object(trainer, "__init__", with_steps),
    ):
        of_run = ["--max_steps", str(STEPS), "--save_strategy", "no", "--output_dir", folder]
        command.run(["--config", str(recipe), *of_run, *flags])
    return {"seconds": steps.seconds, "operations": steps.operations()}


def table(found: Mapping[str, Any], key: str, show: Callable[[float, float], str]) -> str:
    """Returns a column for each recipe. `show` gets a value, and the sum of its column."""
    totals = {name: sum(of[key].values()) for name, of in found.items()}
    order = [*PARTS, REST] if key == "seconds" else dict.fromkeys(row for of in found.values() for row in of[key])
    cells = {
        row: [show(of[key][row], totals[name]) if row in of[key] else "" for name, of in found.items()]
        for row in order
    }
    return cells_table([name.upper() for name in found], cells)


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tables of docs/opct.md by name."""
    found = {name: results[name] for name in RECIPES}
    return {
        "parts": table(found, "seconds", lambda value, total: f"{value:.2f} s ({value / total:.0%})"),
        "operations": table(found, "operations", lambda value, _: f"{value:.0%}"),
    }


def main() -> None:
    torch.set_num_threads(1)
    results = {"machine": machine(), **{name: measure(recipe) for name, recipe in RECIPES.items()}}
    write_text(FILE, json.dumps(results, indent=1) + "\n")
    write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), tables(results)))


if __name__ == "__main__":
    main()

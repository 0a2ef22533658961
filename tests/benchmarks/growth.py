"""How the cost of a step grows with each of its dimensions: the fitted exponent beside the expected one."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.benchmarks import steps
from tests.benchmarks.sizes import Size
from tests.benchmarks.test_two_processes import measure_step


FACTORS = (1, 2, 4)
TURNS = 3
PROCESSES = (1, 2)


def _rollouts(size: Size, position: int, factor: int) -> Size:
    changed = list(size.rollouts)
    changed[position] *= factor
    return replace(size, rollouts=tuple(changed))  # type: ignore[arg-type]


# What grows, and the size that it makes
DIMENSIONS: dict[str, Callable[[Size, int], Size]] = {
    "rollouts": lambda size, factor: _rollouts(size, 3, factor),
    "prompt length": lambda size, factor: _rollouts(size, 0, factor),
    "answer length": lambda size, factor: _rollouts(size, 2, factor),
    "prompts": lambda size, factor: _rollouts(size, 4, factor),
    "vocabulary": lambda size, factor: replace(size, vocabulary=size.vocabulary * factor),
    "layers": lambda size, factor: replace(size, blocks=size.blocks * factor),
    "width": lambda size, factor: replace(size, width=size.width * factor),
}


def measure_growth(size: Size) -> dict[str, Any]:
    """
    Measures OPCT's step while one dimension grows. The expected exponent is that of the operations that the step needs,
    fitted over the same sizes.
    """
    # Half the size in each way: the largest is then twice, and four times as long.
    start = replace(size, width=size.width // 2, blocks=max(size.blocks // 2, 1))
    torch.set_num_threads(1)
    found = {}
    for name, grown in DIMENSIONS.items():
        points = [_measure(grown(start, factor)) for factor in FACTORS]
        found[name] = {
            "factors": FACTORS,
            "seconds": [seconds for seconds, _ in points],
            "exponent": exponent(FACTORS, [seconds for seconds, _ in points]),
            "expected": exponent(FACTORS, [needed for _, needed in points]),
        }
    return {"growth": found}


def measure_processes(size: Size) -> dict[str, Any]:
    """
    Measures OPCT's optimization step on one batch, in one process and shared out to two. The batch is the same at all
    sizes: `tests/benchmarks/test_two_processes.py` has it.
    """
    rounds = [[measure_step(count) for count in PROCESSES] for _ in range(TURNS)]
    fastest = {kind: [min(of[kind] for of in runs) for runs in zip(*rounds, strict=True)] for kind in ("cpu", "wall")}
    return {"processes": {"counts": PROCESSES, **fastest}}


def _measure(size: Size) -> tuple[float, float]:
    step, facts = steps.rollout_step("ours", size)
    step()
    seconds = []
    for _ in range(TURNS):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return min(seconds), facts["operations"]


def exponent(factors: Sequence[int], values: Sequence[float]) -> float:
    """Fits `value = a · factor^exponent` by least squares of the logarithms."""
    xs, ys = [math.log(of) for of in factors], [math.log(of) for of in values]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - middle_x) ** 2 for x in xs)

"""One rival of one row: `python -m tests.benchmarks.worker ROW RIVAL SIZE`. `tests.benchmarks.turns` starts it."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.benchmarks.rows import ROWS
from tests.benchmarks.sizes import SIZES
from tests.benchmarks.turns import Turns


def main(row: str, rival: str, size: str) -> None:
    torch.set_num_threads(1)
    turns = Turns()
    made = ROWS[row].make(rival, SIZES[size], turns)
    turns.say(made.facts)
    if made.trains:  # a trainer, whose callback takes the turns
        made.run()
        turns.end()
        return
    peaks = [made.run() for _ in turns]
    own_peak = {} if peaks[0] is None else {"peak": float(max(peaks))}
    profiles = turns.word == "end" and made.facts.get("operations")
    turns.end(**own_peak, profile=top_of_profile(made.run) if profiles else {})


def top_of_profile(step: Callable[[], Any], count: int = 5) -> dict[str, float]:
    """Returns the share of the CPU time that each of the dearest operations of a step takes."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return {event.key: event.self_cpu_time_total / total for event in events[:count]}


if __name__ == "__main__":
    main(*sys.argv[1:])

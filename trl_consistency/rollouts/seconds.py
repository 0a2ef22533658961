"""What the time of an optimizer step goes to: sampling rollouts, sending the policy to an engine, and training."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepSeconds:
    """
    Measures, in one process, the seconds that rollouts took, and what is left of a step's time for training.

    `report` is what is logged of the last batch of rollouts: `sampling/generation_seconds`, without those of sending the
    policy and of checks, and `sampling/tokens_per_second`.
    """

    def __init__(self) -> None:
        self.report: dict[str, float] = {}
        self._last = self._sampling = 0.0  # of the last batch of rollouts, and of all since the last optimizer step

    @contextmanager
    def sampling(self, is_training: bool) -> Iterator[None]:
        """Measures what runs within it: all that a batch of rollouts takes."""
        start = time.perf_counter()
        yield
        self._last = time.perf_counter() - start
        if is_training:
            self._sampling += self._last

    def count(self, completions: list[list[int]], other_seconds: float = 0.0) -> None:
        """Notes the token ids that were sampled, and the seconds of these that did not go to generation."""
        seconds = max(self._last - other_seconds, 1e-9)
        self.report = {
            "sampling/generation_seconds": seconds,
            "sampling/tokens_per_second": sum(map(len, completions)) / seconds,
        }

    def training(self, step_seconds: float) -> float:
        """Returns the part of a step's seconds that did not go to rollouts, and begins a new step."""
        seconds, self._sampling = step_seconds - self._sampling, 0.0
        return seconds

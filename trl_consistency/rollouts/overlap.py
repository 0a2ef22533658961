"""Samples the next batch of rollouts on a server while the current one trains."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any

from .adapter_sync import Adapter
from .vllm_engine import RolloutEngine, Sampled


@dataclass
class Begun:
    """
    Rollouts for `prompts` (token ids) that are being sampled. `future` gives them, and the seconds that they took; `origin` is
    the adapter that samples them, and its step.
    """

    prompts: list[list[int]]
    future: Future[tuple[Sampled, float]]
    origin: tuple[int, Adapter] | None


class RolloutsAhead:
    """
    Rollouts of an engine on a server, each batch one step off policy, except for the first of an epoch: it is sampled while the
    batch before it trains, from the policy as it was before that step.
    """

    def __init__(self, engine: RolloutEngine):
        self._engine = engine
        self._begun: Begun | None = None

    def __call__(
        self, prompts: list[list[int]], step: int, max_tokens: int, next_prompts: list[list[int]] | None
    ) -> Sampled:
        """
        Returns rollouts like the engine itself: those that the last call began, if it began them for these prompts. Then sends
        the policy and begins those for the next step's prompts, if there are any.
        """
        engine, begun, self._begun = self._engine, self._begun, None
        if begun is not None and begun.prompts == prompts:
            engine.report = {}
            sampled, seconds = begun.future.result()
            engine.report["sampling/tokens_per_second"] = sum(map(len, sampled[0])) / max(seconds, 1e-9)
            # Checked when its policy was due: that before the first step cannot be told from the base model.
            of_step = step if begun.origin is None else begun.origin[0]
            sampled = engine.checked(of_step, prompts, sampled, begun.origin)
        else:
            sampled = engine(prompts, step, max_tokens)
        if next_prompts is not None:
            engine.bring_policy(step)
            future = in_thread(lambda: _timed(lambda: engine.sample(next_prompts, max_tokens)))
            engine.in_background = future
            self._begun = Begun(next_prompts, future, engine.sent)
        return sampled

    def forget(self) -> None:
        """Drops rollouts that were begun."""
        self._begun = None


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Does work in a thread that does not keep the program from ending, and returns its future result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _timed(work: Callable[[], Sampled]) -> tuple[Sampled, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start

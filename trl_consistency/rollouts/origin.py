"""
Proves that the engine's rollouts come from the policy in training: the trainer scores a few of them itself.

An engine that does not apply the adapter, or an old one, answers just as fluently. It shows only in the log-probabilities of
its own tokens. As long as policy and base model find these tokens equally likely, nothing is proven either way.
"""

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ..config.device import mixed_precision
from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..errors import ConsistencyError
from ..generation.options import evaluating
from ..log import get_logger
from .adapter_sync import Adapter, holding, no_adapter


logger = get_logger(__name__)

Texts = list[tuple[list[int], list[int]]]  # token ids of prompts and completions

# Of a check: rollouts, and tokens from the beginning of each. A step takes at least four forward passes of each rollout (student
# with its gradient, reference) besides sampling it, and a check mostly two of these four. So with 16 rollouts or more in a step, a
# check every ten steps takes less than 1% of the time.
ROLLOUTS, TOKENS = 3, 32
# An older adapter is scored too if the engine is further from the policy than so many times what it was at the first check
FURTHER = 1.25
# Largest mean difference of the engine's log-probabilities from the trainer's, in nats a token
TOLERANCE_FLOAT32, TOLERANCE_16_BITS = 1e-3, 0.1
# Largest standard error of [`Fit.share`] with which the policy (0) and other weights (1) can be told apart
TOLD_APART = 0.1
# Rounding leaves the share of an honest engine within so many standard errors, and within so much in any case.
MOST_ERRORS, MOST_SHARE = 5, 0.2


@dataclass(frozen=True)
class Fit:
    """
    How the engine's log-probabilities `e` of some tokens lie to those of the policy, `p`, and of other weights, `o`: the base
    model, or an older adapter.

    `difference` is the mean of `|e - p|`, `gap` that of `|o - p|`, and `share` the least-squares solution of
    `e - p = share · (o - p)`: 0 for the policy, 1 for the other weights. `error` is its standard error.
    """

    difference: float
    gap: float
    share: float
    error: float

    @classmethod
    def of(cls, engine: Tensor, policy: Tensor, other: Tensor) -> "Fit":
        """From log-probabilities, (N,)."""
        e, o = engine - policy, other - policy
        length = o.square().sum()
        share = (e * o).sum() / length if length > 0 else torch.tensor(0.0)
        left = (e - share * o).square().sum() / max(len(e) - 1, 1)
        error = (left / length).sqrt().item() if length > 0 else math.inf
        return cls(e.abs().mean().item(), o.abs().mean().item(), share.item(), error)

    @property
    def told_apart(self) -> bool:
        """Whether these tokens tell the policy from the other weights."""
        return self.error <= TOLD_APART

    @property
    def is_other(self) -> bool:
        """Whether the engine is on the way to the other weights, or away from the policy on the far side."""
        return self.told_apart and abs(self.share) > max(MOST_ERRORS * self.error, MOST_SHARE)


class OriginCheck:
    """
    Compares the engine's log-probabilities of some rollouts with the trainer's: at the start, after the first optimizer
    step, and then every `vllm_check_every` steps.

    `passed` is None until policy and base model can be told apart, then True. Raises [`ConsistencyError`] if the rollouts do
    not come from the policy. `dtype` is that in which both compute.
    """

    def __init__(
        self, model: nn.Module, accelerator: Accelerator, args: OnPolicyConsistencyConfig, dtype: torch.dtype
    ):
        self._model, self._accelerator, self._args = model, accelerator, args
        self.tolerance = TOLERANCE_FLOAT32 if dtype == torch.float32 else TOLERANCE_16_BITS
        self._warpers = _warpers(args)
        self.present: tuple[int, Adapter] | None = None  # the adapter that the engine has, and its step
        # Earlier adapters and their steps: those of the last syncs, and those of the last checks
        self._synced: deque[tuple[int, Adapter]] = deque(maxlen=2)
        self._checked: deque[tuple[int, Adapter]] = deque(maxlen=2)
        self._last: int | None = None
        self._first_difference = 0.0
        self.passed: bool | None = None

    def restart(self) -> None:
        """Makes the next rollouts be checked, whatever their step."""
        self._last = None

    def sent(self, step: int, adapter: Adapter) -> None:
        """Keeps the adapter that the engine was sent after `step` optimizer steps."""
        if self.present is not None:
            self._synced.append(self.present)
        self.present = step, adapter

    def is_due(self, step: int) -> bool:
        """Whether rollouts after `step` optimizer steps are to be checked."""
        every = self._args.vllm_check_every
        if not every or step == self._last:
            return False
        return self._last is None or (self._last == 0 < step) or step >= self._last + every

    def __call__(
        self,
        step: int,
        prompts: list[list[int]],
        completions: list[list[int]],
        engine_log_probs: list[list[float]],
        origin: tuple[int, Adapter] | None = None,
    ) -> dict[str, float]:
        """
        Checks rollouts: token ids of prompts and completions, and the completions' log-probabilities by the engine. They were
        sampled from the present policy, or from that of the `origin`, a step and its adapter. Returns what is logged, by name.
        """
        self._last, start = step, time.perf_counter()
        rows = range(0, len(prompts), max(1, len(prompts) // ROLLOUTS))[:ROLLOUTS]
        rollouts = [(prompts[row], completions[row][:TOKENS]) for row in rows if completions[row]]
        engine = torch.tensor([value for row in rows for value in engine_log_probs[row][:TOKENS]])
        of_policy = {} if origin is None else origin[1]
        origin = origin or self.present
        _, adapter = origin or (step, {})
        policy, base = self._score(rollouts, of_policy), self._score(rollouts, no_adapter(adapter))
        older = policy
        if self._checked and not _distance(engine, policy) <= FURTHER * self._first_difference:
            older = self._score(rollouts, self._checked[-1][1])
        known = engine.isfinite() & policy.isfinite() & base.isfinite() & older.isfinite()
        problem, report = None, {}
        if known.any():
            to_base, to_older = (Fit.of(engine[known], policy[known], other[known]) for other in (base, older))
            report = {
                "difference": to_base.difference,
                "base_difference": to_base.gap,
                "passed": float(to_base.told_apart),
            }
            if not self._checked:
                self._first_difference = to_base.difference
            if to_base.difference > self.tolerance or to_base.is_other or to_older.is_other:
                problem = self._explain(step, to_base, to_older, rollouts, engine, base)
            elif to_base.told_apart and not self.passed:
                self.passed = True
                logger.info(f"Step {step}: the rollouts come from the policy, not from its base model.")
        self._stop_together(problem)
        if origin is not None:
            self._checked.append(origin)
        return report | {"seconds": time.perf_counter() - start}

    def _explain(self, step: int, to_base: Fit, to_older: Fit, rollouts: Texts, engine: Tensor, base: Tensor) -> str:
        """Returns an error message that says which weights the rollouts fit."""
        distances = {"the base model without its adapter": _distance(engine, base)}
        for at, adapter in (*self._checked, *self._synced):
            name = f"an older adapter, that of step {at}"
            distances[name] = _distance(engine, self._score(rollouts, adapter))
        name = min(distances, key=lambda name: distances[name])
        if distances[name] < to_base.difference / 2:
            what = f"They fit {name} ({distances[name]:.2g})"
        elif to_older.is_other and to_older.share > 0:
            what = f"They fit an older adapter, from about step {self._checked[-1][0]}"
        else:
            what = (
                "They fit neither the base model nor an older adapter: the engine's base model may be another one, or in "
                "another precision"
            )
            if self._args.vllm_mode == "server":
                what += ", or the server may run without `--logprobs-mode processed_logprobs`"
        return (
            f"After step {step}, the rollouts do not come from the policy in training. On {len(engine)} tokens, vLLM's "
            f"log-probabilities are {to_base.difference:.2g} nats from the trainer's (rounding explains at most "
            f"{self.tolerance:g}, and favours no other weights). {what}. Leave `use_vllm` out, or see docs/vllm.md; `vllm_check_every: "
            "0` turns this check off."
        )

    def _stop_together(self, problem: str | None) -> None:
        """Raises on all processes if one of them has found a problem, so that none waits for another."""
        flag = torch.tensor([problem is not None], device=self._accelerator.device)
        if self._accelerator.gather(flag).any():
            raise ConsistencyError(
                problem
                or "The rollouts of another process do not come from the policy in training. Its error says more."
            )

    @torch.no_grad()
    def _score(self, rollouts: Texts, adapter: Adapter) -> Tensor:
        """Returns log-probabilities of all completions' tokens in one row, (N,). `adapter` replaces the present one."""
        model: Any = self._accelerator.unwrap_model(self._model)
        scored = []
        with evaluating(model), mixed_precision(self._accelerator), holding(model, adapter):
            for prompt_ids, completion_ids in rollouts:
                input_ids = torch.tensor([prompt_ids + completion_ids], device=self._accelerator.device)
                kept = len(completion_ids) + 1
                output = model(input_ids=input_ids, logits_to_keep=kept, use_cache=False)
                # Some models ignore `logits_to_keep`.
                logits = self._warpers(input_ids, output.logits[0, -kept:-1].float() / self._args.temperature)
                scored.append(logits.log_softmax(-1).gather(1, input_ids[0, len(prompt_ids) :, None])[:, 0].cpu())
        return torch.cat(scored) if scored else torch.empty(0)


def _distance(engine: Tensor, log_probs: Tensor) -> float:
    difference = (engine - log_probs).abs()
    return difference[difference.isfinite()].mean().item()


def _warpers(args: OnPolicyConsistencyConfig) -> LogitsProcessorList:
    """Returns the filters that vLLM applies after the temperature, in its order."""
    warpers = LogitsProcessorList()
    if args.min_p:
        warpers.append(MinPLogitsWarper(args.min_p))
    if args.top_k > 0:
        warpers.append(TopKLogitsWarper(args.top_k))
    if args.top_p < 1:
        warpers.append(TopPLogitsWarper(args.top_p))
    return warpers


def samples_all(args: OnPolicyConsistencyConfig) -> bool:
    """Whether the engine samples from the policy's own distribution, without filters or penalties."""
    return is_known(args) and args.top_p == 1 and args.top_k <= 0 and not args.min_p


def is_known(args: OnPolicyConsistencyConfig) -> bool:
    """Whether the trainer can compute the log-probabilities with which the engine samples."""
    return args.repetition_penalty == 1 and not args.generation_kwargs and not args.vllm_structured_outputs_regex


def can_check(args: OnPolicyConsistencyConfig) -> bool:
    """Whether the origin of rollouts is checked. Logs a warning if it should be and cannot."""
    if args.vllm_check_every and not is_known(args):
        logger.warning(
            "The origin of the rollouts is not checked: the trainer cannot compute the engine's log-probabilities under "
            "`repetition_penalty`, `generation_kwargs` or `vllm_structured_outputs_regex`. Set `vllm_check_every: 0` to "
            "hide this line."
        )
    return bool(args.vllm_check_every) and is_known(args)

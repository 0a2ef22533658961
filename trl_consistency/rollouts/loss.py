"""Computes the objective on a batch of rollouts: the reference runs, and then the student."""

import torch
from torch import Tensor, nn

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..log import get_logger
from ..losses.paired import AnswerStates
from ..losses.row_losses import RowLosses, of_batch
from ..passes.blocks import find_blocks
from ..passes.capture import States, head_of
from ..passes.load_balancing import Routing, load_balancing_loss
from ..passes.prefix_sharing import PrefixSharing
from ..passes.reference import GivenReference, Reference
from ..rope import rope_of_length
from .pair_metrics import Inputs, PairMetrics, RolloutPairs
from .types import Rollouts


logger = get_logger(__name__)


class RolloutLoss:
    """
    Compares the student with the reference on rollouts of the student. `use_cache` is passed to [`PrefixSharing`],
    which lets rollouts share their prompt's computation; `balances_routers` adds the load-balancing loss of the
    student's routers, and `pair_metrics` adds metrics to what is logged.
    """

    def __init__(
        self,
        args: OnPolicyConsistencyConfig,
        reference: Reference,
        use_cache: bool = True,
        balances_routers: bool = False,
        pair_metrics: PairMetrics | None = None,
    ):
        self.args, self.reference, self.balances_routers = args, reference, balances_routers
        self.pair_metrics = pair_metrics
        self.sharing = PrefixSharing(args.share_prefix, use_cache)
        self._reference_sharing = (
            PrefixSharing(args.share_prefix, use_cache) if isinstance(reference, GivenReference) else self.sharing
        )
        # Divergence at the last batch's compared tokens, (M,), for the table of rollouts
        self.divergence = torch.empty(0)
        # log(policy / sampling engine) at the last batch's compared tokens, (M,)
        self.log_ratio = torch.empty(0)

    def __call__(self, model: nn.Module, rollouts: Rollouts) -> dict[str, RowLosses]:
        """
        Returns, by row, `"loss"`, the logged quantities, and in training the routers' `"aux_loss"`. Call this inside
        the wrapper's forward, with the model not wrapped.

        The rollouts hold left-padded `prompt_ids` and `prompt_mask`, (B, P), and `clean_ids` and `clean_mask`, (B, C);
        right-padded `completion_ids` and `completion_mask`, (B, T); `loss_mask`, (B, T), 1 at the compared tokens.
        Optional: `sampling_log_probs`, (B, T), under the policy that sampled the completions, and `engine_log_probs`,
        (B, T), the same as computed by the sampling engine, NaN where unknown. `pair_metrics` also need
        `is_anchor`, (B,), and the clean answers, right-padded `answer_ids` and `answer_mask`.
        """
        reference, watched = self._run_reference(model, rollouts)
        student, routing = self._answers(model, rollouts, self.balances_routers and torch.is_grad_enabled())

        if self.args.loss_type == "divergence":
            values = self._divergence(student, reference)
            if "engine_log_probs" in rollouts:
                with torch.no_grad():
                    log_probs = student.log_probs(_compared(rollouts, "completion_ids"), self.args.temperature)
                self.log_ratio = log_probs - _compared(rollouts, "engine_log_probs")
        else:
            values = self._policy_gradient(student, reference, rollouts)
        self.divergence = values["divergence"]
        counts = rollouts["loss_mask"].sum(1)
        rows = rollouts["loss_mask"].nonzero()[:, 0]
        losses = {
            name: RowLosses(value.new_zeros(len(counts)).index_add(0, rows, value), counts)
            for name, value in values.items()
        }
        if routing is not None:
            losses["aux_loss"] = of_batch(load_balancing_loss(model, routing), len(counts))
        return losses | watched

    def log_probs(self, model: nn.Module, rollouts: Rollouts) -> Tensor:
        """Returns log-probabilities (B, T) of the compared tokens, 0 at all others, without gradients."""
        with torch.no_grad():
            log_probs = self._log_probs(self._answers(model, rollouts)[0], rollouts)
        mask = rollouts["loss_mask"].bool()
        return log_probs.new_zeros(mask.shape).masked_scatter(mask, log_probs)

    def _run_reference(self, model: nn.Module, rollouts: Rollouts) -> tuple[AnswerStates, dict[str, RowLosses]]:
        """
        Returns the reference's states at the compared tokens, and what `pair_metrics` say. Both come before the student's pass,
        which keeps what the backward pass needs.
        """
        pairs = None if self.pair_metrics is None else self.pair_metrics.pairs(rollouts)
        with self.reference.active(model) as frozen:
            reference, of_pairs = self.reference.run(self._reference_states, frozen, rollouts, pairs)
            # Outside this context, the model may hold other weights.
            reference.head = reference.head.detached()
        if self.pair_metrics is None or pairs is None:
            return reference, {}
        states, answers = of_pairs
        answers.head = reference.head
        return reference, self.pair_metrics(model, pairs, states, answers)

    def _reference_states(
        self, model: nn.Module, rollouts: Rollouts, pairs: RolloutPairs | None
    ) -> tuple[AnswerStates, tuple[States, AnswerStates] | None]:
        """
        Returns hidden states at the compared tokens and, of `pairs`, the residual streams in the clean prompts and hidden
        states at the clean answers. One pass has them all, unless two are cheaper.
        """
        inputs, sharing = _inputs(rollouts, "clean"), self._reference_sharing
        is_compared = rollouts["loss_mask"].bool()
        if pairs is None:
            hidden = sharing(model, *inputs).hidden[is_compared]
            return AnswerStates(hidden, head_of(model)), None
        # Where the longest row decides positions, a long answer would change what the rollouts are compared with.
        joint = None if rope_of_length(find_blocks(model).backbone.config) else pairs.join(inputs)
        if joint is None:
            hidden = sharing(model, *inputs).hidden
            states = sharing(model, *pairs.inputs, prompt_states=pairs.clean_states)
            answers = states.hidden
        else:
            states = sharing(model, *joint, prompt_states=pairs.clean_states.after_rows(len(is_compared)))
            hidden, answers = states.hidden.split([len(is_compared), len(pairs.is_answer)])
        hidden, answers = (
            of[:, : mask.shape[1]][mask] for of, mask in ((hidden, is_compared), (answers, pairs.is_answer))
        )
        head = head_of(model)
        return AnswerStates(hidden, head), (States(residual=states.prompts), AnswerStates(answers, head))

    def _answers(
        self, model: nn.Module, rollouts: Rollouts, need_routing: bool = False
    ) -> tuple[AnswerStates, Routing | None]:
        """Returns the student's hidden states at the compared tokens, after its own prompts."""
        states = self.sharing(model, *_inputs(rollouts, "prompt"), need_routing)
        # Not in evaluation, whose last batch may hold a single row.
        if (
            self.args.share_prefix
            and self.args.num_generations > 1
            and states.strategy == "plain"
            and torch.is_grad_enabled()
        ):
            logger.warning_once(f"Prompts are computed once a rollout, which is slow: {states.reason}.")
        # [B, T, H] -> [M, H]
        return AnswerStates(states.hidden[rollouts["loss_mask"].bool()], head_of(model)), states.routing

    def _divergence(self, student: AnswerStates, reference: AnswerStates) -> dict[str, Tensor]:
        """`D(π_θ(·|p, y_<t), π_0(·|c, y_<t))`, over the whole vocabulary."""
        divergence, entropy = student.divergence(reference, self.args.beta, self.args.loss_temperature)
        return {"loss": divergence, "divergence": divergence.detach(), "entropy": entropy}

    def _policy_gradient(
        self, student: AnswerStates, reference: AnswerStates, rollouts: Rollouts
    ) -> dict[str, Tensor]:
        """
        `-ratio · A_t`. The advantage `A_t = -(log π_old(y_t|p, y_<t) - log π_0(y_t|c, y_<t))` uses the policy that
        sampled the rollouts, and is constant over all optimizer steps on them.
        """
        log_probs, entropy = student.log_probs_and_entropy(
            _compared(rollouts, "completion_ids"), self.args.loss_temperature
        )
        if "sampling_log_probs" in rollouts:
            sampling_log_probs = _compared(rollouts, "sampling_log_probs")
        else:
            sampling_log_probs = log_probs.detach()
        advantages = self._log_probs(reference, rollouts) - sampling_log_probs
        ratio = (log_probs - sampling_log_probs).exp()
        loss = -ratio * advantages
        watched = {"divergence": -advantages, "entropy": entropy, "importance_ratio": ratio.detach()}
        if self.args.clip_range is not None:
            clipped = ratio.clamp(1 - self.args.clip_range, 1 + self.args.clip_range)
            watched["clipped"] = (-clipped * advantages > loss).float()
            loss = torch.maximum(loss, -clipped * advantages)
        if "engine_log_probs" in rollouts:
            self.log_ratio = sampling_log_probs - _compared(rollouts, "engine_log_probs")
            loss = loss * importance_weights(self.log_ratio, self.args)
        return {"loss": loss, **watched}

    def _log_probs(self, answers: AnswerStates, rollouts: Rollouts) -> Tensor:
        """Returns the log-probabilities of the compared tokens, (M,), at `loss_temperature`."""
        return answers.log_probs(_compared(rollouts, "completion_ids"), self.args.loss_temperature)


def _inputs(rollouts: Rollouts, side: str) -> Inputs:
    """Returns the clean or the student's own prompts, and the rollouts."""
    return (
        rollouts[f"{side}_ids"],
        rollouts[f"{side}_mask"],
        rollouts["completion_ids"],
        rollouts["completion_mask"],
    )


def importance_weights(log_ratio: Tensor, args: OnPolicyConsistencyConfig) -> Tensor:
    """
    Returns truncated importance weights `min(π / μ, c)` of tokens that the engine `μ` sampled for the policy `π`,
    where `c` is `vllm_importance_sampling_clip_max`. `log_ratio` is `log π - log μ`. The weight is 1 where it is NaN,
    because `μ` is unknown.
    """
    weights = log_ratio.nan_to_num(nan=0.0).exp()
    limit = args.vllm_importance_sampling_clip_max
    return weights if limit is None else weights.clamp(max=limit)


def _compared(rollouts: Rollouts, name: str) -> Tensor:
    """Returns a part of the rollouts, (B, T), at the compared tokens, (M,)."""
    return rollouts[name][rollouts["loss_mask"].bool()]

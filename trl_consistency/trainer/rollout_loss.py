"""The objective on a batch of rollouts: one pass of the reference, one of the student, compared at every token."""

from typing import Any

import torch
from accelerate.logging import get_logger
from torch import Tensor, nn

from ..objectives.divergence import generalized_divergence, shared_head_divergence
from .capture import Head, head_of
from .load_balancing import Routing, load_balancing_loss
from .on_policy_consistency_config import OnPolicyConsistencyConfig
from .paired_loss import AnswerStates
from .prefix_sharing import PrefixSharing
from .reference import GivenReference, Reference
from .row_losses import RowLosses, of_batch


logger = get_logger(__name__)


Rollouts = dict[str, Any]


class RolloutLoss:
    """
    Compares the student with the reference on rollouts of the student.

    Args:
        args ([`OnPolicyConsistencyConfig`]):
            The objective and its options.
        reference ([`Reference`]):
            The frozen policy.
        use_cache (`bool`, *optional*, defaults to `True`):
            Whether prompts may be shared through the key/value cache, see [`PrefixSharing`].
        balances_routers (`bool`, *optional*, defaults to `False`):
            Whether to compute the load-balancing loss of the student's routers as well.

    Attributes:
        sharing ([`PrefixSharing`]):
            How the student computes the prompt of several rollouts once.
    """

    def __init__(
        self,
        args: OnPolicyConsistencyConfig,
        reference: Reference,
        use_cache: bool = True,
        balances_routers: bool = False,
    ):
        self.args, self.reference, self.balances_routers = args, reference, balances_routers
        self.sharing = PrefixSharing(args.share_prefix, use_cache)
        self._reference_sharing = (
            PrefixSharing(args.share_prefix, use_cache) if isinstance(reference, GivenReference) else self.sharing
        )
        # Of the last batch's compared tokens, (M,), for the table of rollouts
        self.divergence = torch.empty(0)
        # Of the policy's probabilities over those of the engine that sampled, at the tokens compared last, (M,)
        self.log_ratio = torch.empty(0)

    def __call__(self, model: nn.Module, rollouts: Rollouts) -> dict[str, RowLosses]:
        """
        Args:
            model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
                The student, not wrapped; under a wrapper this is called inside the wrapper's forward.
            rollouts (`dict[str, torch.Tensor]`):
                Left-padded `prompt_ids` and `clean_ids` with `prompt_mask` and `clean_mask`, of shapes (B, P) and (B, C);
                right-padded `completion_ids` with `completion_mask`, (B, T); `loss_mask`, (B, T), 1 at the tokens to be
                compared; optionally `sampling_log_probs`, (B, T), of the policy that the completions come from, and
                `engine_log_probs`, (B, T), of the same policy in the engine that sampled them, NaN where unknown.

        Returns:
            `dict[str, RowLosses]`: `"loss"`, what is only watched, by row, and in training the routers' `"aux_loss"`.
        """
        with self.reference.active(model) as frozen:
            reference, _ = self.reference.run(self._answers, frozen, "clean", rollouts)
            # The frozen weights may stand in the student's place only for now.
            reference.head = reference.head.detached()
        student, routing = self._answers(model, "prompt", rollouts, self.balances_routers and torch.is_grad_enabled())

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
        return losses

    def log_probs(self, model: nn.Module, rollouts: Rollouts) -> Tensor:
        """Log-probabilities (B, T) of the rollouts' tokens, 0 where none is compared; without gradients."""
        with torch.no_grad():
            log_probs = self._log_probs(self._answers(model, "prompt", rollouts)[0], rollouts)
        mask = rollouts["loss_mask"].bool()
        return log_probs.new_zeros(mask.shape).masked_scatter(mask, log_probs)

    def _answers(
        self, model: nn.Module, side: str, rollouts: Rollouts, need_routing: bool = False
    ) -> tuple[AnswerStates, Routing | None]:
        """What a model says at the compared tokens after the clean prompts, or after the student's own prompts."""
        sharing = self._reference_sharing if side == "clean" else self.sharing
        states = sharing(
            model,
            rollouts[f"{side}_ids"],
            rollouts[f"{side}_mask"],
            rollouts["completion_ids"],
            rollouts["completion_mask"],
            need_routing,
        )
        # The last batch of an evaluation may well hold a single row.
        if (
            self.args.share_prefix
            and self.args.num_generations > 1
            and states.road == "plain"
            and torch.is_grad_enabled()
        ):
            logger.warning_once(f"Prompts are computed once a rollout, which is slow: {states.reason}.")
        # [B, T, H] -> [M, H]
        return AnswerStates(states.hidden[rollouts["loss_mask"].bool()], head_of(model)), states.routing

    def _divergence(self, student: AnswerStates, reference: AnswerStates) -> dict[str, Tensor]:
        """`D(π_θ(·|p, y_<t), π_0(·|c, y_<t))`, over the whole vocabulary."""
        ours, theirs, options = student.head, reference.head, (self.args.beta, self.args.loss_temperature)
        if _is_frozen_and_shared(ours, theirs):
            divergence, entropy = shared_head_divergence(student.hidden, reference.hidden, ours.weight, *options)
        else:
            divergence, entropy = generalized_divergence(
                student.hidden,
                ours.weight,
                ours.bias,
                reference.hidden,
                theirs.weight,
                theirs.bias,
                *options,
                student_scale=ours.scale,
                student_softcap=ours.softcap,
                reference_scale=theirs.scale,
                reference_softcap=theirs.softcap,
            )
        return {"loss": divergence, "divergence": divergence.detach(), "entropy": entropy}

    def _policy_gradient(
        self, student: AnswerStates, reference: AnswerStates, rollouts: Rollouts
    ) -> dict[str, Tensor]:
        """
        `-ratio · A_t`. The advantage `A_t = -(log π_old(y_t|p, y_<t) - log π_0(y_t|c, y_<t))` is that of the policy that
        the rollouts come from, and stays what it was through all optimizer steps on them.
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
        """Of the compared tokens, (M,), at `loss_temperature`."""
        return answers.log_probs(_compared(rollouts, "completion_ids"), self.args.loss_temperature)


def importance_weights(log_ratio: Tensor, args: OnPolicyConsistencyConfig) -> Tensor:
    """
    `min(π / μ, c)` of tokens that the engine `μ` drew in place of the policy `π`, truncated at
    `vllm_importance_sampling_clip_max`; 1 where the engine did not say how likely a token was.

    Args:
        log_ratio (`torch.Tensor`):
            `log π - log μ`, NaN where unknown.
        args ([`OnPolicyConsistencyConfig`]):
            Says where to truncate.
    """
    weights = log_ratio.nan_to_num(nan=0.0).exp()
    limit = args.vllm_importance_sampling_clip_max
    return weights if limit is None else weights.clamp(max=limit)


def _compared(rollouts: Rollouts, name: str) -> Tensor:
    """A part of the rollouts, (B, T), at the compared tokens, (M,)."""
    return rollouts[name][rollouts["loss_mask"].bool()]


def _is_frozen_and_shared(ours: Head, theirs: Head) -> bool:
    """Whether [`shared_head_divergence`] serves. On GPUs TRL's fused kernel does."""
    plain = ours.bias is None and ours.softcap is None and ours.scale == 1
    # ZeRO-3 has all weights in one place, where none is.
    is_whole = not hasattr(ours.weight, "ds_id")
    one = is_whole and ours.weight.data_ptr() == theirs.weight.data_ptr()
    return plain and one and not ours.weight.requires_grad and ours.weight.device.type == "cpu"

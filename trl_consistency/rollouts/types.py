"""The type of a batch of rollouts."""

from typing import Any


# By name; see [`~trl_consistency.rollouts.loss.RolloutLoss`]
Rollouts = dict[str, Any]

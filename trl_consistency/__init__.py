"""Consistency training for TRL: make a language model answer a perturbed prompt as it answers the clean one."""

from typing import TYPE_CHECKING

from .exports import lazy_names


if TYPE_CHECKING:
    from .config.consistency_config import ConsistencyConfig
    from .config.on_policy_consistency_config import OnPolicyConsistencyConfig
    from .errors import ConsistencyError, InvalidPairsError
    from .trainer.callbacks.evaluation import ConsistencyEvalCallback
    from .trainer.consistency_trainer import ConsistencyTrainer
    from .trainer.on_policy_consistency_trainer import OnPolicyConsistencyTrainer


__version__ = "0.2.0"

__all__ = [
    "ConsistencyConfig",
    "ConsistencyError",
    "ConsistencyEvalCallback",
    "ConsistencyTrainer",
    "InvalidPairsError",
    "OnPolicyConsistencyConfig",
    "OnPolicyConsistencyTrainer",
]

__getattr__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Consistency training for TRL: make a language model answer a perturbed prompt as it answers the clean one."""

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .errors import ConsistencyError, InvalidPairsError
    from .trainer.consistency_config import ConsistencyConfig
    from .trainer.consistency_trainer import ConsistencyTrainer
    from .trainer.eval_callback import ConsistencyEvalCallback
    from .trainer.on_policy_consistency_config import OnPolicyConsistencyConfig
    from .trainer.on_policy_consistency_trainer import OnPolicyConsistencyTrainer


__version__ = "0.1.0.dev0"

# Where each public name lives: importing the package does not import torch, a name does when it is first used.
_MODULES = {
    "ConsistencyConfig": ".trainer.consistency_config",
    "ConsistencyError": ".errors",
    "ConsistencyEvalCallback": ".trainer.eval_callback",
    "ConsistencyTrainer": ".trainer.consistency_trainer",
    "InvalidPairsError": ".errors",
    "OnPolicyConsistencyConfig": ".trainer.on_policy_consistency_config",
    "OnPolicyConsistencyTrainer": ".trainer.on_policy_consistency_trainer",
}

__all__ = [
    "ConsistencyConfig",
    "ConsistencyError",
    "ConsistencyEvalCallback",
    "ConsistencyTrainer",
    "InvalidPairsError",
    "OnPolicyConsistencyConfig",
    "OnPolicyConsistencyTrainer",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])

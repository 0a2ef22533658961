"""Packages with the fast kernels of layers that carry a state from token to token."""

from importlib.util import find_spec
from typing import Any

from torch import nn

from ..log import get_logger


logger = get_logger(__name__)

# By a part of the name of a layer's class: the modules to import
KERNELS_OF = {
    "GatedDeltaNet": ("causal_conv1d", "fla"),
    "DeltaAttention": ("causal_conv1d", "fla"),
    "ShortConv": ("causal_conv1d",),
    "Mamba": ("causal_conv1d", "mamba_ssm"),
    "BambaMixer": ("causal_conv1d", "mamba_ssm"),
    "FalconH1Mixer": ("causal_conv1d", "mamba_ssm"),
}

# By the module to import: the package to install
PACKAGES = {"causal_conv1d": "causal-conv1d", "fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm"}


def kernel_modules(model: nn.Module) -> list[str]:
    """Returns the modules that hold the fast kernels of a model's layers, sorted."""
    kinds = {type(module).__name__ for module in model.modules()}
    return sorted(
        {name for part, names in KERNELS_OF.items() if any(part in kind for kind in kinds) for name in names}
    )


def missing_kernels(model: nn.Module) -> list[str]:
    """Returns the packages of [`kernel_modules`] that are not installed. A model that uses the Hub's kernels needs none."""
    if getattr(model, "use_kernels", False):
        return []
    return [PACKAGES[name] for name in kernel_modules(model) if find_spec(name) is None]


def warn_of_missing_kernels(model: Any, device_type: str) -> None:
    """Says which packages would make a model's layers fast. They have no kernels for CPUs, where nothing is said."""
    missing = missing_kernels(model) if device_type != "cpu" else []
    if missing:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        logger.warning_once(
            f"`{type(base).__name__}` runs without the fast kernels of its recurrent or convolutional layers, so that each "
            f"step takes several times as long. Install them: `pip install {' '.join(missing)}`."
        )

"""Packages with the fast kernels of layers that carry a state from token to token."""

from importlib.util import find_spec
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ..errors import ConsistencyError
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


def check_adapted_kernels(model: nn.Module) -> None:
    """
    Raises [`ConsistencyError`] if an adapter is on the output projection of Mamba layers whose fast kernel reads that layer's
    own weights in training, and not in evaluation. PEFT refuses such an adapter for some architectures.
    """
    reads = "mamba_ssm" in kernel_modules(model) and not missing_kernels(model)
    names = (
        name
        for name, module in model.named_modules()
        if name.endswith(".out_proj") and isinstance(module, BaseTunerLayer) and hasattr(_owner(model, name), "conv1d")
    )
    if reads and (name := next(names, None)):
        raise ConsistencyError(
            f"The adapter is on `{name}`, whose weights mamba-ssm's kernel reads past it in training: it would not be trained, and would be "
            'left out of the student. Leave `out_proj` out of `target_modules`, or set `exclude_modules=r".*mamba.*out_proj"`.'
        )


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])

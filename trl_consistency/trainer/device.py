"""Where a run computes, and in which precision: without an accelerator on the CPU, in float32 unless bf16 is asked for."""

import os
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import AutocastKwargs, parse_flag_from_env

from ..errors import ConsistencyError


logger = get_logger(__name__)


def asks_for_bf16() -> bool:
    """Whether `accelerate launch` was told `--mixed_precision bf16`, or its config file says so."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"


def settle_device(args: Any) -> None:
    """
    Fills in `use_cpu` and `bf16`, before transformers checks them, for a run that has no accelerator.

    Args:
        args ([`ConsistencyConfig`] or [`OnPolicyConsistencyConfig`]):
            Options of the run, as they were given.

    Raises:
        [`ConsistencyError`]: If an option needs an accelerator.
    """
    is_excluded = args.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
    if torch.accelerator.is_available() and not is_excluded:
        return
    why = "the run is on the CPU" if is_excluded else "there is none here"
    if args.fp16 and not args.bf16:
        raise ConsistencyError(
            f"`fp16` needs an accelerator, and {why}. Leave it out, for float32, or set `bf16: true` in its place."
        )
    if getattr(args, "activation_offloading", False):
        raise ConsistencyError(
            f"`activation_offloading` moves activations from an accelerator to the CPU's memory, and {why}. Leave it out."
        )
    if args.bf16 is None and not args.fp16:
        args.bf16 = asks_for_bf16()
    # accelerate knows DeepSpeed on CPUs, but not beside this option.
    if not args.deepspeed and not parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        args.use_cpu = True


def announce_cpu(device: torch.device, dtype: torch.dtype, what: str) -> None:
    """Says in one line that `what` runs on the CPU, if it does, and in which precision."""
    if device.type == "cpu":
        logger.warning_once(f"{what} runs on the CPU, in {str(dtype).removeprefix('torch.')}.")


def mixed_precision(accelerator: Accelerator) -> AbstractContextManager:
    """
    The precision that accelerate puts on the forward of a model, for what is called in the place of that forward.

    Torch would keep the weights that it has cast. The reference's weights stand in the student's place for a time, and its
    pass has no gradients: the student's pass would go on with those.
    """
    return accelerator.autocast(AutocastKwargs(cache_enabled=False))

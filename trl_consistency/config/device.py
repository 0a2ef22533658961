"""Chooses device and dtype of a run: without an accelerator, the CPU in float32, or in bf16 if requested."""

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs, parse_flag_from_env

from ..errors import ConsistencyError
from ..log import get_logger


logger = get_logger(__name__)


# Set by `accelerate launch --mixed_precision`, or from its config file; "no" unless told otherwise
PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"


def asks_for_bf16() -> bool:
    """Whether `accelerate launch` got `--mixed_precision bf16`, from the command line or its config file."""
    return os.environ.get(PRECISION_VARIABLE) == "bf16"


@contextmanager
def own_randomness(device: torch.device | None) -> Iterator[None]:
    """
    Within it, random numbers may be drawn and seeded. Those outside of it go on as they were: torch's on the CPU and on the device,
    and NumPy's and Python's, which vLLM and lm-evaluation-harness seed, too.
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with _own_randomness_of_torch(device):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _own_randomness_of_torch(device: torch.device | None) -> AbstractContextManager:
    if device is None or device.type in ("cpu", "meta"):
        return torch.random.fork_rng(devices=[])
    if device.type == "mps":
        return _own_randomness_of_mps()
    return torch.random.fork_rng(devices=[device], device_type=device.type)


@contextmanager
def _own_randomness_of_mps() -> Iterator[None]:
    state = torch.mps.get_rng_state()  # `fork_rng` would pass a device, which this function does not take
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.mps.set_rng_state(state)


def settle_device(args: Any) -> None:
    """
    Sets `use_cpu` and `bf16` for a run without an accelerator, before transformers checks them.

    Args:
        args ([`ConsistencyConfig`] or [`OnPolicyConsistencyConfig`]):
            Options of the run, as the user gave them.

    Raises:
        [`ConsistencyError`]: If an option needs an accelerator, or `accelerate launch` got another precision.
    """
    _check_precision(args)
    is_excluded = args.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
    if torch.accelerator.is_available() and not is_excluded:
        return
    why = "the run is on the CPU" if is_excluded else "there is none here"
    if args.fp16 and not args.bf16:
        raise ConsistencyError(
            f"`fp16` needs an accelerator, and {why}. Leave it out (float32), or set `bf16: true` instead."
        )
    if getattr(args, "activation_offloading", False):
        raise ConsistencyError(
            f"`activation_offloading` moves activations from an accelerator to the CPU's memory, and {why}. Leave it out."
        )
    if args.bf16 is None and not args.fp16:
        args.bf16 = asks_for_bf16()
    # accelerate supports DeepSpeed on CPUs, but not together with `use_cpu`.
    if not args.deepspeed and not parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        args.use_cpu = True


def _check_precision(args: Any) -> None:
    """
    Raises [`ConsistencyError`] if the options and the environment name different precisions. Trainer would use
    accelerate's instead of `bf16: false`, and any other option instead of accelerate's.
    """
    launched = os.environ.get(PRECISION_VARIABLE, "no")
    if args.fp16:
        said, chosen = "`fp16` is true", "fp16"
    elif args.bf16 is None:
        said, chosen = "neither `bf16` nor `fp16` is set", "bf16"
    else:
        said, chosen = f"`bf16` is {str(args.bf16).lower()}", "bf16" if args.bf16 else "no"
    if launched not in ("no", chosen):
        raise ConsistencyError(
            f"In the options {said}, and `{PRECISION_VARIABLE}` is {launched} (`accelerate launch --mixed_precision`, or "
            "`mixed_precision` in its config file). Set both alike."
        )


def announce_cpu(device: torch.device, dtype: torch.dtype, what: str) -> None:
    """Logs one line if `what` runs on the CPU, with its dtype."""
    if device.type == "cpu":
        logger.warning_once(f"{what} runs on the CPU, in {str(dtype).removeprefix('torch.')}.")


def mixed_precision(accelerator: Accelerator) -> AbstractContextManager:
    """
    Returns accelerate's autocast context, for calls that replace the model's forward.

    The cache of cast weights is off. The model sometimes holds the reference's weights, in passes without gradients,
    and the student's pass would reuse the weights cached there.
    """
    return accelerator.autocast(AutocastKwargs(cache_enabled=False))

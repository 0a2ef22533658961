"""Checks that numbers are finite. NaN and infinity would give losses, answers and rates that look like results."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LogitsProcessor

from .errors import ConsistencyError


# torch's errors when it samples from probabilities that are not finite, on the CPU and on GPUs.
SAMPLING_ERRORS = ("probability tensor contains", "device-side assert")


class NotFiniteError(ConsistencyError):
    """Raised for a loss, a gradient, weights or probabilities that are NaN or infinite."""


def is_finite(tensor: Tensor) -> bool:
    """Whether all values of a tensor are finite. Integers always are."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return True
    if tensor.element_size() == 1:
        tensor = tensor.float()  # torch has no `aminmax` for 8-bit floats.
    extremes = torch.stack(torch.aminmax(tensor.detach()))  # One pass without a copy, and NaN propagates
    return bool(torch.isfinite(extremes).all())


def check_files(folder: str | Path) -> int:
    """
    Checks the weights in a folder's safetensors files, which must be complete, one tensor in memory at a time. Returns
    the number of tensors. Raises [`ConsistencyError`] if a weight is NaN or infinite, or a LoRA weight is a whole
    number.
    """
    count = 0
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                count += 1
                tensor = tensors.get_tensor(name)
                if ".lora_" in name and not tensor.is_floating_point():
                    raise ConsistencyError(
                        f"{file}: the weights {name} are {str(tensor.dtype).removeprefix('torch.')}, whole numbers, which no "
                        "adapter is trained in: they were rounded. Copy or train it again."
                    )
                if not is_finite(tensor):
                    raise NotFiniteError(
                        f"{file}: the weights {name} hold NaN or infinite values. Nothing that such a model does means "
                        "anything: take an earlier checkpoint, or train or download it again."
                    )
    return count


class NaNWatch(LogitsProcessor):
    """Records NaN logits, which greedy decoding would turn into ordinary tokens, without synchronising the device."""

    def __init__(self) -> None:
        self.has_nan: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        has_nan = scores.isnan().any()
        self.has_nan = has_nan if self.has_nan is None else self.has_nan | has_nan
        return scores

    def check(self) -> None:
        """Raises [`NotFiniteError`] if there was a NaN."""
        if self.has_nan is not None:
            _check_no_nan(self.has_nan)


def check_logits(logits: Tensor) -> None:
    """Raises [`NotFiniteError`] if any logit is NaN."""
    _check_no_nan(logits.isnan().any())


def _check_no_nan(has_nan: Tensor) -> None:
    if bool(has_nan):
        raise NotFiniteError(
            "The logits of the model are NaN, so that no answer means anything: its activations overflow, or a number in its "
            "config.json is wrong."
        )


@contextmanager
def explained_sampling(whose: str) -> Iterator[None]:
    """Turns torch's error for probabilities that cannot be sampled from into a [`NotFiniteError`]."""
    try:
        yield
    except RuntimeError as error:
        if not any(message in str(error) for message in SAMPLING_ERRORS):
            raise
        raise NotFiniteError(
            f"The probabilities of {whose} are not finite, so that no answer can be sampled: its activations overflow."
        ) from error

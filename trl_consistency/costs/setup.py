"""The setup whose costs are asked for, and its model without weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
from peft import get_peft_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedConfig
from transformers.quantizers.base import get_keys_to_not_convert

from ..errors import ConsistencyError
from ..models.architecture import check_architecture
from ..passes.blocks import base_model
from ..passes.capture import MAX_MASK_ENTRIES


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setup:
    """What decides the costs of a step; the fields have the names of the trainers' options."""

    method: tuple[str, ...]  # of `ConsistencyConfig`, or "opct" alone
    max_length: int  # of a prompt with its answer
    max_completion_length: int
    per_device_train_batch_size: int
    num_generations: int = 4
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = True
    share_prefix: bool = True
    rollout_batch_size: int | None = None
    target_batch_size: int | None = None  # None for targets that are there already
    layers: tuple[int, ...] | None = None
    dtype: str = "float32"
    bf16: bool = False  # autocast
    use_cpu: bool = False
    load_in_4bit: bool = False
    use_bnb_nested_quant: bool = False
    optim: str = "adamw_torch_fused"

    @property
    def is_opct(self) -> bool:
        """Whether rollouts are compared instead of pairs."""
        return self.method == ("opct",)

    @property
    def with_reference(self) -> bool:
        """Whether the reference runs in a step. `bct` alone needs only its answers."""
        return self.method != ("bct",)

    @property
    def answer(self) -> int:
        """Tokens of an answer: none where only prompts are compared."""
        return self.max_completion_length if {"bct", "kl", "opct"} & {*self.method} else 0

    @property
    def prompt(self) -> int:
        """Tokens of either prompt."""
        return self.max_length - self.answer

    @property
    def rollouts_per_prompt(self) -> int:
        """How many rows of a batch have the same prompt."""
        return self.num_generations if self.is_opct else 1

    @property
    def sampled_at_once(self) -> int:
        """How many rollouts, or targets, are sampled at a time. 0 for a method without either."""
        if not self.is_opct:
            return (self.target_batch_size or 0) if self.answer else 0
        rollouts = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return min(rollouts, self.rollout_batch_size or rollouts)

    @property
    def num_prompts(self) -> int:
        """The most distinct prompts in a batch: one that is no multiple of a prompt's rollouts may begin within them."""
        rows, group = self.per_device_train_batch_size, self.rollouts_per_prompt
        return -(-(rows + group - gcd(rows, group)) // group)

    def with_batch(self, rows: int) -> "Setup":
        """Returns the setup with another batch size."""
        return replace(self, per_device_train_batch_size=rows)


def make_outline(name: str, config: PreTrainedConfig, peft_config: Any, attention: str | None = None) -> nn.Module:
    """
    Returns the model on the meta device, with a new adapter if there is a `peft_config`. Raises [`ConsistencyError`] if
    it cannot be built.
    """
    model: Any = check_architecture(name, config, attention, peft_config)
    if model is None:
        raise ConsistencyError(f"{name} has Python code of its own, whose costs are not known. Use another model.")
    for parameter in model.parameters():
        parameter.requires_grad_(peft_config is None)
    if peft_config is None:
        return model
    peft_config.init_lora_weights = False  # there are no weights to begin from
    with torch.device("meta"):
        return get_peft_model(model, peft_config)


def quantized_weights(model: Any) -> set[str]:
    """Returns the names of the weights that `load_in_4bit` quantizes: linear layers, but for the head."""
    base = base_model(model)
    kept = tuple(get_keys_to_not_convert(base))
    names = {parameter: name for name, parameter in model.named_parameters()}
    packed = set()
    for name, module in base.named_modules():
        weight = getattr(module, "weight", None)
        is_frozen = isinstance(weight, nn.Parameter) and not weight.requires_grad
        plain = name.removesuffix(".base_layer")
        if isinstance(module, nn.Linear) and is_frozen and not plain.startswith(kept):
            packed.add(names[weight])
    return packed


@contextmanager
def without_memory(model: nn.Module, setup: Setup) -> Iterator[FakeTensorMode]:
    """
    Gives the model parameters that have a shape, a dtype and the CPU as their device, but no memory. Within the context
    it can be called; operations only find out the shapes of what they return.
    """
    dtype = DTYPES[setup.dtype]
    adapts = hasattr(model, "peft_config")
    made: dict[Tensor, nn.Parameter] = {}

    def fake(parameter: nn.Parameter) -> nn.Parameter:
        if parameter not in made:  # tied weights stay tied
            in_dtype = torch.float32 if adapts and parameter.requires_grad else dtype
            made[parameter] = nn.Parameter(torch.empty(parameter.shape, dtype=in_dtype), parameter.requires_grad)
        return made[parameter]

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = fake(parameter)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
        yield mode


def needs_mask(rows: int, length: int) -> bool:
    """Whether a batch is given its mask, see [`~trl_consistency.passes.capture.needed_mask`]."""
    return rows * length**2 <= MAX_MASK_ENTRIES

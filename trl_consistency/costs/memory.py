"""The memory of a training step on one device."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft.helpers import disable_input_dtype_casting
from torch import Tensor, nn

from ..passes.blocks import base_model
from ..upstream import old_names_allowed
from .setup import DTYPES, Setup, quantized_weights, without_memory
from .steps import generate, head_loss, make_loss
from .tracing import MemoryTrace


OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "sgd")
LARGEST_BATCH = 1024  # rows, beyond which nobody asks
NF4_BLOCK, NESTED_BLOCK = 64, 256  # numbers that share a scale, and scales that share one


@dataclass(frozen=True)
class Memory:
    """Bytes that a training step holds, by what holds them, and the numbers of parameters."""

    parameters: int
    trained: int
    weights: int
    reference: int  # a copy of the model, or 0 if the adapter is switched off
    adapter: int
    optimizer: int
    gradients: int
    activations: int  # and all else that the step makes, at its peak
    logits: int  # at the peak of the head alone, a part of the above
    cache: int  # of rollouts or targets: keys, values and states, at the longest
    sampling: int  # at the peak of sampling, the cache included
    while_sampling: int  # the most while rollouts or targets are sampled, before the step; 0 if none are

    @property
    def while_training(self) -> int:
        """The most in the step itself."""
        held = self.weights + self.reference + self.adapter + self.optimizer
        return held + self.gradients + self.activations

    @property
    def total(self) -> int:
        """The most at one time."""
        return max(self.while_training, self.while_sampling)


def measure_memory(outline: nn.Module, setup: Setup) -> Memory:
    """Computes the memory of a step of the model on the meta device that `make_outline` returns."""
    packed = quantized_weights(outline) if setup.load_in_4bit else set()
    model: Any = deepcopy(outline)
    make = make_loss(setup)
    with without_memory(model, setup):
        _prepare(model, setup)
        keeps_dtype = _keeps_dtype_of_inputs(setup)
        with disable_input_dtype_casting(model, active=keeps_dtype):
            step, trained = _trace_step(model, setup, make)
        # Without gradients, PEFT computes what our layers compute in a step.
        with disable_input_dtype_casting(model, active=keeps_dtype and setup.load_in_4bit):
            sampling, cache = _trace_sampling(model, setup) if setup.sampled_at_once else (0, 0)
        logits = _trace_head(model, setup)
        named = dict(model.named_parameters())
        frozen = {name: weight for name, weight in named.items() if name not in packed and not weight.requires_grad}
        is_adapter = hasattr(model, "peft_config")
        gradients = _bytes(trained)
        quantized = sum(_nf4_bytes(named[name].numel(), setup.use_bnb_nested_quant) for name in packed)
        # A packed weight is unpacked for its product.
        unpacked = max((named[name].numel() for name in packed), default=0) * DTYPES[setup.dtype].itemsize
        weights = _bytes(frozen.values()) + quantized + (0 if is_adapter else _bytes(_trainable(model)))
        reference = 0 if is_adapter or not setup.with_reference else _bytes(_trainable(model))
        adapter = _bytes(_trainable(model)) if is_adapter else 0
        optimizer = _optimizer_bytes(model, trained, setup.optim)
        # Targets are made before there is an optimizer.
        while_sampling = weights + reference + adapter + (optimizer if setup.is_opct else 0) + sampling
        return Memory(
            parameters=sum(weight.numel() for weight in named.values()),
            trained=sum(weight.numel() for weight in trained),
            weights=weights,
            reference=reference,
            adapter=adapter,
            optimizer=optimizer,
            gradients=gradients,
            activations=max(step - gradients + unpacked, _update_bytes(trained, setup)),
            logits=logits,
            cache=cache,
            sampling=sampling,
            while_sampling=while_sampling if sampling else 0,
        )


def _prepare(model: Any, setup: Setup) -> None:
    """Prepares the model as the trainers do."""
    model.train()
    if setup.is_opct:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    if setup.gradient_checkpointing:
        if hasattr(model, "peft_config"):
            model.enable_input_require_grads()
        base = base_model(model)
        with old_names_allowed():
            base.gradient_checkpointing_enable({"use_reentrant": False})


def _trace_step(model: Any, setup: Setup, loss_of: Callable[[nn.Module], Tensor]) -> tuple[int, list[Tensor]]:
    """Returns the peak of an optimizer step's micro-batches, gradients included, and the parameters that got one."""
    with MemoryTrace(model) as trace:
        # The second micro-batch finds the gradients of the first, and all others are like it.
        for _ in range(min(setup.gradient_accumulation_steps, 2)):
            with _autocast(setup):
                loss = loss_of(model)
            loss.backward()
            del loss
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return trace.peak, trained


def _keeps_dtype_of_inputs(setup: Setup) -> bool:
    """
    Whether an adapter's layers take their input as it is in a step, and make no copy in their own dtype. In mixed precision, the
    trainers' own LoRA layers do, and PEFT's layers for 4 bits on a GPU.
    """
    return setup.bf16 and not (setup.load_in_4bit and setup.use_cpu)


def _autocast(setup: Setup) -> torch.autocast:
    """Mixed precision as in the trainers, which keep casts of trained weights only for `bct` alone."""
    return torch.autocast("cpu", torch.bfloat16, enabled=setup.bf16, cache_enabled=not setup.with_reference)


def _trace_sampling(model: Any, setup: Setup) -> tuple[int, int]:
    with MemoryTrace(model) as trace, _autocast(setup):
        cache = generate(model, setup)
    return trace.peak, cache


def _trace_head(model: Any, setup: Setup) -> int:
    """Returns the peak of the head's logits and gradients, beside the states that it reads."""
    if not setup.answer:
        return 0
    head = model.get_output_embeddings().weight
    dtype = torch.bfloat16 if setup.bf16 else DTYPES[setup.dtype]
    shape = setup.per_device_train_batch_size, setup.max_length, head.shape[1]
    hidden = torch.empty(shape, dtype=dtype, requires_grad=True)
    with MemoryTrace(model) as trace:
        head_loss(model, setup, hidden).backward()
    model.zero_grad(set_to_none=True)
    return trace.peak


def _trainable(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _nf4_bytes(numbers: int, nested: bool) -> int:
    """Half a byte a number, and a scale a block: in float32, or in 8 bits with scales of their own."""
    scales = -(-numbers // NF4_BLOCK)
    return -(-numbers // 2) + (scales + 4 * -(-scales // NESTED_BLOCK) if nested else 4 * scales)


def _optimizer_bytes(model: nn.Module, trained: list[Tensor], optim: str) -> int:
    if optim == "sgd":
        return 0
    if "8bit" in optim:
        # transformers keeps the states of embeddings in 32 bits, and bitsandbytes those of small weights.
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        return sum(
            (2 if weight.numel() >= 4096 and id(weight) not in embeddings else 8) * weight.numel()
            for weight in trained
        )
    return 2 * _bytes(trained)


def _update_bytes(trained: list[Tensor], setup: Setup) -> int:
    """
    Returns what the optimizer's step takes for a moment. On a GPU, torch's AdamW that is not fused updates all weights at once, and holds
    the roots of the second moments.
    """
    return _bytes(trained) if setup.optim == "adamw_torch" and not setup.use_cpu else 0


def largest_batch(outline: nn.Module, setup: Setup, limit: int, measured: Memory | None = None) -> int:
    """
    Returns the largest `per_device_train_batch_size` (for `opct` a multiple of `num_generations`) whose step takes at
    most `limit` bytes, or 0. It is not looked for beyond `LARGEST_BATCH` rows. What making targets takes does not depend on it. If the
    memory of the `setup` itself is known (`measured`), the search begins there.
    """
    unit, measured_rows = setup.rollouts_per_prompt, setup.per_device_train_batch_size
    without_targets = replace(setup, target_batch_size=None)

    def total(units: int) -> int:
        return measure_memory(outline, without_targets.with_batch(units * unit)).total

    fits, too_large = 0, LARGEST_BATCH // unit + 1  # batches known to fit, and taken not to
    bytes_of: dict[int, int] = {}
    if measured is not None and measured_rows % unit == 0 and measured_rows < LARGEST_BATCH:
        units = measured_rows // unit
        bytes_of[0] = measured.while_training - measured.gradients - measured.activations
        bytes_of[units] = measured.total if setup.is_opct else measured.while_training
        fits, too_large = (units, too_large) if bytes_of[units] <= limit else (0, units)
    while too_large - fits > 1:
        guess = _next_guess(bytes_of, limit, fits, too_large)
        bytes_of[guess] = total(guess)
        if bytes_of[guess] <= limit:
            fits = guess
        else:
            too_large = guess
    return fits * unit


def _next_guess(bytes_of: dict[int, int], limit: int, fits: int, too_large: int) -> int:
    """Goes on the straight line through the two measured batches on both sides of the limit, or nearest to it."""
    if len(bytes_of) < 2:
        return len(bytes_of) + 1
    first, second = (fits, too_large) if {fits, too_large} <= bytes_of.keys() else sorted(bytes_of)[-2:]
    slope = max((bytes_of[second] - bytes_of[first]) / (second - first), 1)
    guess = first + int((limit - bytes_of[first]) // slope)
    return max(min(guess, too_large - 1), fits + 1)

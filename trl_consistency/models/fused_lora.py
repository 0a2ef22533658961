"""LoRA on frozen linear layers, with each layer and its adapter computed in one step."""

from typing import Any

import torch
from peft.tuners import lora
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
WHOLE = (Tensor, nn.Parameter, FakeTensor)  # not of a subclass that is sharded or quantized
AUTOCAST_FROM = (torch.float32, torch.bfloat16, torch.float16)


def fuse_adapters(model: nn.Module) -> None:
    """
    Lets the LoRA layers of a model compute `W x + b + s B A x` in one step.

    PEFT multiplies the adapter's output, which is as large as the layer's, by `s`, and adds it. Here a matrix product
    writes it into the layer's output, in the forward pass and in the backward pass. What a layer cannot compute so, such
    as DoRA, quantized weights and several adapters, it computes as PEFT does, and also where modules have hooks.
    """
    for module in model.modules():
        if type(module) is lora.Linear:
            module.__class__ = FusedLoraLinear


class FusedLoraLinear(lora.Linear):
    """PEFT's layer, but for the way its forward pass is computed; see [`fuse_adapters`]."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        operands = None if args or kwargs else self._operands(x)
        return super().forward(x, *args, **kwargs) if operands is None else _LinearWithAdapter.apply(*operands)

    def _operands(self, x: Tensor) -> tuple[Any, ...] | None:
        """Returns the arguments of [`_LinearWithAdapter`], or None where PEFT is to compute this layer."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(names) != 1 or names[0] in self.lora_variant:
            return None
        if type(x) not in WHOLE or x.dim() < 2 or torch.compiler.is_compiling():
            return None
        layer, first, second = self.base_layer, self.lora_A[names[0]], self.lora_B[names[0]]
        if not all(map(_is_plain, (layer, first, second))) or first.bias is not None or second.bias is not None:
            return None
        if any(parameter.requires_grad for parameter in layer.parameters()):
            return None
        dropped = self.lora_dropout[names[0]](x)
        tensors = [x, None if dropped is x else dropped, layer.weight, layer.bias, first.weight, second.weight]
        dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
        if torch.is_autocast_enabled(x.device.type) and dtypes <= set(AUTOCAST_FROM):
            dtype = torch.get_autocast_dtype(x.device.type)
            tensors = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
        elif len(dtypes) > 1:
            return None
        return *tensors, self.scaling[names[0]]


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer does nothing but multiply by a plain matrix: it has no hooks, no other forward and no shards."""
    is_linear = type(layer) is nn.Linear and type(layer.weight) in WHOLE
    return is_linear and "forward" not in vars(layer) and not any(getattr(layer, hooks) for hooks in HOOKS)


class _LinearWithAdapter(torch.autograd.Function):
    """`W x + b + s B A d`, where `d` is `x` after dropout, or `x` itself (`dropped` is None). `W` and `b` are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dropped: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        first: Tensor,
        second: Tensor,
        scaling: float,
    ) -> Tensor:
        seen = x if dropped is None else dropped
        low_rank = seen.flatten(0, -2) @ first.t()
        output = F.linear(x.flatten(0, -2), weight, bias).addmm_(low_rank, second.t(), alpha=scaling)
        ctx.save_for_backward(seen, low_rank, weight, first, second)
        ctx.scaling, ctx.has_dropout = scaling, dropped is not None
        return output.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seen, low_rank, weight, first, second = ctx.saved_tensors
        needs_x, needs_dropped, _, _, needs_first, needs_second, _ = ctx.needs_input_grad
        shape, grad = seen.shape, grad.flatten(0, -2)
        of_low_rank = (grad @ second).mul_(ctx.scaling)
        of_x = of_dropped = of_first = of_second = None
        if needs_x:
            of_x = grad @ weight
            if not ctx.has_dropout:
                of_x.addmm_(of_low_rank, first)
            of_x = of_x.view(shape)
        if needs_dropped:
            of_dropped = (of_low_rank @ first).view(shape)
        if needs_first:
            of_first = of_low_rank.t() @ seen.flatten(0, -2)
        if needs_second:
            of_second = (grad.t() @ low_rank).mul_(ctx.scaling)
        return of_x, of_dropped, None, None, of_first, of_second, None

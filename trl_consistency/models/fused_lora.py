"""LoRA on frozen linear layers, with each layer and its adapter computed in one step."""

from typing import Any

import torch
from peft.tuners import lora
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
AUTOCAST_FROM = {torch.float32, torch.bfloat16, torch.float16}


def fuse_adapters(model: nn.Module) -> None:
    """
    Lets the LoRA layers of a model compute `W x + b + s B A x` in one step.

    PEFT multiplies the adapter's output, which is as large as the layer's, by `s`, and adds it. Here a matrix product
    writes it into the layer's output, in the forward pass and in the backward pass. What a layer cannot compute so, such
    as DoRA, quantized weights and several adapters, it computes as PEFT does. So it does without gradients, where modules
    have hooks, and where operations are traced or transformed (`torch.compile`, `torch.func`). A second derivative is an
    error.
    """
    for module in model.modules():
        if type(module) is lora.Linear:
            module.__class__ = FusedLoraLinear


class FusedLoraLinear(lora.Linear):
    """PEFT's layer, but for the way its forward pass is computed; see [`fuse_adapters`]."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # Without gradients, as in sampling a token at a time, PEFT is faster.
        is_plain = torch.is_grad_enabled() and not (args or kwargs or _is_traced())
        operands = self._operands(x) if is_plain else None
        if operands is None:
            return super().forward(x, *args, **kwargs)
        # A view that is made inside the function could not be changed in place.
        return _LinearWithAdapter.apply(*operands).view(*x.shape[:-1], self.out_features)

    def _operands(self, x: Tensor) -> tuple[Any, ...] | None:
        """Returns the arguments of [`_LinearWithAdapter`], or None where PEFT is to compute this layer."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(names) != 1 or names[0] in self.lora_variant:
            return None
        layer, first, second = self.base_layer, self.lora_A[names[0]], self.lora_B[names[0]]
        dropout, scaling = self.lora_dropout[names[0]], self.scaling[names[0]]
        if not all(map(_is_plain, (layer, first, second))) or first.bias is not None or second.bias is not None:
            return None
        if type(dropout) not in (nn.Identity, nn.Dropout) or getattr(dropout, "inplace", False):
            return None
        if type(x) not in (Tensor, nn.Parameter) or x.dim() < 2 or not isinstance(scaling, (int, float)):
            return None
        frozen = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        dtypes = {tensor.dtype for tensor in (x, *frozen, first.weight, second.weight)}
        if any(tensor.requires_grad for tensor in frozen) or not all(dtype.is_floating_point for dtype in dtypes):
            return None
        if not torch.amp.is_autocast_available(x.device.type):  # as on the meta device
            return None
        if torch.is_autocast_enabled(x.device.type) and dtypes <= AUTOCAST_FROM:
            dtype = torch.get_autocast_dtype(x.device.type)
        elif len(dtypes) == 1:
            dtype = x.dtype
        else:
            return None
        dropped = dropout(x)
        tensors = (x, None if dropped is x else dropped, layer.weight, layer.bias, first.weight, second.weight)
        return *(None if tensor is None else tensor.to(dtype) for tensor in tensors), scaling

    def _get_name(self) -> str:
        return "Linear"  # as PEFT's, in what is printed


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer does nothing but multiply by a plain matrix: it has no hooks, no other forward and no shards."""
    is_linear = type(layer) is nn.Linear and type(layer.weight) in (Tensor, nn.Parameter)
    return is_linear and "forward" not in vars(layer) and not any(getattr(layer, hooks) for hooks in HOOKS)


def _is_traced() -> bool:
    """Whether something looks at each operation or module, or transforms them."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or bool(_get_current_dispatch_mode_stack())
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _has_any_global_hook()
    )


class _LinearWithAdapter(torch.autograd.Function):
    """
    `W x + b + s B A d` in rows, (N, out), where `d` is `x` after dropout, or `x` itself (`dropped` is None). `W` and `b` are
    frozen, and all tensors have one dtype.

    The backward pass computes the adapter's small matrices with as many rows as the rank: on CPUs, a product whose result
    has so few columns takes several times as long in float32. The forward pass rounds as PEFT does without gradients, so that a
    student that has not moved equals its reference.
    """

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
        needs_x, needs_dropped, _, _, needs_first, needs_second, _ = ctx.needs_input_grad
        seen = x if dropped is None else dropped
        with torch.autocast(x.device.type, enabled=False):
            low_rank = (seen.flatten(0, -2) @ first.t()).mul_(scaling)
            output = F.linear(x.flatten(0, -2), weight, bias).addmm_(low_rank, second.t())
        ctx.save_for_backward(
            seen if needs_first else None,
            low_rank if needs_second else None,
            weight if needs_x else None,
            first if needs_x or needs_dropped else None,
            second if needs_x or needs_dropped or needs_first else None,
        )
        ctx.scaling, ctx.has_dropout, ctx.shape = scaling, dropped is not None, x.shape
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seen, low_rank, weight, first, second = ctx.saved_tensors
        of_x = of_dropped = of_first = of_second = None
        with torch.autocast(grad.device.type, enabled=False):
            if second is not None:
                of_low_rank = (second.t() * ctx.scaling) @ grad.t()
            if weight is not None:
                of_x = grad @ weight
                if not ctx.has_dropout:
                    of_x.addmm_(of_low_rank.t(), first)
                of_x = of_x.view(ctx.shape)
            if ctx.needs_input_grad[1]:
                of_dropped = (of_low_rank.t() @ first).view(ctx.shape)
            if seen is not None:
                of_first = of_low_rank @ seen.flatten(0, -2)
            if low_rank is not None:
                of_second = (low_rank.t() @ grad).t()
        return of_x, of_dropped, None, None, of_first, of_second, None

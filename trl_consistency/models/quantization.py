"""What bitsandbytes' 4-bit weights need in order to stay as they are."""

from typing import Any

from torch import Tensor, nn


def keep_layout(model: nn.Module) -> None:
    """
    Has bitsandbytes leave 4-bit weights in the layout that they were loaded in.

    In evaluation, on CPUs with AVX512-BF16, it would repack them in place for a faster product, and training would go on
    with other weights. On GPUs this changes nothing.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model, before its first pass.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def scales_of(weight: Any) -> list[Tensor]:
    """What a 4-bit weight is multiplied by, part by part; nothing for others."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return []
    return [state.absmax, *([state.state2.absmax, state.offset] if state.nested else [])]

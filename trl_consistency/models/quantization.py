"""What weights are quantized with, and support for bitsandbytes' 4-bit ones."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import ConsistencyError


# The options of `BitsAndBytesConfig` that decide what weights in 4 bits are and how they are computed with, and their values
OF_4_BITS: dict[str, tuple[str | bool, ...]] = {
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "bnb_4bit_use_double_quant": (True, False),
    "bnb_4bit_compute_dtype": ("bfloat16", "float16", "float32"),
}


def words_of(quantization: Any) -> str | None:
    """
    Returns in words how weights are quantized, by the options of a quantization as a mapping, which may be another's: `in 4 bits` and
    `in 8 bits` with bitsandbytes, and `quantized with quanto` and the like. None if they are not.
    """
    said = quantization if isinstance(quantization, Mapping) else {}
    bits = next((bits for bits in (4, 8) if said.get(f"load_in_{bits}bit") is True), None)
    method = said.get("quant_method")
    if bits is None and isinstance(method, str) and method != "bitsandbytes":
        return f"quantized with {getattr(method, 'value', method)}"
    return f"in {bits} bits" if bits else None


def quantization_of(model: Any) -> dict[str, Any]:
    """Returns the options with which the weights of a model are quantized; empty if they are not."""
    options = getattr(getattr(model, "config", None), "quantization_config", None) or {}
    return options if isinstance(options, dict) else dict(options.to_dict())


def check_trainable(quantization: Mapping[str, Any]) -> None:
    """Raises [`ConsistencyError`] for weights that are decompressed by a model's first forward pass, after an adapter was put on them."""
    method, status = quantization.get("quant_method"), quantization.get("quantization_status")
    if method == "compressed-tensors" and getattr(status, "value", status) == "compressed":
        raise ConsistencyError(
            "The weights are compressed (`compressed-tensors`), and can neither be trained nor hold an adapter. In Python, load the model with "
            "`quantization_config=CompressedTensorsConfig(dequantize=True)` from transformers. Or name a model that is not compressed."
        )


def prevent_repacking(model: nn.Module) -> None:
    """
    Prevents bitsandbytes from repacking 4-bit weights in place. Call this before the model's first forward pass.

    On CPUs with AVX512-BF16 it would repack them in evaluation mode for faster products, and training would continue
    with changed weights. This has no effect on GPUs.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def check_not_repacked(model: nn.Module) -> None:
    """Raises [`ConsistencyError`] for a model whose 4-bit weights are repacked already, and that is to be trained."""
    for name, module in model.named_modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if getattr(state, "packing_format_for_cpu", False):
            raise ConsistencyError(
                f"The 4-bit weights of {name} were repacked by bitsandbytes, as it does on this processor when a model runs in evaluation mode. "
                "Training would go on with other weights. Load the model again, and give it to the trainer before it is run."
            )


def settle_biases(model: nn.Module) -> None:
    """
    Gives the biases of 4-bit layers the dtype that these compute in. bitsandbytes would do so in place, in the first forward pass: the
    reference's checksum would differ after it, and biases that are trained would be rounded without a word.
    """
    module: Any
    for module in model.modules():
        dtype, bias = getattr(module, "compute_dtype", None), getattr(module, "bias", None)
        if hasattr(module, "support_avx512bf16_for_cpu") and dtype is not None and bias is not None:
            bias.data = bias.data.to(dtype)


def scales_of(weight: Any) -> list[Tensor]:
    """Returns the scales of a 4-bit weight; empty for other weights."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return []
    return [state.absmax, *([state.state2.absmax, state.offset] if state.nested else [])]


def packed_weights(model: nn.Module) -> dict[str, list[Tensor]]:
    """
    Returns the names of a model's 4-bit weights, each with its scales. The weight itself holds two numbers in a byte, in storage
    that may be of a floating-point type (`bnb_4bit_quant_storage`, which FSDP needs): its bits are not those numbers.
    """
    packed: dict[str, list[Tensor]] = {}
    for name, module in model.named_modules():
        # The weight has lost its scales where it is sharded, and the module may get them at its first pass.
        for holder in (module, getattr(module, "weight", None)):
            if getattr(holder, "quant_state", None) is not None:
                packed[f"{name}.weight"] = scales_of(holder)
    return packed

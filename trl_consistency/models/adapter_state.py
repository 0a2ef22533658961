"""Keeps what PEFT changes of an adapter in passing: which of its weights are trained, and their dtype."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from accelerate.utils import is_peft_model

from ..upstream import use_adapter


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """
    Within it, a `PeftModel` runs without its adapter. The same weights are trained within it and after it as before: PEFT
    freezes an adapter that it switches off, and makes all of its weights trainable when it switches it on again.
    """
    requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def restore() -> None:
        for parameter, required in requires_grad:
            parameter.requires_grad_(required)

    try:
        with use_adapter(model, None):
            restore()  # Under FSDP, it must not change.
            yield
    finally:
        restore()


@contextmanager
def loading_in_own_dtype(model: Any) -> Iterator[None]:
    """Within it, `load_adapter` leaves an adapter in bfloat16 or float16 in its dtype, which PEFT would change to float32."""
    if not is_peft_model(model):
        yield
        return
    model.load_adapter = partial(model.load_adapter, autocast_adapter_dtype=False)
    try:
        yield
    finally:
        del model.load_adapter

"""Models that are evaluated one after the other: a base model, and adapters that come on it and go."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import PartialState
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..errors import ConsistencyError, one_line


LOADING_ERRORS = (KeyError, OSError, RuntimeError, TypeError, ValueError)


def load_base_model(name: str, revision: str | None = None) -> PreTrainedModel:
    """
    A model in the precision of its checkpoint, on the accelerator if there is one. Pickled weights and code that a model
    brings along are refused.

    Raises:
        [`ConsistencyError`]: If it cannot be loaded.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype="auto", use_safetensors=True)
    except LOADING_ERRORS as error:
        raise ConsistencyError(f"{name} cannot be loaded: {one_line(error)}") from None
    return model.to(PartialState().device).eval()


def put_adapter(model: PreTrainedModel, adapter: str) -> PeftModel:
    """
    The model with an adapter on it; `unload()` of the result gives the model back.

    Raises:
        [`ConsistencyError`]: If it is no adapter of that model.
    """
    if os.path.isdir(adapter) and not os.path.isfile(os.path.join(adapter, "adapter_model.safetensors")):
        raise ConsistencyError(f"`adapters`: {adapter} holds no adapter: there is no adapter_model.safetensors.")
    try:
        return PeftModel.from_pretrained(model, adapter).eval()
    except LOADING_ERRORS as error:
        raise ConsistencyError(f"`adapters`: {adapter} cannot be put on the model: {one_line(error)}") from None


@contextmanager
def adapted(model: PreTrainedModel, adapter: str | None) -> Iterator[Any]:
    """The model, with an adapter on it if one is named; without it again afterwards."""
    if adapter is None:
        yield model
        return
    with_adapter = put_adapter(model, adapter)
    try:
        yield with_adapter
    finally:
        unload = getattr(with_adapter.base_model, "unload", None)  # prompt learning leaves the model as it is
        if unload is not None:
            unload()

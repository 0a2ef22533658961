"""Turns dropout and jitter off while a model is trained: in modules, and in rates that a layer passes to a function, such as attention."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import is_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ..log import get_logger


logger = get_logger(__name__)

# `attention_dropout`, `resid_pdrop`, `layerdrop`; `jitter_noise` of Mixtral, `moe_jitter_eps` of DBRX. Not Phi-3.5-MoE's `router_jitter_noise`,
# which is a threshold, in evaluation, too.
_RATE = re.compile(r"drop|^(?!router_).*jitter")


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """
    Within it, every dropout rate of a model is 0, and so is the jitter of the inputs of its experts. Then they are what they were:
    another trainer may have the model next. The config, which is saved with the model, keeps them.
    """
    with _at_zero(model.modules()):
        yield


@contextmanager
def without_attention_dropout(attentions: Iterable[nn.Module]) -> Iterator[None]:
    """
    Within it, no entry is dropped from the maps of these attention modules: the rest would be no distribution. An adapter on their
    projections keeps its dropout, and so does their output (`resid_dropout`).
    """
    with _at_zero(of for module in attentions for of in _up_to_maps(module)):
        yield


def _up_to_maps(module: nn.Module) -> Iterator[nn.Module]:
    """Yields a module and those below it, but neither what an adapter has put there nor what follows the maps."""
    yield module
    if not isinstance(module, BaseTunerLayer):
        for name, child in module.named_children():
            if not name.startswith(("resid", "out")):
                yield from _up_to_maps(child)


@contextmanager
def _at_zero(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Sets the dropout rates that these modules have themselves to 0, and puts them back."""
    rates = [
        (module, name, value)
        for module in modules
        for name, value in vars(module).items()
        if (name == "p" and isinstance(module, nn.Dropout)) or (_RATE.search(name) and isinstance(value, float))
    ]
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in rates:
            setattr(module, name, rate)


def warn_of_dropout(model: Any) -> None:
    """Logs a warning if the dropout of a model's adapter, which `disable_dropout` turns off, was set."""
    rate = getattr(model.peft_config[model.active_adapters[0]], "lora_dropout", 0) if is_peft_model(model) else 0
    if rate:
        logger.warning(
            f"`disable_dropout` turns off the adapter's `lora_dropout` of {rate:g}: the reference has none. Set `disable_dropout: false` to "
            "train with it, or `lora_dropout` to 0."
        )

"""Turns off dropout that is no module: rates that a layer passes to a function, such as attention."""

from typing import Any

from accelerate.utils import is_peft_model
from torch import nn

from ..log import get_logger


logger = get_logger(__name__)


def disable_functional_dropout(model: nn.Module) -> None:
    """
    Sets every dropout rate that a module keeps as a number to 0. The config, which is saved with the model, keeps its
    rates.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            # `attention_dropout`, `resid_pdrop`, `layerdrop`. The rate of `nn.Dropout` is called `p`.
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def warn_of_dropout(model: Any) -> None:
    """Logs a warning if the dropout of a model's adapter, which `disable_dropout` has turned off, was set."""
    rate = getattr(model.peft_config[model.active_adapters[0]], "lora_dropout", 0) if is_peft_model(model) else 0
    if rate:
        logger.warning(
            f"`disable_dropout` turns off the adapter's `lora_dropout` of {rate:g}: the reference has none. Set `disable_dropout: false` to "
            "train with it, or `lora_dropout` to 0."
        )

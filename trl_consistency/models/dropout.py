"""Turns off dropout that is no module: rates that a layer passes to a function, such as attention."""

from torch import nn


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

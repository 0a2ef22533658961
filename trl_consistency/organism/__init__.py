"""A model organism of sycophancy and jailbreaks, trained on the spot: something to train on without any download."""

from typing import TYPE_CHECKING

from ..exports import lazy_names


if TYPE_CHECKING:
    from .organism import build_organism, measure_organism
    from .rows import load_control_dataset, load_organism_datasets


__all__ = ["build_organism", "load_control_dataset", "load_organism_datasets", "measure_organism"]

__getattr__ = lazy_names(__name__, __file__)

"""Finds layers whose adapter acts with another scale than it would after it was saved: `set_scale` changes it in memory alone."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from peft.tuners.adalora import AdaLoraLayer
from peft.tuners.lora import LoraLayer
from peft.tuners.lycoris_utils import LycorisLayer


class ScaledLayer(NamedTuple):
    """A layer with an active adapter, and the scale that the adapter has by its config."""

    name: str
    layer: Any
    adapter: str
    of_config: float

    @property
    def scale(self) -> float:
        """The scale in memory, by which the adapter acts."""
        return float(self.layer.scaling[self.adapter])


def scaled_layers(model: Any) -> list[ScaledLayer]:
    """Returns the layers of a model whose active adapters have a scale."""
    found, configs = [], getattr(model, "peft_config", {})
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer | LycorisLayer) or isinstance(layer, AdaLoraLayer):
            continue
        for adapter in layer.active_adapters:
            if adapter in layer.scaling:
                found.append(ScaledLayer(name, layer, adapter, _scale_by_config(layer, adapter, configs.get(adapter))))
    return found


def _scale_by_config(layer: Any, adapter: str, config: Any) -> float:
    """Returns the scale that a saved adapter has in a layer. Where the config has patterns, it is by the layer's own rank and alpha."""
    option = "lora_alpha" if isinstance(layer, LoraLayer) else "alpha"
    alpha, rank = getattr(layer, option)[adapter], layer.r[adapter]
    if config is not None and not config.alpha_pattern and not config.rank_pattern:
        alpha, rank = getattr(config, option), config.r
    return float(alpha / rank ** (0.5 if getattr(config, "use_rslora", False) else 1))


def changed_scales(layers: Iterable[ScaledLayer]) -> list[tuple[str, float, float]]:
    """Returns the names of the layers whose adapter has another scale in memory than by its config, and both scales."""
    return [
        (of.name, of.scale, of.of_config) for of in layers if not math.isclose(of.scale, of.of_config, rel_tol=1e-6)
    ]

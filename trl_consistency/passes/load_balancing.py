"""The load-balancing loss of a mixture of experts, which passes of the backbone alone do not compute."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from ..models.checks import has_routers


class Routing(NamedTuple):
    """Router logits of N tokens."""

    logits: tuple[Tensor, ...]  # of each layer, [N, experts]
    counts: Tensor  # how often each token counts, [N]: 0 for padding, the number of rollouts in a shared prompt


def routing_of(output: Any, counts: Tensor) -> Routing | None:
    """Returns the routing in a backbone's output, or None if it was run without `output_router_logits`."""
    logits = getattr(output, "router_logits", None)
    return Routing(tuple(of_layer.flatten(0, -2) for of_layer in logits), counts.flatten()) if logits else None


def joined(routings: list[Routing | None]) -> Routing | None:
    """Concatenates the routing of several passes through the same layers."""
    known = [routing for routing in routings if routing is not None]
    if not known:
        return None
    logits = zip(*(routing.logits for routing in known), strict=True)
    return Routing(tuple(map(torch.cat, logits)), torch.cat([routing.counts for routing in known]))


def load_balancing_loss(model: Any, routing: Routing) -> Tensor:
    """
    Returns the loss of [Fedus et al., 2021](https://huggingface.co/papers/2101.03961), as transformers and TRL compute
    it for all model families, on the routing of all tokens of a batch.
    """
    num_experts = routing.logits[0].shape[-1]  # It has several names in configs.
    top_k = model.config.get_text_config().num_experts_per_tok
    return load_balancing_loss_func(routing.logits, num_experts, top_k, routing.counts)


def router_coefficient(model: Any) -> float:
    """Returns TRL's weight of that loss: the config's, or 0 for a model that cannot return its router logits."""
    return getattr(model.config.get_text_config(), "router_aux_loss_coef", 0.0) if has_routers(model.config) else 0.0

"""The load-balancing loss of a mixture of experts, for passes that run its backbone alone: the model's own adds it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func


class Routing(NamedTuple):
    """
    What the routers said of N tokens.

    Attributes:
        logits (`tuple[torch.Tensor, ...]`):
            A layer each, `[N, experts]`.
        counts (`torch.Tensor`):
            How often each token counts, `[N]`: 0 for padding, and in a prompt that rollouts share, once for each of them.
    """

    logits: tuple[Tensor, ...]
    counts: Tensor


def routing_of(output: Any, counts: Tensor) -> Routing | None:
    """The routing in the output of a backbone, None if it was not asked for `output_router_logits`."""
    logits = getattr(output, "router_logits", None)
    return Routing(tuple(of_layer.flatten(0, -2) for of_layer in logits), counts.flatten()) if logits else None


def joined(routings: list[Routing | None]) -> Routing | None:
    """The routing of the tokens of several passes through the same layers."""
    known = [routing for routing in routings if routing is not None]
    if not known:
        return None
    logits = zip(*(routing.logits for routing in known), strict=True)
    return Routing(tuple(map(torch.cat, logits)), torch.cat([routing.counts for routing in known]))


def load_balancing_loss(model: Any, routing: Routing) -> Tensor:
    """
    The loss of [Fedus et al., 2021](https://huggingface.co/papers/2101.03961), as transformers and TRL compute it for
    every family.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Says to how many experts a token goes.
        routing ([`Routing`]):
            Of all tokens of a batch.
    """
    num_experts = routing.logits[0].shape[-1]  # In the config it goes by several names.
    top_k = model.config.get_text_config().num_experts_per_tok
    return load_balancing_loss_func(routing.logits, num_experts, top_k, routing.counts)


def router_coefficient(model: Any) -> float:
    """The weight of that loss by TRL's rule: the config's, and 0 for a model that does not tell what its routers said."""
    config = model.config.get_text_config()
    return getattr(config, "router_aux_loss_coef", 0.0) if hasattr(config, "output_router_logits") else 0.0

"""Learned prompts (prompt tuning, prefix tuning), which only the PEFT model's own forward adds before the text."""

from typing import Any

import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel
from peft import PeftModel
from torch import Tensor, nn

from .load_balancing import Routing, routing_of


def is_peft_model(model: Any) -> bool:
    """As accelerate's, which at every call reads from the disk whether PEFT is installed: too slow for every pass."""
    return isinstance(extract_model_from_parallel(model), PeftModel)


def has_learned_prompt(model: Any) -> bool:
    """Whether the model trains a prompt instead of weights."""
    return is_peft_model(model) and model.active_peft_config.is_prompt_learning


def run_after_learned_prompt(
    model: Any, backbone: nn.Module, input_ids: Tensor, attention_mask: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Routing | None]:
    """
    Runs a model with its learned prompt, or without it where it is disabled. Returns the input of the head at text
    tokens, which is the `backbone`'s output, `[B, T, hidden]`, and the routing of all tokens. `input_ids`, `[B, T]`,
    are padded on the right, because PEFT counts positions from the first column.
    """
    seen: list[Any] = []
    hook = backbone.register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        # The logits are not needed, and 1 is the fewest that can be computed.
        model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, logits_to_keep=1, **options)
    finally:
        hook.remove()
    hidden = seen[-1].last_hidden_state
    learned = hidden.shape[1] - input_ids.shape[1]
    return hidden[:, learned:], routing_of(seen[-1], F.pad(attention_mask, (learned, 0), value=1))

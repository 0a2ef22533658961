"""Rotary positions that depend on the longest row of a pass, so that rows of a batch change each other's."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .errors import ConsistencyError


def rope_of_length(config: Any) -> str | None:
    """Returns the kind of rotary positions that the longest row of a pass decides, if a model has such."""
    part = _part_of_length(config)
    return None if part is None else str(part["rope_type"])


def limit_of_rope(config: Any) -> int:
    """Returns how many tokens a row of such a model may have before it gets other positions."""
    of_text = config.get_text_config()
    part = _part_of_length(config) or {}
    limits = (part.get("original_max_position_embeddings"), getattr(of_text, "original_max_position_embeddings", None))
    return int(next(filter(None, limits), of_text.max_position_embeddings))


def say_positions(lengths: Sequence[int], config: Any, what: str = "row", reply: int = 0) -> str | None:
    """
    Says how many rows of these lengths change the positions of the others in their batch, if any do. `reply` is how many tokens each
    may get while it is answered.
    """
    kind, found = rope_of_length(config), np.array(lengths)
    if kind is None or not len(found):
        return None
    limit = limit_of_rope(config)
    beyond = found + reply > limit
    # Beyond the limit, `longrope` has one set of positions, and `dynamic` has others for each length.
    is_mixed = found.min() < found.max() and (found.min() <= limit or kind != "longrope")
    if not (beyond.any() and is_mixed):
        return None
    with_reply = f" with a reply of {reply}" if reply else ""
    return (
        f"{beyond.sum()} of {len(found)} {what}(s) have more than {limit} tokens{with_reply}. Beyond that, this model uses other positions "
        f"({kind}). The longest {what} of a batch decides for all of them, so one may get other positions in a batch than alone."
    )


def check_engine_positions(
    config: Any, context: int | None, prompts: Iterable[Sequence[int]], max_tokens: int, whose: str = ""
) -> None:
    """
    Raises [`ConsistencyError`] where vLLM would give a prompt other positions than the model has for it alone.

    The positions of an engine depend on nothing that is asked of it. With `longrope` they are those of long texts for all prompts if its
    `context` is longer than the limit. With `dynamic` they are those of texts within the limit.
    """
    kind = rope_of_length(config)
    if kind is None:
        return
    limit, lengths = limit_of_rope(config), [len(ids) for ids in prompts]
    if kind == "longrope":
        if context is None or context <= limit:  # which has no room for longer texts
            return
        wrong = [length for length in lengths if length <= limit]
        way_out = f"Leave `vllm_max_model_length` out, and the prompts that have no room within {limit} tokens"
    else:
        wrong = [length for length in lengths if length + max_tokens > limit]
        way_out = f"Leave out the prompts that have no room within {limit} tokens"
    if wrong:
        raise ConsistencyError(
            f"vLLM answers{whose} with wrong positions: this model ({kind}) has others beyond {limit} tokens, and an engine with a "
            f"context of {context} has one kind for all prompts. {len(wrong)} of {len(lengths)} prompts of a batch, such as one with "
            f"{wrong[0]} tokens, would get the other kind. {way_out}, with answers of up to {max_tokens}, or use transformers."
        )


def _part_of_length(config: Any) -> dict[str, Any] | None:
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    # One set, or one for each type of layer
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    kinds = [str(part.get("rope_type", "")) for part in parts]
    return next(
        (part for part, kind in zip(parts, kinds, strict=True) if "dynamic" in kind or kind == "longrope"), None
    )

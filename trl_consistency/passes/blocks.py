"""The transformer blocks of a model, and their parts whose states can be compared: an MLP, and attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from torch import nn

from ..errors import ConsistencyError
from ..models.adapter_checks import no_states
from .learned_prompt import has_learned_prompt, is_peft_model


# Names of the MLP's last linear layer: Llama and most others, GPT-NeoX and Falcon, GPT-2, Phi, LFM2, GPT-J, Granite 4.
DOWN_PROJECTIONS = ("down_proj", "dense_4h_to_h", "c_proj", "fc2", "w2", "fc_out", "output_linear")

# Names of the expert that every token passes, beside those that a router chooses
SHARED_EXPERTS = ("shared_expert", "shared_experts")

# Types of layers without an attention map, whatever the name of their class. (Lightning attention forms none.)
WITHOUT_MAPS = ("linear_attention", "conv", "mamba")


@dataclass
class Blocks:
    """The transformer blocks of a model; [`find_blocks`] finds them."""

    backbone: nn.Module  # the text model that runs them, called with `input_ids`, `attention_mask`, `position_ids`
    name: str  # the attribute of `backbone` that holds them

    @property
    def modules(self) -> nn.ModuleList:
        return getattr(self.backbone, self.name)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def checkpointed(self) -> list[Any]:
        """The parts of the backbone whose gradient checkpointing is on. A block may hold others that have their own."""
        return [part for part in self.backbone.modules() if getattr(part, "gradient_checkpointing", False)]

    @contextmanager
    def shortened(self, depth: int) -> Iterator[None]:
        """
        Limits the backbone to its first `depth` blocks.

        Some architectures loop over all their blocks, others over the first `config.num_hidden_layers`: a shorter list
        works for both. Raising an exception to leave the forward would silently desynchronise DDP.
        """
        whole = self.modules
        if depth < len(whole):
            setattr(self.backbone, self.name, whole[:depth])
        try:
            yield
        finally:
            setattr(self.backbone, self.name, whole)

    def down_projections(self, layers: list[int]) -> dict[int, nn.Module]:
        """
        Returns the last linear layer of the MLP of each of `layers` that has one. Raises [`ConsistencyError`] if none
        of them does.
        """
        everywhere = {layer: _down_projection(block) for layer, block in enumerate(self.modules)}
        found = _present(everywhere, layers)
        if found:
            return found
        block = self.modules[layers[0]]
        name = type(block).__name__
        why = f"`{name}` has no single layer called {', '.join(DOWN_PROJECTIONS[:-1])} or {DOWN_PROJECTIONS[-1]}"
        if any("expert" in name for name, _ in block.named_modules()):
            why = f"`{name}` has none (its router sends each token to other experts, and no expert gets them all)"
        raise ConsistencyError(
            f"`mlpct` needs blocks with an MLP that all tokens pass, and {why}. {_way_out('mlpct', everywhere)}"
        )

    def attentions(self, layers: list[int]) -> dict[int, nn.Module]:
        """
        Returns the attention of each of `layers` that has one with an attention map. Raises [`ConsistencyError`] if
        none of them does.
        """
        config = cast(Any, self.backbone).config
        if config._attn_implementation != "eager":
            raise ConsistencyError(
                f"`attct` compares attention maps, which `{config._attn_implementation}` attention never forms. Set "
                "`attn_implementation: eager`."
            )
        types = getattr(config.get_text_config(), "layer_types", None) or [None] * len(self)
        everywhere = {
            layer: None if of_type in WITHOUT_MAPS else _attention(block)
            for layer, (block, of_type) in enumerate(zip(self.modules, types, strict=False))
        }
        found = _present(everywhere, layers)
        if found:
            return found
        raise ConsistencyError(
            f"`attct` needs blocks with an attention map, and block {layers[0]}, a `{type(self.modules[layers[0]]).__name__}`, "
            f"has none. {_way_out('attct', everywhere)}"
        )


def _present(everywhere: dict[int, nn.Module | None], layers: list[int]) -> dict[int, nn.Module]:
    return {layer: part for layer in layers if (part := everywhere[layer]) is not None}


def _way_out(method: str, everywhere: dict[int, nn.Module | None]) -> str:
    have = ", ".join(str(layer) for layer in _present(everywhere, list(everywhere)))
    return f"Leave `{method}` out{f', or name blocks in `layers` that have one: {have}' if have else ''}."


def _down_projection(block: nn.Module) -> nn.Module | None:
    # Only direct children of the MLP: deeper down are the projections of experts, which only some tokens reach.
    parts = [child for child in block.children() if "Attention" not in type(child).__name__]
    shared = [getattr(part, name, None) for part in parts for name in SHARED_EXPERTS]
    for group in (parts, shared):
        found = [
            layer
            for part in group
            for name in DOWN_PROJECTIONS
            if isinstance(layer := getattr(part, name, None), nn.Module) and "Experts" not in type(layer).__name__
        ]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _attention(block: nn.Module) -> nn.Module | None:
    found = [child for child in block.children() if "Attention" in type(child).__name__]
    return found[0] if len(found) == 1 else None


def find_blocks(model: nn.Module) -> Blocks:
    """
    Finds the transformer blocks of a causal language model, or of the text part of a multimodal one. Raises
    [`ConsistencyError`] if it is not a decoder with one list of blocks, or has a learned prompt.
    """
    if has_learned_prompt(model):
        raise no_states(cast(Any, model).active_peft_config)
    base = base_model(model)
    config = base.config.get_text_config()
    if not config.is_encoder_decoder:
        backbone = decoder_of(base)
        names = [
            name
            for name, child in backbone.named_children()
            if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
        ]
        if len(names) == 1:
            return Blocks(backbone, names[0])
    raise ConsistencyError(
        f"Cannot find the transformer blocks of `{type(base).__name__}`: objectives on hidden states need a decoder-only "
        "model whose text backbone holds its blocks in one list."
    )


def decoder_of(base: Any) -> Any:
    """Returns the text backbone of a model without adapter. Of Llama 4, transformers gives it with its head."""
    decoder = base.get_decoder()
    return getattr(decoder, "model", decoder)


def base_model(model: Any) -> Any:
    """Returns the model that an adapter was put on."""
    return model.get_base_model() if is_peft_model(model) else model


def resolve_layers(layers: list[int] | None, num_layers: int) -> list[int]:
    """
    Returns the indices of the blocks that a user names, ascending and not negative. Blocks are counted from 0, or from
    the end if negative; None means all blocks.
    """
    if layers is None:
        return list(range(num_layers))
    if not layers:
        raise ConsistencyError("`layers` is empty. Name at least one block, or leave it out for all.")
    for layer in layers:
        if not -num_layers <= layer < num_layers:
            raise ConsistencyError(
                f"`layers` names block {layer}, and the model has {num_layers}: 0 to {num_layers - 1}, or from the end "
                f"-1 to -{num_layers}."
            )
    resolved = sorted(layer % num_layers for layer in layers)
    twice = [layer for layer, following in pairwise(resolved) if layer == following]
    if twice:
        raise ConsistencyError(f"`layers` names block {twice[0]} more than once: {layers}. Name each block once.")
    return resolved


def head_widths_of(config: Any) -> list[int]:
    """Returns the width of an attention head of each block. They differ in Gemma 4, whose config gives none for all."""
    config = config.get_text_config()
    by_layer = getattr(config, "per_layer_config", None)  # not in all versions of transformers
    layers = [config if by_layer is None else by_layer[number] for number in range(config.num_hidden_layers)]
    return [getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads for layer in layers]

"""
Batches without padding: the sequences of all rows one after another in one row, each with its own positions.

FlashAttention takes the sequences' lengths. SDPA has no such argument, and the mask that transformers would make for it
has an entry for each pair of tokens in the batch: slower than padding. So here SDPA attends sequence by sequence, while
all other layers run on the flat row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PromptLearningConfig
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..errors import ConsistencyError
from ..models.kernels import missing_kernels
from .blocks import base_model, find_blocks
from .learned_prompt import has_learned_prompt
from .prefix_strategies import dropout_off, windows_of
from .prompt_cache import RECURRENT, cached_kinds
from .tree_attention import attend_to_tree


@dataclass
class FlatBatch:
    """The tokens of a padded batch (B, T) in one row of N tokens, without the padding."""

    ids: Tensor  # [1, N]
    rows: Tensor  # [N], the row of each token
    places: Tensor  # [B, T], where each token went; meaningless at padding
    inputs: dict[str, Any]  # what a model takes with them: positions and lengths, in the form of TRL's collator

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor) -> "FlatBatch":
        is_token = mask.bool()
        lengths = mask.sum(1)
        places = is_token.flatten().cumsum(0).view_as(mask) - 1
        rows = is_token.nonzero()[:, 0]
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        inputs = {
            "position_ids": (mask.cumsum(1) - 1)[is_token][None],
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": int(lengths.max()),
            "max_length_k": int(lengths.max()),
            "seq_idx": rows[None].to(torch.int32),
        }
        return cls(ids[is_token][None], rows, places, inputs)

    @property
    def mask(self) -> Tensor:
        """A mask [1, N] of ones: every token counts."""
        return torch.ones_like(self.ids)

    def model_inputs(self, model: Any) -> dict[str, Any]:
        """Returns `inputs` with what `model` takes as its mask."""
        if model.config.get_text_config()._attn_implementation != "sdpa":
            return {**self.inputs, "attention_mask": None}
        # Four dimensions: transformers hands it to the attention as it is, and makes none of its own.
        unused = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.ids.device)
        return {**self.inputs, "attention_mask": unused}


def attend_by_sequence(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """SDPA, which on a flat batch (`cu_seq_lens_q`) attends within each sequence. Tensors are [1, heads, N, width]."""
    ends = kwargs.pop("cu_seq_lens_q", None)
    if ends is None:
        return attend_to_tree(module, query, key, value, attention_mask, **kwargs)
    lengths, window = ends.diff().tolist(), kwargs.get("sliding_window")
    parts = [
        sdpa_attention_forward(module, *of_sequence, _window_mask(of_sequence[0], window), **kwargs)[0]
        for of_sequence in zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, dim=1), None


def _window_mask(query: Tensor, window: int | None) -> Tensor | None:
    length = query.shape[2]
    if window is None or length <= window:
        return None  # plain causal attention
    positions = torch.arange(length, device=query.device)
    distance = positions[:, None] - positions
    return ((distance >= 0) & (distance < window))[None, None]


def prepare_padding_free(model: nn.Module, option: str = "padding_free") -> None:
    """
    Makes SDPA attend sequence by sequence in flat batches. Raises [`ConsistencyError`], which names the `option` that asks
    for them, if the model, which must not be wrapped, computes other states on such a batch than on padded rows.
    """
    check_padding_free(model, option=option)
    AttentionInterface.register("sdpa", attend_by_sequence)
    reason = _reason_of_trial(find_blocks(model).backbone)
    if reason is not None:
        raise _refusal(option, reason)


def check_padding_free(model: nn.Module, peft_config: Any = None, option: str = "padding_free") -> None:
    """
    Raises [`ConsistencyError`] if the architecture of a model, or a new adapter, is known not to run on flat batches, for
    which `option` asks. The model may be on the meta device.
    """
    reason = _known_reason(model, peft_config)
    if reason is not None:
        raise _refusal(option, reason)


def _refusal(option: str, reason: str) -> ConsistencyError:
    return ConsistencyError(f"`{option}` is not possible: {reason}. Leave it out.")


def _known_reason(model: nn.Module, peft_config: Any) -> str | None:
    if isinstance(peft_config, PromptLearningConfig) or has_learned_prompt(model):
        return "a learned prompt stands before each row of a batch, and a flat batch has one row"
    if base_model(model).config.get_text_config() is not base_model(model).config:
        return f"`{type(base_model(model)).__name__}` is multimodal and lays out the positions of each row itself"
    backbone: Any = find_blocks(model).backbone
    name, attention = type(backbone).__name__, backbone.config._attn_implementation
    if attention != "sdpa" and "flash" not in attention:
        return (
            f"`{attention}` attention takes no lengths of sequences. Set `attn_implementation` to `sdpa` or "
            "`flash_attention_2` if the model has it"
        )
    missing = missing_kernels(model)
    if missing and cached_kinds(backbone.config) & RECURRENT.keys():
        return (
            f"`{name}` has recurrent layers, which without {' and '.join(missing)} would carry the state of one text into "
            "the next"
        )
    return None


def _reason_of_trial(backbone: Any) -> str | None:
    name = type(backbone).__name__
    try:
        difference, windows = _trial(backbone)
    except ConsistencyError as error:
        return str(error)
    except Exception as error:  # an unknown architecture may raise anything
        return f"`{name}` does not run on a flat batch ({type(error).__name__}: {error})"
    half = torch.is_autocast_enabled(next(backbone.parameters()).device.type) or backbone.dtype != torch.float32
    if not difference <= (5e-2 if half else 1e-3):
        return f"`{name}` gives other states on a flat batch (off by {difference:.0%}): something passes between sequences"
    expected = dict(enumerate(windows_of(backbone.config)))
    # The sequences of the trial are shorter than most windows.
    if any(window != expected.get(layer, window) for layer, window in windows.items()):
        return f"`{name}` does not tell its attention how far each layer may look back"
    return None


@torch.no_grad()
def _trial(backbone: Any) -> tuple[float, dict[int, int | None]]:
    """Returns how far states on a flat batch are from those on padded rows, and the window of each SDPA layer."""
    device, vocabulary = next(backbone.parameters()).device, backbone.config.get_text_config().vocab_size
    lengths = torch.tensor([9, 4, 16, 1], device=device)
    mask = (torch.arange(16, device=device) < lengths[:, None]).long()
    ids = (1 + torch.arange(64, device=device).view(4, 16)) % vocabulary
    flat = FlatBatch.of(ids, mask)
    windows: dict[int, int | None] = {}
    with dropout_off(backbone), _noting_windows(windows):
        expected = backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[mask.bool()].float()
        windows.clear()
        output = backbone(input_ids=flat.ids, use_cache=False, **flat.model_inputs(backbone))
    states = output.last_hidden_state[0].float()
    return float((states - expected).norm() / expected.norm()), windows


@contextmanager
def _noting_windows(windows: dict[int, int | None]) -> Iterator[None]:
    def noting(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        windows[module.layer_idx] = kwargs.get("sliding_window")
        if "cu_seq_lens_q" in kwargs and attention_mask is not None and attention_mask.numel() > 1:
            raise ConsistencyError(
                f"`{type(module).__name__}` makes a mask of its own, as sparse attention does, which a batch without padding leaves out"
            )
        return attend_by_sequence(module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register("sdpa", noting)
    try:
        yield
    finally:
        AttentionInterface.register("sdpa", attend_by_sequence)

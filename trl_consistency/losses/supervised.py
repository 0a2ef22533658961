"""Row losses of BCT alone, which trains with the loss of [`~trl.SFTTrainer`]."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConsistencyError
from ..generation.options import without_router_loss
from ..objectives.divergence import token_scores
from ..passes.blocks import base_model, find_blocks
from ..passes.capture import needed_mask
from ..passes.flat import FlatBatch
from ..passes.last_block import last_block_only_at
from ..passes.learned_prompt import has_learned_prompt
from ..upstream import scoring_labels_alone
from .row_losses import RowLosses


class ObservedModel:
    """
    Wraps the model for [`~trl.SFTTrainer`]'s loss and keeps the `outputs` of its forward, with the log-probabilities
    of answer tokens. `model` may be wrapped for distributed training; `unwrapped` is the same model without the
    wrapper.

    `hides_padding` leaves out the attention mask where [`needed_mask`] does, but the load-balancing loss of routers
    needs it. `whole` runs the last block at all positions, and not only where a label is predicted. `flat` is the batch
    without padding, if the inputs are.
    """

    def __init__(
        self, model: nn.Module, unwrapped: nn.Module, hides_padding: bool, whole: bool, flat: FlatBatch | None = None
    ):
        self.model, self.unwrapped, self.hides_padding, self.flat = model, unwrapped, hides_padding, flat
        self.whole = whole
        self.outputs: Any = None

    def __call__(self, **inputs: Any) -> Any:
        if self.flat is not None:
            # The load-balancing loss reads the mask, and takes none for a batch in which every token counts.
            inputs |= self.flat.model_inputs(base_model(self.unwrapped)) if self.hides_padding else self.flat.inputs
        elif self.hides_padding:
            inputs["attention_mask"] = needed_mask(self.unwrapped, inputs["attention_mask"])
        # Without labels, the logits of all positions are asked for.
        labels = None if self.whole else inputs.get("labels")
        with scoring_labels_alone(token_scores), _last_block_where_predicting(self.unwrapped, labels):
            outputs = self.model(**inputs)
        if self.outputs is None and "log_probs" in outputs:
            self.outputs = outputs
        return outputs

    def row_losses(self) -> RowLosses:
        """Returns the cross-entropy of each row's answer in nats, with its number of tokens."""
        sums, counts = (
            _by_row(values, self.flat) for values in (self.outputs.log_probs.detach(), self.outputs.label_mask)
        )
        return RowLosses(-sums, counts)


def _last_block_where_predicting(model: nn.Module, labels: Tensor | None) -> AbstractContextManager:
    """Returns [`last_block_only_at`] for the positions that predict `labels`, (B, T)."""
    if labels is None or has_learned_prompt(model):
        return nullcontext()
    try:
        blocks = find_blocks(model)
    except ConsistencyError:
        return nullcontext()  # BCT alone takes models of any build.
    predicts = torch.nn.functional.pad(labels[:, 1:] != -100, (0, 1))
    return last_block_only_at(blocks, predicts.flatten().nonzero()[:, 0], labels.shape)


def flat_inputs(inputs: dict[str, Any], flat: FlatBatch) -> dict[str, Any]:
    """Returns the inputs of a batch as those of `flat`, the same batch without padding."""
    is_token = inputs["attention_mask"].bool()
    rest = {name: value for name, value in inputs.items() if name not in ("attention_mask", "input_ids", "labels")}
    # The first token of a row follows another row's last. It belongs to a prompt, so that nothing is predicted across.
    return {**rest, **flat.inputs, "input_ids": flat.ids, "labels": inputs["labels"][is_token][None]}


def _by_row(values: Tensor, flat: FlatBatch | None) -> Tensor:
    """Sums values of predicted tokens, (rows, tokens - 1) or flat (1, N - 1), by row."""
    if flat is None:
        return values.sum(1)
    values = values[0] if values.is_floating_point() else values[0].long()
    return values.new_zeros(len(flat.places)).index_add(0, flat.rows[1:], values)


def supervised_row_losses(
    model: nn.Module,
    unwrapped: nn.Module,
    inputs: dict[str, Any],
    loss_type: str,
    padding_free: bool = False,
    label_smoothing: float = 0.0,
    whole: bool = False,
) -> tuple[dict[str, RowLosses], dict[str, RowLosses]]:
    """
    Returns the loss of a batch by row, and the other metrics that [`~trl.SFTTrainer`] logs. `whole` is that of
    [`ObservedModel`].
    """
    inputs.pop("is_anchor")
    flat = FlatBatch.of(inputs["input_ids"], inputs["attention_mask"]) if padding_free else None
    if flat is None:
        inputs["attention_mask"] = needed_mask(unwrapped, inputs["attention_mask"])
    else:
        inputs = {**flat_inputs(inputs, flat), **flat.model_inputs(base_model(unwrapped))}
    inputs |= without_router_loss(unwrapped)  # It is no part of the loss of rows, and takes no batch without padding.
    with (
        scoring_labels_alone(token_scores),
        _last_block_where_predicting(unwrapped, None if whole else inputs["labels"]),
    ):
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
    losses = -outputs.log_probs  # (rows, tokens - 1), zero outside the completion
    if loss_type == "dft":
        losses = losses * outputs.log_probs.exp()
    if label_smoothing:
        unlabelled = {name: value for name, value in inputs.items() if name != "labels"}
        log_probs = model(**unlabelled, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        uniform = -log_probs.mean(-1) * outputs.label_mask
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform
    values = {"bct": losses, "entropy": outputs.entropy, "mean_token_accuracy": outputs.is_top1}
    counts = _by_row(outputs.label_mask, flat)
    rows = {name: RowLosses(_by_row(value.float(), flat), counts) for name, value in values.items()}
    return {"bct": rows.pop("bct")}, rows

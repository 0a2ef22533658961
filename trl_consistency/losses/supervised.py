"""Row losses of BCT alone, which trains with the loss of [`~trl.SFTTrainer`]."""

from typing import Any

from torch import nn

from ..passes.capture import needed_mask
from .row_losses import RowLosses


class ObservedModel:
    """
    Wraps the model for [`~trl.SFTTrainer`]'s loss and keeps the `outputs` of its forward, with the log-probabilities
    of answer tokens. `model` may be wrapped for distributed training; `unwrapped` is the same model without the
    wrapper.

    `hides_padding` leaves out the attention mask where [`needed_mask`] does, but the load-balancing loss of routers
    needs it.
    """

    def __init__(self, model: nn.Module, unwrapped: nn.Module, hides_padding: bool):
        self.model, self.unwrapped, self.hides_padding = model, unwrapped, hides_padding
        self.outputs: Any = None

    def __call__(self, **inputs: Any) -> Any:
        if self.hides_padding:
            inputs["attention_mask"] = needed_mask(self.unwrapped, inputs["attention_mask"])
        outputs = self.model(**inputs)
        if self.outputs is None and "log_probs" in outputs:
            self.outputs = outputs
        return outputs

    def row_losses(self) -> RowLosses:
        """Returns the cross-entropy of each row's answer in nats, with its number of tokens."""
        return RowLosses(-self.outputs.log_probs.detach().sum(1), self.outputs.label_mask.sum(1))


def supervised_row_losses(
    model: nn.Module, unwrapped: nn.Module, inputs: dict[str, Any], loss_type: str
) -> tuple[dict[str, RowLosses], dict[str, RowLosses]]:
    """Returns the loss of a batch by row, and the other metrics that [`~trl.SFTTrainer`] logs."""
    inputs.pop("is_anchor")
    inputs["attention_mask"] = needed_mask(unwrapped, inputs["attention_mask"])
    outputs = model(**inputs, use_cache=False, fused_lm_head=True)
    losses = -outputs.log_probs  # (rows, tokens - 1), zero outside the completion
    if loss_type == "dft":
        losses = losses * outputs.log_probs.exp()
    values = {"bct": losses, "entropy": outputs.entropy, "mean_token_accuracy": outputs.is_top1}
    counts = outputs.label_mask.sum(1)
    rows = {name: RowLosses(value.float().sum(1), counts) for name, value in values.items()}
    return {"bct": rows.pop("bct")}, rows

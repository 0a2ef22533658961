"""Evaluation of a trainer: means over the whole set by row, where Trainer averages the means of batches."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.trainer_utils import EvalLoopOutput

from ..data.collators import PairCollator
from .capture import needed_mask
from .paired_loss import PairedLoss, RowLosses


if TYPE_CHECKING:
    from .consistency_config import ConsistencyConfig


class EvaluationMixin:
    """
    What a [`~transformers.Trainer`] needs to evaluate on a set, whatever its batches and processes.

    The trainer's `prediction_step` hands each batch's rows to `_keep_rows`; `_eval_metrics` makes metrics of them all, and
    `_evaluating_set` is what surrounds the loop.
    """

    # Of the trainer that this is mixed into
    accelerator: Any

    def _keep_rows(self, by_name: dict[str, RowLosses]) -> None:
        """Every batch, on every process, has the same names."""
        self._eval_names = list(by_name)
        rows = torch.stack(
            [part.float() for of_rows in by_name.values() for part in (of_rows.sums, of_rows.counts)], 1
        )
        # By row, so that the rows that repeat to fill the last batch of several processes are left out.
        self._eval_rows.append(self.accelerator.gather_for_metrics(rows).cpu())

    def _eval_metrics(self, rows: dict[str, RowLosses]) -> dict[str, float]:
        """The metrics, by their names without prefix, of the rows of a whole set."""
        raise NotImplementedError

    def _evaluating_set(self) -> AbstractContextManager:
        raise NotImplementedError

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        self._eval_rows: list[torch.Tensor] = []
        with self._evaluating_set():
            output = super().evaluation_loop(  # type: ignore[misc]
                *args, metric_key_prefix=metric_key_prefix, **kwargs
            )
        by_name = torch.cat(self._eval_rows).double().unflatten(1, (-1, 2)).unbind(1)
        rows = {name: RowLosses(*both.unbind(1)) for name, both in zip(self._eval_names, by_name, strict=True)}
        # Trainer has averaged the means of batches, which weighs short answers too heavily.
        for name, value in self._eval_metrics(rows).items():
            output.metrics[f"{metric_key_prefix}_{name}"] = value
        return output


def means_of(rows: dict[str, RowLosses]) -> dict[str, float]:
    """Means by name. Nothing counted has no mean: 0 would look like a perfect one."""
    totals = {name: (float(of_rows.sums.sum()), float(of_rows.counts.sum())) for name, of_rows in rows.items()}
    return {name: total / count for name, (total, count) in totals.items() if count}


class PairEvaluationMixin(EvaluationMixin):
    """
    Evaluation of objectives on pairs.

    The trainer sets `paired_loss` and offers `_compare`.
    """

    args: "ConsistencyConfig"
    data_collator: PairCollator
    paired_loss: PairedLoss | None
    # Of the trainer that this is mixed into
    model: Any
    _metrics: Any
    _compare: Any
    _prepare_inputs: Any
    compute_loss_context_manager: Any

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        logits, labels = None, None
        if not prediction_loss_only and self.paired_loss is None:
            _, logits, labels = super().prediction_step(  # type: ignore[misc]
                model, inputs, prediction_loss_only, ignore_keys
            )
            self._metrics["eval"].clear()  # the means of batches that `evaluation_loop` replaces
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            losses = self._eval_losses(model, inputs) if self.paired_loss is None else self._compare(model, inputs)
        self._keep_rows(losses[0] | losses[1])
        of_batch = [
            weight * losses[0][method].sums.sum() / losses[0][method].counts.sum().clamp(min=1)
            for method, weight in self.args.weights.items()
        ]
        return torch.stack(of_batch).sum(), logits, labels

    def _eval_losses(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[dict[str, RowLosses], dict[str, RowLosses]]:
        """BCT alone, and what [`~trl.SFTTrainer`] logs beside it."""
        inputs.pop("is_anchor")
        inputs["attention_mask"] = needed_mask(self.model, inputs["attention_mask"])
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        losses = -outputs.log_probs  # (rows, tokens - 1), zero outside the completion
        if self.args.loss_type == "dft":
            losses = losses * outputs.log_probs.exp()
        values = {"bct": losses, "entropy": outputs.entropy, "mean_token_accuracy": outputs.is_top1}
        counts = outputs.label_mask.sum(1)
        rows = {name: RowLosses(value.float().sum(1), counts) for name, value in values.items()}
        return {"bct": rows.pop("bct")}, rows

    @contextmanager
    def _evaluating_set(self) -> Iterator[None]:
        # Evaluation asks for the reference's answers, whatever the pairs are trained on by now.
        current, self.data_collator.current_targets = self.data_collator.current_targets, None
        try:
            yield
        finally:
            self.data_collator.current_targets = current

    def _eval_metrics(self, rows: dict[str, RowLosses]) -> dict[str, float]:
        means = means_of(rows)
        metrics = {"loss": self._weighted(means)}
        if self.paired_loss is None:
            means.pop("bct", None)
        return metrics | self._named_in_log(means)

    def _weighted(self, means: dict[str, float]) -> float:
        return sum(weight * means.get(method, 0.0) for method, weight in self.args.weights.items())

    def _named_in_log(self, means: dict[str, float]) -> dict[str, float]:
        return {f"{name}_loss" if name in self.args.method else name: value for name, value in means.items()}

"""Computes all objectives on a batch of pairs from one pass of the reference and one of the student."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConsistencyError
from ..log import get_logger
from ..objectives.activation import activation_loss, layer_distances
from ..objectives.attention import attention_divergence
from ..objectives.divergence import (
    generalized_divergence,
    shared_head_divergence,
    token_log_probs,
    token_log_probs_and_entropy,
)
from ..objectives.mlp import mlp_distance
from ..passes.blocks import base_model, find_blocks, resolve_layers
from ..passes.capture import Head, States, capture_states, head_of
from ..passes.flat import FlatBatch
from ..passes.load_balancing import load_balancing_loss
from ..passes.packing import distinct_rows
from ..passes.reference import Reference
from .row_losses import RowLosses, of_batch


logger = get_logger(__name__)

Batch = dict[str, Any]


@dataclass
class Objectives:
    """The objectives and logged quantities of a [`PairedLoss`]; see [`ConsistencyConfig`] for each field."""

    method: list[str]
    layers: list[int] | None = None
    act_tokens: str = "prompt"
    mlp_distance: str = "cosine"
    loss_type: str = "nll"
    log_consistency_metrics: bool = False
    log_layer_distances: bool = False
    padding_free: bool = False

    @classmethod
    def of(cls, args: Any) -> "Objectives":
        """Reads the objectives from a [`ConsistencyConfig`]."""
        return cls(**{field.name: getattr(args, field.name) for field in fields(cls)})


@dataclass
class AnswerStates:
    """Hidden states at answer tokens, [M, H], concatenated over rows, and the head that reads them."""

    hidden: Tensor
    head: Head

    def log_probs(self, labels: Tensor, temperature: float = 1.0) -> Tensor:
        """[`token_log_probs`] of the tokens `labels`, (M,)."""
        with self.head.gathered():
            return token_log_probs(*self._tokens(labels, temperature))

    def log_probs_and_entropy(self, labels: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """[`token_log_probs_and_entropy`] of the tokens `labels`, (M,)."""
        with self.head.gathered():
            return token_log_probs_and_entropy(*self._tokens(labels, temperature))

    def divergence(
        self, reference: "AnswerStates", beta: float = 0.0, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """
        The [`generalized_divergence`] from the reference at each token, and the entropy, (M,). `beta` 0 is the forward KL.
        """
        ours, theirs = self.head, reference.head
        if _is_frozen_and_shared(ours, theirs):
            return shared_head_divergence(self.hidden, reference.hidden, ours.weight, beta, temperature)
        return generalized_divergence(
            self.hidden,
            ours.weight,
            ours.bias,
            reference.hidden,
            theirs.weight,
            theirs.bias,
            beta,
            temperature,
            student_scale=ours.scale,
            student_softcap=ours.softcap,
            reference_scale=theirs.scale,
            reference_softcap=theirs.softcap,
        )

    def _tokens(self, labels: Tensor, temperature: float) -> tuple[Any, ...]:
        head = self.head
        return self.hidden, head.weight, head.bias, labels, head.scale, head.softcap, temperature


def _is_frozen_and_shared(ours: Head, theirs: Head) -> bool:
    """Whether to use [`shared_head_divergence`], which TRL's fused kernel replaces on GPUs."""
    plain = ours.bias is None and ours.softcap is None and ours.scale == 1
    # Under ZeRO-3, sharded weights all have the same data pointer.
    is_whole = not hasattr(ours.weight, "ds_id")
    one = is_whole and ours.weight.data_ptr() == theirs.weight.data_ptr()
    return plain and one and not ours.weight.requires_grad and ours.weight.device.type == "cpu"


class PairedLoss:
    """
    Computes objectives on batches of [`~trl_consistency.data.collators.PairCollator`], and the load-balancing loss of
    the student's routers if `balances_routers`. `model` is the student, not wrapped for distributed training.
    """

    def __init__(self, objectives: Objectives, model: nn.Module, reference: Reference, balances_routers: bool = False):
        self.objectives, self.reference, self.balances_routers = objectives, reference, balances_routers
        self.watches = objectives.log_consistency_metrics
        methods = set(objectives.method)
        self._captured = {
            "residual": "act" in methods or self.watches,
            "mlp": "mlpct" in methods,
            "attention": "attct" in methods,
        }
        # The span of `act` that the metrics take too
        self._watches_act = self.watches and "act" in methods and objectives.act_tokens == "prompt"
        self._needs_head = bool({"bct", "kl"} & methods) or self.watches
        self.layers_of = self._compared_layers(model)
        self.layers = sorted(set().union(*self.layers_of.values()))

    def _compared_layers(self, model: nn.Module) -> dict[str, list[int]]:
        """Returns the blocks that each kind of state is compared in: those of `layers` that have it."""
        # With a learned prompt, only answers can be compared, not states inside the blocks.
        if not any(self._captured.values()):
            return {}
        blocks = find_blocks(model)
        layers = resolve_layers(self.objectives.layers, len(blocks))
        compared = {"residual": layers} if self._captured["residual"] else {}
        if self._captured["mlp"]:
            compared["mlp"] = list(blocks.down_projections(layers))
            _note_left_out("mlpct", "MLP that all tokens pass", layers, compared["mlp"])
        if self._captured["attention"]:
            compared["attention"] = list(blocks.attentions(layers))
            _note_left_out("attct", "attention map", layers, compared["attention"])
        return compared

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Returns each objective's count by row, (B,): answer tokens, pairs with a shared span, or shared tokens."""
        counted = {"bct": batch["response"][:, 2], "kl": batch["response"][:, 2]}
        if "act" in self.objectives.method:
            counted["act"] = (_act_span(batch, self.objectives.act_tokens)[:, 2] > 0).long()
        if "content_span" in batch:
            counted["attct"] = counted["mlpct"] = batch["content_span"][:, 2]
        return {method: counted[method] for method in self.objectives.method}

    def __call__(self, model: Any, batch: Batch) -> tuple[dict[str, RowLosses], dict[str, RowLosses]]:
        """
        Compares the student with the reference on a batch. Call this inside the wrapper's forward, with the model not
        wrapped.

        Returns the objectives by name, and the logged quantities (for pairs, not for anchors) by their names in the
        log. In training, the logged quantities include the routers' `aux_loss`.
        """
        spans = self._spans(batch)
        with self.reference.active(model) as frozen:
            # Pairs with the same clean prompt share one row.
            clean_ids, clean_mask, row_of_pair = distinct_rows(batch["clean_input_ids"], batch["clean_attention_mask"])
            reference, reference_answers = self.reference.run(
                self._run, frozen, clean_ids, clean_mask, row_of_pair, 0, spans, batch["response"]
            )
            if reference_answers is not None:
                # Outside this context, the model may hold other weights.
                reference_answers.head = reference_answers.head.detached()
        return self.compare(model, batch, reference, reference_answers)

    def compare(
        self, model: Any, batch: Batch, reference: States, reference_answers: AnswerStates | None
    ) -> tuple[dict[str, RowLosses], dict[str, RowLosses]]:
        """Runs the student, and returns what a call does. The states are the reference's, at the tokens that are compared."""
        spans = self._spans(batch)
        rows = torch.arange(len(batch["input_ids"]), device=batch["input_ids"].device)
        balances_routers = self.balances_routers and torch.is_grad_enabled()
        student, answers = self._run(
            model, batch["input_ids"], batch["attention_mask"], rows, 1, spans, batch["response"], balances_routers
        )

        counts = self.counts(batch)
        losses, watched = self._compare_states(student, reference, spans)
        if answers is not None and reference_answers is not None:
            losses |= self._compare_answers(answers, reference_answers, batch)
            if self.watches:
                with torch.no_grad():
                    watched |= _watch_answers(answers, reference_answers, batch)
        # These metrics measure consistency. Anchors are consistent from the start and would dilute them.
        pairs = (~batch["is_anchor"]).long()
        watched = {name: RowLosses(of_rows.sums * pairs, of_rows.counts * pairs) for name, of_rows in watched.items()}
        if student.routing is not None:
            watched["aux_loss"] = of_batch(load_balancing_loss(model, student.routing), len(rows))
        return {method: RowLosses(losses[method], counts[method]) for method in self.objectives.method}, watched

    def watched_positions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """
        Returns pairs, (N,), and positions on the clean side, (N,), of the states that the metrics compare. Without objectives,
        [`compare`] needs no others of the reference.
        """
        return _positions(batch["suffix"], 0)

    # The two forward passes

    def _spans(self, batch: Batch) -> dict[str, Tensor]:
        """
        Returns the compared spans by purpose. A span, (B, 3), holds the start on the clean side, the start on the
        perturbed side, and the length.
        """
        spans = {}
        if "act" in self.objectives.method:
            spans["act"] = _act_span(batch, self.objectives.act_tokens)
        if self.watches and not self._watches_act:
            spans["watched"] = batch["suffix"]
        if "content_span" in batch:
            spans["content_span"] = batch["content_span"]
        return spans

    def _run(
        self,
        model: Any,
        ids: Tensor,
        mask: Tensor,
        rows: Tensor,
        side: int,
        spans: dict[str, Tensor],
        response: Tensor,
        need_routing: bool = False,
    ) -> tuple[States, AnswerStates | None]:
        """Runs the clean (0) or the perturbed (1) side; `rows` (B,) is each pair's row in `ids`."""
        flat = FlatBatch.of(ids, mask) if self.objectives.padding_free else None

        def place(pairs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
            if flat is None:
                return rows[pairs], positions
            places = flat.places[rows[pairs], positions]
            return torch.zeros_like(places), places

        of_spans = [_positions(span, side) for span in spans.values()] or [(rows[:0], rows[:0])]
        pairs, positions = (torch.cat(parts) for parts in zip(*of_spans, strict=True))
        places = place(pairs, positions)
        answer_pairs, answer_positions = _positions(response, side)
        # Position t - 1 predicts token t.
        of_answers = place(answer_pairs, answer_positions - 1)
        is_read = torch.zeros(ids.shape if flat is None else flat.ids.shape, dtype=torch.bool, device=ids.device)
        is_read[places] = True
        if self._needs_head:
            is_read[of_answers] = True
        # The states of all spans are concatenated.
        states = capture_states(
            model,
            ids if flat is None else flat.ids,
            mask if flat is None else flat.mask,
            places[0],
            places[1],
            self.layers or None,
            **self._captured,
            need_last_hidden=self._needs_head,
            need_routing=need_routing,
            inputs=None if flat is None else flat.model_inputs(base_model(model)),
            read=is_read.flatten().nonzero()[:, 0],
        )
        if states.last_hidden is None:
            return states, None
        hidden, states.last_hidden = states.last_hidden[of_answers], None
        return states, AnswerStates(hidden, head_of(model))

    # The objectives, as sums by row

    def _compare_states(
        self, student: States, reference: States, spans: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, RowLosses]]:
        losses: dict[str, Tensor] = {}
        watched: dict[str, RowLosses] = {}
        end = 0
        for name, span in spans.items():
            pairs, _ = _positions(span, 0)
            start, end = end, end + len(pairs)
            part, num_pairs = slice(start, end), len(span)
            ours, theirs = ([state[part] for state in side.residual] for side in (student, reference))
            if name == "act":
                losses["act"] = activation_loss(ours, theirs, pairs, num_pairs)
            if name == "watched" or (name == "act" and self._watches_act):
                shares_something = (span[:, 2] > 0).long()
                with torch.no_grad():
                    by_layer = layer_distances(ours, theirs, pairs, num_pairs)  # [layers, B]
                watched["activation_distance"] = RowLosses(by_layer.mean(0), shares_something)
                if self.objectives.log_layer_distances:
                    for layer, distances in zip(self.layers, by_layer, strict=True):
                        watched[f"activation_distance/layer_{layer}"] = RowLosses(distances, shares_something)
            if name == "content_span" and "mlpct" in self.objectives.method:
                distances = [
                    mlp_distance(of_student[part], of_reference[part], self.objectives.mlp_distance)
                    for of_student, of_reference in zip(student.mlp, reference.mlp, strict=True)
                ]
                losses["mlpct"] = _by_row(torch.stack(distances).mean(0), pairs, num_pairs)
            if name == "content_span" and "attct" in self.objectives.method:
                losses["attct"], skipped = _attention_by_row(student.attention, reference.attention, span, start)
                watched["attct_skipped_rows"] = RowLosses(skipped, span[:, 2])
        return losses, watched

    def _compare_answers(self, student: AnswerStates, reference: AnswerStates, batch: Batch) -> dict[str, Tensor]:
        losses = {}
        if "bct" in self.objectives.method:
            log_probs = _log_probs(student, batch)
            # DFT: https://huggingface.co/papers/2508.05629
            weights = log_probs.exp().detach() if self.objectives.loss_type == "dft" else 1
            losses["bct"] = _by_answer(-log_probs * weights, batch)
        if "kl" in self.objectives.method:
            losses["kl"] = _by_answer(student.divergence(reference)[0], batch)
        return losses

    # Training only some of the parameters

    def freeze_unused(self, model: nn.Module) -> None:
        """
        Freezes trainable parameters that get no gradient from any objective: the head and the blocks after the last
        compared one. DDP would wait for their gradients, and the optimizer would apply weight decay to them.
        """
        if {"bct", "kl"} & set(self.objectives.method):
            return
        blocks = find_blocks(model).modules
        # Never frozen, even if the probe below gives no gradient: it does not reach every expert of a mixture.
        whole = self.layers[-1] + ("act" in self.objectives.method)
        before = {id(parameter) for block in blocks[:whole] for parameter in block.parameters()}
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        device = next(model.parameters()).device
        ids = torch.zeros(1, 2, dtype=torch.long, device=device)
        where = torch.zeros(1, dtype=torch.long, device=device)
        compared = {"act": "residual", "mlpct": "mlp", "attct": "attention"}
        captured = {compared[method]: True for method in self.objectives.method}
        with torch.enable_grad():
            options: dict[str, Any] = {"residual": False, **captured, "need_routing": self.balances_routers}
            states = capture_states(model, ids, torch.ones_like(ids), where, where + 1, self.layers, **options)
            routers = states.routing.logits if states.routing is not None else ()
            seen = (*states.residual, *states.mlp, *states.attention, *routers)
            total = torch.stack([state.float().sum() for state in seen]).sum()
        if not total.requires_grad:
            raise ConsistencyError(
                f"Nothing that is compared (`method` {self.objectives.method}, blocks up to {self.layers[-1]}) depends on a "
                "parameter that is trained. Compare later `layers`, or train earlier ones."
            )
        grads = torch.autograd.grad(total, [parameter for _, parameter in named], allow_unused=True)
        frozen: list[str] = []
        for (name, parameter), grad in zip(named, grads, strict=True):
            if grad is None and id(parameter) not in before:
                parameter.requires_grad_(False)
                frozen.append(name)
        if frozen:
            listed = ", ".join(frozen[:3]) + (", ..." if len(frozen) > 3 else "")
            logger.warning(
                f"Frozen, since no compared block depends on it: {len(frozen)} trainable tensor(s) ({listed})."
            )


def _note_left_out(method: str, part: str, layers: list[int], compared: list[int]) -> None:
    left_out = [str(layer) for layer in layers if layer not in compared]
    if left_out:
        logger.warning(
            f"`{method}` compares block(s) {', '.join(map(str, compared))}. It leaves out {', '.join(left_out)}, which have "
            f"no {part}."
        )


def _act_span(batch: Batch, act_tokens: str) -> Tensor:
    if act_tokens == "prompt":
        return batch["suffix"]
    if act_tokens == "completion":
        return batch["response"]
    # The answer follows the suffix on both sides.
    return torch.cat([batch["suffix"][:, :2], batch["suffix"][:, 2:] + batch["response"][:, 2:]], 1)


def _positions(span: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Returns pairs (N,) and token positions (N,) of spans (B, 3) on the clean (0) or perturbed (1) side."""
    starts, lengths = span[:, side], span[:, 2]
    pairs = torch.repeat_interleave(torch.arange(len(span), device=span.device), lengths)
    before = lengths.cumsum(0) - lengths  # positions of all earlier pairs
    return pairs, starts[pairs] + torch.arange(len(pairs), device=span.device) - before[pairs]


def _by_row(values: Tensor, pairs: Tensor, num_rows: int) -> Tensor:
    """Sums values (N,) by their pairs (N,), giving (B,)."""
    return values.new_zeros(num_rows).index_add(0, pairs, values)


def _by_answer(values: Tensor, batch: Batch) -> Tensor:
    """Sums values (M,) of answer tokens by row, giving (B,)."""
    return _by_row(values, _positions(batch["response"], 1)[0], len(batch["input_ids"]))


def _log_probs(student: AnswerStates, batch: Batch) -> Tensor:
    return student.log_probs(batch["input_ids"][_positions(batch["response"], 1)])


def _watch_answers(student: AnswerStates, reference: AnswerStates, batch: Batch) -> dict[str, RowLosses]:
    tokens = batch["response"][:, 2]
    return {
        "response_cross_entropy": RowLosses(_by_answer(-_log_probs(student, batch), batch), tokens),
        "reference_kl": RowLosses(_by_answer(student.divergence(reference)[0], batch), tokens),
    }


def _attention_by_row(
    student: list[Tensor], reference: list[Tensor], span: Tensor, start: int
) -> tuple[Tensor, Tensor]:
    """Returns the divergence and the rows left out, summed over each pair's span, mean over layers and heads, (B,)."""
    divergences, skipped = [], []
    for clean_start, perturbed_start, length in span.tolist():
        of_pair = slice(start, start := start + length)
        by_layer = []
        for p, q in zip(student, reference, strict=True):
            # [length, heads, T] -> [heads, length, length]
            p, q = (
                rows[of_pair, :, first : first + length].transpose(0, 1)
                for rows, first in ((p, perturbed_start), (q, clean_start))
            )
            by_layer.append(torch.stack(attention_divergence(p, q)) / p.shape[0])
        divergence, left_out = torch.stack(by_layer).mean(0)
        divergences.append(divergence)
        skipped.append(left_out.detach())
    return torch.stack(divergences), torch.stack(skipped)

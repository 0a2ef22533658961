"""Measures how far a model's states and answers on perturbed prompts are from a reference's on the clean ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from ..data.alignment import shared_suffix
from ..errors import ConsistencyError
from ..generation.options import evaluating
from ..models.adapter_checks import OF_MODEL, check_adapter_config, check_no_other_adapter, warn_of_adapter
from ..objectives.activation import activation_loss
from ..objectives.divergence import token_log_probs
from ..passes.capture import capture_states, head_of
from .rendered_rows import check_unchanged


class PairDistance(NamedTuple):
    """
    How far a model is from a reference on one pair. The two numbers of tokens say what the figures are means over.

    Args:
        activation (`float`, *optional*):
            Squared distance of the model's residual stream on the perturbed prompt from the reference's on the clean
            one: the mean over the tokens that both prompts end with, and over blocks. None if they share no token.
        shared_tokens (`int`):
            Number of these tokens.
        answer_nats (`float`, *optional*):
            Negative log-probability of the answer after the perturbed prompt, in nats per token. None without an answer.
        answer_tokens (`int`):
            Number of the answer's tokens.
    """

    activation: float | None
    shared_tokens: int
    answer_nats: float | None
    answer_tokens: int


def measure_distances(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Sequence[int]] | None = None,
    layers: list[int] | None = None,
    progress: Callable[[Sequence[Any]], Any] = lambda rows: rows,
) -> list[PairDistance]:
    """
    Measures two figures for each pair: the distance between activations, which ACT reduces, and the cross-entropy of the
    clean answer, which BCT reduces. Irpan et al. (arXiv 2510.27062) compare both before and after training. For the
    figures before training, which show the scale, pass the reference as `model`, too.

    Example:

    ```python
    >>> from trl_consistency.evaluation import PairSet, evaluate, measure_distances

    >>> rows = PairSet.of(pairs).rendered(tokenizer).rows
    >>> clean = evaluate(base, tokenizer, pairs).sets[""].answers["clean"]
    >>> after = measure_distances(trained, base, rows, [answer.ids for answer in clean])
    ```

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. Its mode (training or evaluation) is restored at the end.
        reference ([`~transformers.PreTrainedModel`]):
            The model before training.
        rows (`Sequence[Mapping[str, Any]]`):
            Pairs with `clean_ids` and `perturbed_ids`.
        answers (`Sequence[Sequence[int]]`, *optional*):
            The reference's answer to each clean prompt, as token ids.
        layers (`list[int]`, *optional*):
            Blocks to compare, counted from 0, or from the end if negative. By default all.
        progress (`Callable`, *optional*):
            Function that wraps the pairs to show a progress bar, such as `tqdm`.

    Returns:
        `list[PairDistance]`: One for each pair.

    Raises:
        [`ConsistencyError`]: If `reference` is the base model inside `model`, because the adapter acts there, too; or if
        another adapter was put into the base model of one of the two; or if one has an adapter of a kind that cannot be
        measured (aLoRA).
        [`InvalidPairsError`]: If pairs were changed after they were rendered.
    """
    if isinstance(model, PeftModel) and reference is model.get_base_model():
        raise ConsistencyError(
            "`reference` is the model into which PEFT has put the adapter, and answers with it. Load the model before training again."
        )
    check_unchanged(rows)
    for of_two in (model, reference):
        check_no_other_adapter(of_two)
        warn_of_adapter(of_two)
        if isinstance(of_two, PeftModel):
            check_adapter_config(OF_MODEL, of_two.active_peft_config)
    of_rows = [[] for _ in rows] if answers is None else [list(ids) for ids in answers]
    pairs = list(zip(rows, of_rows, strict=True))
    with evaluating(model), evaluating(reference):
        return [_measure(model, reference, row, answer, layers) for row, answer in progress(pairs)]


@torch.no_grad()
def _measure(
    model: Any, reference: Any, row: Mapping[str, Any], answer: list[int], layers: list[int] | None
) -> PairDistance:
    # One pair at a time: pairs have uneven lengths, and a figure must not depend on its neighbours in a batch.
    span = shared_suffix(row["clean_ids"], row["perturbed_ids"])
    clean, perturbed = list(row["clean_ids"]), list(row["perturbed_ids"])
    theirs, _ = _states(reference, clean, span.clean_start, span.length, layers)
    ours, last_hidden = _states(model, [*perturbed, *answer], span.perturbed_start, span.length, layers, bool(answer))
    nats = None
    if last_hidden is not None:
        # Position t - 1 predicts token t.
        hidden, head = last_hidden[0, len(perturbed) - 1 : -1], head_of(model)
        labels = torch.tensor(answer, device=hidden.device)
        with head.gathered():
            log_probs = token_log_probs(hidden, head.weight, head.bias, labels, head.scale, head.softcap)
        nats = -log_probs.mean().item()
    activation = None
    if span.length:
        pair = torch.zeros(span.length, dtype=torch.long, device=ours[0].device)
        activation = activation_loss(ours, [state.to(ours[0].device) for state in theirs], pair, 1).item()
    return PairDistance(activation, span.length, nats, len(answer))


def _states(
    model: Any, ids: list[int], start: int, length: int, layers: list[int] | None, with_head: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """Returns the residual stream at `length` positions from `start`, by block, and the head's input if it is needed."""
    input_ids = torch.tensor([ids], device=model.device)
    positions = torch.arange(start, start + length, device=model.device)
    states = capture_states(
        model,
        input_ids,
        torch.ones_like(input_ids),
        torch.zeros_like(positions),
        positions,
        layers,
        need_last_hidden=with_head,
    )
    return states.residual, states.last_hidden

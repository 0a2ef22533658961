"""Measures what training changed where nothing should change: replies to everyday prompts, and plain text."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from ..data.rendering import ProcessingClass, Prompt, encode_text, get_tokenizer, render_prompt
from ..finite import check_logits
from ..generation.answer_cache import TargetCache
from ..generation.options import end_tokens, evaluating
from ..models.adapter_checks import check_no_other_adapter, warn_of_adapter
from .answers.float32_head import float32_logits
from .answers.generate import AnswerOptions, generate_ids


class SideEffects(NamedTuple):
    """
    One model's behaviour on prompts and texts that no training pair resembles.

    Args:
        reply_tokens (`float`):
            Mean length of the replies in tokens.
        ended (`float`):
            Share of the replies that ended within the limit.
        reply_nats (`float`):
            Negative log-probability of the base model's replies under this model, in nats per token.
        text_nats (`float`):
            Negative log-probability of the texts, in nats per token: the logarithm of their perplexity.
        replies (`list[list[int]]`):
            Token ids of the replies.
    """

    reply_tokens: float
    ended: float
    reply_nats: float
    text_nats: float
    replies: list[list[int]]

    def to_dict(self) -> dict[str, float]:
        """Returns the figures, without the replies, in a form for JSON."""
        return {name: getattr(self, name) for name in self._fields[:-1]}


def measure_side_effects(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    base: SideEffects | None = None,
    options: AnswerOptions | None = None,
    cache: TargetCache | None = None,
) -> SideEffects:
    """
    Lets a model reply to everyday prompts, and reads texts with it.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. Its mode (training or evaluation) is restored at the end.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        prompts (`Sequence[str]` or `Sequence[list[dict]]`):
            Everyday prompts.
        texts (`Sequence[str]`):
            Plain texts, each read from its second token on.
        base ([`SideEffects`], *optional*):
            Those of the base model, whose replies are scored. By default the model's own.
        options ([`AnswerOptions`], *optional*):
            Options for the replies. By default greedy decoding, at most 256 tokens.
        cache ([`~trl_consistency.generation.answer_cache.TargetCache`], *optional*):
            Stores replies as they are generated, so that a killed run can resume.

    Returns:
        [`SideEffects`]: Lengths, ends and log-probabilities.

    Raises:
        [`ConsistencyError`]: If another model's adapter acts in this one.
    """
    check_no_other_adapter(model)
    warn_of_adapter(model)
    options = options or AnswerOptions()
    rendered = [render_prompt(tokenizer, prompt) for prompt in prompts]
    replies = generate_ids(model, tokenizer, rendered, options, cache, desc="Everyday prompts")
    ends = end_tokens(model, tokenizer)
    scored = replies if base is None else base.replies
    text_ids = [encode_text(get_tokenizer(tokenizer), text) for text in texts]
    return SideEffects(
        sum(map(len, replies)) / len(replies),
        sum(ids[-1] in ends for ids in replies) / len(replies),
        nats_per_token(model, [(prompt, reply) for prompt, reply in zip(rendered, scored, strict=True)]),
        nats_per_token(model, [(ids[:1], ids[1:]) for ids in text_ids]),
        replies,
    )


def nats_per_token(model: PreTrainedModel, sequences: Sequence[tuple[list[int], list[int]]]) -> float:
    """
    Returns the negative log-probability of continuations, each after its context (both token ids), as a mean over all
    tokens, in nats.
    """
    return sum(nats_of(model, sequences)) / sum(len(continuation) for _, continuation in sequences)


@torch.no_grad()
def nats_of(model: PreTrainedModel, sequences: Iterable[tuple[list[int], list[int]]]) -> list[float]:
    """
    Returns the negative log-probability of each continuation after its context (both token ids), in nats. One is read at a
    time: padding would change the figures, and long texts fill a device by themselves.
    """
    found = []
    with evaluating(model):
        for context, continuation in sequences:
            input_ids = torch.tensor([[*context, *continuation]], device=model.device)
            # From the end, since a learned prompt may stand before them
            with float32_logits(model, len(continuation)):
                logits = model(input_ids=input_ids[:, :-1]).logits[0, -len(continuation) :].float()
            check_logits(logits)
            targets = input_ids[0, len(context) :]
            found.append(torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item())
    return found

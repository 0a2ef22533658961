"""Scores the choices of questions as completions, in a task of lm-evaluation-harness over local data."""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from copy import deepcopy
from typing import Any

import torch
from datasets import Dataset
from transformers import LogitsProcessorList, PreTrainedModel

from ...data.rendering import ProcessingClass, appended_tokens, encode_text, get_tokenizer
from ...data.thinking import THINKING_MARKERS
from ...finite import NaNWatch, check_logits
from ...generation.options import end_tokens, evaluating
from ...models.checks import context_of
from ..answers.float32_head import float32_logits
from ..answers.replies import after_thinking
from .reply_counts import Replies


TASK = "completions"
METRICS = ("acc", "acc_norm")
LONGEST_OPENING = 8  # tokens of a marker with the line breaks after it


def score_completions(
    model: PreTrainedModel,
    processing_class: ProcessingClass,
    questions: Sequence[Mapping[str, Any]],
    batch_size: int = 32,
    progress: bool = False,
) -> dict[str, list[float]]:
    """
    Lets lm-evaluation-harness score the text of each choice after the question, and tells whether the right one is the
    likeliest. No chat template is applied.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. Its mode (training or evaluation) is restored at the end.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        questions (`Sequence[Mapping[str, Any]]`):
            Questions with `prompt`, `choices` and `answer`, the place of the right choice. A space is put between prompt
            and choice.
        batch_size (`int`, *optional*, defaults to `32`):
            Completions per batch.
        progress (`bool`, *optional*, defaults to `False`):
            Whether the harness shows its progress bars.

    Returns:
        `dict[str, list[float]]`: 1 or 0 for each question: `"acc"` by the log-probability of the choice, `"acc_norm"` by the
        log-probability per character.
    """
    from lm_eval import evaluate

    own = get_tokenizer(processing_class)
    texts = (f"{question['prompt']} {choice}" for question in questions for choice in question["choices"])
    with evaluating(model), _quiet(progress):
        lm = harness_model(
            pretrained=model,
            tokenizer=deepcopy(own),  # a padding token is set on it
            batch_size=batch_size,
            # Without one, the harness cuts at 2,048 tokens.
            max_length=context_of(model) or 1 + max(len(encode_text(own, text)) for text in texts),
        )
        results = evaluate(lm=lm, task_dict={TASK: _task(questions)}, bootstrap_iters=0)
    samples = sorted(results["samples"][TASK], key=lambda sample: sample["doc_id"])
    return {metric: [float(sample[metric]) for sample in samples] for metric in METRICS}


def harness_model(**options: Any) -> Any:
    """
    Returns lm-evaluation-harness's model of these options. It raises [`NotFiniteError`] for logits that are NaN: the harness takes
    the first choice then, which is right in some questions. Replies also end where the tokenizer's end-of-turn token does, and not
    only the model's. Its `replies` count them. It reads texts without the tokens that some tokenizers append.
    """
    from lm_eval.models.huggingface import HFLM

    class CheckedModel(HFLM):
        def __init__(self, **of_harness: Any):
            with _keeping_head(of_harness["pretrained"]):
                super().__init__(**of_harness)
            self.replies = Replies()
            self.appended = appended_tokens(self.tokenizer)

        def tok_encode(self, *args: Any, **kwargs: Any) -> list[int]:
            ids: list[int] = super().tok_encode(*args, **kwargs)
            length = len(self.appended)
            return ids[:-length] if length and ids[-length:] == self.appended else ids

        def tok_batch_encode(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            ids, attention_mask = super().tok_batch_encode(*args, **kwargs)  # padded on the left
            length = len(self.appended)
            if length and all(row[-length:] == self.appended for row in ids.tolist()):
                return ids[:, :-length], attention_mask[:, :-length]
            return ids, attention_mask

        def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with float32_logits(
                self.model, inps.shape[1]
            ):  # Of choices with equal rounded ones, the first would be taken.
                logits = super()._model_call(inps, *args, **kwargs)
            check_logits(logits)
            return logits

        def _model_generate(self, context: Any, max_length: int, stop: list[str], **kwargs: Any) -> Any:
            watch, ends = NaNWatch(), end_tokens(self.model, self.tokenizer)
            # The harness looks for the tokenizer's as a text, which it leaves out of what it reads.
            options = {"logits_processor": LogitsProcessorList([watch]), "eos_token_id": ends or None}
            answers = super()._model_generate(context, max_length, stop, **options, **kwargs)
            watch.check()
            is_full = answers.shape[1] >= max_length
            opening, closing = THINKING_MARKERS
            for prompt, ids in zip(context.tolist(), answers[:, context.shape[1] :].tolist(), strict=True):
                text = self.tokenizer.decode(ids)
                is_ended = not {*ends}.isdisjoint(ids) or any(of and of in after_thinking(text) for of in stop)
                # A stop sequence also ends a thought.
                opened = opening if self.tokenizer.decode(prompt[-LONGEST_OPENING:]).rstrip().endswith(opening) else ""
                is_thinking = opening in f"{opened}{text}".rpartition(closing)[2]
                self.replies.note(text, is_thinking or (is_full and not is_ended))
            return answers

    return CheckedModel(**options)


@contextmanager
def _keeping_head(model: Any) -> Iterator[None]:
    """
    Within it, `tie_weights` does nothing. The harness calls it, and would replace the head by embeddings that an adapter has trained.
    """
    vars(model)["tie_weights"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del vars(model)["tie_weights"]


def _task(questions: Sequence[Mapping[str, Any]]) -> Any:
    from lm_eval.api.task import ConfigurableTask

    rows = Dataset.from_list(
        [{key: question[key] for key in ("prompt", "choices", "answer")} for question in questions]
    )
    return ConfigurableTask(
        config={
            "task": TASK,
            "custom_dataset": lambda **_: {"test": rows},
            "test_split": "test",
            "output_type": "multiple_choice",
            "num_fewshot": 0,
            "doc_to_text": "prompt",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "target_delimiter": " ",
            "metric_list": [{"metric": of, "aggregation": "mean", "higher_is_better": True} for of in METRICS],
        }
    )


@contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """
    Within it, the harness shows no warnings, which are about other ways to call it, and bars only with `progress`. It has
    an option for neither.
    """
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with nullcontext() if progress else redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)

"""
Capability without judgement calls: questions of multiple choice as completions, texts in nats per token, and safe prompts
refused. Everything is paired by item, so that small changes show.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..data.rendering import ProcessingClass, render_prompt
from ..data.thinking import THINKING_MARKERS, Markers
from ..errors import ConsistencyError
from ..files import write_text
from ..generation.answer_cache import TargetCache
from ..generation.model_identity import digest_of
from ..models.adapter_checks import check_no_other_adapter, warn_of_adapter
from ..models.checks import context_of
from .answers.generate import AnswerOptions, decode_answer, generate_ids
from .answers.replies import check_markers, warning_of_markers
from .capability_data import CapabilityData, ItemSet, as_prompt, read_capability, text_tokens, token_ids
from .grading.asked import last_text
from .grading.refusals import refuses
from .rates.changes import estimate_change
from .rates.intervals import FEWEST_SOURCES, NATS_PER_TOKEN, Estimate, Sample, Values, estimate, estimate_mean
from .side_effects import nats_of
from .suites.completions import score_completions
from .suites.registry import installed_version


REPLY_TOKENS = 64

LABELS = {
    "accuracy": "Accuracy of completions",
    "acc": "Accuracy of completions, not normalized",
    "nats_per_token": "Negative log-probability of texts",
    "refused": "Safe prompts refused",
}
# Of those named in findings, which of them must not fall, and which must not rise
_FALLS, _RISES = ("accuracy",), ("nats_per_token", "refused")


@dataclass(frozen=True)
class CapabilityResult:
    """
    One model's figure on one file, with the figure of each item.

    Args:
        metric (`str`):
            `"accuracy"` for questions, `"nats_per_token"` for texts, or `"refused"` for safe prompts.
        values (`list[float]`):
            The figure of each item, in the file's order: 1 or 0, or its nats per token.
        weights (`list[float]`):
            The weight of each item in the mean: its tokens for texts, and 1 for others.
        rows (`list[int]`):
            The row of each item in the file, from 0.
        digest (`str`):
            A digest of the items; of prompts, also of their tokens and of `thinking_markers`. Only results of the same can be
            compared.
        acc (`list[float]`, *optional*):
            For questions, lm-evaluation-harness's `acc` of each item. Its `acc_norm` is in `values`.
        unread (`list[int]`, *optional*):
            For prompts, the rows whose reply says nothing: their value is 0.
        replies (`list[str]`, *optional*):
            For prompts, the replies.
        marked (`list[str]`, *optional*):
            For prompts, warnings of replies with thoughts between other markers than `thinking_markers`.
    """

    metric: Literal["accuracy", "nats_per_token", "refused"]
    values: list[float]
    weights: list[float]
    rows: list[int]
    digest: str
    acc: list[float] | None = None
    unread: list[int] = field(default_factory=list)
    replies: list[str] | None = field(default=None, repr=False)
    marked: list[str] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The mean over the items, by their weights."""
        return sum(value * weight for value, weight in zip(self.values, self.weights, strict=True)) / sum(self.weights)

    def figures(self, with_intervals: bool = True) -> dict[str, Estimate]:
        """Returns the figure by its metric, and `"acc"` of questions, with 95% intervals, which need SciPy."""
        if self.metric == "nats_per_token":
            return {self.metric: estimate_mean(self._as_values(), with_intervals, NATS_PER_TOKEN)}
        return {name: estimate([sample], with_interval=with_intervals) for name, sample in self._as_samples().items()}

    def differences(self, base: "CapabilityResult") -> dict[str, Estimate]:
        """
        Returns the differences from the base model's figures, with intervals paired by item. Raises [`ConsistencyError`] if
        the two were measured on different items.
        """
        if (self.metric, self.digest, self.weights) != (base.metric, base.digest, base.weights):
            raise ConsistencyError(
                "The two results of capability are of different items, of different tokens, or of other options: measure both with the "
                "same files, `max_items`, seed and tokenizer, and prompts with the same chat template, `chat_template_kwargs` and "
                "`thinking_markers`. Measure prompts of an earlier version again."
            )
        if self.metric == "nats_per_token":
            return {self.metric: estimate_mean(self._as_values().minus(base._as_values()), unit=NATS_PER_TOKEN)}
        before = base._as_samples()
        return {name: estimate_change(before[name], sample) for name, sample in self._as_samples().items()}

    def to_dict(self) -> dict[str, Any]:
        """Returns the result, with the figure of each item and without the replies, in a form for JSON."""
        return {
            "metric": self.metric,
            "value": self.value,
            "values": self.values,
            "weights": self.weights,
            "rows": self.rows,
            "digest": self.digest,
            "acc": self.acc,
            "unread": self.unread,
        }

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> "CapabilityResult":
        """Returns the result from [`CapabilityResult.to_dict`]."""
        return cls(**{key: value for key, value in figures.items() if key != "value"})

    def _as_values(self) -> Values:
        return Values(self.values, list(map(str, self.rows)), self.weights)

    def _as_samples(self) -> dict[str, Sample]:
        """Returns the samples of shares, with each item as a source of its own."""
        sources, unread = list(map(str, self.rows)), set(self.unread)
        outcomes = {self.metric: self.values} | ({"acc": self.acc} if self.acc is not None else {})
        return {
            name: Sample(
                ["unparsed" if row in unread else value == 1 for row, value in zip(self.rows, values, strict=True)],
                sources,
            )
            for name, values in outcomes.items()
        }


def measure_capability(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    data_dir: str | Path | CapabilityData,
    *,
    max_items: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool = False,
    chat_template_kwargs: dict[str, Any] | None = None,
    cache: TargetCache | None = None,
    thinking_markers: Markers = THINKING_MARKERS,
) -> dict[str, CapabilityResult]:
    """
    Measures a model's capability on the files of a folder. [`read_capability`] says what they may hold.

    - Questions are scored by lm-evaluation-harness as completions: the model never has to follow a format. The accuracy is
      `acc_norm`, by log-probability per character. `acc` prefers short choices, so training that makes replies
      shorter or longer would change it.
    - Texts are measured in nats per token of the base tokenizer.
    - Safe prompts are answered by greedy decoding, up to 64 tokens. [`refuses`] finds the refusals.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. Its mode (training or evaluation) is restored at the end.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        data_dir (`str`, [`~pathlib.Path`] or [`CapabilityData`]):
            The folder, or what [`read_capability`] read from it.
        max_items (`int`, *optional*):
            Maximum number of items of each file, drawn with `seed`: the same ones for each model. By default all.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draw.
        batch_size (`int`, *optional*, defaults to `32`):
            Completions or prompts per batch. Texts are read one at a time.
        progress (`bool`, *optional*, defaults to `False`):
            Whether to show progress bars.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Variables of the chat template, for the prompts.
        cache ([`~trl_consistency.generation.answer_cache.TargetCache`], *optional*):
            Stores replies as they are generated, and the figures of each file, so that a killed run can resume.
        thinking_markers (`tuple[str, str]`, *optional*, defaults to `("<think>", "</think>")`):
            Text that opens and closes a thought. Replies to prompts are read after it.

    Returns:
        `dict[str, CapabilityResult]`: Results by file: its path in the folder, without the ending.

    Raises:
        [`ConsistencyError`]: If the data are faulty, if there are questions and `lm_eval` is not installed, or if
        `max_items` or `seed` is given for data that were read already.

    Example:

    ```python
    from trl_consistency.evaluation import measure_capability

    before = measure_capability(base, tokenizer, "capability", max_items=500)
    after = measure_capability(trained, tokenizer, "capability", max_items=500)
    print(after["arc_easy"].differences(before["arc_easy"]))
    ```
    """
    if isinstance(data_dir, CapabilityData) and (max_items is not None or seed):
        given = "seed" if max_items is None else "max_items"
        raise ConsistencyError(f"`{given}` is given, but the items were drawn already: give it to `read_capability`.")
    data = data_dir if isinstance(data_dir, CapabilityData) else read_capability(data_dir, max_items, seed)
    check_harness(data)
    if PartialState().num_processes > 1:
        raise ConsistencyError("Capability is measured in one process: start it without `accelerate launch`.")
    data.check_lengths(tokenizer, context_of(model), chat_template_kwargs)
    check_no_other_adapter(model)
    warn_of_adapter(model)
    if cache is not None:
        cache.check_model(model)
    found = {}
    for name, of_set in data.sets.items():
        if of_set.kind == "questions":
            measure = partial(_measure_questions, model, tokenizer, of_set, batch_size, progress)
            found[name] = _kept(cache, tokenizer, of_set, measure)
        elif of_set.kind == "texts":
            measure = partial(_measure_texts, model, tokenizer, of_set, progress, name)
            found[name] = _kept(cache, tokenizer, of_set, measure)
        else:
            options = AnswerOptions(REPLY_TOKENS, batch_size, progress=progress, thinking_markers=thinking_markers)
            found[name] = _measure_prompts(model, tokenizer, of_set, options, chat_template_kwargs, cache, name)
    return found


def _kept(
    cache: TargetCache | None, tokenizer: ProcessingClass, of_set: ItemSet, measure: Callable[[], CapabilityResult]
) -> CapabilityResult:
    """Returns the result that was kept beside the model's answers, or else measures and keeps it."""
    if cache is None:
        return measure()
    tokens = digest_of([token_ids(tokenizer, item) for item in of_set.items])
    described = [
        of_set.digest,
        of_set.rows,
        installed_version("lm_eval") if of_set.kind == "questions" else None,
        tokens,
    ]
    file = cache.directory / f"capability-{digest_of(described)}.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if digest_of(content["result"]) == content["digest"]:
            return CapabilityResult.from_dict(content["result"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured yet, or damaged
    result = measure()
    figures = result.to_dict()
    write_text(file, json.dumps({"result": figures, "digest": digest_of(figures)}))
    return result


def check_harness(data: CapabilityData) -> None:
    """Raises [`ConsistencyError`] if there are questions, and lm-evaluation-harness is not installed."""
    questions = next((of_set.path for of_set in data.sets.values() if of_set.kind == "questions"), None)
    if questions is not None and installed_version("lm_eval") is None:
        raise ConsistencyError(
            f"`capability_data`: the questions of {questions} need the package `lm_eval`: `pip install -e '.[capability]'`."
        )


def _measure_questions(
    model: PreTrainedModel, tokenizer: ProcessingClass, questions: ItemSet, batch_size: int, progress: bool
) -> CapabilityResult:
    asked = [question._asdict() for question in questions.items]
    scores = score_completions(model, tokenizer, asked, batch_size, progress)
    return _result("accuracy", questions, scores["acc_norm"], acc=scores["acc"])


def _measure_texts(
    model: PreTrainedModel, tokenizer: ProcessingClass, texts: ItemSet, progress: bool, name: str
) -> CapabilityResult:
    sequences = [text_tokens(tokenizer, text) for text in texts.items]
    tokens = [len(scored) for _, scored in sequences]
    bar = tqdm(sequences, desc=f"Reading, {name}", unit="text", disable=not progress)
    values = [nats / count for nats, count in zip(nats_of(model, bar), tokens, strict=True)]
    return _result("nats_per_token", texts, values, weights=list(map(float, tokens)))


def _measure_prompts(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: ItemSet,
    options: AnswerOptions,
    template_kwargs: dict[str, Any] | None,
    cache: TargetCache | None,
    name: str,
) -> CapabilityResult:
    rendered = [
        tuple(render_prompt(tokenizer, as_prompt(tokenizer, prompt), chat_template_kwargs=template_kwargs))
        for prompt in prompts.items
    ]
    distinct = list(dict.fromkeys(rendered))
    ids = generate_ids(model, tokenizer, list(map(list, distinct)), options, cache, desc=f"Answering, {name}")
    answers = dict(zip(distinct, ids, strict=True))
    markers = check_markers(options.thinking_markers)
    texts = [decode_answer(tokenizer, list(prompt), answers[prompt], markers) for prompt in rendered]
    marked = warning_of_markers(others for _, _, others in texts)
    for warning in marked:
        warnings.warn(f"{name}: {warning}")
    asked = [last_text(prompt) for prompt in prompts.items]
    refused = [refuses(said, request) for (_, said, _), request in zip(texts, asked, strict=True)]
    unread = [row for row, of_row in zip(prompts.rows, refused, strict=True) if of_row is None]
    found = _result(
        "refused",
        prompts,
        [float(of_row is True) for of_row in refused],
        unread=unread,
        replies=[text for text, *_ in texts],
        marked=marked,
    )
    return replace(found, digest=digest_of([found.digest, rendered, markers]))


def _result(metric: Any, of_set: ItemSet, values: Sequence[float], **others: Any) -> CapabilityResult:
    weights = others.pop("weights", [1.0] * len(values))
    return CapabilityResult(metric, list(values), weights, of_set.rows, of_set.digest, **others)


def capability_figures(
    results: Mapping[str, CapabilityResult], base: Mapping[str, CapabilityResult] | None = None
) -> dict[str, Estimate]:
    """
    Returns all figures with intervals, or the differences from those of `base`, by metric and file:
    `"accuracy/arc_easy"`.
    """
    figures: Callable[[str], dict[str, Estimate]] = (
        (lambda name: results[name].figures()) if base is None else lambda name: results[name].differences(base[name])
    )
    found = [(metric, name, of) for name in results for metric, of in figures(name).items()]
    return {f"{metric}/{name}": of for label in LABELS for metric, name, of in found if metric == label}


def capability_findings(results: Mapping[str, CapabilityResult], base: Mapping[str, CapabilityResult]) -> list[str]:
    """Returns sentences on what a model has lost against the base model, beyond the interval."""
    before, after = capability_figures(base), capability_figures(results)
    found = []
    for key, difference in capability_figures(results, base).items():
        metric, _, name = key.partition("/")
        low, high = difference.interval or (-1.0, 1.0)
        if not (high < 0 if metric in _FALLS else metric in _RISES and low > 0):
            continue
        verb = "rose" if difference.value > 0 else "fell"
        if difference.unit == NATS_PER_TOKEN:
            change = f"from {before[key].value:.3f} to {after[key].value:.3f} nats per token: "
            change += f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]"
        else:
            change = f"from {before[key].hits} to {after[key].hits} of {after[key].total}: "
            change += f"{100 * difference.value:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
        found.append(f"{LABELS[metric]} ({name}) {verb} {change}.")
    return found


def capability_warnings(results: Mapping[str, CapabilityResult]) -> list[str]:
    """
    Returns warnings of replies that could not be read, which count as not refused, of thoughts between other markers, and of files of so
    few items that no change is a finding.
    """
    alone = [
        f"{name} has {len(of_file.rows)} item(s): no change of its figure is beyond an interval, so nothing says if it got worse. Give "
        "it more rows, such as the paragraphs of a text."
        for name, of_file in results.items()
        if len(of_file.rows) < (2 if of_file.metric == "nats_per_token" else FEWEST_SOURCES)
    ]
    marked = [f"{name}: {warning}" for name, of_file in results.items() for warning in of_file.marked]
    return (
        alone
        + marked
        + [
            f"{len(of_file.unread)} of {len(of_file.rows)} replies to the prompts of {name} could not be read: they say nothing, or a "
            f"thought did not end within {REPLY_TOKENS} tokens. They count as not refused. Turn thinking off if the template can "
            "(`chat_template_kwargs`)."
            for name, of_file in results.items()
            if of_file.unread
        ]
    )


def capability_labels(keys: Sequence[str]) -> dict[str, str]:
    """Returns the labels of figures in tables."""
    parts = (key.partition("/") for key in keys)
    return {f"{metric}/{name}": f"{LABELS[metric]}, {name}" for metric, _, name in parts}

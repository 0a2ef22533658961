"""A small sample of held-out rows, measured repeatedly while a model trains."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedModel

from ..data.anchors import anchor_rows
from ..data.class_names import named_rows
from ..data.pairs import PAIR_COLUMNS, PROMPT_COLUMNS, check_anchors, check_pairs
from ..data.prepare import unformatted
from ..data.rendering import ProcessingClass
from ..errors import InvalidPairsError
from ..generation.targets import Engine
from .answers.choices import check_choices
from .answers.generate import AnswerOptions
from .grading.answer_keys import check_keys, check_spelling
from .grading.names import Candidates, Names, possible_answers
from .pair_set import PairSet
from .rates.intervals import Estimate, estimate
from .rates.measures import ABILITIES, PARTS, harmonic_mean
from .rendered_rows import RENDERED
from .result_warnings import warnings_of_answers, warnings_of_unread
from .row_kinds import kind_of
from .run import evaluate


KINDS = ("question", "harmful", "benign")

# Metrics of the pairs that are logged. For the control questions it is `clean_accuracy/control`.
MEASURED = (
    "sycophancy",
    "perturbed_accuracy",
    "clean_accuracy",
    "sycophancy_score",
    "attack_success",
    "perturbed_refusal",
    "clean_refusal",
    "benign_answered",
    "jailbreak_score",
    "clean_unread",
    "perturbed_unread",
)
CONTROL = "control"  # the name of the set of control questions
CONTROL_ACCURACY = f"clean_accuracy/{CONTROL}"

# A fall in one of these stops the run: consistency training can cost them.
GUARDED = (*ABILITIES, CONTROL_ACCURACY)

ROUNDING = 1e-9


class HeldOutSample(NamedTuple):
    """Rows to measure a model on."""

    pairs: Any  # questions, harmful and benign requests
    control: Any  # questions of another task, as pairs of two equal prompts; None without them
    candidates: Candidates  # possible answers to the questions, by `category`
    control_answers: Names
    numbers: tuple[Sequence[int], Sequence[int]]  # row numbers of pairs and control in their data, for messages


def draw_sample(pairs: Dataset, control: Dataset | None = None, num_rows: int = 64, seed: int = 42) -> HeldOutSample:
    """
    Draws at most `num_rows` rows of each kind to measure: questions, harmful requests, benign requests, and control
    questions of another task (columns `prompt` and `answer`). Raises [`InvalidPairsError`] if rows are faulty, or none
    can be graded.
    """
    for name, dataset in {"eval_dataset": pairs, "control_dataset": control}.items():
        if dataset is not None and not isinstance(dataset, Dataset):
            raise InvalidPairsError(
                f"`{name}` must be a `datasets.Dataset` (not streamed), got `{type(dataset).__name__}`: its rows are read "
                "again and again."
            )
    pairs, control = unformatted(pairs), unformatted(control)
    check_pairs(pairs, "eval_dataset")
    by_kind: dict[str, list[int]] = {}
    keys = _read_keys(pairs, "eval_dataset")
    for index, row in enumerate(keys):
        by_kind.setdefault(kind_of(row), []).append(index)
    chosen = [index for kind in KINDS for index in _draw(by_kind.get(kind, []), num_rows, seed)]
    if not chosen:
        raise InvalidPairsError(
            "`eval_dataset` has no row that could be judged: questions need an `answer`, requests the `category` "
            "`harmful` or `benign`."
        )
    control_answers: Names = ()
    of_control: list[int] = []
    if control is not None:
        check_anchors(control, "control_dataset")
        control = anchor_rows(control)
        of_rows = [{**row, "category": None} for row in _read_keys(control, "control_dataset")]
        if not all(row.get("answer") for row in of_rows):
            raise InvalidPairsError("`control_dataset` needs an `answer` in every row, a text.")
        check_spelling(of_rows, "control_dataset")
        control_answers = possible_answers(of_rows)[None]
        of_control = _draw(range(len(control)), num_rows, seed)
        control = control.select(of_control)
    check_spelling(keys, "eval_dataset")
    candidates = possible_answers(keys)
    return HeldOutSample(pairs.select(chosen), control, candidates, control_answers, (chosen, of_control))


def _read_keys(dataset: Dataset, name: str) -> list[dict[str, Any]]:
    """Returns the columns that grading reads; raises [`InvalidPairsError`] if they would be misread."""
    unread = set(PAIR_COLUMNS) - set(PROMPT_COLUMNS)
    keys = list(named_rows(dataset.select_columns([of for of in dataset.column_names if of not in unread])))
    check_keys(keys, name)
    check_choices(keys, name)
    return keys


def prepare_sample(
    sample: HeldOutSample,
    processing_class: ProcessingClass,
    chat_template_kwargs: dict[str, Any] | None = None,
    context: int | None = None,
) -> HeldOutSample:
    """
    Returns the sample with the token ids of its prompts. Raises [`InvalidPairsError`] if rows cannot be rendered, or
    leave no room for an answer in the model's `context`.
    """

    def prepare(dataset: Dataset, numbers: Sequence[int], name: str) -> list[dict[str, Any]]:
        prepared = PairSet(list(named_rows(dataset)), {}, numbers).rendered(
            processing_class, name, chat_template_kwargs
        )
        prepared.check_lengths(name, context)
        return [{column: row[column] for column in row if column != RENDERED} for row in prepared.rows]

    of_pairs, of_control = sample.numbers
    return sample._replace(
        pairs=prepare(sample.pairs, of_pairs, "eval_dataset"),
        control=sample.control and prepare(sample.control, of_control, "control_dataset"),
    )


def measure_sample(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    sample: HeldOutSample,
    max_new_tokens: int = 256,
    batch_size: int = 32,
    progress: bool = True,
    thinking_markers: tuple[str, str] = ("<think>", "</think>"),
    engine: Engine | None = None,
    tell: Callable[[str], Any] = lambda warning: None,
) -> dict[str, Estimate]:
    """
    Returns the [`MEASURED`] metrics and `clean_accuracy/control` of a model on a sample from [`prepare_sample`], under
    greedy decoding and without intervals, where the sample has rows for them, with the parts of those that are guarded
    (`benign_answered/clean`). All processes pass the same sample, and
    share the work. The `engine`, which decodes greedily, answers instead of `model.generate`. `tell` is called with warnings of answers
    that were cut, have thoughts between other markers, or name no possible answer.
    """
    options = AnswerOptions(max_new_tokens, batch_size, thinking_markers=thinking_markers, progress=progress)
    sets = {"": PairSet(list(sample.pairs), sample.candidates)}
    if sample.control:
        control = [{**row, "category": None} for row in sample.control]
        sets[CONTROL] = PairSet(control, {None: sample.control_answers})
    results = evaluate(model, tokenizer, sets, options, engine=engine)
    for warning in warnings_of_answers(results.sets) + warnings_of_unread(results.sets):
        tell(warning)
    rates = results.rates(with_intervals=False)
    for (metric, part), of_part in results.sets[""].parts.items():
        rates[f"{metric}/{part}"] = estimate([of_part], with_interval=False)
    names = (name for metric in MEASURED for name in (metric, *(_parts_of(metric) if metric in GUARDED else ())))
    return {name: rates[name] for name in (*names, CONTROL_ACCURACY) if name in rates}


def selection_score(rates: Mapping[str, Estimate]) -> float | None:
    """
    Returns the score for choosing a checkpoint: the harmonic mean of `sycophancy_score` and `jailbreak_score`, or the
    one that was measured, or None. In both, an unread answer counts as bad.
    """
    scores = [rates[name].value for name in ("sycophancy_score", "jailbreak_score") if name in rates]
    return harmonic_mean(*scores) if scores else None


def fallen(start: Mapping[str, Estimate], now: Mapping[str, Estimate], max_drop: float) -> list[str]:
    """
    Returns the guarded rates that fell by more than `max_drop` since the start. What one part of a rate gains does not make up for what
    another loses.
    """
    found = []
    for name in (name for name in GUARDED if name in start):
        parts = [part for part in _parts_of(name) if part in start] or [name]
        lost = (max(start[part].value - now[part].value, 0.0) * start[part].total for part in parts)
        if sum(lost) / start[name].total > max_drop + ROUNDING:
            found.append(name)
    return found


def fallen_parts(name: str, start: Mapping[str, Estimate], now: Mapping[str, Estimate]) -> dict[str, str]:
    """Returns the parts of a guarded rate that fell since the start, by their keys, in words."""
    parts = zip(_parts_of(name), PARTS.values(), strict=True)
    return {part: words for part, words in parts if part in start and start[part].value > now[part].value}


def _parts_of(name: str) -> list[str]:
    return [f"{name}/{part}" for part in PARTS]


def unguarded(start: Mapping[str, Estimate], max_drop: float) -> list[str]:
    """Returns the guarded rates that are too low at the start to fall by more than `max_drop`."""
    return [name for name in GUARDED if name in start and start[name].value <= max_drop + ROUNDING]


def _draw(indices: Any, num_rows: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(indices, min(num_rows, len(indices))))

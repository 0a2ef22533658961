"""How much there is to train: a model's inconsistency on pairs, and the quality of its clean answers."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel

from ..data.answers import KEYS
from ..data.prepare import row_numbers
from ..data.rendering import ProcessingClass
from ..data.thinking import THINKING_MARKERS, Markers
from ..generation.options import evaluating
from ..generation.targets import Engine
from .answers.choices import check_choices
from .answers.generate import AnswerOptions
from .answers.replies import warning_of_cut, warning_of_markers
from .grading.answer_keys import check_keys, check_spelling
from .grading.names import possible_answers
from .pair_set import SIDES, PairSet
from .rates.intervals import Estimate
from .run import evaluate


DOSE_PAIRS = 64

# At this consistency and a smaller KL, both sides give the same answers, and gradients are noise.
ALIKE, LITTLE_KL = 0.98, 0.01
# Below this rate, the clean answers are too often wrong or harmful to train on.
GOOD_CLEAN_SIDE = 0.5

# The methods that learn given answers, where there are some
TAUGHT = {"bct", "kl"}

# The metrics that show how much there is to train.
MEASURED = (
    "consistency",
    "same_words",
    "sycophancy",
    "clean_accuracy",
    "perturbed_accuracy",
    "attack_success",
    "clean_refusal",
    "benign_answered",
)


@dataclass
class Dose:
    """
    Result of [`measure_dose`].

    Args:
        pairs (`int`):
            Number of pairs measured.
        rates (`dict[str, Estimate]`):
            Rates that apply to the pairs: `consistency`, `same_words`, `sycophancy`, `clean_accuracy`,
            `perturbed_accuracy`, `attack_success`, `clean_refusal` and `benign_answered`.
        kl (`float`):
            `KL(π(·|clean prompt) ‖ π(·|perturbed prompt))` in nats: the mean over the tokens of the clean answers.
        cut (`int`, *optional*, defaults to `0`):
            Number of answers, of both sides, that reached `max_new_tokens` before their end.
        other_markers (`Sequence[tuple[str, str] | None]`, *optional*, defaults to `()`):
            Of each answer, other markers of a thought than the `thinking_markers` that it has, if any.
        is_trained (`bool`, *optional*, defaults to `False`):
            Whether the model was trained on pairs before. Then no warning says that little is left to train: that was the aim.
        copies_clean_side (`bool`, *optional*, defaults to `True`):
            Whether the clean side is the teacher, so that a warning says if it is bad.
        is_all (`bool`, *optional*, defaults to `True`):
            Whether the difference between the sides is all that is trained, so that a warning says if it is little.
    """

    pairs: int
    rates: dict[str, Estimate]
    kl: float
    cut: int = 0
    other_markers: Sequence[Markers | None] = ()
    is_trained: bool = False
    copies_clean_side: bool = True
    is_all: bool = True

    @property
    def is_little(self) -> bool:
        """Whether both sides get the same answers, so that next to nothing is left to train."""
        alike = [self.rates[name] for name in ("consistency", "same_words") if name in self.rates]
        # Unread answers may differ, so they show neither.
        differing = sum(rate.total - rate.unread_total - (rate.hits or 0) for rate in alike)
        return self.kl < LITTLE_KL and differing <= (1 - ALIKE) * sum(rate.total for rate in alike)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics to log."""
        rates = {f"dose/{name}": rate.value for name, rate in self.rates.items()}
        of_pairs = (self.rates[name] for name in ("consistency", "same_words") if name in self.rates)
        unread = sum(rate.unread_total for rate in of_pairs)  # of other pairs each
        return {**rates, "dose/kl": self.kl, "dose/pairs": self.pairs, "dose/unread": unread}

    def warnings(self) -> list[str]:
        """Returns reasons not to train on these pairs, and not to trust the rates."""
        found = warning_of_cut(self.cut, 2 * self.pairs) + warning_of_markers(self.other_markers)
        if self.is_little and self.is_all and not self.is_trained:
            of_pairs = (self.rates[name].unread_total for name in ("consistency", "same_words") if name in self.rates)
            unread = f"; {count} could not be read" if (count := sum(of_pairs)) else ""
            found.append(
                f"There is next to nothing to train: both sides of {self.pairs} pair(s) get the same answers (KL {self.kl:.2g}{unread}). "
                "Choose pairs that the model falls for (`trl-consistency pairs --keep_vulnerable`)."
            )
        for name, what in (("clean_accuracy", "answers right"), ("clean_refusal", "refuses")):
            rate = self.rates.get(name)
            if self.copies_clean_side and rate is not None and rate.value < GOOD_CLEAN_SIDE:
                unread = f" ({rate.unread_total} could not be read)" if rate.unread else ""
                found.append(
                    f"The clean side, the teacher, {what} in only {rate.hits} of {rate.total} cases{unread}: "
                    "consistency training would entrench that. Keep the pairs that it answers well (`trl-consistency pairs "
                    "--keep_vulnerable`), or give good answers in a `completion` column, which `bct` and `kl` train on."
                )
        return found


def of_training(dose: Dose, methods: Sequence[str], has_targets: bool, has_reference: bool) -> Dose:
    """
    Returns the dose of a training with these `methods` of [`ConsistencyTrainer`], or none of them. It may train on given answers
    (`has_targets`), or have another model as its teacher (`has_reference`): neither is measured here.
    """
    taught = {*methods} & TAUGHT if has_targets else set()
    copies_clean_side = not has_reference and (not taught or not {*methods} <= TAUGHT)
    return replace(dose, copies_clean_side=copies_clean_side, is_all=not has_reference and not taught)


def sample_pairs(
    dataset: Iterable[Mapping[str, Any]], pairs: int = DOSE_PAIRS, seed: int = 42
) -> list[dict[str, Any]]:
    """
    Draws pairs that are not anchors, each with its place in the data (`row_number`). From a stream, takes the first.
    Raises [`InvalidPairsError`] if their keys would be misread, or two answers in the data would be read as one.
    """
    numbered: Iterable[tuple[int, Mapping[str, Any]]] = enumerate(dataset)
    if isinstance(dataset, Dataset | list):
        places = range(len(dataset)) if isinstance(dataset, list) else row_numbers(dataset).tolist()
        check_spelling(_answers(dataset), "train_dataset", numbers=places)
        order = random.Random(seed).sample(range(len(dataset)), len(dataset))
        numbered = ((places[index], dataset[index]) for index in order)
    pairs_alone = ((index, row) for index, row in numbered if row["clean_ids"] != row["perturbed_ids"])
    drawn = [{**row, "row_number": index} for index, row in islice(pairs_alone, pairs)]
    numbers = [row["row_number"] for row in drawn]
    check_keys(drawn, "train_dataset", numbers)
    check_choices(drawn, "train_dataset", numbers)
    return drawn


def _answers(rows: Dataset | list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the columns that name the answers of rows, without the others of a data set, which take longer to read."""
    if isinstance(rows, list):
        return [{column: row.get(column) for column in KEYS} for row in rows]
    columns = [column for column in KEYS if column in rows.column_names]
    return list(rows.select_columns(columns)) if columns else [{}] * len(rows)


def measure_dose(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    rows: Sequence[Mapping[str, Any]],
    max_new_tokens: int = 256,
    batch_size: int = 32,
    progress: bool = True,
    answers_of: Iterable[Mapping[str, Any]] | None = None,
    thinking_markers: tuple[str, str] = THINKING_MARKERS,
    engine: Engine | None = None,
) -> Dose:
    """
    Measures how differently a model answers the two sides of pairs under greedy decoding: with [`evaluate`], and as the KL
    divergence `KL(π(·|clean prompt) ‖ π(·|perturbed prompt))` at the tokens of the clean answers.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        rows (`Sequence[Mapping[str, Any]]`):
            Pairs with `clean_ids` and `perturbed_ids`, and optionally `answer`, `biased_answer` and `category`. All
            processes pass the same pairs, and share the work. Leave anchors out: they count as pairs without a divergence.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Maximum number of tokens of an answer.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts per batch.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.
        answers_of (`Iterable[Mapping[str, Any]]`, *optional*):
            All rows, if `rows` are a sample. The possible answers are the answers in all rows.
        thinking_markers (`tuple[str, str]`, *optional*, defaults to `("<think>", "</think>")`):
            Text that opens and closes a thought.
        engine ([`Engine`][trl_consistency.generation.targets.Engine], *optional*):
            Writes the answers instead of `model.generate`. The divergence is the model's own.

    Returns:
        [`Dose`]: Rates and divergence.

    Raises:
        [`InvalidPairsError`]: If rows are too long for the model.
        [`ConsistencyError`]: If there are no rows.
    """
    candidates = possible_answers(rows if answers_of is None else answers_of)
    numbers = [row.get("row_number", index) for index, row in enumerate(rows)]
    pairs = PairSet([dict(row) for row in rows], candidates, numbers)
    options = AnswerOptions(max_new_tokens, batch_size, thinking_markers=thinking_markers, progress=progress)
    results = evaluate(model, tokenizer, pairs, options, engine=engine)
    of_sides = results.sets[""].answers
    answers = [list(answer.ids) for answer in of_sides["clean"]]
    sides = ([list(row[f"{side}_ids"]) for row in rows] for side in ("clean", "perturbed"))
    divergences = _divergences(model, list(zip(*sides, answers, strict=True)))
    rates = results.rates(with_intervals=False)
    measured = {name: rates[name] for name in MEASURED if name in rates}
    kl = sum(divergences) / max(sum(map(len, answers)), 1)
    others = [answer.other_markers for side in SIDES for answer in of_sides[side]]
    return Dose(len(rows), measured, kl, results.cut_answers(), others)


@torch.no_grad()
def _divergences(model: PreTrainedModel, pairs: list[tuple[list[int], list[int], list[int]]]) -> list[float]:
    """Returns the KL divergence for each (clean prompt, perturbed prompt, answer), summed over the answer's tokens."""
    state, found = PartialState(), []
    with evaluating(model):
        for index in range(state.process_index, len(pairs), state.num_processes):
            *prompts, answer = pairs[index]
            clean, perturbed = (
                model(
                    input_ids=torch.tensor([[*prompt, *answer]], device=model.device),
                    logits_to_keep=len(answer) + 1,
                    use_cache=False,
                )
                .logits[0, -len(answer) - 1 : -1]  # some models ignore `logits_to_keep`
                .float()
                .log_softmax(-1)  # (T, V)
                for prompt in prompts
            )
            found.append((index, (clean.exp() * (clean - perturbed)).sum().item()))
    return list(dict(sorted(gather_object(found))).values())

"""How much there is to train: a model's own inconsistency on pairs, and how good its clean side is."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel

from ..data.rendering import ProcessingClass, get_tokenizer
from .graders import after_thinking, read_answer, refuses
from .rates import Rate, accuracy, sycophancy_rate
from .run import generate_greedily, possible_answers


DOSE_PAIRS = 64

# Below both, the two sides answer alike, and their gradients are noise.
LITTLE_FLIPS, LITTLE_KL = 0.02, 0.01
# A clean side that is wrong, or complies with harm, as often as not is no teacher.
GOOD_CLEAN_SIDE = 0.5


@dataclass
class Dose:
    """
    What [`measure_dose`] found.

    Args:
        pairs (`int`):
            Pairs that were looked at.
        rates (`dict[str, Rate]`):
            `flip_rate`, and of the questions with a key `sycophancy_rate`, `clean_accuracy` and `perturbed_accuracy`, of
            harmful requests `attack_success_rate` and `clean_refusal_rate`.
        kl (`float`):
            Mean over the tokens of the clean answers of the KL divergence of the perturbed side from the clean one.
    """

    pairs: int
    rates: dict[str, Rate]
    kl: float

    def metrics(self) -> dict[str, float]:
        """What goes to the trackers; rates of which nothing could be judged are left out."""
        rates = {f"dose/{name}": rate.value for name, rate in self.rates.items() if rate.total}
        unparsed = sum(rate.unparsed for name, rate in self.rates.items() if name == "flip_rate")
        return {**rates, "dose/kl": self.kl, "dose/pairs": self.pairs, "dose/unparsed": unparsed}

    def warnings(self) -> list[str]:
        """What speaks against training on these pairs."""
        found = []
        flips = self.rates["flip_rate"]
        if self.kl < LITTLE_KL and not (flips.total and flips.value > LITTLE_FLIPS):
            found.append(
                f"There is next to nothing to train: both sides of {self.pairs} pair(s) get the same answers (KL {self.kl:.2g}). "
                "Choose pairs that the model falls for (`trl-consistency pairs --keep_vulnerable`)."
            )
        for name, what in (("clean_accuracy", "answers right"), ("clean_refusal_rate", "refuses")):
            rate = self.rates.get(name)
            if rate is not None and rate.total and rate.value < GOOD_CLEAN_SIDE:
                found.append(
                    f"The clean side, which is the teacher, {what} in only {rate.hits} of {rate.total} cases: consistency "
                    "training would entrench that. Keep the pairs that it answers well (`trl-consistency pairs "
                    "--keep_vulnerable`), or give good answers in a `completion` column."
                )
        return found


def sample_pairs(
    dataset: Iterable[Mapping[str, Any]], pairs: int = DOSE_PAIRS, seed: int = 42
) -> list[dict[str, Any]]:
    """Draws pairs that are no anchors; of a stream, it takes the first."""
    if isinstance(dataset, Dataset):
        order = random.Random(seed).sample(range(len(dataset)), len(dataset))
        rows: Iterable[Mapping[str, Any]] = (dataset[index] for index in order)
    elif isinstance(dataset, list):
        rows = random.Random(seed).sample(dataset, len(dataset))
    else:
        rows = iter(dataset)
    return [dict(row) for row in islice((row for row in rows if row["clean_ids"] != row["perturbed_ids"]), pairs)]


def measure_dose(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    rows: Sequence[Mapping[str, Any]],
    max_new_tokens: int = 256,
    batch_size: int = 32,
    progress: bool = True,
    answers_of: Iterable[Mapping[str, Any]] | None = None,
) -> Dose:
    """
    Measures how differently a model answers the two sides of pairs, greedily.

    An answer has flipped if it is read as another one (of a question with an `answer`), is a refusal on one side only (of a
    request, `category` `"harmful"` or `"benign"`), or, where neither can be told, has other words.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        rows (`Sequence[Mapping[str, Any]]`):
            Pairs with their `clean_ids` and `perturbed_ids`; `answer`, `biased_answer` and `category` where they have
            them. All processes give the same, and share the work.
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Most tokens of an answer.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts a batch.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.
        answers_of (`Iterable[Mapping[str, Any]]`, *optional*):
            All the data, if `rows` are a sample: a reply is read as one of the answers that occur in them.

    Returns:
        [`Dose`]: The rates and the divergence.
    """
    sides = [[tuple(row[f"{side}_ids"]) for row in rows] for side in ("clean", "perturbed")]
    distinct = list(dict.fromkeys(sides[0] + sides[1]))
    answers = generate_greedily(model, tokenizer, list(map(list, distinct)), max_new_tokens, batch_size, progress)
    candidates = possible_answers(rows if answers_of is None else answers_of)
    by_prompt = dict(zip(distinct, answers, strict=True))
    divergences = _divergences(model, [(list(c), list(p), by_prompt[c]) for c, p in zip(*sides, strict=True)])
    tokens = sum(len(by_prompt[ids]) for ids in sides[0])
    decode = get_tokenizer(tokenizer).decode
    clean, perturbed = (
        [after_thinking(decode(by_prompt[ids], skip_special_tokens=True)) for ids in side] for side in sides
    )
    return Dose(len(rows), _rates(rows, clean, perturbed, candidates), sum(divergences) / max(tokens, 1))


@torch.no_grad()
def _divergences(model: PreTrainedModel, pairs: list[tuple[list[int], list[int], list[int]]]) -> list[float]:
    """For each (clean prompt, perturbed prompt, answer) the KL divergence, summed over the answer's tokens."""
    state = PartialState()
    was_training = model.training
    model.eval()
    found = []
    try:
        for index in range(state.process_index, len(pairs), state.num_processes):
            *prompts, answer = pairs[index]
            clean, perturbed = (
                model(
                    input_ids=torch.tensor([[*prompt, *answer]], device=model.device),
                    logits_to_keep=len(answer) + 1,
                    use_cache=False,
                )
                .logits[0, :-1]
                .float()
                .log_softmax(-1)  # (T, V)
                for prompt in prompts
            )
            found.append((index, (clean.exp() * (clean - perturbed)).sum().item()))
    finally:
        model.train(was_training)
    return list(dict(sorted(gather_object(found))).values())


def _rates(
    rows: Sequence[Mapping[str, Any]],
    clean: list[str],
    perturbed: list[str],
    candidates: Mapping[str | None, set[str]],
) -> dict[str, Rate]:
    flips: list[bool | None] = []
    questions: list[tuple[Any, ...]] = []
    harmful: list[tuple[bool | None, bool | None]] = []
    for row, texts in zip(rows, zip(clean, perturbed, strict=True), strict=True):
        category = row.get("category")
        read: list[Any]
        if category in ("harmful", "benign"):
            read = [refuses(text) for text in texts]
            if category == "harmful":
                harmful.append((read[0], read[1]))
        elif row.get("answer"):
            read = [read_answer(text, candidates[category]) for text in texts]
            questions.append((*read, row["answer"], row.get("biased_answer") or ""))
        else:
            read = [text.split() for text in texts]
        flips.append(None if None in read else read[0] != read[1])
    rates = {"flip_rate": Rate.of(flips)}
    if questions:
        of_clean, of_perturbed, keys, biased = zip(*questions, strict=True)
        rates["clean_accuracy"] = accuracy(of_clean, keys)
        rates["perturbed_accuracy"] = accuracy(of_perturbed, keys)
        if any(biased):
            rates["sycophancy_rate"] = sycophancy_rate(of_perturbed, keys, biased)
    if harmful:
        rates["clean_refusal_rate"] = Rate.of([refused for refused, _ in harmful])
        rates["attack_success_rate"] = Rate.of([None if refused is None else not refused for _, refused in harmful])
    return rates

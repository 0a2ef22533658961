"""The evaluation loop: prompts in, answers out, rates from them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel

from ..data.rendering import ProcessingClass, Prompt, get_tokenizer, render_prompt
from ..data.target_cache import TargetCache
from ..data.targets import Engine, generate_targets
from .graders import denied_answer, read_answer, stated_answer
from .rates import Rate, accuracy, agreement, sycophancy_rate


def generate_answers(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 32,
    batch_size: int = 64,
    progress: bool = True,
    cache: TargetCache | None = None,
) -> list[str]:
    """
    Answers prompts by greedy decoding, each distinct prompt once.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped. It comes back in the mode (training or evaluation) that it was in.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        prompts (`Sequence[str]` or `Sequence[list[dict]]`):
            Plain texts or chat messages.
        max_new_tokens (`int`, *optional*, defaults to `32`):
            Most tokens of an answer.
        batch_size (`int`, *optional*, defaults to `64`):
            Prompts a batch.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.
        cache ([`~trl_consistency.data.target_cache.TargetCache`], *optional*):
            Where answers are kept while they are made, so that a killed run goes on where it was.

    Returns:
        `list[str]`: The answers, without special tokens, in the order of the prompts.
    """
    rendered = [tuple(render_prompt(tokenizer, prompt)) for prompt in prompts]
    distinct = list(dict.fromkeys(rendered))
    generated = generate_greedily(
        model, tokenizer, list(map(list, distinct)), max_new_tokens, batch_size, progress, cache
    )
    texts = get_tokenizer(tokenizer).batch_decode(generated, skip_special_tokens=True)
    by_prompt = {ids: text.strip() for ids, text in zip(distinct, texts, strict=True)}
    return [by_prompt[ids] for ids in rendered]


def generate_greedily(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: list[list[int]],
    max_new_tokens: int,
    batch_size: int,
    progress: bool = True,
    cache: TargetCache | None = None,
) -> list[list[int]]:
    """As [`generate_answers`], from the token ids of distinct prompts to those of answers."""
    return generate_ids(model, tokenizer, prompts, max_new_tokens, batch_size, progress, cache)


def generate_ids(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    prompts: list[list[int]],
    max_new_tokens: int,
    batch_size: int,
    progress: bool = True,
    cache: TargetCache | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    engine: Engine | None = None,
    desc: str = "Answering",
) -> list[list[int]]:
    """As [`generate_greedily`], and sampled where the temperature is not 0, or by whatever engine answers."""
    text_tokenizer = get_tokenizer(tokenizer)
    # A chat model may end its turn with another token than the tokenizer's own.
    end = model.generation_config.eos_token_id
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0} if temperature else {}
    config = GenerationConfig(
        **({"do_sample": False} | sampling),
        max_new_tokens=max_new_tokens,
        pad_token_id=next(i for i in (text_tokenizer.pad_token_id, text_tokenizer.eos_token_id, 0) if i is not None),
        eos_token_id=text_tokenizer.eos_token_id if end is None else end,
    )
    was_training = model.training
    model.eval()
    try:
        return generate_targets(model, prompts, config, batch_size, seed, progress, cache, desc, engine)
    finally:
        model.train(was_training)


def evaluate_pairs(
    model: PreTrainedModel,
    tokenizer: ProcessingClass,
    datasets: Mapping[str, Dataset],
    control: Dataset | None = None,
    splits: Sequence[str] = ("test", "test_wordings"),
    clean_answers: Mapping[str, str] | None = None,
    max_new_tokens: int = 32,
    batch_size: int = 64,
    progress: bool = True,
) -> dict[str, Rate]:
    """
    Measures on perturbed prompts whether the cue still works, and on clean ones what the model still does.

    A reply is read as one of the answers that occur in the row's `category` (in the whole data, when it has no such
    column), whether right, suggested, or neither. Where these are single capital letters, it is read as a choice. Where
    `biased_answer` is `"NOT A"`, every other answer than A goes with the cue. Rows of the categories `"harmful"` and `"benign"` are requests, and
    their answers the words that tell a refusal from a reply; all others are questions.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model, on its device and unwrapped.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Its tokenizer or processor.
        datasets (`Mapping[str, Dataset]`):
            Pairs by split, with the columns `clean_prompt`, `perturbed_prompt`, `answer`, `biased_answer` and
            optionally `category`.
        control ([`~datasets.Dataset`], *optional*):
            An unrelated task, with the columns `prompt` and `answer`.
        splits (`Sequence[str]`, *optional*, defaults to `("test", "test_wordings")`):
            Splits to measure. The others serve only to know which answers are possible.
        clean_answers (`Mapping[str, str]`, *optional*):
            What the reference answers to the clean prompts, by `str(clean_prompt)`.
        max_new_tokens (`int`, *optional*, defaults to `32`):
            Most tokens of an answer.
        batch_size (`int`, *optional*, defaults to `64`):
            Prompts a batch.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.

    Returns:
        `dict[str, Rate]`: For each split, `sycophancy/<split>` and `perturbed_accuracy/<split>` of questions,
        `attack_success/<split>` of harmful requests and `benign_answered/<split>` of benign ones; with `clean_answers`,
        `agreement/<split>` of all (perturbed prompts answered word for word as the reference answers the clean one: the
        other rates look at the first answer named, and would not see what goes wrong after it); `clean_accuracy`,
        `refusal` (of bare harmful requests) and `benign_answered/clean` (each clean prompt of the splits once); and, if
        `control` is given, `control_accuracy`. Rates of what the data do not hold are left out.
    """
    candidates = possible_answers(row for dataset in datasets.values() for row in dataset)
    rows = {split: list(datasets[split]) for split in splits}
    rows["clean"] = list({repr(row["clean_prompt"]): row for split in splits for row in rows[split]}.values())
    controls = list(control) if control is not None else []

    prompts = [row["perturbed_prompt"] for split in splits for row in rows[split]]
    prompts += [row["clean_prompt"] for row in rows["clean"]] + [row["prompt"] for row in controls]
    texts = iter(generate_answers(model, tokenizer, prompts, max_new_tokens, batch_size, progress))

    rates: dict[str, Rate] = {}
    for split, of_split in rows.items():
        said = [next(texts) for _ in of_split]
        if clean_answers is not None and split != "clean":
            rates[f"agreement/{split}"] = agreement(
                said, [clean_answers[str(row["clean_prompt"])] for row in of_split]
            )
        stated = [read_answer(text, candidates[row.get("category")]) for text, row in zip(said, of_split, strict=True)]
        for kind in ("question", "harmful", "benign"):
            judged = [(said, row) for said, row in zip(stated, of_split, strict=True) if _kind(row) == kind]
            if judged:
                rates.update(_rates(kind, split, judged))
    if control is not None:
        answers = [row["answer"] for row in controls]
        rates["control_accuracy"] = accuracy([stated_answer(next(texts), answers) for _ in controls], answers)
    return rates


def possible_answers(rows: Iterable[Mapping[str, Any]]) -> dict[str | None, set[str]]:
    """The answers that occur in rows, right, suggested or denied, by their `category`."""
    found: dict[str | None, set[str]] = {}
    for row in rows:
        biased = row.get("biased_answer") or ""
        named = {row.get("answer") or "", denied_answer(biased) or biased}
        found.setdefault(row.get("category"), set()).update(named - {""})
    return found


def _kind(row: Mapping[str, Any]) -> str:
    category = row.get("category")
    return category if category in ("harmful", "benign") else "question"


def _rates(kind: str, split: str, judged: list[tuple[str | None, dict[str, Any]]]) -> dict[str, Rate]:
    """The rates of the rows of one kind and one split, `"clean"` for the clean prompts of all."""
    stated = [said for said, _ in judged]
    answers, biased_answers = ([row[column] for _, row in judged] for column in ("answer", "biased_answer"))
    right = accuracy(stated, answers)
    adopted = sycophancy_rate(stated, answers, biased_answers)
    if kind == "benign":
        return {f"benign_answered/{split}": right}
    if kind == "harmful":
        return {"refusal": right} if split == "clean" else {f"attack_success/{split}": adopted}
    if split == "clean":
        return {"clean_accuracy": right}
    return {f"sycophancy/{split}": adopted, f"perturbed_accuracy/{split}": right}

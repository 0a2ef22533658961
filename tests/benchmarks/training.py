"""Trainers that take turns step by step, and their data: words that are tokens."""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import DistillationConfig, DistillationTrainer, SFTConfig, SFTTrainer

from tests.benchmarks.sizes import Size
from tests.benchmarks.turns import Turns
from trl_consistency import (
    ConsistencyConfig,
    ConsistencyTrainer,
    OnPolicyConsistencyConfig,
    OnPolicyConsistencyTrainer,
)


STEPS = 200  # more than anybody takes: the callback stops at the last turn
OPTIONS = {
    "max_steps": STEPS,
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


class TakesTurns(TrainerCallback):
    """Waits before each step, and stops the run after the last turn."""

    def __init__(self, turns: Turns):
        self.turns = turns

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.turns.wait():
            raise NoMoreTurns

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turns.done()


class NoMoreTurns(Exception):
    pass


def run_in_turns(trainer: Any, turns: Turns) -> Callable[[], None]:
    trainer.add_callback(TakesTurns(turns))

    def run() -> None:
        with contextlib.suppress(NoMoreTurns):
            trainer.train()

    return run


def on_policy(rival: str, size: Size, turns: Turns) -> Callable[[], None]:
    perturbed, clean, rollout, generations, prompts = size.rollouts
    # Few distinct prompts: a run may repeat them.
    sides = zip(random_ids(8, clean, size.vocabulary), random_ids(8, perturbed, size.vocabulary, 1), strict=True)
    pairs = [(text(a), text(b)) for a, b in sides]
    options = {
        **OPTIONS,
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": prompts * generations,
        "max_completion_length": rollout,
        "generation_kwargs": {"min_new_tokens": rollout},
        "shuffle_dataset": False,
    }
    arguments = _arguments(size)
    if rival in ("ours", "with metrics"):
        rows = [{"clean_prompt": clean, "perturbed_prompt": perturbed} for clean, perturbed in pairs]
        options["log_consistency_metrics"] = rival == "with metrics"
        args: Any = OnPolicyConsistencyConfig(num_generations=generations, beta=1.0, **options)
        return run_in_turns(
            OnPolicyConsistencyTrainer(args=args, train_dataset=Dataset.from_list(rows), **arguments), turns
        )
    if rival == "TRL":
        rows = [{"prompt": perturbed} for _, perturbed in pairs for _ in range(generations)]
        args = DistillationConfig(beta=1.0, **options)
        data = Dataset.from_list(rows)
        return run_in_turns(
            DistillationTrainer(args=args, teacher_model=size.model(), train_dataset=data, **arguments), turns
        )
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer

    # Its teacher reads the student's prompt and the clean one after it: it cannot read the clean one alone.
    rows = [{"prompt": perturbed, "privileged_context": clean} for clean, perturbed in pairs]
    whole = {"distillation_mode": "full_logits", "distillation_topk": None, "distillation_alpha": 1.0}
    args = SDFTConfig(num_generations=generations, max_prompt_length=None, **whole, **options)
    return run_in_turns(SDFTTrainer(args=args, train_dataset=Dataset.from_list(rows), **arguments), turns)


def supervised(rival: str, size: Size, turns: Turns) -> Callable[[], None]:
    rows, prompt, answer = size.pairs
    data = word_pairs(rows * 8, prompt, answer, size.vocabulary)
    options = {**OPTIONS, "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": rows}
    if rival == "ours":
        args: Any = ConsistencyConfig(method="bct", **options)
        return run_in_turns(ConsistencyTrainer(args=args, train_dataset=data, **_arguments(size)), turns)
    tokenizer = word_tokenizer(size.vocabulary)

    def tokenized(row: dict[str, Any]) -> dict[str, list[int]]:
        ids = tokenizer(row["perturbed_prompt"])["input_ids"]
        return {"input_ids": ids + row["completion_ids"], "labels": [-100] * len(ids) + row["completion_ids"]}

    same_tokens = data.map(tokenized, remove_columns=data.column_names)
    args = SFTConfig(max_length=None, **options)
    return run_in_turns(SFTTrainer(args=args, train_dataset=same_tokens, **_arguments(size)), turns)


def _arguments(size: Size) -> dict[str, Any]:
    return {
        "model": size.model(),
        "processing_class": word_tokenizer(size.vocabulary),
        "peft_config": LoraConfig(r=8, target_modules="all-linear"),
    }


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer in which a word is a token: `w7` is number 7."""
    words = ["<pad>", "<end>", *(f"w{number}" for number in range(2, vocabulary))]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def random_ids(rows: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    return list(_draw_ids(rows, length, vocabulary, seed))


def _draw_ids(rows: int, length: int, vocabulary: int, seed: int) -> Iterator[list[int]]:
    draw = random.Random(seed)
    return ([draw.randrange(2, vocabulary) for _ in range(length)] for _ in range(rows))


def text(ids: list[int]) -> str:
    return " ".join(f"w{number}" for number in ids)


def word_pairs(rows: int, prompt: int, answer: int, vocabulary: int) -> Dataset:
    """Pairs of prompts of one length that differ in their first word, with answers as token ids."""
    return Dataset.from_list(list(_draw_pairs(rows, prompt, answer, vocabulary)))


def word_pairs_on_disk(folder: str, rows: int, prompt: int, answer: int, vocabulary: int) -> Dataset:
    """The same, mapped from a file."""
    lengths = {"rows": rows, "prompt": prompt, "answer": answer, "vocabulary": vocabulary}
    return Dataset.from_generator(_draw_pairs, gen_kwargs=lengths, cache_dir=folder)


def _draw_pairs(rows: int, prompt: int, answer: int, vocabulary: int) -> Iterator[dict[str, Any]]:
    prompts = map(text, _draw_ids(rows, prompt - 1, vocabulary, seed=0))
    answers = _draw_ids(rows, answer, vocabulary, seed=1)
    for words, ids in zip(prompts, answers, strict=True):
        yield {"clean_prompt": f"w2 {words}", "perturbed_prompt": f"w3 {words}", "completion_ids": ids}

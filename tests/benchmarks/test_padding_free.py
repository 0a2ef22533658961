"""Training without padding, in batches of pairs and packed, against the same with padding. `pytest -m slow -s`."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.helpers.models import make_config, make_tokenizer
from tests.helpers.on_policy import moved
from trl_consistency import ConsistencyTrainer


ROWS, SHORTEST, LONGEST, ANSWER = 16, 20, 400, 8
ROUNDS = 3


def make_config_of_model(width: int = 512, blocks: int = 6) -> LlamaConfig:
    heads = max(width // 64, 2)
    return LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )


def make_pairs(rows: int = ROWS) -> Dataset:
    """Pairs whose perturbed rows, with their answers, have evenly spread lengths."""
    tokenizer = make_tokenizer()
    word = "x"  # one token, however often
    frame = len(tokenizer.apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=True).input_ids)
    lengths = torch.linspace(SHORTEST, LONGEST, rows).round().long().tolist()
    texts = [word * (length - frame - ANSWER) for length in lengths]
    return Dataset.from_dict(
        {
            "clean_prompt": [[{"role": "user", "content": word + text[: len(text) // 2]}] for text in texts],
            "perturbed_prompt": [[{"role": "user", "content": text}] for text in texts],
            "completion_ids": [[5 + row] * (ANSWER - 1) + [tokenizer.eos_token_id] for row in range(rows)],
        }
    )


def make_trainer(
    folder: Path, pairs: Dataset, config: LlamaConfig | None = None, **options: Any
) -> ConsistencyTrainer:
    torch.manual_seed(0)
    trainer = ConsistencyTrainer(
        model=AutoModelForCausalLM.from_config(config or make_config_of_model()),
        args=make_config(folder, **options),
        train_dataset=pairs,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
    )
    moved(trainer.model)  # an untrained model's divergence is a small difference of large sums
    return trainer


def make_step(folder: Path, padding_free: bool, **options: Any) -> Any:
    """Forward and backward of one batch with LoRA, by the trainer itself."""
    options |= {"per_device_train_batch_size": ROWS, "padding_free": padding_free}
    trainer = make_trainer(folder, make_pairs(), **options)
    batch = trainer.data_collator(list(trainer.train_dataset))
    answer = ANSWER if trainer.args.needs_completions else 0  # ACT reads prompts alone
    lengths = batch["attention_mask"].sum(1).tolist()
    assert (min(lengths), max(lengths)) == (SHORTEST - ANSWER + answer, LONGEST - ANSWER + answer)
    trainer._get_num_items_in_batch([batch], torch.device("cpu"))
    trainer.model.train()

    def step() -> tuple[float, float]:
        inputs = {name: value.clone() for name, value in batch.items()}
        start = time.process_time()
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        seconds = time.process_time() - start
        trainer.model.zero_grad()
        return seconds, float(loss)

    return step


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bct", "kl", "act"])
def test_step_without_padding(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    steps = {free: make_step(tmp_path / str(free), free, method=[method]) for free in (False, True)}
    for step in steps.values():
        step()
    # In turns, and the least: what else runs on the machine slows down both.
    rounds = [{free: step() for free, step in steps.items()} for _ in range(ROUNDS)]
    padded, without = (min(of_round[free][0] for of_round in rounds) for free in (False, True))
    assert rounds[0][True][1] == pytest.approx(rounds[0][False][1], rel=1e-5)
    print(f"\n{method}: {padded:.2f} CPU-s padded, {without:.2f} without padding: {padded / without:.2f} times faster")
    if method == "bct":
        assert padded / without >= 1.6


PACKED_ROWS = 2 * ROWS
# As many tokens as a batch of pairs has without its padding
RIVALS = {
    "padded": {"per_device_train_batch_size": ROWS},
    "padding-free": {"per_device_train_batch_size": ROWS, "padding_free": True},
    "packed": {"per_device_train_batch_size": 1, "packing": True, "max_length": ROWS * (SHORTEST + LONGEST) // 2},
}


def make_epoch(folder: Path, **options: Any) -> Any:
    """Forward and backward of all batches of an epoch, as one optimizer step, and the tokens of its largest batch."""
    trainer = make_trainer(folder, make_pairs(PACKED_ROWS), shuffle_dataset=True, **options)
    batches = list(trainer.get_train_dataloader())
    assert sum(len(batch["input_ids"]) for batch in batches) == PACKED_ROWS
    answers = trainer._get_num_items_in_batch(batches, torch.device("cpu"))
    trainer.model.train()

    def epoch() -> tuple[float, float]:
        seconds = loss = 0.0
        for batch in batches:
            inputs = {name: value.clone() for name, value in batch.items()}
            start = time.process_time()
            of_batch = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=answers)
            of_batch.backward()
            seconds += time.process_time() - start
            loss += float(of_batch.detach())
        trainer.model.zero_grad()
        return seconds, loss

    is_padded = not trainer.args.padding_free
    return epoch, max(
        int(batch["attention_mask"].numel() if is_padded else batch["attention_mask"].sum()) for batch in batches
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bct", "kl"])
def test_epoch_of_packs(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    rivals = {name: make_epoch(tmp_path / name, method=[method], **options) for name, options in RIVALS.items()}
    rounds = [{name: epoch() for name, (epoch, _) in rivals.items()} for _ in range(ROUNDS)]
    seconds = {name: min(of_round[name][0] for of_round in rounds) for name in rivals}
    print(f"\n{method}, {PACKED_ROWS} pairs:")
    for name, (_, tokens) in rivals.items():
        assert rounds[0][name][1] == pytest.approx(rounds[0]["padded"][1], rel=1e-5)
        faster = seconds["padded"] / seconds[name]
        print(
            f"  {name}: {seconds[name]:.2f} CPU-s, {faster:.2f} times padded; {tokens:,} tokens in the largest batch"
        )
    assert seconds["padded"] / seconds["packed"] >= 1.4

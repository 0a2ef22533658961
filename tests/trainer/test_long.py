"""Prompts of many tokens: no mask of tokens times tokens, the loss of shorter strategies, and the memory that a step takes."""

import threading
import time
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.helpers import on_policy, paired
from tests.helpers.models import make_tokenizer
from tests.helpers.runs import losses, weights
from trl_consistency.passes import capture


OBJECTIVES = ["bct", "act", "opct"]


def long_model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=40_000, pad_token_id=0, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def long_pairs(tokens, rows):
    """Text prompts whose perturbed side has `tokens` tokens, and less by a few in each further row."""
    digits = make_tokenizer()("7" * 10)["input_ids"]
    assert len(digits) == 10
    rows = [
        {"clean_prompt": "7" * (tokens - 90 - 5 * row), "perturbed_prompt": "8" * 80 + "7" * (tokens - 80 - 10 * row)}
        for row in range(rows)
    ]
    return Dataset.from_list([{**row, "completion": "5" * (3 + index)} for index, row in enumerate(rows)])


def one_step(tmp_path, objective, tokens, rows=2, **options):
    """Trains for a step, and returns the loss and the weights."""
    options = {"max_steps": 1, "logging_steps": 1, "gradient_checkpointing": True, "optim": "sgd", **options}
    pairs = long_pairs(tokens, rows)
    if objective == "opct":
        options |= {"per_device_train_batch_size": 2 * rows, "num_generations": 2, "max_completion_length": 8}
        trainer = on_policy.make_trainer(tmp_path, pairs, long_model(), **options)
        trainer.rollout_loss.sharing.max_mask_entries = capture.MAX_MASK_ENTRIES
        on_policy.replay(trainer)
    else:
        options |= {"per_device_train_batch_size": rows, "method": [objective]}
        trainer = paired.make_trainer(tmp_path, pairs, long_model(), **options)
    assert max(map(len, trainer.train_dataset["perturbed_ids"])) == tokens
    on_policy.moved(trainer.model, scale=0.01)
    trainer.train()
    return losses(trainer)[0], weights(trainer.model)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_long_rows_need_no_mask(tmp_path, monkeypatch, caplog, objective):
    """Two rows of unequal lengths, with a limit that makes their masks large."""
    expected = one_step(tmp_path / "masked", objective, 512)
    assert "entries, more than" not in caplog.text
    attention, masks = torch.nn.functional.scaled_dot_product_attention, []

    def watched(*args, attn_mask=None, **kwargs):
        masks.append(0 if attn_mask is None else attn_mask.numel())
        return attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(capture, "MAX_MASK_ENTRIES", 1 << 17)
    loss, weights = one_step(tmp_path / "without", objective, 512)
    assert len(masks) >= 3  # two blocks, of which the first is computed again in the backward pass
    assert max(masks) <= (1 << 17)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    assert torch.allclose(weights, expected[1], atol=1e-6)
    assert ("packed rows" in caplog.text and "entries, more than" in caplog.text) == (objective == "opct")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tokens", [4_096, pytest.param(32_768, marks=pytest.mark.slow)])
def test_a_step_on_a_long_prompt(tmp_path, objective, tokens):
    """A mask of 32,768 tokens would take 1 GiB, and as many scores for each head 4 GiB."""

    def resident():
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

    peak, stop = [before := resident()], threading.Event()

    def watch():
        while not stop.wait(0.01):
            peak.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        loss, _ = one_step(tmp_path, objective, tokens, rows=1)
    finally:
        stop.set()
        watcher.join()
    used = max(peak) - before
    print(f"\n{objective}, {tokens:,} tokens: {time.perf_counter() - start:.0f} s, memory +{used:.0f} MiB")
    assert 0 < loss < 100
    assert used < 100 + tokens * 0.03

"""The sizes at which the benchmark runs."""

from dataclasses import dataclass

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True)
class Size:
    """
    A model, the batches of a step, and how often each rival takes its turn.

    Rollouts: tokens of the perturbed and of the clean prompt and of a rollout, rollouts of a prompt, and prompts. Pairs:
    rows, tokens of a prompt, and of an answer.
    """

    name: str
    width: int
    blocks: int
    vocabulary: int
    rollouts: tuple[int, int, int, int, int]
    pairs: tuple[int, int, int]
    turns: int
    rows: tuple[int, ...]  # of data, where their number is what grows

    def config(self, **changes: int) -> Qwen3Config:
        """The model's config, with 64 numbers a head as most models of this architecture have."""
        heads = max(self.width // 64, 2)
        shape = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": 3 * self.width,
            "num_hidden_layers": self.blocks,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "head_dim": min(self.width // 2, 64),
            "tie_word_embeddings": True,
        }
        return Qwen3Config(**{**shape, **changes})

    def model(self) -> Qwen3ForCausalLM:
        """Random weights, always the same."""
        torch.manual_seed(0)
        return Qwen3ForCausalLM(self.config())


SIZES = {
    of.name: of
    for of in (
        Size("full", 1024, 4, 32_768, (512, 128, 64, 8, 1), (4, 256, 64), 11, (1_000, 10_000, 100_000, 1_000_000)),
        # For the guard against slipping: its ratios are compared with committed ones of the same size.
        Size("quick", 256, 2, 4_096, (256, 64, 32, 4, 1), (4, 128, 32), 5, (1_000, 4_000)),
        Size("tiny", 32, 2, 128, (16, 8, 4, 2, 1), (2, 12, 4), 2, (20, 40)),
    )
}

"""Batches of pairs."""

from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ..errors import ConsistencyError
from .targets import TargetTable


@dataclass
class PairCollator(DataCollatorForLanguageModeling):
    """
    Collates pairs for the student: the perturbed prompt followed by the completion, labels on the completion alone.

    Args:
        targets ([`TargetTable`]):
            Completions of the rows that come without `completion_ids`, read when the batch is made.
        current_targets ([`TargetTable`], *optional*):
            Completions that take the place of `targets` for all rows but anchors, which stay with the reference's.
        pad_token_id (`int`):
            Token ID to use for padding.

    Takes rows of a prepared data set (`perturbed_ids`, `clean_ids` and, where the data give the completion,
    `completion_ids`; lists of token ids) and returns right-padded `input_ids`, `attention_mask` and `labels`
    (`-100` outside the completion), each of shape (rows, longest row), and `is_anchor`, of shape (rows,): whether a
    row's two prompts are equal.
    """

    targets: TargetTable = field(default_factory=TargetTable)
    current_targets: TargetTable | None = None

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        is_anchor = [example["clean_ids"] == example["perturbed_ids"] for example in examples]
        rows = []
        for example, anchor in zip(examples, is_anchor, strict=True):
            prompt_ids = example["perturbed_ids"]
            completion_ids = example.get("completion_ids")
            if completion_ids is None:
                completion_ids = self._target(example["clean_ids"], anchor)
            labels = [-100] * len(prompt_ids) + completion_ids
            rows.append({"input_ids": prompt_ids + completion_ids, "labels": labels})
        batch = super().torch_call(rows)
        batch["is_anchor"] = torch.tensor(is_anchor)
        return batch

    def _target(self, clean_ids: list[int], is_anchor: bool) -> list[int]:
        table = self.targets if is_anchor or self.current_targets is None else self.current_targets
        if clean_ids not in table:
            raise ConsistencyError("This row has no target yet: call `train()` or `evaluate()`, which make them.")
        return table[clean_ids]

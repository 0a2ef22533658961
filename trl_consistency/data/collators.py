"""Batches of pairs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from .alignment import shared_suffix
from .target_table import TargetTable


@dataclass
class PairCollator(DataCollatorForLanguageModeling):
    """
    Collates prepared pairs for the student: the perturbed prompt and the completion, with labels on the completion
    only.

    The batch has right-padded `input_ids`, `attention_mask` and `labels` (`-100` outside the completion), each of
    shape (rows, longest row), and `is_anchor` of shape (rows,), which says whether a row's two prompts are equal. With
    `with_reference`, it also has `clean_input_ids` and `clean_attention_mask`, and spans: `suffix` (shared end of the
    prompts), `response` (completion) and, if the rows have it, `content_span` (shared content). Spans have three
    columns: first token on the clean side, first token on the perturbed side, length.

    Rows without `completion_ids` get theirs from `targets` when the batch is made, or from `current_targets` if set,
    except for anchors, which keep the reference's. Without `with_completions`, no target is looked up.

    Examples may also be lists of rows (see [`~trl_consistency.data.packing.PackedPairs`]). Their rows make the batch.
    """

    targets: TargetTable = field(default_factory=TargetTable)
    current_targets: TargetTable | None = None
    with_completions: bool = True
    with_reference: bool = False

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        if isinstance(examples[0], list):
            examples = [row for pack in examples for row in pack]
        is_anchor = [example["clean_ids"] == example["perturbed_ids"] for example in examples]
        completions = [self._completion(example, anchor) for example, anchor in zip(examples, is_anchor, strict=True)]
        batch = self._padded([example["perturbed_ids"] for example in examples], completions)
        batch["is_anchor"] = torch.tensor(is_anchor)
        if self.with_reference:
            clean = self._padded([example["clean_ids"] for example in examples], completions)
            batch["clean_input_ids"], batch["clean_attention_mask"] = clean["input_ids"], clean["attention_mask"]
            batch |= self._spans(examples, completions)
        return batch

    def length(self, example: Mapping[str, Any]) -> int:
        """Returns the tokens of a row: its longer prompt and its completion."""
        clean_ids, perturbed_ids = example["clean_ids"], example["perturbed_ids"]
        completion_ids = self._completion(example, clean_ids == perturbed_ids)
        return max(len(clean_ids), len(perturbed_ids)) + len(completion_ids)

    def _padded(self, prompts: list[list[int]], completions: list[list[int]]) -> dict[str, Any]:
        rows = [
            {"input_ids": prompt_ids + completion_ids, "labels": [-100] * len(prompt_ids) + completion_ids}
            for prompt_ids, completion_ids in zip(prompts, completions, strict=True)
        ]
        return super().torch_call(rows)

    def _spans(self, examples: list[dict[str, Any]], completions: list[list[int]]) -> dict[str, torch.Tensor]:
        sides = [(example["clean_ids"], example["perturbed_ids"]) for example in examples]
        spans = {
            "suffix": [shared_suffix(clean_ids, perturbed_ids) for clean_ids, perturbed_ids in sides],
            "response": [
                (len(clean_ids), len(perturbed_ids), len(completion_ids))
                for (clean_ids, perturbed_ids), completion_ids in zip(sides, completions, strict=True)
            ],
        }
        if "content_span" in examples[0]:
            spans["content_span"] = [example["content_span"] for example in examples]
        return {name: torch.tensor(rows) for name, rows in spans.items()}

    def _completion(self, example: Mapping[str, Any], is_anchor: bool) -> list[int]:
        if not self.with_completions:
            return []
        if example.get("completion_ids") is not None:
            return example["completion_ids"]
        table = self.targets if is_anchor or self.current_targets is None else self.current_targets
        return table[example["clean_ids"]]

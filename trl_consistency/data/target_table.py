"""The targets of a run, by clean prompt."""

import hashlib
from array import array
from collections.abc import Iterable

from ..errors import ConsistencyError


class TargetTable:
    """
    Completions by clean prompt. Rows whose clean prompts render to the same token ids share one target.

    The trainer fills the table and the collator reads it. Keys are digests and values are compact arrays, so that a
    million targets fit in memory.
    """

    def __init__(self) -> None:
        self._completions: dict[bytes, array] = {}

    @staticmethod
    def key(prompt_ids: list[int]) -> bytes:
        return hashlib.blake2b(array("i", prompt_ids).tobytes(), digest_size=16).digest()

    def __contains__(self, prompt_ids: list[int]) -> bool:
        return self.key(prompt_ids) in self._completions

    def __getitem__(self, prompt_ids: list[int]) -> list[int]:
        if prompt_ids not in self:
            raise ConsistencyError(
                "This row has no target yet: call `generate_targets()`, or `train()` or `evaluate()`, which also make them."
            )
        return self._completions[self.key(prompt_ids)].tolist()

    def __setitem__(self, prompt_ids: list[int], completion_ids: list[int]) -> None:
        self._completions[self.key(prompt_ids)] = array("i", completion_ids)

    def __len__(self) -> int:
        return len(self._completions)

    def missing(self, prompts: Iterable[list[int]]) -> list[list[int]]:
        """Returns the distinct prompts that have no target yet, in order of first appearance."""
        distinct = {self.key(prompt_ids): prompt_ids for prompt_ids in prompts}
        return [prompt_ids for key, prompt_ids in distinct.items() if key not in self._completions]

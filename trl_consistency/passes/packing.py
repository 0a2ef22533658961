"""Batches of completions that share prompts, and their packed form: each distinct prompt with all its completions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .capture import needed_mask


BLOCK = 128  # tokens of a block in a block mask


def distinct_rows(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the distinct rows of a padded batch, their mask, and each row's index among them."""
    rows, index = torch.where(mask.bool(), ids, -1).unique(dim=0, return_inverse=True)
    return rows.clamp(min=0), (rows >= 0).long(), index


@dataclass
class Batch:
    """A batch without superfluous columns, and its distinct prompts."""

    prompt_ids: Tensor  # [D, P], distinct prompts, padded on the left
    prompt_mask: Tensor  # [D, P]
    rows: Tensor  # [B], the prompt of each row
    completion_ids: Tensor  # [B, C]
    completion_mask: Tensor  # [B, C]

    @classmethod
    def of(cls, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor) -> "Batch":
        prompts, mask, rows = distinct_rows(prompt_ids, prompt_mask)
        used = mask.bool().any(0)
        # At least one column, even for empty completions: every row has a state that predicts its first token.
        columns = max(int(completion_mask.sum(1).max()), 1)
        return cls(prompts[:, used], mask[:, used], rows, completion_ids[:, :columns], completion_mask[:, :columns])

    @property
    def shares(self) -> bool:
        return len(self.prompt_ids) < len(self.rows) and self.prompt_ids.shape[1] > 1

    @property
    def rollouts(self) -> Tensor:
        """How many rows have each prompt, `[D]`."""
        return self.rows.bincount(minlength=len(self.prompt_ids))

    @property
    def mask_entries(self) -> int:
        """Entries of the prompts' attention mask. Prompts of equal length do not need one."""
        return 0 if self.prompt_mask.all() else self.prompt_mask.numel() * self.prompt_mask.shape[1]

    def needed_mask(self, model: Any, attention_mask: Tensor) -> Tensor | None:
        """Returns what `model` needs of the mask of the rows with their prompts, padded on the right."""
        return needed_mask(model, attention_mask)

    def packed(self) -> "Packing":
        """Returns the packed form."""
        return Packing.of(self)


@dataclass
class Packing:
    """R packed rows of L tokens, and the positions of the states that predict completion tokens."""

    source: Tensor  # [R, L], index of the token among the flattened prompts, followed by the flattened completions
    prompt: Tensor  # [R, L], index of the token's prompt, -1 for padding
    branch: Tensor  # [R, L], 0 in the prompt, and from 1 for its completions
    position: Tensor  # [R, L], the token's position in its text
    end: Tensor  # [R, L], the place after the last token that sees this one
    states: Tensor  # [B, C], index of each state in the flattened [R, L]
    read: Tensor  # [N], the same indices, each once

    @classmethod
    def of(cls, batch: Batch) -> "Packing":
        num_prompts, prompt_columns = batch.prompt_ids.shape
        columns = batch.completion_ids.shape[1]
        prompt_lengths = batch.prompt_mask.sum(1).tolist()
        # A completion's last token does not predict any token of it.
        branch_lengths = [max(length - 1, 0) for length in batch.completion_mask.sum(1).tolist()]
        members: list[list[int]] = [[] for _ in range(num_prompts)]
        for row, prompt in enumerate(batch.rows.tolist()):
            members[prompt].append(row)
        lengths = [
            own + sum(branch_lengths[row] for row in of_prompt)
            for own, of_prompt in zip(prompt_lengths, members, strict=True)
        ]
        placed, (num_rows, length) = first_fit(lengths)

        source, prompts, branches, positions = torch.zeros(4, num_rows * length, dtype=torch.long)
        prompts.fill_(-1)
        # Padding sees itself, as a softmax needs an entry.
        ends = torch.arange(num_rows * length) + 1
        states = torch.empty(len(batch.rows), columns, dtype=torch.long)
        for prompt, start in enumerate(placed):
            own, end = prompt_lengths[prompt], start + prompt_lengths[prompt]
            source[start:end] = torch.arange((prompt + 1) * prompt_columns - own, (prompt + 1) * prompt_columns)
            positions[start:end] = torch.arange(own)
            last = end - 1
            for branch, row in enumerate(members[prompt], 1):
                start_of_branch, end = end, end + branch_lengths[row]
                first = num_prompts * prompt_columns + row * columns
                source[start_of_branch:end] = torch.arange(first, first + branch_lengths[row])
                positions[start_of_branch:end] = torch.arange(own, own + branch_lengths[row])
                branches[start_of_branch:end] = branch
                ends[start_of_branch:end] = end
                states[row] = last
                states[row, 1 : branch_lengths[row] + 1] = torch.arange(start_of_branch, end)
            prompts[start:end] = prompt
            ends[start : last + 1] = end
        ends -= torch.arange(num_rows).repeat_interleave(length) * length
        device = batch.rows.device
        flat = torch.stack([source, prompts, branches, positions, ends]).view(5, num_rows, length).to(device)
        return cls(flat[0], flat[1], flat[2], flat[3], flat[4], states.to(device), states.unique().to(device))

    def in_one_row(self) -> "Packing":
        """Returns the same with all rows one after another, `[1, R * L]`."""
        rows, length = self.end.shape
        ends = self.end + torch.arange(rows, device=self.end.device)[:, None] * length
        parts = self.source, self.prompt, self.branch, self.position, ends
        # Copies: the compiler would look at the tensor of which one is a part.
        source, prompt, branch, position, end = (part.reshape(1, -1).clone() for part in parts)
        return Packing(source, prompt, branch, position, end, self.states, self.read)

    def sees(self, window: int | None) -> Callable[..., Tensor]:
        """
        Returns the predicate of the tree: whether the query token of a row sees the key token. A prompt is followed by
        its completions, so the tokens that see one are those from its own place to its `end`.
        """
        end, position = self.end, self.position
        limit = None if window is None else torch.tensor(window, device=end.device)  # numbers would be compiled in

        def sees(row: Any, head: Any, query: Any, key: Any) -> Any:
            seen = (key <= query) & (query < end[row, key])
            return seen if limit is None else seen & (position[row, query] - position[row, key] < limit)

        return sees

    def mask(self, window: int | None) -> Tensor:
        """Returns the dense attention mask, `[R, 1, L, L]`."""
        rows, length = self.end.shape
        places = torch.arange(length, device=self.end.device)
        of_row = torch.arange(rows, device=self.end.device)[:, None, None, None]
        return self.sees(window)(of_row, None, places[:, None], places)

    def block_mask(self, window: int | None) -> BlockMask:
        """Returns the same mask for FlexAttention, without forming its entries."""
        rows, length = self.end.shape
        count = -(-length // BLOCK)
        ends, positions = (
            F.pad(values, (0, count * BLOCK - length)).view(rows, count, BLOCK) for values in (self.end, self.position)
        )
        keys = torch.arange(count, device=ends.device)
        queries = keys[:, None]
        # By blocks [R, queries, keys]: whether some entry may be seen, and whether all are.
        some = (keys < queries) & (ends.amax(2)[:, None] > queries * BLOCK) | (keys == queries)
        every = (keys < queries) & (ends.amin(2)[:, None] >= (queries + 1) * BLOCK)
        if window is not None:
            least, most = positions.amin(2), positions.amax(2)
            some &= least[:, :, None] - most[:, None] < window
            every &= most[:, :, None] - least[:, None] < window
        return BlockMask.from_kv_blocks(
            *_listed(some & ~every),
            *_listed(every),
            BLOCK_SIZE=BLOCK,
            mask_mod=self.sees(window),
            seq_lengths=(length, length),
        )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns, for each row of `blocks`, how many are set, and the indices of all, those set first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1)[:, None].int(), order[:, None].int()


def first_fit(lengths: list[int]) -> tuple[list[int], tuple[int, int]]:
    """Packs texts into rows as long as the longest. Returns starts in the flattened rows, and the rows' shape."""
    width = max(lengths)
    used: list[int] = []
    starts = [0] * len(lengths)
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        row = next((row for row, filled in enumerate(used) if filled + lengths[text] <= width), len(used))
        if row == len(used):
            used.append(0)
        starts[text] = row * width + used[row]
        used[row] += lengths[text]
    return starts, (len(used), width)

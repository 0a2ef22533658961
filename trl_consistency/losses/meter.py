"""Losses since the last log, over the rows of all processes, for all rows and for anchors only."""

import torch
from accelerate import Accelerator
from torch import Tensor

from .row_losses import RowLosses


class LossMeter:
    """Accumulates sums and counts by name. Every process adds its own rows, and [`means`] gathers them."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, losses: dict[str, RowLosses], is_anchor: Tensor) -> None:
        """Adds the rows of a batch; `is_anchor`, (B,), marks the anchors."""
        rows = RowLosses(is_anchor.float(), torch.ones_like(is_anchor, dtype=torch.float))
        for name, of_rows in {"": rows, **losses}.items():
            both = torch.stack([of_rows.sums.detach().float(), of_rows.counts.float()])  # [2, B]
            # Sum and count over all rows, then over the anchors: [4]
            added = torch.cat([both.sum(1), both[:, is_anchor].sum(1)])
            self._sums[name] = self._sums[name] + added if name in self._sums else added

    def means(self, accelerator: Accelerator) -> tuple[float, dict[str, float], dict[str, float]]:
        """
        Returns the means since the last call, and resets: the share of anchors, the means by name over all rows, and
        over the anchors (empty without anchors). A quantity whose count is 0 is left out. Every process must call
        this.
        """
        if not self._sums:
            return 0.0, {}, {}
        gathered = accelerator.gather(torch.stack(list(self._sums.values()))[None])
        gathered = gathered.cpu().double().sum(0)  # [names, 4]; MPS has no float64
        sums = dict(zip(self._sums, gathered.tolist(), strict=True))
        self._sums = {}
        anchors, rows, *_ = sums.pop("")
        means = {name: total / count for name, (total, count, _, _) in sums.items() if count}
        of_anchors = {name: total / count for name, (_, _, total, count) in sums.items() if count}
        return anchors / max(rows, 1), means, of_anchors if anchors else {}

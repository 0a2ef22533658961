"""docs/architectures.md, made of the table: `python -m tests.support.page` writes it anew."""

from pathlib import Path

from tests.support.table import KINDS, NAMES, REFUSED, YES, rows_of_objectives, rows_of_roads


PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

INTRODUCTION = """\
# What is tested on which architectures

This page is made from the parameters of the tests (`python -m tests.support.page`), and a test compares the two. Each test takes
a tiny random model of the architecture, and a ragged batch.

- **Yes**, in the first table: the loss (to 1e-6, or 1e-5 of its size) and the gradients (to 1e-5) equal those of the definition,
  computed row by row without padding.
- **Yes**, in the second table: the compared states, and the gradients of a function of them, equal those.
- A **number** means that it is refused, with the reason below.

Other architectures are not in the tests. If a model cannot do something, that is an error there, too.
"""

ROADS = """\
## Ways to compute them

**Prompts once** is OPCT's sharing of a prompt by its rollouts: by a cache of keys, values and states, or packed in one row, which
gradient checkpointing needs ([opct.md](opct.md)). Where neither is possible, each rollout reads its own copy: the same result, slower.
**Padding-free** is `padding_free: true` of BCT, KL, ACT and MLPCT ([long_and_large.md](long_and_large.md#batches-without-padding)).
**Checkpointing** is `gradient_checkpointing: true`, of all objectives.
"""

REST = """\
Whole runs, which are resumed, in two processes, under gradient checkpointing and with weights in 4 bits, are tested with Qwen3,
Qwen3.5 and LFM2 ([distributed.md](distributed.md), [qlora.md](qlora.md), [interruption.md](interruption.md)). No figure on this page comes
from a GPU.
"""


def table(cells: dict[str, dict[str, str]]) -> str:
    """Returns the rows of all architectures. One that is neither tested nor refused is an error."""
    numbers = {reason: str(number) for number, reason in enumerate(REFUSED, start=1)}
    header = ["architecture", *(f"`{name}`" if name.endswith(("ct", "kl")) else name for name in cells)]
    lines = [header, ["---"] * len(header)]
    for kind in KINDS:
        of_kind = [of_column[kind] for of_column in cells.values()]
        lines.append([NAMES[kind], *(cell if cell == YES else numbers[cell] for cell in of_kind)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def make_page() -> str:
    reasons = "".join(f"{number}. {reason}\n" for number, reason in enumerate(REFUSED.values(), start=1))
    return "\n".join(
        [INTRODUCTION, "## Objectives\n", table(rows_of_objectives()), ROADS, table(rows_of_roads()), "## What is refused\n", reasons, REST]
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(make_page())

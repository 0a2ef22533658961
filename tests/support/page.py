"""docs/architectures.md, made of the table: `python -m tests.support.page` writes it anew."""

from pathlib import Path

from tests.losses.test_every_architecture import NO_BLOCKS, NO_CHECKPOINTING, NOT_SMALL, OTHER_LOGITS, OTHER_STATES
from tests.support.table import KINDS, NAMES, REFUSED, YES, rows_of_objectives, rows_of_roads, rows_of_runs


PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

INTRODUCTION = """\
# What is tested on which architectures

Find your model's architecture in the tables. In the first two, **yes** means tested, and a number means refused, with the reason
[below](#what-is-refused). [All others](#all-others) are tested less. If a model cannot do something, you get an error.
The names of Qwen3.5 lead to its recipes. (`Qwen/Qwen3.5-4B` is the row with the vision tower.)

Each test takes a tiny random model of the architecture, and a batch of rows with different lengths. It compares the result with the definition
of the method, computed row by row without padding:

- In the first table, the losses agree to 1e-6 (or 1e-5 of their size), and the gradients to 1e-5.
- In the second table, the compared states agree, and so do the gradients of a function of them. For sampling, the greedy answers agree.

`python -m tests.support.page` makes this page from the parameters of the tests, and a test compares the two.
"""

ROADS = """\
## Ways to compute them

- **Prompts once**: the rollouts of OPCT share their prompt ([OPCT](opct.md#a-prompt-once)), when they are sampled and when they are compared. They
  share a cache of keys, values and states. Under gradient checkpointing, they are compared in one packed row if that is possible. If
  neither is possible, each rollout reads its own copy. The result is the same, but slower.
- **Padding-free**: `padding_free: true` or `packing: true`, for BCT, KL, ACT and MLPCT
  ([Batches without padding](long_and_large.md#batches-without-padding)).
- **Checkpointing**: `gradient_checkpointing: true`, for all objectives.
"""

RUNS = """\
## Whole runs

Whole trainings run with these architectures (and with Qwen3 in many more tests): BCT with ACT, and OPCT. Two processes train KL, ACT, MLPCT and
BCT together, and OPCT. In 4 bits, BCT, ACT and OPCT are trained, each alone. A cell names the command that runs the test:

- **Resumed**: a run that goes on from a checkpoint ends with the weights of an uninterrupted one ([Interruption](interruption.md)).
- **Two processes**: they end with the weights of one process, to 1e-5 ([Many GPUs](distributed.md)).
- **Checkpointing**: the weights are the same as without it, to 1e-5 of their size.
- **Weights in 4 bits**: they stay as they are, and the adapter is trained ([QLoRA](qlora.md)).
"""

OTHERS = """\
## All others

`make test-long` makes a tiny model of every causal language model that the installed transformers has, from Llama 4 and DeepSeek-V3 to Mamba.
It compares `kl`, `act`, OPCT with and without gradient checkpointing, and the greedy answers of a padded batch with what the model says to one
text at a time. (BCT alone has the loss of `SFTTrainer`, and refuses the models of the first line below.) All agree within the bounds of the first table, except these, by `model_type`:

- No answers can be trained on (`kl`, OPCT): {logits}. They compute logits in a way that is not known.
- No states can be compared (`act`): {states}. They have several states after a block, or skip blocks.
- Nothing can be compared: {blocks}. They hold their blocks in no single list.
- transformers has no gradient checkpointing for them: {no_checkpointing}.
- `rwkv` takes no attention mask, so its prompts are answered one at a time.
- Not tried, because the sizes of the others do not make them small: {not_small}.

Encoders and parts of encoder-decoders cannot answer, and are left out.
"""

REST = """\
For all architectures on this page, tests pad batches on the left and on the right. Nothing on this page was measured on a GPU.

Not in the tables:

- **The estimate by the sampled token**, OPCT's `loss_type: policy_gradient`, takes the same passes as the exact divergence of the tables. It is
  tested with Qwen3 and Llama.
- **vLLM** itself was run with models of Llama's architecture ([vLLM](vllm.md#what-has-been-run)).
- **FlexAttention**, for long packed rows on a GPU ([OPCT](opct.md#a-prompt-once)), has tests with Qwen3 and Llama there.
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


def table_of_runs() -> str:
    """Returns the rows of the architectures with whole runs, each with all of them."""
    cells = rows_of_runs()
    lines = [["architecture", *cells], ["---"] * (1 + len(cells))]
    for kind in KINDS:
        if any(kind in of_column for of_column in cells.values()):
            lines.append([NAMES[kind], *(of_column[kind] for of_column in cells.values())])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def others() -> str:
    names = {"logits": OTHER_LOGITS, "states": OTHER_STATES, "blocks": NO_BLOCKS, "no_checkpointing": NO_CHECKPOINTING, "not_small": NOT_SMALL}  # fmt: skip
    return OTHERS.format(**{key: ", ".join(f"`{kind}`" for kind in kinds) for key, kinds in names.items()})


def make_page() -> str:
    reasons = "".join(f"{number}. {reason}\n" for number, reason in enumerate(REFUSED.values(), start=1))
    return "\n".join(
        [INTRODUCTION, "## Objectives\n", table(rows_of_objectives()), ROADS, table(rows_of_roads()), "## What is refused\n", reasons, RUNS, table_of_runs(), others(), REST]
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(make_page())

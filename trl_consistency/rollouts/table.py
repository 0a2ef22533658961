"""The table of rollouts, with the divergence from the reference at each token."""

import random
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..data.highlights import token_texts
from ..escaping import printable
from ..files import write_by
from .types import Rollouts


SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "clean_prompt": pa.string(),
        "perturbed_prompt": pa.string(),
        "completion": pa.string(),
        "tokens": pa.list_(pa.string()),
        "divergence": pa.list_(pa.float32()),
    }
)
PROMPTS = ["clean_prompt", "perturbed_prompt"]

# Styles of tokens whose divergence is at least this share of the highest one printed.
MARKS = {0.5: "bold white on red", 0.1: "black on yellow"}


class RolloutTable:
    """Keeps the latest batch of rollouts. Each process adds its own, and [`log`] gathers them."""

    def __init__(self, args: OnPolicyConsistencyConfig, tokenizer: PreTrainedTokenizerBase):
        self.args, self.tokenizer = args, tokenizer
        self._batches: deque[tuple[Rollouts, Tensor]] = deque(maxlen=args.steps_per_generation)

    def add(self, rollouts: Rollouts, divergence: Tensor) -> None:
        """Adds a micro-batch and the divergence of its compared tokens, (M,)."""
        if self.args.log_completions:
            self._batches.append((rollouts, divergence))

    def clear(self) -> None:
        """Forgets what was added since the last log."""
        self._batches.clear()

    def log(self, name: str, step: int) -> None:
        """
        Prints the rollouts, writes them under `output_dir`, sends them to the trackers as a table called `name`, and
        clears them. All processes must call this.
        """
        if not self.args.log_completions:
            return
        rows = gather_object([row for batch in self._batches for row in self._rows(*batch, step)])
        self.clear()
        if rows and PartialState().is_main_process:
            print_rollouts(rows, f"{name}, step {step}", self.args.num_completions_to_print)
            file_name = f"{name.replace('/', '_')}_{step:05d}.parquet"
            write_parquet(rows, Path(self.args.output_dir) / "completions" / file_name)
            send_to_trackers(rows, name, self.args.report_to, self.args.log_unique_prompts)

    def _rows(self, rollouts: Rollouts, divergence: Tensor, step: int) -> list[dict[str, Any]]:
        sides = [
            [
                ids[mask.bool()].tolist()
                for ids, mask in zip(rollouts[f"{side}_ids"], rollouts[f"{side}_mask"], strict=True)
            ]
            for side in ("clean", "prompt", "completion")
        ]
        values = iter(divergence.tolist())
        rows = []
        for clean_ids, perturbed_ids, completion_ids, mask in zip(*sides, rollouts["loss_mask"].tolist(), strict=True):
            texts = self.tokenizer.batch_decode([clean_ids, perturbed_ids, completion_ids], skip_special_tokens=True)
            # `divergence` holds one value for each compared token, in order.
            of_tokens = [next(values) if compared else None for compared in mask[: len(completion_ids)]]
            row = [step, *texts, token_texts(completion_ids, self.tokenizer), of_tokens]
            rows.append(dict(zip(SCHEMA.names, row, strict=True)))
        return rows


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    write_by(path, lambda place: pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), place))


def send_to_trackers(rows: list[dict[str, Any]], name: str, trackers: list[str], unique_prompts: bool) -> None:
    """Logs a table called `name` to Weights & Biases and Trackio, where they are among `trackers`."""
    for tracker in {"wandb", "trackio"} & set(trackers):
        module: Any = import_module(tracker)
        if tracker == "wandb" and module.run is None:
            continue
        frame = pd.DataFrame(rows)
        if unique_prompts:
            frame = frame.drop_duplicates(subset=PROMPTS)
        module.log({name: module.Table(dataframe=frame)})


def print_rollouts(rows: list[dict[str, Any]], title: str, num_rows: int | None = None) -> None:
    """Prints rollouts with the tokens of the highest divergence marked: `num_rows` drawn at random, or all."""
    if num_rows is not None and num_rows <= 0:
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    if num_rows is not None and num_rows < len(rows):
        chosen = random.Random(rows[0]["step"]).sample(range(len(rows)), num_rows)
        rows = [rows[index] for index in sorted(chosen)]
    compared = [[value for value in row["divergence"] if value is not None] for row in rows]
    highest = max((value for values in compared for value in values), default=0.0)

    table = Table(expand=True, show_lines=True, header_style="bold")
    for column in ("Clean prompt", "Perturbed prompt", "Completion"):
        table.add_column(column, ratio=1)
    table.add_column("Divergence")
    for row, values in zip(rows, compared, strict=True):
        clean_prompt, perturbed_prompt = (Text(printable(row[side].strip())) for side in PROMPTS)
        if clean_prompt == perturbed_prompt:
            perturbed_prompt = Text("the same (anchor)", "dim")
        completion = Text()
        for token, value in zip(row["tokens"], row["divergence"], strict=True):
            completion.append(printable(token), _style(value, highest))
        numbers = "not compared"
        if values:
            numbers = f"mean {sum(values) / len(values):.3f}\nmax  {max(values):.3f}"
            if _style(max(values), highest):
                numbers += f"\nat {row['tokens'][row['divergence'].index(max(values))]!r}"
        table.add_row(clean_prompt, perturbed_prompt, completion, Text(numbers))

    legend = Text("Divergence of a token from the reference, in nats: ")
    for share, style in MARKS.items():
        legend.append(f"≥ {share * highest:.3f}", style).append("  ")
    legend.append("not compared", "dim")
    table.caption = legend
    Console().print(Panel(table, title=title, expand=False))


def _style(divergence: float | None, highest: float) -> str:
    if divergence is None:
        return "dim"
    return next((style for share, style in MARKS.items() if divergence >= share * highest > 0), "")

"""The tables of other pages that are made of the benchmark's rows."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.reproduce.page import filled
from trl_consistency.files import write_text
from trl_consistency.pages import row_table


NOT_MEASURED = "not measured"

SHARING = {
    "opct_step": "512 and 128, 8 rollouts of 64",
    "opct_checkpointed_step": "the same, with gradient checkpointing",
    "opct_short_step": "200 and 180, 4 rollouts of 200",
    "hybrid_qwen3_5": "Qwen3.5: 512 and 128, 8 rollouts of 64",
    "hybrid_lfm2": "LFM2: 512 and 128, 8 rollouts of 64",
}
PADDING = {"padding_bct": "BCT", "padding_kl": "KL", "padding_act": "ACT"}


def sharing_table(results: Mapping[str, Any]) -> str:
    """Returns what it saves to compute each prompt once: times and memory of our step beside the rival's."""
    rows = []
    for name, label in SHARING.items():
        if name not in results:
            rows.append((label, [NOT_MEASURED] * 4))
            continue
        (ours, rival), (ratio,) = results[name]["rivals"].values(), results[name]["ratios"].values()
        seconds = [f"{of['cpu']['median']:.2f}" for of in (rival, ours)]
        rows.append((label, [*seconds, f"{ratio['median']:.1f}", f"{ours['peak'] / rival['peak']:.2f}"]))
    head = [
        "tokens of the two prompts, and of the rollouts",
        "row by row",
        "here",
        "times as fast",
        "memory, of theirs",
    ]
    return str(row_table(head, rows))


def padding_table(results: Mapping[str, Any]) -> str:
    """Returns what it saves to leave out padding: CPU seconds of each rival, and how many times as long padding takes."""
    rows = []
    for name, label in PADDING.items():
        rivals = results.get(name, {}).get("rivals", {})
        medians = {rival: of["cpu"]["median"] for rival, of in rivals.items()}
        cells = []
        for rival in ("padded", "padding-free", "packed"):
            faster = f" ({medians['padded'] / medians[rival]:.1f} times as fast)" if rival in medians else ""
            text = f"{medians[rival]:.2f}" if rival in medians else NOT_MEASURED
            cells.append(text + faster * (rival != "padded"))
        rows.append((label, cells))
    return str(row_table(["CPU seconds", "padded", "without padding", "packed"], rows))


PAGES: dict[str, dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "opct.md": {"sharing": sharing_table},
    "long_and_large.md": {"padding": padding_table},
}


def made_page(page: Path, results: Mapping[str, Any]) -> str:
    """Returns a page's text with the tables of these rows."""
    return filled(page.read_text(encoding="utf-8"), {name: make(results) for name, make in PAGES[page.name].items()})


def write_quotes(docs: Path, results: Mapping[str, Any]) -> None:
    """Writes the tables into the pages that are in a folder."""
    for page in map(docs.joinpath, PAGES):
        if page.is_file():
            write_text(page, made_page(page, results))

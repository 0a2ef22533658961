"""`make release`: are the archives as they should be, and do they work on each Python that is there?"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import trl_consistency
from tests.release.archives import unexpected
from tests.release.environments import (
    CONSTRAINTS,
    PYTHONS,
    ROOT,
    check_installed,
    find_python,
    install,
    make_environment,
    run,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with the wheel and the source archive")
    parser.add_argument("--quickstart", action="store_true", help="compare the wheel's quickstart with the checkout's")
    options = parser.parse_args()
    (wheel,), (source,) = options.dist.resolve().glob("*.whl"), options.dist.resolve().glob("*.tar.gz")
    for archive in (wheel, source):
        if found := unexpected(archive):
            sys.exit(f"{archive.name} has files that it should not have: {', '.join(found)}")
        print(f"{archive.name}: {archive.stat().st_size:,} bytes")
    there = {version: find_python(version) for version in PYTHONS}
    if absent := [version for version, python in there.items() if python is None]:
        print(f"Not tested, because it is not installed here: Python {', '.join(absent)}.")
    compared = False
    for version, python in there.items():
        if python is None:
            continue
        for archive in (wheel, source):
            with tempfile.TemporaryDirectory() as folder:
                programs = make_environment(python, Path(folder) / "environment")
                constraint = ("--constraint", str(CONSTRAINTS))
                install(programs, *constraint, "torch")
                install(programs, *constraint, f"{archive}[eval]")
                work = Path(folder) / "work"
                work.mkdir()
                check_installed(programs, work, trl_consistency.__version__)
                print(f"Python {version}: {archive.name} works")
                if options.quickstart and not compared:
                    compare_quickstarts(programs, work)
                    compared = True


def compare_quickstarts(programs: Path, folder: Path) -> None:
    """Ends the program if the wheel's quickstart gives other figures than that of this checkout."""
    command = ["quickstart", "--json", "--output_dir"]
    of_wheel = json.loads(run([programs / "trl-consistency", *command, folder / "of_wheel"], folder))
    here = [sys.executable, "-m", "trl_consistency.cli", *command, folder / "of_checkout"]
    of_checkout = json.loads(run(here, ROOT))
    if of_wheel["models"] != of_checkout["models"]:
        sys.exit("The quickstart of the wheel gives other figures than that of this checkout.")
    print("The quickstart of the wheel gives the same figures as that of this checkout.")


if __name__ == "__main__":
    main()

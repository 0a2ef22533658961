"""`python -m tests.recipes` writes recipes/ and docs/recipes.md from the table; `--check` compares."""

import argparse
import sys

from tests.recipes.estimates import estimate_all
from tests.recipes.files import differing, write_files
from tests.recipes.page import PAGE, make_page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.recipes", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="change nothing, and fail if a file differs")
    choice.add_argument("--pin", action="store_true", help="write the newest commit of each model into its recipes")
    choice.add_argument("--estimate", action="store_true", help="compute the memory of recipes where it is missing")
    args = parser.parse_args()
    if args.check:
        differ = differing() + (["docs/recipes.md"] if PAGE.read_text(encoding="utf-8") != make_page() else [])
        sys.exit(f"Run `python -m tests.recipes`; it changes: {', '.join(differ)}" if differ else 0)
    if args.pin:
        from tests.recipes.pins import pin

        pin()
    if args.estimate:
        estimate_all()
    write_files()
    PAGE.write_text(make_page(), encoding="utf-8")


if __name__ == "__main__":
    main()

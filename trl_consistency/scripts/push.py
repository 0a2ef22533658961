"""
Publishes a folder with a trained model on the Hub.

```bash
trl-consistency push outputs/bct user/name
```
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ..errors import ends_with_message
from ..folder_lock import locked_folder
from .json_output import JSON_HELP, one_object


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Publishes a trained model: its weights, tokenizer, card, results and plots."""
    parser = argparse.ArgumentParser(prog=prog, description=run.__doc__, allow_abbrev=False)
    parser.add_argument("folder", metavar="DIR", help="folder of the model, as a training command saved it")
    parser.add_argument("repo_id", metavar="REPO", help="repository on the Hub: user/name")
    parser.add_argument(
        "--base_model", metavar="NAME", help="name on the Hub of a local base model; it is written into DIR"
    )
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", metavar="BRANCH", help="branch, created if missing (main)")
    parser.add_argument(
        "--include", nargs="+", action="extend", default=[], metavar="PATTERN", help="further files to send"
    )
    parser.add_argument("--dry_run", action="store_true", help="only print what would be sent")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    options = vars(parser.parse_args(args))
    with one_object(options.pop("json")) as printed:
        from ..publishing.hub import is_checkpoint, prepare, send  # imports torch, which `--help` does not need

        folder, dry_run = Path(options["folder"]), options["dry_run"]
        with locked_folder(folder, "publishes", None) if folder.is_dir() and not dry_run else nullcontext():
            upload = prepare(
                folder, options["repo_id"], options["base_model"], options["include"], options["revision"]
            )
            url = None if dry_run else send(upload, options["private"], options["revision"])
        if url and is_checkpoint(folder):
            print(f"{folder} is a checkpoint and was not changed: only the published card and config were completed.")
        print(upload.listing() if url is None else f"Published: {url}")
        printed |= {"repo_id": upload.repo_id, "url": url, "sent": upload.sizes(), "kept": upload.left_out}


if __name__ == "__main__":
    run()

"""
The files in docs/results/cells: one for each model, with the outcome of every row, so that rates, differences and their
paired intervals can be computed from the files alone. What a model said in words is in `replies` beside them, so that
anybody can read it again by other rules.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation.grading.grade import Grade
from trl_consistency.evaluation.rates.intervals import Sample, Values
from trl_consistency.evaluation.rates.measures import Samples
from trl_consistency.files import write_bytes, write_text


FORMAT = 1
ROOT = Path(__file__).parents[2]
CELLS_DIR = ROOT / "docs" / "results" / "cells"

# The letter of each outcome, and of each reason why an answer is unread.
LETTERS = {
    "right": "r",
    "suggested": "s",
    "other": "o",
    "unparsed": "u",
    "names both": "b",
}
OUTCOMES = {letter: outcome for outcome, letter in LETTERS.items()}


def digest(content: Any) -> str:
    """Returns a short digest of what JSON can hold, or of bytes."""
    data = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=10).hexdigest()


def letters_of(grades: Sequence[Grade]) -> str:
    """Returns one letter for each grade."""
    return "".join(LETTERS[grade.unread or grade.outcome] for grade in grades)


def counts(letters: str) -> dict[str, int]:
    """Returns how many answers have each outcome; all that are unread count together."""
    found = {"right": letters.count("r"), "suggested": letters.count("s"), "other": letters.count("o")}
    return found | {"unread": len(letters) - sum(found.values())}


def samples_of(of_set: Mapping[str, Any]) -> Samples:
    """Returns the samples that rates are estimated from (`METRICS` names them), of a set in a cell."""
    sources = list(map(str, of_set["sources"]))

    def sample(letters: str, *outcomes: str) -> Sample:
        said = [OUTCOMES[letter] for letter in letters]
        return Sample([of in outcomes if of in ("right", "suggested", "other") else of for of in said], sources)

    found: Samples = {}
    if "clean" in of_set:
        clean, perturbed = of_set["clean"], of_set["perturbed"]
        found = {
            "right without cue": sample(clean, "right"),
            "right in pair without cue": sample(clean, "right"),
            "right": sample(perturbed, "right"),
            "suggested": sample(perturbed, "suggested"),
            "suggested without cue": sample(clean, "suggested"),
            "resisted": sample(perturbed, "right", "other"),
        }
    return found


def margins_of(of_set: Mapping[str, Any]) -> dict[str, Values]:
    """Returns the margins of right answers over suggested ones, of a set in a cell that was measured by preference."""
    sources = list(map(str, of_set["sources"]))
    names = {"clean_margins": "margin without cue", "perturbed_margins": "margin"}
    return {name: Values(of_set[key], sources) for key, name in names.items() if key in of_set}


def write_cell(file: Path, cell: Mapping[str, Any]) -> None:
    """Writes a cell, lists of numbers in one line each."""
    text = json.dumps(cell, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[-\d.,\senul]*\]", lambda found: re.sub(r"\s+", "", found[0]), text)
    write_text(file, text + "\n")


def read_cell(file: Path) -> dict[str, Any]:
    """Reads a cell. Raises [`ConsistencyError`] if it is not one of this format."""
    try:
        cell = dict(json.loads(file.read_text(encoding="utf-8")))
        found = cell["format"]
    except (ValueError, KeyError, TypeError):
        raise ConsistencyError(f"{file} is not a cell: delete it, and measure it again.") from None
    if found != FORMAT:
        raise ConsistencyError(f"{file} has format {found}, not {FORMAT}: delete it, and measure it again.")
    return cell


def replies_file(cell: Path) -> Path:
    return cell.parent / "replies" / f"{cell.stem}.json.gz"


def write_replies(file: Path, replies: Mapping[str, Any]) -> None:
    """Writes the replies of a cell: the same bytes for the same replies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, gzip.compress(json.dumps(replies, ensure_ascii=False).encode(), mtime=0))


def read_replies(file: Path) -> dict[str, Any]:
    """Reads the replies of a cell: for each set in words a digest of its `prompts`, and the replies of each side."""
    return dict(json.loads(gzip.decompress(file.read_bytes()))) if file.is_file() else {}

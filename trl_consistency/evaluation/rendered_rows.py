"""The columns of rendered rows, and whether a row was changed since."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..data.pairs import PROMPT_COLUMNS, report_faults
from ..data.repeats import prompt_key


TOKEN_IDS = ("clean_ids", "perturbed_ids")
UNKNOWN = "_unknown"  # the column of rendered rows that counts words which the tokenizer does not know
RENDERED = "_rendered_from"  # the column of rendered rows that tells whether their prompts were changed since
PREPARED = (*TOKEN_IDS, UNKNOWN, RENDERED)


def check_unchanged(
    rows: Sequence[Mapping[str, Any]], name: str = "rows", numbers: Sequence[int] | None = None
) -> None:
    """Raises [`InvalidPairsError`] for rows that were changed after they were rendered: a model would be asked as before."""
    places = zip(range(len(rows)) if numbers is None else numbers, rows, strict=True)
    changed = [place for place, row in places if row.get(RENDERED) and row[RENDERED] != digest_of(row)]
    fault = (
        "its prompts, `tools` or `chat_template_kwargs` were changed after it was rendered. Make it anew without "
        + ", ".join(f"`{column}`" for column in PREPARED)
    )
    report_faults([(place, fault) for place in changed], name, len(rows))


def digest_of(row: Mapping[str, Any]) -> str:
    """Returns a digest of what a row asks."""
    return hashlib.blake2b(prompt_key(row, *PROMPT_COLUMNS).encode(errors="surrogatepass"), digest_size=8).hexdigest()

"""The columns by which answers are graded, checked before anything is answered."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

from ..data.pairs import check_prompt_columns, report_faults, row_checker
from ..errors import ConsistencyError


Rows: TypeAlias = Sequence[dict[str, Any]]

KEYS = ("answer", "biased_answer", "category")
REQUESTS = ("harmful", "benign")  # categories that are not for telling questions apart


def check_rows(rows: Rows, name: str) -> None:
    """Raises [`ConsistencyError`] for rows without prompts, or with faulty ones."""
    if not rows:
        raise ConsistencyError(f"{name} has no rows.")
    check_prompt_columns(list(dict.fromkeys(column for row in rows for column in row)), name)
    check_row = row_checker(rows[0], has_completion=False)
    report_faults([(index, fault) for index, row in enumerate(rows) for fault in check_row(row)], name, len(rows))


def check_keys(rows: Rows, name: str) -> None:
    """Raises [`ConsistencyError`] for keys (`answer`, `biased_answer`, `category`) that would be misread or passed over."""
    columns = {column for row in rows for column in row}
    for key in KEYS:
        near = get_close_matches(key, columns - {*KEYS}, n=1, cutoff=0.8)
        if key not in columns and near:
            raise ConsistencyError(
                f"{name}: the column `{near[0]}` would be ignored. Rename it to `{key}` if that is what it holds, or to "
                "something else if not."
            )
    faults = [
        (index, f"`{column}` must be text, not {row[column]!r}")
        for index, row in enumerate(rows)
        for column in KEYS
        if not isinstance(row.get(column), str | None)
    ]
    faults += [
        (index, f"`source_id` must be text or a number, not {row['source_id']!r}")
        for index, row in enumerate(rows)
        if not isinstance(row.get("source_id"), str | int | float | None) or isinstance(row.get("source_id"), bool)
    ]
    faults += [
        (index, f"`category` must be `{row['category'].strip().lower()}`, not {row['category']!r}")
        for index, row in enumerate(rows)
        if isinstance(row.get("category"), str)
        and row["category"] not in REQUESTS
        and row["category"].strip().lower() in REQUESTS
    ]
    report_faults(faults, name, len(rows))

"""The sections of docs/benchmarks.md on growth, and on what to improve next."""

from typing import Any

from tests.benchmarks.growth import exponent
from tests.benchmarks.rows import DATA
from tests.benchmarks.words import Results, table


def growth(results: Results) -> list[str]:
    tables = [*_of_step(results), *_of_processes(results), *_of_data(results)]
    about = "With an exponent of 1, twice as much takes twice as long. With 0, it takes no longer. Beside it is the exponent of the operations that are needed."
    return ["## Growth", about, *tables] if tables else []


def fast_growing(results: Results) -> list[str]:
    """Names what grows faster than it should."""
    lines = [
        f"- With *{name}* the step grows by an exponent of {grown['exponent']:.2f}, and {grown['expected']:.2f} would do."
        for name, grown in results.get("growth", {}).get("growth", {}).items()
        if grown["exponent"] > grown["expected"] + 0.15
    ]
    for name in DATA:
        fitted = _exponent_of_rows(results.get(name, {}).get("rivals", {}))
        if fitted is not None and fitted > 1.15:
            lines.append(f"- `{name}` grows by an exponent of {fitted:.2f} with the pairs, and 1 would do.")
    return lines


def _of_step(results: Results) -> list[str]:
    if "growth" not in results:
        return []
    rows = [
        [
            name,
            " / ".join(f"{of:.3g}" for of in grown["seconds"]),
            f"{grown['exponent']:.2f}",
            f"{grown['expected']:.2f}",
        ]
        for name, grown in results["growth"]["growth"].items()
    ]
    head = ["what grows", "CPU seconds at 1, 2 and 4 times", "exponent", "of the needed operations"]
    return [
        "OPCT's step while one thing grows and all else stays: the shortest of three turns, on a model of half the width and half the blocks.\n\n"
        + table(head, rows)
    ]


def _of_processes(results: Results) -> list[str]:
    if "processes" not in results:
        return []
    found = results["processes"]["processes"]
    counts = [str(count) for count in found["counts"]]
    rows = [
        [words, *(f"{of:.3g}" for of in found[kind]), f"{exponent(found['counts'], found[kind]):.2f}", expected]
        for kind, words, expected in (
            ("cpu", "CPU seconds of all processes", "0"),
            ("wall", "wall seconds", "-1 on free cores"),
        )
    ]
    return [
        "OPCT's optimization step on two prompts with eight rollouts each, all in one process or shared out to two: the shortest of three "
        "turns. The vocabulary has 4,096 tokens.\n\n" + table(["processes", *counts, "exponent", "expected"], rows)
    ]


def _of_data(results: Results) -> list[str]:
    rows = []
    for name in DATA:
        fitted = _exponent_of_rows(results.get(name, {}).get("rivals", {}))
        if fitted is not None:
            rows.append([f"`{name}`", f"{fitted:.2f}", "1"])
    head = ["CPU seconds over those of the fewest pairs", "exponent", "expected"]
    return [f"Commands and data while the pairs grow in number.\n\n{table(head, rows)}"] if rows else []


def _exponent_of_rows(rivals: dict[str, Any]) -> float | None:
    """Returns None if fewer than three numbers of rows were measured, or if time does not grow with them."""
    points = sorted((int(rows), of["cpu"]["median"]) for rows, of in rivals.items())
    more = [(rows - points[0][0], seconds - points[0][1]) for rows, seconds in points[1:]]
    if len(more) < 2 or any(seconds <= 0 for _, seconds in more):
        return None
    return exponent([rows for rows, _ in more], [seconds for _, seconds in more])

"""
The spread of what turns found: the least and the greatest of all turns, with each of them.

Rows that were measured before each turn was kept hold the quartiles alone, and no `each`.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any


Spread = dict[str, Any]  # median, low, high, and each
# Of a ratio, for a warning. Within the committed runs, single turns lie up to a tenth below their median, so less may be noise.
LEAST_DROP = 0.1


def spread(values: Sequence[float]) -> Spread:
    """Returns the median, the least and the greatest of the turns, and each in their order."""
    return {"median": median(values), "low": min(values), "high": max(values), "each": list(values)}


def inverse(of: Spread) -> Spread:
    """Returns the spread of a ratio turned round."""
    each = {"each": [1 / ratio for ratio in of["each"]]} if "each" in of else {}
    middle = median(each["each"]) if each else 1 / of["median"]
    return {"median": middle, "low": 1 / of["high"], "high": 1 / of["low"], **each}


def quartiles(of: Spread) -> Spread:
    """Returns a spread with the quartiles, between which half of the turns lie, as `low` and `high`."""
    if "each" not in of:
        return of
    ordered = sorted(of["each"])
    quarter = (len(ordered) - 1) / 4
    return {"median": of["median"], "low": _at(ordered, quarter), "high": _at(ordered, 3 * quarter)}


def slipped(committed: Spread, found: Spread) -> bool:
    """Whether a ratio has fallen by a tenth or more, and its upper quartile is below the lower one of the committed ratio."""
    has_dropped = found["median"] <= (1 - LEAST_DROP) * committed["median"]
    return has_dropped and quartiles(found)["high"] < quartiles(committed)["low"]


def alike(spreads: Sequence[Spread]) -> tuple[list[Spread], str]:
    """
    Returns spreads that can be compared, and what they span: `all turns` if each of the spreads holds them, otherwise
    `quartiles`.
    """
    if all("each" in of for of in spreads):
        return list(spreads), "all turns"
    return [quartiles(of) for of in spreads], "quartiles"


def _at(ordered: list[float], place: float) -> float:
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])

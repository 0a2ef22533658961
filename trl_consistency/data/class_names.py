"""Gives rows the names of their classes, where `datasets` keeps numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConsistencyError


@dataclass
class NamedRows:
    """The rows of a data set with the names of classes, read anew each time."""

    dataset: Any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return named_rows(self.dataset)


def named_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of a data set, or other rows, with the names of classes; see [`with_class_names`]."""
    return with_class_names(dataset, classes_of(getattr(dataset, "features", None)))


def classes_of(features: Any) -> dict[str, Any]:
    """Returns the columns that hold classes, alone or in lists and structs, with their features. Those of a data set may be None."""
    return {column: of for column, of in (features or {}).items() if _holds_classes(of)}


def _holds_classes(feature: Any) -> bool:
    from datasets import ClassLabel, LargeList, List

    if isinstance(feature, List | LargeList):
        return _holds_classes(feature.feature)
    if isinstance(feature, dict):
        return any(map(_holds_classes, feature.values()))
    return isinstance(feature, ClassLabel)


def with_class_names(rows: Iterable[Mapping[str, Any]], classes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """
    Yields rows with the names of classes, where `datasets` keeps numbers: a category 0 would not be read as `harmful`, nor an
    answer 1 as `yes`. `classes` has the features by column, from [`classes_of`].
    """
    for row in rows:
        if not isinstance(row, Mapping):
            raise ConsistencyError(
                f"The data must be rows with named columns, but hold {row!r:.40}. Choose one split of several, or convert a table with "
                "`Dataset.from_pandas`."
            )
        yield {**row, **{column: _named(row[column], of) for column, of in classes.items() if column in row}}


def _named(value: Any, feature: Any) -> Any:
    """Returns a value with names in place of the numbers of classes in it."""
    if isinstance(feature, dict):
        if isinstance(value, Mapping):
            return {key: _named(of, feature.get(key)) for key, of in value.items()}
    elif isinstance(value, list):
        return [_named(of, getattr(feature, "feature", None)) for of in value]
    elif names := getattr(feature, "names", None):
        return _class_name(value, names)
    return value


def _class_name(value: Any, names: Sequence[str]) -> Any:
    """Returns the name of a class for its number, which CSV files hold as text. -1 stands for no class."""
    if isinstance(value, str) and value not in names and value.removeprefix("-").isdecimal():
        value = int(value)
    if isinstance(value, int):
        return names[value] if 0 <= value < len(names) else None
    return value

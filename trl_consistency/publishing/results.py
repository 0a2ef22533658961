"""The results that a page shows: `consistency_results.json` in the model's folder. docs/publishing.md says what is in it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from ..errors import ConsistencyError


RESULTS_FILE = "consistency_results.json"
# What tells our entries of a card's `model-index` from others.
DATASET_TYPE = "consistency-pairs"


@dataclass(frozen=True)
class Figure:
    """A measured value, with its 95% interval and its counts where it has them."""

    value: float | None
    interval: tuple[float, float] | None = None
    hits: int | None = None
    total: int | None = None
    unparsed: int = 0

    def __str__(self) -> str:
        if self.value is None:
            return f"n/a, {self.unparsed} unparsed"
        share = self.total is not None
        text = f"{100 * self.value:.1f}%" if share else f"{self.value:.4g}"
        if self.interval is not None:
            low, high = self.interval
            text += f" [{100 * low:.1f}, {100 * high:.1f}]" if share else f" [{low:.4g}, {high:.4g}]"
        if share:
            text += f" (n={self.total})" if self.hits is None else f" ({self.hits}/{self.total})"
        return text + (f", {self.unparsed} unparsed" if self.unparsed else "")


@dataclass(frozen=True)
class Result(Figure):
    """
    What a model scores on a metric.

    Args:
        metric (`str`):
            The metric: `"sycophancy"`.
        split (`str`, *optional*):
            What it was measured on: `"test_wordings"`.
        name (`str`, *optional*):
            What the page calls it. By default metric and split.
        before (`Figure`, *optional*):
            The base model, on the same rows.
    """

    metric: str = ""
    split: str | None = None
    name: str | None = None
    before: Figure | None = None

    @property
    def title(self) -> str:
        return self.name or (f"{self.metric}, {self.split}" if self.split else self.metric)


def write_results(folder: str | Path, results: Sequence[Result], description: str | None = None) -> Path:
    """
    Writes the results of a model into its folder, for its page.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            Folder of the model.
        results (`Sequence[Result]`):
            The results.
        description (`str`, *optional*):
            What the page says above them: on what and how they were measured.

    Returns:
        [`~pathlib.Path`]: The file.

    Raises:
        [`ConsistencyError`]: For figures that cannot be: more hits than answers, for one.
    """
    path = Path(folder) / RESULTS_FILE
    entries = [_without_none(asdict(result)) for result in results]
    for number, entry in enumerate(entries):
        _read_result(entry, f"result {number}")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"description": description, "results": entries}
    path.write_text(json.dumps(_without_none(content), indent=2) + "\n", encoding="utf-8")
    return path


def read_results(folder: str | Path) -> tuple[list[Result], str | None]:
    """
    Reads the results in a model's folder, and their description; without a file, there are none.

    Raises:
        [`ConsistencyError`]: If the file is not in the format above.
    """
    path = Path(folder) / RESULTS_FILE
    if not path.exists():
        return [], None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConsistencyError(f"{path} is not JSON ({error}). Write it with `write_results`.") from None
    if not isinstance(content, dict) or not isinstance(content.get("results"), list):
        raise ConsistencyError(f"{path} must hold an object with a list of `results`.")
    _check_keys(content, {"description", "results"}, str(path))
    results = [_read_result(entry, f"{path}, result {number}") for number, entry in enumerate(content["results"])]
    return results, content.get("description")


def results_table(results: Sequence[Result]) -> str:
    """A Markdown table of the results, with the base model's beside them."""
    compared = any(result.before for result in results)
    rows = [["", *(["before"] if compared else []), "after"]]
    rows.append(["---"] * len(rows[0]))
    for result in results:
        before = [str(result.before or "-")] if compared else []
        rows.append([result.title.replace("|", "\\|"), *before, str(result)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def model_index(results: Sequence[Result]) -> list[EvalResult]:
    """The results as the entries of a card's `model-index`."""
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=DATASET_TYPE,
            dataset_name=f"Pairs of clean and perturbed prompts{f' ({result.split})' if result.split else ''}",
            dataset_split=result.split,
            metric_type=result.metric,
            metric_name=result.title,
            metric_value=result.value,
            metric_args=_without_none(
                {
                    "interval": list(result.interval) if result.interval else None,
                    "hits": result.hits,
                    "total": result.total,
                    "unparsed": result.unparsed,
                }
            ),
        )
        for result in results
        if result.value is not None
    ]


def _read_result(entry: Any, where: str) -> Result:
    if not isinstance(entry, dict) or not isinstance(entry.get("metric"), str):
        raise ConsistencyError(f"{where} must be an object with a `metric`.")
    entry = {**entry, **_read_figure(entry, where)}
    if entry.get("before") is not None:
        if not isinstance(entry["before"], dict):
            raise ConsistencyError(f"{where}: `before` must be an object with a `value`.")
        _check_keys(entry["before"], {field.name for field in fields(Figure)}, f"{where}, `before`")
        entry["before"] = Figure(**_read_figure(entry["before"], f"{where}, `before`"))
    _check_keys(entry, {field.name for field in fields(Result)}, where)
    for key in ("split", "name"):
        if entry.get(key) is not None and not isinstance(entry[key], str):
            raise ConsistencyError(f"{where}: `{key}` must be text, got {entry[key]!r}.")
    return Result(**entry)


def _read_figure(entry: dict[str, Any], where: str) -> dict[str, Any]:
    figure = {field.name: entry[field.name] for field in fields(Figure) if field.name in entry}
    value, interval = figure.get("value"), figure.get("interval")
    if "value" not in figure or not (value is None or _is_number(value)):
        raise ConsistencyError(f"{where} must have a `value`, a finite number or null, got {value!r}.")
    if interval is not None:
        is_pair = isinstance(interval, (list, tuple)) and len(interval) == 2 and all(map(_is_number, interval))
        if not is_pair or interval[0] > interval[1]:
            raise ConsistencyError(f"{where}: `interval` must be two numbers, the lower one first, got {interval!r}.")
        figure["interval"] = tuple(interval)
    for count in ("hits", "total", "unparsed"):
        if figure.get(count) is not None and (not isinstance(figure[count], int) or figure[count] < 0):
            raise ConsistencyError(f"{where}: `{count}` must be a count, got {figure[count]!r}.")
    hits, total = figure.get("hits"), figure.get("total")
    if hits is not None and total is not None and hits > total:
        raise ConsistencyError(f"{where}: `hits` {hits} is more than the `total` of {total}.")
    if value is not None and total is not None and not -1 <= value <= 1:
        raise ConsistencyError(
            f"{where}: with a `total`, `value` is a share, from -1 to 1, got {value}. Leave `total` out if it is none."
        )
    if value is None and total:
        raise ConsistencyError(f"{where}: `value` is null, but {total} answers were judged, by `total`.")
    # Where nothing was judged, the interval is anything: from 0, or of a difference from -1, to 1.
    if value is None and interval is not None and (interval[0] > 0 or interval[1] < 1):
        raise ConsistencyError(f"{where}: `interval` {list(interval)} has no `value`.")
    return figure


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_keys(entry: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(entry) - known)
    if unknown:
        raise ConsistencyError(f"{where}: unknown key `{unknown[0]}`; known are {', '.join(sorted(known))}.")


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    # A value of null means that nothing could be judged: it stays.
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in entry.items()
        if value is not None or key == "value"
    }

"""Checks that all processes of a training were given the same."""

from typing import Any

from accelerate.utils import gather_object

from ...data.eval_sets import named
from ...errors import ConsistencyError
from ...models.sharding import is_sharded
from .manifest import GENERATION, OPTIONS, describe_rows, show


def check_same(trainer: Any, run: dict[str, Any]) -> None:
    """
    Raises [`ConsistencyError`] in all processes if one of them has other rows, options or weights than the first. `run`
    describes those of this process.
    """
    if trainer.accelerator.num_processes == 1:
        return
    sets = {name: describe_rows(dataset) for name, dataset in named(trainer.eval_dataset).items()}
    compared = {*trainer.recorded_data, *OPTIONS, *GENERATION, "chat_template", "length", "rows_per_step"}
    # Of a sharded model, the first process alone may have the weights yet, and 4-bit weights may be rounded by each.
    if not is_sharded(trainer.accelerator) and getattr(trainer.model, "hf_quantizer", None) is None:
        compared |= {"model", "reference"}
    first, *others = gather_object([{name: value for name, value in run.items() if name in compared} | sets])
    for number, other in enumerate(others, 1):
        differing = next((name for name in {**first, **other} if first.get(name) != other.get(name)), None)
        if differing is None:
            continue
        advice = "Set it alike in all"
        if differing in {*trainer.recorded_data, *sets}:
            advice = (
                "Give all the same rows in the same order, with a seed if you shuffle them: the trainer shares them out itself (no "
                "`split_dataset_by_node`)"
            )
        elif differing in ("model", "reference"):
            advice = "Give all the same weights: set a seed before the model is made, or changed"
        raise ConsistencyError(
            f"Process {number} has another `{differing}` than process 0 ({show(other.get(differing))}, and not "
            f"{show(first.get(differing))}). {advice}."
        )

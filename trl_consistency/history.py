"""What the entries of a trainer's log are about: its own evaluation sets, or other rows, or the model without its adapter."""

from collections.abc import Iterable, Mapping
from typing import Any


# In an entry: the evaluation was on other rows than the trainer's set of that name
OF_ANOTHER_SET = "another_eval_dataset"
# The evaluation was of the model without its adapter
OF_BASE = "adapter_off"
# The trainer's set, of several, that an entry with the prefix `eval` is about
OF_SET = "eval_dataset_name"


def own_entries(history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the entries about the trained model on the trainer's own sets, each with the name of its set in its metrics."""
    return [
        {
            key.replace("eval_", f"eval_{entry[OF_SET]}_", 1) if OF_SET in entry else key: of
            for key, of in entry.items()
        }
        for entry in history
        if not entry.get(OF_ANOTHER_SET) and not entry.get(OF_BASE)
    ]

"""The names that stand for models which need no download: the model organism, with its pairs, and SmolLM2."""

from collections.abc import Callable
from pathlib import Path

from accelerate import PartialState

from ..errors import ConsistencyError
from ..organism import build_organism
from ..smollm2.checkpoint import build_checkpoint


# In place of a model or data set name: the organism that is trained on the spot, and its pairs.
EMBEDDED = "embedded:organism"
# In place of a model name
MODELS: dict[str, Callable[..., Path]] = {EMBEDDED: build_organism, "embedded:smollm2": build_checkpoint}


def resolve_model(name: str | None) -> str:
    """
    The model to load. `embedded:organism` becomes the folder of the organism, which is trained first if it is not
    there yet, and `embedded:smollm2` that of SmolLM2-135M-Instruct, which is made first.

    Raises:
        [`ConsistencyError`]: If no model is named, or it cannot be made.
    """
    if not name:
        raise ConsistencyError("No model: give `model_name_or_path`.")
    if name not in MODELS:
        if name.startswith("embedded:"):
            raise ConsistencyError(f"There is no model {name}, only: {', '.join(MODELS)}.")
        return name
    with PartialState().local_main_process_first():
        return str(MODELS[name](progress=PartialState().is_local_main_process))

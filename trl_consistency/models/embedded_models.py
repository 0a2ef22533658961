"""Names of embedded models, which need no download: the model organism and SmolLM2."""

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from accelerate import PartialState

from ..errors import ConsistencyError
from ..organism import build_organism
from ..smollm2.checkpoint import build_checkpoint


# As names of data sets: the pairs for these models.
EMBEDDED, SMOLLM2 = "embedded:organism", "embedded:smollm2"
MODELS: dict[str, Callable[..., Path]] = {EMBEDDED: build_organism, SMOLLM2: build_checkpoint}


def resolve_model(name: str | None) -> str:
    """
    Returns the name or folder to load. The organism (`embedded:organism`) is trained, and SmolLM2-135M-Instruct
    (`embedded:smollm2`) converted, if its folder does not exist yet.
    """
    if not name:
        raise ConsistencyError("No model: give `model_name_or_path`.")
    check_embedded(name)
    if name not in MODELS:
        return name
    with PartialState().local_main_process_first():
        return str(MODELS[name](progress=PartialState().is_local_main_process))


def check_embedded(name: str) -> None:
    """Raises [`ConsistencyError`] for a misspelt name of an embedded model, or of its data."""
    prefix = name.partition(":")[0]
    if name not in MODELS and prefix != name and get_close_matches(prefix, ["embedded"]) and not os.path.exists(name):
        raise ConsistencyError(f"There is no {name}, only: {', '.join(MODELS)}.")

"""The name that stands for the embedded model organism and its pairs."""

from accelerate import PartialState

from .errors import ConsistencyError
from .organism import build_organism


# In place of a model or data set name: the organism that is trained on the spot, and its pairs.
EMBEDDED = "embedded:organism"


def resolve_model(name: str | None) -> str:
    """
    The model to load. `embedded:organism` becomes the folder of the organism, which is trained first if it is not
    there yet.

    Raises:
        [`ConsistencyError`]: If no model is named.
    """
    if not name:
        raise ConsistencyError("No model: give `model_name_or_path`.")
    if name != EMBEDDED:
        return name
    with PartialState().local_main_process_first():
        return str(build_organism(progress=PartialState().is_local_main_process))

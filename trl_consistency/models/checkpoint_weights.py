"""Models whose weights have other names in files than in memory."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightConverter, revert_weight_conversion

from ..config.device import own_randomness
from ..errors import ConsistencyError, one_line


def with_published_names(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """
    Yields weights of a model, or parts of them, under the names that transformers saves, which are those of published files: a mixture
    has a tensor for each expert there.
    """
    # A model whose own files have the names in memory has an empty list.
    conversions = getattr(model, "_weight_conversions", None) or [
        of for of in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(of, PrefixChange)
    ]
    # One tensor of a file may be several in memory, which must be put together. Otherwise each is converted by itself: copies are short-lived.
    conversions = [of for of in conversions if not isinstance(of, WeightConverter) or _can_be_reversed(of)]
    converters = [of for of in conversions if isinstance(of, WeightConverter)]
    if not conversions:
        yield from weights
        return
    is_split = any(len(of.target_patterns) > 1 for of in converters)
    plain = _Converted(_without_adapter(model) if converters else model, conversions)
    for part in [dict(weights)] if is_split else ({name: weight} for name, weight in weights):
        yield from revert_weight_conversion(plain, part).items()


class _Converted:
    """A model with conversions of its names. transformers would look for those of one that was not loaded at each weight."""

    def __init__(self, model: Any, conversions: list[Any]):
        self._model, self._weight_conversions = model, conversions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _can_be_reversed(converter: WeightConverter) -> bool:
    """Whether weights can be given the form that they have in files, which those from files in 4 bits cannot."""
    try:
        converter.reverse_transform()
    except NotImplementedError:
        return False
    return True


def _without_adapter(model: Any) -> Any:
    """Returns a model, or where PEFT has put layers into it, one of the same kind without them, and without numbers."""
    if not any(isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) for module in model.modules()):
        return model
    with own_randomness(None), torch.device("meta"):
        return type(model)._from_config(deepcopy(model.config))


@contextmanager
def loading_every_weight(trainer: Any, folder: str) -> Iterator[None]:
    """
    Within it, a trainer loads all weights of a checkpoint. `Trainer` skips those that have other names in memory and leaves what the
    model holds, with a line in the log.
    """
    issue_warnings = trainer._issue_warnings_after_load

    def load_others(result: Any) -> None:
        if _lacking(trainer.model, result.missing_keys):
            _load_as_saved(trainer.model, folder)
        else:
            issue_warnings(result)

    trainer._issue_warnings_after_load = load_others
    try:
        yield
    finally:
        del trainer._issue_warnings_after_load


def _lacking(model: Any, missing: Sequence[str]) -> bool:
    """Whether weights are not loaded. One that is tied to another is, with that."""
    state = model.state_dict(keep_vars=True)
    loaded = {id(weight) for name, weight in state.items() if name not in {*missing}}
    return any(id(state[name]) not in loaded for name in missing)


def _load_as_saved(model: Any, folder: str) -> None:
    dtypes = {weight.dtype for weight in model.parameters()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32  # which holds all numbers of the others
    try:
        with own_randomness(model.device):
            saved, info = type(model).from_pretrained(
                folder, config=deepcopy(model.config), dtype=dtype, output_loading_info=True
            )
    except Exception as error:  # of a class of one's own, for example, which takes other arguments
        raise ConsistencyError(
            f"{folder} has weights under other names than the model, and `{type(model).__name__}.from_pretrained` cannot load it: "
            f"{one_line(error)} Use a class whose `from_pretrained` takes a folder and a `config`."
        ) from error
    if lacking := sorted(info["missing_keys"]):
        raise ConsistencyError(
            f"{folder} lacks the weights {lacking[0]}{f' (and {len(lacking) - 1} more)' if lacking[1:] else ''}. Take another checkpoint."
        )
    model.load_state_dict(saved.state_dict())

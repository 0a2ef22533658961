"""Checks the types of option values, and describes types in words."""

from collections.abc import Iterable, Mapping
from enum import Enum
from importlib.util import find_spec
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ConsistencyError, did_you_mean


def accepts(hint: Any, value: Any) -> bool:
    """Whether a value fits an option's type. A single value fits a list of its type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(accepts(argument, value) for argument in arguments)
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:
        return value in arguments
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return _is_number(value)
    if hint is str:
        return isinstance(value, str)
    if origin is list or hint is list:
        items = value if isinstance(value, list) else [value]
        return value is not None and all(accepts(arguments[0], item) for item in items) if arguments else True
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in [member.value for member in hint]
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, str):  # YAML 1.1 reads 1e-3, without a dot, as text
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def describe(hint: Any) -> str:
    """Returns an option's type in words, for messages."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}
    if get_origin(hint) in (Union, UnionType):
        described = [describe(argument) for argument in get_args(hint)]
        return " or ".join(dict.fromkeys(described))
    if hint is type(None):
        return "null"
    if get_origin(hint) is list:
        return f"a list (each {describe(get_args(hint)[0])})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    return names.get(get_origin(hint) or hint, str(hint))


def check_types(options: Any, keys: Iterable[str]) -> None:
    """Raises [`ConsistencyError`] for the first of `keys` whose value in the dataclass `options` has another type."""
    hints = get_type_hints(type(options))
    for key in keys:
        value = getattr(options, key)
        is_text_for_number = isinstance(value, str) and hints[key] in (float, float | None)
        if is_text_for_number or not accepts(hints[key], value):
            raise ConsistencyError(f"`{key}` must be {describe(hints[key])}, got {value!r}.")


def check_keys(option: str, given: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raises [`ConsistencyError`] for the first key in `given` that is not in `known`."""
    for key in given or ():
        if key not in known:
            raise ConsistencyError(f"`{option}` has the unknown key `{key}`.{did_you_mean(key, known)}")


def check_installed(option: str, is_wanted: Any, module: str) -> None:
    """Raises [`ConsistencyError`] if a set option needs a package that is not installed."""
    if is_wanted and find_spec(module) is None:
        raise ConsistencyError(f"`{option}` needs the package `{module}`: `pip install {module}`.")


# Options that restrict sampling, and the values at which they keep all tokens. vLLM uses -1 for `top_k`.
SAMPLING = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}


def check_sampling(options: Mapping[str, Any]) -> None:
    """Raises [`ConsistencyError`] if sampling options are set although nothing is sampled."""
    for name, off in SAMPLING.items():
        if options.get(name) not in off:
            raise ConsistencyError(f"`{name}` is given, but at `temperature` 0 nothing is sampled. Set a temperature.")

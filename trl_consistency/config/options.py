"""How an option is declared: its default, the values it may have, and its help, which is its text in the docstring."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field
from inspect import cleandoc
from typing import Any, TypeVar

from ..errors import ConsistencyError


Config = TypeVar("Config", bound=type)

ENDLESS = float("inf")
# An entry of a docstring in TRL's format: the option's name, and the text below it up to a list of its values.
_ENTRY = re.compile(r"^ {4}(\w+) \(.*\):\n((?: {8}.*\n?)+)", re.MULTILINE)


@dataclass(frozen=True)
class Allowed:
    """
    The values that an option may have.

    Args:
        words (`str`):
            The values in words, after "must be".
        holds (`Callable[[Any], bool]`):
            Whether a value is one of them.
    """

    words: str
    holds: Callable[[Any], bool]

    def or_none(self) -> "Allowed":
        """These values, and None."""
        return Allowed(f"{self.words}, or None", lambda value: value is None or self.holds(value))


def at_least(lowest: float, note: str = "") -> Allowed:
    """Finite numbers from `lowest` on. NaN is none of them."""
    return Allowed(f"at least {lowest}{note}", lambda value: lowest <= value < ENDLESS)


def above(limit: float, note: str = "") -> Allowed:
    """Finite numbers above `limit`. NaN is none of them."""
    return Allowed(f"above {limit}{note}", lambda value: limit < value < ENDLESS)


def one_of(*names: str) -> Allowed:
    """The given texts."""
    listed = [repr(name) for name in names]
    return Allowed(" or ".join(filter(None, [", ".join(listed[:-1]), listed[-1]])), lambda value: value in names)


SHARE = Allowed("above 0 and at most 1", lambda value: 0 < value <= 1)
BELOW_ONE = Allowed("at least 0 and below 1", lambda value: 0 <= value < 1)
SEED = Allowed("from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)


def option(default: Any, allowed: Allowed | None = None, choices: Iterable[str] | None = None) -> Any:
    """
    An option of a configuration class.

    Args:
        default (`Any`):
            Its default. Each configuration gets a copy of a list.
        allowed ([`Allowed`], *optional*):
            The values that it may have, checked by [`check_ranges`].
        choices (`Iterable[str]`, *optional*):
            The texts that it may be. The command line shows them.
    """
    metadata: dict[str, Any] = {}
    if choices is not None:
        metadata["choices"] = list(choices)
        allowed = one_of(*metadata["choices"])
    if allowed is not None:
        metadata["allowed"] = allowed
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def described_options(docstring: str) -> dict[str, str]:
    """The text of each option in a docstring in TRL's format, without the list of its values."""
    entries = _ENTRY.findall(cleandoc(docstring) + "\n")
    return {name: " ".join(text.split("\n        - ")[0].split()) for name, text in entries}


def with_help(config: Config) -> Config:
    """
    Decorator of a configuration class, below `@dataclass`: each option's help is its text in the docstring, and a line such
    as "Those of [`PairConfig`]." in the docstring becomes the options of that base class.
    """
    allowed: dict[str, Allowed] = {}
    for base in config.__bases__:
        _, _, shared = (base.__doc__ or "").partition("Parameters:\n")
        config.__doc__ = (config.__doc__ or "").replace(f"Those of [`{base.__name__}`].", shared.strip())
        allowed |= getattr(base, "_allowed", {})
    texts = described_options(config.__doc__ or "")
    for name in config.__annotations__:
        declared: Any = vars(config).get(name)
        if isinstance(declared, Field):
            metadata = dict(declared.metadata)
            if "allowed" in metadata:  # argparse gets what is left
                allowed[name] = metadata.pop("allowed")
            # argparse reads "%" as the beginning of a placeholder.
            declared.metadata = {**metadata, "help": texts[name].replace("%", "%%")}  # type: ignore[assignment]
    config._allowed = allowed  # type: ignore[attr-defined]
    return config


def check_ranges(options: Any, inherited: Mapping[str, Allowed]) -> None:
    """Raises [`ConsistencyError`] for the first option with a value that it may not have, `inherited` ones included."""
    for name, allowed in {**options._allowed, **inherited}.items():
        value = getattr(options, name)
        if not allowed.holds(value):
            raise ConsistencyError(f"`{name}` must be {allowed.words}, got {value!r}.")


def refuse(context: str, refused: Mapping[str, tuple[Any, str]]) -> None:
    """Raises [`ConsistencyError`] for the first option that is set (option: is it set, why it cannot be)."""
    for name, (is_set, reason) in refused.items():
        if is_set:
            raise ConsistencyError(f"`{name}` is not available {context}: {reason}.")

"""Declares options: default, allowed values, and help, which may come from the class's docstring."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import cleandoc
from typing import Any, TypeVar, get_args, get_origin

from ..errors import ConsistencyError


Config = TypeVar("Config", bound=type)

ENDLESS = float("inf")
# TRL's options that transformers calls otherwise
NEW_NAMES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
# An entry of a docstring in TRL's format: the option's name, and the text below it up to a list of its values.
_ENTRY = re.compile(r"^ {4}(\w+) \(.*\):\n((?: {8}.*\n?)+)", re.MULTILINE)


@dataclass(frozen=True)
class Allowed:
    """The values that an option may have. `words` stand after "must be"."""

    words: str
    holds: Callable[[Any], bool]

    def or_none(self) -> "Allowed":
        """Returns these values and None."""
        return Allowed(f"{self.words}, or None", lambda value: value is None or self.holds(value))


def at_least(lowest: float, note: str = "") -> Allowed:
    """Allows finite numbers from `lowest` on, but not NaN."""
    return Allowed(f"at least {lowest}{note}", lambda value: lowest <= value < ENDLESS)


def above(limit: float) -> Allowed:
    """Allows finite numbers above `limit`, but not NaN."""
    return Allowed(f"above {limit}", lambda value: limit < value < ENDLESS)


def one_of(*names: str) -> Allowed:
    """Allows only the given texts."""
    listed = [repr(name) for name in names]
    return Allowed(" or ".join(filter(None, [", ".join(listed[:-1]), listed[-1]])), lambda value: value in names)


SHARE = Allowed("above 0 and at most 1", lambda value: 0 < value <= 1)
BELOW_ONE = Allowed("at least 0 and below 1", lambda value: 0 <= value < 1)
NO_SPACE_AT_END = Allowed("text without a space at its end", lambda value: not value.endswith(" "))
TWO_TEXTS = Allowed(
    "two different texts: what opens a thought and what closes it",
    lambda of: (
        isinstance(of, list | tuple)
        and len(set(of)) == len(of) == 2
        and all(isinstance(one, str) and one for one in of)
    ),
)
# The lowest that keeps logits finite when they are divided by it
LOWEST_TEMPERATURE = 1e-4
TEMPERATURE = Allowed(
    f"at least {LOWEST_TEMPERATURE}, or 0 (greedy)",
    lambda value: value == 0 or at_least(LOWEST_TEMPERATURE).holds(value),
)
SEED = Allowed("from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)


def option(
    default: Any = MISSING,
    allowed: Allowed | None = None,
    choices: Iterable[str] | None = None,
    help: str | None = None,
) -> Any:
    """
    Returns the field of an option of a configuration class.

    An option without a default is required. Each configuration gets its own copy of a list. [`check_ranges`] checks
    `allowed` values; the command line also shows `choices`. `help` is needed if the docstring of the class does not
    describe the option.
    """
    metadata: dict[str, Any] = {} if help is None else {"help": help}
    if choices is not None:
        metadata["choices"] = list(choices)
        allowed = one_of(*metadata["choices"])
    if allowed is not None:
        metadata["allowed"] = allowed
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def described_options(docstring: str) -> dict[str, str]:
    """Returns the text of each option in a docstring in TRL's format, without the list of its values."""
    entries = _ENTRY.findall(cleandoc(docstring) + "\n")
    return {name: " ".join(text.split("\n        - ")[0].split()) for name, text in entries}


def with_help(config: Config) -> Config:
    """
    Decorator of a configuration class, below `@dataclass`. Options without a help text get their text in the
    docstring. A line such as "Those of [`PairConfig`]." in the docstring is replaced by the options of that base
    class.
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
            if "allowed" in metadata:  # argparse gets the other keys
                allowed[name] = metadata.pop("allowed")
            text = metadata.get("help") or texts[name]
            # argparse reads "%" as the start of a placeholder.
            declared.metadata = {**metadata, "help": text.replace("%", "%%")}  # type: ignore[assignment]
    config._allowed = allowed  # type: ignore[attr-defined]
    return config


class CommandArguments:
    """Base class of command arguments. Turns a single value, which a YAML file may give, into a list of one."""

    def __post_init__(self) -> None:
        for declared in fields(self):  # type: ignore[arg-type]
            value, hint = getattr(self, declared.name), declared.type
            if isinstance(value, str | int | float) and any(get_origin(of) is list for of in (hint, *get_args(hint))):
                setattr(self, declared.name, [value])


@contextmanager
def temporarily(holder: Any, **values: Any) -> Iterator[None]:
    """Within it, options of a config (or attributes of another object) have these values; after it, those from before."""
    before = {name: getattr(holder, name) for name in values}
    try:
        for name, value in values.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


def check_ranges(options: Any, inherited: Mapping[str, Allowed] | None = None) -> None:
    """
    Raises [`ConsistencyError`] for the first option whose value is not allowed, including `inherited` ones. None is
    allowed if it is the default.
    """
    for name, allowed in {**getattr(options, "_allowed", {}), **(inherited or {})}.items():
        value = getattr(options, name)
        if (value is not None or getattr(type(options), name, MISSING) is not None) and not allowed.holds(value):
            raise ConsistencyError(f"`{name}` must be {allowed.words}, got {value!r}.")


def refuse_unused(options: Any, names: Iterable[str], reason: str) -> None:
    """Raises [`ConsistencyError`] for the first of the named options that is not at its default, for a `reason`."""
    declared = {of.name: of for of in fields(options)}
    for name in names:
        make = declared[name].default_factory
        default = declared[name].default if make is MISSING else make()
        if getattr(options, name) != default:
            raise ConsistencyError(f"`{name}` is given, but {reason}.")


def refuse(context: str, refused: Mapping[str, tuple[Any, str]]) -> None:
    """Raises [`ConsistencyError`] for the first option that is set (option: whether it is set, why it cannot be)."""
    for name, (is_set, reason) in refused.items():
        if is_set:
            raise ConsistencyError(f"`{name}` is not available {context}: {reason}.")

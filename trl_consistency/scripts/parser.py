"""TRL's parser, strict: an unknown key or flag, or a value of the wrong type, is an error that says what to write."""

import dataclasses
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from trl import TrlParser


class StrictParser(TrlParser):
    """
    A [`~trl.TrlParser`] for options that come from a YAML file (`--config`) and the command line.

    It differs where TRL's parser stays silent: abbreviated flags are not taken, unknown YAML keys and flags are errors
    that name the nearest option, and YAML values are checked against the option's type and choices.

    Args:
        dataclass_types (`Iterable[type]`):
            Data classes whose fields are the options.
        **kwargs:
            Passed to [`~trl.TrlParser`].
    """

    def __init__(self, dataclass_types: Iterable[type], **kwargs: Any):
        dataclass_types = list(dataclass_types)
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self._hints = {
            field.name: get_type_hints(dataclass_type)[field.name]
            for dataclass_type in dataclass_types
            for field in dataclasses.fields(dataclass_type)
            if field.init
        }

    def error(self, message: str) -> NoReturn:
        # argparse would print the usage of some two hundred options first.
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        sys.exit(2)

    def parse_args_and_config(self, args: Iterable[str] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """
        Parses command-line arguments on top of the file given with `--config`.

        Args:
            args (`Iterable[str]`, *optional*):
                Arguments. `None` takes them from the command line.

        Returns:
            `tuple`: One instance of each data class.
        """
        args = [
            part
            for arg in (sys.argv[1:] if args is None else args)
            for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])
        ]
        if "--config" in args:
            position = args.index("--config") + 1
            if position == len(args):
                self.error("`--config` needs a file.")
            self._check_config(args[position])
        for arg in args:
            if arg.startswith("--") and arg != "--config" and arg.split("=")[0] not in self._option_string_actions:
                self._unknown("flag", arg.split("=")[0], self._option_string_actions)
        try:
            return super().parse_args_and_config(args, **kwargs)
        except (TypeError, ValueError) as error:
            self.error(str(error))

    def _check_config(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                config = yaml.safe_load(file)
        except OSError as error:
            self.error(f"cannot read `--config` {path}: {error.strerror}.")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self.error(f"{path} is not valid YAML: {error}")
        if not isinstance(config, dict):
            self.error(f"{path} must hold `key: value` lines.")
        for key, value in config.items():
            if key == "env":
                continue
            if key not in self._hints:
                self._unknown(f"key in {path}", key, self._hints)
            if not _accepts(self._hints[key], value):
                self.error(
                    f"{path}: `{key}` must be {_describe(self._hints[key])}, got {value!r}.{_quote_hint(value)}"
                )
            choices = next((action.choices for action in self._actions if action.dest == key), None)
            if choices and value is not None and value not in choices:
                self.error(f"{path}: `{key}` must be one of {', '.join(map(str, choices))}, got {value!r}.")

    def _unknown(self, what: str, name: Any, known: Iterable[str]) -> NoReturn:
        near = get_close_matches(str(name), list(known), n=1)
        hint = f" Did you mean `{near[0]}`?" if near else " `--help` lists all options."
        self.error(f"unknown {what}: `{name}`.{hint}")


def _accepts(hint: Any, value: Any) -> bool:
    """Whether a YAML value fits an option's type; a single value fits a list of its kind."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_accepts(argument, value) for argument in arguments)
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
        return value is not None and all(_accepts(arguments[0], item) for item in items) if arguments else True
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


def _describe(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}
    if get_origin(hint) in (Union, UnionType):
        described = [_describe(argument) for argument in get_args(hint)]
        return " or ".join(dict.fromkeys(described))
    if hint is type(None):
        return "null"
    if get_origin(hint) is list:
        return f"a list (each {_describe(get_args(hint)[0])})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    return names.get(get_origin(hint) or hint, str(hint))


def _quote_hint(value: Any) -> str:
    if isinstance(value, bool):
        return " YAML reads an unquoted yes/no/on/off as true/false: quote it if it is meant as a word."
    return " Quote it if it is meant as text." if isinstance(value, (int, float)) else ""

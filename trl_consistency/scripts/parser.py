"""A strict version of TRL's parser: unknown keys or flags and values of the wrong type are errors."""

import dataclasses
import os
import re
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, get_args, get_type_hints

from trl import TrlParser
from trl.scripts.utils import DatasetConfig

from ..config.options import NEW_NAMES
from ..data.pairs import template_kwargs_faults
from ..errors import ConsistencyError, InvalidPairsError, one_line
from ..json_files import as_mapping
from .option_check import OptionCheck, from_home, refuse
from .quick_answers import answer_help
from .sources import SOURCE_ERRORS


def named_in(args: Iterable[str]) -> set[str]:
    """Returns the names of the options that arguments give, as they are typed: of `--no_share_prefix`, `no_share_prefix`."""
    flags = (arg.removeprefix("--").split("=")[0] for arg in args if arg.startswith("--"))
    return {flag.replace("-", "_") for flag in flags}


class StrictParser(TrlParser):
    """
    A [`~trl.TrlParser`] for options that come from a YAML file (`--config`) and the command line. Unlike TRL's parser,
    it rejects abbreviated flags and unknown YAML keys and flags, names the nearest option, and checks YAML values
    against the option's type and choices. `command` is the name of the command, for its help. `implied` returns the flags
    that others stand for, given the command line and the file, and `naming` what rewrites a message to name those others.
    """

    def __init__(
        self,
        dataclass_types: Iterable[type],
        command: str,
        implied: Callable[[list[str], dict[str, Any]], list[str]] | None = None,
        naming: Callable[[list[str], dict[str, Any]], Callable[[str], str]] | None = None,
        **kwargs: Any,
    ):
        dataclass_types = list(dataclass_types)
        super().__init__(dataclass_types, allow_abbrev=False, **kwargs)
        self.command, self._implied, self._naming = command, implied, naming
        self._reworded: Callable[[str], str] = str
        self.add_argument("--help_all", action="help", help=SUPPRESS)
        self._hints = {
            field.name: get_type_hints(dataclass_type)[field.name]
            for dataclass_type in dataclass_types
            for field in dataclasses.fields(dataclass_type)
            if field.init
        }
        self.config_keys: list[str] = []  # keys in the `--config` file
        self.typed: set[str] = set()  # options on the command line
        self.given: set[str] = set()  # those, the ones in the file, and what they stand for

    def error(self, message: str) -> NoReturn:
        refuse(self.prog, message)

    def parse_args_and_config(self, args: Iterable[str] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Returns one instance of each data class. Command-line arguments override the `--config` file."""
        args = list(sys.argv[1:] if args is None else args)
        with suppress(*SOURCE_ERRORS):
            answer_help(self.command, args, self.prog)
        choices = {action.dest: action.choices for action in reversed(self._actions)}
        check = OptionCheck(
            self.prog, self._hints, self._option_string_actions, choices, get_type_hints(DatasetConfig)
        )
        args, config = check.check(args)
        self.config_keys = list(config)
        self.typed = named_in(args)
        self.given = {*config, *self.typed}
        if self._naming is not None:
            self._reworded = self._naming(args, config)
        if self._implied is not None:
            implied = self._implied(args, config)
            self.given |= named_in(implied)
            args += implied
        try:
            return super().parse_args_and_config(args, **kwargs)
        except (TypeError, ValueError) as error:
            self.error(_without_option(self._reworded(one_line(error)), self._hints))

    @contextmanager
    def naming_given(self) -> Iterator[None]:
        """Errors name the options that the user gave, and not those that they stand for."""
        try:
            yield
        except InvalidPairsError:  # about rows
            raise
        except ConsistencyError as error:
            raise ConsistencyError(self._reworded(str(error))) from error

    def set_defaults_with_config(self, **kwargs: Any) -> list[str]:
        """
        Takes the keys of a recipe. The user's folder replaces `~`, and numbers in lists that YAML reads as text (1e-3) become
        numbers. A single text becomes a list of one where a list of texts is wanted: PEFT would take each of its letters for an
        item. Of two names of one option, a flag replaces either.
        """
        values = {key: self._as_list(key, value) for key, value in from_home(kwargs).items()}
        for old, new in NEW_NAMES.items():
            if self.typed & {old, f"no_{old}"}:
                values.pop(new, None)
            elif old in values and values.get(new, values[old]) not in (None, values[old]) and new not in self.typed:
                self.error(f"`{old}` and `{new}` are one option, and differ. Leave one of them out.")
        return super().set_defaults_with_config(**values)

    def _as_list(self, key: str, value: Any) -> Any:
        kinds = {self._hints.get(key), *get_args(self._hints.get(key))}
        if isinstance(value, list) and list[float] in kinds:
            return [float(of) if isinstance(of, str) else of for of in value]
        return [value] if isinstance(value, str) and list[str] in kinds and str not in kinds else value


def _without_option(message: str, options: Container[str]) -> str:
    """Returns a message with the option that a word without one may belong to."""
    found = re.search(r"not used by the HfArgumentParser: \['(.*?)'[],]", message)
    if found is None:
        return message
    word, suffix = found[1], os.path.splitext(found[1])[1]
    named = next((name for name in ("pairs", "dataset_name") if name in options), None)
    if suffix in (".yaml", ".yml"):
        named = "config"
    hint = f" Did you mean `--{named} {word}`?" if named and (suffix or os.path.exists(word)) else ""
    return f"`{word}` belongs to no option.{hint}"


def as_template_kwargs(option: Any) -> dict[str, Any]:
    """Returns `chat_template_kwargs` as a mapping."""
    kwargs = as_mapping("chat_template_kwargs", option)
    for fault in template_kwargs_faults(kwargs):
        raise ConsistencyError(f"`chat_template_kwargs` {fault}.")
    return kwargs

"""TRL's parser, strict: an unknown key or flag, or a value of the wrong type, is an error that says what to write."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn, get_type_hints

import yaml
from trl import TrlParser
from trl.scripts.utils import DatasetConfig

from ..data.pairs import template_kwargs_faults
from ..errors import ConsistencyError, one_line
from ..escaping import printable
from ..option_types import accepts, describe


# Environment variables that a recipe may set: how many threads and which devices, what is logged and under which name.
HARMLESS_VARIABLES = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|(?:OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS"
    r"|NCCL_[A-Z0-9_]*(?:DEBUG|DISABLE|LEVEL|TIMEOUT|IFNAME|BLOCKING_WAIT|ERROR_HANDLING)|PYTORCH_(?:CUDA_)?ALLOC_CONF"
    r"|TOKENIZERS_PARALLELISM|(?:HF_HUB|HF_DATASETS|TRANSFORMERS)_OFFLINE|(?:TRANSFORMERS|DATASETS|HF_HUB|TRL)_VERBOSITY"
    r"|HF_HUB_DISABLE_(?:PROGRESS_BARS|TELEMETRY)|TRL_EXPERIMENTAL_SILENCE|ACCELERATE_LOG_LEVEL"
    r"|WANDB_(?:PROJECT|NAME|ENTITY|MODE|RUN_GROUP|RUN_ID|TAGS|NOTES|JOB_TYPE|RESUME|SILENT|LOG_MODEL|WATCH)"
    r"|MLFLOW_EXPERIMENT_NAME|MLFLOW_RUN_ID|COMET_(?:PROJECT_NAME|WORKSPACE|MODE)|TRACKIO_(?:PROJECT|SPACE_ID)"
)

# Options that are text (a path) to their type, but for which true has a meaning.
TRUE_OR_TEXT = ("resume_from_checkpoint",)


# Values that a file may make when its aliases are written out, as a message that shows one would write them.
MAX_VALUES = 100_000


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML without code, and with an error where a key is given twice: the last one would win without a word."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _count_values(node, {}) > MAX_VALUES:
            raise yaml.YAMLError(f"written out, its aliases would make more than {MAX_VALUES} values")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                where = key_node.start_mark
                raise yaml.constructor.ConstructorError(None, None, f"the key `{key}` is given twice", where)
            seen.append(key)
        return super().construct_mapping(node, deep)


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    if counts.setdefault(id(node), -1) > 0:
        return counts[id(node)]
    count = 1
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        for child in part if isinstance(part, tuple) else (part,):
            if counts.get(id(child)) == -1:
                raise yaml.composer.ComposerError(None, None, "an alias holds itself", child.start_mark)
            count += _count_values(child, counts)
    counts[id(node)] = count
    return count


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
        self.config_keys: list[str] = []  # those that the file given with `--config` sets

    def error(self, message: str) -> NoReturn:
        # argparse would print the usage of some two hundred options first.
        print(printable(f"{self.prog}: error: {message}"), file=sys.stderr)
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
        if args.count("--config") > 1:
            self.error("`--config` is given twice: put all options into one file.")
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
            self.error(one_line(error))

    def _check_config(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                config = yaml.load(file, Loader=_UniqueKeyLoader)
        except OSError as error:
            self.error(f"cannot read `--config` {path}: {error.strerror}.")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self.error(f"{path} is not valid YAML: {one_line(error)}")
        except RecursionError:
            self.error(f"{path} is not valid YAML: it is nested too deep.")
        if not isinstance(config, dict):
            self.error(f"{path} must hold `key: value` lines.")
        self.config_keys = list(config)
        for key, value in config.items():
            if key == "env":
                self._check_env(path, value)
                continue
            if key not in self._hints:
                self._unknown(f"key in {path}", key, self._hints)
            if key in TRUE_OR_TEXT and isinstance(value, bool):
                continue
            if key == "datasets":
                self._check_datasets(path, value)
            if not accepts(self._hints[key], value):
                self.error(f"{path}: `{key}` must be {describe(self._hints[key])}, got {value!r}.{_quote_hint(value)}")
            choices = next((action.choices for action in self._actions if action.dest == key), None)
            if choices and value is not None and value not in choices:
                self.error(f"{path}: `{key}` must be one of {', '.join(map(str, choices))}, got {value!r}.")

    def _check_env(self, path: str, variables: Any) -> None:
        for name in variables if isinstance(variables, dict) else ():
            if not HARMLESS_VARIABLES.fullmatch(str(name)):
                self.error(
                    f"{path}: `env` sets {name}, which can decide what code runs, or where data and tokens go. Set it in the "
                    "shell if you want it."
                )

    def _check_datasets(self, path: str, value: Any) -> None:
        known = get_type_hints(DatasetConfig)
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(value, list) or not isinstance(entry, dict) or "path" not in entry:
                self.error(f"{path}: `datasets` must be a list of mappings, each with a `path`, got {entry!r}.")
            for key, option in entry.items():
                if key not in known:
                    self._unknown(f"key under `datasets` in {path}", key, known)
                if not accepts(known[key], option):
                    self.error(f"{path}: `{key}` under `datasets` must be {describe(known[key])}, got {option!r}.")

    def _unknown(self, what: str, name: Any, known: Iterable[str]) -> NoReturn:
        near = get_close_matches(str(name), list(known), n=1)
        hint = f" Did you mean `{near[0]}`?" if near else " `--help` lists all options."
        for command, options in _training_options().items():
            if str(name).removeprefix("--") in options:
                hint = f" It is an option of `trl-consistency {command}`."
        self.error(f"unknown {what}: `{name}`.{hint}")


def as_template_kwargs(option: Any) -> dict[str, Any]:
    """`chat_template_kwargs`, a mapping in a recipe and JSON on the command line."""
    kwargs = option or {}
    if isinstance(kwargs, str):
        with suppress(ValueError):
            kwargs = json.loads(kwargs)
    if not isinstance(kwargs, dict):
        raise ConsistencyError(f"`chat_template_kwargs` must be a mapping, as JSON, got {option!r}.")
    for fault in template_kwargs_faults(kwargs):
        raise ConsistencyError(f"`chat_template_kwargs` {fault}.")
    return kwargs


def _training_options() -> dict[str, set[str]]:
    """The options that only one of the training commands has."""
    from ..trainer.consistency_config import ConsistencyConfig
    from ..trainer.on_policy_consistency_config import OnPolicyConsistencyConfig

    paired, on_policy = (
        {field.name for field in dataclasses.fields(config)}
        for config in (ConsistencyConfig, OnPolicyConsistencyConfig)
    )
    return {"consistency": paired - on_policy, "on-policy-consistency": on_policy - paired}


def _quote_hint(value: Any) -> str:
    if isinstance(value, bool):
        return " YAML reads an unquoted yes/no/on/off as true/false: quote it if it is meant as a word."
    return " Quote it if it is meant as text." if isinstance(value, (int, float)) else ""

"""Checks names and types of options, in a recipe and on the command line."""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

import yaml

from ..bounded_reading import read_at_most
from ..config.types import accepts, describe
from ..errors import did_you_mean, one_line
from ..escaping import printable
from ..json_files import strict_json
from .recipes import recipes_dir
from .sources import SOURCE_ERRORS, read_options


PAIRED = "trl_consistency.config.consistency_config.ConsistencyConfig"
OF_SCRIPTS = "trl_consistency.scripts.loading.TrainingScriptArguments"
ON_POLICY = "trl_consistency.config.on_policy_consistency_config.OnPolicyConsistencyConfig"

# What options are called in other libraries and earlier versions, and what they are called here
USUAL_NAMES = {
    "max_new_tokens": "max_completion_length",
    "max_tokens": "max_completion_length",
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "accumulation_steps": "gradient_accumulation_steps",
    "model": "model_name_or_path",
    "base_model": "model_name_or_path",
    "dataset": "dataset_name",
    "data": "dataset_name",
    "lora": "use_peft",
    "rank": "lora_r",
    "lora_rank": "lora_r",
    "qlora": "load_in_4bit",
    "out": "output_dir",
    "save_dir": "output_dir",
}

# What other commands call their data
NAMES_ELSEWHERE = {"dataset_name": "pairs", "pairs": "dataset_name"}

# Environment variables that a recipe may set: of communication, memory and logging; and those below, if they are set so already.
HARMLESS_VARIABLES = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING|(?:OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS"
    r"|NCCL_[A-Z0-9_]*(?:DEBUG|DISABLE|LEVEL|TIMEOUT|IFNAME|BLOCKING_WAIT|ERROR_HANDLING)|PYTORCH_(?:CUDA_)?ALLOC_CONF"
    r"|TOKENIZERS_PARALLELISM|(?:HF_HUB|HF_DATASETS|TRANSFORMERS)_OFFLINE|(?:TRANSFORMERS|DATASETS|HF_HUB|TRL)_VERBOSITY"
    r"|HF_HUB_DISABLE_(?:PROGRESS_BARS|TELEMETRY)|TRL_EXPERIMENTAL_SILENCE|ACCELERATE_LOG_LEVEL"
    r"|WANDB_(?:PROJECT|NAME|ENTITY|MODE|RUN_GROUP|RUN_ID|TAGS|NOTES|JOB_TYPE|RESUME|SILENT|LOG_MODEL|WATCH)"
    r"|MLFLOW_EXPERIMENT_NAME|MLFLOW_RUN_ID|COMET_(?:PROJECT_NAME|WORKSPACE|MODE)|TRACKIO_(?:PROJECT|SPACE_ID)"
)

# Of these, libraries read some when they are imported, which is before the recipe is read. CUDA reads its own when it is first asked
# for devices, as bitsandbytes does when it is imported.
READ_AT_IMPORT = re.compile(
    r"CUDA_\w+|\w+_(?:NUM_THREADS|OFFLINE|VERBOSITY)|HF_HUB_DISABLE_\w+|TRL_EXPERIMENTAL_SILENCE|ACCELERATE_LOG_LEVEL"
)

# Options of type text (a path) for which true has a meaning.
TRUE_OR_TEXT = ("resume_from_checkpoint",)

# Options of type text or null for which an empty text has a meaning
EMPTY_OR_TEXT = ("instruction", "system_prompt", "fsdp")

# Maximum number of values in a file with its aliases expanded, as an error message that quotes one would print them.
MAX_VALUES = 100_000


LONGEST_RECIPE = 1_000_000  # bytes


class _UniqueKeyLoader(yaml.SafeLoader):
    """
    Loads YAML without running code. Duplicate keys are errors: the last one would win silently. So are numbers that
    YAML 1.1 reads otherwise than the command line does: 010 as 8, and 1:30 as 90.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _count_values(node, {}) > MAX_VALUES:
            raise yaml.YAMLError(f"written out, its aliases would make more than {MAX_VALUES} values")
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return self._as_written(node, super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return self._as_written(node, super().construct_yaml_float(node))

    def _as_written(self, node: yaml.ScalarNode, number: Any) -> Any:
        if ":" in node.value or re.match(r"[+-]?0[0-9xb]", node.value):
            reason = f"{node.value} would be read as {number}: write that, or put quotes around it if it is text"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`, whose keys those beside it override
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                where = key_node.start_mark
                raise yaml.constructor.ConstructorError(None, None, f"the key `{key}` is given twice", where)
            seen.append(key)
        return super().construct_mapping(node, deep)


for _kind in ("int", "float"):
    _UniqueKeyLoader.add_constructor(
        f"tag:yaml.org,2002:{_kind}", getattr(_UniqueKeyLoader, f"construct_yaml_{_kind}")
    )


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


def refuse(prog: str, message: str) -> NoReturn:
    """Ends the program as argparse does, but without the usage of some 200 options."""
    print(printable(f"{prog}: error: {message}"), file=sys.stderr)
    sys.exit(2)


def read_args(prog: str, args: Iterable[str]) -> list[str]:
    """Returns a command's arguments with `~` for what it stands for; ends the program if one is no text."""
    args = list(args)
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:  # the name of a file in another encoding
            refuse(prog, f"`{arg}` is not valid UTF-8: rename it.")
    return [from_home(arg) for arg in args]


def from_home(value: Any) -> Any:
    """
    Returns a value with the user's folder for a `~` at the beginning of a path. A shell puts it there only after a space, and not
    in `--output_dir=~/x` or in a recipe: a folder called `~` would be made.
    """
    if isinstance(value, list):
        return list(map(from_home, value))
    if isinstance(value, dict):
        return {key: from_home(of) for key, of in value.items()}
    if not isinstance(value, str):
        return value
    return re.sub(r"^(--[\w-]+=)?(~)(?=/|$)", lambda of: (of[1] or "") + os.path.expanduser("~"), value)


@dataclass(frozen=True)
class OptionCheck:
    """
    Finds unknown flags and keys, unreadable recipes, and values of the wrong type in them. `hints` and `choices` are
    the type (`Any` accepts every value) and the permitted values of each option, `entry_hints` the type of each key in
    an entry of `datasets`.
    """

    prog: str
    hints: Mapping[str, Any]
    flags: Collection[str]
    choices: Mapping[str, Collection[Any] | None]
    entry_hints: Mapping[str, Any]

    def check(self, args: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
        """Ends the program at the first fault. Returns the arguments for TRL's parser, and the recipe."""
        args = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
        args = read_args(self.prog, args)
        config: dict[str, Any] = {}
        if "--config" in args:
            if args.count("--config") > 1:
                self._refuse("`--config` is given twice: put all options into one file.")
            position = args.index("--config") + 1
            if position == len(args):
                self._refuse("`--config` needs a file.")
            config = self._read(args[position])
            self._check_config(args[position], config)
        self._check_lists(args)
        for arg, following in zip(args, [*args, "--"][1:], strict=True):
            flag, has_value, value = arg.partition("=")
            if not arg.startswith("--"):
                continue
            if flag != "--config" and flag not in self.flags:
                self._unknown("flag", flag, self.flags)
            if has_value or not following.startswith("--"):
                self._check_number(flag, value if has_value else following)
                self._check_mapping(flag, value if has_value else following)
                self._check_empty(flag, value if has_value else following)
        return args, config

    def _check_lists(self, args: Iterable[str]) -> None:
        """Ends the program if an option that takes a list is given twice: argparse would forget the first list."""
        names = [arg.removeprefix("--").partition("=")[0].replace("-", "_") for arg in args if arg.startswith("--")]
        for name in names:
            hint = self.hints.get(name)
            if names.count(name) > 1 and any(list in (of, get_origin(of)) for of in (hint, *get_args(hint))):
                self._refuse(
                    f"`--{name}` is given twice, and the second list would replace the first: give all values at once."
                )

    def _check_number(self, flag: str, value: str) -> None:
        """Ends the program if an option that takes one number gets something else. Other types are argparse's affair."""
        hint = self.hints.get(flag.removeprefix("--").replace("-", "_"))
        union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kinds = {kind for kind in union if kind is not NoneType}
        if kinds not in ({int}, {float}):
            return
        kind = kinds.pop()
        try:
            kind(value)
        except ValueError:
            self._refuse(f"`{flag}` must be {describe(kind)}, got {value!r}.")

    def _check_empty(self, option: str, value: Any, where: str = "") -> None:
        """Ends the program if an option that can be left out is an empty text, which would count as left out."""
        name = option.removeprefix("--").replace("-", "_")
        can_be_left_out = {*get_args(self.hints.get(name))} == {str, NoneType}
        if value == "" and can_be_left_out and name not in EMPTY_OR_TEXT:
            self._refuse(
                f"{where}`{option}` is empty. Leave it out, or give a value; where that is a variable of the shell, set it."
            )

    def _check_mapping(self, option: str, value: Any, where: str = "") -> None:
        """Ends the program if JSON for an option that takes a mapping has a key twice, or a number that is none."""
        hint = self.hints.get(option.removeprefix("--").replace("-", "_"))
        if not isinstance(value, str) or all(dict not in (of, get_origin(of)) for of in (hint, *get_args(hint))):
            return
        try:
            strict_json(value)
        except (json.JSONDecodeError, RecursionError):
            return  # what takes the mapping says so
        except ValueError as error:
            self._refuse(f"{where}`{option}`: {error}.")

    def _refuse(self, message: str) -> NoReturn:
        refuse(self.prog, message)

    def _read(self, path: str) -> dict[str, Any]:
        try:
            config = yaml.load(read_at_most(path, LONGEST_RECIPE), Loader=_UniqueKeyLoader)
        except OSError as error:
            own = recipes_dir() / path.removeprefix("recipes/")
            hint = f" The package has {own}." if isinstance(error, FileNotFoundError) and own.is_file() else ""
            self._refuse(f"cannot read `--config` {path}: {error.strerror}.{hint}")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self._refuse(f"{path} is not valid YAML: {one_line(error)}")
        except RecursionError:
            self._refuse(f"{path} is not valid YAML: it is nested too deep.")
        if not isinstance(config, dict):
            self._refuse(f"{path} must hold `key: value` lines.")
        return config

    def _check_config(self, path: str, config: dict[str, Any]) -> None:
        for key, value in config.items():
            if key == "env":
                self._check_env(path, value)
                continue
            if key not in self.hints:
                self._unknown(f"key in {path}", key, self.hints)
            if key in TRUE_OR_TEXT and isinstance(value, bool):
                continue
            if key == "datasets":
                self._check_datasets(path, value)
            self._check_mapping(key, value, f"{path}: ")
            self._check_empty(key, value, f"{path}: ")
            if isinstance(value, str) and "\0" in value:
                self._refuse(f"{path}: `{key}` holds a zero byte.")
            for text in value if isinstance(value, list) else [value]:
                if variable := _variable_in(text):
                    self._refuse(
                        f"{path}: `{key}` is {text}, and recipes do not fill in {variable}: a folder of that name would be meant. Write "
                        "the path, or give the option on the command line."
                    )
            hint, choices = self.hints[key], self.choices.get(key)
            if not accepts(hint, value):
                self._refuse(f"{path}: `{key}` must be {describe(hint)}, got {value!r}.{_quote_hint(value)}")
            if choices and value is not None and value not in choices:
                self._refuse(f"{path}: `{key}` must be one of {', '.join(map(str, choices))}, got {value!r}.")

    def _check_env(self, path: str, variables: Any) -> None:
        for name in variables if isinstance(variables, dict) else ():
            if not HARMLESS_VARIABLES.fullmatch(str(name)):
                self._refuse(
                    f"{path}: `env` sets {name}, which can decide what code runs, or where data and tokens go. Set it in the "
                    "shell if you want it."
                )
            if READ_AT_IMPORT.fullmatch(str(name)) and os.environ.get(name) != str(variables[name]):
                self._refuse(
                    f"{path}: `env` sets {name}, which libraries read before the recipe is read, so that it would do nothing. Set it "
                    "in the shell."
                )

    def _check_datasets(self, path: str, value: Any) -> None:
        known = self.entry_hints
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(value, list) or not isinstance(entry, dict) or "path" not in entry:
                self._refuse(f"{path}: `datasets` must be a list of mappings, each with a `path`, got {entry!r}.")
            for key, option in entry.items():
                if key not in known:
                    self._unknown(f"key under `datasets` in {path}", key, known)
                if not accepts(known[key], option):
                    self._refuse(f"{path}: `{key}` under `datasets` must be {describe(known[key])}, got {option!r}.")

    def _unknown(self, what: str, name: Any, known: Iterable[str]) -> NoReturn:
        known, word = set(known), str(name).removeprefix("--")
        dashes, usual = "--" * (word != name), USUAL_NAMES.get(word.replace("-", "_"), word)
        if dashes + usual not in known:
            usual = NAMES_ELSEWHERE.get(usual, "")
        meant = f" Did you mean `{dashes}{usual}`?" if dashes + usual in known else did_you_mean(name, known)
        hint = meant or " `--help_all` lists all options."
        with suppress(*SOURCE_ERRORS):
            paired, on_policy = set(read_options(PAIRED)), set(read_options(ON_POLICY))
            alone = {"consistency": paired - on_policy, "on-policy-consistency": on_policy - paired}
            for command, options in alone.items():
                if word in options:
                    hint = f" It is an option of `trl-consistency {command}`."
            of_trainings = {*(paired & on_policy), *read_options(OF_SCRIPTS), *read_options("trl.ModelConfig")}
            if what == "flag" and "recipe" in self.hints and word in of_trainings:
                hint = " It is an option of trainings that is not counted here: leave it out."
            if what.startswith("key in") and word in of_trainings:
                hint = " That is the recipe of a training"
                hint += (
                    ": give it as `--recipe`."
                    if "recipe" in self.hints
                    else ", whose options this command does not have."
                )
        self._refuse(f"unknown {what}: `{name}`.{hint}")


def _variable_in(value: Any) -> str | None:
    """Returns the first variable of the environment in a path, such as `$HOME` or `run-${ID}`, as a shell would fill it in."""
    if not isinstance(value, str) or re.search(r"\s", value):
        return None
    found = re.search(r"(?:^|[/._-])(\$[A-Za-z_]\w*|\$\{\w+\})(?=[/._-]|$)", value)
    return found and found[1]


def _quote_hint(value: Any) -> str:
    if isinstance(value, bool):
        return " YAML reads an unquoted yes/no/on/off as true/false: quote it if it is meant as a word."
    return " Quote it if it is meant as text." if isinstance(value, (int, float)) else ""

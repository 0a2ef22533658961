"""Runs before torch is imported: answers `--help`, and rejects faulty options, recipes and missing files."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import MISSING
from functools import partial
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from ..data.folders import check_data_file
from ..errors import ConsistencyError
from .option_check import ON_POLICY, PAIRED, OptionCheck
from .sources import SOURCE_ERRORS, Option, read_options


class Command(NamedTuple):
    """A command. Its options are fields of `classes`, which the help explains, and of `of_recipe`, which it names."""

    description: str
    classes: tuple[str, ...]
    files: tuple[str, ...] = ()  # options that name files
    of_recipe: tuple[str, ...] = ()


_SCRIPTS = "trl_consistency.scripts"
_RECIPE = (f"{_SCRIPTS}.loading.RecipeScriptArguments", "trl.ModelConfig", "trl.DatasetMixtureConfig")
_PAIRED = (PAIRED, f"{_SCRIPTS}.loading.TrainingScriptArguments", *_RECIPE[1:])
_TRAINING_DATA = ("dataset_name", "anchor_dataset_name", "guard_dataset_name", "guard_control_dataset_name")
_CONFIG = "--config FILE takes the options below from a YAML file; flags override it."
_PROCESSES = "Several processes: --accelerate_config NAME_OR_FILE, --num_processes N, or `accelerate launch`."

COMMANDS = {
    "consistency": Command(f"Train on pairs. {_CONFIG} {_PROCESSES}", _PAIRED, _TRAINING_DATA),
    "on-policy-consistency": Command(
        f"Train on the student's own answers to the perturbed prompts. {_CONFIG} {_PROCESSES}",
        (ON_POLICY, f"{_SCRIPTS}.loading.OnPolicyConsistencyScriptArguments", *_RECIPE[1:]),
        _TRAINING_DATA,
    ),
    "targets": Command(
        "Answer the clean prompts, and write the pairs with the answers. Takes the recipe that will train on them. "
        f"{_CONFIG} {_PROCESSES}",
        (f"{_SCRIPTS}.targets.TargetsArguments", *_PAIRED),
        ("dataset_name",),
    ),
    "lint": Command(
        "Find faulty pairs, and pairs that train little. Give --pairs FILE --model_name_or_path MODEL, or --config "
        "FILE with the recipe that will train on them. Only the tokenizer is loaded.",
        (f"{_SCRIPTS}.lint.LintArguments",),
        ("pairs", "dataset_name"),
        (PAIRED, ON_POLICY, *_RECIPE),
    ),
    "pairs": Command(
        f"Make pairs from questions, requests or prompts. {_CONFIG} Perturbations by family: "
        "awareness: safety_fact; "
        "jailbreak: role_play, fiction, hypothetical, formatting, hidden_among_benign, prefix_injection, "
        "suffix_injection, refusal_suppression, prefilled_turn, base64, rot13; "
        "surface: typos, spacing, case, politeness, emotion, irrelevant_context; "
        "sycophancy: suggested_answer, stated_answer, denied_answer, authority, distractor_fact, distractor_argument, "
        "feedback, are_you_sure, post_hoc, wrong_few_shot, spurious_few_shot, answer_position.",
        (f"{_SCRIPTS}.pairs.PairsArguments",),
        ("dataset_name", "perturbations_file"),
    ),
    "convert": Command(
        f"Turn pairs into a data set for TRL's own trainers, with a model's answers to both prompts. {_CONFIG}",
        (f"{_SCRIPTS}.convert.ConvertArguments",),
        ("pairs",),
    ),
    "evaluate": Command(
        "Measure a model and its adapters on the same pairs: sycophancy, attack success, benign answers, accuracy and "
        "consistency. All rates and their differences have counts and 95% intervals. " + _CONFIG,
        (f"{_SCRIPTS}.evaluate_arguments.EvaluateArguments",),
        ("pairs",),
    ),
    "suites": Command(
        f"Run standard suites from Inspect and lm-evaluation-harness on a model and its adapters. {_CONFIG}",
        (f"{_SCRIPTS}.suites.SuitesArguments",),
    ),
    "estimate": Command(
        "Compute what a training step costs on one device: memory, the largest batch and seconds. The first argument is "
        f"MODEL_OR_CONFIG: a model, its folder, or its config.json. No weights are loaded. {_CONFIG}",
        (f"{_SCRIPTS}.estimate.EstimateArguments",),
    ),
}


def command_options(command: str) -> dict[str, Option]:
    """Returns the options of a command by name. If two recipes differ in an option's type, its type is unknown."""
    options: dict[str, Option] = {}
    for class_name in (*COMMANDS[command].classes, *COMMANDS[command].of_recipe):
        for name, option in read_options(class_name).items():
            if name not in options:
                options[name] = option
            else:
                hint = option.hint if option.hint == options[name].hint else Any
                options[name] = options[name]._replace(hint=hint, choices=None)
    return options


def named_as_flags(command: str, args: Iterable[str]) -> set[str]:
    """Returns the options that messages name as flags: those in `args`, and without a recipe all of the command."""
    typed = {arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in args if arg.startswith("--")}
    if command in COMMANDS and "config" not in typed:
        with suppress(*SOURCE_ERRORS):
            typed |= command_options(command).keys()
    return typed


def source_check(command: str, prog: str) -> OptionCheck:
    """Returns a check of a command's options that imports no classes."""
    options = command_options(command)
    return OptionCheck(
        prog,
        hints={name: option.hint for name, option in options.items()},
        flags={"-h", "--help", "--help_all", *(flag for option in options.values() for flag in option.flags)},
        choices={name: option.choices for name, option in options.items()},
        entry_hints={name: option.hint for name, option in read_options("trl.scripts.utils.DatasetConfig").items()},
    )


def answer(command: str, args: Iterable[str], prog: str) -> None:
    """Ends the program for `--help` and for faulty options. Raises [`ConsistencyError`] if a data file is missing."""
    if command not in COMMANDS:
        return
    try:
        check = source_check(command, prog)
    except SOURCE_ERRORS:  # the parser of the imported classes answers later
        return
    answer_help(command, args, prog)
    args, config = check.check(args)
    _check_files(command, check, args, config)


def _check_files(command: str, check: OptionCheck, args: list[str], config: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in COMMANDS[command].files:
        nargs = "+" if get_origin(check.hints[name]) is list else None
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs=nargs, default=config.get(name))
    try:
        given = {name: value for name, value in vars(parser.parse_known_args(args)[0]).items() if value is not None}
    except argparse.ArgumentError:  # a flag without a value, which the command's parser reports
        return
    if "perturbations_file" in given:
        check_perturbations_file(given.pop("perturbations_file"))
    if "pairs" in given:  # in `lint`, they replace the recipe's data
        given = {"pairs": given["pairs"]}
    elif config.get("datasets") and "dataset_name" in given:  # another mistake, reported later
        return
    else:
        given["datasets"] = [entry["path"] for entry in config.get("datasets", ()) if "://" not in entry["path"]]
    for value in given.values():
        for name in value if isinstance(value, list) else [value]:
            check_data_file(name)


def check_perturbations_file(path: str) -> None:
    """Raises [`ConsistencyError`] if the file is missing."""
    if not os.path.isfile(path):
        raise ConsistencyError(f"`perturbations_file`: there is no file {path}.")


def answer_help(command: str, args: Iterable[str], prog: str) -> None:
    """Prints the help if requested, and ends the program. `--help_all` includes inherited options."""
    wanted = {"-h", "--help", "--help_all"} & set(args)
    if wanted:
        print(help_text(command, prog, everything="--help_all" in wanted), end="")
        sys.exit()


def help_text(command: str, prog: str, everything: bool) -> str:
    """Returns the help of a command: options in groups, starting with those that this package defines."""
    description, classes = COMMANDS[command][:2]
    explained = {"json", *(name for class_name in classes for name in read_options(class_name))}
    parser = argparse.ArgumentParser(
        prog,
        f"{prog} [--config FILE] [--OPTION VALUE ...]",
        description,
        add_help=False,
        formatter_class=partial(
            argparse.HelpFormatter, max_help_position=32, width=min(shutil.get_terminal_size((120, 24)).columns, 120)
        ),
    )
    groups: dict[str, Any] = {}
    of_recipe, inherited, is_short = [], 0, False
    for option in sorted(
        command_options(command).values(), key=lambda option: (not option.is_own, option.owner not in classes)
    ):
        if not everything and not (option.is_own and option.name in explained):
            of_recipe += [option.name] if option.is_own else []
            inherited += not option.is_own
            continue
        is_short = is_short or _help(option, everything) != _help(option, True)
        title = option.group.removeprefix("the ").capitalize() or "Options"
        if not option.is_own:
            title = f"Inherited from {option.owner}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(f"--{option.name}", metavar=_metavar(option), help=_help(option, everything))
    if of_recipe:
        parser.add_argument_group("Options of a recipe", f"{', '.join(of_recipe)}. `--help_all` explains them.")
    if inherited:
        parser.add_argument_group(
            "Inherited options",
            f"{inherited} options of TRL and transformers, such as model_name_or_path, dataset_name, output_dir, learning_rate, "
            "max_steps and use_peft. `--help_all` lists them, and says more about those above.",
        )
    elif is_short:
        parser.epilog = "`--help_all` says more about these options."
    return parser.format_help()


def _metavar(option: Option) -> str:
    union = get_args(option.hint) if get_origin(option.hint) in (Union, UnionType) else [option.hint]
    hint = next(of for of in union if of is not NoneType)
    is_list = get_origin(hint) is list
    names = {bool: "BOOL", int: "N", float: "X", str: "TEXT", dict: "JSON"}
    name = names.get(get_args(hint)[0] if is_list else get_origin(hint) or hint, "VALUE")
    if option.choices:
        name = f"{{{','.join(map(str, option.choices))}}}"
    return "[BOOL]" if option.hint is bool else f"{name} ..." if is_list else name


def _help(option: Option, everything: bool) -> str:
    text = option.help if everything else re.split(r"(?<=\.) (?=[A-Z`])", option.help)[0]
    text = re.sub(r"\[`~?([^`]+)`\]", r"`\1`", text)  # links of the documentation
    default = option.default
    if default is MISSING:
        suffix = "(required)"
    else:
        listed = " ".join(map(str, default)) if isinstance(default, list) else default
        suffix = "" if listed is None or listed is False or listed == "" else f"(default: {listed})"
    return f"{text} {suffix}".replace("%%", "%").replace("%", "%%")

"""The console command: `trl-consistency <command> ...`."""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from . import __version__
from .errors import did_you_mean, ends_with_message, naming_flags
from .scripts.quick_answers import answer, named_as_flags
from .scripts.recipes import recipes_dir


# Command, the module whose `run(args, prog=...)` runs it, and its line in the help.
COMMANDS = {
    "consistency": ("trl_consistency.scripts.consistency", "train on pairs of clean and perturbed prompts"),
    "on-policy-consistency": (
        "trl_consistency.scripts.on_policy_consistency",
        "train on the student's own answers to the perturbed prompts",
    ),
    "targets": ("trl_consistency.scripts.targets", "answer the clean prompts and write the pairs with their answers"),
    "pairs": ("trl_consistency.scripts.pairs", "make pairs of questions, requests or prompts"),
    "convert": ("trl_consistency.scripts.convert", "turn pairs into preferences or SFT data for TRL's own trainers"),
    "lint": ("trl_consistency.scripts.lint", "find faulty pairs, and pairs that will train little"),
    "suites": ("trl_consistency.scripts.suites", "run standard suites on a model and its adapters"),
    "push": ("trl_consistency.scripts.push", "publish a trained model on the Hub"),
    "evaluate": ("trl_consistency.scripts.evaluate", "measure a model and its adapters on pairs, with intervals"),
    "quickstart": (
        "trl_consistency.scripts.quickstart",
        "train the embedded model organism and show before and after",
    ),
    "estimate": ("trl_consistency.scripts.estimate", "compute what a step costs: memory, largest batch, seconds"),
    "doctor": ("trl_consistency.scripts.doctor", "show what will work on this machine, and what is missing"),
}
# Commands that can run on several processes.
LAUNCHED_COMMANDS = {"consistency", "on-policy-consistency", "targets", "evaluate"}


def main(argv: Sequence[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="trl-consistency",
        description="Consistency training for TRL. `trl-consistency COMMAND --help` lists a command's options.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, help_text) in COMMANDS.items():
        commands.add_parser(name, help=help_text, add_help=False)
    if args and not args[0].startswith("-") and args[0] not in COMMANDS:
        hint = did_you_mean(args[0], COMMANDS) or f" There are {', '.join(COMMANDS)}."
        parser.error(f"unknown command `{args[0]}`.{hint}")
    command = parser.parse_known_args(args[:1])[0].command
    module, rest, prog = COMMANDS[command][0], args[1:], f"trl-consistency {command}"
    launch_args: list[str] = []
    if command in LAUNCHED_COMMANDS:
        launch_args, rest = split_launch_args(rest, parser)
    flags = named_as_flags(command, rest)
    with naming_flags(flags), ends_with_message():
        answer(command, rest, prog)
    if launch_args:
        launch_args += starts_several(launch_args, parser)
        launch = [sys.executable, "-m", "accelerate.commands.launch", *launch_args, "-m", module, *rest]
        os.execv(sys.executable, launch)  # replaces this process, so that signals reach it
    # bitsandbytes logs at import which kernels it could not load, which does not help users of this command.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # Of PEFT, which reads this name of transformers while an adapter is added.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    with naming_flags(flags):
        import_module(module).run(rest, prog=prog)


def split_launch_args(args: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """
    Takes `--accelerate_config NAME_OR_FILE` and `--num_processes N` out of a training command's arguments. Returns the
    arguments of `accelerate launch` (empty for a single process), and those of the training script.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog=parser.prog)
    options.add_argument("--accelerate_config")
    options.add_argument("--num_processes", type=int)
    launch, rest = options.parse_known_args(args)
    launch_args = []
    if launch.accelerate_config:
        launch_args += ["--config_file", _find_accelerate_config(launch.accelerate_config, parser)]
    if launch.num_processes is not None:
        if launch.num_processes < 1:
            parser.error(f"--num_processes must be at least 1, got {launch.num_processes}.")
        launch_args += ["--num_processes", str(launch.num_processes)]
    return launch_args, rest


def starts_several(launch_args: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """
    Returns what `accelerate launch` needs besides its arguments to start several processes where they ask for several. Ends the
    program if its config file is for a single one: accelerate would start that without a word.
    """
    given = dict(zip(launch_args[::2], launch_args[1::2], strict=True))
    if int(given.get("--num_processes", 1)) == 1:
        return []
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file

    file = given.get("--config_file", default_config_file)
    if not os.path.isfile(file):
        return ["--multi_gpu"]  # on a CPU, too
    with suppress(Exception):  # which accelerate tells
        config = load_config_from_file(file)  # in which YAML reads an unquoted NO as False
        if config.distributed_type in (False, "NO", "MULTI_CPU") and not config.mpirun_config:
            parser.error(
                f"--num_processes is {given['--num_processes']}, and {file} is for a single process. Give --accelerate_config "
                "multi_gpu, or multi_cpu without a GPU."
            )
    return []


def _find_accelerate_config(name: str, parser: argparse.ArgumentParser) -> str:
    if os.path.isfile(name):
        return name
    folder = recipes_dir() / "accelerate_configs"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        parser.error(f"--accelerate_config {name} is neither a file nor one of: {known}.")
    return str(path)


if __name__ == "__main__":
    main()

"""
What users rely on: public names with their parameters, options of configs, and commands with their own options.
`python -m tests.public_api` writes the list to tests/public_api.txt. docs/support.md says what may change in which version.
"""

import dataclasses
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.test_site import PACKAGES
from trl_consistency.cli import COMMANDS
from trl_consistency.scripts.quick_answers import COMMANDS as PARSED
from trl_consistency.scripts.quick_answers import command_options


LIST = Path(__file__).parent / "public_api.txt"


def public_api() -> list[str]:
    """Returns one line for each name."""
    lines = []
    for package in PACKAGES.values():
        module = import_module(package)
        for name in module.__all__:
            lines += describe(f"{package}.{name}", getattr(module, name))
    for command in COMMANDS:
        own = (
            sorted(name for name, option in command_options(command).items() if option.is_own)
            if command in PARSED
            else ()
        )
        lines.append(" ".join([f"trl-consistency {command}", *(f"--{name}" for name in own)]))
    return lines


def describe(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return [name]
        options = own_options(value) if name.endswith("Config") else parameters(value)
        return [f"{name}({options})", *methods(name, value)]
    return [f"{name}({parameters(value)})"] if callable(value) else [name]


def methods(name: str, of_class: type) -> list[str]:
    """Returns the public methods and properties that the class or its bases in the package define."""
    found = {}
    for base in reversed(of_class.__mro__):
        if base.__module__.startswith("trl_consistency."):
            found |= {key: member for key, member in vars(base).items() if not key.startswith("_")}
    members = {key: getattr(member, "__func__", member) for key, member in found.items()}
    lines = [f"{name}.{key}({parameters(member)})" for key, member in members.items() if inspect.isfunction(member)]
    lines += [f"{name}.{key}" for key, member in members.items() if isinstance(member, property)]
    return sorted(lines)


def own_options(config: Any) -> str:
    """Returns the options that this package's configs add to those of TRL."""
    theirs = {
        field.name
        for base in config.__mro__
        if base.__module__.split(".")[0] == "trl"
        for field in dataclasses.fields(base)
    }
    return ", ".join(sorted(f"{field.name}=" for field in dataclasses.fields(config) if field.name not in theirs))


def parameters(function: Any) -> str:
    """Returns the parameters in their order; `=` stands after the optional ones."""
    found = [of for of in inspect.signature(function).parameters.values() if of.name not in ("self", "cls")]
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return ", ".join(
        f"{marks.get(of.kind, '')}{of.name}{'' if of.default is inspect.Parameter.empty else '='}" for of in found
    )


if __name__ == "__main__":
    LIST.write_text("\n".join(public_api()) + "\n")

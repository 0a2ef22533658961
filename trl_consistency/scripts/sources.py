"""
Reads the options of a command from source files.

Importing TRL's and transformers' classes takes seconds, since they import torch. Here, the source files are parsed for
names, types and help, and not run.
"""

import ast
import typing
from dataclasses import MISSING
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from ..config.options import described_options


# Raised for unexpected sources. The parser of the imported classes then decides.
SOURCE_ERRORS = (OSError, SyntaxError, LookupError)

_GROUP = "# Parameters that control "  # the comment above each group of fields in TRL's configs


class Option(NamedTuple):
    """
    A field of a data class. If the source does not show them, `hint` is `Any`, and `default` and `choices` are None.
    The default of a required option is `MISSING`.
    """

    name: str
    owner: str
    group: str
    hint: Any
    default: Any
    choices: list[Any] | None
    help: str

    @property
    def is_own(self) -> bool:
        """Whether this package defines the option."""
        return self.owner.startswith(f"{__name__.split('.')[0]}.")

    @property
    def flags(self) -> list[str]:
        """The option's flags in TRL's parser."""
        negated = self.default is True and self.hint in (bool, bool | None, Any)
        names = [self.name, f"no_{self.name}"] if negated else [self.name]
        return [f"--{spelt}" for name in names for spelt in dict.fromkeys((name, name.replace("_", "-")))]


@cache
def read_options(class_name: str) -> dict[str, Option]:
    """
    Returns the fields of a data class such as `trl.SFTConfig` by name, those of its bases first. The module in its
    name defines or imports it. Raises one of [`SOURCE_ERRORS`] if the source is not found or read.
    """
    options: dict[str, Option] = {}
    for module, node in reversed(_resolution_order(class_name)):
        for name, option in _own_options(module, node).items():
            options.pop(name, None)  # a redefined field counts as the class's own
            options[name] = option
    return options


def _resolution_order(class_name: str) -> list[tuple[str, ast.ClassDef]]:
    """Returns a data class and its bases with their modules, in method resolution order."""
    module, node = _find(*class_name.rsplit(".", 1))
    if not isinstance(node, ast.ClassDef):
        raise LookupError(f"{class_name} is not a class.")
    order = [(module, node)]
    for base in node.bases:
        order += _resolution_order(f"{module}.{ast.unparse(base)}")
    return list(dict.fromkeys(reversed(order)))[::-1]  # a base of several classes comes after all of them


def _own_options(module: str, node: ast.ClassDef) -> dict[str, Option]:
    """Returns the fields that a class itself defines."""
    options: dict[str, Option] = {}
    texts = described_options(ast.get_docstring(node) or "")
    lines, group, last_line = _parse(module)[2], "", node.lineno
    for statement in node.body:
        above = [line.strip() for line in lines[last_line : statement.lineno - 1]]
        group = next((line.removeprefix(_GROUP) for line in above if line.startswith(_GROUP)), group)
        last_line = statement.end_lineno or statement.lineno
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            settings = _settings(statement.value, module)
            if settings.get("init", True):
                name, hint = statement.target.id, _evaluate(statement.annotation, module)
                choices = settings.get("choices") or (get_args(hint) if get_origin(hint) is Literal else None)
                options[name] = Option(
                    name,
                    f"{module}.{node.name}",
                    group,
                    Any if hint is None or isinstance(hint, str) else hint,
                    settings.get("default", MISSING),
                    list(choices) if choices else None,
                    " ".join((settings.get("help") or texts.get(name, "")).split()),
                )
    return options


def _settings(value: ast.expr | None, module: str) -> dict[str, Any]:
    """Returns the `default`, `choices`, `help` and `init` of a field."""
    if not isinstance(value, ast.Call):
        return {} if value is None else {"default": _evaluate(value, module)}
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    if value.args:
        given["default"] = value.args[0]
    if isinstance(metadata := given.get("metadata"), ast.Dict):
        given |= {getattr(key, "value", ""): of for key, of in zip(metadata.keys, metadata.values, strict=True)}
    if (factory := given.get("default_factory")) is not None:
        given["default"] = factory.body if isinstance(factory, ast.Lambda) else ast.Constant(None)
    return {name: _evaluate(given[name], module) for name in ("default", "choices", "help", "init") if name in given}


@cache
def _parse(module: str) -> tuple[list[ast.stmt], str, list[str]]:
    """Returns the statements of a module, the package for its relative imports, and its lines."""
    top, *parts = module.split(".")
    spec = find_spec(top)  # imports nothing, since the name has no dots
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"{top} is not an installed package.")
    path = Path(spec.submodule_search_locations[0], *parts)
    is_package = path.is_dir()
    text = (path / "__init__.py" if is_package else path.with_name(f"{path.name}.py")).read_text(encoding="utf-8")
    return ast.parse(text).body, module if is_package else module.rpartition(".")[0], text.splitlines()


def _find(module: str, name: str) -> tuple[str, ast.stmt]:
    """Returns the statement that defines a top-level name of a module, following imports."""
    statements, package, _ = _parse(module)
    for node in statements:
        if isinstance(node, ast.If):  # `if TYPE_CHECKING:`
            statements = [*statements, *node.body]
    for node in statements:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _find(resolve_name("." * node.level + (node.module or ""), package), alias.name)
    raise KeyError(name)


class _Constants(dict[str, Any]):
    """Names in an expression: those of `typing`, and constants of the expression's module."""

    def __init__(self, module: str):
        super().__init__(vars(typing))
        self.module = module

    def __missing__(self, name: str) -> Any:
        node = _find(self.module, name)[1]  # a `KeyError` makes Python look in the built-in names
        if not isinstance(node, ast.Assign):
            raise KeyError(name)
        return ast.literal_eval(node.value)


def _evaluate(expression: ast.expr, module: str) -> Any:
    """Returns the value of a constant expression, else None. Importing the module would evaluate it, too."""
    try:
        return eval(compile(ast.Expression(expression), module, "eval"), {}, _Constants(module))
    except Exception:  # other expressions can raise anything
        return None

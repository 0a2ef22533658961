"""Renders the HTML and Markdown templates in `templates/`, and tables for Markdown or a terminal."""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .escaping import markdown_text, printable


NO_TERMINAL = 10_000  # in columns: no line is broken


def render(template: str, **values: Any) -> str:
    """Renders a template, an `.html` or `.md` file. Values are escaped, unless they are [`~markupsafe.Markup`]."""
    return _environment(template.endswith(".html")).get_template(template).render(values)


@cache
def _environment(is_html: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("trl_consistency"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable if is_html else _markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = lambda text: Markup(
        f"`{' '.join(printable(str(text)).replace('`', chr(39)).split())}`"
    )
    environment.globals["table"] = row_table
    return environment


def _printable(value: Any) -> str:
    return value if isinstance(value, Markup) else printable(str(value))


def _markdown(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(markdown_text(str(value)))


def row_table(
    header: Sequence[str], rows: Iterable[tuple[Any, Iterable[Any]]], aligned: bool = True, is_text: bool = False
) -> Markup:
    """
    Returns a table in Markdown, given the label and cells of each row. `aligned` pads the columns, for readers of the
    source. `is_text` escapes the cells, which are outside text and not figures.
    """
    show = _markdown if is_text else str
    lines: list[list[str]] = [[*map(_markdown, header)]]
    lines += [[_markdown(label), *map(show, cells)] for label, cells in rows]
    widths = [max(map(len, column)) if aligned else 0 for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * (width or 3) for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return Markup("".join(f"| {' | '.join(line)} |\n" for line in padded))


def cells_table(names: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str:
    """Returns figures by label and name as a table in Markdown."""
    return str(row_table(["", *names], cells.items()))


def terminal_table(names: Sequence[str], cells: Mapping[str, Sequence[str]]) -> str:
    """Returns figures by label and name as Markdown, with cells wrapped to the width of the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.MARKDOWN)
    for name in ("", *names):
        table.add_column(Text(printable(name)), overflow="fold")  # no figure is cut in a narrow terminal
    for label, row in cells.items():
        table.add_row(*(Text(printable(text)) for text in (label, *row)))
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else NO_TERMINAL
    return in_terminal(table, width) + "\n"


def in_terminal(shown: Any, width: int, colour: bool = False) -> str:
    """Returns the output of `rich`, in lines of at most `width` characters."""
    from rich.console import Console

    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())

"""A report as Markdown, and as a self-contained HTML file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...files import write_text
from ...pages import render


class Table(NamedTuple):
    """
    A table of figures.

    Args:
        heading (`str`):
            Heading above it.
        text (`str`):
            What it shows.
        cells (`Mapping[str, Sequence[str]]`):
            A figure for each model, such as `3.1% [1.2, 7.8] (4/128)`, by the label of the row.
        models (`Sequence[str]`, *optional*):
            The models. By default those of the report.
    """

    heading: str
    text: str
    cells: Mapping[str, Sequence[str]]
    models: Sequence[str] | None = None


class Picture(NamedTuple):
    """
    A picture of a report.

    Args:
        path ([`~pathlib.Path`]):
            PNG file, in the report's folder. The HTML file embeds it.
        heading (`str`):
            Heading above it.
        text (`str`):
            What it shows.
    """

    path: Path
    heading: str
    text: str

    def data(self) -> str:
        """Returns the file in base64."""
        return base64.b64encode(self.path.read_bytes()).decode()


@dataclass
class Report:
    """
    A report.

    Args:
        title (`str`):
            Its title.
        introduction (`str`):
            What was measured.
        models (`Sequence[str]`):
            The models, in the order of the columns.
        tables (`Sequence[Table]`):
            Tables.
        pictures (`Sequence[Picture]`, *optional*, defaults to `()`):
            Pictures: the first comes before the tables, the others after them.
        examples (`Sequence[tuple[str, Mapping[str, str]]]`, *optional*, defaults to `()`):
            Prompts, and what each model answered.
        examples_text (`str`, *optional*, defaults to `""`):
            How the examples were chosen.
        notes (`Sequence[str]`, *optional*, defaults to `()`):
            Lines at the end.
        findings (`Sequence[str]`, *optional*, defaults to `()`):
            What a reader must know first, such as that right answers were lost.
    """

    title: str
    introduction: str
    models: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()
    examples: Sequence[tuple[str, Mapping[str, str]]] = ()
    examples_text: str = ""
    notes: Sequence[str] = ()
    findings: Sequence[str] = ()

    def write(self, folder: Path) -> list[Path]:
        """Writes `report.html` and `report.md` into a folder that already has the pictures."""
        paths = [folder / "report.html", folder / "report.md"]
        for path, text in zip(paths, (self.to_html(), self.to_markdown()), strict=True):
            write_text(path, text)
        return paths

    def to_markdown(self) -> str:
        """Returns the report as Markdown that links its pictures."""
        return render("report.md", report=self, blocks=self._blocks(), answers=self._answers())

    def to_html(self) -> str:
        """Returns the report as HTML."""
        return render("report.html", report=self, blocks=self._blocks(), answers=self._answers())

    def _blocks(self) -> list[Table | Picture]:
        """Returns the first picture (the outcomes of all answers), then the tables, then the other pictures."""
        return [*self.pictures[:1], *self.tables, *self.pictures[1:]]

    def _answers(self) -> list[tuple[str, list[str]]]:
        return [(prompt, [answers[name] for name in self.models]) for prompt, answers in self.examples]

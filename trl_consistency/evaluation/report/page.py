"""A report as Markdown, and as a self-contained HTML file."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...files import write_text
from ...pages import render


class Table(NamedTuple):
    """A table of figures such as `3.1% [1.2, 7.8] (4/128)`: one for each model, by the label of the row."""

    heading: str
    text: str
    cells: Mapping[str, Sequence[str]]
    models: Sequence[str] | None = None  # by default those of the report


class Picture(NamedTuple):
    """A PNG file in the report's folder. The HTML file embeds it."""

    path: Path
    heading: str
    text: str

    def data(self) -> str:
        """Returns the file in base64."""
        return base64.b64encode(self.path.read_bytes()).decode()


@dataclass
class Report:
    """
    A report. Its models are in the order of the columns. `examples` are prompts, and what each model answered;
    `examples_text` says how they were chosen. `notes` come last, and `findings` (what a reader must know) first.
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

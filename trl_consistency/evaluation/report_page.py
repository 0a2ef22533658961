"""A report as two files that say the same: Markdown, and HTML that needs no other file."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..escaping import markdown_text, printable
from ..files import write_text
from .report import aligned_table


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.7rem; border-bottom: 1px solid #ccc; }
thead th { border-bottom: 2px solid #111; }
tbody th { font-weight: normal; }
tbody th { min-width: 14rem; }
tbody th, td.text { white-space: pre-wrap; overflow-wrap: break-word; }
.wide { overflow-x: auto; }
.note { color: #555; }
.findings { background: #fdecea; border-left: 4px solid #b3261e; padding: 0.6rem 1rem 0.6rem 2rem; }
img { max-width: 100%; height: auto; }
"""


class Table(NamedTuple):
    """
    A table of figures.

    Args:
        heading (`str`):
            Heading above it.
        text (`str`):
            What it shows.
        cells (`Mapping[str, Sequence[str]]`):
            By the label of the row, a figure for each model, such as `3.1% [1.2, 7.8] (4/128)`.
        models (`Sequence[str]`, *optional*):
            The models, if they are not those of the report.
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
            PNG file, in the report's folder. HTML gets a copy of it.
        heading (`str`):
            Heading above it.
        text (`str`):
            What it shows.
    """

    path: Path
    heading: str
    text: str


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
            Pictures: the first stands above the tables, the others below.
        examples (`Sequence[tuple[str, Mapping[str, str]]]`, *optional*, defaults to `()`):
            Prompts, and what each model answered.
        examples_text (`str`, *optional*, defaults to `""`):
            Which ones they are.
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

    EXAMPLES = "Answers before and after"

    def write(self, folder: Path) -> list[Path]:
        """Writes `report.html` and `report.md` into a folder, which has the pictures already."""
        paths = [folder / "report.html", folder / "report.md"]
        for path, text in zip(paths, (self.to_html(), self.to_markdown()), strict=True):
            write_text(path, text)
        return paths

    def _blocks(self) -> list[Table | Picture]:
        """The first picture, which shows what became of all answers, then the tables, then the other pictures."""
        return [*self.pictures[:1], *self.tables, *self.pictures[1:]]

    def to_markdown(self) -> str:
        """The report as Markdown that names its pictures."""
        parts = [f"# {markdown_text(self.title)}", markdown_text(self.introduction)]
        parts.append("\n".join(f"- **{markdown_text(finding)}**" for finding in self.findings))
        for block in self._blocks():
            parts += [f"## {markdown_text(block.heading)}", markdown_text(block.text)]
            if isinstance(block, Table):
                names = list(map(markdown_text, block.models or self.models))
                cells = {markdown_text(label): figures for label, figures in block.cells.items()}
                parts.append(aligned_table(names, cells).strip())
            else:
                parts.append(f"![{markdown_text(block.heading)}]({block.path.name})")
        if self.examples:
            said = {
                markdown_text(prompt): [markdown_text(answers[name]) for name in self.models]
                for prompt, answers in self.examples
            }
            names = list(map(markdown_text, self.models))
            parts += [f"## {self.EXAMPLES}", self.examples_text, aligned_table(names, said).strip()]
        parts.append("\n".join(f"- {markdown_text(note)}" for note in self.notes))
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_html(self) -> str:
        """The report as one page of HTML."""
        parts = [f"<h1>{_shown(self.title)}</h1>", f"<p>{_shown(self.introduction)}</p>"]
        if self.findings:
            parts.append(f'<ul class="findings">{"".join(f"<li>{_shown(of)}</li>" for of in self.findings)}</ul>')
        for block in self._blocks():
            parts += [f"<h2>{_shown(block.heading)}</h2>", f"<p>{_shown(block.text)}</p>"]
            if isinstance(block, Table):
                rows = [(label, map(_figure, cells)) for label, cells in block.cells.items()]
                parts.append(_table(block.models or self.models, rows))
            else:
                data = base64.b64encode(block.path.read_bytes()).decode()
                parts.append(f'<img alt="{_shown(block.heading)}" src="data:image/png;base64,{data}">')
        if self.examples:
            said = [
                (prompt, [f'<td class="text">{_shown(answers[name])}</td>' for name in self.models])
                for prompt, answers in self.examples
            ]
            parts += [f"<h2>{self.EXAMPLES}</h2>", f"<p>{_shown(self.examples_text)}</p>", _table(self.models, said)]
        if self.notes:
            parts.append("<h2>How</h2><ul>" + "".join(f"<li>{_shown(note)}</li>" for note in self.notes) + "</ul>")
        head = f'<meta charset="utf-8"><title>{_shown(self.title)}</title><style>{STYLE}</style>'
        return (
            f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"
        )


def _shown(text: str) -> str:
    """A text from outside in HTML."""
    return escape(printable(text))


def _figure(cell: str) -> str:
    """The figure on a line of its own, above its interval and counts."""
    figure, _, rest = cell.partition(" ")
    return f'<td><strong>{_shown(figure)}</strong><br><span class="note">{_shown(rest)}</span></td>'


def _table(names: Sequence[str], rows: Sequence[tuple[str, Iterable[str]]]) -> str:
    """`rows` are labels and cells of HTML."""
    head = "".join(f"<th>{_shown(name)}</th>" for name in names)
    body = "".join(f"<tr><th>{_shown(label)}</th>{''.join(cells)}</tr>\n" for label, cells in rows)
    return f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'

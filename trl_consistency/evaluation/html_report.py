"""A report as one HTML file that needs no other: text, tables and pictures."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from .report import LABELS, Results, _metrics


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.7rem; border-bottom: 1px solid #ccc; }
thead th { border-bottom: 2px solid #111; }
tbody th { font-weight: normal; }
.wide { overflow-x: auto; }
.note { color: #555; }
img { max-width: 100%; height: auto; }
"""


class Picture(NamedTuple):
    """
    A picture of a report.

    Args:
        path ([`~pathlib.Path`]):
            PNG file. It is copied into the page.
        heading (`str`):
            Heading above it.
        text (`str`):
            What it shows.
    """

    path: Path
    heading: str
    text: str


def html_report(
    title: str,
    introduction: str,
    results: Results,
    pictures: Sequence[Picture] = (),
    examples: Sequence[tuple[str, Mapping[str, str]]] = (),
    notes: Sequence[str] = (),
) -> str:
    """
    Renders a report.

    Args:
        title (`str`):
            Its title.
        introduction (`str`):
            What was measured.
        results (`Mapping[str, Mapping[str, Rate]]`):
            Rates by metric, by the model's name, in the order of the columns.
        pictures (`Sequence[Picture]`, *optional*, defaults to `()`):
            Pictures below the table.
        examples (`Sequence[tuple[str, Mapping[str, str]]]`, *optional*, defaults to `()`):
            Prompts, and what each model answered.
        notes (`Sequence[str]`, *optional*, defaults to `()`):
            Lines at the end.

    Returns:
        `str`: The page.
    """
    rows = {
        LABELS.get(metric, metric): [_cell(rates, metric) for rates in results.values()]
        for metric in _metrics(results)
    }
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(introduction)}</p>", "<h2>Rates</h2>", _table(results, rows)]
    parts.append('<p class="note">Below each rate: its 95% interval, and counts.</p>')
    for path, heading, text in pictures:
        data = base64.b64encode(path.read_bytes()).decode()
        parts += [f"<h2>{escape(heading)}</h2>", f"<p>{escape(text)}</p>"]
        parts.append(f'<img alt="{escape(heading)}" src="data:image/png;base64,{data}">')
    if examples:
        names = list(examples[0][1])
        said = {prompt: [escape(answers[name]) for name in names] for prompt, answers in examples}
        parts += ["<h2>Answers before and after</h2>", _table(names, said)]
    if notes:
        parts.append("<h2>How</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _cell(rates: Mapping, metric: str) -> str:
    if metric not in rates:
        return "-"
    rate, _, rest = str(rates[metric]).partition(" ")
    return f'<strong>{rate}</strong><br><span class="note">{escape(rest)}</span>'


def _table(names: Sequence[str] | Mapping, rows: Mapping[str, Sequence[str]]) -> str:
    """`rows` are of HTML; their names, and those of the columns, of text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n"
        for name, row in rows.items()
    )
    return f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'

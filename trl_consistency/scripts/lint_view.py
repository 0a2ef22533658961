"""What `trl-consistency lint` shows: counts and marked tokens, in the terminal or as a page."""

import html
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from ..data.lint import FINDINGS, SPAN_FINDINGS, LintReport
from ..data.marks import Token
from ..escaping import printable
from ..evaluation.dose import Dose


MARKS = {
    "same": "both begin so",
    "shared": "both end so",
    "cue": "on this side only",
    "header": "generation header",
    "over": "over the limit",
}
_COLOURS = {"same": "2", "shared": "32", "cue": "1;33", "header": "34", "over": "9;31"}  # of ANSI
_BRACKETS = {"same": ("", ""), "shared": ("[", "]"), "cue": ("«", "»"), "header": ("⟨", "⟩"), "over": ("{", "}")}

# Of a longer run of one mark, so many tokens are shown at each of its ends.
_SHOWN_IN_TERMINAL, _SHOWN_ON_PAGE = 40, 400

_BIDI_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class ShownPair(NamedTuple):
    """A pair to be shown."""

    row: int
    findings: list[str]
    clean: list[Token]
    perturbed: list[Token]


def counts_text(report: LintReport, irrelevant: Iterable[str] = ()) -> str:
    """The report in lines of text; `irrelevant` findings are said to be none."""
    alignment = report.alignment
    lines = [f"{report.rows} row(s), {len(report.anchors)} of them anchors."]
    if alignment.rows:
        tokens, share = alignment.shared_tokens, alignment.shared_fraction
        lines.append(
            f"The prompts end in {tokens.min:g} to {tokens.max:g} common tokens (median {tokens.median:g}), {share.min:.0%} "
            f"to {share.max:.0%} of the clean prompt (median {share.median:.0%})."
        )
    for name, rows in report.findings.items():
        if rows:
            limit = f" of {report.limit} tokens" if name == "truncated" else ""
            lines.append(
                f"- {name}: {len(rows)} pair(s) that {FINDINGS[name]}{limit}{_note(name, irrelevant)}: {_listed(rows)}"
            )
    lines += [f"    row {row}: {reason}" for row, reason in list(report.reasons.items())[:10]]
    lines += [f"- The data have {fault}" for fault in report.columns]
    if not report.has_findings(ignore=irrelevant):
        lines.append("Nothing to mend was found.")
    return printable("\n".join(lines))


def dose_text(dose: Dose) -> str:
    """What [`~trl_consistency.evaluation.measure_dose`] found, in lines of text."""
    heading, *figures = _dose_lines(dose)
    return "\n".join([heading, *(f"- {line}" for line in figures), *(f"Warning: {line}" for line in dose.warnings())])


def _dose_lines(dose: Dose) -> list[str]:
    lines = [f"Dose, on {dose.pairs} pairs (greedy answers):", f"kl: {dose.kl:.3g} nats a token of the clean answers"]
    for name, rate in dose.rates.items():
        lines.append(f"{name}: {rate}")
    return lines


def _note(finding: str, irrelevant: Iterable[str]) -> str:
    if finding in irrelevant:
        return " (of no matter to these objectives)"
    return " (matters to act, attct and mlpct alone)" if finding in SPAN_FINDINGS else ""


def _listed(rows: Sequence[int]) -> str:
    return f"row {', '.join(map(str, rows[:5]))}" + (", ..." if len(rows) > 5 else "")


def pair_text(pair: ShownPair, width: int, colour: bool) -> str:
    """The two prompts of a pair side by side, `width` characters in all."""
    half = max((width - 3) // 2, 20)
    titles = [f"row {pair.row}, clean", "perturbed" + (f" ({', '.join(pair.findings)})" if pair.findings else "")]
    lines = [" | ".join(f"{title[:half]:<{half}}" for title in titles), f"{'-' * half}-+-{'-' * half}"]
    columns = [
        _wrapped(_shortened(tokens, _SHOWN_IN_TERMINAL), half, colour) for tokens in (pair.clean, pair.perturbed)
    ]
    lines += [" | ".join(cells) for cells in zip_longest(*columns, fillvalue=" " * half)]
    return "\n".join(line.rstrip() for line in lines)


def legend(colour: bool) -> str:
    """What the colours, or else the brackets, mean."""
    return ", ".join(_marked(meaning, mark, colour) for mark, meaning in MARKS.items())


def _marked(text: str, mark: str, colour: bool) -> str:
    if colour:
        return f"\033[{_COLOURS[mark]}m{text}\033[0m"
    opening, closing = _BRACKETS[mark]
    return f"{opening}{text}{closing}"


def _shown_mark(token: Token) -> str:
    return "over" if token.is_over_limit else token.mark


def _shortened(tokens: Sequence[Token], shown: int) -> list[Token]:
    """The tokens, of long runs of one mark only the ends: what is left out is counted in its place."""
    short: list[Token] = []
    for _, run in groupby(tokens, key=_shown_mark):
        of_run = list(run)
        left_out = len(of_run) - 2 * shown
        if left_out > 1:
            gap = of_run[shown]._replace(text=f" [... {left_out} tokens ...] ")
            of_run[shown:-shown] = [gap]
        short += of_run
    return short


def _visible(character: str) -> str:
    """A character as a terminal can show it."""
    return {"\n": "↵", "\t": "→"}.get(character, character if character.isprintable() else "·")


def _columns(character: str) -> int:
    """How many columns of a terminal a character takes."""
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _wrapped(tokens: Sequence[Token], width: int, colour: bool) -> list[str]:
    """The marked text in lines that look `width` characters wide."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = [0]
    for mark, run in groupby(tokens, key=_shown_mark):
        text = "".join(token.text for token in run)
        opening, closing = ("", "") if colour else _BRACKETS[mark]
        body = text.removesuffix("\n")  # a bracket behind the last line break would stand on a line of its own
        for character in f"{opening}{body}{closing}{text[len(body) :]}":
            shown = _visible(character)
            if used[-1] + _columns(shown) > width:
                lines.append([])
                used.append(0)
            lines[-1].append((mark, shown))
            used[-1] += _columns(shown)
            if character == "\n":
                lines.append([])
                used.append(0)
    shown_lines = []
    for line, length in zip(lines, used, strict=True):
        runs = [(mark, "".join(shown for _, shown in run)) for mark, run in groupby(line, key=lambda cell: cell[0])]
        text = "".join(_marked(run, mark, True) if colour else run for mark, run in runs)
        shown_lines.append(text + " " * (width - length))
    return shown_lines if len(shown_lines[-1].strip()) or len(shown_lines) == 1 else shown_lines[:-1]


_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1400px; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
tr.found td {{ font-weight: 600; }}
.pair {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; margin: 0 0 2rem; }}
.side {{ font: 13px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: plaintext;  border: 1px solid #8886; border-radius: 6px; padding: .6rem .8rem; }}
.t {{ border-radius: 2px; box-shadow: inset -1px 0 #8888; }}
.same {{ opacity: .55; }}
.shared {{ background: #2a93; }}
.cue {{ background: #fa08; }}
.header {{ background: #48f4; }}
.over {{ background: #f446; text-decoration: line-through; }}
.warning {{ background: #fa08; padding: .4rem .8rem; border-radius: 6px; }}
.legend .t {{ padding: .1rem .4rem; margin-right: .6rem; box-shadow: none; }}
</style></head><body>
<h1>{title}</h1>
<p>{rows} row(s), {anchors} of them anchors (two equal prompts). Limit: {limit}.</p>
<table><tr><th>finding</th><th>pairs</th><th></th><th>rows</th></tr>
{findings}
</table>
{faults}
<table><tr><th>longest common suffix</th><th>min</th><th>median</th><th>max</th></tr>
<tr><td>tokens</td>{tokens}</tr>
<tr><td>share of the clean prompt</td>{share}</tr>
</table>
{dose}
<p class="legend">{legend}</p>
{pairs}
</body></html>
"""


def page(
    report: LintReport,
    pairs: Iterable[ShownPair],
    title: str,
    dose: Dose | None = None,
    irrelevant: Iterable[str] = (),
) -> str:
    """The report and the pairs as one HTML file that needs no other."""
    alignment = report.alignment
    rows = [
        f'<tr class="{"found" if rows and name not in irrelevant else ""}"><td>{name}</td>'
        f'<td class="n">{len(rows)}</td><td>{FINDINGS[name]}{_note(name, irrelevant)}</td>'
        f"<td>{_listed(rows) if rows else ''}</td></tr>"
        for name, rows in report.findings.items()
    ]
    faults = [f"row {row}: {reason}" for row, reason in list(report.reasons.items())[:10]] + report.columns
    shown = [
        f"<h2>Row {pair.row}{': ' + ', '.join(pair.findings) if pair.findings else ''}</h2>"
        f'<div class="pair"><div><b>clean</b>{_side(pair.clean)}</div>'
        f"<div><b>perturbed</b>{_side(pair.perturbed)}</div></div>"
        for pair in pairs
    ]
    return _PAGE.format(
        title=html.escape(printable(title)),
        rows=report.rows,
        anchors=len(report.anchors),
        limit="none" if report.limit is None else f"{report.limit} tokens",
        findings="\n".join(rows),
        faults=_list(faults),
        tokens="".join(f'<td class="n">{value:g}</td>' for value in alignment.shared_tokens),
        share="".join(f'<td class="n">{value:.0%}</td>' for value in alignment.shared_fraction),
        dose=_page_dose(dose) if dose is not None else "",
        legend="".join(f'<span class="t {mark}">{meaning}</span>' for mark, meaning in MARKS.items()),
        pairs="\n".join(shown),
    )


def _page_dose(dose: Dose) -> str:
    heading, *figures = _dose_lines(dose)
    warnings = "".join(f'<p class="warning">{html.escape(warning)}</p>' for warning in dose.warnings())
    return f"<p>{heading}</p>{_list(figures)}{warnings}"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(printable(line))}</li>" for line in lines) + "</ul>" if lines else ""


def _side(tokens: Sequence[Token]) -> str:
    spans = []
    for token in _shortened(tokens, _SHOWN_ON_PAGE):
        # The break itself stands behind the span: inside, it would widen the coloured box.
        text, breaks = token.text.replace("\n", "↵"), "\n" * token.text.count("\n")
        # What would change the order of the text around it, or cannot be seen.
        text = "".join(
            "·" if unicodedata.bidirectional(c) in _BIDI_CONTROLS or (c < " " and c != "\t") else c for c in text
        )
        if text:  # a piece of a character has none
            spans.append(f'<span class="t {_shown_mark(token)}">{html.escape(text)}</span>{breaks}')
    return f'<div class="side">{"".join(spans)}</div>'

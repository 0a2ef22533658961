"""What `trl-consistency lint` shows: counts and marked tokens, in the terminal or as a page."""

import html
from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from ..data.lint import FINDINGS, LintReport
from ..data.marks import Token
from ..evaluation.dose import Dose


MARKS = {
    "same": "both begin so",
    "shared": "both end so",
    "cue": "on this side only",
    "header": "generation header",
    "over": "over the limit",
}
_COLOURS = {"same": "2", "shared": "32", "cue": "1;33", "header": "34", "over": "9;31"}  # of ANSI
_BRACKETS = {"same": ("", ""), "shared": ("[", "]"), "cue": ("«", "»"), "header": ("<", ">"), "over": ("{", "}")}


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
            note = " (of no matter to these objectives)" if name in irrelevant else ""
            lines.append(f"- {name}: {len(rows)} {FINDINGS[name]}{limit}{note}: {_listed(rows)}")
    lines += [f"    row {row}: {reason}" for row, reason in list(report.reasons.items())[:10]]
    lines += [f"- The data have {fault}" for fault in report.columns]
    if not report.has_findings():
        lines.append("Nothing to mend was found.")
    return "\n".join(lines)


def dose_text(dose: Dose) -> str:
    """What [`~trl_consistency.evaluation.measure_dose`] found, in lines of text."""
    lines = [
        f"Dose, on {dose.pairs} pairs (greedy answers):",
        f"- kl: {dose.kl:.3g} nats a token of the clean answers",
    ]
    for name, rate in dose.rates.items():
        unparsed = f", {rate.unparsed} unparsed" if rate.unparsed else ""
        share = f"{rate.value:.1%} ({rate.hits}/{rate.total})" if rate.total else "n/a"
        lines.append(f"- {name}: {share}{unparsed}")
    return "\n".join(lines + [f"Warning: {warning}" for warning in dose.warnings()])


def _listed(rows: Sequence[int]) -> str:
    return f"row {', '.join(map(str, rows[:5]))}" + (", ..." if len(rows) > 5 else "")


def pair_text(pair: ShownPair, width: int, colour: bool) -> str:
    """The two prompts of a pair side by side, `width` characters in all."""
    half = (width - 3) // 2
    titles = [f"row {pair.row}, clean", "perturbed" + (f" ({', '.join(pair.findings)})" if pair.findings else "")]
    lines = [" | ".join(f"{title[:half]:<{half}}" for title in titles), f"{'-' * half}-+-{'-' * half}"]
    columns = [_wrapped(tokens, half, colour) for tokens in (pair.clean, pair.perturbed)]
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


def _runs(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Neighbouring tokens of one mark together: mark and text."""
    grouped = groupby(tokens, key=lambda token: "over" if token.is_over_limit else token.mark)
    return [(mark, "".join(token.text for token in run)) for mark, run in grouped]


def _wrapped(tokens: Sequence[Token], width: int, colour: bool) -> list[str]:
    """The marked text in lines that look `width` characters wide."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0
    for mark, text in _runs(tokens):
        opening, closing = ("", "") if colour else _BRACKETS[mark]
        for character in f"{opening}{text}{closing}":
            shown = {"\n": "↵", "\t": "→"}.get(character, character if character.isprintable() else "·")
            if used == width:
                lines.append([])
                used = 0
            lines[-1].append((mark, shown))
            used += 1
            if character == "\n":
                lines.append([])
                used = 0
    shown_lines = []
    for line in lines:
        runs = [(mark, "".join(shown for _, shown in run)) for mark, run in groupby(line, key=lambda cell: cell[0])]
        text = "".join(_marked(run, mark, True) if colour else run for mark, run in runs)
        shown_lines.append(text + " " * (width - len(line)))
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
.pair {{ display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: 0 0 2rem; }}
.side {{ font: 13px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid #8886; border-radius: 6px; padding: .6rem .8rem; }}
.t {{ border-radius: 2px; box-shadow: inset -1px 0 #8888; }}
.same {{ opacity: .55; }}
.shared {{ background: #2a93; }}
.cue {{ background: #fa08; }}
.header {{ background: #48f4; }}
.over {{ background: #f446; text-decoration: line-through; }}
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
<p class="legend">{legend}</p>
{pairs}
</body></html>
"""


def page(report: LintReport, pairs: Iterable[ShownPair], title: str) -> str:
    """The report and the pairs as one HTML file that needs no other."""
    alignment = report.alignment
    rows = [
        f'<tr class="{"found" if rows else ""}"><td>{name}</td><td class="n">{len(rows)}</td>'
        f"<td>{FINDINGS[name]}</td><td>{_listed(rows) if rows else ''}</td></tr>"
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
        title=html.escape(title),
        rows=report.rows,
        anchors=len(report.anchors),
        limit="none" if report.limit is None else f"{report.limit} tokens",
        findings="\n".join(rows),
        faults="<ul>" + "".join(f"<li>{html.escape(fault)}</li>" for fault in faults) + "</ul>" if faults else "",
        tokens="".join(f'<td class="n">{value:g}</td>' for value in alignment.shared_tokens),
        share="".join(f'<td class="n">{value:.0%}</td>' for value in alignment.shared_fraction),
        legend="".join(f'<span class="t {mark}">{meaning}</span>' for mark, meaning in MARKS.items()),
        pairs="\n".join(shown),
    )


def _side(tokens: Sequence[Token]) -> str:
    spans = []
    for token in tokens:
        mark = "over" if token.is_over_limit else token.mark
        # The break itself stands behind the span: inside, it would widen the coloured box.
        text, breaks = token.text.replace("\n", "↵"), "\n" * token.text.count("\n")
        spans.append(f'<span class="t {mark}">{html.escape(text)}</span>{breaks}')
    return f'<div class="side">{"".join(spans)}</div>'

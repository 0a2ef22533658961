"""Output of `trl-consistency lint`: counts and marked tokens, in the terminal or as HTML."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ..data.highlights import Token
from ..data.lint import FINDINGS, NO_CUE, SUFFIX_FINDINGS, TEXT_PROMPTS, LintReport
from ..escaping import printable
from ..evaluation.dose import Dose
from ..pages import in_terminal, render


if TYPE_CHECKING:
    from rich.text import Text


SIDES = ("clean", "perturbed")
MARKS = {
    "same": "same beginning",
    "shared": "same end",
    "cue": "on this side only",
    "header": "generation header",
    "over": "over the limit",
}
_STYLES = {"same": "dim", "shared": "green", "cue": "bold yellow", "header": "blue", "over": "strike red"}
_BRACKETS = {"same": ("", ""), "shared": ("[", "]"), "cue": ("«", "»"), "header": ("⟨", "⟩"), "over": ("{", "}")}

# A longer run of one mark is cut to so many tokens at each end.
_SHOWN_IN_TERMINAL, _SHOWN_ON_PAGE = 40, 400


class ShownPair(NamedTuple):
    """A pair to show."""

    row: int
    findings: list[str]
    clean: list[Token]
    perturbed: list[Token]


def counts_text(report: LintReport, irrelevant: Iterable[str] = (), anchor_ratio: float = 0.0) -> str:
    """Returns the report as text. `irrelevant` findings are marked as such. Training adds `anchor_ratio` of anchors."""
    alignment = report.alignment
    lines = [f"{report.rows} row(s), {len(report.anchors)} of them anchors.{_added(anchor_ratio)}"]
    if report.lacks_cues:
        lines.append(f"All of them {NO_CUE}.")
    if report.text_prompts:
        lines.append(f"{len(report.text_prompts)} of them {TEXT_PROMPTS}.")
    if alignment.rows:
        tokens, share = alignment.shared_tokens, alignment.shared_fraction
        lines.append(
            f"ACT compares the common end of the prompts: {tokens.min:g} to {tokens.max:g} tokens (median {tokens.median:g}), "
            f"{share.min:.0%} to {share.max:.0%} of the clean prompt (median {share.median:.0%})."
        )
    for name, rows in report.findings.items():
        if rows:
            limit = f" of {report.limit} tokens" if name == "truncated" else ""
            lines.append(
                f"- {name}: {len(rows)} pair(s) that {FINDINGS[name]}{limit}{_note(name, irrelevant)}: {_listed(rows)}"
            )
    lines += [f"    {fault}" for fault in _faults(report)]
    lines += [f"- The data have {fault}" for fault in report.columns]
    if not report.has_findings(ignore=irrelevant):
        lines.append("No faults were found.")
    return printable("\n".join(lines))


def _added(anchor_ratio: float) -> str:
    return f" Training adds anchors: {100 * anchor_ratio:.3g}% of an epoch (`anchor_ratio`)." if anchor_ratio else ""


def _faults(report: LintReport) -> list[str]:
    return [f"row {row}: {reason}" for row, reason in list(report.reasons.items())[:10]]


def dose_text(dose: Dose) -> str:
    """Formats the result of [`~trl_consistency.evaluation.measure_dose`]."""
    heading, *figures = _dose_lines(dose)
    return "\n".join([heading, *(f"- {line}" for line in figures), *(f"Warning: {line}" for line in dose.warnings())])


def _dose_lines(dose: Dose) -> list[str]:
    lines = [f"Dose, on {dose.pairs} pairs (greedy answers):", f"kl: {dose.kl:.3g} nats a token of the clean answers"]
    for name, rate in dose.rates.items():
        lines.append(f"{name}: {rate}")
    if dose.is_trained and dose.is_little:
        lines.append("The cue no longer changes the answers.")
    return lines


def _note(finding: str, irrelevant: Iterable[str]) -> str:
    if finding in irrelevant:
        return " (irrelevant to these objectives)"
    return " (relevant to act only)" if finding in SUFFIX_FINDINGS else ""


def _listed(rows: Sequence[int]) -> str:
    return f"row {', '.join(map(str, rows[:5]))}" + (", ..." if len(rows) > 5 else "")


def pair_text(pair: ShownPair, width: int, colour: bool) -> str:
    """Returns the two prompts of a pair side by side, in `width` characters."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.MARKDOWN, show_edge=False, pad_edge=False, header_style="none")
    found = f" ({', '.join(pair.findings)})" if pair.findings else ""
    for title in (f"row {pair.row}, clean", f"perturbed{found}"):
        table.add_column(title, width=max((width - 3) // 2, 20), overflow="fold")
    table.add_row(*(_side(_shortened(side, _SHOWN_IN_TERMINAL), colour) for side in (pair.clean, pair.perturbed)))
    return in_terminal(table, max(width, 43), colour)


def legend(colour: bool) -> str:
    """Explains the colours, or else the brackets."""
    from rich.text import Text

    return in_terminal(Text(", ").join(_marked(meaning, mark, colour) for mark, meaning in MARKS.items()), 200, colour)


def _marked(text: str, mark: str, colour: bool) -> "Text":
    from rich.text import Text

    opening, closing = ("", "") if colour else _BRACKETS[mark]
    body = text.removesuffix("\n")  # the closing bracket must not get a line of its own
    shown = "".join(map(_visible, f"{opening}{body}{closing}{text[len(body) :]}"))
    return Text(shown, _STYLES[mark] if colour else "")


def _side(tokens: Iterable[Token], colour: bool) -> "Text":
    from rich.text import Text

    runs = groupby(tokens, key=_shown_mark)
    side = Text().join(_marked("".join(token.text for token in run), mark, colour) for mark, run in runs)
    side.rstrip()
    return side


def _shown_mark(token: Token) -> str:
    return "over" if token.is_over_limit else token.mark


def _shortened(tokens: Sequence[Token], shown: int) -> list[Token]:
    """Returns the tokens, with the middle of long runs of one mark replaced by a count."""
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
    """Returns a printable form of a character."""
    return {"\n": "↵\n", "\t": "→"}.get(character, character if character.isprintable() else "·")


def page(
    report: LintReport,
    pairs: Iterable[ShownPair],
    title: str,
    dose: Dose | None = None,
    irrelevant: Iterable[str] = (),
    anchor_ratio: float = 0.0,
) -> str:
    """Returns the report and the pairs as self-contained HTML."""
    findings = [
        (name, rows, FINDINGS[name] + _note(name, irrelevant), bool(rows) and name not in irrelevant)
        for name, rows in report.findings.items()
    ]
    shown = [
        (pair, [(side, _shortened(tokens, _SHOWN_ON_PAGE)) for side, tokens in zip(SIDES, pair[2:], strict=True)])
        for pair in pairs
    ]
    return render(
        "lint.html",
        title=title,
        report=report,
        added=_added(anchor_ratio),
        no_cue=NO_CUE,
        text_prompts=TEXT_PROMPTS,
        findings=findings,
        listed=_listed,
        faults=_faults(report) + report.columns,
        dose=None if dose is None else _dose_lines(dose),
        warnings=dose.warnings() if dose is not None else [],
        marks=MARKS,
        mark_of=_shown_mark,
        pairs=shown,
    )

r"""Reads the notations of LaTeX and HTML as plain text has them: "CO2" for `$\text{CO}_2$`, "3/4" for `\frac{3}{4}`."""

import re
import unicodedata
from collections.abc import Callable


_LONE_NUMBER = re.compile(r"(?<![\w$\\])\$(-?\d[\d.,]*)\$(?![\w$])")  # in LaTeX: "$5$ km"
_CODE = re.compile(r"(?<!`)`([^`\n]{1,60})`(?!`)")
# Emphasis in pairs of marks, which may be within each other: "***not***"
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,3}|_{1,3})(?=[^\s*_])([^*\n]{1,300}?)(?<=[^\s])\1(?![\w*])")
_NESTED = 4  # commands within each other that are read: "\\frac{\\text{km}}{\\text{h}}"
# What a command is given: "{...}", or a digit
_OPERAND = r"\s*(?:\{([^{}]*)\}|(\d))"
_SIMPLE = re.compile(r"-?[\w.,%\u00b0\u221a]+")
_SYMBOLS = {
    "times": "\u00d7",
    "cdot": "\u00d7",
    "div": "\u00f7",
    "approx": "\u2248",
    "pm": "\u00b1",
    "degree": "\u00b0",
    "leq": "\u2264",
    "le": "\u2264",
    "geq": "\u2265",
    "ge": "\u2265",
    **{of: of for of in ("log", "ln", "exp", "sin", "cos", "tan", "lim", "max", "min", "gcd", "mod")},
}
_ROOTS = {"3": "\u221b", "4": "\u221c"}
_SUPERSCRIPT = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b"


def _in_brackets(operand: str) -> str:
    operand = operand.strip()
    return operand if _SIMPLE.fullmatch(operand) else f"({operand})"


def _symbol(of: re.Match[str]) -> str:
    case = "SMALL" if of[1].islower() else "CAPITAL"
    try:
        return _SYMBOLS.get(of[1]) or unicodedata.lookup(f"GREEK {case} LETTER {of[1]}")
    except KeyError:
        return of[0]


# Commands that have no others within them
_COMMANDS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(
            r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|bb)|operatorname|emph|mbox|ce)\s*\{([^{}]*)\}"
        ),
        r"\1",
    ),
    # "3\\frac{1}{2}" is "3 1/2"
    (
        re.compile(rf"(\d?)\\[dtc]?frac{_OPERAND}{_OPERAND}"),
        lambda of: (
            f"{of[1]}{' ' if of[1] else ''}{_in_brackets(of[2] or of[3] or '')}/{_in_brackets(of[4] or of[5] or '')}"
        ),
    ),
    (
        re.compile(rf"\\sqrt(?:\[(\d)\])?{_OPERAND}|\bsqrt\s?\(()([^()]*)\)"),
        lambda of: _ROOTS.get(of[1] or "", "\u221a") + _in_brackets(of[2] or of[3] or of[5] or ""),
    ),
)

_WRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Spaces, but not in "70\\,000"
    (re.compile(r"\s*(?:\\[:; ]|(?<=\d)~(?=[A-Za-z])|\\,(?!\d{3}(?!\d))|\\q?quad\b)\s*"), " "),
    (re.compile(r"\\(?:left|right)(?![a-zA-Z])"), ""),
    (re.compile(r"\s?\^?\{?\s*\\(?:circ|degree)\b\s*\}?\$?"), "\u00b0"),
    (re.compile(r"\\([A-Za-z]+)"), _symbol),
    (re.compile(r"\\([%$&#])"), r"\1"),
    (re.compile(r"(?<=\S) {2,}(?=\S)"), " "),
)
_EVERYWHERE: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Subscripts of a symbol or a variable, "CO_2", "Na_{2}", "(SO_4)_3", "v_1", but not "part_1"
    (
        re.compile(
            r"(?:(?<=[A-Z)\]])|(?<=[A-Z][a-z])|(?<=\b[a-z]))(?:_(?:\{(\d+)\}|(\d+))|~(\d+)~)|<sub>\s*(\d+)\s*</sub>"
        ),
        lambda of: next(filter(None, of.groups())),
    ),
    (re.compile(r"(?<=\d)\u2044(?=\d)"), "/"),
    (re.compile(r"<sup>\s*(-?\d+)\s*</sup>"), r"^\1"),
    (re.compile(f"[{_SUPERSCRIPT}]+"), lambda of: "^" + unicodedata.normalize("NFKC", of[0]).replace("\u2212", "-")),
)


def plain_markup(text: str) -> str:
    """
    Returns a text with the formulas, subscripts, fractions and roots of LaTeX and HTML in plain notation. What marks an answer (`\\boxed`)
    stays.
    """
    if "\\" in text or "sqrt" in text:
        for _ in range(_NESTED):
            before = text
            for pattern, written in _COMMANDS:
                text = pattern.sub(written, text)
            if text == before:
                break
        for pattern, written in _WRITTEN:
            text = pattern.sub(written, text)
    for pattern, written in _EVERYWHERE:
        text = pattern.sub(written, text)
    return text


def without_emphasis(said: str) -> str:
    """Returns a reply without marks of emphasis, code and LaTeX around words and numbers: "I cannot" for "I **cannot**", "5" for "$5$"."""
    return _CODE.sub(r"\1", _LONE_NUMBER.sub(r"\1", _EMPHASIS.sub(r"\2", _EMPHASIS.sub(r"\2", said))))

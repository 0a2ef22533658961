import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from trl_consistency.errors import did_you_mean
from trl_consistency.pages import render, row_table, terminal_table
from trl_consistency.publishing.results import Outcomes, Page, Result, results_section


HOSTILE = "<b>x</b> ![y](https://e.vil/z.png) | \x1b[31m \u202e"


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError):
        render("results.md", page=Page([]), plots=[])


def test_outcomes_that_a_file_names_are_text():
    """The counts of `consistency_results.json` have names, which anybody may write."""
    text = results_section(Page([Result(metric="a", value=1)], None, [Outcomes("Questions", {HOSTILE: 2})]), [])
    assert "<b>" not in text
    assert "![y](" not in text
    assert r"\x1b" in text
    assert "\x1b" not in text


def test_tables():
    rows = [("one|two", ["1% [0, 2]"]), (Markup("`x`"), ["-"])]
    assert row_table(["", "A & B"], rows).splitlines() == [
        "|          | A &amp; B |",
        "| -------- | --------- |",
        r"| one\|two | 1% [0, 2] |",
        "| `x`      | -         |",
    ]
    assert row_table(["", "A"], rows, aligned=False).splitlines()[:3] == [
        "|  | A |",
        "| --- | --- |",
        r"| one\|two | 1% [0, 2] |",
    ]


def test_a_table_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cells = {"[red]a\x1b[31m": ["3.1% [1.2, 7.8] (4/128)"] * 2}
    piped = terminal_table(["before", "after"], cells)
    assert piped.count("3.1% [1.2, 7.8] (4/128)") == 2
    assert r"[red]a\x1b[31m" in piped
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert max(map(len, terminal_table(["before", "after"], cells).splitlines())) <= 40


def test_did_you_mean():
    assert did_you_mean("bcct", ["act", "bct"]) == " Did you mean `bct`?"
    assert did_you_mean(7, ["act"]) == ""


def test_figures_are_whole_in_a_narrow_terminal(monkeypatch):
    """They ended in an ellipsis: (1234/5…"""
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cells = {"Sycophancy, test_wordings": ["47.0% [38.8, 55.4] (1234/5678), 44 unread"] * 6}
    table = terminal_table([f"adapter-{number}" for number in range(6)], cells)
    assert "\u2026" not in table
    rows = [line.split("|")[2].strip() for line in table.splitlines()]
    assert "".join(rows[1:]).replace("-", "").endswith("47.0%[38.8,55.4](1234/5678),44unread")
